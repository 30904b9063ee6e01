//! Sending and receiving.

use super::address;
use super::table::{Kind, SocketEntry, entry};
use super::waiting::{Operation, errno, perform, perform_in};
use crate::boundary::data_path;
use crate::errno::{Errno, refuse_if};
use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use sockets::{MAX_DATAGRAM, Receive, Scatter, Slices};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

/// Flags that mean something here, or nothing at all. There are no urgent data, and no queue of errors.
const KNOWN_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_MORE
    | libc::MSG_EOR
    | libc::MSG_CONFIRM
    | libc::MSG_DONTROUTE
    | libc::MSG_CMSG_CLOEXEC;

const BAD_ADDRESS: Errno = Errno::of(libc::EFAULT);
/// Pieces of a message that are looked at together. More take longer.
const PIECES_PER_LOOK: usize = 16;
/// The most that one call moves: what `ssize_t` can say.
const MAX_BYTES_PER_CALL: usize = isize::MAX as usize;

fn fail(call: &'static str, error: Errno) -> ssize_t {
    data_path::number(call, || Err(error)) as ssize_t
}

fn refuse_flags(flags: c_int) -> Result<(), Errno> {
    if flags & !KNOWN_FLAGS == 0 { Ok(()) } else { Err(Errno::of(libc::EOPNOTSUPP)) }
}

/// The pieces of a message, as C has them: an array, or the one of a plain call.
#[derive(Clone, Copy)]
struct MessagePieces {
    array: *const iovec,
    count: usize,
    /// Their sum.
    length: usize,
}

impl MessagePieces {
    /// # Safety
    /// `array` is null or has `count` elements, each of which is null or has the bytes that it says.
    unsafe fn new(array: *const iovec, count: usize) -> Result<MessagePieces, Errno> {
        refuse_if!(count > libc::UIO_MAXIOV as usize, Errno::INVALID);
        refuse_if!(array.is_null() && count > 0, BAD_ADDRESS);
        let mut length: usize = 0;
        for at in 0..count {
            // SAFETY: there are that many.
            let piece = unsafe { array.add(at).read() };
            refuse_if!(piece.iov_base.is_null() && piece.iov_len > 0, BAD_ADDRESS);
            length = length
                .checked_add(piece.iov_len)
                .filter(|length| *length <= MAX_BYTES_PER_CALL)
                .ok_or(Errno::INVALID)?;
        }
        Ok(MessagePieces { array, count, length })
    }

    /// All of a datagram in one piece; `EMSGSIZE` if it is longer than any.
    ///
    /// # Safety
    /// The pieces are as `new` wants them, and readable.
    unsafe fn whole(&self) -> Result<Vec<u8>, Errno> {
        refuse_if!(self.length > MAX_DATAGRAM, Errno::of(libc::EMSGSIZE));
        let mut whole = Vec::with_capacity(self.length);
        while whole.len() < self.length {
            let mut room = [const { MaybeUninit::uninit() }; PIECES_PER_LOOK];
            // SAFETY: the pieces are readable, as this function asks.
            unsafe { self.fill(whole.len(), &mut room) }.iter().for_each(|piece| whole.extend_from_slice(piece));
        }
        Ok(whole)
    }

    /// # Safety
    /// The pieces are as `new` wants them, and readable.
    unsafe fn fill<'a>(&self, from: usize, room: &'a mut [MaybeUninit<&'a [u8]>; PIECES_PER_LOOK]) -> &'a [&'a [u8]] {
        let (mut skip, mut count) = (from, 0);
        for at in 0..self.count {
            // SAFETY: there are that many.
            let piece = unsafe { self.array.add(at).read() };
            if piece.iov_len <= skip {
                skip -= piece.iov_len;
                continue;
            }
            let Some(place) = room.get_mut(count) else { break };
            // SAFETY: not null, as it is longer than nothing, and as long as it says.
            place.write(unsafe { slice::from_raw_parts(piece.iov_base.cast::<u8>().add(skip), piece.iov_len - skip) });
            (skip, count) = (0, count + 1);
        }
        // SAFETY: the first so many were written.
        unsafe { slice::from_raw_parts(room.as_ptr().cast(), count) }
    }
}

/// Room of a program's, from a place on.
struct ProgramRoom {
    pieces: MessagePieces,
    at: usize,
}

impl Scatter for ProgramRoom {
    fn room(&self) -> usize {
        self.pieces.length - self.at
    }

    fn peek(&mut self) -> &mut [u8] {
        let at = self.at;
        let place: *mut [u8] = self.next(usize::MAX);
        self.at = at;
        // SAFETY: as `next` answered it; where the next begins is all that has changed since.
        unsafe { &mut *place }
    }

    fn next(&mut self, most: usize) -> &mut [u8] {
        let mut skip = self.at;
        for at in 0..self.pieces.count {
            // SAFETY: there are that many.
            let piece = unsafe { self.pieces.array.add(at).read() };
            if piece.iov_len > skip {
                let length = (piece.iov_len - skip).min(most);
                self.at += length;
                // SAFETY: the program has given it to be written, and it is as long as it says.
                return unsafe { slice::from_raw_parts_mut(piece.iov_base.cast::<u8>().add(skip), length) };
            }
            skip -= piece.iov_len;
        }
        &mut []
    }
}

/// A send. It goes on until everything is sent.
struct Send {
    pieces: MessagePieces,
    sent: usize,
    /// Where a datagram goes.
    to: Option<SocketAddr>,
}

impl Operation for Send {
    const CALL: &'static str = "rsend";

    #[inline]
    fn attempt(&mut self, entry: &Arc<SocketEntry>) -> Result<(), Errno> {
        let socket = match &entry.kind {
            Kind::Stream(_) if self.to.is_some() => return Err(Errno::of(libc::EISCONN)),
            Kind::Stream(socket) => socket,
            Kind::Datagram(socket) => {
                // SAFETY: as the calls want them.
                let whole = unsafe { self.pieces.whole() }?;
                self.sent = socket.send(&[&whole], self.to).map_err(errno)?;
                return Ok(());
            }
        };
        loop {
            let mut room = [const { MaybeUninit::uninit() }; PIECES_PER_LOOK];
            // SAFETY: as the calls want them.
            let pieces = unsafe { self.pieces.fill(self.sent, &mut room) };
            self.sent += socket.send(&mut Slices::new(pieces)).map_err(errno)?;
            if self.sent >= self.pieces.length {
                return Ok(());
            }
        }
    }

    fn answer(&self) -> isize {
        self.sent as isize
    }

    fn part(&self) -> Option<isize> {
        (self.sent > 0).then_some(self.sent as isize)
    }
}

/// A receive.
struct ReceiveInto {
    pieces: MessagePieces,
    received: usize,
    peek: bool,
    /// Until there is no more room.
    whole: bool,
    /// Who sent a datagram, and how long it was.
    from: Option<SocketAddr>,
    length: usize,
}

impl Operation for ReceiveInto {
    const CALL: &'static str = "rrecv";

    #[inline]
    fn attempt(&mut self, entry: &Arc<SocketEntry>) -> Result<(), Errno> {
        let socket = match &entry.kind {
            Kind::Stream(socket) => socket,
            Kind::Datagram(socket) => {
                let pieces = self.pieces;
                let (from, length) = socket.receive(self.peek, |from, bytes| {
                    let mut room = ProgramRoom { pieces, at: 0 };
                    let mut left = bytes;
                    while !left.is_empty() {
                        let place = room.next(left.len());
                        let (now, later) = left.split_at(place.len());
                        if now.is_empty() {
                            break;
                        }
                        place.copy_from_slice(now);
                        left = later;
                    }
                    (from, bytes.len())
                })?;
                (self.from, self.length) = (Some(from), length);
                self.received = length.min(pieces.length);
                return Ok(());
            }
        };
        loop {
            let mut room = ProgramRoom { pieces: self.pieces, at: self.received };
            let some = socket.receive(&mut room, Receive { peek: self.peek }).map_err(errno)?;
            self.received += some;
            if some == 0 || !self.whole || self.peek || self.received >= self.pieces.length {
                return Ok(());
            }
        }
    }

    fn answer(&self) -> isize {
        self.received as isize
    }

    fn part(&self) -> Option<isize> {
        (self.received > 0).then_some(self.received as isize)
    }
}

/// # Safety
/// As for [`Pieces::new`]; readable.
#[inline]
unsafe fn send(
    call: &'static str,
    fd: c_int,
    array: *const iovec,
    count: usize,
    flags: c_int,
    to: Result<Option<SocketAddr>, Errno>,
) -> ssize_t {
    // SAFETY: there are `count` pieces, and they are readable.
    let pieces = refuse_flags(flags).and_then(|()| unsafe { MessagePieces::new(array, count) });
    match pieces.and_then(|pieces| Ok((pieces, to?))) {
        Ok((pieces, to)) => perform(fd, flags, Send { pieces, sent: 0, to }),
        // What is no descriptor is that first.
        Err(error) => fail(call, entry(fd).err().unwrap_or(error)),
    }
}

/// # Safety
/// As for [`Pieces::new`]; writable.
#[inline]
unsafe fn receive(
    call: &'static str,
    fd: c_int,
    array: *const iovec,
    count: usize,
    flags: c_int,
    about: Option<&mut (Option<SocketAddr>, bool)>,
) -> ssize_t {
    // SAFETY: there are `count` pieces, and they are writable.
    match refuse_flags(flags).and_then(|()| unsafe { MessagePieces::new(array, count) }) {
        Ok(pieces) => {
            let (peek, whole) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
            let mut call = ReceiveInto { pieces, received: 0, peek, whole, from: None, length: 0 };
            let answer = perform_in(fd, flags, &mut call);
            if let Some(about) = about {
                *about = (call.from, call.length > call.received);
            }
            answer
        }
        Err(error) => fail(call, entry(fd).err().unwrap_or(error)),
    }
}

/// Sends.
///
/// # Safety
/// As for `send`.
#[unsafe(export_name = "ubiverbs_rsend")]
pub unsafe extern "C-unwind" fn rsend(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    let piece = iovec { iov_base: buffer.cast_mut(), iov_len: length };
    // SAFETY: one piece, as `send` wants it.
    unsafe { send("rsend", fd, &raw const piece, 1, flags, Ok(None)) }
}

/// Sends to the peer, or, with datagrams, to an address.
///
/// # Safety
/// As for `sendto`.
#[unsafe(export_name = "ubiverbs_rsendto")]
pub unsafe extern "C-unwind" fn rsendto(
    fd: c_int,
    buffer: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    let piece = iovec { iov_base: buffer.cast_mut(), iov_len: length };
    // SAFETY: one piece, and an address, as `sendto` wants them.
    unsafe { send("rsendto", fd, &raw const piece, 1, flags, address::maybe_given(to, to_length)) }
}

/// Sends from several pieces.
///
/// # Safety
/// As for `sendmsg`.
#[unsafe(export_name = "ubiverbs_rsendmsg")]
pub unsafe extern "C-unwind" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: null, or a message.
    let Some(message) = (unsafe { message.as_ref() }) else {
        return fail("rsendmsg", entry(fd).err().unwrap_or(BAD_ADDRESS));
    };
    if !message.msg_control.is_null() && message.msg_controllen > 0 {
        return fail("rsendmsg", entry(fd).err().unwrap_or(Errno::of(libc::ENOTSUP)));
    }
    // SAFETY: as `sendmsg` wants them.
    unsafe {
        let to = address::maybe_given(message.msg_name.cast(), message.msg_namelen);
        send("rsendmsg", fd, message.msg_iov, message.msg_iovlen, flags, to)
    }
}

/// Sends.
///
/// # Safety
/// As for `write`.
#[unsafe(export_name = "ubiverbs_rwrite")]
pub unsafe extern "C-unwind" fn rwrite(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: as `write` wants it.
    unsafe { rsend(fd, buffer, length, 0) }
}

/// Sends from several pieces.
///
/// # Safety
/// As for `writev`.
#[unsafe(export_name = "ubiverbs_rwritev")]
pub unsafe extern "C-unwind" fn rwritev(fd: c_int, array: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as `writev` wants them.
    unsafe { send("rwritev", fd, array, usize::try_from(count).unwrap_or(usize::MAX), 0, Ok(None)) }
}

/// Receives.
///
/// # Safety
/// As for `recv`.
#[unsafe(export_name = "ubiverbs_rrecv")]
pub unsafe extern "C-unwind" fn rrecv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    let piece = iovec { iov_base: buffer, iov_len: length };
    // SAFETY: one piece, as `recv` wants it.
    unsafe { receive("rrecv", fd, &raw const piece, 1, flags, None) }
}

/// Receives, and says from whom.
///
/// # Safety
/// As for `recvfrom`.
#[unsafe(export_name = "ubiverbs_rrecvfrom")]
pub unsafe extern "C-unwind" fn rrecvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    let piece = iovec { iov_base: buffer, iov_len: length };
    let mut about = (None, false);
    // SAFETY: one piece, as `recvfrom` wants it.
    let received = unsafe { receive("rrecvfrom", fd, &raw const piece, 1, flags, Some(&mut about)) };
    if received >= 0 && !from.is_null() {
        let peer = || entry(fd).ok()?.stream().ok()?.peer_address().ok();
        if let Some(peer) = about.0.or_else(peer) {
            // SAFETY: as `recvfrom` wants it. What was received is there, whether or not its sender can be told.
            let _ = unsafe { address::answer(peer, from, from_length) };
        }
    }
    received
}

/// Receives into several pieces.
///
/// # Safety
/// As for `recvmsg`.
#[unsafe(export_name = "ubiverbs_rrecvmsg")]
pub unsafe extern "C-unwind" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if message.is_null() {
        return fail("rrecvmsg", entry(fd).err().unwrap_or(BAD_ADDRESS));
    }
    // SAFETY: not null, so a message. Not a reference: the program reads and writes it too.
    let (array, count, control) = unsafe {
        let control = (*message).msg_controllen > 0 && !(*message).msg_control.is_null();
        ((*message).msg_iov, (*message).msg_iovlen, control)
    };
    if control {
        return fail("rrecvmsg", entry(fd).err().unwrap_or(Errno::of(libc::ENOTSUP)));
    }
    let mut about = (None, false);
    // SAFETY: as `recvmsg` wants them.
    let received = unsafe { receive("rrecvmsg", fd, array, count, flags, Some(&mut about)) };
    if received >= 0 {
        // SAFETY: a message, whose name is null or as long as it says.
        unsafe {
            (*message).msg_flags = if about.1 { libc::MSG_TRUNC } else { 0 };
            // A stream has no names.
            match about.0.filter(|_| !(*message).msg_name.is_null()) {
                Some(from) => {
                    let length = &raw mut (*message).msg_namelen;
                    let _ = address::answer(from, (*message).msg_name.cast(), length);
                }
                None => (*message).msg_namelen = 0,
            }
        }
    }
    received
}

/// Receives.
///
/// # Safety
/// As for `read`.
#[unsafe(export_name = "ubiverbs_rread")]
pub unsafe extern "C-unwind" fn rread(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: as `read` wants it.
    unsafe { rrecv(fd, buffer, length, 0) }
}

/// Receives into several pieces.
///
/// # Safety
/// As for `readv`.
#[unsafe(export_name = "ubiverbs_rreadv")]
pub unsafe extern "C-unwind" fn rreadv(fd: c_int, array: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as `readv` wants them.
    unsafe { receive("rreadv", fd, array, usize::try_from(count).unwrap_or(usize::MAX), 0, None) }
}
