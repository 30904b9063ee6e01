//! Deadlines of all queue pairs in one heap. A queue pair's deadline mostly moves into the future, with every
//! acknowledgement; so an entry is not moved with it but looked at when it comes up, and put back if it came up too
//! early.

use latch::Rank;
use latch::plain::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use transport::Time;
use wire::Qpn;

/// No deadline at all.
const NO_DEADLINE: u64 = u64::MAX;

/// What an owner of deadlines knows of its entries: the one that counts. An earlier one may have been set over it, and
/// then it comes up for nothing; if each of those were put back there would be more and more of them.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Time>);

impl Alarm {
    /// Whether an entry for `deadline` must be set, because there is none or a later one. Then it is the one that
    /// counts.
    pub fn advances_to(&mut self, deadline: Time) -> bool {
        let earlier = self.0.is_none_or(|set| deadline < set);
        if earlier {
            self.0 = Some(deadline);
        }
        earlier
    }

    /// An entry came up. Returns whether it is the one that counts; from then on there is none.
    pub fn comes_up(&mut self, entry: Time) -> bool {
        let counts = self.0 == Some(entry);
        if counts {
            self.0 = None;
        }
        counts
    }
}

#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Time, Qpn)>>>,
    /// The earliest deadline, to be read without the lock.
    next: AtomicU64,
}

impl Timers {
    pub fn new() -> Timers {
        Timers { heap: Mutex::new(Rank::Timers, BinaryHeap::new()), next: AtomicU64::new(NO_DEADLINE) }
    }

    /// Wakes `qpn` at `deadline`. Returns whether that is earlier than everything before, so that a sleeper must be
    /// told.
    pub fn set(&self, deadline: Time, qpn: Qpn) -> bool {
        let mut heap = self.heap.lock();
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
            NO_DEADLINE => None,
            nanos => Some(Time::from_nanos(nanos)),
        }
    }

    /// An entry whose time has come, and its queue pair.
    pub fn due(&self, now: Time) -> Option<(Time, Qpn)> {
        if self.next.load(Ordering::Acquire) > now.as_nanos() {
            return None;
        }
        let mut heap = self.heap.lock();
        let due = match heap.peek() {
            Some(Reverse((deadline, _))) if *deadline <= now => heap.pop().map(|Reverse(entry)| entry),
            _ => None,
        };
        let next = heap.peek().map_or(NO_DEADLINE, |Reverse((deadline, _))| deadline.as_nanos());
        self.next.store(next, Ordering::Release);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_that_come_nearer_and_go_leave_one_entry() {
        let (timers, mut alarm, qpn) = (Timers::new(), Alarm::default(), Qpn::new(7));
        let set = |timers: &Timers, alarm: &mut Alarm, nanos| {
            if alarm.advances_to(Time::from_nanos(nanos)) {
                timers.set(Time::from_nanos(nanos), qpn);
            }
        };
        let mut counted = 0;
        for round in 0..1000 {
            let start = round * 100;
            set(&timers, &mut alarm, start + 90);
            set(&timers, &mut alarm, start + 20);
            while let Some((entry, _)) = timers.due(Time::from_nanos(start + 50)) {
                if alarm.comes_up(entry) {
                    counted += 1;
                    set(&timers, &mut alarm, start + 90);
                }
            }
        }
        // A deadline that is not reached before another has come up is not set at all.
        assert_eq!(counted, 1000);
        assert!(timers.heap.lock().len() <= 2, "{:?}", timers.heap.lock());
    }
}
