//! The beginning: librspreload.so learns where the C library's functions are, and where our own code is.

use super::{processes, real, symbols};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The start of a table of librspreload.so: what calls from our own code are told by, and pairs of names and functions,
/// up to a name that is null. `xtask/src/preload.rs` has the rest.
#[repr(C)]
pub struct Table {
    own_start: AtomicUsize,
    own_length: AtomicUsize,
    functions: [FunctionEntry; 0],
}

#[repr(C)]
struct FunctionEntry {
    name: *const c_char,
    function: AtomicPtr<c_void>,
}

/// Fills the table; several threads may, with the same. An allocator may be among those who call first, so nothing is
/// allocated.
///
/// # Safety
/// It is the table of librspreload.so.
#[unsafe(export_name = "ubiverbs_rspreload_begin")]
pub unsafe extern "C" fn begin(table: *const Table) -> c_int {
    real::remember_table(table.cast());
    // SAFETY: it is the library's table; its entries end with a null name.
    unsafe {
        let (start, length) = symbols::code_with(begin as *const () as usize);
        (*table).own_length.store(length, Ordering::Relaxed);
        (*table).own_start.store(start, Ordering::Relaxed);
        let mut entry = (&raw const (*table).functions).cast::<FunctionEntry>();
        while !(*entry).name.is_null() {
            let found = real::find(CStr::from_ptr((*entry).name));
            (*entry).function.store(found, Ordering::Release);
            entry = entry.add(1);
        }
    }
    0
}

/// Everything is loaded: sees to forks.
#[unsafe(export_name = "ubiverbs_rspreload_prepare")]
pub extern "C" fn prepare() -> c_int {
    processes::prepare();
    0
}
