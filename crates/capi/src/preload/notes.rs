//! What is remembered of a socket that an rsocket or the kernel does not know.

use super::rsocket;
use super::status::Status;
use libc::{sockaddr, socklen_t};
use std::collections::HashMap;
use std::ffi::c_int;

/// An address as C has it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) length: socklen_t,
    bytes: [u8; size_of::<libc::sockaddr_storage>()],
}

impl Default for Address {
    fn default() -> Address {
        Address { length: 0, bytes: [0; _] }
    }
}

impl Address {
    pub(super) fn of(ask: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int) -> Address {
        let mut address = Address::default();
        let mut length = address.bytes.len() as socklen_t;
        if ask(address.bytes.as_mut_ptr().cast(), &raw mut length) == 0 {
            address.length = length.min(address.bytes.len() as socklen_t);
        }
        address
    }

    /// The own address of an rsocket.
    pub(super) fn local_of(rsocket: c_int) -> Address {
        // SAFETY: room, and its length.
        Address::of(|address, length| unsafe { rsocket::rgetsockname(rsocket, address, length) })
    }

    /// Its peer's.
    pub(super) fn peer_of(rsocket: c_int) -> Address {
        // SAFETY: room, and its length.
        Address::of(|address, length| unsafe { rsocket::rgetpeername(rsocket, address, length) })
    }

    /// Writes it where C wants it; longer than the room is cut.
    ///
    /// # Safety
    /// They are null, or room and its length.
    pub(super) unsafe fn answer(&self, address: *mut sockaddr, length: *mut socklen_t) {
        if address.is_null() || length.is_null() {
            return;
        }
        // SAFETY: not null, so room and its length; no more is written than there is room.
        unsafe {
            let room = (*length).min(self.length) as usize;
            std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), address.cast(), room);
            *length = self.length;
        }
    }
}

/// What is remembered of a socket.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) local: Address,
    pub(super) peer: Address,
    pub(super) status: Option<Status>,
    pub(super) options: HashMap<(c_int, c_int), Vec<u8>>,
    /// Which `epoll` waits for which descriptor of it, and for what.
    pub(super) watchers: Vec<Watcher>,
}

/// A thread of the program waits.
#[derive(Clone, Copy)]
pub(super) struct Watcher {
    pub(super) epoll: c_int,
    pub(super) fd: c_int,
    pub(super) event: libc::epoll_event,
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} waits for {}", self.epoll, self.fd)
    }
}
