//! From `rsocket` to `rclose`.

use super::address;
use super::table::{self, Kind, Numbered, SocketEntry, entry};
use super::waiting::{Operation, errno, perform};
use crate::boundary::{number, zero};
use crate::errno::{Errno, refuse_if};
use crate::registry::lock;
use crate::rsocket::repoll;
use libc::{sockaddr, socklen_t};
use sockets::{Datagram, Shutdown, Socket};
use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How long `rclose` waits at most until what was sent has arrived.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

const NOT_SUPPORTED: Errno = Errno::of(libc::ENOTSUP);

/// A socket.
#[unsafe(export_name = "ubiverbs_rsocket")]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    make(domain, kind, protocol, Numbered::Descriptor)
}

/// A socket with a number of either kind.
pub(crate) fn make(domain: c_int, kind: c_int, protocol: c_int, numbered: Numbered) -> c_int {
    number("rsocket", || {
        let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let is_stream = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => true,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => false,
            _ => return Err(NOT_SUPPORTED),
        };
        refuse_if!(!matches!(domain, libc::AF_INET | libc::AF_INET6), NOT_SUPPORTED);
        let kind = match is_stream {
            true => Kind::Stream(Socket::new()?),
            false => Kind::Datagram(Datagram::new(domain == libc::AF_INET)?),
        };
        Ok(SocketEntry::open(kind, domain, flags, numbered)?.fd)
    })
}

/// Takes an address.
///
/// # Safety
/// As for `bind`.
#[unsafe(export_name = "ubiverbs_rbind")]
pub unsafe extern "C" fn rbind(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    zero("rbind", || {
        let entry = entry(fd)?;
        // SAFETY: as `bind` wants it.
        let address = unsafe { address::given(address, length) }?;
        match &entry.kind {
            Kind::Stream(socket) => socket.bind(address)?,
            Kind::Datagram(socket) => socket.bind(address)?,
        }
        Ok(())
    })
}

/// Waits for connections from now on.
#[unsafe(export_name = "ubiverbs_rlisten")]
pub extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    zero("rlisten", || {
        entry(fd)?.stream()?.listen(backlog)?;
        Ok(())
    })
}

/// Takes the next connection.
///
/// # Safety
/// As for `accept`.
#[unsafe(export_name = "ubiverbs_raccept")]
pub unsafe extern "C-unwind" fn raccept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the address is null or has room for the length that is there, as `accept` asks.
    unsafe { take(fd, address, length, Numbered::Descriptor) }
}

/// The next connection, with a number of either kind.
///
/// # Safety
/// As for `accept`.
pub(crate) unsafe fn take(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, numbered: Numbered) -> c_int {
    let made = perform(fd, 0, Accept { fd: -1, numbered }) as c_int;
    if made >= 0 && !address.is_null() {
        // SAFETY: as `accept` wants it.
        unsafe { rgetpeername(made, address, length) };
    }
    made
}

struct Accept {
    fd: c_int,
    numbered: Numbered,
}

impl Operation for Accept {
    const CALL: &'static str = "raccept";

    fn attempt(&mut self, entry: &Arc<SocketEntry>) -> Result<(), Errno> {
        let socket = entry.stream()?.accept().map_err(errno)?;
        self.fd = SocketEntry::open(Kind::Stream(socket), entry.family, 0, self.numbered)?.fd;
        Ok(())
    }

    fn answer(&self) -> isize {
        self.fd as isize
    }
}

/// Connects. On a non-blocking socket it fails with `EINPROGRESS`.
///
/// # Safety
/// As for `connect`.
#[unsafe(export_name = "ubiverbs_rconnect")]
pub unsafe extern "C-unwind" fn rconnect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    let begun = number("rconnect", || {
        let entry = entry(fd)?;
        // SAFETY: as `connect` wants it.
        let address = unsafe { address::given(address, length) }?;
        let socket = match &entry.kind {
            Kind::Stream(socket) => socket,
            Kind::Datagram(socket) => {
                socket.connect(address)?;
                return Ok(1);
            }
        };
        if entry.waits(0) {
            socket.await_neighbour(address)?;
        }
        socket.connect(address)?;
        if entry.waits(0) {
            return Ok(0);
        }
        // It may have been answered at once.
        match socket.outcome() {
            Ok(()) => Ok(1),
            Err(error) => Err(errno(error)),
        }
    });
    match begun {
        0 => perform(fd, 0, Connect) as c_int,
        1 => 0,
        failed => failed,
    }
}

struct Connect;

impl Operation for Connect {
    const CALL: &'static str = "rconnect";

    fn attempt(&mut self, entry: &Arc<SocketEntry>) -> Result<(), Errno> {
        match entry.stream()?.outcome() {
            Err(error) if error.0 == libc::EINPROGRESS => Err(Errno::of(libc::EAGAIN)),
            other => other.map_err(errno),
        }
    }

    fn answer(&self) -> isize {
        0
    }
}

/// Ends a direction, or both. What was sent before arrives first.
#[unsafe(export_name = "ubiverbs_rshutdown")]
pub extern "C-unwind" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    let begun = begin_shutdown(fd, how);
    if begun == 0 { perform(fd, 0, Flush) as c_int } else { begun }
}

/// Ends a direction, or both, without waiting for anything, as `shutdown` does it.
pub(crate) fn begin_shutdown(fd: c_int, how: c_int) -> c_int {
    zero("rshutdown", || {
        let which = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::INVALID),
        };
        entry(fd)?.stream()?.shutdown(which)?;
        Ok(())
    })
}

/// Whether everything that was sent has arrived, or never will.
pub(crate) fn is_flushed(fd: c_int) -> bool {
    table::find(fd).is_none_or(|entry| entry.stream().is_ok_and(|socket| socket.is_flushed()))
}

/// Waits until everything that was sent has arrived.
struct Flush;

impl Operation for Flush {
    const CALL: &'static str = "rshutdown";

    fn attempt(&mut self, entry: &Arc<SocketEntry>) -> Result<(), Errno> {
        if entry.stream()?.is_flushed() || !entry.waits(0) { Ok(()) } else { Err(Errno::of(libc::EAGAIN)) }
    }

    fn answer(&self) -> isize {
        0
    }
}

/// Closes a socket, or a set of descriptors. What was sent arrives first.
#[unsafe(export_name = "ubiverbs_rclose")]
pub extern "C-unwind" fn rclose(fd: c_int) -> c_int {
    close(fd, CLOSE_PATIENCE)
}

/// Closes a socket. Unless the program has said how long (`SO_LINGER`), it waits for as long as `patience` until what
/// was sent has arrived; the rest is sent without the caller.
pub(crate) fn close(fd: c_int, patience: Duration) -> c_int {
    if repoll::close(fd) {
        return 0;
    }
    let known = number("rclose", || entry(fd).map(|_| 0));
    if known < 0 {
        return known;
    }
    zero("rclose", || {
        let entry = table::remove(fd)?;
        entry.give_back_number();
        match (&entry.kind, lock(&entry.options).linger()) {
            (Kind::Datagram(socket), _) => socket.close(),
            (Kind::Stream(socket), Some(Duration::ZERO)) => socket.abort(),
            (Kind::Stream(socket), said) => socket.close(said.unwrap_or(patience)),
        }
        Ok(())
    })
}

/// Closes a stream at once: what was not sent is lost.
pub(crate) fn abort(fd: c_int) {
    zero("rclose", || {
        let entry = table::remove(fd)?;
        entry.give_back_number();
        entry.stream()?.abort();
        Ok(())
    });
}

/// The address of the peer.
///
/// # Safety
/// As for `getpeername`.
#[unsafe(export_name = "ubiverbs_rgetpeername")]
pub unsafe extern "C" fn rgetpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    zero("rgetpeername", || {
        let peer = match &entry(fd)?.kind {
            Kind::Stream(socket) => socket.peer_address()?,
            Kind::Datagram(socket) => socket.peer_address()?,
        };
        // SAFETY: as `getpeername` wants it.
        unsafe { address::answer(peer, address, length) }
    })
}

/// The own address; a wildcard as long as there is none.
///
/// # Safety
/// As for `getsockname`.
#[unsafe(export_name = "ubiverbs_rgetsockname")]
pub unsafe extern "C" fn rgetsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    zero("rgetsockname", || {
        let entry = entry(fd)?;
        let none = match entry.family {
            libc::AF_INET6 => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            _ => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        };
        let own = match &entry.kind {
            Kind::Stream(socket) => socket.local_address(),
            Kind::Datagram(socket) => socket.local_address(),
        };
        // SAFETY: as `getsockname` wants it.
        unsafe { address::answer(own.unwrap_or(none), address, length) }
    })
}
