//! The scenery most scenarios begin with: two hosts, a queue pair on each, memory on both sides, and the settings every scenario should hold
//! under. Anything a single subject needs stays with that subject.
#![forbid(unsafe_code)]

mod connection_storm;
pub mod connections;
mod log;
mod storm;

pub use connection_storm::{Reached, connection_storm};
pub use log::{Log, Seen};
pub use storm::{Tally, storm};

use sim::{ConnectOptions, Family, HostConfig, HostId, LinkConfig, LinkKind, QpId, QpSpec, Region, Sim, Work};
use transport::{Access, Completion, Status};
use wire::Mtu;

/// Every right a region can grant to a peer, and to its owner.
pub const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// Under what a scenario plays.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Seed of the simulation.
    pub seed: u64,
    /// Both directions of the wire.
    pub link: LinkConfig,
    /// What the queue pairs agree on.
    pub options: ConnectOptions,
}

impl Default for Setting {
    fn default() -> Setting {
        Setting { seed: 1, link: LinkConfig::PERFECT, options: ConnectOptions::default() }
    }
}

impl Setting {
    /// The default setting on this kind of link.
    pub fn on(kind: LinkKind) -> Setting {
        Setting { link: LinkConfig::of(kind), ..Setting::default() }
    }

    /// This setting with another path MTU.
    pub fn mtu(mut self, mtu: Mtu) -> Setting {
        self.options.mtu = mtu;
        self
    }

    /// This setting with another seed.
    pub fn seed(mut self, seed: u64) -> Setting {
        self.seed = seed;
        self
    }

    /// This setting with packets lost at this rate.
    pub fn loss(mut self, loss: f64) -> Setting {
        self.link.loss = loss;
        self
    }

    /// Datagrams and trains, IPv4 and IPv6, every MTU.
    pub fn all() -> impl Iterator<Item = Setting> {
        Mtu::ALL.into_iter().flat_map(|mtu| Setting::each_link().map(move |setting| setting.mtu(mtu)))
    }

    /// Datagrams over IPv4 and IPv6, and trains.
    pub fn each_link() -> impl Iterator<Item = Setting> {
        [(LinkKind::Datagram, Family::V4), (LinkKind::Datagram, Family::V6), (LinkKind::Whole, Family::V4)]
            .into_iter()
            .map(|(kind, family)| {
                let mut setting = Setting::on(kind);
                setting.options.family = family;
                setting
            })
    }
}

/// Two hosts with a connected queue pair each, and memory.
pub struct Pair {
    /// The simulation they live in.
    pub sim: Sim,
    /// The first host.
    pub alice: HostId,
    /// The second host.
    pub bob: HostId,
    /// Alice's queue pair.
    pub a: QpId,
    /// Bob's queue pair.
    pub b: QpId,
    /// Alice's memory, open to all, filled with bytes of no obvious order.
    pub near: Region,
    /// Bob's memory, open to all, as large and zero.
    pub far: Region,
    /// What the queue pairs agreed on.
    pub options: ConnectOptions,
}

impl Pair {
    /// Bytes on each side unless a scenario says otherwise.
    pub const SIZE: usize = 64 * 1024;

    /// Two reliable connections.
    pub fn rc(setting: &Setting) -> Pair {
        Pair::new(setting, QpSpec::rc(), QpSpec::rc(), Pair::SIZE)
    }

    /// Two queue pairs of these kinds with `size` bytes on each side.
    pub fn new(setting: &Setting, spec_a: QpSpec, spec_b: QpSpec, size: usize) -> Pair {
        let mut sim = Sim::new(setting.seed);
        sim.set_default_link(setting.link);
        let alice = sim.add_host(HostConfig::named("alice"));
        let bob = sim.add_host(HostConfig::named("bob"));
        let a = sim.create_qp(alice, spec_a);
        let b = sim.create_qp(bob, spec_b);
        sim.connect(a, b, &setting.options);
        let mut bytes = vec![0; size];
        sim::Rng::new(setting.seed ^ 0x5eed).fill(&mut bytes);
        let near = sim.register_bytes(alice, spec_a.pd, bytes, ALL_ACCESS);
        let far = sim.register(bob, spec_b.pd, size, ALL_ACCESS);
        Pair { sim, alice, bob, a, b, near, far, options: setting.options }
    }

    /// Posts work on Alice's side, lets everything happen, and answers how it ended.
    ///
    /// # Panics
    /// If the work is refused, or does not complete exactly once.
    #[track_caller]
    pub fn finish(&mut self, work: &Work) -> Completion {
        self.sim.post(self.a, work).expect("the work is taken");
        self.sim.run_until_idle();
        let completions = self.sim.completions(self.a);
        let [completion] = completions.as_slice() else {
            panic!("one completion expected: {completions:?} (seed {})", self.sim.seed());
        };
        *completion
    }

    /// Posts work on Alice's side and expects it to succeed.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn succeed(&mut self, work: &Work) -> Completion {
        let completion = self.finish(work);
        assert_eq!(completion.status, Status::Success, "{completion:?} (seed {})", self.sim.seed());
        completion
    }

    /// The only completion on Bob's side.
    ///
    /// # Panics
    /// If there is another number of them.
    #[track_caller]
    pub fn received(&mut self) -> Completion {
        let completions = self.sim.completions(self.b);
        let [completion] = completions.as_slice() else {
            panic!("one completion expected: {completions:?} (seed {})", self.sim.seed());
        };
        *completion
    }

    /// `length` of Alice's bytes from `offset` on.
    pub fn near_bytes(&self, offset: usize, length: usize) -> &[u8] {
        &self.sim.bytes(&self.near)[offset..offset + length]
    }

    /// `length` of Bob's bytes from `offset` on.
    pub fn far_bytes(&self, offset: usize, length: usize) -> &[u8] {
        &self.sim.bytes(&self.far)[offset..offset + length]
    }
}
