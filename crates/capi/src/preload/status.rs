//! What became of a stream that was handed over, which the kernel's sockets cannot tell: an error, or that its end is
//! the peer's. It lies in memory that children share, since they have the stream, too. An end without a word is that of
//! the process that moved the bytes.

use latch::PerProcess;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A number for each of so many streams at a time; then places are used again.
const STATUS_PLACES: usize = 1 << 13;

struct Arena {
    places: &'static [AtomicU64],
    used: AtomicUsize,
}

/// A stream's place. It has the number of its use, so that an error of a later stream is not taken for this one's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    place: &'static AtomicU64,
    number: u64,
}

/// The peer has ended the stream, and everything before that was passed on.
const ENDED_BY_PEER: c_int = -1;

/// Where no memory is to be had.
static NO_STATUS_PLACE: AtomicU64 = AtomicU64::new(0);

impl Status {
    pub(super) fn new() -> Status {
        static ARENA: PerProcess<Option<Arena>> = PerProcess::new();
        let Some(arena) = ARENA.get_or_make(arena) else { return Status { place: &NO_STATUS_PLACE, number: 0 } };
        let used = arena.used.fetch_add(1, Ordering::Relaxed);
        let status = Status { place: &arena.places[used % STATUS_PLACES], number: (used / STATUS_PLACES) as u64 + 1 };
        status.place.store(status.number << 32, Ordering::Release);
        status
    }

    /// Tells everybody who has the stream.
    pub(super) fn set(self, errno: c_int) {
        if self.number > 0 {
            self.place.store(self.number << 32 | errno as u32 as u64, Ordering::Release);
        }
    }

    /// Tells them that the end which they read is the peer's.
    pub(super) fn set_ended(self) {
        self.set(ENDED_BY_PEER);
    }

    fn value(self) -> Option<c_int> {
        let value = self.place.load(Ordering::Acquire);
        (self.number > 0 && value >> 32 == self.number).then_some(value as u32 as c_int)
    }

    /// The error; 0 if there is none.
    pub(super) fn get(self) -> c_int {
        self.value().filter(|value| *value != ENDED_BY_PEER).unwrap_or(0)
    }

    /// The error of the program that reads the end of the stream; 0 if the end is real, or nothing is known.
    pub(super) fn error_at_end(self) -> c_int {
        match self.value() {
            None | Some(ENDED_BY_PEER) => 0,
            // Nothing was said.
            Some(0) => libc::ECONNRESET,
            Some(code) => code,
        }
    }

    /// The error, which is told once.
    pub(super) fn take(self) -> c_int {
        let errno = self.get();
        if errno != 0 {
            self.set_ended();
        }
        errno
    }
}

fn arena() -> Option<Arena> {
    let length = STATUS_PLACES * size_of::<AtomicU64>();
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, all zeros, which stays for ever.
    unsafe {
        let memory = libc::mmap(null_mut(), length, access, kind, -1, 0);
        if memory == libc::MAP_FAILED {
            return None;
        }
        let places = std::slice::from_raw_parts(memory.cast(), STATUS_PLACES);
        Some(Arena { places, used: AtomicUsize::new(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_until_it_is_taken_and_never_another_streams() {
        let first = Status::new();
        assert_eq!((first.get(), first.error_at_end()), (0, libc::ECONNRESET));
        first.set(libc::ECONNREFUSED);
        assert_eq!((first.get(), first.take(), first.get()), (libc::ECONNREFUSED, libc::ECONNREFUSED, 0));
        let second = Status::new();
        second.set_ended();
        assert_eq!((second.get(), second.error_at_end()), (0, 0));
        let others: Vec<Status> = (0..STATUS_PLACES).map(|_| Status::new()).collect();
        others.iter().for_each(|other| other.set(libc::EPIPE));
        assert_eq!((first.get(), first.error_at_end()), (0, 0));
    }
}
