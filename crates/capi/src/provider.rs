//! What drivers of other hardware find here: enough to be loaded beside this library (programs link them), and nothing
//! that would let them run. Also the entry points of the first release of verbs, whose structures no program of today
//! uses. The linker gives these functions the many names they stand for (see `link/`).

use crate::boundary::report;
use crate::errno::Errno;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// For calls that answer 0 or an errno.
#[unsafe(no_mangle)]
pub extern "C" fn ubiverbs_unsupported() -> c_int {
    report(Errno::UNSUPPORTED)
}

/// For calls that answer an object.
#[unsafe(no_mangle)]
pub extern "C" fn ubiverbs_no_object() -> *mut c_void {
    report(Errno::UNSUPPORTED);
    null_mut()
}

/// For calls that answer nothing: a driver registers itself and is not heard.
#[unsafe(no_mangle)]
pub extern "C" fn ubiverbs_nothing() {}
