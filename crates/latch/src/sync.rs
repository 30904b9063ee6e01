//! What the protocol of [`bias`](crate::bias) is made of, in one place so that a model checker can put its own in its
//! stead.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Keeps the compiler from moving anything across; the processor may. A thread that needs more calls [`heavy_fence`].
#[inline]
pub(crate) fn light_fence() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    // Under Miri no kernel puts a fence into the way of a thread: it is always there.
    #[cfg(miri)]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// A full fence in this thread, and in every other thread of the process, wherever that thread is in its code.
pub(crate) fn heavy_fence() {
    // SAFETY: numbers.
    if !cfg!(miri) && unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) } != 0
    {
        // It was there when the process asked for it. Whatever another thread had begun to write has long been written
        // after this.
        sleep(std::time::Duration::from_millis(1));
    }
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Waits a little for another thread; ever longer, the more often it was called before.
pub fn pause(times: u32) {
    match times {
        0..100 => std::hint::spin_loop(),
        100..1000 => std::thread::yield_now(),
        _ => sleep(std::time::Duration::from_micros(50)),
    }
}

/// Sleeps about so long, less than a second. Not by way of the C library, where a thread can be cancelled: it may have
/// other locks.
fn sleep(time: std::time::Duration) {
    if cfg!(miri) {
        return std::thread::sleep(time);
    }
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let left = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: a live time, and no place for what is left of it.
    unsafe { libc::syscall(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, &raw const time, left) };
}
