//! The primitives of the queue inside the process and of the word that says "ring for me", in one place so that a model
//! checker can put its own in their stead.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Takes a lock in its turn.
pub(crate) fn in_order<G>(rank: latch::Rank, take: impl FnOnce() -> G) -> latch::plain::Guard<G> {
    latch::plain::Guard::new(rank, take)
}
