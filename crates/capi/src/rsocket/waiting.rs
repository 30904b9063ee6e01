//! Calls that may sleep. Each is an [`Operation`] that is attempted until it is done. A thread may be cancelled while
//! it sleeps, so what such a call has is plain data, and the socket is held by a pointer that [`Waits::end`] gives
//! back.

use super::table::{SocketEntry, entry};
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
    fn attempt(&mut self, entry: &Arc<SocketEntry>) -> Result<(), Errno>;

    /// What the call answers when it is done.
    fn answer(&self) -> isize;

    /// What it answers if it cannot go on after a part.
    fn part(&self) -> Option<isize> {
        None
    }
}

const TRY_AGAIN: Errno = Errno::of(libc::EAGAIN);

/// A sleep that was shorter than this costs more than to look so long. Two programs that answer each other, and both
/// sleep, would never get out of it otherwise. Not where an administrator wants no looking at all.
const SHORT_SLEEP: Duration = Duration::from_micros(60);

/// Does it: its answer, or minus one with errno. `flags` are those of the call.
pub(super) fn perform<O: Operation>(fd: c_int, flags: c_int, mut operation: O) -> isize {
    perform_in(fd, flags, &mut operation)
}

/// Performs an operation that the caller looks at afterwards.
pub(super) fn perform_in<O: Operation>(fd: c_int, flags: c_int, operation: &mut O) -> isize {
    const { assert!(!needs_drop::<O>(), "no destructor runs when the thread is cancelled") };
    let mut waiting: *const SocketEntry = std::ptr::null();
    let first = data_path::value(O::CALL, Err(Errno::of(libc::EIO)), || begin(fd, flags, operation, &mut waiting));
    match first {
        Ok(()) if waiting.is_null() => operation.answer(),
        Ok(()) => {
            let (operation_of, wait) = (&raw mut *operation, Wait::default());
            let call = SleepingCall { entry: waiting, operation: operation_of, wait, armed: false, asleep_since: None };
            let failed = call_that_waits(call) != 0;
            if failed { operation.part().unwrap_or(-1) } else { operation.answer() }
        }
        Err(error) => operation.part().unwrap_or_else(|| data_path::number(O::CALL, || Err(error)) as isize),
    }
}

/// Attempts it without sleeping. If it has to sleep, `waiting` is the socket from then on, with a count of its own.
fn begin<O: Operation>(
    fd: c_int,
    flags: c_int,
    operation: &mut O,
    waiting: &mut *const SocketEntry,
) -> Result<(), Errno> {
    let entry = entry(fd)?;
    match attempt_for_a_while(&entry, entry.waits(flags), false, operation) {
        Err(error) if error == TRY_AGAIN && entry.waits(flags) => {
            *waiting = Arc::into_raw(entry);
            Ok(())
        }
        done => done,
    }
}

/// Attempts it once, or, for a call that would sleep otherwise, for as long as that is cheaper: a while since it could
/// not get on for the first time, and since it last did get on where that helped before. `flows` if it has just got on.
#[inline]
fn attempt_for_a_while<O: Operation>(
    entry: &Arc<SocketEntry>,
    waits: bool,
    mut flows: bool,
    operation: &mut O,
) -> Result<(), Errno> {
    let mut since: Option<Instant> = None;
    loop {
        let before = operation.part();
        match operation.attempt(entry) {
            Err(error) if error == TRY_AGAIN && waits => {}
            done => {
                if flows && done.is_ok() {
                    entry.flow_waits.ended(true);
                }
                return done;
            }
        }
        if since.is_some() && operation.part() != before {
            if flows {
                entry.flow_waits.ended(true);
            }
            flows = entry.flow_waits.is_due();
            since = since.filter(|_| !flows);
        }
        let usual = Settings::of_process().polling_time;
        let limit = match entry.sleeps_shortly.load(Ordering::Relaxed) && !usual.is_zero() {
            true => usual.max(SHORT_SLEEP),
            false => usual,
        };
        if since.get_or_insert_with(Instant::now).elapsed() >= limit {
            if flows {
                entry.flow_waits.ended(false);
            }
            return Err(TRY_AGAIN);
        }
    }
}

/// A call that sleeps.
struct SleepingCall<O> {
    entry: *const SocketEntry,
    /// In the caller's frame.
    operation: *mut O,
    wait: Wait,
    /// Changes wake it.
    armed: bool,
    /// When it went to sleep.
    asleep_since: Option<Instant>,
}

impl<O: Operation> Waits for SleepingCall<O> {
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
                        self.asleep_since.get_or_insert_with(Instant::now);
                        return Ok(Turn::Sleep);
                    }
                }
                if let Some(since) = self.asleep_since.take() {
                    entry.sleeps_shortly.store(since.elapsed() < SHORT_SLEEP, Ordering::Relaxed);
                }
            }
            let before = operation.part();
            let mut attempted = operation.attempt(&entry);
            if attempted == Err(TRY_AGAIN) && operation.part() != before && entry.flow_waits.is_due() {
                // More follows, mostly.
                attempted = attempt_for_a_while(&entry, true, true, operation);
            }
            match attempted {
                Err(error) if error == TRY_AGAIN => {}
                done => return done.map(|()| Turn::Done),
            }
            entry.waitable().begin_wait(&mut self.wait)?;
            self.armed = true;
            match operation.attempt(&entry) {
                Err(error) if error == TRY_AGAIN => {}
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
    Errno::of(error.0)
}
