//! What the protocol of [`bias`](crate::bias) is made of, in one place so that a model checker can put its own in its stead.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Keeps the compiler from moving anything across; the processor may. Who needs more asks for it with [`heavy_fence`].
#[inline]
pub(crate) fn light_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// A full fence in this thread, and, for whoever is in the middle of something, in every other thread of the process.
pub(crate) fn heavy_fence() {
    // SAFETY: numbers.
    if unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) } != 0 {
        // It was there when the process asked for it. Whatever another thread had begun to write has long been written after this.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Waits a little for another thread; ever longer.
pub(crate) fn pause(times: u32) {
    match times {
        0..100 => std::hint::spin_loop(),
        100..1000 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}
