//! When a polling thread offers its processor to others. Two programs that poll on one processor, each for what the
//! other does, would hand it over once per time slice of the scheduler, which is thousands of messages. So a thread
//! whose polls have found nothing for a while yields: often where another thread took the processor the last time,
//! seldom where none did. While messages come it costs nothing.
//!
//! The policy only decides: the polling thread yields, and says how long that took.

use crate::tuning::{EMPTY_POLLS_PER_YIELD, EMPTY_POLLS_PER_YIELD_CROWDED, YIELD_WAS_TAKEN, nanos};
use latch::{Apart, STRIPE_COUNT};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// See the module. Threads count for themselves; two threads that share a count only yield more often.
#[derive(Debug, Default)]
pub(crate) struct YieldPolicy {
    /// Polls in a row that found nothing.
    empty_polls: [Apart<AtomicU32>; STRIPE_COUNT],
    /// Another thread took the processor when it was last offered.
    crowded: AtomicBool,
}

impl YieldPolicy {
    #[inline]
    fn empty_polls(&self) -> &AtomicU32 {
        &self.empty_polls[latch::stripe()].0
    }

    /// A poll found something.
    #[inline]
    pub fn found_something(&self) {
        let empty_polls = self.empty_polls();
        if empty_polls.load(Ordering::Relaxed) != 0 {
            empty_polls.store(0, Ordering::Relaxed);
        }
    }

    /// A poll found nothing, and took as long as `cost` short ones. Returns whether the thread should yield now.
    #[inline]
    pub fn found_nothing(&self, cost: u32) -> bool {
        let empty_polls = self.empty_polls();
        let before = empty_polls.load(Ordering::Relaxed);
        let polls = before.wrapping_add(cost);
        empty_polls.store(polls, Ordering::Relaxed);
        let passes = |mark| before / mark != polls / mark;
        passes(EMPTY_POLLS_PER_YIELD_CROWDED) && (passes(EMPTY_POLLS_PER_YIELD) || self.crowded.load(Ordering::Relaxed))
    }

    /// The thread has yielded, and had the processor again after so many nanoseconds.
    pub fn yielded(&self, took: u64) {
        self.crowded.store(took > nanos(YIELD_WAS_TAKEN), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many empty polls; how often the thread yielded, if each time took so long.
    fn yields(policy: &YieldPolicy, polls: u32, took: u64) -> u32 {
        let mut count = 0;
        for _ in 0..polls {
            if policy.found_nothing(1) {
                policy.yielded(took);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn the_processor_is_offered_seldom_where_no_thread_wants_it_and_often_where_one_does() {
        let policy = YieldPolicy::default();
        assert_eq!(yields(&policy, 2 * EMPTY_POLLS_PER_YIELD, 100), 2);
        // The first is taken, after which it is offered at every opportunity.
        let often = EMPTY_POLLS_PER_YIELD / EMPTY_POLLS_PER_YIELD_CROWDED;
        assert_eq!(yields(&policy, 2 * EMPTY_POLLS_PER_YIELD, 2 * nanos(YIELD_WAS_TAKEN)), 1 + often);
        assert_eq!(yields(&policy, EMPTY_POLLS_PER_YIELD - 1, 100), 1, "not taken any more, and that shows at once");
    }

    #[test]
    fn a_poll_that_costs_more_counts_more() {
        let policy = YieldPolicy::default();
        let polls = (0..).take_while(|_| !policy.found_nothing(8)).count() as u32;
        assert_eq!(polls + 1, EMPTY_POLLS_PER_YIELD / 8);
    }

    #[test]
    fn a_thread_that_finds_something_now_and_then_never_yields() {
        let policy = YieldPolicy::default();
        for _ in 0..100 {
            assert_eq!(yields(&policy, EMPTY_POLLS_PER_YIELD - 1, 2 * nanos(YIELD_WAS_TAKEN)), 0);
            policy.found_something();
        }
    }
}
