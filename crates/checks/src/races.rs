//! Races between accesses of the NIC: two of the same bytes, at least one of which writes, that nothing orders which verbs
//! promise (docs/races.md). The events of all processes of a run go in, those of one process in their order, and
//! findings come out in the end.
//!
//! It may miss races, and does not invent any: threads of a process count as ordered by their calls, what is not
//! understood as ordered with all before it, and memory for the past is bounded, so that the oldest is forgotten.

mod clock;
mod matching;
mod report;
mod shadow;
mod world;

pub use world::ProcessFacts;

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

use trace::{Call, Event, Kind, Queue};
use wire::{Key, Qpn};

use crate::finding::Finding;
use crate::map::{Map, Set};
use crate::settings::Settings;
use clock::{Clock, Point, Way};
use report::Found;
use shadow::{Access, MAX_SEGMENTS};
use world::{Pair, Process, Receive, Region, Service, push};

/// How many processes are looked at. Events of further ones are ignored.
pub const MAX_PROCESSES: u32 = 4096;

/// How many queue pairs are known, from RESET to RESET.
const MAX_PAIRS: usize = 4096;

/// How many regions and windows are known.
const MAX_REGIONS: usize = 1 << 16;

/// How many stacks are known.
const MAX_STACKS: usize = 1 << 14;

/// What clocks have together, at most: components of 32 bytes.
const MAX_CLOCK_COMPONENTS: usize = 1 << 21;

/// What became of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It was looked at.
    Done,
    /// A message completes that no process has posted so far: nothing was done. The event should be shown again when
    /// other processes have caught up.
    Early,
}

/// What was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Looked {
    /// Accesses of memory.
    pub accesses: u64,
    /// Messages between processes whose both ends were seen.
    pub messages: u64,
    /// Messages of senders that were not seen: what was before such a message counts as ordered.
    pub strange_messages: u64,
    /// How often the past was forgotten because there was no room for more.
    pub forgotten: u64,
}

/// The detector.
#[derive(Debug)]
pub struct Races {
    settings: Settings,
    processes: Vec<Process>,
    pairs: Map<u32, Pair>,
    next_pair: u32,
    /// By host and number, and by process and number.
    by_host: Map<(u64, u64), u32>,
    by_process: Map<(u64, u64), u32>,
    regions: Map<(u64, u64), Region>,
    alive: Set<u64>,
    next_region: u64,
    /// What was posted, and what was known to be done when an atomic operation was posted, by process and address.
    released: Map<(u64, u64), clock::SharedClock>,
    stacks: Map<u64, String>,
    found: Found,
    looked: Looked,
    /// The time of the first event.
    began: Option<u64>,
    /// Components of clocks that were made since the past was forgotten.
    components: usize,
    segments: usize,
}

impl Races {
    /// A detector. Only rules of the family `races` count of the settings.
    #[must_use]
    pub fn new(settings: Settings) -> Races {
        Races {
            settings,
            processes: Vec::new(),
            pairs: Map::new(),
            next_pair: 1,
            by_host: Map::new(),
            by_process: Map::new(),
            regions: Map::new(),
            alive: Set::default(),
            next_region: 1,
            released: Map::new(),
            stacks: Map::new(),
            found: Found::default(),
            looked: Looked::default(),
            began: None,
            components: 0,
            segments: 0,
        }
    }

    /// A process whose events will be shown. Returns its place, which its events are shown with.
    pub fn process(&mut self, facts: ProcessFacts) -> u32 {
        let place = self.processes.len() as u32;
        if place < MAX_PROCESSES {
            self.processes.push(Process::new(facts));
        }
        place
    }

    /// Something happened in a process. Times are those of a clock that all processes have.
    pub fn observe(&mut self, process: u32, event: &Event) -> Step {
        self.see(process, event, false)
    }

    /// Something happened in a process, and nobody will tell of the message that it waits for.
    pub fn observe_at_last(&mut self, process: u32, event: &Event) {
        self.see(process, event, true);
    }

    /// Events of a process are missing: what its queue pairs have done is not known, and neither is what was told.
    pub fn lost(&mut self, process: u32) {
        let own: Vec<u32> = self.pairs.iter().filter(|(_, pair)| pair.process == process).map(|(id, _)| *id).collect();
        own.into_iter().for_each(|id| self.drop_pair(id));
        self.forget();
    }

    /// What was looked at so far.
    #[must_use]
    pub fn looked(&self) -> Looked {
        self.looked
    }

    /// What is remembered: intervals of memory, and components of clocks. Both are bounded.
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        (self.segments, self.components)
    }

    /// All has been shown. Findings come with the place of the process that posted the later of the two.
    pub fn finish(&mut self, found: &mut dyn FnMut(u32, u64, Finding)) {
        let began = self.began.unwrap_or(0);
        self.found.tell(&self.settings, &self.processes, &self.stacks, began, found);
    }

    fn see(&mut self, process: u32, event: &Event, is_last: bool) -> Step {
        if process as usize >= self.processes.len() {
            return Step::Done;
        }
        self.began.get_or_insert(event.at);
        let pair = event.qpn.and_then(|qpn| self.pair_of(process, qpn));
        match &event.kind {
            Kind::Called { call, thread } => self.called(process, pair, event, call, *thread),
            Kind::WorkPosted { wr_id, queue: Queue::Send, .. } => {
                if let Some(id) = pair {
                    self.accepted(process, id, *wr_id);
                }
            }
            Kind::PostRefused { queue: Queue::Send, .. } => {
                if let Some(pair) = pair.and_then(|id| self.pairs.get_mut(&id)) {
                    pair.pending = None;
                }
            }
            Kind::PostRefused { queue: Queue::Receive, wr_id, .. } => {
                if let Some(pair) = pair.and_then(|id| self.pairs.get_mut(&id)) {
                    pair.receives.pop_back_if(|receive| receive.wr_id == *wr_id);
                }
            }
            Kind::PacketSent { headers, packets, wr_id: Some(_), retransmit: false, .. } => {
                if let Some(id) = pair {
                    self.packet_left(id, headers, *packets);
                }
            }
            Kind::PacketReceived { headers, packets, .. } => {
                if let Some(pair) = pair.and_then(|id| self.pairs.get_mut(&id)) {
                    let from = headers.deth.map(|deth| deth.src_qpn).or(pair.dest);
                    let last = headers.bth.psn.add(packets.saturating_sub(1)).value();
                    pair.arrived = from.map(|from| (from, last));
                }
            }
            Kind::Completed { wr_id, queue, status, bytes, .. } => {
                let is_success = *status == "IBV_WC_SUCCESS";
                if let Some(id) = pair {
                    return match queue {
                        Queue::Send => {
                            self.send_completed(id, *wr_id, is_success);
                            Step::Done
                        }
                        _ => self.receive_completed(process, id, *wr_id, *queue, is_success.then_some(*bytes), is_last),
                    };
                }
                // Its beginning was not seen: it may tell of anything.
                if is_success && *queue != Queue::Send {
                    self.forget_accesses();
                }
            }
            _ => {}
        }
        Step::Done
    }

    fn called(&mut self, process: u32, pair: Option<u32>, event: &Event, call: &Call, thread: u32) {
        let here = process as usize;
        match *call {
            Call::CreateQp { kind, srq, signals_all, .. } => {
                if let Some(qpn) = event.qpn {
                    let born = Arc::clone(&self.processes[here].clock.0);
                    let new = Pair::new(process, qpn, Service::of(kind), born);
                    self.add_pair(Pair { signals_all, srq: srq.map(wire::Srqn::value), ..new });
                }
            }
            Call::ModifyQp { state, dest_qpn, .. } => {
                if let Some(id) = pair {
                    self.modified(process, id, state, dest_qpn);
                }
            }
            Call::DestroyQp { .. } => {
                if let Some(id) = pair {
                    self.pair_stopped(process, id);
                    self.drop_pair(id);
                }
            }
            Call::PostedFrom { place, caller } => {
                if self.stacks.len() < MAX_STACKS && !caller.as_str().is_empty() {
                    // It may be of a recording that came from anywhere.
                    self.stacks.insert(place, trace::printable(caller.as_str()).to_string());
                }
                let stacks = &mut self.processes[here].stacks;
                if stacks.len() < MAX_STACKS || stacks.contains_key(&thread) {
                    stacks.insert(thread, place);
                }
            }
            Call::PostSend { .. } => {
                if let Some(pair) = pair.and_then(|id| self.pairs.get_mut(&id)) {
                    pair.pending = Some((*call, thread, event.at));
                }
            }
            Call::PostReceive { wr_id, srq, pieces, .. } => {
                let before = Arc::clone(&self.processes[here].clock.0);
                let receive = Receive { wr_id, pieces, before };
                match (srq, pair.and_then(|id| self.pairs.get_mut(&id))) {
                    (Some(srq), _) => {
                        let queues = &mut self.processes[here].shared_receives;
                        if queues.len() < MAX_PAIRS || queues.contains_key(&srq.value()) {
                            push(queues.entry(srq.value()).or_default(), receive);
                        }
                    }
                    (None, Some(pair)) => {
                        push(&mut pair.receives, receive);
                    }
                    _ => {}
                }
            }
            Call::DestroySrq { srq } => {
                self.processes[here].shared_receives.remove(&srq.value());
            }
            Call::Polled { wr_id, .. } => match pair {
                Some(id) => self.polled(process, id, wr_id),
                None => self.forget_accesses(),
            },
            Call::RegisterMemory { key, address, length, iova, .. } => {
                self.add_region(process, key, address, length, iova);
            }
            Call::ReregisterMemory { old_key, key, address, length, iova, .. } => {
                self.drop_region(process, old_key);
                self.add_region(process, key, address, length, iova);
            }
            Call::DeregisterMemory { key } | Call::FreeWindow { key } => self.drop_region(process, key),
            Call::BindWindow { window, new_key, region, address, length, .. } => {
                self.drop_region(process, window);
                let place = self.region(process, region).and_then(|region| region.place(address, length));
                if let Some((place, _)) = place.filter(|_| length > 0) {
                    self.add_region(process, new_key, place, length, address);
                }
            }
            // A message of the connection manager; whose is not told, so that it may be anybody's.
            Call::CmEvent { .. } => {
                let clocks: Vec<_> = self.processes.iter().map(|process| Arc::clone(&process.clock.0)).collect();
                clocks.iter().for_each(|clock| self.processes[here].clock.join(clock));
            }
            _ => {}
        }
    }

    fn pair_of(&self, process: u32, qpn: Qpn) -> Option<u32> {
        self.by_process.get(&(process.into(), qpn.value().into())).copied()
    }

    fn add_pair(&mut self, pair: Pair) {
        let (process, number) = (pair.process, u64::from(pair.qpn.value()));
        let host = self.processes[process as usize].facts.host;
        while self.pairs.len() >= MAX_PAIRS {
            let Some(oldest) = self.pairs.first().map(|(id, _)| *id) else { break };
            self.drop_pair(oldest);
            self.forget();
        }
        let id = self.next_pair;
        self.next_pair = self.next_pair.wrapping_add(1).max(1);
        self.by_process.insert((process.into(), number), id);
        self.by_host.insert((host.into(), number), id);
        self.pairs.insert(id, pair);
    }

    fn drop_pair(&mut self, id: u32) {
        let Some(pair) = self.pairs.get(&id) else { return };
        let (process, number) = (pair.process, u64::from(pair.qpn.value()));
        let host = self.processes[process as usize].facts.host;
        for (map, key) in [(&mut self.by_process, (process.into(), number)), (&mut self.by_host, (host.into(), number))]
        {
            if map.get(&key) == Some(&id) {
                map.remove(&key);
            }
        }
        self.pairs.remove(&id);
    }

    /// The program changes a queue pair.
    fn modified(&mut self, process: u32, id: u32, state: Option<&'static str>, dest: Option<Qpn>) {
        if matches!(state, Some("RESET" | "ERR" | "ERROR")) {
            self.pair_stopped(process, id);
        }
        if state == Some("RESET")
            && let Some(pair) = self.pairs.get(&id)
        {
            let again = pair.again(Arc::clone(&self.processes[process as usize].clock.0));
            if pair.posted > 0 || pair.received > 0 || pair.dest.is_some() {
                self.drop_pair(id);
                self.add_pair(again);
            }
        }
        if let Some(dest) = dest
            && let Some(pair) = self.pairs.get_mut(&id)
        {
            pair.dest = Some(dest);
            // The program was given the number, in whatever way.
            let host = self.processes[process as usize].facts.host;
            let peer = self.by_host.get(&(host.into(), dest.value().into())).and_then(|peer| self.pairs.get(peer));
            if let Some(born) = peer.map(|peer| Arc::clone(&peer.born)) {
                self.processes[process as usize].clock.join(&born);
            }
        }
    }

    /// A queue pair takes part in nothing any more: its own memory is free, and nothing of its peer's arrives.
    fn pair_stopped(&mut self, process: u32, id: u32) {
        let Some(pair) = self.pairs.get(&id) else { return };
        let clock = &mut self.processes[process as usize].clock;
        for way in [Way::Sent, Way::Answered] {
            clock.learn(Point { pair: id, way, index: pair.posted });
        }
        if let Some(peer) = self.peer_of(id)
            && let Some(posted) = self.pairs.get(&peer).map(|pair| pair.posted)
        {
            for way in [Way::Placed, Way::Answered] {
                self.processes[process as usize].clock.learn(Point { pair: peer, way, index: posted });
            }
        }
    }

    /// The queue pair that this one is connected with, if it was seen and is connected with this one.
    fn peer_of(&self, id: u32) -> Option<u32> {
        let pair = self.pairs.get(&id)?;
        let host = self.processes[pair.process as usize].facts.host;
        let peer = *self.by_host.get(&(host.into(), pair.dest?.value().into()))?;
        (self.pairs.get(&peer)?.dest? == pair.qpn).then_some(peer)
    }

    fn add_region(&mut self, process: u32, key: Key, address: u64, length: u64, iova: u64) {
        if self.regions.len() >= MAX_REGIONS {
            return;
        }
        let born = Arc::clone(&self.processes[process as usize].clock.0);
        let id = self.next_region;
        self.next_region += 1;
        let new = Region { id, address, length, iova, born };
        if let Some(old) = self.regions.insert((process.into(), key.value().into()), new) {
            self.alive.remove(&old.id);
        }
        self.alive.insert(id);
    }

    /// Nothing is accessed by this key any more.
    fn drop_region(&mut self, process: u32, key: Key) {
        if let Some(region) = self.regions.remove(&(process.into(), key.value().into())) {
            self.alive.remove(&region.id);
        }
    }

    /// The region of an `rkey`, an `lkey`, or a window's key.
    fn region(&self, process: u32, key: Key) -> Option<&Region> {
        let of = |key: Key| self.regions.get(&(process.into(), key.value().into()));
        of(key).or_else(|| of(key.of_region()))
    }

    /// Adds an access, and notes what it races with.
    fn access(&mut self, access: Access) {
        self.looked.accesses += 1;
        let access = Arc::new(access);
        let Races { processes, alive, found, stacks, .. } = self;
        let Some(shadow) = processes.get_mut(access.target as usize).map(|process| &mut process.shadow) else { return };
        let before = shadow.len();
        let mut raced: Vec<(Arc<Access>, u64, u64)> = Vec::new();
        shadow.add(
            &access,
            |access| access.region == 0 || alive.contains(&access.region),
            |old, start, end| raced.push((Arc::clone(old), start, end)),
        );
        let after = shadow.len();
        for (old, start, end) in raced {
            // Whether the program that posted the first has learned that it is over.
            let home = processes.get(old.work.process as usize);
            let is_polled = home.is_some_and(|process| process.clock.0.knows(old.over));
            let places = [&old, &access].map(|access| place_of(access, processes, stacks));
            found.note(places, &old, &access, (start.max(access.start), end.min(access.end)), is_polled);
        }
        self.segments = (self.segments + after).saturating_sub(before);
        if self.segments > MAX_SEGMENTS {
            self.forget();
        }
    }

    /// Counts a clock that was noted; forgets the past if there are too many.
    fn count_clock(&mut self, clock: &Arc<Clock>) {
        if Arc::strong_count(clock) <= 3 {
            self.components += 1 + clock.len();
        }
        if self.components > MAX_CLOCK_COMPONENTS {
            self.forget();
        }
    }

    /// Forgets all accesses: no race with one of them is told.
    fn forget(&mut self) {
        self.looked.forgotten += 1;
        self.forget_accesses();
    }

    fn forget_accesses(&mut self) {
        for process in &mut self.processes {
            process.shadow = shadow::Shadow::default();
            Arc::make_mut(&mut process.clock.0).retain(|pair| self.pairs.contains_key(&pair));
        }
        self.released = Map::new();
        (self.segments, self.components) = (0, 0);
    }
}

/// What tells places apart that post work: the stack where it is known, else the program and the operation.
fn place_of(access: &Access, processes: &[Process], stacks: &Map<u64, String>) -> u64 {
    let work = &access.work;
    let program = processes.get(work.process as usize).map_or("", |process| process.facts.program.as_str());
    let words = [stacks.get(&work.stack).map_or(program, String::as_str), work.opcode];
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0xff]));
    let seed = if access.receive.is_some() { 1 } else { 0 };
    bytes.fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
