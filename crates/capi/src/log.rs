//! Why a call failed, for a person: an errno says little. With `UBIVERBS_LOG` set, every call that fails says so on
//! standard error, with the reason where the NIC gave one.

use hca::environment::{self, Log};
use latch::PerProcess;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

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

/// Names a reason: what an errno carries of it, as it is copied about and most programs never ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reason(u32);

/// How many reasons a thread keeps. A call that fails meets a few more failures while it cleans up.
const MAX_KEPT_REASONS: usize = 16;

/// What the next reason is called. No two of a process have one name.
static NEXT_REASON: AtomicU32 = AtomicU32::new(Reason::NONE.0 + 1);

thread_local! {
    /// The newest reasons of this thread. A thread that is ending, or whose `exit` runs destructors, has none any more
    /// and may call all the same: so they are only ever tried.
    static LAST_REASONS: Cell<VecDeque<(u32, String)>> = const { Cell::new(VecDeque::new()) };
}

impl Reason {
    /// There is none, or the program's user did not ask for reasons.
    pub const NONE: Reason = Reason(0);

    /// Keeps a reason, if the program's user asked for reasons.
    pub fn of(why: impl Display) -> Reason {
        if wants_reasons() { Reason::keep(why.to_string()) } else { Reason::NONE }
    }

    #[cold]
    fn keep(text: String) -> Reason {
        let name = NEXT_REASON.fetch_add(1, Ordering::Relaxed);
        let _ = LAST_REASONS.try_with(|kept| {
            let mut reasons = kept.take();
            if reasons.len() == MAX_KEPT_REASONS {
                reasons.pop_front();
            }
            reasons.push_back((name, text));
            kept.set(reasons);
        });
        Reason(name)
    }

    /// The reason in words.
    pub fn text(self) -> Option<String> {
        if self.0 == Reason::NONE.0 {
            return None;
        }
        LAST_REASONS
            .try_with(|kept| {
                let reasons = kept.take();
                let text = reasons.iter().find(|(name, _)| *name == self.0).map(|(_, text)| text.clone());
                kept.set(reasons);
                text
            })
            .ok()
            .flatten()
    }
}

thread_local! {
    /// How many calls of the library this thread is in, one made by the other.
    static QUIET_DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call of the library, for as long as this exists.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn enter() -> Inside {
        let _ = QUIET_DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = QUIET_DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Whether this thread is in a call of the library.
pub(crate) fn is_inside() -> bool {
    QUIET_DEPTH.try_with(Cell::get).is_ok_and(|depth| depth > 0)
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
