//! `pthread_cancel`. It ends a thread by unwinding its stack from the C library's function in which the thread sleeps.
//! That is no panic: it passes by `catch_unwind`, and it must not meet a frame of Rust that has something to drop.
//! A lock that the thread holds would stay taken.
//!
//! | where | what a cancelled thread does there |
//! |---|---|
//! | in `ibv_get_cq_event`, `ibv_get_async_event`, `rdma_get_cm_event` | it ends when the call begins or sleeps: [`call_that_waits`] |
//! | in other calls | nothing: a [`Shield`](hca::Shield) is up, and the thread ends later, in the program |
//! | in calls made for every message | nothing: their system calls are none at which the C library cancels a thread, or are rare and have a shield of their own |
//!
//! A call that waits is a loop in a frame with nothing to drop. Each turn calls [`Waits::go_on`], which looks for an
//! event under a shield, and comes back before the thread sleeps. The sleep is `ppoll`, called from that frame. What
//! the call has taken by then (the watch over the NIC's links, say) is in a plain structure; the C library calls
//! [`Waits::end`] on it before it unwinds. An event is taken in a turn or not at all, so none is lost.

use crate::boundary;
use crate::errno::{Errno, refuse_if};
use crate::signals;
use hca::Sleep;
use latch::sanitizer;
use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit, needs_drop};
use std::ptr::null;

unsafe extern "C" {
    fn _pthread_cleanup_push(place: *mut CleanupHandler, routine: extern "C" fn(*mut c_void), argument: *mut c_void);
    fn _pthread_cleanup_pop(place: *mut CleanupHandler, execute: c_int);
}

// Declared here, since a cancelled thread is unwound from them; those of the crate `libc` are said not to unwind.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> c_int;
}

/// A place on the stack for the C library's note of what is to be called when the thread is cancelled: `struct
/// _pthread_cleanup_buffer` of `pthread.h`, with room to spare.
#[repr(C)]
struct CleanupHandler([MaybeUninit<usize>; 8]);

/// What became of a look for an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// The program has its event.
    Done,
    /// There is none: the thread is to sleep.
    Sleep,
}

/// A call that waits for an event. It has nothing to drop.
pub(crate) trait Waits {
    /// Its name.
    const CALL: &'static str;

    /// Looks for an event and hands it to the program, or sets up `sleep`.
    fn go_on(&mut self, sleep: &mut Sleep) -> Result<Turn, Errno>;

    /// What the thread sleeps on, and how long: descriptors and their count, and a limit or null. They stay where they
    /// are until the next turn.
    fn sleeps_on(&mut self, sleep: &mut Sleep) -> (*mut libc::pollfd, usize, *const libc::timespec) {
        let descriptors = sleep.descriptors();
        (descriptors.as_mut_ptr(), descriptors.len(), null())
    }

    /// Gives back what the call has taken. It is over, or its thread is.
    fn end(&mut self);
}

/// A call that waits, and its sleep.
struct Frame<W> {
    /// A type with nothing to drop: where nothing is optimised, a frame with a `W` has a landing pad for it all the same.
    call: ManuallyDrop<W>,
    sleep: Sleep,
    /// The signals that the program holds back. The call holds back all, but while it sleeps.
    signals: libc::sigset_t,
    /// A signal ended the last sleep.
    interrupted: bool,
}

/// Waits: 0, or minus one with errno. The thread may be cancelled here: see the module.
pub(crate) fn call_that_waits<W: Waits>(call: W) -> c_int {
    const { assert!(!needs_drop::<W>(), "no destructor runs when the thread is cancelled") };
    let call = ManuallyDrop::new(call);
    // SAFETY: this frame has nothing to drop, nor have those of the entry points that call it.
    unsafe { pthread_testcancel() };
    if hca::is_watched()
        && let Err(error) = boundary::caught(W::CALL, || Ok(()))
    {
        return boundary::minus_one(error);
    }
    let mut frame = Frame { call, sleep: Sleep::default(), signals: signals::hold_back(), interrupted: false };
    sanitizer::initialised((&raw const frame).cast(), size_of_val(&frame));
    let answer = loop {
        match boundary::caught_part(W::CALL, || frame.turn()) {
            // SAFETY: `sleep` sleeps in a frame with nothing to drop, called from one with nothing to drop.
            Ok(Turn::Sleep) => unsafe { sleep(&mut frame) },
            answer => break answer,
        }
    };
    let _ = boundary::caught_part(W::CALL, || {
        frame.call.end();
        Ok(())
    });
    signals::let_through(&frame.signals);
    answer.map_or_else(boundary::minus_one, |_| 0)
}

impl<W: Waits> Frame<W> {
    fn turn(&mut self) -> Result<Turn, Errno> {
        refuse_if!(std::mem::take(&mut self.interrupted) && !signals::all_handlers_restart(), Errno::of(libc::EINTR));
        self.call.go_on(&mut self.sleep)
    }
}

/// Sleeps until a descriptor is ready. If the thread is cancelled meanwhile, or has been, the call ends.
///
/// # Safety
/// The caller's frames, up to the program's, have nothing to drop.
unsafe fn sleep<W: Waits>(frame: &mut Frame<W>) {
    let frame = &raw mut *frame;
    let mut handler = CleanupHandler([const { MaybeUninit::uninit() }; 8]);
    // SAFETY: the handler and the frame stay where they are until the handler is taken away again, below. It is called
    // only while this thread is in `ppoll`, when no reference to the frame is used but that to the descriptors.
    unsafe {
        let Frame { call, sleep, .. } = &mut *frame;
        let (fds, count, limit) = call.sleeps_on(sleep);
        _pthread_cleanup_push(&raw mut handler, cancelled::<W>, frame.cast());
        let answer = ppoll(fds, count as libc::nfds_t, limit, &raw const (*frame).signals);
        (*frame).interrupted = answer < 0;
        _pthread_cleanup_pop(&raw mut handler, 0);
    }
}

/// The thread ends, and so does its call.
extern "C" fn cancelled<W: Waits>(frame: *mut c_void) {
    boundary::unreported(W::CALL, || {
        // SAFETY: from `sleep`, whose caller's frame is still there.
        let frame = unsafe { &mut *frame.cast::<Frame<W>>() };
        frame.call.end();
        // What the program does while its thread ends, it does with its own signals.
        signals::let_through(&frame.signals);
        Ok(())
    });
}
