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
        let asked = environment::variable(environment::LOG).map(|text| Log::of(&text));
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
