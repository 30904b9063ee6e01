//! `rsetsockopt`, `rgetsockopt` and `rfcntl`.

use super::table::{Kind, SocketEntry, entry};
use crate::boundary::{number, zero};
use crate::errno::{Errno, refuse_if};
use crate::registry::lock;
use libc::{linger, socklen_t, tcp_info};
use sockets::{Sizes, SocketOption};
use std::ffi::{c_int, c_long, c_void};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The level of options that only sockets over RDMA have.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

const NOT_SUPPORTED: Errno = Errno::of(libc::ENOTSUP);
/// Seconds until a connection is kept alive, where neither the program nor the system says.
const KEEP_ALIVE_TIME: c_int = 7200;
/// `struct ibv_path_data`: flags, a reserved word and a path record.
const PATH_DATA: usize = 72;
/// States of `struct tcp_info`.
const TCP_ESTABLISHED: u8 = 1;
const TCP_CLOSE: u8 = 7;

/// What a program has set, and may ask for.
#[derive(Debug, Default)]
pub(crate) struct Options {
    reuse_address: bool,
    keep_alive: bool,
    oob_inline: bool,
    linger: Option<(c_int, c_int)>,
    no_delay: bool,
    type_of_service: c_int,
    only_ipv6: bool,
    keep_alive_idle: c_int,
    /// A route of the program's own, as it was given.
    route: Vec<u8>,
}

impl Options {
    /// How long `rclose` waits for what was sent, if the program says.
    pub fn linger(&self) -> Option<Duration> {
        let (on, seconds) = self.linger?;
        (on != 0).then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }
}

/// A size of a queue, as the protocol allows it.
fn clamp_queue(value: c_int) -> u16 {
    (value as u32).min(0xFFFE) as u16
}

/// # Safety
/// `value` is null or has `length` bytes.
unsafe fn value_of<T: Copy>(value: *const c_void, length: socklen_t) -> Result<T, Errno> {
    refuse_if!(value.is_null(), Errno::of(libc::EFAULT));
    refuse_if!((length as usize) < size_of::<T>(), Errno::INVALID);
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
    zero("rsetsockopt", || {
        let entry = entry(fd)?;
        // SAFETY: as `setsockopt` wants it.
        let int = || unsafe { value_of::<c_int>(value, length) };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                // SAFETY: as above.
                let linger = unsafe { value_of::<linger>(value, length) }?;
                lock(&entry.options).linger = Some((linger.l_onoff, linger.l_linger));
            }
            (SOL_RDMA, RDMA_ROUTE) => {
                refuse_if!(value.is_null(), Errno::of(libc::EFAULT));
                refuse_if!(length == 0 || !(length as usize).is_multiple_of(PATH_DATA), Errno::INVALID);
                change_sizes(&entry, |_| {})?;
                // SAFETY: as `setsockopt` wants it.
                let route = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length as usize) };
                lock(&entry.options).route = route.to_vec();
            }
            (SOL_RDMA, _) => set_rdma(&entry, name, int)?,
            _ => match &entry.kind {
                Kind::Stream(_) => set(&entry, level, name, int)?,
                // SAFETY: as `setsockopt` wants it.
                Kind::Datagram(_) => unsafe { set_udp(&entry, level, name, value, length) }?,
            },
        }
        Ok(())
    })
}

fn change_sizes(entry: &SocketEntry, change: impl FnOnce(&mut Sizes)) -> Result<(), Errno> {
    match &entry.kind {
        Kind::Stream(socket) => socket.set_sizes(change)?,
        Kind::Datagram(socket) => socket.set_sizes(change)?,
    }
    Ok(())
}

fn sizes(entry: &SocketEntry) -> Sizes {
    match &entry.kind {
        Kind::Stream(socket) => socket.sizes(),
        Kind::Datagram(socket) => socket.sizes(),
    }
}

/// Options of the level that only sockets over RDMA have.
fn set_rdma(entry: &SocketEntry, name: c_int, int: impl Fn() -> Result<c_int, Errno>) -> Result<(), Errno> {
    refuse_if!(!matches!(name, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE | RDMA_IOMAPSIZE), NOT_SUPPORTED);
    let value = int()?;
    refuse_if!(value < 0, Errno::INVALID);
    change_sizes(entry, |sizes| match name {
        RDMA_SQSIZE => sizes.send_queue = clamp_queue(value),
        RDMA_RQSIZE => sizes.receive_queue = clamp_queue(value),
        RDMA_INLINE => sizes.inline = clamp_queue(value).min(hca::limits::MAX_INLINE as u16),
        _ => sizes.io_mappings = sockets::io_mappings(value as u32),
    })
}

/// Options of datagram sockets are the kernel's, and those of the buffers ours too.
///
/// # Safety
/// As for `setsockopt`.
unsafe fn set_udp(
    entry: &SocketEntry,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> Result<(), Errno> {
    let Kind::Datagram(socket) = &entry.kind else { return Err(NOT_SUPPORTED) };
    if level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVBUF | libc::SO_SNDBUF) {
        // SAFETY: the value is `length` bytes long, as `setsockopt` asks.
        let bytes = unsafe { value_of::<c_int>(value, length) }?.max(0) as u32;
        // Once there are buffers they stay as they are.
        let _ = socket.set_sizes(|sizes| match name {
            libc::SO_RCVBUF => sizes.receive_buffer = bytes.saturating_mul(2),
            _ => sizes.send_buffer = bytes.saturating_mul(2),
        });
        return Ok(());
    }
    // SAFETY: the value is `length` bytes long, as `setsockopt` asks.
    let call = |fd: c_int| unsafe { libc::setsockopt(fd, level, name, value, length) };
    // Before there is a socket of the kernel's, the descriptor's own says whether it is an option at all.
    match socket.with_udp(|udp| call(udp.as_raw_fd())).unwrap_or_else(|| call(entry.fd)) {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

fn set(entry: &SocketEntry, level: c_int, name: c_int, int: impl Fn() -> Result<c_int, Errno>) -> Result<(), Errno> {
    let socket = entry.stream()?;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
            let on = int()? != 0;
            // Too late is no harm.
            let _ = socket.set(SocketOption::ReuseAddress(on));
            lock(&entry.options).reuse_address = on;
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
            let bytes = int()?.max(1) as u32;
            // Once there are buffers they stay as they are.
            let _ = socket.set_sizes(|sizes| sizes.receive_buffer = bytes.saturating_mul(2));
        }
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
            let bytes = int()?.max(0) as u32;
            let _ = socket.set_sizes(|sizes| sizes.send_buffer = bytes.saturating_mul(2).max(4096));
        }
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
            let mut options = lock(&entry.options);
            options.keep_alive = int()? != 0;
            keep_alive(entry, &mut options)?;
        }
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => lock(&entry.options).oob_inline = int()? != 0,
        (libc::IPPROTO_IP, libc::IP_TOS) => {
            let value = int()?;
            socket.set(SocketOption::TypeOfService(value as u8))?;
            lock(&entry.options).type_of_service = value;
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => lock(&entry.options).no_delay = int()? != 0,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => match int()? {
            seconds if seconds <= 0 => return Err(Errno::INVALID),
            seconds => {
                let mut options = lock(&entry.options);
                options.keep_alive_idle = seconds;
                keep_alive(entry, &mut options)?;
            }
        },
        // A reliable connection has no use for them.
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
            let on = int()? != 0;
            socket.set(SocketOption::OnlyItsFamily(on))?;
            lock(&entry.options).only_ipv6 = on;
        }
        _ => return Err(NOT_SUPPORTED),
    }
    Ok(())
}

/// Has the connection kept alive, or not, as the options say.
fn keep_alive(entry: &SocketEntry, options: &mut Options) -> Result<(), Errno> {
    if options.keep_alive && options.keep_alive_idle == 0 {
        let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time").ok();
        let seconds = system.and_then(|text| text.trim().parse().ok()).filter(|seconds| *seconds > 0);
        options.keep_alive_idle = seconds.unwrap_or(KEEP_ALIVE_TIME);
    }
    let every = Duration::from_secs(u64::try_from(options.keep_alive_idle).unwrap_or(1));
    entry.stream()?.keep_alive(options.keep_alive.then_some(every));
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
    zero("rgetsockopt", || {
        let entry = entry(fd)?;
        refuse_if!(value.is_null() || length.is_null(), Errno::of(libc::EFAULT));
        // SAFETY: a place of the program's.
        let room = unsafe { length.read() };
        refuse_if!(i32::try_from(room).is_err(), Errno::INVALID);
        let answer = match &entry.kind {
            Kind::Datagram(_) if level != SOL_RDMA && !is_size(level, name) => {
                // SAFETY: as `getsockopt` wants it.
                return unsafe { get_udp(&entry, level, name, value, length) };
            }
            _ => get(&entry, level, name, room as usize)?,
        };
        refuse_if!((room as usize) < answer.len(), Errno::INVALID);
        // SAFETY: there is room for them, and they are this function's.
        unsafe {
            std::ptr::copy_nonoverlapping(answer.as_ptr(), value.cast(), answer.len());
            length.write(answer.len() as socklen_t);
        }
        Ok(())
    })
}

/// Whether a buffer's size is asked for, which is ours to say.
fn is_size(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVBUF | libc::SO_SNDBUF)
}

/// # Safety
/// As for `getsockopt`.
unsafe fn get_udp(
    entry: &SocketEntry,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> Result<(), Errno> {
    let Kind::Datagram(socket) = &entry.kind else { return Err(NOT_SUPPORTED) };
    // SAFETY: the value has room for the length that is there, as `getsockopt` asks.
    let call = |fd: c_int| unsafe { libc::getsockopt(fd, level, name, value, length) };
    match socket.with_udp(|udp| call(udp.as_raw_fd())).unwrap_or_else(|| call(entry.fd)) {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

fn get(entry: &SocketEntry, level: c_int, name: c_int, room: usize) -> Result<Vec<u8>, Errno> {
    let options = lock(&entry.options);
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => sizes(entry).receive_buffer as c_int,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => sizes(entry).send_buffer as c_int,
        (SOL_RDMA, RDMA_SQSIZE) => sizes(entry).send_queue.into(),
        (SOL_RDMA, RDMA_RQSIZE) => sizes(entry).receive_queue.into(),
        (SOL_RDMA, RDMA_INLINE) => sizes(entry).inline.into(),
        (SOL_RDMA, RDMA_IOMAPSIZE) => sizes(entry).io_mappings.into(),
        (SOL_RDMA, RDMA_ROUTE) => return route(entry, &options, room),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let (on, seconds) = options.linger.unwrap_or((1, 0));
            return Ok([on, seconds].iter().flat_map(|value| value.to_ne_bytes()).collect());
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => return tcp_information(entry, room),
        _ => get_number(entry, &options, level, name)?,
    };
    Ok(number.to_ne_bytes().to_vec())
}

fn get_number(entry: &SocketEntry, options: &Options, level: c_int, name: c_int) -> Result<c_int, Errno> {
    let socket = entry.stream().map_err(|_| NOT_SUPPORTED)?;
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse_address.into(),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => options.keep_alive.into(),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline.into(),
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
        _ => return Err(NOT_SUPPORTED),
    })
}

/// The state of the connection in the words of TCP, and how much it may have on its way: as much as there is room for,
/// since headers differ in how much they know.
fn tcp_information(entry: &SocketEntry, room: usize) -> Result<Vec<u8>, Errno> {
    let socket = entry.stream().map_err(|_| NOT_SUPPORTED)?;
    // SAFETY: a structure of numbers.
    let mut info: tcp_info = unsafe { std::mem::zeroed() };
    info.tcpi_state = if socket.is_connected() { TCP_ESTABLISHED } else { TCP_CLOSE };
    info.tcpi_snd_cwnd = socket.sizes().send_queue.into();
    // SAFETY: a structure of numbers without room in between them, of its own size.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const info).cast::<u8>(), size_of::<tcp_info>()) };
    Ok(bytes[..room.min(bytes.len())].to_vec())
}

/// The route of the program's own, or the one that was found, as `struct ibv_path_data`.
fn route(entry: &SocketEntry, options: &Options, room: usize) -> Result<Vec<u8>, Errno> {
    refuse_if!(room < PATH_DATA, Errno::INVALID);
    if !options.route.is_empty() {
        return Ok(options.route.clone());
    }
    let Some(path) = entry.stream().map_err(|_| NOT_SUPPORTED)?.path() else { return Ok(Vec::new()) };
    /// A value that is meant exactly, in the upper bits of a field.
    const EXACT_VALUE: u8 = 2 << 6;
    let mut out = [0; PATH_DATA];
    // Behind the flags and a reserved word lies the path record, with eight bytes of a service id in front.
    out[16..32].copy_from_slice(&path.dgid.octets());
    out[32..48].copy_from_slice(&path.sgid.octets());
    let flow = (path.flow_label << 8) | u32::from(path.hop_limit);
    out[52..56].copy_from_slice(&flow.to_be_bytes());
    out[56] = path.traffic_class;
    // It can be reversed, and is one path.
    out[57] = 1 << 7 | 1;
    out[58..60].copy_from_slice(&0xFFFF_u16.to_be_bytes());
    out[60..62].copy_from_slice(&u16::from(path.service_level).to_be_bytes());
    out[62] = EXACT_VALUE | path.mtu.code();
    out[64] = EXACT_VALUE | path.packet_lifetime;
    Ok(out.to_vec())
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
                match entry.is_descriptor() {
                    // SAFETY: numbers.
                    true => Ok(unsafe { libc::fcntl(fd, libc::F_SETFL, settable & libc::O_NONBLOCK) }),
                    false => Ok(0),
                }
            }
            // SAFETY: numbers.
            libc::F_GETFD => Ok(unsafe { libc::fcntl(fd, libc::F_GETFD) }),
            // SAFETY: numbers.
            libc::F_SETFD => Ok(unsafe { libc::fcntl(fd, libc::F_SETFD, argument) }),
            _ => Err(NOT_SUPPORTED),
        }
    })
}
