//! The primitives of the queue inside the process and of the word that says "ring for me", in one place so that a model
//! checker can put its own in their stead.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Stores a value, before which everything is done, and after which everything sees what other threads stored before
/// a full fence of theirs. One instruction where an exchange is such a fence.
#[inline]
pub(crate) fn store_and_fence(word: &AtomicU64, value: u64) {
    if cfg!(target_arch = "x86_64") {
        word.swap(value, Ordering::SeqCst);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        word.store(value, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// Takes a lock in its turn.
pub(crate) fn in_order<G>(rank: latch::Rank, take: impl FnOnce() -> G) -> latch::plain::Guard<G> {
    latch::plain::Guard::new(rank, take)
}
