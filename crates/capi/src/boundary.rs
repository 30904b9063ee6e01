//! The line between C and Rust: results become return values and errno, and a panic becomes `EIO`, a line on standard
//! error and an event, while the program goes on. No thread is cancelled inside
//! ([`cancellation`](crate::cancellation)).

use crate::errno::Errno;
use crate::{log, stack};
use hca::{Nic, Shield};
use latch::{PerProcess, sanitizer};
use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};
use trace::{Call, Text};
use wire::Qpn;

/// 0, or an errno: the convention of most calls.
pub(crate) fn status(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    caught(call, f).map_or_else(report, |()| 0)
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
    caught(call, f).unwrap_or_else(minus_one)
}

/// 0, or minus one with errno.
pub(crate) fn zero(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) -> c_int {
    number(call, || f().map(|()| 0))
}

/// A value that cannot fail; `otherwise` after a panic.
pub(crate) fn value<T>(call: &'static str, otherwise: T, f: impl FnOnce() -> T) -> T {
    caught(call, || Ok(f())).unwrap_or(otherwise)
}

/// Something of which C never hears whether it worked.
pub(crate) fn unreported(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) {
    let _ = caught(call, f);
}

/// Like [`status`](super::status), for calls that are made for every message, without the shield against cancellation,
/// which costs two locked instructions: what they call that is rare has a shield of its own.
pub(crate) mod data_path {
    use super::{Errno, NO_STACK, c_int, caught_unshielded, minus_one, report, stack};

    /// See [`status`](super::status).
    pub(crate) fn status(call: &'static str, f: impl FnOnce() -> Result<(), Errno>) -> c_int {
        caught(call, f).map_or_else(report, |()| 0)
    }

    /// See [`number`](super::number).
    pub(crate) fn number(call: &'static str, f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
        caught(call, f).unwrap_or_else(minus_one)
    }

    /// See [`value`](super::value).
    pub(crate) fn value<T>(call: &'static str, otherwise: T, f: impl FnOnce() -> T) -> T {
        caught(call, || Ok(f())).unwrap_or(otherwise)
    }

    #[inline]
    fn caught<T>(call: &'static str, f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if stack::has(stack::DATA_PATH_CALL) { caught_unshielded(call, f) } else { Err(NO_STACK) }
    }
}

/// Sets errno and returns it.
pub(crate) fn report(error: Errno) -> c_int {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = error.code() };
    if log::is_inside() {
        let _ = INNER_FAILURE.try_with(|failure| failure.set(error));
    }
    error.code()
}

/// Sets errno and returns minus one.
pub(crate) fn minus_one(error: Errno) -> c_int {
    report(error);
    -1
}

thread_local! {
    /// How the last call failed that a call of this library made of another: C's conventions have no room for a reason.
    static INNER_FAILURE: Cell<Errno> = const { Cell::new(Errno::of(0)) };
}

/// What a call of verbs, made by another call of the library, has just answered with this errno, with its reason.
pub(crate) fn inner_failure(code: c_int) -> Errno {
    let failure = INNER_FAILURE.try_with(|failure| failure.replace(Errno::of(0)));
    failure.ok().filter(|failure| failure.code() == code).unwrap_or(Errno::of(code))
}

/// What else is due after a panic: telling the contexts that are open.
static AFTER_PANIC: PerProcess<fn()> = PerProcess::new();

/// Has `tell` called after every panic inside the library.
pub(crate) fn after_panic(tell: fn()) {
    AFTER_PANIC.get_or_make(|| tell);
}

/// Names a call that is to panic: how a program copes with an error of the library can be tried.
const PANIC_IN: &str = "UBIVERBS_PANIC_IN";

fn panics_in() -> Option<&'static str> {
    static NAME: PerProcess<Option<String>> = PerProcess::new();
    NAME.get_or_make(|| hca::environment::variable(PANIC_IN).and_then(|name| name.into_string().ok())).as_deref()
}

/// Whether the environment asks neither for a log of failures nor for a panic, and no sanitizer has to be told of
/// calls: then calls, of which there may be millions in a second, look at nothing more.
#[inline]
fn has_no_diagnostics() -> bool {
    const UNKNOWN: u8 = 0;
    const PLAIN: u8 = 1;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let _unjudged = sanitizer::Unjudged::begin();
            let plain = !log::is_on() && panics_in().is_none() && !sanitizer::is_present();
            if sanitizer::is_present() {
                abi::tell_of_what_is_filled_in(sanitizer::initialised);
            }
            KNOWN.store(if plain { PLAIN } else { PLAIN + 1 }, Ordering::Relaxed);
            plain
        }
        known => known == PLAIN,
    }
}

/// A result, also after a panic. No thread is cancelled meanwhile. Never part of its caller's frame, which may be one
/// that a cancelled thread is unwound through.
#[inline(never)]
pub(crate) fn caught<T>(call: &'static str, f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if !stack::has(stack::CALL_STACK_BYTES) {
        return Err(NO_STACK);
    }
    let _shield = Shield::up();
    caught_unshielded(call, f)
}

/// Like [`caught`], for a part of a call, which failure scripts do not count.
#[inline(never)]
pub(crate) fn caught_part<T>(call: &'static str, f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    if !stack::has(stack::CALL_STACK_BYTES) {
        return Err(NO_STACK);
    }
    let _shield = Shield::up();
    caught_struck::<_, false>(call, f)
}

const NO_STACK: Errno = Errno::of(libc::ENOMEM);

#[inline]
fn caught_unshielded<T>(call: &'static str, f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    caught_struck::<_, true>(call, f)
}

/// A result; failure scripts may strike the call if it `STRIKES`.
#[inline]
fn caught_struck<T, const STRIKES: bool>(call: &'static str, f: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let plain = has_no_diagnostics() && !hca::is_watched();
    let _sanitized = (!plain).then(|| Sanitized::begin(call));
    let f = || {
        if !plain
            && STRIKES
            && let Some(error) = struck(call)
        {
            return Err(error);
        }
        let _inside = (!plain).then(|| prepare_diagnostics(call));
        f()
    };
    // What a panic leaves behind stands behind locks that are valid at every step.
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(log_failure(call, error)),
        Err(_) => Err(log_failure(call, panicked(call))),
    }
}

/// Calls that order by the work they post or whose completions they take, and by nothing else; and calls that no other
/// thread's doings lead to.
const DATA_CALLS: [&str; 12] = [
    "ibv_post_",
    "ibv_wr_",
    "ibv_poll_cq",
    "ibv_start_poll",
    "ibv_next_poll",
    "ibv_end_poll",
    "ibv_req_notify_cq",
    "ibv_reg_",
    "ibv_create_",
    "ibv_alloc_",
    "ibv_query_",
    "ibv_open_",
];

/// A call of the program's, for as long as this exists, as a sanitizer is told of it. What threads of the program do
/// before a call comes before what they do after a later one that is none of [`DATA_CALLS`]: it may have heard of it by
/// an event, or waited for it.
struct Sanitized {
    hears: bool,
    _unjudged: sanitizer::Unjudged,
}

impl Sanitized {
    #[cold]
    fn begin(call: &str) -> Sanitized {
        sanitizer::release();
        let is_data = DATA_CALLS.iter().any(|prefix| call.starts_with(prefix));
        if sanitizer::sees_threads_of_the_library() {
            sanitizer::acquire();
        }
        Sanitized {
            hears: !is_data || sanitizer::sees_threads_of_the_library(),
            _unjudged: sanitizer::Unjudged::begin(),
        }
    }
}

impl Drop for Sanitized {
    fn drop(&mut self) {
        if sanitizer::sees_threads_of_the_library() {
            sanitizer::release();
        }
        if self.hears {
            sanitizer::acquire();
        }
    }
}

/// Notes that the thread is in a call, and panics if that is asked for.
#[cold]
fn prepare_diagnostics(call: &'static str) -> log::Inside {
    let inside = log::Inside::enter();
    assert!(panics_in() != Some(call), "{PANIC_IN} asks for it");
    inside
}

/// How this call of the program fails, if a failure script lets it; it may also let it take its time.
#[cold]
pub(crate) fn struck(call: &'static str) -> Option<Errno> {
    if log::is_inside() || !hca::is_watched() {
        return None;
    }
    // What follows sleeps and writes, and holds locks.
    let _shield = Shield::up();
    let failure = Nic::present()?.strike_call(call)?.wait()?;
    Some(Errno::of(failure.errno).because(&failure))
}

#[cold]
fn panicked(call: &'static str) -> Errno {
    // The panic itself has been printed.
    log::print(format_args!("an error inside the library; {call} fails with EIO"));
    if let Some(tell) = AFTER_PANIC.get() {
        let _ = catch_unwind(tell);
    }
    Errno::of(libc::EIO)
}

/// Logs a failure, and tells the trace, if the environment asks for it. That a queue or a table entry is empty, or
/// would block, is none, and has no reason. Of a call that the library itself made the program's call tells.
#[cold]
fn log_failure(call: &'static str, error: Errno) -> Errno {
    let reason = error.reason();
    if log::is_inside() {
        return reason.map_or(error, |reason| error.because(format_args!("{call}: {reason}")));
    }
    let code = error.code();
    let may_be_empty = matches!(code, libc::ENOENT | libc::EAGAIN | libc::ENODATA);
    if log::wants_reasons() && (!may_be_empty || reason.is_some()) {
        tell(None, || Call::Refused {
            function: call,
            errno: code,
            reason: Text::of(reason.as_deref().unwrap_or_default()),
        });
        if log::is_on() {
            log::failure(call, code, reason.as_deref());
        }
    }
    error
}

/// Tells the trace of this process's NIC of a call that belongs to no opened device, if there is a NIC and a sink
/// listens.
pub(crate) fn tell(qpn: Option<Qpn>, call: impl FnOnce() -> Call) {
    if !hca::is_traced() {
        return;
    }
    match Nic::present() {
        Some(nic) => nic.called(qpn, call),
        // A forked child that has none uses objects of its parent.
        None => {
            if let call @ Call::Refused { .. } = call() {
                hca::told_without_nic(call);
            }
        }
    }
}

/// Copies `size` bytes of a structure to a program that may know more or less of it than the library does.
///
/// # Safety
/// There is room for `size` bytes at `to`.
pub(crate) unsafe fn copy_out<T: Copy>(from: &T, to: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are no more than the structure has, and `size` no more than there is room for.
    unsafe {
        std::ptr::from_ref(from).cast::<u8>().copy_to_nonoverlapping(to.cast(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
    }
    sanitizer::initialised(to.cast(), size);
}
