//! How much work failed, for one line at the end of a program whose user did not ask why. Success counts nothing.

use ::host::standard_error::say;
use latch::Rank;
use latch::plain::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use transport::{Queue, Status};
use wire::Qpn;

/// How many queue pairs are told apart.
const PAIRS_MAX: usize = 10_000;

/// Work that failed.
#[derive(Debug)]
pub(crate) struct Failures {
    noted: bool,
    work: AtomicU64,
    pairs: Mutex<BTreeSet<Qpn>>,
}

impl Failures {
    /// None so far. They are said in the end if `noted`.
    pub fn new(noted: bool) -> Failures {
        Failures { noted, work: AtomicU64::new(0), pairs: Mutex::new(Rank::Trace, BTreeSet::new()) }
    }

    /// Work of a queue pair did not succeed. Work that is flushed counts only behind work that failed: a queue pair that
    /// is disconnected or destroyed in good order flushes, too.
    #[cold]
    pub fn count(&self, qpn: Qpn, queue: Queue, status: Status) {
        let mut pairs = self.pairs.lock();
        if status != Status::WorkRequestFlushed {
            if pairs.len() < PAIRS_MAX {
                pairs.insert(qpn);
            }
        } else if queue != Queue::Send || !pairs.contains(&qpn) {
            return;
        }
        self.work.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there is something to say.
    pub fn any(&self) -> bool {
        self.noted && self.work.load(Ordering::Relaxed) > 0
    }

    /// Says it.
    pub fn say(&self) {
        if self.any() {
            say(self.told());
        }
    }

    fn told(&self) -> String {
        let many = |count: u64, what: &str| if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") };
        let (work, pairs) = (self.work.load(Ordering::Relaxed), self.pairs.lock().len() as u64);
        format!("{} failed on {}; run again with --why", many(work, "work request"), many(pairs, "queue pair"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_count_behind_a_failure_only() {
        let failures = Failures::new(true);
        let (qpn, flushed) = (Qpn::new(7), Status::WorkRequestFlushed);
        failures.count(qpn, Queue::Send, flushed);
        assert!(!failures.any());
        failures.count(qpn, Queue::Send, Status::RetryExceeded);
        assert_eq!(failures.told(), "1 work request failed on 1 queue pair; run again with --why");
        failures.count(qpn, Queue::Send, flushed);
        failures.count(qpn, Queue::Receive, flushed);
        failures.count(Qpn::new(99), Queue::Send, Status::RemoteAccess);
        assert_eq!(failures.told(), "3 work requests failed on 2 queue pairs; run again with --why");
    }
}
