//! A pair of the kernel's sockets in place of a socket: the program has one end, and this process the other.

use super::table::{self, Socket};
use super::{errno, options, real};
use std::ffi::c_int;

/// A pair of sockets: the program's end, and ours. Neither is for programs that are executed.
pub(super) fn pair(kind: c_int) -> Result<[c_int; 2], c_int> {
    let mut pair = [0; 2];
    // SAFETY: room for two descriptors.
    match unsafe { real::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) } {
        0 => Ok(pair),
        _ => Err(errno()),
    }
}

/// All descriptors of a socket become those of `end`, which is closed. What waits for them with `epoll` goes on to.
pub(super) fn replace(socket: &'static Socket, end: c_int) {
    if socket.nonblocking.load(std::sync::atomic::Ordering::Relaxed) {
        // SAFETY: a descriptor, and a flag.
        unsafe { real::fcntl(end, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as _) };
    }
    for (fd, _) in table::all().filter(|(_, it)| std::ptr::eq(*it, socket)) {
        // SAFETY: both are open.
        unsafe {
            let closes = real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0;
            real::dup3(end, fd, if closes { libc::O_CLOEXEC } else { 0 });
        }
    }
    // SAFETY: ours.
    unsafe { real::close(end) };
    let watchers = options::with_notes(socket, |notes| std::mem::take(&mut notes.watchers));
    for mut watcher in watchers {
        // SAFETY: an event of ours. The descriptor that was waited for is another one now.
        unsafe { real::epoll_ctl(watcher.epoll, libc::EPOLL_CTL_ADD, watcher.fd, &raw mut watcher.event) };
    }
}
