//! What one who polls owes to others: a processor, now and then. Two programs that poll on one processor, each for what the other does, would hand over once per
//! time slice of the scheduler, which is thousands of messages. So whoever has polled in vain for a while offers its processor to others. Where somebody takes
//! it, it is offered often; where nobody does, it costs a system call every ten microseconds or so of waiting, and nothing while messages come.

use latch::{Apart, STRIPES};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use transport::Time;

/// Polls in vain before the processor is offered: where nobody took it the last time, and where somebody did.
const SELDOM: u32 = 256;
const OFTEN: u32 = 32;

/// An offer that takes longer than this, in nanoseconds, was taken.
const TAKEN: u64 = 3_000;

/// Threads count for themselves; where two share a count there is no harm in that.
#[derive(Debug, Default)]
pub(crate) struct Manners {
    /// Polls in a row that found nothing.
    in_vain: [Apart<AtomicU32>; STRIPES],
    /// The last offer was taken.
    crowded: AtomicBool,
}

impl Manners {
    #[inline]
    fn in_vain(&self) -> &AtomicU32 {
        &self.in_vain[latch::stripe() % STRIPES].0
    }

    /// A poll found something.
    #[inline]
    pub fn found_something(&self) {
        let in_vain = self.in_vain();
        if in_vain.load(Ordering::Relaxed) != 0 {
            in_vain.store(0, Ordering::Relaxed);
        }
    }

    /// A poll found nothing. Offers the processor if it is time to.
    #[inline]
    pub fn found_nothing(&self, now: impl Fn() -> Time) {
        let in_vain = self.in_vain();
        let polls = in_vain.load(Ordering::Relaxed).wrapping_add(1);
        in_vain.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(OFTEN) && (polls.is_multiple_of(SELDOM) || self.crowded.load(Ordering::Relaxed)) {
            self.offer(now);
        }
    }

    #[cold]
    fn offer(&self, now: impl Fn() -> Time) {
        let before = now();
        thread::yield_now();
        let taken = now().since(before) > TAKEN;
        self.crowded.store(taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Polls in vain so often; how often the processor was offered, if every offer takes so long.
    fn offers(manners: &Manners, polls: u32, nanos: u64) -> u32 {
        let (asked, time) = (Cell::new(0), Cell::new(0));
        for _ in 0..polls {
            manners.found_nothing(|| {
                asked.set(asked.get() + 1);
                time.set(time.get() + nanos);
                Time::from_nanos(time.get())
            });
        }
        asked.get() / 2
    }

    #[test]
    fn the_processor_is_offered_seldom_where_nobody_wants_it_and_often_where_somebody_does() {
        let manners = Manners::default();
        assert_eq!(offers(&manners, 2 * SELDOM, 100), 2);
        // The first is taken, after which it is offered at every opportunity.
        assert_eq!(offers(&manners, 2 * SELDOM, 2 * TAKEN), 1 + SELDOM / OFTEN);
        assert_eq!(offers(&manners, SELDOM - 1, 100), 1, "nobody takes it any more, and it is found out at once");
    }

    #[test]
    fn one_who_finds_something_now_and_then_offers_nothing() {
        let manners = Manners::default();
        for _ in 0..100 {
            assert_eq!(offers(&manners, SELDOM - 1, 2 * TAKEN), 0);
            manners.found_something();
        }
    }
}
