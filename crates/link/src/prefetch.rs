//! Asking for memory before it is needed, so that a program waits once for all of it instead of once for every cache
//! line.

use std::ops::Range;

/// What comes at once.
const CACHE_LINE_BYTES: usize = 64;

/// Begins to bring those bytes of an object, as far as it has so many. Where the processor cannot be asked, nothing
/// happens.
#[inline]
pub fn prefetch<T>(object: &T, bytes: Range<usize>) {
    let first = std::ptr::from_ref(object).cast::<i8>();
    let mut at = bytes.start;
    while at < bytes.end.min(size_of::<T>()) {
        line(first.wrapping_add(at));
        at += CACHE_LINE_BYTES;
    }
}

/// Begins to bring the cache line at an address, whatever is there.
#[inline]
pub(crate) fn line(at: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing and faults nowhere.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
