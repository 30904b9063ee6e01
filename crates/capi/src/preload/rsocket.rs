//! The functions of rsockets, as programs call them; and those that programs of plain sockets expect to be otherwise:
//! their rsockets have no descriptors of their own, and neither `shutdown` nor `close` waits for a peer that does not
//! read.

use crate::rsocket::{Numbered, lifecycle};
use libc::{sockaddr, socklen_t};
use std::ffi::c_int;
use std::time::Duration;

pub(super) use crate::rsocket::data::{rreadv, rrecvfrom, rrecvmsg, rsendmsg, rsendto, rwritev};
pub(super) use crate::rsocket::lifecycle::{abort, is_flushed, rbind, rconnect, rgetpeername, rgetsockname, rlisten};
pub(super) use crate::rsocket::options::{rfcntl, rgetsockopt, rsetsockopt};
pub(super) use crate::rsocket::poll::rpoll;

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
