//! What the engine's thread and the threads of the program know of each other: which threads poll, which block, until
//! when the engine sleeps, and the bell. The thread itself is in `drive/engine_thread.rs`; what it decides by is the
//! [`policy`](super::policy).

use crate::progress::bell::{Bell, WakeSignal};
use crate::progress::engine_affinity::Seen;
use crate::progress::policy::{Policy, Polls};
use crate::progress::socket_watch::SocketWatch;
use crate::progress::wake_reason::WakeCounts;
use crate::tuning::{EXIT_FLUSH_MAX, EXIT_LOOK_INTERVAL, EXIT_SUMMARY_MAX};
use link::shared::Doorbell;
use std::io;
use std::num::NonZero;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use transport::Time;

#[derive(Debug)]
pub(crate) struct Engine {
    /// What all threads share of the policy.
    pub policy: Policy,
    /// Those that this process may use.
    pub(crate) processors: usize,
    pub(crate) bell: Bell<host::event_fd::Bell>,
    /// How often the program has looked at the sockets.
    pub(crate) looks: AtomicU64,
    /// Where the program is.
    pub(crate) seen: Seen,
    /// Until when the engine sleeps, zero while it is awake.
    pub(crate) asleep_until: AtomicU64,
    /// How often its thread woke, and why.
    pub(crate) wakes: WakeCounts,
    /// The system's number of its thread, for those that look at how long it runs.
    pub(crate) thread: AtomicU32,
    /// Threads of the program that wait inside a call, and so drive.
    pub(crate) waiters: AtomicU32,
    /// They do, and the engine leaves the sockets to them.
    pub(crate) relieved: AtomicBool,
    /// Which thread waits for the sockets.
    pub sockets: SocketWatch,
    /// Completion queues that are observed: the program wants to hear of what comes there, and does not call.
    observed: AtomicU32,
    /// It looks on, for trains and for room.
    pub(crate) spins: AtomicBool,
    /// What other processes see of us.
    doorbell: OnceLock<Arc<Doorbell>>,
    /// Whether the process ends, and what the engine is to do before: see [`Exit`].
    exit: AtomicU8,
}

/// The process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Exit {
    /// It does not.
    No,
    /// The engine is to send what waits.
    Flush,
    /// It has.
    Flushed,
    /// The engine is to say what was found.
    Summarize,
    /// It has.
    Summarized,
}

impl WakeSignal for host::event_fd::Bell {
    fn strike(&self) {
        host::event_fd::Bell::strike(self);
    }
}

impl Engine {
    pub fn new() -> io::Result<Engine> {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Ok(Engine {
            policy: Policy::new(processors),
            processors,
            bell: Bell::new(host::event_fd::Bell::new()?),
            looks: AtomicU64::new(0),
            seen: Seen::new(processors),
            asleep_until: AtomicU64::new(0),
            wakes: WakeCounts::default(),
            thread: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            relieved: AtomicBool::new(false),
            sockets: SocketWatch::new()?,
            observed: AtomicU32::new(0),
            spins: AtomicBool::new(false),
            doorbell: OnceLock::new(),
            exit: AtomicU8::new(Exit::No as u8),
        })
    }

    /// What other processes see of this one.
    pub fn shows(&self, doorbell: &Arc<Doorbell>) {
        let _ = self.doorbell.set(Arc::clone(doorbell));
    }

    /// The program sends something, and does not poll, or not only.
    #[inline]
    pub fn sends(&self) {
        if !self.policy.lease.is_held() {
            self.seen.here();
        }
    }

    /// The program has polled, and there was nothing.
    #[inline]
    pub fn polled(&self) {
        if self.policy.lease.polled() {
            self.seen.here();
            // The engine sleeps on the sockets: from now on it is to look at the program instead.
            self.bell.ring();
        }
    }

    /// A poll has looked at the sockets. Of threads that do at the same time only one may count.
    #[inline]
    pub fn looked(&self) {
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often polls have, about.
    #[inline]
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// How often the program has polled, and looked at the sockets.
    pub fn polls(&self) -> Polls {
        Polls { polls: self.policy.lease.polls(), socket_looks: self.looks() }
    }

    /// Readable when the bell was struck.
    pub fn bell_fd(&self) -> RawFd {
        self.bell.signal().raw()
    }

    /// How often this thread of the program has polled, about.
    #[inline]
    pub fn polls_here(&self) -> u64 {
        self.policy.lease.polls_here()
    }

    /// Whether a polling program or the engine looks for room again and again, so that the peer need not be asked to
    /// tell.
    #[inline]
    pub fn looks_for_room(&self) -> bool {
        self.is_leased() || self.spins.load(Ordering::Relaxed)
    }

    /// Whether the engine spins after it was rung for, and will soon drive the queue pairs that are ready.
    #[inline]
    pub fn spins(&self) -> bool {
        self.spins.load(Ordering::Relaxed)
    }

    /// Whether the program polls, and so drives.
    #[inline]
    pub fn is_leased(&self) -> bool {
        self.policy.lease.is_held()
    }

    /// A completion queue was armed: the program may go to sleep without telling the engine.
    pub fn armed(&self) {
        self.policy.lease.forbid();
        self.expect();
        self.bell.ring_if_leased();
    }

    /// A thread of the program begins to wait for what this process has asked for.
    fn expect(&self) {
        if let Some(doorbell) = self.doorbell.get() {
            doorbell.expect();
        }
    }

    /// Whether the program waits without looking: a completion queue is armed or observed, or a caller blocks.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.policy.lease.is_forbidden() || self.observed.load(Ordering::SeqCst) > 0
    }

    /// A completion queue is observed from now on, until [`unobserved`](Engine::unobserved).
    pub fn observed(&self) {
        self.observed.fetch_add(1, Ordering::SeqCst);
        self.expect();
        // What came before that, and was not rung for, is looked for now.
        self.bell.ring_even_if_leased();
    }

    /// It is no longer.
    pub fn unobserved(&self) {
        self.observed.fetch_sub(1, Ordering::SeqCst);
    }

    /// It is no longer armed.
    pub fn disarmed(&self) {
        self.policy.lease.allow();
    }

    /// A deadline earlier than all others was set.
    pub fn deadline_moved(&self, deadline: Time) {
        // The fence that pairs with the sleeper's is in `ring`; this look only spares the ring. It cannot see a sleeper
        // that says until when after our deadline was published: that one sees the deadline.
        crate::progress::sync::fence(Ordering::SeqCst);
        if self.asleep_until.load(Ordering::Relaxed) > deadline.as_nanos() {
            self.bell.ring();
        }
    }

    /// Wakes the engine whatever it does.
    pub fn ring(&self) {
        self.bell.ring_even_if_leased();
    }

    /// The process ends, since that moment: has the engine send what waits, and waits for that, for
    /// [`EXIT_FLUSH_MAX`] at most. Takes no lock and no memory, so a signal handler may end the process too.
    pub fn flush_before_exit(&self, since: Instant) {
        self.ask_before_exit(Exit::Flush, since, EXIT_FLUSH_MAX);
    }

    /// The process ends, and the program calls nothing any more: has the engine say what was found, and waits for that
    /// in the same way.
    pub fn summarize_before_exit(&self, since: Instant) {
        self.ask_before_exit(Exit::Summarize, since, EXIT_SUMMARY_MAX);
    }

    fn ask_before_exit(&self, what: Exit, since: Instant, limit: Duration) {
        self.exit.store(what as u8, Ordering::SeqCst);
        self.ring();
        while self.exit.load(Ordering::SeqCst) == what as u8 && since.elapsed() < limit {
            std::thread::sleep(EXIT_LOOK_INTERVAL);
        }
    }

    /// Whether the process ends and the engine has not said yet what was found.
    #[inline]
    pub fn wants_summary(&self) -> bool {
        self.exit.load(Ordering::SeqCst) == Exit::Summarize as u8
    }

    /// Whether the process ends and waits for the engine.
    #[inline]
    pub fn is_asked_at_exit(&self) -> bool {
        self.wants_flush() || self.wants_summary()
    }

    /// The engine has.
    pub fn summarized(&self) {
        self.exit.store(Exit::Summarized as u8, Ordering::SeqCst);
    }

    /// Whether the process ends and the engine has not sent yet what waits.
    #[inline]
    pub fn wants_flush(&self) -> bool {
        self.exit.load(Ordering::SeqCst) == Exit::Flush as u8
    }

    /// The engine has. The thread that asked may have stopped waiting, and ask for something else by now.
    pub fn flushed(&self) {
        let (from, to) = (Exit::Flush as u8, Exit::Flushed as u8);
        let _ = self.exit.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// A thread of the program begins to wait inside a call.
    pub fn enter_wait(&self) {
        self.policy.lease.forbid();
        self.waiters.fetch_add(1, Ordering::SeqCst);
    }

    /// It has what it waited for. The last to leave hands the driving back.
    pub fn leave_wait(&self) {
        self.policy.lease.allow();
        // An engine that sleeps for everything has nothing to take over.
        if self.waiters.fetch_sub(1, Ordering::SeqCst) == 1 && self.relieved.load(Ordering::SeqCst) {
            self.bell.ring_even_if_leased();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::completion_queue::{CompletionQueue, Notify};

    #[test]
    fn armed_and_observed_queues_are_waited_for_as_long_as_they_are_there() {
        let engine = Arc::new(Engine::new().unwrap());
        let queue = |id| CompletionQueue::new(id, 8, None).unwrap().served_by(&engine);
        let (armed, observed) = (queue(1), queue(2));
        assert!(!engine.is_waited_for());
        armed.arm(Notify::Any);
        assert!(engine.is_waited_for());
        assert!(observed.observe(|| ()) && !observed.observe(|| ()), "there can be one");
        drop(armed);
        assert!(engine.is_waited_for());
        drop(observed);
        assert!(!engine.is_waited_for());
    }
}
