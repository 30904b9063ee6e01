//! The library's memory is the C library's, as the program's is. MemorySanitizer takes what is new for uninitialised
//! until instrumented code has stored there; what this library stores it does not see, so all of it counts as filled
//! in. And the settings that runtimes of sanitizers ask a preloaded library for.

use latch::sanitizer::initialised;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_char;

struct ToldAllocator;

#[global_allocator]
static ALLOCATOR: ToldAllocator = ToldAllocator;

// SAFETY: all is the system's.
unsafe impl GlobalAlloc for ToldAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same contract.
        let memory = unsafe { System.alloc(layout) };
        initialised(memory.cast(), layout.size());
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the same contract.
        let memory = unsafe { System.realloc(memory, layout, size) };
        initialised(memory.cast(), size);
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the same contract.
        unsafe { System.dealloc(memory, layout) };
    }
}

/// What AddressSanitizer's runtime asks for its settings, unless the program answers itself: it refuses to start where
/// another library comes before it, as one that is preloaded does, though it needs nothing of that order.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// What ThreadSanitizer's runtime asks. It ends a child that starts a thread, if its parent had several when it forked;
/// with a NIC every program has.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_options() -> *const c_char {
    c"die_after_fork=0".as_ptr()
}
