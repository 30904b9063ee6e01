//! Why a call failed, for a person: an errno says little. With `UBIVERBS_LOG` set, every call that fails says so on standard error, with the
//! reason where the NIC gave one.

use hca::environment::{self, Log};
use std::cell::Cell;
use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;

/// Whether anybody wants to read it.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| {
        // Where events are asked for as JSON, a line of text would be in the way.
        let asked = std::env::var_os(environment::LOG).map(|text| Log::of(&text));
        matches!(asked, Some(Log::Errors | Log::Events))
    })
}

thread_local! {
    /// Why the call of this thread is about to fail.
    static REASON: Cell<Option<String>> = const { Cell::new(None) };
}

/// Notes why the call is about to fail. The last reason counts.
pub(crate) fn because(reason: impl Display) {
    if is_on() {
        REASON.set(Some(reason.to_string()));
    }
}

/// Forgets what was noted for an earlier call.
pub(crate) fn forget() {
    REASON.set(None);
}

/// Says that a call fails, and why.
pub(crate) fn failure(call: &str, errno: i32) {
    let error = std::io::Error::from_raw_os_error(errno);
    match REASON.take() {
        Some(reason) => say(format_args!("{call} fails: {error}: {reason}")),
        None => say(format_args!("{call} fails: {error}")),
    }
}

/// Says something in any case.
pub(crate) fn say(text: impl Display) {
    // Not `eprintln`: a closed standard error is no reason to panic.
    let _ = std::io::stderr().write_all(format!("ubiverbs: {text}\n").as_bytes());
}
