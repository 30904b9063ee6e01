//! Messages with descriptors on a SEQPACKET connection. The receiver takes every descriptor that came, so that an
//! unwanted message leaves none open.

use crate::descriptor::{Descriptor, above_standard, check_length};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// The most descriptors of a message.
pub const MAX_DESCRIPTORS_PER_MESSAGE: usize = 3;

/// Room for a control message with that many, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends a message. Never waits.
pub fn send(socket: &Descriptor, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<()> {
    let mut control = Control([0; 64]);
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a message; all that it points to lives until the call has returned, and the control message
    // fits its buffer.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        if !descriptors.is_empty() && descriptors.len() <= MAX_DESCRIPTORS_PER_MESSAGE {
            let length = size_of_val(descriptors) as u32;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            std::ptr::copy_nonoverlapping(descriptors.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), length as usize);
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        check_length(libc::sendmsg(socket.raw(), &raw const message, flags)).map(drop)
    }
}

/// Takes a message, and the descriptors that came with it; `Ok(0)` is the end. A message longer than `buffer` answers
/// its real length. Never waits.
pub fn receive(socket: &Descriptor, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control = Control([0; 64]);
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: zeros are a message; all that it points to lives until the call has returned. Control messages are walked
    // as the kernel left them, and every descriptor in one is ours from then on.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE((MAX_DESCRIPTORS_PER_MESSAGE * size_of::<RawFd>()) as u32) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC | libc::MSG_CMSG_CLOEXEC;
        let length = check_length(libc::recvmsg(socket.raw(), &raw mut message, flags))?;
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(found) = header.as_ref() {
            if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
                let bytes = found.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for index in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(index).read_unaligned();
                    let passed = OwnedFd::from_raw_fd(fd);
                    descriptors.push(above_standard(passed)?);
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        Ok(length)
    }
}
