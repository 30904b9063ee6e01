//! The policy of progress: which thread drives the NIC, how long the engine sleeps and spins, when sockets are looked
//! at, when a polling thread yields, when an acknowledgement waits. It only decides: it is told what happened (polled,
//! found, slept, woke, was rung for, the time) and returns what to do. It reads no clock, makes no system call and
//! knows no thread, so its tests need none. The threads around it obey.
//!
//! **Three actors drive**: a *caller* (a thread of the program inside `post_send`, `poll_cq` or a blocking call), the
//! *engine* (one thread per process) and the *peer*, which rings the bell of a process that sleeps. The engine is in
//! one of these states; [`EnginePolicy`] moves between them.
//!
//! | state | driver | the engine sleeps on | until |
//! |---|---|---|---|
//! | *asleep* | none | its bell, the sockets, the doorbell of other processes, interfaces, the next deadline | any of them; at most [`UNHEARD_BELL_CHECK`] where rings are read |
//! | *serving* | the engine | nothing: it spins | rings were empty for [`STREAM_SPIN`] in a stream, [`SPARE_PROCESSOR_SPIN`] with spare processors, at once otherwise; or a caller drives |
//! | *leased* | a polling program | its bell and the doorbell, for [`POLLER_CHECK_MIN`] to [`POLLER_CHECK_MAX`] | the program did not poll meanwhile, a peer insists, a completion queue is armed, a caller blocks |
//! | *relieved* | a blocked caller | its bell, interfaces, the next deadline | the last blocked caller leaves |
//!
//! While it is *asleep* it leaves the sockets out if a thread waits for events of connections
//! ([`SocketWatch`](super::socket_watch::SocketWatch)).
//!
//! What the parts decide:
//!
//! | part | input | answer |
//! |---|---|---|
//! | [`Lease`] | empty polls, arming, blocking, what the engine found | whether a polling program drives |
//! | [`EnginePolicy`] | the time, polls counted, whether it was only rung for | how to sleep, whether the program still drives, how long to spin |
//! | [`SocketPolicy`] | looks, packets, the time | whether a polling thread looks at sockets, and at which |
//! | [`YieldPolicy`] | empty and fruitful polls | whether a polling thread yields |
//! | [`DelayedAck`](super::delayed_ack::DelayedAck), [`Habit`](super::piggybacked_ack::Habit) | messages, answers, empty polls | whether an acknowledgement waits, and what it goes along with |

use crate::progress::lease::Lease;
use crate::progress::socket_policy::SocketPolicy;
use crate::progress::yield_policy::YieldPolicy;
use crate::tuning::{
    BUSY_POLLS, BUSY_SOCKET_LOOKS, FULL_SCAN_EVERY, FULL_SCAN_INTERVAL, POLLER_CHECK_MAX, POLLER_CHECK_MIN,
    POLLER_CHECK_SHARE, SPARE_PROCESSOR_SPIN, SPARE_PROCESSORS, STREAM_BYTES, STREAM_SPIN, UNHEARD_BELL_CHECK, nanos,
};
use transport::Time;

/// What all threads of the process share of the policy.
#[derive(Debug)]
pub(crate) struct Policy {
    pub lease: Lease,
    pub sockets: SocketPolicy,
    pub yields: YieldPolicy,
}

impl Policy {
    /// For a machine with so many processors that this process may use.
    pub fn new(processors: usize) -> Policy {
        Policy {
            lease: Lease::new(processors >= SPARE_PROCESSORS),
            sockets: SocketPolicy::default(),
            yields: YieldPolicy::default(),
        }
    }
}

/// How far the engine looks before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scan {
    /// At everything.
    Full,
    /// At rings and timers: the sockets end the sleep by themselves.
    Rings,
}

/// How often the program has polled, and how often a poll has looked at the sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Polls {
    pub polls: u64,
    pub socket_looks: u64,
}

/// What the engine makes of a program that held the lease while it slept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The program polls all the time and sees to everything: the engine sleeps again at once.
    Busy { trusted: bool },
    /// It polls: the engine sees to what polling threads leave out.
    Polls { trusted: bool },
    /// It does not poll any more: the engine drives.
    Stopped,
    /// A peer waits for it to take what was written: the engine drives until there is nothing, and from then on.
    Insisted,
}

/// What the engine remembers from round to round.
#[derive(Debug, Default)]
pub(crate) struct EnginePolicy {
    /// There are processors to spare.
    spare: bool,
    /// The program was busy at the last look.
    busy: bool,
    /// When the program last let something wait.
    missed: Time,
    /// It had polled at the last look, too.
    polled_before: bool,
    /// It woke because trains came through rings, and for nothing else.
    only_rung_for: bool,
    /// When it last looked at everything.
    full_scan: Time,
    /// When it last went to sleep.
    slept: Time,
}

impl EnginePolicy {
    pub fn new(processors: usize) -> EnginePolicy {
        EnginePolicy { spare: processors >= SPARE_PROCESSORS, ..EnginePolicy::default() }
    }

    /// Leased: whether the engine drives once before it sleeps. Not for a program that sees to everything itself.
    pub fn drives_before_check(&self) -> bool {
        !self.busy
    }

    /// Leased: how long until the next look at the polling program.
    pub fn check_interval(&self, now: Time) -> u64 {
        (now.since(self.missed) / POLLER_CHECK_SHARE).clamp(nanos(POLLER_CHECK_MIN), nanos(POLLER_CHECK_MAX))
    }

    /// Whether the program had let something wait not long before an interval of this length: then it makes a habit of
    /// it, and has to poll longer for the next lease. One that polls for a while and then does something else need not.
    pub fn is_soon(interval: u64) -> bool {
        interval < nanos(POLLER_CHECK_MAX)
    }

    /// Leased: the engine has slept for `interval`, and compares how often the program had polled before and has now.
    pub fn check(&mut self, before: Polls, now: Polls, insisted: bool, interval: u64) -> Verdict {
        let polls = now.polls.saturating_sub(before.polls);
        let looks = now.socket_looks.wrapping_sub(before.socket_looks);
        self.busy = !insisted && (looks >= BUSY_SOCKET_LOOKS || polls >= BUSY_POLLS);
        if insisted {
            return Verdict::Insisted;
        }
        if !self.busy && now.polls == before.polls {
            return Verdict::Stopped;
        }
        // Once is not enough to trust the program more: it may have polled at the beginning, and then no more.
        let trusted = std::mem::replace(&mut self.polled_before, true) && interval == nanos(POLLER_CHECK_MAX);
        if self.busy { Verdict::Busy { trusted } } else { Verdict::Polls { trusted } }
    }

    /// The program has let something wait until now.
    pub fn missed(&mut self, now: Time) {
        self.missed = now;
    }

    /// No program polls: how far the engine looks before it sleeps for everything.
    pub fn before_sleep(&mut self, now: Time) -> Scan {
        self.slept = now;
        if self.only_rung_for && now.since(self.full_scan) < nanos(FULL_SCAN_INTERVAL) {
            return Scan::Rings;
        }
        self.full_scan = now;
        Scan::Full
    }

    /// The lease is over, or there was none.
    pub fn unleased(&mut self) {
        self.polled_before = false;
    }

    /// The engine woke; `only_rung_for` if nothing but the doorbell of other processes woke it.
    pub fn woke(&mut self, only_rung_for: bool) {
        self.only_rung_for = only_rung_for;
        self.busy = false;
    }

    /// How long the engine may sleep: until the next deadline, but where rings are read it looks for a bell that was
    /// not heard.
    pub fn sleep_limit(deadline: Option<u64>, reads_rings: bool) -> Option<u64> {
        let check = reads_rings.then_some(nanos(UNHEARD_BELL_CHECK));
        deadline.into_iter().chain(check).min()
    }

    /// The engine was rung for, has taken what it was rung for, and looks on.
    pub fn spin_after_ring(&self, now: Time, moved: u64) -> Spin {
        let soon = self.spare && now.since(self.slept) <= nanos(SPARE_PROCESSOR_SPIN);
        Spin { last: now, moved, soon, looks: 0 }
    }
}

/// An engine that looks on for a while, since the next train mostly follows soon and a wake-up costs as much as many
/// trains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    /// When something was last found.
    last: Time,
    /// How much had been moved at the beginning.
    moved: u64,
    /// It was rung for soon after it had gone to sleep, and there are processors to spare.
    soon: bool,
    looks: u32,
}

impl Spin {
    /// In the middle of driving everything.
    pub fn new(now: Time, moved: u64) -> Spin {
        Spin { last: now, moved, soon: false, looks: 0 }
    }

    /// A look found something.
    pub fn found(&mut self, now: Time) {
        self.last = now;
        self.looks += 1;
    }

    /// A look at the rings found nothing. Returns whether the next one should go beyond them, and ask
    /// [`goes_on`](Spin::goes_on).
    pub fn found_nothing(&mut self) -> bool {
        self.looks += 1;
        self.looks % FULL_SCAN_EVERY == 1
    }

    /// Whether to look on, though nothing is found, when so much has been moved.
    pub fn goes_on(&self, now: Time, moved: u64) -> bool {
        let limit = match moved.wrapping_sub(self.moved) >= STREAM_BYTES {
            _ if self.soon => nanos(SPARE_PROCESSOR_SPIN),
            true => nanos(STREAM_SPIN),
            false => return false,
        };
        now.since(self.last) <= limit
    }
}

#[cfg(test)]
mod tests;
