//! Stripes: what threads count or look at, each for itself, there is once per stripe, and each thread has a stripe of
//! its own as long as there are no more threads than stripes. A cache line that two threads write costs both as much as
//! a message.

use crate::{threads, token};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many stripes there are.
pub const STRIPE_COUNT: usize = 32;

/// The threads that have the stripes; 0 where none has. Most have the one that their number hashes to, which they find
/// without asking for what belongs to a thread.
static STRIPE_THREADS: [AtomicUsize; STRIPE_COUNT] = [const { AtomicUsize::new(0) }; STRIPE_COUNT];

/// Where a thread's number hashes to.
#[inline]
fn first_of(me: usize) -> usize {
    (me as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (usize::BITS - STRIPE_COUNT.ilog2())
}

/// A number below [`STRIPE_COUNT`] that is the same for a thread each time it asks, and another for each thread as long
/// as there are no more threads than stripes.
#[inline]
pub fn stripe() -> usize {
    let me = token();
    own(me).unwrap_or(first_of(me))
}

/// The stripe that this thread, whose number is `me`, has for itself.
#[inline]
pub(crate) fn own(me: usize) -> Option<usize> {
    let first = first_of(me);
    if STRIPE_THREADS[first].load(Ordering::Relaxed) == me { Some(first) } else { threads::own_stripe() }
}

/// Takes a stripe for this thread, for as long as it runs.
pub(crate) fn claim() -> Option<usize> {
    let me = token();
    let places = || (first_of(me)..first_of(me) + STRIPE_COUNT).map(|place| place % STRIPE_COUNT);
    // A thread of this number may have kept it when it ended.
    let kept = places().find(|place| STRIPE_THREADS[*place].load(Ordering::Relaxed) == me);
    kept.or_else(|| {
        places()
            .find(|place| STRIPE_THREADS[*place].compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok())
    })
}

/// The thread ends: its stripe is the next one's that begins.
pub(crate) fn give_back(stripe: usize) {
    let _unjudged = crate::sanitizer::Unjudged::begin();
    STRIPE_THREADS[stripe].store(0, Ordering::Release);
}

/// Of the parent's threads only this one is there, in a process that has just been forked.
pub(crate) fn forget() {
    let me = token();
    for thread in &STRIPE_THREADS {
        if thread.load(Ordering::Relaxed) != me {
            thread.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::thread;

    /// The stripes that so many threads have which run at the same time.
    fn stripes_of(threads: usize) -> HashSet<usize> {
        let all = Barrier::new(threads);
        let began = || {
            let (before, own) = (stripe(), own(token()));
            all.wait();
            assert_eq!((stripe(), own), (before, own.and(Some(before))), "it has changed");
            all.wait();
            before
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(began)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn threads_share_no_stripe_as_long_as_there_are_enough_and_give_theirs_back() {
        for _ in 0..4 {
            // Other threads of the test's process have a few.
            assert_eq!(stripes_of(STRIPE_COUNT / 2).len(), STRIPE_COUNT / 2);
        }
        assert!(stripes_of(2 * STRIPE_COUNT).len() > STRIPE_COUNT / 2);
    }
}
