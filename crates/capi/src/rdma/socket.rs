//! Sockets over RDMA. Their functions exist, since programs that merely could use them are linked against them; waiting
//! for descriptors works as it does without the prefix, and the rest is not offered.

use crate::boundary::report;
use crate::errno::Errno;
use crate::log;
use libc::{fd_set, nfds_t, pollfd, timeval};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

// Declared here, since a thread may be cancelled in them; those of the crate `libc` are said not to unwind.
unsafe extern "C-unwind" {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval)
    -> c_int;
}

/// `poll`. A descriptor of the connection manager is one like any other.
///
/// # Safety
/// As for `poll`.
#[unsafe(export_name = "ubiverbs_rpoll")]
pub unsafe extern "C-unwind" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the arguments are those of `poll`.
    unsafe { poll(fds, count, timeout) }
}

/// `select`.
///
/// # Safety
/// As for `select`.
#[unsafe(export_name = "ubiverbs_rselect")]
pub unsafe extern "C-unwind" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the arguments are those of `select`.
    unsafe { select(count, read, write, except, timeout) }
}

/// Fails, and says once why.
fn not_offered(call: &'static str) -> isize {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::print(format_args!("{call}: sockets over RDMA are not offered; the call fails with ENOSYS"));
    }
    if log::is_on() {
        log::failure(call, libc::ENOSYS);
    }
    report(Errno(libc::ENOSYS));
    -1
}

/// Functions that fail. Their arguments are passed over, and -1 is -1 in every type they return.
macro_rules! not_offered {
    ($($symbol:literal $name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: fails with `ENOSYS`.")]
            #[unsafe(export_name = $symbol)]
            pub extern "C" fn $name() -> isize {
                not_offered(stringify!($name))
            }
        )*
    };
}

not_offered! {
    "ubiverbs_raccept" raccept
    "ubiverbs_rbind" rbind
    "ubiverbs_rclose" rclose
    "ubiverbs_rconnect" rconnect
    "ubiverbs_rfcntl" rfcntl
    "ubiverbs_rgetpeername" rgetpeername
    "ubiverbs_rgetsockname" rgetsockname
    "ubiverbs_rgetsockopt" rgetsockopt
    "ubiverbs_riomap" riomap
    "ubiverbs_riounmap" riounmap
    "ubiverbs_riowrite" riowrite
    "ubiverbs_rlisten" rlisten
    "ubiverbs_rread" rread
    "ubiverbs_rreadv" rreadv
    "ubiverbs_rrecv" rrecv
    "ubiverbs_rrecvfrom" rrecvfrom
    "ubiverbs_rrecvmsg" rrecvmsg
    "ubiverbs_rsend" rsend
    "ubiverbs_rsendmsg" rsendmsg
    "ubiverbs_rsendto" rsendto
    "ubiverbs_rsetsockopt" rsetsockopt
    "ubiverbs_rshutdown" rshutdown
    "ubiverbs_rsocket" rsocket
    "ubiverbs_rwrite" rwrite
    "ubiverbs_rwritev" rwritev
}
