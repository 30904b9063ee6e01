//! Signals that end a program, for as long as a terminal is not as it was.
#![allow(unsafe_code, reason = "signals have no safe form here")]

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// They end a program that does nothing about them.
const ENDING_SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT];

/// While this lives such signals wait, and its descriptor is readable once one does. They have their effect when it is
/// dropped.
pub struct HeldSignals {
    waiting: OwnedFd,
    before: libc::sigset_t,
}

impl HeldSignals {
    /// For the calling thread and those that it starts from now on.
    pub fn hold() -> io::Result<HeldSignals> {
        // SAFETY: live sets of signals; the descriptor is new and has no other owner.
        unsafe {
            let (mut held, mut before): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
            libc::sigemptyset(&raw mut held);
            for signal in ENDING_SIGNALS {
                libc::sigaddset(&raw mut held, signal);
            }
            let descriptor = libc::signalfd(-1, &raw const held, libc::SFD_CLOEXEC);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, &raw mut before);
            Ok(HeldSignals { waiting: OwnedFd::from_raw_fd(descriptor), before })
        }
    }
}

impl AsFd for HeldSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: the set that was in force.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
