//! The process that `ubiverbs run` leaves behind to take the files away again: it also knows what there is to count and
//! to list. It listens on a socket beside the files; where it does not, nothing is brought up to date.

use std::ffi::{CStr, c_int};
use std::mem::{offset_of, size_of, zeroed};

/// The socket, below the directory of the files.
const SOCKET_NAME: &[u8] = b"/attendant";

/// "I am a netlink socket with this port." The number follows.
const NETLINK_MAGIC: [u8; 4] = *b"UbiN";

/// "Bring the counters up to date, and say so."
const COUNTERS_MAGIC: [u8; 8] = *b"UbiCount";

/// How long a program waits for that.
const PATIENCE_MILLIS: c_int = 1000;

/// A connection with these flags of `socket`; none if nobody listens.
pub fn connect(files: &CStr, flags: c_int) -> Option<c_int> {
    // SAFETY: zeros are an address, which is live; the path is copied into it if it fits, with a zero behind it. The
    // descriptor is closed where it is not handed out.
    unsafe {
        let mut address: libc::sockaddr_un = zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let path = files.to_bytes().iter().chain(SOCKET_NAME);
        let length = files.to_bytes().len() + SOCKET_NAME.len();
        if length >= address.sun_path.len() {
            return None;
        }
        for (place, byte) in address.sun_path.iter_mut().zip(path) {
            *place = *byte as libc::c_char;
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | flags;
        let socket = super::netlink::real_socket(libc::AF_UNIX, kind, 0);
        if socket < 0 {
            return None;
        }
        let length = (offset_of!(libc::sockaddr_un, sun_path) + length + 1).min(size_of::<libc::sockaddr_un>());
        if libc::connect(socket, (&raw const address).cast(), length as libc::socklen_t) < 0 {
            libc::close(socket);
            return None;
        }
        if flags & libc::SOCK_NONBLOCK == 0 {
            let set = libc::fcntl(socket, libc::F_GETFL);
            libc::fcntl(socket, libc::F_SETFL, set & !libc::O_NONBLOCK);
        }
        Some(socket)
    }
}

/// A connection that speaks netlink and has this port.
pub fn netlink(files: &CStr, flags: c_int, port: u32) -> Option<c_int> {
    let socket = connect(files, flags)?;
    let [a, b, c, d] = NETLINK_MAGIC;
    let [e, f, g, h] = port.to_ne_bytes();
    if send(socket, &[a, b, c, d, e, f, g, h]) {
        return Some(socket);
    }
    // SAFETY: a number that is ours.
    unsafe { libc::close(socket) };
    None
}

/// Has the counters brought up to date; the program sees nothing of it, and its error number stays.
pub fn refresh(files: &CStr) {
    // SAFETY: the location is this thread's own; the buffer and the structure are live.
    unsafe {
        let errno = *libc::__errno_location();
        if let Some(socket) = connect(files, libc::SOCK_CLOEXEC) {
            let mut polled = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
            if send(socket, &COUNTERS_MAGIC) {
                libc::poll(&raw mut polled, 1, PATIENCE_MILLIS);
            }
            libc::close(socket);
        }
        *libc::__errno_location() = errno;
    }
}

fn send(socket: c_int, bytes: &[u8]) -> bool {
    // SAFETY: the bytes are live, and as many as said.
    let sent = unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    sent == bytes.len() as isize
}
