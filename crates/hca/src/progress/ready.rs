//! Queue pairs that may go on: a window that they share with others has room for them.

use latch::Rank;
use latch::plain::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::Qpn;

/// Queue pairs that the next thread to drive must drive.
#[derive(Debug)]
pub(crate) struct ReadyQueue {
    queue: Mutex<VecDeque<Qpn>>,
    /// How many, to see without the lock that there are none.
    count: AtomicU32,
}

impl Default for ReadyQueue {
    fn default() -> ReadyQueue {
        ReadyQueue { queue: Mutex::new(Rank::Ready, VecDeque::new()), count: AtomicU32::new(0) }
    }
}

impl ReadyQueue {
    pub(crate) fn add(&self, qpn: Qpn) {
        let mut queue = self.queue.lock();
        queue.push_back(qpn);
        self.count.store(queue.len() as u32, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn next(&self) -> Option<Qpn> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue.lock();
        let next = queue.pop_front();
        self.count.store(queue.len() as u32, Ordering::Release);
        next
    }
}
