//! The system calls of every message, without what the C library adds to them: there they are points at which a thread can be cancelled, which costs
//! two locked instructions each and would leave our locks behind for ever.

use std::os::fd::RawFd;

/// `sendmsg`.
///
/// # Safety
/// As for `sendmsg`: every pointer in `message` is to readable memory of the length given.
#[inline]
pub(super) unsafe fn send(socket: RawFd, message: *const libc::msghdr, flags: libc::c_int) -> isize {
    // SAFETY: the caller's promise is the one asked for here.
    unsafe { libc::syscall(libc::SYS_sendmsg, socket, message, flags) as isize }
}

/// `send`.
///
/// # Safety
/// As for `send`: `bytes` is readable memory of that length.
#[inline]
pub(super) unsafe fn send_bytes(socket: RawFd, bytes: *const u8, length: usize, flags: libc::c_int) -> isize {
    // SAFETY: the caller's promise is the one asked for here; no address is given.
    unsafe { libc::syscall(libc::SYS_sendto, socket, bytes, length, flags, 0usize, 0usize) as isize }
}

/// `sendmmsg`.
///
/// # Safety
/// As for `sendmmsg`: there are so many messages, which the kernel writes to, and every pointer in them is to readable memory of the length given.
pub(super) unsafe fn send_many(
    socket: RawFd,
    messages: *mut libc::mmsghdr,
    count: libc::c_uint,
    flags: libc::c_int,
) -> isize {
    // SAFETY: the caller's promise is the one asked for here.
    unsafe { libc::syscall(libc::SYS_sendmmsg, socket, messages, count, flags) as isize }
}

/// `recvmsg`.
///
/// # Safety
/// As for `recvmsg`: every pointer in `message` is to writable memory of the length given.
#[inline]
pub(super) unsafe fn receive(socket: RawFd, message: *mut libc::msghdr, flags: libc::c_int) -> isize {
    // SAFETY: the caller's promise is the one asked for here.
    unsafe { libc::syscall(libc::SYS_recvmsg, socket, message, flags) as isize }
}
