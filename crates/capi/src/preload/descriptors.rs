//! Descriptors as such: copies of them, their flags, and many closed at once.

use super::table;
use super::{fail, handover, options, real, rsocket};
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

/// `dup`: another descriptor of the same socket.
#[unsafe(export_name = "ubiverbs_rspreload_dup")]
pub unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    copy(old, libc::F_DUPFD, 0)
}

/// A copy with the lowest number that is free, from `least` on.
fn copy(old: c_int, command: c_int, least: c_ulong) -> c_int {
    let socket = table::socket(old);
    // SAFETY: plain numbers.
    let new = unsafe { real::fcntl(old, command, least) };
    if let Some(socket) = socket.filter(|_| new >= 0) {
        if !table::has_room(new) {
            // SAFETY: just made.
            unsafe { real::close(new) };
            return fail(libc::EMFILE);
        }
        table::insert(new, socket);
    }
    new
}

/// `dup2`.
#[unsafe(export_name = "ubiverbs_rspreload_dup2")]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if old == new {
        // SAFETY: plain numbers.
        return unsafe { real::dup2(old, new) };
    }
    replace(old, new, 0)
}

/// `dup3`.
#[unsafe(export_name = "ubiverbs_rspreload_dup3")]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    replace(old, new, flags)
}

/// Descriptor `new` is closed, and leads where `old` does.
fn replace(old: c_int, new: c_int, flags: c_int) -> c_int {
    if table::is_internal(new) {
        crate::log::print(format_args!("descriptor {new} cannot be replaced: an rsocket has it"));
        return fail(libc::EBUSY);
    }
    let socket = table::socket(old);
    if socket.is_some() && !table::has_room(new) {
        return fail(libc::EBADF);
    }
    // SAFETY: plain numbers. What cannot be copied leaves the other as it is.
    if unsafe { real::fcntl(old, libc::F_GETFD, 0) } < 0 || old == new {
        // SAFETY: plain numbers.
        return unsafe { real::dup3(old, new, flags) };
    }
    let closed = table::remove(new);
    // SAFETY: plain numbers.
    let result = unsafe { real::dup3(old, new, flags) };
    if result >= 0
        && let Some(socket) = socket
    {
        table::insert(new, socket);
    }
    if let Some((closed, true)) = closed {
        table::end(closed);
    }
    result
}

/// `fcntl` and `fcntl64`. The third argument is a number or a pointer, where there is one.
#[unsafe(export_name = "ubiverbs_rspreload_fcntl")]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // The channel of a program of verbs is ours, too.
    // SAFETY: the argument is what the command takes, as `fcntl` asks.
    let Some(socket) = table::socket(fd) else { return unsafe { real::fcntl(fd, command, argument) } };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copy(fd, command, argument),
        libc::F_SETFL => {
            options::set_nonblocking(socket, fd, argument as c_int & libc::O_NONBLOCK != 0);
            0
        }
        libc::F_GETFL => libc::O_RDWR | if socket.nonblocking.load(Ordering::Relaxed) { libc::O_NONBLOCK } else { 0 },
        // SAFETY: the argument is what the command takes, as `fcntl` asks.
        _ => unsafe { real::fcntl(fd, command, argument) },
    }
}

/// `ioctl`.
#[unsafe(export_name = "ubiverbs_rspreload_ioctl")]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
    /// Questions about network interfaces, which any socket of the kernel answers.
    const INTERFACES: std::ops::RangeInclusive<c_ulong> = 0x8900..=0x89ff;
    const SIOCATMARK: c_ulong = 0x8905;
    // SAFETY: the argument is what the request takes, as `ioctl` asks.
    let Some(socket) = table::socket(fd) else { return unsafe { real::ioctl(fd, request, argument) } };
    // SAFETY: the argument is a number or room for one, as these requests ask.
    unsafe {
        match request {
            libc::FIONBIO => {
                options::set_nonblocking(socket, fd, *(argument as *const c_int) != 0);
                0
            }
            libc::FIONREAD => match socket.direct() {
                Some(rsocket) => {
                    *(argument as *mut c_int) = waiting_bytes(rsocket);
                    0
                }
                None => real::ioctl(fd, request, argument),
            },
            libc::TIOCOUTQ | SIOCATMARK => {
                *(argument as *mut c_int) = 0;
                0
            }
            request if INTERFACES.contains(&request) => {
                let kernel = real::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
                let result = real::ioctl(kernel, request, argument);
                let code = super::errno();
                real::close(kernel);
                if result < 0 { fail(code) } else { result }
            }
            _ => real::ioctl(fd, request, argument),
        }
    }
}

/// How many bytes can be read without waiting: at most as many as are looked at.
fn waiting_bytes(rsocket: c_int) -> c_int {
    let mut room = vec![0_u8; 64 << 10];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: a buffer and its length.
    let found =
        unsafe { rsocket::rrecvfrom(rsocket, room.as_mut_ptr().cast(), room.len(), flags, null_mut(), null_mut()) };
    c_int::try_from(found).unwrap_or(0).max(0)
}

/// `close_range`: what is an rsocket's own stays open.
#[unsafe(export_name = "ubiverbs_rspreload_close_range")]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    // SAFETY: plain numbers.
    unsafe {
        if first > last || flags & CLOEXEC != 0 {
            return real::close_range(first, last, flags);
        }
        let mut from = first;
        for fd in first..=last.min(table::highest() as c_uint) {
            let (ours, internal) = (table::socket(fd as c_int).is_some(), table::is_internal(fd as c_int));
            if !ours && !internal {
                continue;
            }
            if from < fd {
                real::close_range(from, fd - 1, flags);
            }
            if ours {
                table::close(fd as c_int);
            }
            from = fd + 1;
        }
        if from <= last { real::close_range(from, last, flags) } else { 0 }
    }
}

/// `closefrom`.
#[unsafe(export_name = "ubiverbs_rspreload_closefrom")]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: plain numbers.
    unsafe {
        if table::highest() < first {
            real::closefrom(first);
        } else if close_range(first.max(0) as c_uint, c_uint::MAX, 0) < 0 {
            for fd in first.max(0)..1024.max(table::highest() + 1) {
                if !table::is_internal(fd) {
                    table::close(fd);
                }
            }
        }
    }
}

/// `syscall`, which is for what the C library has no function for. What passes by all functions is refused.
#[unsafe(export_name = "ubiverbs_rspreload_syscall")]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_io_uring_setup {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| {
            crate::log::print("io_uring is refused (ENOSYS): it would not see that sockets are rsockets");
        });
        return fail(libc::ENOSYS).into();
    }
    if let Some(fd) = descriptor_of(number, a) {
        handover::hand_over_descriptor(fd);
        if number == libc::SYS_close {
            return table::close(fd).into();
        }
    }
    // SAFETY: the arguments are what this system call takes.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}

/// The descriptor that a system call reads from, writes to or closes.
fn descriptor_of(number: c_long, first: c_long) -> Option<c_int> {
    let plain = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_readv,
        libc::SYS_writev,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_recvmsg,
        libc::SYS_sendmsg,
        libc::SYS_close,
    ];
    plain.contains(&number).then(|| c_int::try_from(first).ok()).flatten()
}

/// A descriptor is about to be used in a way that we do not hear of: it becomes a plain one.
///
/// # Safety
/// None needed; it is called from C.
#[unsafe(export_name = "ubiverbs_rspreload_before_plain")]
pub unsafe extern "C" fn before_plain(fd: c_int) -> c_int {
    let code = super::errno();
    handover::hand_over_descriptor(fd);
    fail(code);
    0
}

/// Keeps the type of pointers in `fcntl`'s third argument as wide as a number.
const _: () = assert!(size_of::<c_ulong>() == size_of::<*const c_void>());
