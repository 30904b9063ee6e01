//! What one who polls owes to others: a processor, now and then. Two programs that poll on one processor, each for what the other does, would hand over once per
//! time slice of the scheduler, which is thousands of messages. So whoever has polled in vain for a while offers its processor to others. Where somebody takes
//! it, it is offered often; where nobody does, it costs a system call every ten microseconds or so of waiting, and nothing while messages come.
//!
//! The scheduler may not give it to one who has just had more than its share, and then looks again only milliseconds later. Where processors are few, one
//! who has waited long for what others owe it sleeps for a moment instead: they may be waiting for just this processor.

use latch::{Apart, STRIPES};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use transport::Time;

/// Polls in vain before the processor is offered: where nobody took it the last time, and where somebody did.
const SELDOM: u32 = 256;
const OFTEN: u32 = 32;

/// How long one has been offering it, in nanoseconds, when it is not only offered.
const LONG: u64 = 100_000;

/// How long one sleeps then; the system makes some fifty times as much of it.
const MOMENT: Duration = Duration::from_micros(1);

/// An offer that takes longer than this, in nanoseconds, was taken.
const TAKEN: u64 = 3_000;

/// How many short polls one takes that looks at sockets.
pub(crate) const WITH_SOCKETS: u32 = 8;

/// Threads count for themselves; where two share a count there is no harm in that.
#[derive(Debug, Default)]
pub(crate) struct Manners {
    /// Polls in a row that found nothing.
    in_vain: [Apart<AtomicU32>; STRIPES],
    /// The last offer was taken.
    crowded: AtomicBool,
    /// When the first offer was made since something was found.
    since: AtomicU64,
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

    /// A poll found nothing, and took as long as so many short ones. Offers the processor if it is time to. `is_owed` tells whether others owe something that may wait for the processor.
    #[inline]
    pub fn found_nothing(&self, took: u32, now: impl Fn() -> Time, is_owed: impl FnOnce() -> bool) {
        let in_vain = self.in_vain();
        let before = in_vain.load(Ordering::Relaxed);
        let polls = before.wrapping_add(took);
        in_vain.store(polls, Ordering::Relaxed);
        let passes = |mark| before / mark != polls / mark;
        if passes(OFTEN) && (passes(SELDOM) || self.crowded.load(Ordering::Relaxed)) {
            self.offer(now, before < SELDOM, is_owed);
        }
    }

    #[cold]
    fn offer(&self, now: impl Fn() -> Time, first: bool, is_owed: impl FnOnce() -> bool) {
        let before = now();
        if first {
            self.since.store(before.as_nanos(), Ordering::Relaxed);
        } else if before.as_nanos().saturating_sub(self.since.load(Ordering::Relaxed)) >= LONG && is_owed() {
            thread::sleep(MOMENT);
            return;
        }
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
            let now = || {
                asked.set(asked.get() + 1);
                time.set(time.get() + nanos);
                Time::from_nanos(time.get())
            };
            manners.found_nothing(1, now, || false);
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
    fn one_who_is_owed_something_for_long_leaves_the_processor() {
        let (manners, asked, looks) = (Manners::default(), Cell::new(0), Cell::new(0));
        let poll = |took, nanos| {
            let now = || {
                looks.set(looks.get() + 1);
                Time::from_nanos(nanos)
            };
            let owed = || {
                asked.set(asked.get() + 1);
                true
            };
            manners.found_nothing(took, now, owed);
        };
        (0..SELDOM).for_each(|_| poll(1, 1000));
        (0..SELDOM).for_each(|_| poll(1, 1000 + LONG - 1));
        assert_eq!((asked.get(), looks.get()), (0, 4), "offered twice");
        (0..SELDOM / WITH_SOCKETS).for_each(|_| poll(WITH_SOCKETS, 1000 + LONG));
        assert_eq!((asked.get(), looks.get()), (1, 5), "left");
        manners.found_something();
        (0..SELDOM).for_each(|_| poll(1, 5 * LONG));
        assert_eq!(asked.get(), 1, "it has not waited long");
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
