//! What becomes of a call that a signal interrupts. The original blocks in `read`, which the kernel restarts if the
//! signal's handler was installed with `SA_RESTART`. This library waits in another way and cannot see which signal it
//! was, so it looks at all handlers there are.

use std::mem::zeroed;
use std::ptr::null;

/// Whether every handler of this process asks for interrupted calls to go on.
pub(crate) fn all_handlers_restart() -> bool {
    (1..=64).all(|signal| {
        // SAFETY: all zeros are a valid action.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: only asks; the place for the answer is this function's.
        let known = unsafe { libc::sigaction(signal, null(), &raw mut action) } == 0;
        let handled = known && !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        !handled || action.sa_flags & libc::SA_RESTART != 0
    })
}
