//! Why a call failed, for a person: an errno says little. With `UBIVERBS_LOG` set, every call that fails says so on standard error, with the
//! reason where the NIC gave one.

use hca::environment::{self, Log};
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

/// Says something to those who want to read it.
pub(crate) fn line(text: impl Display) {
    if is_on() {
        say(text);
    }
}

/// Says something in any case.
pub(crate) fn say(text: impl Display) {
    // Not `eprintln`: a closed standard error is no reason to panic.
    let _ = std::io::stderr().write_all(format!("ubiverbs: {text}\n").as_bytes());
}
