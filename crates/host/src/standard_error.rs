//! Lines for a person, on standard error. Not by way of the standard library: its lock may be held by a thread that a
//! forked child does not have.

use crate::stamp::Stamp;
use crate::thread::Shield;
use std::fmt::Display;
use std::io::{self, Write};

/// Says something on a line of its own, written at once: several processes may share the terminal. If standard error is
/// closed no reader can be told.
pub fn say(text: impl Display) {
    let _ = StandardError.write_all(format!("ubiverbs: {text}\n").as_bytes());
}

/// Says something that happened, with its [`Stamp`].
pub fn say_stamped(text: impl Display) {
    say(format_args!("{} {text}", Stamp::now()));
}

/// Standard error, without a lock.
#[derive(Clone, Copy, Debug)]
pub struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // It may be a file that has become as large as the process may make one: what we have to say must not end it.
        let _shield = Shield::up();
        without_file_signal(|| {
            // SAFETY: as many bytes as the slice has.
            let count = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
            crate::descriptor::check_length(count)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Calls `write` while SIGXFSZ cannot reach this thread, and takes one that came meanwhile away.
fn without_file_signal<T>(write: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals that are live and were made by the calls before; nothing else of the thread changes.
    unsafe {
        let (mut file, mut before, mut waiting) = (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed());
        libc::sigemptyset(&raw mut file);
        libc::sigaddset(&raw mut file, libc::SIGXFSZ);
        libc::sigpending(&raw mut waiting);
        // One that waited before is the program's own.
        let theirs = libc::sigismember(&raw const waiting, libc::SIGXFSZ) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const file, &raw mut before);
        let answer = write();
        if !theirs {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&raw const file, std::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        answer
    }
}
