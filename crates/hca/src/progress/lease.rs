//! The lease: a program that polls again and again drives the NIC better than the engine could, so the engine leaves it
//! alone. A program earns the lease by polls that found nothing, and keeps it by polling on; arming a completion queue
//! or blocking in a call ends it at once. A program that stops polling while something waits for it (one that spins on
//! memory, say) loses it at the engine's next look, and if it does so again and again it has to poll twice as long for
//! the next one.

use crate::progress::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::tuning::{LEASE_POLLS_MAX, LEASE_POLLS_MAX_SPARE, LEASE_POLLS_MIN};
use latch::{Apart, STRIPE_COUNT};

/// See the module.
#[derive(Debug)]
pub(crate) struct Lease {
    /// It is held, unless something is against it.
    held: AtomicBool,
    /// Polls that drove, since the last time the lease was lost: threads count for themselves.
    polls: [Apart<AtomicU64>; STRIPE_COUNT],
    /// How many earn it, and the most that are asked for.
    needed: AtomicU64,
    most: u64,
    /// Armed completion queues and blocked calls: while there are any there is no lease.
    against: AtomicU32,
}

impl Lease {
    /// No thread has it. `room` if the engine has a processor of its own.
    pub fn new(room: bool) -> Lease {
        Lease {
            most: if room { LEASE_POLLS_MAX_SPARE } else { LEASE_POLLS_MAX },
            held: AtomicBool::new(false),
            polls: std::array::from_fn(|_| Apart(AtomicU64::new(0))),
            needed: AtomicU64::new(LEASE_POLLS_MIN),
            against: AtomicU32::new(0),
        }
    }

    /// A poll found nothing, and drove. Returns whether it has just earned the lease: then the engine must be told to
    /// keep away.
    #[inline]
    pub fn polled(&self) -> bool {
        // Threads that share a count may count as one: it is the same to the engine, and an addition that loses nothing
        // costs as much as a message.
        let count = &self.polls[latch::stripe()].0;
        let polls = count.load(Ordering::Relaxed) + 1;
        count.store(polls, Ordering::Relaxed);
        !self.held.load(Ordering::Relaxed) && self.earn(polls)
    }

    fn earn(&self, polls: u64) -> bool {
        let earned = polls >= self.needed.load(Ordering::Relaxed) && self.against.load(Ordering::Relaxed) == 0;
        if earned {
            self.held.store(true, Ordering::Relaxed);
        }
        earned
    }

    /// Whether a completion queue is armed, or a caller blocks.
    pub fn is_forbidden(&self) -> bool {
        self.against.load(Ordering::Relaxed) > 0
    }

    /// Whether the program drives.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed) && self.against.load(Ordering::Relaxed) == 0
    }

    /// How often the program has polled: the engine, if it sees the same number twice, knows that the program has
    /// stopped.
    pub fn polls(&self) -> u64 {
        self.polls_of_stripes().iter().sum()
    }

    /// How often the threads of each stripe have.
    pub fn polls_of_stripes(&self) -> [u64; STRIPE_COUNT] {
        std::array::from_fn(|stripe| self.polls[stripe].0.load(Ordering::Relaxed))
    }

    /// How often this thread has, about.
    #[inline]
    pub fn polls_here(&self) -> u64 {
        self.polls[latch::stripe()].0.load(Ordering::Relaxed)
    }

    fn start_anew(&self) {
        self.held.store(false, Ordering::Relaxed);
        self.polls.iter().for_each(|count| count.0.store(0, Ordering::Relaxed));
    }

    /// The engine looked and the program was at it: trust grows again.
    pub fn kept(&self) {
        let needed = self.needed.load(Ordering::Relaxed);
        self.needed.store((needed / 2).max(LEASE_POLLS_MIN), Ordering::Relaxed);
    }

    /// The engine takes over: the program does not poll any more. `again` if something had waited for it, and not for
    /// the first time lately.
    pub fn lose(&self, again: bool) {
        if again {
            let needed = self.needed.load(Ordering::Relaxed);
            self.needed.store((needed * 2).min(self.most), Ordering::Relaxed);
        }
        self.start_anew();
    }

    /// Something forbids a lease from now on: an armed completion queue, a blocked call.
    pub fn forbid(&self) {
        self.against.fetch_add(1, Ordering::SeqCst);
        self.start_anew();
    }

    /// It no longer does.
    pub fn allow(&self) {
        // A thread that counted its polls meanwhile perhaps did not see that something was against the lease.
        self.start_anew();
        self.against.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(lease: &Lease, times: u64) -> bool {
        (0..times).fold(false, |earned, _| earned | lease.polled())
    }

    #[test]
    fn polling_earns_it_once() {
        let lease = Lease::new(false);
        assert!(!poll(&lease, LEASE_POLLS_MIN - 1));
        assert!(!lease.is_held());
        assert!(lease.polled());
        assert!(lease.is_held());
        assert!(!poll(&lease, 1000), "told once");
    }

    #[test]
    fn arming_ends_it_at_once_and_it_must_be_earned_again() {
        let lease = Lease::new(false);
        poll(&lease, LEASE_POLLS_MIN);
        lease.forbid();
        assert!(!lease.is_held());
        assert!(!poll(&lease, LEASE_POLLS_MIN), "not while something is armed");
        lease.forbid();
        lease.allow();
        assert!(!lease.is_held(), "two were against it");
        lease.allow();
        assert!(!lease.is_held());
        assert!(poll(&lease, LEASE_POLLS_MIN));
    }

    #[test]
    fn who_lets_things_wait_has_to_poll_longer() {
        let lease = Lease::new(false);
        poll(&lease, LEASE_POLLS_MIN);
        lease.lose(true);
        assert!(!poll(&lease, LEASE_POLLS_MIN));
        assert!(poll(&lease, LEASE_POLLS_MIN));
        lease.kept();
        lease.lose(false);
        assert!(poll(&lease, LEASE_POLLS_MIN));
        for _ in 0..100 {
            lease.lose(true);
        }
        assert!(poll(&lease, LEASE_POLLS_MAX), "not for ever");
    }
}
