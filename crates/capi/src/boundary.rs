//! The line between C and Rust: results become return values and errno, and a panic becomes `EIO`, a line on standard error and an event, while
//! the program goes on.

use crate::context;
use crate::errno::Errno;
use crate::log;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// 0, or an errno: the convention of most calls.
pub(crate) fn status(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match caught(call, f) {
        Ok(()) => 0,
        Err(error) => report(error),
    }
}

/// An object, or null with errno.
pub(crate) fn object<T>(call: &'static str, f: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    caught(call, f).unwrap_or_else(|error| {
        report(error);
        null_mut()
    })
}

/// A number, or minus one with errno.
pub(crate) fn number(call: &'static str, f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    caught(call, f).unwrap_or_else(|error| {
        report(error);
        -1
    })
}

/// A value that cannot fail; `otherwise` after a panic.
pub(crate) fn value<T>(call: &'static str, otherwise: T, f: impl FnOnce() -> T) -> T {
    caught(call, || Ok(f())).unwrap_or(otherwise)
}

/// Something of which C never hears whether it worked.
pub(crate) fn quietly(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) {
    let _ = caught(call, f);
}

/// Sets errno and returns it.
pub(crate) fn report(error: Errno) -> c_int {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = error.0 };
    error.0
}

/// Names a call that is to panic: how a program copes with an error of ours can be tried.
const PANIC_IN: &str = "UBIVERBS_PANIC_IN";

fn panics_in() -> Option<&'static str> {
    static NAME: OnceLock<Option<String>> = OnceLock::new();
    NAME.get_or_init(|| std::env::var(PANIC_IN).ok()).as_deref()
}

/// Whether nobody wants to read of failures, nor to try one: then calls, of which there may be millions in a second, look at nothing more.
#[inline]
fn is_plain() -> bool {
    const UNKNOWN: u8 = 0;
    const PLAIN: u8 = 1;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let plain = !log::is_on() && panics_in().is_none();
            KNOWN.store(if plain { PLAIN } else { PLAIN + 1 }, Ordering::Relaxed);
            plain
        }
        known => known == PLAIN,
    }
}

#[inline]
fn caught<T>(call: &'static str, f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let plain = is_plain();
    let f = || {
        if !plain {
            prepare(call);
        }
        f()
    };
    // What a panic leaves behind stands behind locks that are valid at every step.
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(said(call, error)),
        Err(_) => Err(said(call, panicked(call))),
    }
}

/// Forgets why an earlier call failed, and panics if that is asked for.
#[cold]
fn prepare(call: &'static str) {
    log::forget();
    assert!(panics_in() != Some(call), "{PANIC_IN} asks for it");
}

#[cold]
fn panicked(call: &'static str) -> Errno {
    // The panic itself has been printed.
    log::say(format_args!("an error inside the library; {call} fails with EIO"));
    let _ = catch_unwind(context::tell_all_of_a_panic);
    Errno(libc::EIO)
}

/// Notes a failure, for those who want to read of it. That a queue or a table entry is empty, or would block, is none.
#[cold]
fn said(call: &'static str, Errno(code): Errno) -> Errno {
    if log::is_on() && !matches!(code, libc::ENOENT | libc::EAGAIN | libc::ENODATA) {
        log::failure(call, code);
    }
    Errno(code)
}
