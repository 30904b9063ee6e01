//! The counting that keeps an object alive until its program has acknowledged every event it was handed.

use crate::registry::lock;
use std::sync::{Condvar, Mutex};

/// Events handed out and acknowledged, of one object.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    handed_out: u32,
    acknowledged: u32,
    /// Threads that wait: without any there is none to wake, which is a system call.
    waiters: u32,
}

impl Acknowledgements {
    /// An event is being handed out.
    pub fn hand_out(&self) {
        let mut counts = lock(&self.counts);
        counts.handed_out = counts.handed_out.wrapping_add(1);
    }

    /// The program is done with `count` of them.
    pub fn acknowledge(&self, count: u32) {
        self.acknowledge_with(count, |_| {});
    }

    /// The program is done with `count` of them. `publish` is told how many it has acknowledged in all. It runs under
    /// the lock: a thread that waits in order to destroy the object goes on only after it.
    pub fn acknowledge_with(&self, count: u32, publish: impl FnOnce(u32)) {
        let mut counts = lock(&self.counts);
        counts.acknowledged = counts.acknowledged.wrapping_add(count);
        publish(counts.acknowledged);
        if counts.waiters > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until every event that was handed out so far is acknowledged. `waits` is told before how many are not, if
    /// any.
    pub fn wait(&self, waits: impl FnOnce(u32)) {
        let mut counts = lock(&self.counts);
        let until = counts.handed_out;
        let missing = until.wrapping_sub(counts.acknowledged);
        if (missing as i32) > 0 {
            drop(counts);
            waits(missing);
            counts = lock(&self.counts);
        }
        counts.waiters += 1;
        while (until.wrapping_sub(counts.acknowledged) as i32) > 0 {
            counts = self.changed.wait(counts).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        counts.waiters -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    #[test]
    fn a_waiter_goes_on_after_the_count_is_published() {
        for _ in 0..200 {
            let (events, published) = (Acknowledgements::default(), AtomicU32::new(0));
            events.hand_out();
            thread::scope(|scope| {
                scope.spawn(|| events.acknowledge_with(1, |total| published.store(total, Ordering::Relaxed)));
                events.wait(|_| {});
                assert_eq!(published.load(Ordering::Relaxed), 1);
            });
        }
    }
}
