//! What the parties of a simulation have in common: the network, the clock, what waits for a moment, and what each
//! party's NIC has. One lock for all of it. Observers and wakers are called without it, in the scope of their party.

use super::current;
use super::manager::Manager;
use super::nic::Events;
use super::pair::PairRecord;
use super::queue::Queue;
use latch::lock;
use seam::AsyncEvent;
use seam::wake;
use sim::{HostConfig, HostId, QpId, Sim, SrqId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;
use transport::{SrqEvent, State, Time};
use wire::{Qpn, Srqn};

/// Calls of objects, without a lock.
pub(super) type Observer = Arc<dyn Fn() + Send + Sync>;

/// The simulation as the objects of its parties reach it.
pub(crate) struct World {
    inner: Mutex<Inner>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a simulation")
    }
}

/// A simulated network that may be used in any thread, by one at a time.
struct Confined(Sim);

// SAFETY: all that a `Sim` has is plain data, but for the closures and the writer that it was given to observe it with;
// `Inner` keeps it to itself and gives it only such that may be sent (`watch`, `capture`). Memory that it is given is
// `Send` by its trait.
#[allow(unsafe_code)]
unsafe impl Send for Confined {}

pub(super) struct Inner {
    sim: Confined,
    pub(super) parties: Vec<Party>,
    timers: BTreeMap<(Time, u64), Timer>,
    /// Tells timers of one moment apart.
    planned: u64,
    after: VecDeque<After>,
    /// A thread carries out `after` already.
    carrying_out: bool,
    pub(super) log: Option<Arc<Mutex<String>>>,
    /// Set once the run is over: then nothing happens any more.
    pub(super) over: bool,
}

/// One simulated host, and the process on it.
pub(super) struct Party {
    pub(super) name: String,
    pub(super) host: HostId,
    /// Counts its lives. Objects of an earlier one do nothing.
    pub(super) life: u32,
    /// Its process runs.
    pub(super) alive: bool,
    /// Its host has power.
    pub(super) powered: bool,
    pub(super) memory: Arc<memory::Memory>,
    pub(super) pairs: BTreeMap<Qpn, PairRecord>,
    /// Shared receive queues, and where those of XRC domains complete.
    pub(super) shared: BTreeMap<Srqn, (Weak<Events>, Option<Arc<Queue>>)>,
    pub(super) manager: Manager,
    /// When the connection manager is to be woken.
    alarm: Option<Time>,
    /// Numbers of protection domains, XRC domains and completion queues.
    pub(super) numbers: u32,
}

/// Something that waits for a moment.
enum Timer {
    Wake(Waker),
    Work(usize, u32, Box<dyn FnOnce() + Send>),
    Manager(usize),
}

/// What is to be done without the lock.
pub(super) enum After {
    /// A party's observer is called.
    Tell(usize, Observer),
    /// A party's work is done.
    Do(usize, Box<dyn FnOnce() + Send>),
    Wake(Waker),
    /// Something is let go of that may call the simulation when it goes.
    Drop(#[allow(dead_code)] Box<dyn std::any::Any + Send>),
}

/// Where a party's object belongs: to one life of it.
#[derive(Clone, Debug)]
pub(super) struct PartyLife {
    pub(super) world: Arc<World>,
    pub(super) party: usize,
    pub(super) life: u32,
}

impl PartyLife {
    /// Does something with the party, if it is still alive.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Inner, usize) -> R) -> Option<R> {
        self.world.with(|inner| {
            let lives = inner.parties.get(self.party).is_some_and(|party| party.alive && party.life == self.life);
            (lives && !inner.over).then(|| work(inner, self.party))
        })
    }
}

impl World {
    pub(super) fn new(sim: Sim) -> World {
        let mut sim = sim;
        sim.keep_news();
        World {
            inner: Mutex::new(Inner {
                sim: Confined(sim),
                parties: Vec::new(),
                timers: BTreeMap::new(),
                planned: 0,
                after: VecDeque::new(),
                carrying_out: false,
                log: None,
                over: false,
            }),
        }
    }

    /// Does something with everything locked, then tells whom it concerns.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        let mut inner = lock(&self.inner);
        let answer = work(&mut inner);
        inner.collect();
        if std::mem::replace(&mut inner.carrying_out, true) {
            return answer;
        }
        while let Some(after) = inner.after.pop_front() {
            drop(inner);
            after.carry_out();
            inner = lock(&self.inner);
        }
        inner.carrying_out = false;
        answer
    }

    pub(super) fn now(&self) -> Time {
        lock(&self.inner).now()
    }

    /// Wakes a task at a moment. The answer takes that back.
    pub(super) fn wake_at(&self, at: Time, key: Option<u64>, waker: Waker) -> u64 {
        let mut inner = lock(&self.inner);
        let key = key.unwrap_or_else(|| inner.new_timer());
        inner.timers.insert((at, key), Timer::Wake(waker));
        key
    }

    pub(super) fn forget_timer(&self, at: Time, key: u64) {
        let timer = lock(&self.inner).timers.remove(&(at, key));
        drop(timer);
    }

    /// Lets the next thing happen, if there is one by `end`.
    pub(super) fn step(&self, end: Time) -> Step {
        self.with(|inner| inner.step(end))
    }
}

/// What [`World::step`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Happened,
    /// Nothing is due by then, but later.
    Later,
    /// Nothing will ever happen.
    Never,
}

impl After {
    fn carry_out(self) {
        match self {
            After::Tell(party, observer) => current::as_party(party, || observer()),
            After::Do(party, work) => current::as_party(party, work),
            After::Wake(waker) => wake(waker),
            After::Drop(what) => drop(what),
        }
    }
}

impl Inner {
    pub(super) fn now(&self) -> Time {
        self.sim.0.now()
    }

    pub(super) fn sim(&mut self) -> &mut Sim {
        &mut self.sim.0
    }

    pub(super) fn sim_ref(&self) -> &Sim {
        &self.sim.0
    }

    fn new_timer(&mut self) -> u64 {
        self.planned += 1;
        self.planned
    }

    pub(super) fn add_party(&mut self, config: HostConfig, name: &str) -> usize {
        let host = self.sim.0.add_host(config);
        self.sim.0.answer_for_management(host);
        let index = self.parties.len();
        let seed = u128::from(self.sim.0.rng().next_u64()) << 64 | u128::from(self.sim.0.rng().next_u64());
        self.parties.push(Party {
            name: name.to_owned(),
            host,
            life: 0,
            alive: false,
            powered: true,
            memory: Arc::default(),
            pairs: BTreeMap::new(),
            shared: BTreeMap::new(),
            manager: Manager::new(seed),
            alarm: None,
            numbers: 0,
        });
        index
    }

    /// A party's process starts.
    pub(super) fn start(&mut self, party: usize) {
        let seed = u128::from(self.sim.0.rng().next_u64());
        let Some(it) = self.parties.get_mut(party) else { return };
        if !it.powered {
            it.manager = Manager::new(seed << 64 | seed);
            it.alarm = None;
        }
        (it.alive, it.powered) = (true, true);
        it.memory = Arc::new(memory::Memory::new());
        let memory = super::memory::Registrations(Arc::clone(&it.memory));
        self.sim.0.use_memory(it.host, Box::new(memory));
        self.note(|inner| format!("{} starts", inner.parties[party].name));
    }

    /// A party's process ends, without a word of its own: its host ends its connections. Or the host loses its power,
    /// and nobody says anything.
    pub(super) fn kill(&mut self, party: usize, power: bool) {
        let now = self.now();
        let Some(it) = self.parties.get_mut(party) else { return };
        it.alive = false;
        it.life += 1;
        it.powered &= power;
        let pairs = std::mem::take(&mut it.pairs);
        let shared = std::mem::take(&mut it.shared);
        let channels = it.manager.process_ended(now, power);
        let host = it.host;
        self.sim.0.lose_power(host);
        self.after.push_back(After::Drop(Box::new((pairs, shared, channels))));
        self.note(|inner| {
            let how = if power { "is killed" } else { "loses its power" };
            format!("{} {how}", inner.parties[party].name)
        });
        if power {
            self.pump(party);
        }
    }

    /// Does something a while later, if the party lives until then.
    pub(super) fn later(&mut self, at: Time, party: usize, work: Box<dyn FnOnce() + Send>) {
        let key = self.new_timer();
        let life = self.parties.get(party).map_or(0, |party| party.life);
        self.timers.insert((at, key), Timer::Work(party, life, work));
    }

    pub(super) fn after(&mut self, after: After) {
        self.after.push_back(after);
    }

    /// Writes a line to the log, if there is one.
    pub(super) fn note(&mut self, line: impl FnOnce(&Inner) -> String) {
        let Some(log) = &self.log else { return };
        let line = line(self);
        lock(log).push_str(&format!("{} {line}\n", self.now().as_nanos()));
    }

    fn step(&mut self, end: Time) -> Step {
        let timer = self.timers.first_key_value().map(|(&(at, _), _)| at);
        let first = timer.map_or(end, |at| at.min(end));
        if self.sim.0.run_one_by(first) {
            return Step::Happened;
        }
        match timer {
            Some(at) if at <= end => {
                self.sim.0.wait_until(at);
                self.fire();
                Step::Happened
            }
            None if self.sim.0.next_at().is_none() => Step::Never,
            _ => Step::Later,
        }
    }

    fn fire(&mut self) {
        let Some(((at, _), timer)) = self.timers.pop_first() else { return };
        match timer {
            Timer::Wake(waker) => self.after.push_back(After::Wake(waker)),
            Timer::Work(party, life, work) => {
                let lives = self.parties.get(party).is_some_and(|party| party.alive && party.life == life);
                let after = if lives { After::Do(party, work) } else { After::Drop(Box::new(work)) };
                self.after.push_back(after);
            }
            Timer::Manager(party) => {
                let Some(it) = self.parties.get_mut(party) else { return };
                if it.alarm == Some(at) {
                    it.alarm = None;
                    it.manager.wake(at, &self.sim.0, it.host);
                    self.pump(party);
                }
            }
        }
    }

    /// Brings what the network has for the parties to them, until there is nothing more.
    fn collect(&mut self) {
        loop {
            while let Some(qp) = self.sim.0.next_news() {
                self.hear(qp);
            }
            for (srq, event) in self.sim.0.srq_events() {
                self.hear_shared(srq, event);
            }
            let Some((host, datagram)) = self.sim.0.next_management() else { return };
            let (now, party) = (self.now(), host.index());
            let it = &mut self.parties[party];
            if it.powered {
                it.manager.receive(now, &datagram);
                self.pump(party);
            }
        }
    }

    /// Sends and tells what the connection manager of a party has, and plans its next deadline.
    pub(super) fn pump(&mut self, party: usize) {
        let now = self.now();
        let Some(it) = self.parties.get_mut(party) else { return };
        let host = it.host;
        let outcome = it.manager.pump(now, party, &mut self.sim.0, host);
        self.after.extend(outcome.after);
        if let Some(deadline) = outcome.deadline.map(|deadline| deadline.max(now))
            && it.alarm.is_none_or(|alarm| deadline < alarm)
        {
            it.alarm = Some(deadline);
            self.planned += 1;
            self.timers.insert((deadline, self.planned), Timer::Manager(party));
        }
    }

    /// A queue pair has completions or events.
    pub(super) fn hear(&mut self, qp: QpId) {
        let party = qp.host.index();
        let Some(queue_pair) = self.sim.0.queue_pair(qp) else { return };
        let stopped = queue_pair.state() == State::Error;
        let now = self.now();
        let completions = self.sim.0.completions(qp);
        let events = self.sim.0.async_events(qp);
        if self.log.is_some() {
            for completion in &completions {
                let name = &self.parties[party].name;
                let told =
                    format!("{name} {} {:?} {} bytes {}", qp.qpn, completion.kind, completion.bytes, completion.status);
                self.note(|_| told);
            }
        }
        let Some(Party { pairs, shared, .. }) = self.parties.get_mut(party) else { return };
        let Some(record) = pairs.get_mut(&qp.qpn) else { return };
        for completion in completions {
            let queue = match completion.queue {
                transport::Queue::Send => record.send.as_ref(),
                transport::Queue::Receive => record.receive.as_ref(),
                transport::Queue::Shared(number) => {
                    let own = shared.get(&number).and_then(|(_, own)| own.as_ref());
                    own.or(record.receive.as_ref())
                }
            };
            let Some(queue) = queue else { continue };
            if let Some(lost) = queue.add(completion, now.as_nanos()) {
                record.events.push(AsyncEvent::CompletionQueueError(lost));
            }
            self.after.extend(queue.observer().map(|observer| After::Tell(party, observer)));
        }
        for event in events {
            record.events.push(AsyncEvent::QueuePair(qp.qpn, event));
        }
        if stopped && !std::mem::replace(&mut record.told_of_stop, true) {
            self.after.extend(record.stop.clone().map(|observer| After::Tell(party, observer)));
        }
    }

    fn hear_shared(&mut self, srq: SrqId, event: SrqEvent) {
        let party = self.parties.get(srq.host.index());
        let Some((events, _)) = party.and_then(|party| party.shared.get(&srq.srqn)) else { return };
        if let (Some(events), SrqEvent::LimitReached) = (events.upgrade(), event) {
            events.push(AsyncEvent::SharedReceiveQueueLimit(srq.srqn));
        }
    }
}
