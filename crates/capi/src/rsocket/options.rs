//! `rsetsockopt`, `rgetsockopt` and `rfcntl`.

use super::table::{Entry, entry};
use crate::boundary::number;
use crate::errno::Errno;
use crate::registry::lock;
use libc::{linger, socklen_t};
use sockets::SocketOption;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::Ordering;

/// The level of options that only sockets over RDMA have.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

const NOT_SUPPORTED: Errno = Errno(libc::ENOTSUP);

/// What a program has set, and may ask for.
#[derive(Debug)]
pub(crate) struct Options {
    reuse_address: bool,
    keep_alive: bool,
    oob_inline: bool,
    linger: (c_int, c_int),
    no_delay: bool,
    type_of_service: c_int,
    only_ipv6: bool,
    keep_alive_idle: c_int,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            reuse_address: false,
            keep_alive: false,
            oob_inline: false,
            linger: (1, 0),
            no_delay: false,
            type_of_service: 0,
            only_ipv6: false,
            keep_alive_idle: 0,
        }
    }
}

/// A size of a queue, as the protocol allows it.
fn clamp_queue(value: u32) -> u16 {
    value.min(0xFFFE) as u16
}

/// # Safety
/// `value` is null or has `length` bytes.
unsafe fn value_of<T: Copy>(value: *const c_void, length: socklen_t) -> Result<T, Errno> {
    if value.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    if (length as usize) < size_of::<T>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: as many bytes as a value has; every value of the types here is one of numbers.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Sets an option.
///
/// # Safety
/// As for `setsockopt`.
#[unsafe(export_name = "ubiverbs_rsetsockopt")]
pub unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    number("rsetsockopt", || {
        let entry = entry(fd)?;
        // SAFETY: as `setsockopt` wants it.
        let int = || unsafe { value_of::<c_int>(value, length) };
        match (level, name) {
            // SAFETY: as above.
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let linger = unsafe { value_of::<linger>(value, length) }?;
                lock(&entry.options).linger = (linger.l_onoff, linger.l_linger);
            }
            _ => set(&entry, level, name, int)?,
        }
        Ok(0)
    })
}

fn set(entry: &Entry, level: c_int, name: c_int, int: impl Fn() -> Result<c_int, Errno>) -> Result<(), Errno> {
    let socket = &entry.socket;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            let on = int()? != 0;
            socket.set(SocketOption::ReuseAddress(on))?;
            lock(&entry.options).reuse_address = on;
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            let bytes = int()? as u32;
            // Once there are buffers they stay as they are.
            let _ = socket.set_sizes(|sizes| sizes.receive_buffer = bytes.saturating_mul(2));
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            let bytes = int()? as u32;
            let _ = socket.set_sizes(|sizes| sizes.send_buffer = bytes.saturating_mul(2).max(4096));
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => lock(&entry.options).keep_alive = int()? != 0,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => lock(&entry.options).oob_inline = int()? != 0,
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            let value = int()?;
            socket.set(SocketOption::TypeOfService(value as u8))?;
            lock(&entry.options).type_of_service = value;
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => lock(&entry.options).no_delay = int()? != 0,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => match int()? {
            seconds if seconds <= 0 => return Err(Errno::INVALID),
            seconds => lock(&entry.options).keep_alive_idle = seconds,
        },
        // A reliable connection has no use for them.
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            let on = int()? != 0;
            socket.set(SocketOption::OnlyItsFamily(on))?;
            lock(&entry.options).only_ipv6 = on;
        }
        (SOL_RDMA, RDMA_SQSIZE) => {
            let size = clamp_queue(int()? as u32);
            socket.set_sizes(|sizes| sizes.send_queue = size)?;
        }
        (SOL_RDMA, RDMA_RQSIZE) => {
            let size = clamp_queue(int()? as u32);
            socket.set_sizes(|sizes| sizes.receive_queue = size)?;
        }
        (SOL_RDMA, RDMA_INLINE) => {
            let size = clamp_queue(int()? as u32);
            socket.set_sizes(|sizes| sizes.inline = size)?;
        }
        (SOL_RDMA, RDMA_IOMAPSIZE) => {
            let count = sockets::io_mappings(int()? as u32);
            socket.set_sizes(|sizes| sizes.io_mappings = count)?;
        }
        _ => return Err(NOT_SUPPORTED),
    }
    Ok(())
}

/// Asks for an option.
///
/// # Safety
/// As for `getsockopt`.
#[unsafe(export_name = "ubiverbs_rgetsockopt")]
pub unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    number("rgetsockopt", || {
        let entry = entry(fd)?;
        if value.is_null() || length.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let answer = get(&entry, level, name)?;
        // SAFETY: a place of the program's.
        let room = unsafe { length.read() } as usize;
        let bytes: &[c_int] = match &answer {
            Answer::Number(number) => std::slice::from_ref(number),
            Answer::Linger(pair) => pair,
        };
        let size = size_of_val(bytes);
        if room < size {
            return Err(Errno::INVALID);
        }
        // SAFETY: there is room for them, and they are this function's.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<u8>(), value.cast(), size);
            length.write(size as socklen_t);
        }
        Ok(0)
    })
}

enum Answer {
    Number(c_int),
    Linger([c_int; 2]),
}

fn get(entry: &Entry, level: c_int, name: c_int) -> Result<Answer, Errno> {
    let socket = &entry.socket;
    let options = lock(&entry.options);
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keep_alive.into(),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline.into(),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => socket.sizes().receive_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => socket.sizes().send_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            return Ok(Answer::Linger([options.linger.0, options.linger.1]));
        }
        (libc::SOL_SOCKET, libc::SO_ERROR) => socket.take_error(),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => entry.family,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => socket.is_listening().into(),
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => 0,
        (libc::IPPROTO_IP, libc::IP_TOS) => options.type_of_service,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_CONGESTION) => 1,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keep_alive_idle,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay.into(),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => socket.segment().map_or(2048, |bytes| bytes as c_int),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.only_ipv6.into(),
        (SOL_RDMA, RDMA_SQSIZE) => socket.sizes().send_queue.into(),
        (SOL_RDMA, RDMA_RQSIZE) => socket.sizes().receive_queue.into(),
        (SOL_RDMA, RDMA_INLINE) => socket.sizes().inline.into(),
        (SOL_RDMA, RDMA_IOMAPSIZE) => socket.sizes().io_mappings.into(),
        _ => return Err(NOT_SUPPORTED),
    };
    Ok(Answer::Number(number))
}

/// Asks for flags of a descriptor, or sets them. In C it takes any number of arguments; the third is where a function
/// with three has it.
#[unsafe(export_name = "ubiverbs_rfcntl")]
pub extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    number("rfcntl", || {
        let entry = entry(fd)?;
        let argument = argument as c_int;
        match command {
            libc::F_GETFL => Ok(entry.status_flags.load(Ordering::Relaxed)),
            libc::F_SETFL => {
                entry.nonblocking.store(argument & libc::O_NONBLOCK != 0, Ordering::Relaxed);
                let settable = argument & !libc::O_ACCMODE;
                entry.status_flags.store(libc::O_RDWR | settable, Ordering::Relaxed);
                // SAFETY: numbers.
                Ok(unsafe { libc::fcntl(fd, libc::F_SETFL, settable & libc::O_NONBLOCK) })
            }
            // SAFETY: numbers.
            libc::F_GETFD => Ok(unsafe { libc::fcntl(fd, libc::F_GETFD) }),
            // SAFETY: numbers.
            libc::F_SETFD => Ok(unsafe { libc::fcntl(fd, libc::F_SETFD, argument) }),
            _ => Err(NOT_SUPPORTED),
        }
    })
}
