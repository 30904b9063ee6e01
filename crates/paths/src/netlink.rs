//! Sockets of `NETLINK_RDMA`, and no others: such a socket is a connection to the attendant, and calls that would tell
//! the difference answer as netlink does. Everything else a program does with it (`poll`, `sendmsg`, `read`, `close`)
//! works on the connection as it is. A thread may be cancelled in these calls, so they let unwinding pass. If there is
//! no attendant, the program gets what the kernel has.

use crate::{Next, attendant, files, missing};
use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const NETLINK_RDMA: c_int = 20;

/// Descriptors above this are not watched: such a socket is the kernel's.
const MAX_WATCHED_DESCRIPTORS: usize = 1024;

/// The port of each of our sockets, 0 for descriptors that are none; and which file it was when it was made, as a
/// descriptor may be another by now.
static PORTS_OF_DESCRIPTORS: [AtomicU32; MAX_WATCHED_DESCRIPTORS] =
    [const { AtomicU32::new(0) }; MAX_WATCHED_DESCRIPTORS];
static FILES_OF_DESCRIPTORS: [AtomicU64; MAX_WATCHED_DESCRIPTORS] =
    [const { AtomicU64::new(0) }; MAX_WATCHED_DESCRIPTORS];

/// The port of a socket of ours.
fn port(socket: c_int) -> Option<u32> {
    let place = usize::try_from(socket).ok()?;
    let port = PORTS_OF_DESCRIPTORS.get(place)?.load(Ordering::Acquire);
    if port == 0 {
        return None;
    }
    if FILES_OF_DESCRIPTORS.get(place)?.load(Ordering::Relaxed) == identity(socket) {
        return Some(port);
    }
    PORTS_OF_DESCRIPTORS.get(place)?.store(0, Ordering::Release);
    None
}

/// Which file a descriptor is: the number that the kernel gave it.
fn identity(socket: c_int) -> u64 {
    // SAFETY: zeros are such a structure, which is live; the error number stays.
    unsafe {
        let errno = *libc::__errno_location();
        let mut stat: libc::stat = zeroed();
        let answer = libc::fstat(socket, &raw mut stat);
        *libc::__errno_location() = errno;
        if answer == 0 { stat.st_ino } else { 0 }
    }
}

/// The C library's function of this name; answers from the function around it if there is none.
macro_rules! next {
    ($name:literal: fn($($type:ty),*) -> $answer:ty) => {{
        static NEXT: Next = Next::new($name);
        let Some(next) = NEXT.get() else {
            missing();
            return -1;
        };
        // SAFETY: the C library's function of this name has these arguments.
        unsafe { transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type),*) -> $answer>(next) }
    }};
}

/// The C library's `socket`.
pub fn real_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let next = next!(c"socket": fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: numbers.
    unsafe { next(domain, kind, protocol) }
}

/// `socket`, which for `NETLINK_RDMA` is a connection to the attendant.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK
        && protocol == NETLINK_RDMA
        && let Some(socket) = ours(kind)
    {
        return socket;
    }
    real_socket(domain, kind, protocol)
}

fn ours(kind: c_int) -> Option<c_int> {
    let files = files()?;
    // SAFETY: asks a number.
    let port = unsafe { libc::getpid() } as u32;
    let socket = attendant::netlink(files, kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK), port)?;
    match usize::try_from(socket)
        .ok()
        .and_then(|place| PORTS_OF_DESCRIPTORS.get(place).zip(FILES_OF_DESCRIPTORS.get(place)))
    {
        Some((of_port, of_file)) => {
            of_file.store(identity(socket), Ordering::Relaxed);
            of_port.store(port, Ordering::Release);
            Some(socket)
        }
        None => {
            // SAFETY: a number that is ours.
            unsafe { libc::close(socket) };
            None
        }
    }
}

/// An address of netlink.
fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: zeros are such an address.
    let mut address: libc::sockaddr_nl = unsafe { zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    address
}

const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_nl>();

/// Writes as much of an address as there is room for, and its whole length.
///
/// # Safety
/// Both are null, or `to` has room for as many bytes as `length` says.
unsafe fn put_address(port: u32, to: *mut c_void, length: *mut libc::socklen_t) {
    if to.is_null() || length.is_null() {
        return;
    }
    let address = address(port);
    // SAFETY: no more than there is room for, from an address that is live.
    unsafe {
        let room = (*length as usize).min(ADDRESS_BYTES);
        to.cast::<u8>().copy_from_nonoverlapping((&raw const address).cast(), room);
        *length = ADDRESS_BYTES as libc::socklen_t;
    }
}

/// `bind`: a socket of ours is bound from the beginning.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(socket: c_int, to: *const c_void, length: libc::socklen_t) -> c_int {
    let next = next!(c"bind": fn(c_int, *const c_void, libc::socklen_t) -> c_int);
    if port(socket).is_some() {
        return 0;
    }
    // SAFETY: as its caller promised.
    unsafe { next(socket, to, length) }
}

/// `connect`: a socket of ours is, to the kernel as it were.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(socket: c_int, to: *const c_void, length: libc::socklen_t) -> c_int {
    let next = next!(c"connect": fn(c_int, *const c_void, libc::socklen_t) -> c_int);
    if port(socket).is_some() {
        return 0;
    }
    // SAFETY: as its caller promised.
    unsafe { next(socket, to, length) }
}

/// `getsockname`, with an address of netlink for a socket of ours.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockname(socket: c_int, to: *mut c_void, length: *mut libc::socklen_t) -> c_int {
    let next = next!(c"getsockname": fn(c_int, *mut c_void, *mut libc::socklen_t) -> c_int);
    match port(socket) {
        Some(port) => {
            // SAFETY: as its caller promised.
            unsafe { put_address(port, to, length) };
            0
        }
        // SAFETY: as its caller promised.
        None => unsafe { next(socket, to, length) },
    }
}

/// `setsockopt`: options of netlink are taken, and change nothing.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> c_int {
    let next = next!(c"setsockopt": fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int);
    if level == libc::SOL_NETLINK && port(socket).is_some() {
        return 0;
    }
    // SAFETY: as its caller promised.
    unsafe { next(socket, level, name, value, length) }
}

/// `recvmsg`: what comes to a socket of ours comes from the kernel, as it were.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    let next = next!(c"recvmsg": fn(c_int, *mut libc::msghdr, c_int) -> isize);
    let is_ours = port(socket).is_some();
    // SAFETY: as its caller promised; the name has room for as much as it says.
    unsafe {
        let room = if is_ours { (*message).msg_namelen } else { 0 };
        let answer = next(socket, message, flags);
        if is_ours && answer >= 0 {
            (*message).msg_namelen = room;
            put_address(0, (*message).msg_name, &raw mut (*message).msg_namelen);
        }
        answer
    }
}

/// `recvfrom`, the same.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut c_void,
    from_length: *mut libc::socklen_t,
) -> isize {
    let next = next!(c"recvfrom": fn(c_int, *mut c_void, usize, c_int, *mut c_void, *mut libc::socklen_t) -> isize);
    // SAFETY: as its caller promised.
    unsafe {
        if port(socket).is_none() {
            return next(socket, buffer, length, flags, from, from_length);
        }
        let answer = next(socket, buffer, length, flags, std::ptr::null_mut(), std::ptr::null_mut());
        if answer >= 0 {
            put_address(0, from, from_length);
        }
        answer
    }
}
