//! Bytes: everything that reads or writes.

use super::table::{self, Socket};
use super::{errno, fail, real, rsocket};
use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::ffi::{c_int, c_short, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Counts a call, as long as it lasts.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicU32) -> Counted<'a> {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A call that reads: `direct` from the rsocket, with flags; `plain` where there is none, or none any more.
fn reading(
    fd: c_int,
    flags: c_int,
    direct: impl FnOnce(c_int, c_int) -> ssize_t,
    plain: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(socket) = table::socket(fd) else { return plain() };
    let counted = Counted::new(&socket.readers);
    let Some(rsocket) = socket.direct() else {
        drop(counted);
        return super::handover::explained(socket, fd, plain());
    };
    match wait_for(socket, rsocket, flags, &socket.receive_timeout, libc::POLLIN) {
        Ok(flags) => direct(rsocket, flags),
        Err(code) => fail(code) as ssize_t,
    }
}

/// A call that writes. Where the peer has gone, the program is notified as by a socket: with a signal.
fn writing(
    fd: c_int,
    flags: c_int,
    direct: impl FnOnce(c_int, c_int) -> ssize_t,
    plain: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(socket) = table::socket(fd) else { return plain() };
    let counted = Counted::new(&socket.writers);
    let Some(rsocket) = socket.direct() else {
        drop(counted);
        return plain();
    };
    let result = match wait_for(socket, rsocket, flags, &socket.send_timeout, libc::POLLOUT) {
        Ok(flags) => direct(rsocket, flags & !MSG_NOSIGNAL),
        Err(code) => fail(code) as ssize_t,
    };
    drop(counted);
    if result < 0 && errno() == libc::EPIPE && flags & MSG_NOSIGNAL == 0 {
        // SAFETY: as the kernel would do. A handler may change errno.
        unsafe { libc::raise(libc::SIGPIPE) };
        fail(libc::EPIPE);
    }
    result
}

/// Waits no longer than the program allows (`SO_RCVTIMEO`, `SO_SNDTIMEO`). Returns the flags of the call.
fn wait_for(
    socket: &Socket,
    rsocket: c_int,
    flags: c_int,
    timeout: &AtomicU32,
    event: c_short,
) -> Result<c_int, c_int> {
    let timeout = timeout.load(Ordering::Relaxed);
    if timeout == 0 || flags & MSG_DONTWAIT != 0 || socket.nonblocking.load(Ordering::Relaxed) {
        return Ok(flags);
    }
    let mut wanted = libc::pollfd { fd: rsocket, events: event, revents: 0 };
    // SAFETY: one descriptor.
    match unsafe { rsocket::rpoll(&raw mut wanted, 1, c_int::try_from(timeout).unwrap_or(c_int::MAX)) } {
        0 => Err(libc::EAGAIN),
        // A writer that has some room may write a part.
        1.. => Ok(flags | MSG_DONTWAIT),
        _ => Err(errno()),
    }
}

/// `read`.
#[unsafe(export_name = "ubiverbs_rspreload_read")]
pub unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the buffer has room for `length` bytes, as `read` asks.
    unsafe {
        let received = |rsocket, flags| rsocket::rrecvfrom(rsocket, buffer, length, flags, null_mut(), null_mut());
        reading(fd, 0, received, || real::read(fd, buffer, length))
    }
}

/// `read` of programs that are checked for overflows.
#[unsafe(export_name = "ubiverbs_rspreload___read_chk")]
pub unsafe extern "C-unwind" fn read_chk(fd: c_int, buffer: *mut c_void, length: size_t, room: size_t) -> ssize_t {
    // SAFETY: the buffer has room for `room` bytes; where more are asked for, the C library ends the program.
    unsafe { if length > room { real::__read_chk(fd, buffer, length, room) } else { read(fd, buffer, length) } }
}

/// `readv`.
#[unsafe(export_name = "ubiverbs_rspreload_readv")]
pub unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: there are `count` parts, each a buffer with its length, as `readv` asks.
    unsafe {
        let received = |rsocket, flags| match flags {
            0 => rsocket::rreadv(rsocket, parts, count),
            _ => rsocket::rrecvmsg(rsocket, &mut message_of(parts, count), flags),
        };
        reading(fd, 0, received, || real::readv(fd, parts, count))
    }
}

/// A message of parts, without address and control data: for calls with flags.
fn message_of(parts: *const iovec, count: c_int) -> msghdr {
    // SAFETY: all zeros are an empty message.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.cast_mut(), count as _);
    message
}

/// `recv`.
#[unsafe(export_name = "ubiverbs_rspreload_recv")]
pub unsafe extern "C-unwind" fn recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the buffer has room for `length` bytes, as `recv` asks.
    unsafe { recvfrom(fd, buffer, length, flags, null_mut(), null_mut()) }
}

/// `recv` of programs that are checked for overflows.
#[unsafe(export_name = "ubiverbs_rspreload___recv_chk")]
pub unsafe extern "C-unwind" fn recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the buffer has room for `room` bytes, as `recv` asks.
    unsafe { recvfrom_chk(fd, buffer, length, room, flags, null_mut(), null_mut()) }
}

/// `recvfrom`.
#[unsafe(export_name = "ubiverbs_rspreload_recvfrom")]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the buffer has room for `length` bytes; address and size are null or room, as `recvfrom` asks.
    unsafe {
        let received = |rsocket, allowed: c_int| {
            let all = flags & libc::MSG_WAITALL != 0 && allowed & (MSG_DONTWAIT | libc::MSG_PEEK) == 0;
            match all {
                true => receive_all(rsocket, buffer.cast(), length, allowed & !libc::MSG_WAITALL),
                false => rsocket::rrecvfrom(rsocket, buffer, length, allowed & !libc::MSG_WAITALL, address, size),
            }
        };
        reading(fd, flags, received, || {
            let result = real::recvfrom(fd, buffer, length, flags, null_mut(), null_mut());
            if result >= 0 && !size.is_null() {
                // A stream has no address to tell.
                *size = 0;
            }
            result
        })
    }
}

/// Until all bytes are there, or no more come.
///
/// # Safety
/// The buffer is as long as it says.
unsafe fn receive_all(rsocket: c_int, buffer: *mut u8, length: usize, flags: c_int) -> ssize_t {
    let mut done = 0;
    while done < length {
        // SAFETY: `done` bytes of the buffer are filled, and the rest is room, as this function asks.
        let more = unsafe {
            let rest = buffer.add(done).cast();
            rsocket::rrecvfrom(rsocket, rest, length - done, flags, null_mut(), null_mut())
        };
        match more {
            1.. => done += more as usize,
            _ if done > 0 => break,
            _ => return more,
        }
    }
    done as ssize_t
}

/// `recvfrom` of programs that are checked for overflows.
#[unsafe(export_name = "ubiverbs_rspreload___recvfrom_chk")]
pub unsafe extern "C-unwind" fn recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the buffer has room for `room` bytes; address and size are null or room, as `recvfrom` asks.
    unsafe {
        match length > room {
            true => real::__read_chk(fd, buffer, length, room),
            false => recvfrom(fd, buffer, length, flags, address, size),
        }
    }
}

/// `recvmsg`.
#[unsafe(export_name = "ubiverbs_rspreload_recvmsg")]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: it is a message with room, as `recvmsg` asks.
    unsafe {
        let received = |rsocket, flags: c_int| {
            let result = rsocket::rrecvmsg(rsocket, message, flags & !libc::MSG_WAITALL);
            if result >= 0 {
                // There is no control data over RDMA.
                ((*message).msg_controllen, (*message).msg_flags) = (0, 0);
            }
            result
        };
        reading(fd, flags, received, || real::recvmsg(fd, message, flags))
    }
}

/// `recvmmsg`: the first may be waited for, the others are taken as they are.
#[unsafe(export_name = "ubiverbs_rspreload_recvmmsg")]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: there are `count` messages with room, and the time is null or one, as `recvmmsg` asks.
    unsafe {
        if table::direct(fd).is_none() {
            return real::recvmmsg(fd, messages, count, flags, timeout);
        }
        each(messages, count, |at, message| recvmsg(fd, message, if at == 0 { flags } else { flags | MSG_DONTWAIT }))
    }
}

/// Message by message, up to the first that fails. Returns how many there were, or the failure of the first.
///
/// # Safety
/// There are as many messages as it says.
unsafe fn each(messages: *mut mmsghdr, count: c_uint, mut one: impl FnMut(c_uint, *mut msghdr) -> ssize_t) -> c_int {
    for at in 0..count {
        // SAFETY: it is below the number of messages.
        unsafe {
            let message = messages.add(at as usize);
            match one(at, &raw mut (*message).msg_hdr) {
                length @ 0.. => (*message).msg_len = length as c_uint,
                _ if at > 0 => return at as c_int,
                failure => return failure as c_int,
            }
        }
    }
    count as c_int
}

/// `write`.
#[unsafe(export_name = "ubiverbs_rspreload_write")]
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the buffer has `length` bytes, as `write` asks.
    unsafe {
        let sent = |rsocket, flags| rsocket::rsendto(rsocket, buffer, length, flags, null(), 0);
        writing(fd, 0, sent, || real::write(fd, buffer, length))
    }
}

/// `writev`.
#[unsafe(export_name = "ubiverbs_rspreload_writev")]
pub unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: there are `count` parts, each a buffer with its length, as `writev` asks.
    unsafe {
        let sent = |rsocket, flags| match flags {
            0 => rsocket::rwritev(rsocket, parts, count),
            _ => rsocket::rsendmsg(rsocket, &message_of(parts, count), flags),
        };
        writing(fd, 0, sent, || real::writev(fd, parts, count))
    }
}

/// `send`.
#[unsafe(export_name = "ubiverbs_rspreload_send")]
pub unsafe extern "C-unwind" fn send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the buffer has `length` bytes, as `send` asks.
    unsafe { sendto(fd, buffer, length, flags, null(), 0) }
}

/// `sendto`. That more is to come (`MSG_MORE`) changes nothing.
#[unsafe(export_name = "ubiverbs_rspreload_sendto")]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> ssize_t {
    let stream = table::socket(fd).is_some_and(Socket::is_stream);
    // A stream's peer is known.
    let (address, size) = if stream { (null(), 0) } else { (address, size) };
    // SAFETY: the buffer has `length` bytes; the address is null or `size` bytes, as `sendto` asks.
    unsafe {
        let sent = |to, flags: c_int| rsocket::rsendto(to, buffer, length, flags & !libc::MSG_MORE, address, size);
        writing(fd, flags, sent, || real::sendto(fd, buffer, length, flags, address, size))
    }
}

/// `sendmsg`.
#[unsafe(export_name = "ubiverbs_rspreload_sendmsg")]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: it is a message, as `sendmsg` asks.
    unsafe {
        if table::direct(fd).is_none() {
            hand_over_passed(message);
            return real::sendmsg(fd, message, flags);
        }
        let sent = |rsocket, flags: c_int| rsocket::rsendmsg(rsocket, message, flags & !libc::MSG_MORE);
        writing(fd, flags, sent, || real::sendmsg(fd, message, flags))
    }
}

/// Descriptors that a message passes to another process are handed over to the kernel first.
///
/// # Safety
/// It is null or a message.
unsafe fn hand_over_passed(message: *const msghdr) {
    // SAFETY: null, or a message, whose headers are walked as the C library does.
    unsafe {
        if message.is_null() || (*message).msg_control.is_null() {
            return;
        }
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let passed = libc::CMSG_DATA(header).cast::<c_int>();
                for at in 0..bytes / size_of::<c_int>() {
                    super::handover::hand_over_descriptor(passed.add(at).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// `sendmmsg`.
#[unsafe(export_name = "ubiverbs_rspreload_sendmmsg")]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: there are `count` messages, as `sendmmsg` asks.
    unsafe {
        if table::direct(fd).is_none() {
            (0..count as usize).for_each(|at| hand_over_passed(&raw const (*messages.add(at)).msg_hdr));
            return real::sendmmsg(fd, messages, count, flags);
        }
        each(messages, count, |_, message| sendmsg(fd, message, flags))
    }
}
