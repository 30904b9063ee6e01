//! Waiting for descriptors.

use std::io;
use std::os::fd::RawFd;

/// The most descriptors one waits for: the sockets of two address families, the registry's, and one's own.
const MOST: usize = 8;

/// Sleeps until one of the descriptors is readable or `nanos` have passed; `None` is for ever. Answers which are ready, a bit for each. A signal
/// ends it early: then the error is `Interrupted`, and the caller decides whether to look again.
pub(crate) fn until_ready(fds: impl IntoIterator<Item = RawFd>, nanos: Option<u64>) -> io::Result<u32> {
    let mut polled = [libc::pollfd { fd: -1, events: 0, revents: 0 }; MOST];
    for (slot, fd) in polled.iter_mut().zip(fds) {
        *slot = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    }
    let limit = nanos
        .map(|nanos| libc::timespec { tv_sec: (nanos / 1_000_000_000) as _, tv_nsec: (nanos % 1_000_000_000) as _ });
    let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
    // SAFETY: `polled` and the limit are live for the duration of the call; negative descriptors are passed over.
    let answer = unsafe { libc::ppoll(polled.as_mut_ptr(), MOST as libc::nfds_t, limit, std::ptr::null()) };
    if answer >= 0 {
        Ok(polled.iter().rev().fold(0, |bits, slot| bits << 1 | u32::from(slot.revents != 0)))
    } else {
        Err(io::Error::last_os_error())
    }
}
