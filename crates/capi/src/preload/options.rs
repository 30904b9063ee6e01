//! Names and options of sockets. What an rsocket does not know, and what means nothing over RDMA, is remembered and
//! answered, so that programs that set it go on; what would be a promise that is not kept is refused.

use super::config::config;
use super::notes::{Address, Notes};
use super::status::Status;
use super::table::{self, Socket};
use super::{errno, fail, real, rsocket};
use libc::{sockaddr, socklen_t, timeval};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// Options of rsockets alone, and their names.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;

/// With the notes of a socket.
pub(super) fn with_notes<T>(socket: &'static Socket, f: impl FnOnce(&mut Notes) -> T) -> T {
    table::with_book(|book| f(book.notes.entry(table::key(socket)).or_default()))
}

/// Remembers the names of a socket that is handed over.
pub(super) fn note_names(socket: &'static Socket, rsocket: c_int, status: Option<Status>) {
    let (local, peer) = (Address::local_of(rsocket), Address::peer_of(rsocket));
    with_notes(socket, |notes| (notes.local, notes.peer, notes.status) = (local, peer, status));
}

/// What became of a stream that was handed over.
pub(super) fn status(socket: &'static Socket) -> Option<Status> {
    table::with_book(|book| book.notes.get(&table::key(socket)).and_then(|notes| notes.status))
}

/// What the environment says of queues. Where an rsocket does not want it, it is as it was.
pub(super) fn apply_environment(rsocket: c_int) {
    let config = config();
    let sizes = [(RDMA_SQSIZE, config.send_queue), (RDMA_RQSIZE, config.receive_queue), (RDMA_INLINE, config.inline)];
    for (name, value) in sizes {
        if let Some(value) = value {
            let size = size_of::<c_int>() as socklen_t;
            // SAFETY: a number and its length.
            unsafe { rsocket::rsetsockopt(rsocket, SOL_RDMA, name, (&raw const value).cast(), size) };
        }
    }
}

/// Whether calls wait.
pub(super) fn set_nonblocking(socket: &'static Socket, fd: c_int, nonblocking: bool) {
    socket.nonblocking.store(nonblocking, Ordering::Relaxed);
    let flags = libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 };
    // SAFETY: plain numbers.
    unsafe {
        match socket.direct() {
            Some(rsocket) => rsocket::rfcntl(rsocket, libc::F_SETFL, flags.into()),
            None => real::fcntl(fd, libc::F_SETFL, flags as _),
        };
    }
}

/// What is carried over where TCP takes an rsocket's place.
pub(super) fn copy_to_tcp(socket: &'static Socket, rsocket: c_int, tcp: c_int) {
    let size = size_of::<c_int>() as socklen_t;
    // SAFETY: numbers and their length; an address and its length.
    unsafe {
        if socket.nonblocking.load(Ordering::Relaxed) {
            real::fcntl(tcp, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as _);
        }
        for (level, name) in [(libc::SOL_SOCKET, libc::SO_REUSEADDR), (libc::IPPROTO_TCP, libc::TCP_NODELAY)] {
            let (mut value, mut length) = (0, size);
            let known = rsocket::rgetsockopt(rsocket, level, name, (&raw mut value).cast(), &raw mut length) == 0;
            if known && value != 0 {
                real::setsockopt(tcp, level, name, (&raw const value).cast(), size);
            }
        }
        for (name, timeout) in [(libc::SO_RCVTIMEO, &socket.receive_timeout), (libc::SO_SNDTIMEO, &socket.send_timeout)]
        {
            let time = time_of(timeout.load(Ordering::Relaxed));
            let length = size_of::<timeval>() as socklen_t;
            real::setsockopt(tcp, libc::SOL_SOCKET, name, (&raw const time).cast(), length);
        }
    }
    let remembered: Vec<((c_int, c_int), Vec<u8>)> =
        with_notes(socket, |notes| notes.options.iter().map(|(name, value)| (*name, value.clone())).collect());
    for ((level, name), value) in remembered {
        // SAFETY: bytes and their length.
        unsafe { real::setsockopt(tcp, level, name, value.as_ptr().cast(), value.len() as socklen_t) };
    }
}

/// `getsockname`.
#[unsafe(export_name = "ubiverbs_rspreload_getsockname")]
pub unsafe extern "C-unwind" fn getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(socket) = table::socket(fd) else { return fail(libc::EBADF) };
    // SAFETY: the address has room for the length that is there, as `getsockname` asks.
    unsafe {
        if let Some(rsocket) = socket.direct() {
            return rsocket::rgetsockname(rsocket, address, length);
        }
        let local = with_notes(socket, |notes| notes.local);
        local.answer(address, length);
    }
    0
}

/// `getpeername`.
#[unsafe(export_name = "ubiverbs_rspreload_getpeername")]
pub unsafe extern "C-unwind" fn getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let Some(socket) = table::socket(fd) else { return fail(libc::EBADF) };
    // SAFETY: the address has room for the length that is there, as `getpeername` asks.
    unsafe {
        if let Some(rsocket) = socket.direct() {
            return rsocket::rgetpeername(rsocket, address, length);
        }
        let (peer, failed) = with_notes(socket, |notes| (notes.peer, notes.status.map_or(0, Status::get)));
        if peer.length == 0 || failed == libc::ECONNREFUSED {
            return fail(libc::ENOTCONN);
        }
        peer.answer(address, length);
    }
    0
}

/// Options that mean something to TCP and nothing here: a connection over RDMA does it in any case, or in its own way.
fn is_harmless(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_KEEPALIVE
                | libc::SO_PRIORITY
                | libc::SO_MARK
                | libc::SO_DEBUG
                | libc::SO_DONTROUTE
                | libc::SO_BROADCAST
                | libc::SO_OOBINLINE
                | libc::SO_RCVLOWAT
                | libc::SO_BUSY_POLL
                | libc::SO_INCOMING_CPU
                | libc::SO_MAX_PACING_RATE
                | libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_LINGER
                | libc::SO_SNDBUF
                | libc::SO_RCVBUF
                | libc::SO_SNDBUFFORCE
                | libc::SO_RCVBUFFORCE
                | libc::SO_NO_CHECK
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_NODELAY
                | libc::TCP_CORK
                | libc::TCP_QUICKACK
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT
                | libc::TCP_USER_TIMEOUT
                | libc::TCP_SYNCNT
                | libc::TCP_DEFER_ACCEPT
                | libc::TCP_WINDOW_CLAMP
                | libc::TCP_LINGER2
                | libc::TCP_FASTOPEN
                | libc::TCP_MAXSEG
                | libc::TCP_NOTSENT_LOWAT
                | libc::TCP_CONGESTION
        ),
        libc::IPPROTO_IP => {
            matches!(name, libc::IP_TOS | libc::IP_TTL | libc::IP_MTU_DISCOVER | libc::IP_RECVERR | libc::IP_FREEBIND)
        }
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_TCLASS
                | libc::IPV6_V6ONLY
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_RECVERR
        ),
        _ => false,
    }
}

/// A time limit in milliseconds. A shorter one than that is one.
fn milliseconds(time: timeval) -> u32 {
    let (seconds, rest) = (time.tv_sec.max(0) as u64, time.tv_usec.clamp(0, 999_999) as u64);
    u32::try_from(seconds.saturating_mul(1000).saturating_add(rest.div_ceil(1000))).unwrap_or(u32::MAX)
}

fn time_of(milliseconds: u32) -> timeval {
    timeval { tv_sec: (milliseconds / 1000).into(), tv_usec: (milliseconds % 1000 * 1000).into() }
}

fn limit_of(socket: &Socket, level: c_int, name: c_int) -> Option<&AtomicU32> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Some(&socket.receive_timeout),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Some(&socket.send_timeout),
        _ => None,
    }
}

/// `setsockopt`.
#[unsafe(export_name = "ubiverbs_rspreload_setsockopt")]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let Some(socket) = table::socket(fd) else { return fail(libc::EBADF) };
    if value.is_null() && length > 0 {
        return fail(libc::EFAULT);
    }
    let rsocket = socket.direct();
    if let Some(limit) = limit_of(socket, level, name) {
        if (length as usize) < size_of::<timeval>() {
            return fail(libc::EINVAL);
        }
        // SAFETY: it is that long. The kernel's socket keeps to it by itself.
        unsafe {
            limit.store(milliseconds(value.cast::<timeval>().read_unaligned()), Ordering::Relaxed);
            return if rsocket.is_some() { 0 } else { real::setsockopt(fd, level, name, value, length) };
        }
    }
    if let Some(rsocket) = rsocket {
        // SAFETY: the value is `length` bytes long, as `setsockopt` asks.
        let result = unsafe { rsocket::rsetsockopt(rsocket, level, name, value, length) };
        if result == 0 || !matches!(errno(), libc::ENOTSUP | libc::ENOPROTOOPT | libc::EINVAL) {
            return result;
        }
    }
    if !is_harmless(level, name) || length > 256 {
        return fail(libc::ENOPROTOOPT);
    }
    // SAFETY: the value is `length` bytes long, as `setsockopt` asks.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length as usize) }.to_vec();
    with_notes(socket, |notes| notes.options.insert((level, name), bytes));
    0
}

/// `getsockopt`.
#[unsafe(export_name = "ubiverbs_rspreload_getsockopt")]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let Some(socket) = table::socket(fd) else { return fail(libc::EBADF) };
    if value.is_null() || length.is_null() {
        return fail(libc::EFAULT);
    }
    if let Some(limit) = limit_of(socket, level, name) {
        let time = time_of(limit.load(Ordering::Relaxed));
        // SAFETY: the value has room for the length that is there, as `getsockopt` asks.
        return unsafe { answer(as_bytes(&time), value, length) };
    }
    let rsocket = socket.direct();
    if let Some(number) = of_the_kind(socket, level, name) {
        // SAFETY: the value has room for the length that is there, as `getsockopt` asks.
        return unsafe { answer(&number.to_ne_bytes(), value, length) };
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) && rsocket.is_none() {
        let code = status(socket).map_or(0, Status::take);
        // SAFETY: the value has room for the length that is there, as `getsockopt` asks.
        return unsafe { answer(&code.to_ne_bytes(), value, length) };
    }
    if let Some(rsocket) = rsocket {
        // SAFETY: the value has room for the length that is there, as `getsockopt` asks.
        let result = unsafe { rsocket::rgetsockopt(rsocket, level, name, value, length) };
        if result == 0 || !matches!(errno(), libc::ENOTSUP | libc::ENOPROTOOPT | libc::EINVAL) {
            return result;
        }
    }
    let remembered = with_notes(socket, |notes| notes.options.get(&(level, name)).cloned());
    let bytes = match (level, name, remembered) {
        (_, _, Some(bytes)) => bytes,
        (libc::IPPROTO_TCP, libc::TCP_INFO, _) => tcp_info(),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION, _) => b"rdma\0".to_vec(),
        _ if is_harmless(level, name) => 0_i32.to_ne_bytes().to_vec(),
        _ => return fail(libc::ENOPROTOOPT),
    };
    // SAFETY: the value has room for the length that is there, as `getsockopt` asks.
    unsafe { answer(&bytes, value, length) }
}

/// What a socket is.
fn of_the_kind(socket: &Socket, level: c_int, name: c_int) -> Option<c_int> {
    let kind = socket.kind.load(Ordering::Relaxed);
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_TYPE) => Some(kind),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Some(socket.domain.load(Ordering::Relaxed)),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) if kind == libc::SOCK_STREAM => Some(libc::IPPROTO_TCP),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Some(libc::IPPROTO_UDP),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Some(socket.listens.load(Ordering::Relaxed).into()),
        _ => None,
    }
}

/// A connection that is established, of which nothing else is known.
fn tcp_info() -> Vec<u8> {
    const ESTABLISHED: u8 = 1;
    let mut bytes = vec![0; 104];
    bytes[0] = ESTABLISHED;
    bytes
}

fn as_bytes(time: &timeval) -> &[u8] {
    // SAFETY: two numbers without a gap.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(time).cast(), size_of::<timeval>()) }
}

/// As much as there is room for.
///
/// # Safety
/// They are room and its length.
unsafe fn answer(bytes: &[u8], value: *mut c_void, length: *mut socklen_t) -> c_int {
    // SAFETY: they are room and its length, and no more is written than there is room.
    unsafe {
        let room = (*length as usize).min(bytes.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), room);
        *length = room as socklen_t;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_rounded_up_and_never_wrap() {
        assert_eq!(milliseconds(timeval { tv_sec: 0, tv_usec: 1 }), 1);
        assert_eq!(milliseconds(timeval { tv_sec: 2, tv_usec: 500_000 }), 2500);
        assert_eq!(milliseconds(timeval { tv_sec: i64::MAX, tv_usec: 0 }), u32::MAX);
        assert_eq!(milliseconds(timeval { tv_sec: -5, tv_usec: -5 }), 0);
        assert_eq!(time_of(2500).tv_usec, 500_000);
    }

    #[test]
    fn an_address_is_cut_to_its_room_and_says_how_long_it_is() {
        let address = Address::of(|bytes, length| {
            // SAFETY: room for an address.
            unsafe {
                bytes.cast::<[u8; 4]>().write([1, 2, 3, 4]);
                *length = 4;
            }
            0
        });
        let (mut room, mut length) = ([9_u8; 4], 2);
        // SAFETY: room, and less than its length.
        unsafe { address.answer(room.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!((room, length), ([1, 2, 9, 9], 4));
        // SAFETY: null is allowed.
        unsafe { address.answer(std::ptr::null_mut(), std::ptr::null_mut()) };
    }
}
