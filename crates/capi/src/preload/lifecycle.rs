//! Sockets are made, bound, listened at, accepted, connected, shut down and closed.

use super::config::config;
use super::table::{self, Socket};
use super::{errno, fail, handover, listeners, options, processes, real, rsocket, waiting};
use libc::{sockaddr, socklen_t};
use std::ffi::c_int;
use std::sync::atomic::Ordering;

/// What may be said along with the kind of a socket.
const SOCKET_TYPE_FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// `socket`: an rsocket, if the settings allow it and there are rsockets of that kind; else the kernel's.
#[unsafe(export_name = "ubiverbs_rspreload_socket")]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let (bare, flags) = (kind & !SOCKET_TYPE_FLAGS, kind & SOCKET_TYPE_FLAGS);
    let possible =
        matches!(domain, libc::AF_INET | libc::AF_INET6) && matches!(bare, libc::SOCK_STREAM | libc::SOCK_DGRAM);
    // SAFETY: plain numbers.
    unsafe {
        if !possible || !config().takes(domain, bare, protocol) {
            return real::socket(domain, kind, protocol);
        }
        let Some(place) = PlaceholderDescriptor::reserve() else { return -1 };
        let made = rsocket::rsocket(domain, bare, protocol);
        if made < 0 {
            drop(place);
            return real::socket(domain, kind, protocol);
        }
        processes::prepare_end();
        options::apply_environment(made);
        place.fill(made, domain, bare, flags).0
    }
}

/// A descriptor for a socket, with the lowest number that is free, as programs expect. To the kernel it is a socket that
/// is connected to nothing.
struct PlaceholderDescriptor(c_int);

impl PlaceholderDescriptor {
    /// None, with errno, where there is none left.
    fn reserve() -> Option<PlaceholderDescriptor> {
        // SAFETY: plain numbers.
        let fd = unsafe { real::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd >= 0 && !table::has_room(fd) {
            drop(PlaceholderDescriptor(fd));
            fail(libc::EMFILE);
            return None;
        }
        (fd >= 0).then_some(PlaceholderDescriptor(fd))
    }

    /// Becomes a descriptor of an rsocket.
    fn fill(self, made: c_int, domain: c_int, kind: c_int, flags: c_int) -> (c_int, &'static Socket) {
        let fd = self.0;
        std::mem::forget(self);
        if flags & libc::SOCK_CLOEXEC == 0 {
            // SAFETY: it is open.
            unsafe { real::fcntl(fd, libc::F_SETFD, 0) };
        }
        let socket = table::new_socket(made, domain, kind);
        table::insert(fd, socket);
        if flags & libc::SOCK_NONBLOCK != 0 {
            options::set_nonblocking(socket, fd, true);
        }
        (fd, socket)
    }

    /// Becomes another descriptor, which is closed.
    fn become_other(self, other: c_int, close_on_exec: bool) -> c_int {
        let fd = self.0;
        std::mem::forget(self);
        // SAFETY: both are open.
        unsafe {
            real::dup3(other, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 });
            real::close(other);
        }
        fd
    }
}

impl Drop for PlaceholderDescriptor {
    fn drop(&mut self) {
        let kept = errno();
        // SAFETY: ours, and open.
        unsafe { real::close(self.0) };
        fail(kept);
    }
}

/// `bind`.
#[unsafe(export_name = "ubiverbs_rspreload_bind")]
pub unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the address is `length` bytes long, as `bind` asks.
    unsafe {
        match table::direct(fd) {
            Some(rsocket) => rsocket::rbind(rsocket, address, length),
            None => handed_over_is(fd, libc::EINVAL),
        }
    }
}

/// `listen`.
#[unsafe(export_name = "ubiverbs_rspreload_listen")]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let Some(socket) = table::socket(fd) else { return fail(libc::EBADF) };
    let Some(rsocket) = socket.direct() else {
        // A child of a server that listens already.
        return if socket.listens.load(Ordering::Relaxed) { 0 } else { handed_over_is(fd, libc::EINVAL) };
    };
    let result = rsocket::rlisten(rsocket, backlog);
    if result == 0 {
        socket.listens.store(true, Ordering::Relaxed);
        waiting::see_to_watchers(socket);
    }
    result
}

/// What cannot be said to a socket that was handed over, or to a number that is none.
fn handed_over_is(fd: c_int, code: c_int) -> c_int {
    fail(if table::socket(fd).is_some() { code } else { libc::EBADF })
}

/// `accept`.
#[unsafe(export_name = "ubiverbs_rspreload_accept")]
pub unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the address is null or has room for the length that is there, as `accept` asks.
    unsafe { accept4(fd, address, length, 0) }
}

/// `accept4`.
#[unsafe(export_name = "ubiverbs_rspreload_accept4")]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Some(listener) = table::socket(fd) else { return fail(libc::EBADF) };
    if flags & !SOCKET_TYPE_FLAGS != 0 {
        return fail(libc::EINVAL);
    }
    let Some(place) = PlaceholderDescriptor::reserve() else { return -1 };
    let domain = listener.domain.load(Ordering::Relaxed);
    let Some(rsocket) = listener.direct() else {
        let accepted = listeners::accept(fd, address, length);
        let Some((stream, notes)) = accepted else { return -1 };
        let fd = place.become_other(stream, flags & libc::SOCK_CLOEXEC != 0);
        handover::adopt(fd, domain, notes, flags & libc::SOCK_NONBLOCK != 0);
        return fd;
    };
    listener.readers.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the address is null or has room for the length that is there, as `accept` asks.
    let made = unsafe { rsocket::raccept(rsocket, address, length) };
    listener.readers.fetch_sub(1, Ordering::AcqRel);
    if made < 0 {
        return -1;
    }
    let (fd, socket) = place.fill(made, domain, libc::SOCK_STREAM, flags);
    socket.connects.store(true, Ordering::Relaxed);
    if flags & libc::SOCK_NONBLOCK == 0 {
        // What is accepted waits, though its listener may not.
        options::set_nonblocking(socket, fd, false);
    }
    fd
}

/// `connect`. A connection that fails at once is tried with the kernel's TCP, as rdma-core does: the peer may have no
/// rsockets.
#[unsafe(export_name = "ubiverbs_rspreload_connect")]
pub unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let Some(socket) = table::socket(fd) else { return fail(libc::EBADF) };
    let Some(rsocket) = socket.direct() else { return fail(libc::EISCONN) };
    socket.writers.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the address is `length` bytes long, as `connect` asks.
    let result = unsafe { rsocket::rconnect(rsocket, address, length) };
    let code = errno();
    socket.writers.fetch_sub(1, Ordering::AcqRel);
    if result == 0 || code == libc::EINPROGRESS {
        socket.connects.store(true, Ordering::Relaxed);
        socket.connecting.store(result != 0, Ordering::Relaxed);
        waiting::see_to_watchers(socket);
        return result;
    }
    let hopeless = matches!(code, libc::EISCONN | libc::EALREADY | libc::EBADF | libc::EFAULT | libc::EINTR);
    if hopeless || !socket.is_stream() || socket.connects.load(Ordering::Relaxed) {
        return fail(code);
    }
    if crate::log::is_on() {
        let error = std::io::Error::from_raw_os_error(code);
        crate::log::print(format_args!("rconnect fails: {error}; trying TCP instead"));
    }
    if !fall_back(socket, rsocket) {
        return fail(code);
    }
    // SAFETY: the address is `length` bytes long, as `connect` asks; the descriptor is a TCP socket now.
    unsafe { real::connect(fd, address, length) }
}

/// All descriptors of a socket become those of a TCP socket. False if that cannot be.
fn fall_back(socket: &'static Socket, rsocket: c_int) -> bool {
    let domain = socket.domain.load(Ordering::Relaxed);
    // SAFETY: plain numbers.
    let tcp = unsafe { real::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if tcp < 0 {
        return false;
    }
    options::copy_to_tcp(socket, rsocket, tcp);
    for (fd, _) in table::all().filter(|(_, it)| std::ptr::eq(*it, socket)).collect::<Vec<_>>() {
        // SAFETY: both are open.
        unsafe {
            let closes = real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0;
            table::remove(fd);
            real::dup3(tcp, fd, if closes { libc::O_CLOEXEC } else { 0 });
        }
    }
    // SAFETY: ours.
    unsafe { real::close(tcp) };
    table::end(socket);
    true
}

/// `shutdown`.
#[unsafe(export_name = "ubiverbs_rspreload_shutdown")]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: plain numbers.
    unsafe {
        match table::direct(fd) {
            Some(rsocket) => rsocket::rshutdown(rsocket, how),
            None => {
                if let Some(socket) = table::socket(fd).filter(|_| how != libc::SHUT_WR) {
                    // The end that is read from now on is this one.
                    options::with_notes(socket, |notes| notes.status = None);
                }
                real::shutdown(fd, how)
            }
        }
    }
}

/// `close`.
#[unsafe(export_name = "ubiverbs_rspreload_close")]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    table::close(fd)
}
