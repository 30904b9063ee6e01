//! Anything at all, at live queue pairs: bytes decide which packets are forged, which work is posted, how much time passes and who changes state.
//! A fuzzer brings the bytes, or a generator with a seed. Whatever they are, nothing panics, nobody talks without end, memory that was not opened
//! stays as it was, work completes once and in order, and afterwards everything works again.

mod forge;

use sim::{ConnectOptions, Family, HostConfig, HostId, LinkConfig, LinkKind, QpId, QpSpec, Region, Shared, Sim};
use sim::{SrqId, SrqSpec, Work};
use std::collections::{BTreeMap, HashMap, HashSet};
use trace::DropReason;
use transport::{Access, Completion, Kind, Modify, ProtectionDomain, Queue, State, Status};
use wire::{Gid, Headers, Mtu, Operation, Psn};

use crate::ALL_ACCESS;

/// What a storm reached.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Packets that nobody sent honestly.
    pub forged: u64,
    /// Why packets were dropped.
    pub drops: BTreeMap<DropReason, u64>,
    /// How work ended.
    pub ends: BTreeMap<Status, u64>,
    /// In which states forged packets met queue pairs.
    pub states: BTreeMap<(Kind, State), u64>,
    /// Packets handed to a queue pair, and packets dropped: every one is one of the two. And packets sent.
    so_far: SoFar,
}

/// Figures that grow, to see by how much one packet makes them grow.
#[derive(Clone, Copy, Debug, Default)]
struct SoFar {
    noticed: u64,
    /// Packets the victim sent, without READ responses, and those.
    sent: u64,
    responses: u64,
}

impl Tally {
    /// Adds what another storm reached.
    pub fn add(&mut self, other: &Tally) {
        self.forged += other.forged;
        for (reason, count) in &other.drops {
            *self.drops.entry(*reason).or_default() += count;
        }
        for (status, count) in &other.ends {
            *self.ends.entry(*status).or_default() += count;
        }
        for (state, count) in &other.states {
            *self.states.entry(*state).or_default() += count;
        }
    }
}

/// Lets the storm of these bytes pass over a scene of its own.
///
/// # Panics
/// If anything happens that must not.
pub fn storm(bytes: &[u8]) -> Tally {
    let mut choices = Choices { bytes };
    let mut scene = Scene::new(&mut choices);
    while !choices.bytes.is_empty() {
        scene.act(&mut choices);
        scene.look();
    }
    scene.finish()
}

/// Bytes as decisions; zero when there are no more.
struct Choices<'a> {
    bytes: &'a [u8],
}

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    fn one_in(&mut self, chances: u8) -> bool {
        self.byte().is_multiple_of(chances)
    }

    fn of<T: Copy>(&mut self, options: &[T]) -> T {
        options[usize::from(self.byte()) % options.len()]
    }
}

/// A victim's queue pair and the honest one at its other end.
#[derive(Clone, Copy)]
struct Member {
    kind: Kind,
    qp: QpId,
    peer: QpId,
}

/// Memory of one host.
struct Memory {
    /// Peers may do anything with it.
    open: Region,
    /// For receives and results; only the first half is ever named.
    inbox: Region,
    /// Registered, never named by honest work, and not for peers.
    private: Region,
    /// Open to peers, in another protection domain.
    foreign: Region,
}

struct Scene {
    sim: Sim,
    options: ConnectOptions,
    victim: HostId,
    peer: HostId,
    here: Memory,
    there: Memory,
    members: Vec<Member>,
    /// A shared receive queue of the victim's, one for XRC on each side.
    shared: SrqId,
    xrc_here: SrqId,
    xrc_there: SrqId,
    tally: Shared<Tally>,
    /// The packet forged last.
    recent: Option<(Gid, Headers, Vec<u8>)>,
    next_id: u64,
    /// What was posted and may complete, by queue.
    posted: HashMap<(QpId, Queue), HashSet<u64>>,
    last: HashMap<(QpId, Queue), u64>,
}

const SIZE: usize = 16 * 1024;
const HALF: u64 = SIZE as u64 / 2;
static UNTOUCHED: [u8; SIZE] = [0x3c; SIZE];
/// Work requests a queue pair may have outstanding at once.
const OUTSTANDING: usize = 6;

impl Memory {
    fn new(sim: &mut Sim, host: HostId) -> Memory {
        let mut register = |pd, access| sim.register_bytes(host, pd, UNTOUCHED.to_vec(), access);
        Memory {
            open: register(QpSpec::PD, ALL_ACCESS),
            inbox: register(QpSpec::PD, Access::LOCAL_WRITE),
            private: register(QpSpec::PD, Access::LOCAL_WRITE),
            foreign: register(ProtectionDomain(77), ALL_ACCESS),
        }
    }

    fn check(&self, sim: &Sim) {
        // One comparison of the whole, not one of each byte: a fuzzer counts comparisons, and that is what takes its time.
        let same = |bytes: &[u8]| *bytes == UNTOUCHED[..bytes.len()];
        assert!(same(sim.bytes(&self.private)), "private memory was written");
        assert!(same(sim.bytes(&self.foreign)), "memory of another protection domain was written");
        assert!(same(&sim.bytes(&self.inbox)[HALF as usize..]), "memory that no work names was written");
    }
}

impl Scene {
    fn new(choices: &mut Choices<'_>) -> Scene {
        let mut sim = Sim::with_seed(1);
        sim.set_event_cap(200_000);
        let kind = choices.of(&[LinkKind::Datagram, LinkKind::Whole]);
        sim.set_default_link(LinkConfig::of(kind));
        let options = ConnectOptions {
            family: choices.of(&[Family::V4, Family::V6]),
            mtu: choices.of(&[Mtu::B256, Mtu::B512, Mtu::B1024]),
            timeout: 5,
            retry_cnt: choices.of(&[0, 1, 3, 7]),
            rnr_retry: choices.of(&[0, 1, 3, 6]),
            max_rd_atomic: choices.of(&[1, 2, 4]),
            max_dest_rd_atomic: choices.of(&[1, 2, 4]),
            ..ConnectOptions::default()
        };
        let tally = Shared::new(Tally::default());
        let victim = sim.add_host(HostConfig::named("victim"));
        let peer = sim.add_host(HostConfig::named("peer"));
        let noted = tally.clone();
        sim.observe(move |host, event| {
            let mut tally = noted.borrow_mut();
            match event.kind {
                trace::Kind::PacketDropped { reason, .. } if host == victim => {
                    *tally.drops.entry(reason).or_default() += 1;
                    tally.so_far.noticed += 1;
                }
                trace::Kind::PacketReceived { .. } if host == victim => tally.so_far.noticed += 1,
                trace::Kind::PacketSent { headers, packets, .. } if host == victim => {
                    match headers.bth.opcode.operation() {
                        Operation::ReadResponse => tally.so_far.responses += u64::from(packets),
                        _ => tally.so_far.sent += u64::from(packets),
                    }
                }
                _ => {}
            }
        });
        let here = Memory::new(&mut sim, victim);
        let there = Memory::new(&mut sim, peer);
        let shared = sim.create_srq(victim, SrqSpec::default());
        let xrc = SrqSpec { xrc_domain: Some(1), ..SrqSpec::default() };
        let (xrc_here, xrc_there) = (sim.create_srq(victim, xrc), sim.create_srq(peer, xrc));
        let mut members = Vec::new();
        let rc = Kind::ReliableConnected;
        for kind in [rc, rc, Kind::UnreliableConnected, Kind::UnreliableDatagram, Kind::XrcInitiator, Kind::XrcTarget] {
            let other = match kind {
                Kind::XrcInitiator => Kind::XrcTarget,
                Kind::XrcTarget => Kind::XrcInitiator,
                kind => kind,
            };
            // The second reliable connection takes its receives from the shared queue.
            let spec = match members.len() {
                1 => QpSpec::new(kind).with_srq(shared),
                _ => QpSpec::new(kind),
            };
            let qp = sim.create_qp(victim, spec);
            let peer = sim.create_qp(peer, QpSpec::new(other));
            members.push(Member { kind, qp, peer });
        }
        let mut scene = Scene {
            sim,
            options,
            victim,
            peer,
            here,
            there,
            members,
            shared,
            xrc_here,
            xrc_there,
            tally,
            recent: None,
            next_id: 1,
            posted: HashMap::new(),
            last: HashMap::new(),
        };
        for nth in 0..scene.members.len() {
            scene.connect(nth);
        }
        scene
    }

    fn connect(&mut self, nth: usize) {
        let Member { kind, qp, peer } = self.members[nth];
        match kind {
            Kind::UnreliableDatagram => {
                self.sim.activate(qp, &self.options);
                self.sim.activate(peer, &self.options);
            }
            _ => self.sim.connect(qp, peer, &self.options),
        }
    }

    fn reset(&mut self, nth: usize) {
        let Member { qp, peer, .. } = self.members[nth];
        for qp in [qp, peer] {
            self.sim.modify(qp, &Modify { state: Some(State::Reset), ..Modify::default() }).expect("always legal");
            self.sim.async_events(qp);
            assert_eq!(self.sim.completions(qp), [], "all that completed before was taken before");
            self.posted.retain(|(owner, queue), _| *owner != qp || matches!(queue, Queue::Shared(_)));
        }
    }

    fn act(&mut self, choices: &mut Choices<'_>) {
        let nth = usize::from(choices.byte()) % self.members.len();
        let Member { qp, peer, .. } = self.members[nth];
        let broken = [qp, peer].iter().any(|end| self.sim.state(*end) == State::Error);
        if broken && choices.one_in(2) {
            // Those in error have little to show.
            self.reset(nth);
            self.connect(nth);
        }
        match choices.byte() % 32 {
            0..=12 => self.forge(nth, choices),
            13 | 14 => {
                // The same again, as often as the bytes like.
                let Some((source, headers, payload)) = self.recent.take() else { return };
                for _ in 0..=choices.byte() % 4 {
                    let before = self.tally.borrow().so_far;
                    self.sim.inject(self.victim, source, &headers, &payload).expect("it was encoded before");
                    self.react(&before);
                }
                self.recent = Some((source, headers, payload));
            }
            15 => self.damage(nth, choices),
            16..=21 => self.post(nth, choices),
            22..=24 => self.receive(nth, choices),
            25 | 26 => {
                let nanos = choices.of(&[100, 1_000, 6_000, 200_000, 5_000_000]);
                self.sim.run_for(nanos);
            }
            27 => {
                let to = choices.of(&State::ALL);
                if to == State::Reset {
                    return self.reset(nth);
                }
                let before = self.sim.attributes(qp);
                let modify = self.sim.modification(qp, peer, Psn::new(7), Psn::new(9), to, &self.options);
                match self.sim.modify(qp, &modify) {
                    Ok(()) => {
                        // Work that was posted meanwhile may be what the transport lacks: it fails when it is its turn.
                        let now = self.sim.state(qp);
                        let failed = matches!(now, State::SendQueueError | State::Error);
                        assert!(now == to || to == State::ReadyToSend && failed, "{to} was asked for, it is in {now}");
                    }
                    Err(_) => assert_eq!(self.sim.attributes(qp), before, "a refused move changes nothing"),
                }
            }
            _ => {
                self.reset(nth);
                // All the way, or part of it.
                let way = [State::Init, State::ReadyToReceive, State::ReadyToSend, State::SendQueueDrained];
                match choices.of(&[1, 2, 4, 9, 9, 9, 9, 9]) {
                    9 => self.connect(nth),
                    steps => {
                        for state in &way[..steps] {
                            let modify =
                                self.sim.modification(qp, peer, Psn::new(7), Psn::new(9), *state, &self.options);
                            self.sim.modify(qp, &modify).expect("the usual way");
                        }
                    }
                }
            }
        }
    }

    /// Honest work, of the victim or of its peer.
    fn post(&mut self, nth: usize, choices: &mut Choices<'_>) {
        let Member { qp, peer, .. } = self.members[nth];
        let own = choices.one_in(2);
        let (from, to) = if own { (qp, peer) } else { (peer, qp) };
        let (near, far) = if own { (&self.here, &self.there) } else { (&self.there, &self.here) };
        let length = choices.of(&[0, 8, 100, self.options.mtu.bytes(), 3 * self.options.mtu.bytes()]);
        let remote = far.open.remote(u64::from(choices.byte()) * 8);
        let sge = near.inbox.sge(0, length);
        let work = match choices.byte() % 8 {
            0 | 1 => Work::send().sge(sge),
            2 => Work::send().sge(sge).immediate(1),
            3 => Work::write(remote).sge(sge),
            4 => Work::write(remote).sge(sge).immediate(2),
            5 => Work::read(remote).sge(sge),
            6 => Work::fetch_add(remote, 1).sge(near.inbox.sge(0, 8)),
            _ => Work::atomic_write(remote).sge(near.inbox.sge(0, 8)),
        };
        let kind = self.kind_of(from);
        let work = match kind {
            Kind::UnreliableDatagram => work.to(self.sim.datagram_target(to, &self.options)),
            Kind::XrcInitiator if own => work.to_srq(self.xrc_there.srqn),
            Kind::XrcInitiator => work.to_srq(self.xrc_here.srqn),
            _ => work,
        };
        let id = self.next_id;
        let posted = self.posted.entry((from, Queue::Send)).or_default();
        if posted.len() >= OUTSTANDING {
            return;
        }
        posted.insert(id);
        self.next_id += 1;
        if self.sim.post(from, &work.id(id)).is_err() {
            self.posted.entry((from, Queue::Send)).or_default().remove(&id);
        }
    }

    fn kind_of(&self, qp: QpId) -> Kind {
        let member = self.members.iter().find(|member| member.qp == qp || member.peer == qp);
        match member.map(|member| (member.kind, member.qp == qp)) {
            Some((Kind::XrcInitiator, false)) => Kind::XrcTarget,
            Some((Kind::XrcTarget, false)) => Kind::XrcInitiator,
            Some((kind, _)) => kind,
            None => Kind::ReliableConnected,
        }
    }

    fn receive(&mut self, nth: usize, choices: &mut Choices<'_>) {
        let Member { kind, qp, peer } = self.members[nth];
        let own = !choices.one_in(4);
        let (at, memory) = if own { (qp, &self.here) } else { (peer, &self.there) };
        let sge = memory.inbox.sge(0, choices.of(&[0, 40, 48, 100, 2000, HALF as u32]));
        let queue = match (kind, own) {
            (Kind::XrcTarget, true) => Some(self.xrc_here),
            (Kind::XrcInitiator, false) => Some(self.xrc_there),
            _ if own && nth == 1 => Some(self.shared),
            _ => None,
        };
        let id = self.next_id;
        self.next_id += 1;
        let (owner, name, posted) = match queue {
            // A shared queue belongs to nobody; its receives are filed under the first queue pair of its host.
            Some(queue) => {
                let owner = if own { self.members[0].qp } else { self.members[0].peer };
                (owner, Queue::Shared(queue.srqn), self.sim.receive_shared(queue, id, &[sge]).is_ok())
            }
            None => {
                self.posted.entry((at, Queue::Receive)).or_default().insert(id);
                (at, Queue::Receive, self.sim.receive(at, id, &[sge]).is_ok())
            }
        };
        let set = self.posted.entry((owner, name)).or_default();
        if posted {
            set.insert(id);
        } else {
            set.remove(&id);
        }
    }

    /// Takes completions and holds them against what was posted.
    fn look(&mut self) {
        for Member { qp, peer, .. } in self.members.clone() {
            for at in [qp, peer] {
                for completion in self.sim.completions(at) {
                    self.completed(at, &completion);
                }
                self.sim.async_events(at);
            }
        }
        self.sim.srq_events();
    }

    fn completed(&mut self, at: QpId, completion: &Completion) {
        *self.tally.borrow_mut().ends.entry(completion.status).or_default() += 1;
        let owner = match completion.queue {
            Queue::Shared(_) if at.host == self.victim => self.members[0].qp,
            Queue::Shared(_) => self.members[0].peer,
            _ => at,
        };
        let posted = self.posted.entry((owner, completion.queue)).or_default();
        assert!(posted.remove(&completion.wr_id), "nobody posted this, or it completed before: {completion:?}");
        if !matches!(completion.queue, Queue::Shared(_)) {
            let last = self.last.entry((at, completion.queue)).or_default();
            assert!(*last < completion.wr_id, "out of order: {completion:?}");
            *last = completion.wr_id;
        }
        let broken = !matches!(completion.status, Status::Success);
        if broken {
            let state = self.sim.state(at);
            assert!(matches!(state, State::Error | State::SendQueueError), "{state} after {completion:?}");
        }
    }

    /// The storm is over: everything comes to rest, nothing is held back, and honest work succeeds.
    fn finish(mut self) -> Tally {
        self.sim.run_until_idle();
        self.look();
        self.here.check(&self.sim);
        self.there.check(&self.sim);
        for nth in 0..self.members.len() {
            self.reset(nth);
        }
        self.sim.run_until_idle();
        for host in [self.victim, self.peer] {
            for towards in [self.victim, self.peer] {
                let gid = self.sim.gid(towards, self.options.family.index());
                if let Some(window) = self.sim.window(host, gid) {
                    assert_eq!((window.in_flight(), window.has_waiters()), (0, false), "something is still reserved");
                }
            }
        }
        for nth in 0..self.members.len() {
            self.connect(nth);
            self.assert_works(nth);
        }
        self.tally.borrow().clone()
    }

    fn assert_works(&mut self, nth: usize) {
        let Member { kind, qp, peer } = self.members[nth];
        self.sim.bytes_mut(&self.here.open)[..2000].fill(1);
        self.sim.bytes_mut(&self.there.open)[..2000].fill(2);
        let directions = [
            (qp, peer, self.here.open, self.there.open, self.xrc_there),
            (peer, qp, self.there.open, self.here.open, self.xrc_here),
        ];
        for (from, to, near, far, xrc) in directions {
            let sender = self.kind_of(from);
            if sender == Kind::XrcTarget {
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            let place = [far.sge(0, 2000)];
            if sender == Kind::XrcInitiator || (to == qp && nth == 1) {
                // What the storm left in a shared queue comes first.
                let queue = if sender == Kind::XrcInitiator { xrc } else { self.shared };
                while self.sim.srq(queue).take(&mut transport::ReceiveWork::default()) {}
                self.sim.receive_shared(queue, id, &place).expect("there is room");
            } else {
                self.sim.receive(to, id, &place).expect("there is room");
            }
            let send = Work::send().sge(near.sge(0, 200)).id(id);
            let send = match sender {
                Kind::UnreliableDatagram => send.to(self.sim.datagram_target(to, &self.options)),
                Kind::XrcInitiator => send.to_srq(xrc.srqn),
                _ => send,
            };
            self.sim.post(from, &send).expect("the queue pair is ready");
            self.sim.run_until_idle();
            for at in [from, to] {
                let ends: Vec<_> = self.sim.completions(at).iter().map(|end| (end.wr_id, end.status)).collect();
                assert_eq!(ends, [(id, Status::Success)], "{kind} {sender}");
            }
            let header = if kind == Kind::UnreliableDatagram { 40 } else { 0 };
            let expected = self.sim.bytes(&near)[..200].to_vec();
            assert_eq!(self.sim.bytes(&far)[header..header + 200], expected);
        }
    }
}
