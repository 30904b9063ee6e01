//! Threads that wait inside a destroying call for acknowledgements that other threads owe. Most get them in a moment; a
//! finding about one that does not is reported when it has waited long enough.

use crate::examine::Out;
use crate::finding::Finding;
use crate::map::Map;

/// How long a thread waits for acknowledgements until that is no accident.
const PATIENCE_NS: u64 = 1_000_000_000;

/// The threads, with what is to be told of each, and since when it waits.
#[derive(Default, Debug)]
pub(super) struct WaitingDestroyers {
    threads: Map<u32, (u64, Finding)>,
}

impl WaitingDestroyers {
    /// A thread called something: it does not wait.
    pub fn called(&mut self, thread: u32) {
        self.threads.remove(&thread);
    }

    /// A thread waits.
    pub fn waits(&mut self, thread: u32, at: u64, finding: Finding) {
        self.threads.insert(thread, (at, finding));
    }

    /// Tells of those that have waited long enough.
    pub fn tick(&mut self, now: u64, out: &mut Out<'_>) {
        let is_stuck = |at: u64| now.saturating_sub(at) >= PATIENCE_NS;
        self.threads.retain(|_, (at, finding)| {
            if is_stuck(*at) {
                out.tell(finding.clone());
            }
            !is_stuck(*at)
        });
    }
}
