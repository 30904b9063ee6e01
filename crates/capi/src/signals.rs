//! What becomes of a call that a signal interrupts. The original blocks in `read`, which the kernel restarts if the
//! signal's handler was installed with `SA_RESTART`. This library waits in another way and cannot see which signal it
//! was, so it looks at all handlers there are.
//!
//! The original is asleep in `read` from its beginning to its end, so every signal interrupts it. This library is awake
//! for a part of the call: signals are held back then, and are let through only by the system call that sleeps. Else a
//! program whose timer ends its call would sleep for ever when the timer fires a moment too early.

use std::mem::{MaybeUninit, zeroed};
use std::ptr::{null, null_mut};

/// What says that this thread itself has gone wrong: it cannot wait.
const FAULT_SIGNALS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];

/// Holds the calling thread's signals back. Returns those that were before.
pub(crate) fn hold_back() -> libc::sigset_t {
    let mut held: MaybeUninit<libc::sigset_t> = MaybeUninit::uninit();
    let mut before: MaybeUninit<libc::sigset_t> = MaybeUninit::uninit();
    // SAFETY: sets of this function, which the first calls fill; for a known operation the last cannot fail. The C
    // library leaves those out that it cancels threads with.
    unsafe {
        libc::sigfillset(held.as_mut_ptr());
        for fault in FAULT_SIGNALS {
            libc::sigdelset(held.as_mut_ptr(), fault);
        }
        libc::sigemptyset(before.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, held.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Ends that.
pub(crate) fn let_through(before: &libc::sigset_t) {
    // SAFETY: a live set, and no place for the old one.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, null_mut()) };
}

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
