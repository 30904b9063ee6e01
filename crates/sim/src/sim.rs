//! The simulation itself: hosts, the network between them, and a clock that jumps from one thing that happens to the
//! next. Setting the scene is in `setup`, connecting queue pairs in `connect`, looking on in `watch`; here is what
//! makes it move.

mod connect;
mod driven;
mod setup;
mod watch;

pub use connect::{ConnectOptions, Family};
pub use driven::Management;
pub use watch::Shared;

use std::collections::VecDeque;
use trace::DropReason;
use transport::congestion::packet_cost;
use transport::weak::Turn;
use transport::{AsyncEvent, Completion, Counts, Inbound, PostError, ReceiveRequest, SendRequest, Sge, SrqEvent, Time};
use wire::{Psn, Qpn};

use crate::frame;
use crate::host::{Host, HostId, QpId, SrqId, World};
use crate::network::{Network, Plan, Sender};
use crate::parcel::Parcel;
use crate::rng::Rng;
use crate::work::Work;

/// The environment variable that replaces the seed of every simulation.
pub const SEED_VARIABLE: &str = "UBIVERBS_SEED";

/// Something that queue pairs wait for room in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    /// A host's congestion window.
    Window(HostId, usize),
    /// The ring from one host to another.
    Ring(HostId, HostId),
}

/// A simulated network of hosts.
///
/// Everything that happens follows from the seed and the calls made: the same calls with the same seed give the same
/// events at the same nanoseconds. Nothing happens between calls; [`run_until_idle`](Sim::run_until_idle) and its
/// sisters let time pass.
///
/// ```
/// use sim::{ConnectOptions, HostConfig, QpSpec, Sim, Work};
/// use transport::{Access, Status};
///
/// let mut sim = Sim::new(1);
/// let alice = sim.add_host(HostConfig::named("alice"));
/// let bob = sim.add_host(HostConfig::named("bob"));
/// let a = sim.create_qp(alice, QpSpec::rc());
/// let b = sim.create_qp(bob, QpSpec::rc());
/// sim.connect(a, b, &ConnectOptions::default());
///
/// let here = sim.register_bytes(alice, QpSpec::PD, b"one-sided".to_vec(), Access::LOCAL_WRITE);
/// let there = sim.register(bob, QpSpec::PD, 9, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
/// sim.post(a, &Work::write(there.remote(0)).sge(here.whole())).unwrap();
/// sim.run_until_idle();
///
/// assert_eq!(sim.completions(a)[0].status, Status::Success);
/// assert_eq!(sim.bytes(&there), b"one-sided");
/// ```
pub struct Sim {
    seed: u64,
    /// Chance for everything but the network's faults, so that a lossy run and a perfect one begin alike.
    rng: Rng,
    hosts: Vec<Host>,
    net: Network,
    /// Where there may be room that a queue pair waits for.
    rooms: VecDeque<Room>,
    srq_events: Vec<(SrqId, SrqEvent)>,
    /// Queue pairs that have completions or events, if a program wants to know.
    news: Option<VecDeque<QpId>>,
    /// What has come for queue pair 1, where it is answered for.
    management: VecDeque<(HostId, Management)>,
    scratch: Vec<u8>,
    next_qpn: u32,
    next_srqn: u32,
    event_cap: u64,
    /// Sends posted so far.
    posts: u64,
}

impl Sim {
    /// An empty simulation. The environment variable `UBIVERBS_SEED` replaces the seed, so that a failure can be had
    /// again.
    pub fn new(seed: u64) -> Sim {
        let Ok(text) = std::env::var(SEED_VARIABLE) else { return Sim::with_seed(seed) };
        match text.parse() {
            Ok(seed) => Sim::with_seed(seed),
            Err(error) => {
                eprintln!("{SEED_VARIABLE}={text} is not used: {error}");
                Sim::with_seed(seed)
            }
        }
    }

    /// An empty simulation with exactly this seed.
    pub fn with_seed(seed: u64) -> Sim {
        let mut rng = Rng::new(seed);
        let faults = rng.fork();
        Sim {
            seed,
            rng,
            hosts: Vec::new(),
            net: Network::new(faults),
            rooms: VecDeque::new(),
            srq_events: Vec::new(),
            news: None,
            management: VecDeque::new(),
            scratch: Vec::new(),
            next_qpn: 0x11,
            next_srqn: 1,
            event_cap: 50_000_000,
            posts: 0,
        }
    }

    /// The seed, to be printed when something fails.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        self.net.now
    }

    /// A seeded generator for whatever a test wants to leave to chance.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Begins the chance anew by which weak queue pairs do things.
    pub fn reseed(&mut self, seed: u64) {
        for host in &mut self.hosts {
            host.world.reseed(seed);
        }
    }

    /// Posts a work request to a send queue.
    pub fn post(&mut self, qp: QpId, work: &Work) -> Result<(), PostError> {
        self.post_send(qp, &work.request())
    }

    /// Posts a work request to a send queue.
    pub fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), PostError> {
        let now = self.net.now;
        // Every second request takes the short way, if it may: both ways are tried.
        self.posts += 1;
        let result = match self.posts.is_multiple_of(2) && self.send_at_once(qp, request) {
            true => Ok(()),
            false => self.with_qp(qp, |queue_pair, world| queue_pair.post_send(now, request, world)),
        };
        self.drive_all(qp);
        result
    }

    /// The short way, for work that may take it.
    fn send_at_once(&mut self, qp: QpId, request: &SendRequest<'_>) -> bool {
        let (id, net) = (qp.host, &mut self.net);
        let host = &mut self.hosts[id.index()];
        let Some(index) = host.index_of(qp.qpn) else { return false };
        let Host { slots, world, gids, .. } = host;
        let Some(slot) = slots.get_mut(index as usize).and_then(Option::as_mut) else { return false };
        if slot.peer.is_some_and(|peer| net.link(id, peer).is_full()) {
            return false;
        }
        world.enter(slot);
        if world.is_weak() {
            return false;
        }
        let Some(train) = slot.qp.send_at_once(net.now, request, world) else { return false };
        self.scratch.resize(train.payload.len() as usize, 0);
        let gathered = train.payload.copy(0, &mut self.scratch, world);
        flush(world, net, id);
        match gathered {
            Ok(()) => net.send(Sender { host: id, gids, qpn: slot.qpn }, &train, &self.scratch),
            Err(refusal) => slot.qp.transmit_refused(net.now, refusal, world),
        }
        true
    }

    /// Posts a receive of these pieces.
    pub fn receive(&mut self, qp: QpId, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let now = self.net.now;
        let request = ReceiveRequest { wr_id, sges };
        let result = self.with_qp(qp, |queue_pair, world| queue_pair.post_receive(now, &request, world));
        self.drive_all(qp);
        result
    }

    /// Posts a receive of these pieces to a shared receive queue.
    pub fn receive_shared(&mut self, srq: SrqId, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.srq(srq).post(&ReceiveRequest { wr_id, sges })
    }

    /// Takes the completions of a queue pair, oldest first: of its sends, its receives, and the shared receives it
    /// used.
    pub fn completions(&mut self, qp: QpId) -> Vec<Completion> {
        self.slot(qp).completions.drain(..).collect()
    }

    /// Takes the oldest completion of a queue pair.
    pub fn next_completion(&mut self, qp: QpId) -> Option<Completion> {
        self.slot(qp).completions.pop_front()
    }

    /// How many completions wait.
    pub fn completion_count(&self, qp: QpId) -> usize {
        self.hosts[qp.host.index()].slot(qp.qpn).map_or(0, |slot| slot.completions.len())
    }

    /// Has a queue pair count what completes from now on.
    pub fn count(&mut self, qp: QpId) {
        self.slot(qp).qp.count();
    }

    /// Takes what a queue pair has counted since the last time, if it counts.
    pub fn take_counts(&mut self, qp: QpId) -> Option<Counts> {
        self.slot(qp).qp.take_counts()
    }

    /// Takes the events of a queue pair, oldest first.
    pub fn async_events(&mut self, qp: QpId) -> Vec<AsyncEvent> {
        self.slot(qp).events.drain(..).collect()
    }

    /// Takes the events of shared receive queues, oldest first.
    pub fn srq_events(&mut self) -> Vec<(SrqId, SrqEvent)> {
        std::mem::take(&mut self.srq_events)
    }

    /// Lets everything happen that will happen without a further call.
    ///
    /// # Panics
    /// If that never ends; see [`set_event_cap`](Sim::set_event_cap).
    pub fn run_until_idle(&mut self) {
        let mut left = self.event_cap;
        while self.step(Time::from_nanos(u64::MAX)) {
            left = self.spend(left);
        }
    }

    /// Lets `nanos` nanoseconds pass.
    pub fn run_for(&mut self, nanos: u64) {
        let end = self.net.now.plus_nanos(nanos);
        let mut left = self.event_cap;
        while self.step(end) {
            left = self.spend(left);
        }
        self.net.now = end;
    }

    /// Lets time pass until `done`, at most `nanos` nanoseconds. Says whether it was done.
    pub fn run_until(&mut self, nanos: u64, mut done: impl FnMut(&mut Sim) -> bool) -> bool {
        let end = self.net.now.plus_nanos(nanos);
        let mut left = self.event_cap;
        loop {
            if done(self) {
                return true;
            }
            if !self.step(end) {
                return false;
            }
            left = self.spend(left);
        }
    }

    /// Lets the next thing happen. False if nothing is left to happen.
    pub fn run_one(&mut self) -> bool {
        self.step(Time::from_nanos(u64::MAX))
    }

    /// How many things may happen in one call before the run is taken to be endless.
    pub fn set_event_cap(&mut self, cap: u64) {
        self.event_cap = cap;
    }

    fn spend(&self, left: u64) -> u64 {
        assert!(
            left > 0,
            "the simulation did not come to rest after {} events; it is {} and the seed was {}",
            self.event_cap,
            self.net.now,
            self.seed
        );
        left - 1
    }

    /// Does the next thing that is due by `end`. False if there is none.
    fn step(&mut self, end: Time) -> bool {
        loop {
            match self.net.agenda.next_at() {
                Some(at) if at <= end => {}
                _ => return false,
            }
            let Some((at, plan)) = self.net.agenda.pop() else { return false };
            let mattered = match plan {
                Plan::Timer(host, index) => self.timer(at, host, index),
                Plan::Arrival(number) => {
                    self.net.now = at;
                    self.arrive(number);
                    true
                }
                Plan::Switch(number) => {
                    self.net.now = at;
                    self.net.pass_switch(number);
                    true
                }
                Plan::Service(host) => {
                    self.net.now = at;
                    self.serve(host);
                    true
                }
            };
            if mattered {
                self.drive_waiters();
                return true;
            }
        }
    }

    /// A deadline in the agenda. It matters only if the queue pair still has it; the clock does not move for one that
    /// has gone.
    fn timer(&mut self, at: Time, host: HostId, index: u32) -> bool {
        let Host { slots, world, .. } = &mut self.hosts[host.index()];
        let Some(slot) = slots.get_mut(index as usize).and_then(Option::as_mut) else { return false };
        if slot.armed != Some(at) {
            return false;
        }
        slot.armed = None;
        world.enter(slot);
        let (own, weak) = (slot.qp.poll_timeout(), world.weak_deadline());
        match own.into_iter().chain(weak).min() {
            Some(deadline) if deadline <= at => {
                let now = self.net.now.max(at);
                self.net.now = now;
                world.place_some(now);
                if own.is_some_and(|own| own <= at) {
                    slot.qp.handle_timeout(now, world);
                }
                self.drive(host, index);
                true
            }
            Some(deadline) => {
                slot.armed = Some(deadline);
                self.net.agenda.plan(deadline, Plan::Timer(host, index));
                false
            }
            None => false,
        }
    }

    /// A parcel reaches its host.
    fn arrive(&mut self, number: u32) {
        let Some(parcel) = self.net.parcels.get(number) else { return };
        let id = parcel.path.to;
        let host = &mut self.hosts[id.index()];
        let cost = match parcel.train {
            Some(_) => 0,
            // What the cost adds for headers is in the frame already.
            None => packet_cost((parcel.bytes.len() as u32).saturating_sub(58)),
        };
        if cost > 0 && !host.has_room(cost) {
            let headers = frame::decode(&parcel.bytes).ok().map(|understood| understood.packet.headers);
            let qpn = headers.map(|headers| headers.bth.dest_qpn);
            self.net.drop_packet(id, qpn, headers, 1, DropReason::Overflow);
            if let Some(parcel) = self.net.parcels.take(number) {
                self.net.parcels.recycle(parcel.bytes);
            }
            return;
        }
        host.inbox.waiting.push_back((number, cost));
        host.inbox.cost += cost;
        self.serve_or_plan(id);
    }

    /// Looks at what waits, or plans to.
    pub(crate) fn serve_or_plan(&mut self, id: HostId) {
        loop {
            let host = &mut self.hosts[id.index()];
            if host.paused || host.inbox.serving || host.inbox.waiting.is_empty() {
                return;
            }
            if host.config.service > 0 {
                host.inbox.serving = true;
                let at = self.net.now.plus_nanos(host.config.service);
                return self.net.agenda.plan(at, Plan::Service(id));
            }
            self.take_one(id);
        }
    }

    fn serve(&mut self, id: HostId) {
        self.hosts[id.index()].inbox.serving = false;
        if !self.hosts[id.index()].paused {
            self.take_one(id);
        }
        self.serve_or_plan(id);
    }

    fn take_one(&mut self, id: HostId) {
        let host = &mut self.hosts[id.index()];
        let Some((number, cost)) = host.inbox.waiting.pop_front() else { return };
        host.inbox.cost -= cost;
        let Some(parcel) = self.net.parcels.take(number) else { return };
        self.consumed(&parcel);
        self.process(id, &parcel);
        self.net.parcels.recycle(parcel.bytes);
    }

    /// A train has left its ring: queue pairs that waited for room may go on.
    fn consumed(&mut self, parcel: &Parcel) {
        let Some(train) = parcel.train else { return };
        let link = self.net.link(parcel.path.from, parcel.path.to);
        link.in_ring = link.in_ring.saturating_sub((train.headers.len() + parcel.bytes.len()) as u64);
        if !link.waiting.is_empty() {
            self.found(Room::Ring(parcel.path.from, parcel.path.to));
        }
    }

    /// A parcel is looked at.
    fn process(&mut self, id: HostId, parcel: &Parcel) {
        let mut grh = [0; 40];
        let understood;
        let (inbound, destination) = match &parcel.train {
            Some(train) => {
                // A receiver of datagrams sees the same 40 bytes whatever carried them.
                let length = wire::Packet { headers: train.headers, payload: &parcel.bytes }.encoded_length();
                if let Ok(ip) = parcel.path.ip(train.headers.bth.opcode, length, train.marked) {
                    grh = wire::grh_bytes(&ip);
                }
                let inbound = Inbound {
                    headers: &train.headers,
                    count: train.count,
                    payload: &parcel.bytes,
                    from: parcel.path.source,
                    grh: &grh,
                    congestion_marked: train.marked,
                };
                (inbound, parcel.path.destination)
            }
            None => match frame::decode(&parcel.bytes) {
                Err(reason) => return self.net.drop_packet(id, None, None, 1, reason),
                Ok(frame) => {
                    understood = frame;
                    grh = understood.grh;
                    let inbound = Inbound {
                        headers: &understood.packet.headers,
                        count: 1,
                        payload: understood.packet.payload,
                        from: understood.source,
                        grh: &grh,
                        congestion_marked: understood.marked,
                    };
                    (inbound, understood.destination)
                }
            },
        };
        let host = &self.hosts[id.index()];
        let headers = *inbound.headers;
        if destination.is_multicast() {
            let sender = headers.deth.map(|deth| (parcel.path.from, deth.src_qpn));
            let members: Vec<_> = host.members(destination).filter(|qpn| sender != Some((id, *qpn))).collect();
            for qpn in members {
                self.hand_over(id, qpn, &inbound);
            }
            return;
        }
        if !host.gids.contains(&destination) {
            return self.net.drop_packet(id, None, Some(headers), inbound.count, DropReason::WrongDestination);
        }
        self.hand_over(id, headers.bth.dest_qpn, &inbound);
    }

    fn hand_over(&mut self, id: HostId, qpn: Qpn, inbound: &Inbound<'_>) {
        let host = &mut self.hosts[id.index()];
        if qpn == Qpn::GSI && host.managed {
            self.net.counters.delivered += u64::from(inbound.count);
            return self.management.push_back((id, Management::of(inbound, &host.gids)));
        }
        let Some(index) = host.index_of(qpn) else {
            let headers = Some(*inbound.headers);
            return self.net.drop_packet(id, None, headers, inbound.count, DropReason::UnknownQp);
        };
        let Host { slots, world, .. } = host;
        let Some(slot) = slots.get_mut(index as usize).and_then(Option::as_mut) else { return };
        self.net.counters.delivered += u64::from(inbound.count);
        world.enter(slot);
        slot.qp.handle(self.net.now, inbound, world);
        self.drive(id, index);
    }

    /// Drives a queue pair after an input, and everyone who can go on because of it.
    fn drive_all(&mut self, qp: QpId) {
        if let Some(index) = self.hosts[qp.host.index()].index_of(qp.qpn) {
            self.drive(qp.host, index);
        }
        self.drive_waiters();
    }

    /// There may be room where a queue pair waits for it.
    fn found(&mut self, room: Room) {
        if !self.rooms.contains(&room) {
            self.rooms.push_back(room);
        }
    }

    /// Lets those who wait have the room there is, one after the other: whose turn it is may use it before the next is
    /// asked.
    fn drive_waiters(&mut self) {
        let mut left = self.event_cap;
        while let Some(&room) = self.rooms.front() {
            match self.next_waiter(room) {
                Some((host, index)) => {
                    left = self.spend(left);
                    self.drive(host, index);
                }
                None => {
                    self.rooms.pop_front();
                }
            }
        }
    }

    fn next_waiter(&mut self, room: Room) -> Option<(HostId, u32)> {
        match room {
            Room::Window(host, window) => {
                let Host { world, by_number, .. } = &mut self.hosts[host.index()];
                // Who is gone has left its windows.
                world.window_mut(window).next_waiter().and_then(|qpn| by_number.get(&qpn)).map(|index| (host, *index))
            }
            Room::Ring(from, to) => {
                let link = self.net.link(from, to);
                let index = if link.is_full() { None } else { link.waiting.pop_front() }?;
                if let Some(slot) = self.hosts[from.index()].slots[index as usize].as_mut() {
                    slot.waits_for_ring = false;
                }
                Some((from, index))
            }
        }
    }

    /// Takes everything out of a queue pair: trains first, then completions and events, then its next deadline.
    fn drive(&mut self, id: HostId, index: u32) {
        let Host { slots, world, gids, .. } = &mut self.hosts[id.index()];
        let Some(slot) = slots.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let net = &mut self.net;
        let now = net.now;
        world.enter(slot);
        flush(world, net, id);
        let turn = world.turn(now);
        loop {
            if turn == Turn::Wait {
                break;
            }
            if let Some(peer) = slot.peer {
                let link = net.link(id, peer);
                if link.is_full() {
                    if !std::mem::replace(&mut slot.waits_for_ring, true) {
                        link.waiting.push_back(index);
                    }
                    break;
                }
            }
            let Some(train) = slot.qp.poll_transmit(now, world) else { break };
            self.scratch.resize(train.payload.len() as usize, 0);
            let gathered = train.payload.copy(0, &mut self.scratch, world);
            flush(world, net, id);
            match gathered {
                Ok(()) => net.send(Sender { host: id, gids, qpn: slot.qpn }, &train, &self.scratch),
                Err(refusal) => slot.qp.transmit_refused(now, refusal, world),
            }
        }
        while turn == Turn::All
            && let Some(completion) = slot.qp.poll_completion(now, world)
        {
            slot.completions.push_back(completion);
        }
        while turn == Turn::All
            && let Some(event) = slot.qp.poll_event()
        {
            slot.events.push_back(event);
        }
        if let Some(news) = &mut self.news
            && !(slot.completions.is_empty() && slot.events.is_empty())
        {
            news.push_back(QpId { host: id, qpn: slot.qpn });
        }
        flush(world, net, id);
        for (srqn, event) in world.srq_events.drain(..) {
            self.srq_events.push((SrqId { host: id, srqn }, event));
        }
        if let Some(deadline) = slot.qp.poll_timeout().into_iter().chain(world.weak_deadline()).min()
            && slot.armed.is_none_or(|armed| deadline < armed)
        {
            slot.armed = Some(deadline);
            net.agenda.plan(deadline.max(now), Plan::Timer(id, index));
        }
        let (peer, here) = slot.windows;
        for window in [peer, here] {
            if self.hosts[id.index()].world.window_mut(window).has_waiters() {
                self.found(Room::Window(id, window));
            }
        }
    }

    /// A random sequence number.
    fn random_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u64() as u32)
    }
}

/// Passes on what a queue pair had to say.
fn flush(world: &mut World, net: &mut Network, id: HostId) {
    for event in world.events.drain(..) {
        net.emit(id, &event);
    }
}

/// A test that fails says how to have the failure again.
impl Drop for Sim {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation was at {}; its seed: {SEED_VARIABLE}={}", self.net.now, self.seed);
        }
    }
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sim(seed {}, {}, {} hosts)", self.seed, self.net.now, self.hosts.len())
    }
}
