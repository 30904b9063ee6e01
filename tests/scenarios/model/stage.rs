//! A program's scenery: hosts, links, queue pairs, and memory. All memory of a host lies in one heap between bytes that belong to nobody, beside
//! an image of it: what the model says the heap holds.

use super::generate;
use super::program::*;
use sim::{HostConfig, HostId, QpId, QpSpec, Region, RegionSpec, Rng, Sim, SrqId, SrqSpec, WindowKind, WindowSpec};
use transport::congestion::WindowConfig;
use transport::{Access, Kind, ProtectionDomain, Remote, Sge};
use wire::Key;

/// A domain no queue pair is in.
const FOREIGN: ProtectionDomain = ProtectionDomain(2);

/// A key nobody has.
pub const NO_KEY: Key = Key::new(0x00dd_dd00);

/// Counters per host that all may add to.
pub const COUNTERS: usize = 2;

pub struct Stage {
    pub sim: Sim,
    pub hosts: Vec<HostId>,
    pub heaps: Vec<Region>,
    /// What the heaps should hold.
    pub image: Vec<Vec<u8>>,
    pub ends: Vec<Ground>,
    pub shared: Vec<(SrqId, Vec<Slot>)>,
    /// Per host, where its counters are.
    pub counters: Vec<u32>,
}

/// What an end stands on.
pub struct Ground {
    pub qp: QpId,
    pub source: Area,
    pub landing: Area,
    /// Where the results of additions to shared counters land, each in its own place.
    pub tally: Area,
    /// On the peer's host.
    pub target: Area,
    pub slots: Vec<Slot>,
    pub window: Option<Key>,
    pub wrong: Wrong,
}

/// Keys that do not open what a flawed work request wants.
#[derive(Clone, Copy)]
pub struct Wrong {
    pub target_exact: Region,
    pub target_foreign: Region,
    pub target_closed: Region,
    pub source_exact: Region,
    pub source_foreign: Region,
    pub landing_exact: Region,
    pub landing_foreign: Region,
    pub landing_closed: Region,
}

/// Part of a heap and a key for it.
#[derive(Clone, Copy)]
pub struct Area {
    pub host: usize,
    /// In the heap.
    pub offset: u32,
    pub length: u32,
    region: Region,
    /// Of the area in the region.
    base: u32,
}

impl Area {
    pub fn sge(&self, offset: u32, length: u32) -> Sge {
        self.region.sge(u64::from(self.base + offset), length)
    }

    pub fn remote(&self, offset: u32) -> Remote {
        self.region.remote(u64::from(self.base + offset))
    }

    /// Where `length` bytes from `offset` on are in the heap.
    pub fn range(&self, offset: u32, length: u32) -> std::ops::Range<usize> {
        let start = (self.offset + offset) as usize;
        start..start + length as usize
    }
}

/// Memory of one receive.
pub struct Slot {
    pub host: usize,
    /// In the heap.
    pub pieces: Vec<(u32, u32)>,
    pub flawed: bool,
}

/// Hands out the heap.
struct Layout {
    next: Vec<u32>,
    rng: Rng,
}

impl Layout {
    fn take(&mut self, host: usize, length: u32) -> u32 {
        let offset = (self.next[host] + 1 + self.rng.below(40) as u32).next_multiple_of(8);
        self.next[host] = offset + length;
        offset
    }

    fn slot(&mut self, host: usize, receive: &Receive) -> Slot {
        let mut pieces: Vec<_> = receive.pieces.iter().map(|length| (self.take(host, *length), *length)).collect();
        // Not aligned to anything.
        for (offset, _) in &mut pieces {
            *offset -= self.rng.below(2) as u32;
        }
        Slot { host, pieces, flawed: receive.flawed }
    }
}

fn all_rights() -> Access {
    scenery::ALL_ACCESS | Access::MW_BIND
}

impl Stage {
    pub fn set(program: &Program) -> Stage {
        let mut sim = Sim::with_seed(program.seed);
        let config = |plan: &HostPlan| HostConfig {
            receive_buffer: plan.receive_buffer,
            service: plan.service,
            window: WindowConfig { limit: plan.window, ..WindowConfig::default() },
            ..HostConfig::default()
        };
        let hosts: Vec<_> = program.hosts.iter().map(|plan| sim.add_host(config(plan))).collect();
        for (from, to, config) in &program.links {
            sim.set_direction(hosts[*from], hosts[*to], *config);
        }
        // Where everything will be.
        let mut layout = Layout { next: vec![0; hosts.len()], rng: Rng::new(program.seed ^ 0x6c61_796f) };
        let counters: Vec<u32> = (0..hosts.len()).map(|host| layout.take(host, 8 * COUNTERS as u32)).collect();
        let mut plans = Vec::new();
        for number in 0..program.ends() {
            let (end, peer) = (program.end(number), program.end(number ^ 1));
            let Areas { source, landing, target, .. } = end.areas;
            let adds = end.steps.iter().filter(|step| is_shared_add(step)).count() as u32;
            let places = [
                (end.host, layout.take(end.host, source), source),
                (end.host, layout.take(end.host, landing), landing),
                (end.host, layout.take(end.host, 8 * adds), 8 * adds),
                (peer.host, layout.take(peer.host, target), target),
            ];
            let slots = match &end.receives {
                Receives::Own(own) => own.iter().map(|receive| layout.slot(end.host, receive)).collect(),
                _ => Vec::new(),
            };
            plans.push((places, slots));
        }
        let mut shared = Vec::new();
        for queue in &program.shared {
            let slots: Vec<_> = queue.receives.iter().map(|receive| layout.slot(queue.host, receive)).collect();
            let spec =
                SrqSpec { max_wr: slots.len().max(1) as u32, xrc_domain: queue.xrc.then_some(1), ..SrqSpec::default() };
            let srq = sim.create_srq(hosts[queue.host], spec);
            let armed = sim.srq(srq).modify(&generate::limit_of(queue));
            armed.expect("half of what a queue holds is a limit it takes");
            shared.push((srq, slots));
        }
        // The memory.
        let mut image = Vec::new();
        let mut heaps = Vec::new();
        for (number, host) in hosts.iter().enumerate() {
            let mut bytes = vec![0; layout.next[number] as usize + 64];
            Rng::new(program.seed ^ number as u64).fill(&mut bytes);
            heaps.push(sim.register_bytes(*host, QpSpec::PD, bytes.clone(), all_rights()));
            image.push(bytes);
        }
        let mut stage = Stage { sim, hosts, heaps, image, ends: Vec::new(), shared, counters };
        for (number, (places, slots)) in plans.into_iter().enumerate() {
            let ground = stage.ground(program, number, places, slots);
            stage.ends.push(ground);
        }
        stage
    }

    fn ground(&mut self, program: &Program, number: usize, places: [(usize, u32, u32); 4], slots: Vec<Slot>) -> Ground {
        let end = program.end(number);
        let service = program.channels[number / 2].service;
        let kind = match service {
            Service::Rc => Kind::ReliableConnected,
            Service::Uc => Kind::UnreliableConnected,
            Service::Ud => Kind::UnreliableDatagram,
            Service::Xrc if number.is_multiple_of(2) => Kind::XrcInitiator,
            Service::Xrc => Kind::XrcTarget,
        };
        let srq = match end.receives {
            Receives::Shared(queue) => Some(self.shared[queue].0.srqn),
            _ => None,
        };
        let spec = QpSpec { capabilities: end.capabilities, signal_all: end.signal_all, srq, ..QpSpec::new(kind) };
        let qp = self.sim.create_qp(self.hosts[end.host], spec);
        let own = end.areas.own_keys;
        let [source, landing, tally, target] = places.map(|place| self.area(place, own));
        let mut again = |area: &Area, pd, access| {
            let spec = RegionSpec::new(pd, access);
            let (offset, length) = (u64::from(area.offset), u64::from(area.length));
            self.sim.register_again(&self.heaps[area.host], offset, length, &spec)
        };
        let read_only = Access::REMOTE_READ;
        let wrong = Wrong {
            target_exact: again(&target, QpSpec::PD, all_rights()),
            target_foreign: again(&target, FOREIGN, all_rights()),
            target_closed: again(&target, QpSpec::PD, Access::LOCAL_WRITE),
            source_exact: again(&source, QpSpec::PD, all_rights()),
            source_foreign: again(&source, FOREIGN, all_rights()),
            landing_exact: again(&landing, QpSpec::PD, all_rights()),
            landing_foreign: again(&landing, FOREIGN, all_rights()),
            landing_closed: again(&landing, QpSpec::PD, read_only),
        };
        let window = self.window(end.areas.window, target.host);
        Ground { qp, source, landing, tally, target, slots, window, wrong }
    }

    fn window(&mut self, kind: Option<u8>, host: usize) -> Option<Key> {
        let kind = if kind? == 1 { WindowKind::Type1 } else { WindowKind::Type2 };
        Some(self.sim.allocate_window(self.hosts[host], WindowSpec { pd: QpSpec::PD, kind }))
    }

    /// Gives every end a window that was never bound.
    pub fn renew_windows(&mut self, program: &Program) {
        for number in 0..self.ends.len() {
            let host = self.ends[number].target.host;
            self.ends[number].window = self.window(program.end(number).areas.window, host);
        }
    }

    /// An area, behind the heap's key or one of its own at an address of its own.
    fn area(&mut self, (host, offset, length): (usize, u32, u32), own: bool) -> Area {
        if !own {
            return Area { host, offset, length, region: self.heaps[host], base: offset };
        }
        let iova = Some(0x1000 * (1 + u64::from(offset)) + u64::from(offset));
        let spec = RegionSpec { iova, ..RegionSpec::new(QpSpec::PD, all_rights()) };
        let region = self.sim.register_again(&self.heaps[host], u64::from(offset), u64::from(length), &spec);
        Area { host, offset, length, region, base: 0 }
    }

    /// Brings every queue pair to RTS.
    pub fn connect(&mut self, program: &Program) {
        for (number, channel) in program.channels.iter().enumerate() {
            let (a, b) = (self.ends[2 * number].qp, self.ends[2 * number + 1].qp);
            if channel.service == Service::Ud {
                self.sim.activate(a, &channel.options);
                self.sim.activate(b, &channel.options);
            } else {
                self.sim.connect(a, b, &channel.options);
            }
        }
    }

    /// What a host's memory holds.
    pub fn memory(&self, host: usize) -> &[u8] {
        self.sim.bytes(&self.heaps[host])
    }
}

pub fn is_shared_add(step: &Step) -> bool {
    matches!(step, Step::Post(Item { action: Action::SharedAdd { .. }, .. }))
}
