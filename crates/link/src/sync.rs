//! The primitives of the queue inside the process and of the word that says "ring for me", in one place so that a model
//! checker can put its own in their stead.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Keeps the compiler from moving anything across; the processor may, unless another process puts a fence into its way
/// ([`heavy_fence`]).
#[inline]
pub(crate) fn light_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    // Miri has no such kernel: the fence is always there.
    #[cfg(miri)]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// A full fence in this thread, and in every thread of the processes that are [registered](register_for_fences),
/// wherever it is in its code. A kernel that has offered it does not refuse it.
#[cold]
pub(crate) fn heavy_fence() {
    // SAFETY: numbers.
    if !cfg!(miri) && unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) } != 0 {
        // What another thread had begun to write has long been written after this.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Whether fences of other processes reach this one.
static REGISTERED: latch::PerProcess<bool> = latch::PerProcess::new();

/// Lets the fences of other processes reach this one, and returns whether they do. The first call may take 20 ms, so it
/// is the engine's.
pub(crate) fn register_for_fences() -> bool {
    // SAFETY: numbers.
    let register =
        || unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0 };
    *REGISTERED.get_or_make(|| !cfg!(miri) && register())
}

/// Whether [`register_for_fences`] was called, and they do.
#[inline]
pub(crate) fn is_registered_for_fences() -> bool {
    REGISTERED.get().is_some_and(|registered| *registered)
}

/// Takes a lock in its turn.
pub(crate) fn in_order<G>(rank: latch::Rank, take: impl FnOnce() -> G) -> latch::plain::Guard<G> {
    latch::plain::Guard::new(rank, take)
}
