//! Deadlines of all queue pairs in one heap. A queue pair's deadline mostly moves into the future, with every acknowledgement; so an entry is not
//! moved with it but looked at when it comes up, and put back if it came up too early.

use crate::nic::lock;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use transport::Time;
use wire::Qpn;

/// No deadline at all.
const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Time, Qpn)>>>,
    /// The earliest deadline, to be read without the lock.
    next: AtomicU64,
}

impl Timers {
    pub fn new() -> Timers {
        Timers { heap: Mutex::new(BinaryHeap::new()), next: AtomicU64::new(NEVER) }
    }

    /// Wakes `qpn` at `deadline`. Answers whether that is earlier than everything before, so that a sleeper must be told.
    pub fn set(&self, deadline: Time, qpn: Qpn) -> bool {
        let mut heap = lock(&self.heap);
        heap.push(Reverse((deadline, qpn)));
        let earliest = deadline.as_nanos() < self.next.load(Ordering::Relaxed);
        if earliest {
            self.next.store(deadline.as_nanos(), Ordering::Release);
        }
        earliest
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<Time> {
        match self.next.load(Ordering::Acquire) {
            NEVER => None,
            nanos => Some(Time::from_nanos(nanos)),
        }
    }

    /// A queue pair whose deadline has come.
    pub fn due(&self, now: Time) -> Option<Qpn> {
        if self.next.load(Ordering::Acquire) > now.as_nanos() {
            return None;
        }
        let mut heap = lock(&self.heap);
        let due = match heap.peek() {
            Some(Reverse((deadline, _))) if *deadline <= now => heap.pop().map(|Reverse((_, qpn))| qpn),
            _ => None,
        };
        let next = heap.peek().map_or(NEVER, |Reverse((deadline, _))| deadline.as_nanos());
        self.next.store(next, Ordering::Release);
        due
    }
}
