//! Completion queues: where completions wait to be polled, and what wakes a program that waits for them.

use crate::objects::channel::Channel;
use crate::objects::device::Device;
use crate::objects::landing::Land;
use crate::progress::engine::Engine;
use crate::progress::lock_tries::LockTries;
use latch::{Mutex, Rank};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use transport::{Completion, Status};
use wire::Qpn;

/// A completion with the moment it was raised, in nanoseconds of the NIC's clock.
#[derive(Debug)]
struct TimedCompletion {
    completion: Completion,
    at: u64,
}

/// A thread that polls a completion queue, and is shown at once what completes there meanwhile.
pub(crate) struct Poller<'a> {
    /// The queue.
    pub cq: &'a CompletionQueue,
    /// How many more it takes.
    pub room: usize,
    /// The function that takes them.
    pub show: &'a mut dyn FnMut(&Completion, u64),
    /// Where what peers write is to go instead.
    pub landing: Option<&'a mut dyn Land>,
}

impl Poller<'_> {
    /// Shows a completion of `cq`, unless it is another queue, or something came first, or the program is to be woken.
    /// The caller holds the lock of the queue pair it is of: what completed there before is either shown or waits.
    #[inline]
    pub fn shows(&mut self, cq: &CompletionQueue, completion: &Completion, at: u64) -> bool {
        let direct = std::ptr::eq(self.cq, cq) && self.room > 0 && cq.is_idle();
        if direct {
            (self.show)(completion, at);
            self.room -= 1;
        }
        direct
    }
}

/// For which completions a program wants to be woken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// The next one.
    Any,
    /// The next solicited one, or error.
    Solicited,
}

impl Notify {
    /// Whether this completion is one of them.
    fn includes(self, completion: &Completion) -> bool {
        self == Notify::Any || completion.solicited
    }
}

/// How much a program that asked to be woken wants to find then: so many completions, or what has come so long after
/// the first of them. An error wakes it at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moderation {
    /// Completions; 0 for any number, within the time.
    pub count: u16,
    /// Microseconds; 0 for as long as it takes.
    pub period: u16,
}

/// What became of a completion that was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// It waits.
    Fine,
    /// It waits, and will wake the program at this time of the NIC's clock, if nothing does earlier. Told once.
    Later(u64),
    /// There was no room: it is lost, and so is the queue. Told once.
    Overflowed,
    /// The queue had overflowed before.
    Dead,
    /// There was no room: it is lost, and the queue goes on. Told each time.
    Dropped,
}

/// Why a completion queue was not changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// Too small to be useful, or larger than the device allows.
    #[error("a completion queue of {asked} entries; the device offers 1 to {max}")]
    Size {
        /// What was asked for.
        asked: u32,
        /// The most.
        max: u32,
    },
    /// Entries wait that would not fit.
    #[error("{waiting} completions wait and would not fit into {asked} entries")]
    Occupied {
        /// What was asked for.
        asked: u32,
        /// What waits.
        waiting: u32,
    },
}

/// The most entries of a completion queue.
pub const MAX_ENTRIES: u32 = 1 << 22;

/// Tells a channel which queue has something.
pub type CompletionChannel = Channel<u32>;

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    /// Its number, which its channel reports.
    pub id: u32,
    inner: Mutex<Inner>,
    /// How many wait, for a poll that finds nothing without taking the lock.
    waiting: AtomicU32,
    /// The program is to be woken. Written under the lock.
    armed: AtomicBool,
    /// A completion was lost. Written under the lock.
    overflowed: AtomicBool,
    /// The thread that polled it last.
    poller: AtomicUsize,
    /// It was polled since work was last done at once.
    polled: AtomicBool,
    channel: Option<Arc<CompletionChannel>>,
    /// The engine, which must know that it is armed.
    engine: Option<Arc<Engine>>,
    observer: OnceLock<Observer>,
    /// Something was added that the observer has not been told of.
    fresh: AtomicBool,
    /// The interface of its device; 0 if that was not said.
    interface: AtomicU32,
    /// It drops what meets no room, and goes on.
    drops: AtomicBool,
    /// In which round the trace was told that a poll found nothing, and nothing has happened to the queue since; or 0.
    told_empty: AtomicU32,
}

/// The program's function that is told that something was added.
pub(crate) struct Observer(pub Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

#[derive(Debug)]
struct Inner {
    entries: VecDeque<TimedCompletion>,
    capacity: u32,
    /// How many of the oldest entries the program was told of by an event, and has not polled anything since.
    told: usize,
    armed: Option<Notify>,
    moderation: Moderation,
    /// Completions since it was armed, of those that wake, and when they will have waited long enough.
    met: u32,
    until: Option<u64>,
}

impl Inner {
    /// Asks for an event anew; or no more, since it is being told.
    fn set(&mut self, armed: Option<Notify>) {
        (self.armed, self.met, self.until) = (armed, 0, None);
        if armed.is_none() {
            self.told = self.entries.len();
        }
    }

    /// Counts a completion that wakes, at this time. Returns whether it does so now.
    fn is_enough(&mut self, completion: &Completion, at: u64) -> bool {
        let Moderation { count, period } = self.moderation;
        self.met += 1;
        if completion.status != Status::Success || (count, period) == (0, 0) || (1..=self.met).contains(&count.into()) {
            return true;
        }
        if period > 0 {
            self.until.get_or_insert(at + u64::from(period) * 1000);
        }
        false
    }

    /// Whether what waits and was not told of wakes a program that asks to be woken now. Where completions are counted,
    /// it counts from now on; where they have a time, it wakes at once, since no queue pair keeps the time of what came
    /// before.
    fn is_due(&mut self, notify: Notify) -> bool {
        let untold = self.entries.iter().skip(self.told).map(|entry| &entry.completion);
        let mut waiting = untold.filter(|completion| notify.includes(completion));
        match self.moderation {
            Moderation { count: 1.., period: 0 } => {
                let (met, failed) = waiting.fold((0, false), |(met, failed), completion| {
                    (met + 1, failed || completion.status != Status::Success)
                });
                self.met = self.met.max(met);
                failed || met >= self.moderation.count.into()
            }
            // The youngest first: it is what the program most likely has not seen.
            _ => waiting.next_back().is_some(),
        }
    }
}

impl CompletionQueue {
    /// A queue for `capacity` entries.
    pub fn new(id: u32, capacity: u32, channel: Option<Arc<CompletionChannel>>) -> Result<CompletionQueue, CqError> {
        if capacity == 0 || capacity > MAX_ENTRIES {
            return Err(CqError::Size { asked: capacity, max: MAX_ENTRIES });
        }
        let inner = Inner {
            entries: VecDeque::new(),
            capacity,
            told: 0,
            armed: None,
            moderation: Moderation::default(),
            met: 0,
            until: None,
        };
        Ok(CompletionQueue {
            id,
            inner: Mutex::new(Rank::CompletionQueue, inner),
            waiting: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            poller: AtomicUsize::new(0),
            polled: AtomicBool::new(true),
            channel,
            engine: None,
            observer: OnceLock::new(),
            fresh: AtomicBool::new(false),
            interface: AtomicU32::new(0),
            drops: AtomicBool::new(false),
            told_empty: AtomicU32::new(0),
        })
    }

    /// Tells the engine when it is armed: the program may go to sleep then.
    pub(crate) fn served_by(mut self, engine: &Arc<Engine>) -> CompletionQueue {
        self.engine = Some(Arc::clone(engine));
        self
    }

    /// It overruns, as if a completion had met no room. Returns whether it was fine before.
    pub(crate) fn overrun(&self) -> bool {
        let _inner = self.inner.lock();
        self.fresh.store(true, Ordering::Release);
        !self.overflowed.swap(true, Ordering::AcqRel)
    }

    /// Adds a completion, and wakes the program if it asked to be woken.
    pub fn push(&self, completion: &Completion, at: u64) -> Added {
        let mut inner = self.inner.lock();
        if self.has_overflowed() {
            return Added::Dead;
        }
        if inner.entries.len() >= inner.capacity as usize {
            if self.drops.load(Ordering::Relaxed) {
                return Added::Dropped;
            }
            self.overflowed.store(true, Ordering::Release);
            self.fresh.store(true, Ordering::Release);
            return Added::Overflowed;
        }
        inner.entries.push_back(TimedCompletion { completion: *completion, at });
        self.waiting.store(inner.entries.len() as u32, Ordering::Release);
        // After the entry, never before: the thread that takes the flag away looks for entries next.
        self.fresh.store(true, Ordering::Release);
        if !inner.armed.is_some_and(|notify| notify.includes(completion)) {
            return Added::Fine;
        }
        let before = inner.until;
        if inner.is_enough(completion, at) {
            self.set(&mut inner, None);
            self.report();
            return Added::Fine;
        }
        match inner.until {
            Some(until) if before.is_none() => Added::Later(until),
            _ => Added::Fine,
        }
    }

    /// Asks for an event anew, or no more.
    fn set(&self, inner: &mut Inner, armed: Option<Notify>) {
        inner.set(armed);
        self.armed.store(armed.is_some(), Ordering::Relaxed);
    }

    /// Changes how much a program finds when it is woken. What has come already is told of at once.
    pub fn moderate(&self, moderation: Moderation) {
        let mut inner = self.inner.lock();
        inner.moderation = moderation;
        if inner.met > 0 {
            self.set(&mut inner, None);
            self.report();
        }
    }

    /// Wakes the program if what came for it has waited long enough, or if the queue pair that keeps the time for it
    /// goes: then there is no `now`. Returns how long it has to wait otherwise.
    pub(crate) fn time_has_come(&self, now: Option<u64>) -> Option<u64> {
        let mut inner = self.inner.lock();
        let until = inner.until?;
        if now.is_some_and(|now| now < until) {
            return Some(until);
        }
        self.set(&mut inner, None);
        self.report();
        None
    }

    /// Shows up to `room` completions to `take`, oldest first, each with its moment, and lets go of them.
    #[inline]
    pub fn poll(&self, room: usize, mut take: impl FnMut(&Completion, u64)) -> usize {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut inner = self.inner.lock();
        let count = room.min(inner.entries.len());
        for _ in 0..count {
            if let Some(TimedCompletion { completion, at }) = inner.entries.front() {
                take(completion, *at);
            }
            inner.entries.pop_front();
        }
        if count > 0 {
            // The program knows of an event, and leaves the rest for the next.
            inner.told = 0;
        }
        self.waiting.store(inner.entries.len() as u32, Ordering::Release);
        count
    }

    /// Whether the trace is to be told of a poll that found something, or nothing: of many that find nothing, the first
    /// of each `round`, which is not 0.
    pub(crate) fn tells_poll(&self, found: bool, round: u32) -> bool {
        let before = self.told_empty.swap(if found { 0 } else { round }, Ordering::Relaxed);
        // A queue that belongs to no program is polled so that the NIC makes progress.
        self.id != 0 && (found || before != round)
    }

    /// Something has happened to it: of the next poll the trace is told.
    pub(crate) fn tells_next_poll(&self) {
        self.told_empty.store(0, Ordering::Relaxed);
    }

    /// This thread polls it.
    #[inline]
    pub(crate) fn polls(&self) {
        let thread = latch::this_thread();
        if self.poller.load(Ordering::Relaxed) != thread {
            self.poller.store(thread, Ordering::Relaxed);
        }
        if !self.was_polled() {
            self.polled.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was polled since work was last done at once.
    #[inline]
    pub(crate) fn was_polled(&self) -> bool {
        self.polled.load(Ordering::Relaxed)
    }

    /// Work was done at once, for a program that polls.
    #[inline]
    pub(crate) fn was_served(&self) {
        self.polled.store(false, Ordering::Relaxed);
    }

    /// The thread that polled it last; 0 for none.
    #[inline]
    pub(crate) fn polled_by(&self) -> usize {
        self.poller.load(Ordering::Relaxed)
    }

    /// Forgets what waits of a queue pair that is being reset: its program starts anew and must not meet the past.
    pub fn forget(&self, qpn: Qpn) {
        let mut inner = self.inner.lock();
        inner.entries.retain(|entry| entry.completion.qpn != qpn);
        inner.told = 0;
        self.waiting.store(inner.entries.len() as u32, Ordering::Release);
    }

    /// Whether nothing waits, the program is not to be woken, and nothing was lost.
    #[inline]
    fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
            && !self.armed.load(Ordering::Relaxed)
            && !self.overflowed.load(Ordering::Relaxed)
    }

    /// Whether nothing of what has come is still to be looked at: nothing waits, and nothing ever did, or `thread`, which
    /// is about to do something else, polled last and has not asked to be woken.
    pub(crate) fn is_looked_through(&self, thread: usize) -> bool {
        match self.polled_by() {
            0 => self.is_empty() && !self.has_overflowed(),
            last => last == thread && self.is_idle() && !self.is_observed(),
        }
    }

    /// Whether the program is to be woken.
    #[inline]
    pub(crate) fn may_wake(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// How many wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.waiting.load(Ordering::Acquire) as usize
    }

    /// Whether anything waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Asks to be woken once, by the next completion; at once if one waits that the program was not told of. Hardware
    /// does so: it knows how far the program has polled, how far it was told, and how much there is. A program that
    /// polls, arms and goes to sleep misses nothing of what came in between.
    ///
    /// | what waits | wakes at once |
    /// |---|---|
    /// | what came since the last event | yes |
    /// | what an event told of, and nothing was polled since | no: programs arm when they hear of an event, then poll |
    /// | what was left by a poll since | yes: the program does not wait for more before it goes on |
    /// | anything, while an event of this queue waits unread at the channel | no: that one is enough |
    pub fn arm(&self, notify: Notify) {
        let mut inner = self.inner.lock();
        // Asking for more than was asked before widens it; asking for less does not narrow it (IBA 11.4.2.2).
        let before = inner.armed;
        let notify = before.filter(|before| *before == Notify::Any).unwrap_or(notify);
        match before {
            Some(_) => inner.armed = Some(notify),
            None => self.set(&mut inner, Some(notify)),
        }
        if let Some(channel) = &self.channel
            && inner.is_due(notify)
            && channel.push_if(self.id, |waiting| !waiting.contains(&self.id))
        {
            self.set(&mut inner, None);
            drop(inner);
            if let (Some(_), Some(engine)) = (before, &self.engine) {
                engine.disarmed();
            }
            return;
        }
        drop(inner);
        if let (None, Some(engine)) = (before, &self.engine) {
            engine.armed();
        }
    }

    /// Tells the channel. The queue was armed and is no longer.
    fn report(&self) {
        if let Some(engine) = &self.engine {
            engine.disarmed();
        }
        if let Some(channel) = &self.channel {
            channel.push(self.id);
        }
    }

    /// Tells `observer` whenever something was added, or was lost. It is called with no lock held, by whichever thread
    /// made the progress, so it may poll this queue; it must not block. There can be one; returns whether it is this.
    pub fn observe(&self, observer: impl Fn() + Send + Sync + 'static) -> bool {
        // It is called by the thread that makes progress, and may wait for other threads.
        latch::shut();
        let is_this = self.observer.set(Observer(Box::new(observer))).is_ok();
        if let (true, Some(engine)) = (is_this, &self.engine) {
            engine.observed();
        }
        // Completions are added under this lock. One was added before, and a thread that polls after this sees it; or
        // it is added later, and the observer is told.
        drop(self.inner.lock());
        is_this
    }

    /// Whether there is an observer.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.get().is_some()
    }

    /// Tells the observer of what was added since it was last told. Called after the queue pair's lock has been let go.
    #[inline]
    pub(crate) fn announce(&self) {
        if let Some(Observer(observer)) = self.observer.get()
            && self.fresh.swap(false, Ordering::AcqRel)
        {
            // Between adding an entry and the observer's look at which tasks wait: a task that begins to wait looks at
            // the queue afterwards.
            fence(Ordering::SeqCst);
            observer();
        }
    }

    /// Wakes the program if it asked to be woken, as a completion would.
    pub fn rouse(&self) {
        let mut inner = self.inner.lock();
        if inner.armed.is_some() {
            self.set(&mut inner, None);
            drop(inner);
            self.report();
        }
    }

    /// Whether a program waits to be woken.
    pub fn is_armed(&self) -> bool {
        self.inner.lock().armed.is_some()
    }

    /// Whether a completion was lost: the queue is dead.
    #[inline]
    pub fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Acquire)
    }

    /// Says which device it was made on.
    pub fn belongs_to(&self, device: &Device) {
        self.interface.store(device.number(), Ordering::Relaxed);
        self.drops.store(device.profile().is_some_and(|profile| profile.completions.drops), Ordering::Relaxed);
    }

    pub(crate) fn interface(&self) -> u32 {
        self.interface.load(Ordering::Relaxed)
    }

    /// How many completions wait to be polled.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// How many entries it holds, if its lock is free within these tries.
    pub(crate) fn try_capacity(&self, tries: &mut LockTries) -> Option<u32> {
        tries.lock(&self.inner).map(|inner| inner.capacity)
    }

    /// How many entries it holds.
    pub fn capacity(&self) -> u32 {
        self.inner.lock().capacity
    }

    /// Changes how many entries it holds.
    pub fn resize(&self, capacity: u32) -> Result<(), CqError> {
        if capacity == 0 || capacity > MAX_ENTRIES {
            return Err(CqError::Size { asked: capacity, max: MAX_ENTRIES });
        }
        let mut inner = self.inner.lock();
        let waiting = inner.entries.len() as u32;
        if waiting > capacity {
            return Err(CqError::Occupied { asked: capacity, waiting });
        }
        inner.capacity = capacity;
        Ok(())
    }

    /// The channel that reports it.
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }
}

/// An armed queue keeps the engine watchful: not beyond its own end.
impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let armed = self.inner.get_mut().armed.take();
        if let (Some(_), Some(engine)) = (armed, &self.engine) {
            engine.disarmed();
        }
        if let (Some(_), Some(engine)) = (self.observer.get(), &self.engine) {
            engine.unobserved();
        }
    }
}

#[cfg(test)]
mod tests;
