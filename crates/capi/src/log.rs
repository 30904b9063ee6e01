//! Why a call failed, for a person: an errno says little. With `UBIVERBS_LOG` set, every call that fails says so on
//! standard error, with the reason where the NIC gave one.

use hca::environment::{self, Log};
use latch::PerProcess;
use std::cell::Cell;
use std::fmt::Display;

/// Whether the environment asks for it.
pub(crate) fn is_on() -> bool {
    static ON: PerProcess<bool> = PerProcess::new();
    *ON.get_or_make(|| {
        // Where events are asked for as JSON, a line of text would be in the way.
        let asked = environment::variable(environment::LOG_VARIABLE).map(|text| Log::of(&text));
        matches!(asked, Some(Log::Errors | Log::Events))
    })
}

/// Whether reasons are to be noted: for the log, or for a sink of the trace.
pub(crate) fn wants_reasons() -> bool {
    hca::is_traced() || is_on()
}

thread_local! {
    /// Why the call of this thread is about to fail. A thread that is ending, or whose `exit` runs destructors, has
    /// none any more and may call all the same: so it is only ever tried.
    static REASON: Cell<Option<String>> = const { Cell::new(None) };
}

thread_local! {
    /// How many calls of the library this thread is in, one made by the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call of the library, for as long as this exists.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn enter() -> Inside {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Whether this thread is in a call of the library.
pub(crate) fn is_inside() -> bool {
    DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0)
}

/// Says of the reason that was noted which call had it.
pub(crate) fn name_reason(call: &str) {
    if let Some(reason) = take_reason() {
        note_reason(format_args!("{call}: {reason}"));
    }
}

/// Notes why the call is about to fail. The last reason counts.
pub(crate) fn note_reason(reason: impl Display) {
    if wants_reasons() {
        let _ = REASON.try_with(|noted| noted.set(Some(reason.to_string())));
    }
}

/// Forgets what was noted for an earlier call.
pub(crate) fn clear_reason() {
    take_reason();
}

/// Whether a reason was noted.
pub(crate) fn has_reason() -> bool {
    let reason = take_reason();
    let is_some = reason.is_some();
    let _ = REASON.try_with(|noted| noted.set(reason));
    is_some
}

/// What was noted, which is then forgotten.
pub(crate) fn take_reason() -> Option<String> {
    REASON.try_with(Cell::take).ok().flatten()
}

/// Says that a call fails, and why.
pub(crate) fn failure(call: &str, errno: i32, reason: Option<&str>) {
    let error = std::io::Error::from_raw_os_error(errno);
    match reason {
        Some(reason) => environment::say_stamped(format_args!("{call} fails: {error}: {reason}")),
        None => environment::say_stamped(format_args!("{call} fails: {error}")),
    }
}

/// Says something in any case.
pub(crate) fn print(text: impl Display) {
    hca::environment::say(text);
}
