//! Calls that may sleep. Each is an [`Operation`] that is attempted until it is done. A thread may be cancelled while
//! it sleeps, so what such a call has is plain data, and the socket is held by a pointer that [`Waits::end`] gives
//! back.

use super::table::{Entry, entry, find};
use crate::boundary::data_path;
use crate::cancellation::{Turn, Waits, call_that_waits};
use crate::errno::Errno;
use hca::{Look, Sleep};
use sockets::{Error, Settings, Wait};
use std::ffi::c_int;
use std::mem::needs_drop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Something that is tried again until it is done.
pub(super) trait Operation {
    /// The name of the call.
    const CALL: &'static str;

    /// Goes on. `EAGAIN` if it has to wait before it can.
    fn attempt(&mut self, entry: &Arc<Entry>) -> Result<(), Errno>;

    /// What the call answers when it is done.
    fn answer(&self) -> isize;

    /// What it answers if it cannot go on after a part.
    fn part(&self) -> Option<isize> {
        None
    }
}

const AGAIN: Errno = Errno(libc::EAGAIN);

/// A sleep that was shorter than this costs more than to look so long. Two programs that answer each other, and both
/// sleep, would never get out of it otherwise. Not where an administrator wants no looking at all.
const SHORT_SLEEP: Duration = Duration::from_micros(60);

/// Does it: its answer, or minus one with errno. `flags` are those of the call.
pub(super) fn perform<O: Operation>(fd: c_int, flags: c_int, mut operation: O) -> isize {
    perform_in(fd, flags, &mut operation)
}

/// The same with an operation that the caller looks at afterwards.
pub(super) fn perform_in<O: Operation>(fd: c_int, flags: c_int, operation: &mut O) -> isize {
    const { assert!(!needs_drop::<O>(), "no destructor runs when the thread is cancelled") };
    let mut waiting: *const Entry = std::ptr::null();
    let first = data_path::value(O::CALL, Err(Errno(libc::EIO)), || begin(fd, flags, operation, &mut waiting));
    match first {
        Ok(()) if waiting.is_null() => operation.answer(),
        Ok(()) => {
            let call = Waiting { entry: waiting, operation: &raw mut *operation, wait: Wait::default(), armed: false };
            let since = Instant::now();
            let failed = call_that_waits(call) != 0;
            note_sleep(fd, since.elapsed());
            if failed { operation.part().unwrap_or(-1) } else { operation.answer() }
        }
        Err(error) => operation.part().unwrap_or_else(|| data_path::number(O::CALL, || Err(error)) as isize),
    }
}

/// A call on a socket has slept so long. The frame of its caller must have nothing to drop, and has not.
#[inline(never)]
fn note_sleep(fd: c_int, slept: Duration) {
    if let Some(entry) = find(fd) {
        entry.sleeps_shortly.store(slept < SHORT_SLEEP, Ordering::Relaxed);
    }
}

/// Attempts it without sleeping. If it has to sleep, `waiting` is the socket from then on, with a count of its own.
fn begin<O: Operation>(fd: c_int, flags: c_int, operation: &mut O, waiting: &mut *const Entry) -> Result<(), Errno> {
    let entry = entry(fd)?;
    let mut since: Option<Instant> = None;
    loop {
        match operation.attempt(&entry) {
            Err(AGAIN) => {}
            done => return done,
        }
        if !entry.waits(flags) {
            return Err(AGAIN);
        }
        let usual = Settings::of_process().polling_time;
        let limit = match entry.sleeps_shortly.load(Ordering::Relaxed) && !usual.is_zero() {
            true => usual.max(SHORT_SLEEP),
            false => usual,
        };
        if since.get_or_insert_with(Instant::now).elapsed() >= limit {
            *waiting = Arc::into_raw(entry);
            return Ok(());
        }
    }
}

/// A call that sleeps.
struct Waiting<O> {
    entry: *const Entry,
    /// In the caller's frame.
    operation: *mut O,
    wait: Wait,
    /// Changes wake it.
    armed: bool,
}

impl<O: Operation> Waits for Waiting<O> {
    const CALL: &'static str = O::CALL;

    fn go_on(&mut self, sleep: &mut Sleep) -> Result<Turn, Errno> {
        // SAFETY: from `begin`, with a count that `end` gives back; `operation` is in a frame that waits for this call.
        let (entry, operation) = unsafe {
            Arc::increment_strong_count(self.entry);
            (Arc::from_raw(self.entry), &mut *self.operation)
        };
        loop {
            if self.armed {
                self.wait.call.sleep = *sleep;
                match entry.waitable().look(&mut self.wait, None) {
                    Look::Event(_) => self.armed = false,
                    Look::Sleep | Look::TooLate => {
                        *sleep = self.wait.call.sleep;
                        return Ok(Turn::Sleep);
                    }
                }
            }
            match operation.attempt(&entry) {
                Err(AGAIN) => {}
                done => return done.map(|()| Turn::Done),
            }
            entry.waitable().begin_wait(&mut self.wait)?;
            self.armed = true;
            match operation.attempt(&entry) {
                Err(AGAIN) => {}
                done => return done.map(|()| Turn::Done),
            }
        }
    }

    fn end(&mut self) {
        // SAFETY: from `begin`; this is the one place that gives it back.
        let entry = unsafe { Arc::from_raw(self.entry) };
        entry.waitable().end_wait(&mut self.wait);
    }
}

/// What a socket answered, as C has it.
pub(super) fn errno(error: Error) -> Errno {
    Errno(error.0)
}
