//! Locks for a thread that looks on: it never waits in a lock's line, but tries until it has tried often enough.

use crate::tuning::{REPORT_LOCK_PAUSE, REPORT_LOCK_TRIES};
use latch::{Guard, Mutex};

/// How often a report may still try for locks that threads of the program hold, all of them together.
#[derive(Debug)]
pub(crate) struct LockTries(u32);

impl Default for LockTries {
    fn default() -> LockTries {
        LockTries(REPORT_LOCK_TRIES)
    }
}

impl LockTries {
    /// The lock, if it was free at some moment.
    pub fn lock<'a, T>(&mut self, mutex: &'a Mutex<T>) -> Option<Guard<'a, T>> {
        loop {
            let taken = mutex.try_lock();
            if taken.is_some() || self.0 == 0 {
                return taken;
            }
            self.0 -= 1;
            std::thread::sleep(REPORT_LOCK_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latch::Rank;

    #[test]
    fn a_lock_that_is_held_is_given_up_after_so_many_tries_in_all() {
        let [held, free] = [1, 2].map(|value| Mutex::new(Rank::QueuePair, value));
        let guard = held.lock();
        let mut tries = LockTries::default();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(tries.lock(&held).is_none() && tries.0 == 0);
                assert_eq!(tries.lock(&free).map(|value| *value), Some(2));
            });
        });
        drop(guard);
        assert_eq!(tries.lock(&held).map(|value| *value), Some(1));
    }
}
