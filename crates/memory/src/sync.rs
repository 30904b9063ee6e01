//! The primitives that gate and version are made of, in one place so that a model checker can put its own in their
//! stead.

pub(crate) use latch::{HeldLock, pause};
pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Condvar, Mutex};

/// A lock is taken in its turn, until what this answers is dropped.
pub(crate) fn in_order(rank: latch::Rank) -> HeldLock {
    HeldLock::wait(rank)
}

/// After an atomic exchange: what follows is done after it in the eyes of all threads. On x86 the exchange sees to that
/// itself.
#[inline]
pub(crate) fn fence_after_exchange() {
    match cfg!(all(target_arch = "x86_64", not(miri))) {
        true => std::sync::atomic::compiler_fence(Ordering::SeqCst),
        false => fence(Ordering::SeqCst),
    }
}

/// How often to look before going to sleep: a copy of 64 KiB takes a few microseconds.
pub(crate) const SPINS_BEFORE_SLEEP: u32 = 200;
