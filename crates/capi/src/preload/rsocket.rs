//! The functions of rsockets, as programs call them; and those that programs of plain sockets expect to be otherwise:
//! their rsockets have no descriptors of their own, and neither `shutdown` nor `close` waits for a peer that does not
//! read.

use libc::{iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};
use std::ffi::{c_int, c_long, c_void};

use crate::rsocket::{Numbered, lifecycle};
use std::time::Duration;

/// A socket whose number is no descriptor.
pub(super) fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    lifecycle::make(domain, kind, protocol, Numbered::Beyond)
}

/// The next connection, whose number is no descriptor.
///
/// # Safety
/// As for `accept`.
pub(super) unsafe fn raccept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the address is null or has room for the length that is there, as `accept` asks.
    unsafe { lifecycle::take(fd, address, length, Numbered::Beyond) }
}

/// `shutdown`: the peer hears of it after what was sent before, and the caller does not wait for that.
pub(super) fn rshutdown(fd: c_int, how: c_int) -> c_int {
    lifecycle::begin_shutdown(fd, how)
}

/// `close`: what was sent arrives without the caller, if the peer reads it.
pub(super) fn rclose(fd: c_int) -> c_int {
    lifecycle::close(fd, Duration::ZERO)
}

pub(super) use crate::rsocket::lifecycle::{abort, is_flushed};

unsafe extern "C-unwind" {
    #[link_name = "ubiverbs_rbind"]
    pub(super) fn rbind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    #[link_name = "ubiverbs_rlisten"]
    pub(super) fn rlisten(fd: c_int, backlog: c_int) -> c_int;
    #[link_name = "ubiverbs_rconnect"]
    pub(super) fn rconnect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    #[link_name = "ubiverbs_rrecvfrom"]
    pub(super) fn rrecvfrom(
        fd: c_int,
        buffer: *mut c_void,
        length: size_t,
        flags: c_int,
        address: *mut sockaddr,
        size: *mut socklen_t,
    ) -> ssize_t;
    #[link_name = "ubiverbs_rrecvmsg"]
    pub(super) fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    #[link_name = "ubiverbs_rreadv"]
    pub(super) fn rreadv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    #[link_name = "ubiverbs_rsendto"]
    pub(super) fn rsendto(
        fd: c_int,
        buffer: *const c_void,
        length: size_t,
        flags: c_int,
        address: *const sockaddr,
        size: socklen_t,
    ) -> ssize_t;
    #[link_name = "ubiverbs_rsendmsg"]
    pub(super) fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    #[link_name = "ubiverbs_rwritev"]
    pub(super) fn rwritev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    #[link_name = "ubiverbs_rpoll"]
    pub(super) fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    #[link_name = "ubiverbs_rgetpeername"]
    pub(super) fn rgetpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    #[link_name = "ubiverbs_rgetsockname"]
    pub(super) fn rgetsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    #[link_name = "ubiverbs_rsetsockopt"]
    pub(super) fn rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    #[link_name = "ubiverbs_rgetsockopt"]
    pub(super) fn rgetsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut socklen_t,
    ) -> c_int;
    /// Takes a third argument, if the command has one.
    #[link_name = "ubiverbs_rfcntl"]
    pub(super) fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
}
