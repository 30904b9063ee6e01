//! What `librspreload.so` asks: socket programs over RDMA, unchanged. The preloaded library has the C library's
//! names (`link/rspreload.txt`) and jumps here; what is said to a descriptor of ours is said to an rsocket instead.
//!
//! The descriptor that a program holds is a second one of the rsocket's own, under a number of the program's. Several
//! may lead to one rsocket, as after `dup`. The kernel says of them what it would of a socket: they can be waited for
//! with `epoll`, and closed by number.
//!
//! A stream is *direct* at first: calls go to the rsocket, in the caller's thread. Where a descriptor is used in a way
//! that the C library does not tell us of, or by another process, the stream is handed over to the kernel first
//! ([`handover`]): a thread of this process moves its bytes, and the descriptor is one like any other from then on.
//!
//! The functions with names of the C library ask of their callers what the C library's ask.
#![allow(clippy::missing_safety_doc, reason = "said above, once for all of them")]

pub mod config;
pub mod data;
pub mod descriptors;
pub mod files;
pub mod handover;
pub mod lifecycle;
mod listeners;
mod notes;
pub mod options;
mod pair;
pub mod processes;
mod pump;
mod real;
mod rsocket;
mod start;
mod status;
mod symbols;
pub mod table;
pub mod waiting;

use std::ffi::c_int;

/// Minus one, with an errno.
fn fail(errno: c_int) -> c_int {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The last call's errno.
fn errno() -> c_int {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}
