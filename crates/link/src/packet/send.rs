//! Sending frames.

use super::socket;
use crate::udp::call::send_many;
use ::host::descriptor::Descriptor;
use std::io;
use std::ptr::null_mut;

/// The most frames that one call sends.
pub const MAX_BATCH: usize = 16;

/// A socket that sends frames and receives none.
#[derive(Debug)]
pub struct Sender {
    socket: Descriptor,
}

impl Sender {
    /// One for an interface.
    pub fn open(interface: u32) -> io::Result<Sender> {
        Ok(Sender { socket: socket(interface, 0)? })
    }

    /// Sends frames, in order; returns how many the kernel took, which is less than all if it has no room. If it took
    /// none, why.
    pub fn send(&self, frames: &[Vec<u8>]) -> io::Result<usize> {
        let mut pieces = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; MAX_BATCH];
        // SAFETY: plain data, for which zeros are no address, no pieces and no control bytes.
        let mut messages: [libc::mmsghdr; MAX_BATCH] = unsafe { std::mem::zeroed() };
        let count = frames.len().min(MAX_BATCH);
        for ((frame, piece), message) in frames.iter().zip(&mut pieces).zip(&mut messages) {
            *piece = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `count` messages have a piece each, of a live frame.
        let sent =
            unsafe { send_many(self.socket.raw(), messages.as_mut_ptr(), count as libc::c_uint, libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Sleeps until the kernel has room, or so many milliseconds have passed.
    pub fn wait(&self, millis: i32) {
        let _shield = host::thread::Shield::up();
        let mut polled = libc::pollfd { fd: self.socket.raw(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one live structure.
        unsafe { libc::poll(&raw mut polled, 1, millis) };
    }
}
