//! The beginning: librspreload.so learns where the C library's functions are, and where our own code is.

use super::{processes, real};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The start of a table of librspreload.so: what calls from our own code are told by, and pairs of names and functions,
/// up to a name that is null. `xtask/src/preload.rs` has the rest.
#[repr(C)]
pub struct Table {
    own_start: AtomicUsize,
    own_length: AtomicUsize,
    functions: [Entry; 0],
}

#[repr(C)]
struct Entry {
    name: *const c_char,
    function: AtomicPtr<c_void>,
}

/// Fills the table; several threads may, with the same.
///
/// # Safety
/// It is the table of librspreload.so.
#[unsafe(export_name = "ubiverbs_rspreload_begin")]
pub unsafe extern "C" fn begin(table: *const Table) -> c_int {
    // SAFETY: the location is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the caller says so; its entries end with a null name.
    unsafe {
        let (start, length) = own_code();
        (*table).own_start.store(start, Ordering::Relaxed);
        (*table).own_length.store(length, Ordering::Relaxed);
        let mut entry = (&raw const (*table).functions).cast::<Entry>();
        while !(*entry).name.is_null() {
            let found = real::find(CStr::from_ptr((*entry).name));
            (*entry).function.store(found, Ordering::Release);
            entry = entry.add(1);
        }
    }
    processes::prepare();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    0
}

/// Where the code of the library that has this function is: its address and length.
fn own_code() -> (usize, usize) {
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: libc::size_t, found: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker passes a description of a loaded object, and what we gave it.
        unsafe {
            let headers = std::slice::from_raw_parts((*object).dlpi_phdr, usize::from((*object).dlpi_phnum));
            for header in headers {
                let start = (*object).dlpi_addr as usize + header.p_vaddr as usize;
                let length = header.p_memsz as usize;
                let executable = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
                if executable && (begin as *const () as usize).wrapping_sub(start) < length {
                    *found.cast::<(usize, usize)>() = (start, length);
                    return 1;
                }
            }
        }
        0
    }
    let mut found = (0, 0);
    // SAFETY: the function gets the place for its answer, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}
