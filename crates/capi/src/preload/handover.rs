//! Streams that the kernel gets: a `pump` moves their bytes from then on, and the program's descriptors
//! are those of a pair of sockets. So they can be inherited, passed on, waited for with `epoll`, and read and written
//! by calls that do not ask us.

use super::notes::Notes;
use super::pair::{pair, replace};
use super::pump::Pump;
use super::status::Status;
use super::table::{self, Socket};
use super::{fail, listeners, options, real, rsocket};
use libc::ssize_t;
use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

/// Hands a socket over, if it is a stream that is connected, is connecting or listens: others have nothing that could
/// be used elsewhere. What cannot be handed over is ended rather than used by two, and a message says so.
pub(super) fn hand_over(socket: &'static Socket) {
    let _turn = table::turn();
    let Some(rsocket) = socket.direct().filter(|_| socket.is_stream()) else { return };
    let result = match (socket.listens.load(Ordering::Relaxed), socket.connects.load(Ordering::Relaxed)) {
        (true, _) => listeners::hand_over(socket, rsocket),
        (_, true) => hand_over_stream(socket, rsocket),
        _ => return,
    };
    if let Err(code) = result {
        let error = std::io::Error::from_raw_os_error(code);
        crate::log::print(format_args!("cannot hand a stream over to the kernel ({error}); the stream is ended"));
        rsocket::rshutdown(rsocket, libc::SHUT_RDWR);
    }
}

/// Hands over the socket of a descriptor, if it is one of ours.
pub(super) fn hand_over_descriptor(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        hand_over(socket);
    }
}

/// Hands over every socket there is.
pub(super) fn hand_over_all() {
    for (_, socket) in table::all() {
        hand_over(socket);
    }
}

fn hand_over_stream(socket: &'static Socket, rsocket: c_int) -> Result<(), c_int> {
    let [program, kernel] = pair(libc::SOCK_STREAM)?;
    let status = Status::new();
    let connecting = (!is_connected(socket, rsocket)).then(|| fill(program));
    options::note_names(socket, rsocket, Some(status));
    // From here on calls go to the descriptors; what they write waits in the pair.
    socket.let_go();
    replace(socket, program);
    let pump = Pump { rsocket, kernel, status, socket: Some(socket), connecting };
    pump.start().inspect_err(|_| {
        // SAFETY: our end: the program's hears that its peer has gone.
        unsafe { real::close(kernel) };
    })
}

/// Whether the connection is there. What cannot be written to now is taken for one that is not: the program can write
/// when the rsocket can.
fn is_connected(socket: &Socket, rsocket: c_int) -> bool {
    let mut wanted = libc::pollfd { fd: rsocket, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor.
    !socket.connecting.load(Ordering::Relaxed)
        || unsafe { rsocket::rpoll(&raw mut wanted, 1, 0) } > 0 && wanted.revents == libc::POLLOUT
}

/// Writes until no more can be written: the program must not take it for connected. Returns how much that was.
fn fill(program: c_int) -> usize {
    let (zeros, mut filled) = ([0_u8; 4096], 0);
    loop {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: bytes and their length.
        let written = unsafe { real::sendto(program, zeros.as_ptr().cast(), zeros.len(), flags, null(), 0) };
        match usize::try_from(written) {
            Ok(written @ 1..) => filled += written,
            _ => return filled,
        }
    }
}

/// A descriptor of a stream that another process moves leads to a socket, for its addresses.
pub(super) fn adopt(fd: c_int, domain: c_int, notes: Notes, nonblocking: bool) {
    let socket = table::new_socket(-1, domain, libc::SOCK_STREAM);
    socket.connects.store(true, Ordering::Relaxed);
    table::with_book(|book| book.notes.insert(table::key(socket), notes));
    table::insert(fd, socket);
    options::set_nonblocking(socket, fd, nonblocking);
}

/// What a call that read from the kernel's end answers. The end of a stream that broke off is no end.
pub(super) fn explained(socket: &'static Socket, fd: c_int, result: ssize_t) -> ssize_t {
    if result != 0 {
        return result;
    }
    let code = options::status(socket).map_or(0, Status::error_at_end);
    if code == 0 || !is_at_end(fd) {
        return 0;
    }
    fail(code) as ssize_t
}

/// Whether nothing more can be read; a call may also have asked for nothing.
fn is_at_end(fd: c_int) -> bool {
    let (mut byte, flags) = (0_u8, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // SAFETY: room for a byte.
    unsafe { real::recvfrom(fd, (&raw mut byte).cast(), 1, flags, null_mut(), null_mut()) == 0 }
}
