//! The system calls of every message, without what the C library adds to them: there they are points at which a thread
//! can be cancelled, which costs two locked instructions each and would leave our locks behind for ever.

use std::os::fd::RawFd;

/// `sendmsg`.
///
/// # Safety
/// As for `sendmsg`: every pointer in `message` is to readable memory of the length given.
#[inline]
pub(super) unsafe fn send(socket: RawFd, message: *const libc::msghdr, flags: libc::c_int) -> isize {
    // SAFETY: every pointer in the message is to readable memory of its length.
    unsafe { libc::syscall(libc::SYS_sendmsg, socket, message, flags) as isize }
}

/// `sendmmsg`.
///
/// # Safety
/// As for `sendmmsg`: there are so many messages, which the kernel writes to, and every pointer in them is to readable
/// memory of the length given.
pub(crate) unsafe fn send_many(
    socket: RawFd,
    messages: *mut libc::mmsghdr,
    count: libc::c_uint,
    flags: libc::c_int,
) -> isize {
    // SAFETY: there are `count` messages of readable memory; if there is one, the first is one.
    unsafe {
        let sent = libc::syscall(libc::SYS_sendmmsg, socket, messages, count, flags) as isize;
        if sent >= 0 || count == 0 || !is_refused() {
            return sent;
        }
        one(messages, send(socket, &raw const (*messages).msg_hdr, flags))
    }
}

/// `recvmsg`.
///
/// # Safety
/// As for `recvmsg`: every pointer in `message` is to writable memory of the length given.
#[inline]
pub(super) unsafe fn receive(socket: RawFd, message: *mut libc::msghdr, flags: libc::c_int) -> isize {
    // SAFETY: every pointer in the message is to writable memory of its length.
    unsafe { libc::syscall(libc::SYS_recvmsg, socket, message, flags) as isize }
}

/// `recvmmsg`, without a time limit.
///
/// # Safety
/// As for `recvmmsg`: there are so many messages, and every pointer in them is to writable memory of the length given.
pub(crate) unsafe fn receive_many(
    socket: RawFd,
    messages: *mut libc::mmsghdr,
    count: libc::c_uint,
    flags: libc::c_int,
) -> isize {
    let forever = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: there are `count` messages of writable memory; if there is one, the first is one.
    unsafe {
        let received = libc::syscall(libc::SYS_recvmmsg, socket, messages, count, flags, forever) as isize;
        if received >= 0 || count == 0 || !is_refused() {
            return received;
        }
        one(messages, receive(socket, &raw mut (*messages).msg_hdr, flags))
    }
}

/// Whether the last call was refused by a sandbox that lets only single messages through.
#[cold]
fn is_refused() -> bool {
    matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}

/// The answer of a call for many messages, of which only the first was tried.
///
/// # Safety
/// There is a first message.
unsafe fn one(messages: *mut libc::mmsghdr, length: isize) -> isize {
    let Ok(bytes) = libc::c_uint::try_from(length) else { return length };
    // SAFETY: there is a first message.
    unsafe { (*messages).msg_len = bytes };
    1
}
