//! Completion counters: how much work of some kinds has completed on some queue pairs, for programs that want to know
//! no more than that. A queue pair without one looks for it and does nothing else.

use crate::queue_pair::Qp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transport::{Count, State};

/// Counts completions, successful ones and others. They go round after the largest number.
#[derive(Debug, Default)]
pub struct CompletionCounter {
    /// Bytes instead of work requests.
    bytes: bool,
    completed: AtomicU64,
    failed: AtomicU64,
}

impl CompletionCounter {
    /// Nothing has completed. Counts work requests, or their bytes.
    pub fn new(bytes: bool) -> CompletionCounter {
        CompletionCounter { bytes, ..CompletionCounter::default() }
    }

    /// What has completed well.
    pub fn completed(&self) -> &AtomicU64 {
        &self.completed
    }

    /// Work requests that have failed.
    pub fn failed(&self) -> &AtomicU64 {
        &self.failed
    }

    fn add(&self, count: Count) {
        let completed = if self.bytes { count.bytes } else { count.requests };
        if completed > 0 {
            self.completed.fetch_add(completed, Ordering::Release);
        }
        if count.failures > 0 {
            self.failed.fetch_add(count.failures, Ordering::Release);
        }
    }
}

/// Work that is counted, by the bits of `ibv_qp_attach_comp_cntr_op`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CountedWork {
    /// SENDs.
    Send,
    /// Receives.
    Receive,
    /// READs.
    Read,
    /// READs of the peer.
    RemoteRead,
    /// WRITEs.
    Write,
    /// WRITEs of the peer.
    RemoteWrite,
}

impl CountedWork {
    /// All of them, in order.
    pub const ALL: [CountedWork; 6] = [
        CountedWork::Send,
        CountedWork::Receive,
        CountedWork::Read,
        CountedWork::RemoteRead,
        CountedWork::Write,
        CountedWork::RemoteWrite,
    ];
}

/// Why a counter was not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachError {
    /// Work may have been posted already.
    #[error("the queue pair is past INIT")]
    State,
    /// There is one.
    #[error("another counter counts {0:?} of the queue pair")]
    Taken(CountedWork),
}

/// The counters of a queue pair.
#[derive(Debug, Default)]
pub(super) struct CounterSet([Option<Arc<CompletionCounter>>; 6]);

impl CounterSet {
    /// Counts what has completed since the last time.
    pub(super) fn collect(&self, pair: &mut transport::QueuePair) {
        let Some(counts) = pair.take_counts() else { return };
        let transport::Counts { sends, receives, reads, writes, remote_reads, remote_writes } = counts;
        let in_order = [sends, receives, reads, remote_reads, writes, remote_writes];
        for (counter, count) in self.0.iter().zip(in_order) {
            if let Some(counter) = counter {
                counter.add(count);
            }
        }
    }
}

impl Qp {
    /// Has a counter count some of its work, from now on and until it is destroyed.
    ///
    /// # Errors
    /// See [`AttachError`]; nothing is attached then.
    pub fn attach_counter(
        &self,
        work: impl Fn(CountedWork) -> bool,
        counter: &Arc<CompletionCounter>,
    ) -> Result<(), AttachError> {
        let mut inner = self.inner.lock();
        if !matches!(inner.pair.state(), State::Reset | State::Init) {
            return Err(AttachError::State);
        }
        inner.pair.count();
        let places = &mut inner.counters.get_or_insert_default().0;
        let mut wanted = CountedWork::ALL.into_iter().zip(places.iter()).filter(|(kind, _)| work(*kind));
        if let Some((kind, _)) = wanted.find(|(_, place)| place.is_some()) {
            return Err(AttachError::Taken(kind));
        }
        for (_, place) in CountedWork::ALL.into_iter().zip(places).filter(|(kind, _)| work(*kind)) {
            *place = Some(Arc::clone(counter));
        }
        Ok(())
    }
}
