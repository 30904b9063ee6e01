//! Listening sockets that several processes have: a thread of the process that made one accepts, and passes streams on
//! through a pair of sockets, whose other end is the listening socket to all of them. The process that accepts first
//! gets the stream, as with the kernel's.

use super::notes::{Address, Notes};
use super::pair::{pair, replace};
use super::pump::{Pump, start_thread};
use super::status::Status;
use super::table::{self, Socket};
use super::{errno, fail, options, real, rsocket};
use libc::{POLLIN, pollfd, sockaddr, socklen_t};
use std::ffi::c_int;
use std::ptr::null_mut;

/// What goes along with a stream.
#[repr(C)]
#[derive(Clone, Copy)]
struct Names {
    local: Address,
    peer: Address,
}

/// Room for control data with one descriptor.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Hands a listening socket over.
pub(super) fn hand_over(socket: &'static Socket, rsocket: c_int) -> Result<(), c_int> {
    let [program, ours] = pair(libc::SOCK_SEQPACKET)?;
    options::note_names(socket, rsocket, None);
    // The thread must not wait for a connection that is gone.
    rsocket::rfcntl(rsocket, libc::F_SETFL, libc::O_NONBLOCK.into());
    socket.let_go();
    replace(socket, program);
    table::set_internal(ours, true);
    start_thread("ubiverbs-accept", move || pass_on(rsocket, ours)).inspect_err(|_| {
        table::set_internal(ours, false);
        // SAFETY: our end.
        unsafe { real::close(ours) };
    })
}

/// Passes streams on until no process listens any more.
fn pass_on(rsocket: c_int, ours: c_int) {
    loop {
        let mut wanted =
            [pollfd { fd: rsocket, events: POLLIN, revents: 0 }, pollfd { fd: ours, events: 0, revents: 0 }];
        // SAFETY: two descriptors.
        let ready = unsafe { rsocket::rpoll(wanted.as_mut_ptr(), 2, -1) };
        if wanted[1].revents != 0 || ready < 0 && errno() != libc::EINTR {
            break;
        }
        if wanted[0].revents == 0 {
            continue;
        }
        // SAFETY: no address is asked for.
        let made = unsafe { rsocket::raccept(rsocket, null_mut(), null_mut()) };
        if made >= 0 && !pass_one_on(made, ours) {
            break;
        }
    }
    table::set_internal(ours, false);
    // SAFETY: our end.
    unsafe { real::close(ours) };
    table::close_rsocket(rsocket);
}

/// False if no process listens any more.
fn pass_one_on(made: c_int, ours: c_int) -> bool {
    let names = Names { local: Address::local_of(made), peer: Address::peer_of(made) };
    let started = pair(libc::SOCK_STREAM).and_then(|[program, kernel]| {
        let pump = Pump { rsocket: made, kernel, status: Status::new(), socket: None, connecting: None };
        pump.start().map(|()| program)
    });
    let program = match started {
        Ok(program) => program,
        Err(code) => {
            let error = std::io::Error::from_raw_os_error(code);
            crate::log::print(format_args!("a connection is refused: no thread for it ({error})"));
            table::close_rsocket(made);
            return true;
        }
    };
    let mut control = Control([0; 64]);
    // SAFETY: a message of plain bytes, with control data that has room for a descriptor.
    unsafe {
        let mut part = libc::iovec { iov_base: (&raw const names).cast_mut().cast(), iov_len: size_of::<Names>() };
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as _;
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(program);
        let mut sent = real::sendmsg(ours, &raw const message, libc::MSG_NOSIGNAL);
        while sent < 0 && errno() == libc::EINTR {
            sent = real::sendmsg(ours, &raw const message, libc::MSG_NOSIGNAL);
        }
        real::close(program);
        sent >= 0
    }
}

/// Takes the next stream that was passed on, as `accept` does: a descriptor, and what is known of it.
pub(super) fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> Option<(c_int, Notes)> {
    let mut control = Control([0; 64]);
    let none = Address::default();
    let mut names = Names { local: none, peer: none };
    // SAFETY: room for a message of plain bytes, and for control data with a descriptor.
    let stream = unsafe {
        let mut part = libc::iovec { iov_base: (&raw mut names).cast(), iov_len: size_of::<Names>() };
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), size_of::<Control>() as _);
        match real::recvmsg(fd, &raw mut message, libc::MSG_CMSG_CLOEXEC) {
            ..0 => return None,
            0 => {
                // The process that accepts has ended.
                fail(libc::EINVAL);
                return None;
            }
            _ => {}
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            fail(libc::ECONNABORTED);
            return None;
        }
        libc::CMSG_DATA(header).cast::<c_int>().read_unaligned()
    };
    // SAFETY: as `accept` wants it.
    unsafe { names.peer.answer(address, length) };
    Some((stream, Notes { local: names.local, peer: names.peer, ..Notes::default() }))
}
