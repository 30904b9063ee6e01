//! The environment, as far as a library may believe it. A program that has more rights than the user who started it
//! (set-uid, set-gid, capabilities of a file: the kernel says so in `AT_SECURE`) must not write files or do otherwise
//! than it would, because that user named a variable: for it no variable is set, and nothing is said about it.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The value of a variable, if it is set and may be believed. Takes no lock, so a forked child may ask.
pub fn variable(name: &str) -> Option<OsString> {
    // SAFETY: a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    let name = CString::new(name).ok()?;
    // SAFETY: a string; the answer is null or one, and is copied at once. A program that changes its environment while
    // threads run must see to that itself.
    unsafe {
        let found = libc::getenv(name.as_ptr());
        (!found.is_null()).then(|| OsStr::from_bytes(CStr::from_ptr(found).to_bytes()).to_owned())
    }
}
