//! Links, in a process like any other. Apart from these are programs that enter a network namespace before there is a
//! second thread.
//!
//! - `staging`: packets of several trains that are put together
//! - `direct_model`: how access to memory ends, under a model checker
//! - `local_model`: the queue inside the process under a model checker
//! - `word_model`: the word that says "ring for me" under a model checker

mod direct_model;
mod local_model;
mod staging;
mod word_model;

/// The model checker's locks and atomics, where both sources look for theirs.
mod sync {
    pub(crate) use loom::sync::Mutex;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// The checker knows no fence that one process puts into the way of another. Both of such a pair are full ones here,
    /// which is what the kernel promises of the two together.
    pub(crate) fn light_fence() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy_fence() {
        fence(Ordering::SeqCst);
    }

    /// The checker's threads are one thread of the system, which has no order to keep.
    pub(crate) fn in_order<G>(_: latch::Rank, take: impl FnOnce() -> G) -> G {
        take()
    }
}
