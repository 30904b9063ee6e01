//! The system calls of every message, without what the C library adds to them: there they are points at which a thread
//! can be cancelled, which costs two locked instructions each and would leave our locks behind for ever.

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

/// `sendmmsg`.
///
/// # Safety
/// As for `sendmmsg`: there are so many messages, which the kernel writes to, and every pointer in them is to readable
/// memory of the length given.
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

/// `recvmmsg`, without a time limit.
///
/// # Safety
/// As for `recvmmsg`: there are so many messages, and every pointer in them is to writable memory of the length given.
pub(super) unsafe fn receive_many(
    socket: RawFd,
    messages: *mut libc::mmsghdr,
    count: libc::c_uint,
    flags: libc::c_int,
) -> isize {
    let forever = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the caller's promise is the one asked for here.
    unsafe { libc::syscall(libc::SYS_recvmmsg, socket, messages, count, flags, forever) as isize }
}
