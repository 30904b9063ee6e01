//! Other processes: children inherit descriptors, programs that are executed keep some, and a process that ends leaves
//! them to others. The process that made a connection moves its bytes: so before a fork everything is handed over to
//! the kernel, and a process does not end while others use what it moves.

use super::table::{self, Socket};
use super::{fail, handover, pump, real, rsocket};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a process that ends waits before it says that it waits.
const SAY_AFTER: Duration = Duration::from_secs(2);

/// A process that ends does not wait for peers that have taken nothing for so long,
const END_STALL: Duration = Duration::from_millis(500);
/// nor for those that take a little now and then for longer than this.
const END_WAIT_MAX: Duration = Duration::from_secs(5);

/// How often it looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Sees to forks.
pub(super) fn prepare() {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if !PREPARED.swap(true, Ordering::AcqRel) {
        table::observe_nic();
        // SAFETY: functions that take nothing and do not unwind.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    }
}

/// Sees to the end of the process. To be called when there is a NIC: what is said last is done first at the end, and
/// the NIC says good-bye after the streams.
pub(super) fn prepare_end() {
    static PREPARED: AtomicBool = AtomicBool::new(false);
    if !PREPARED.load(Ordering::Relaxed) && !PREPARED.swap(true, Ordering::AcqRel) {
        // SAFETY: a function that takes nothing and does not unwind.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn before_fork() {
    handover::hand_over_all();
    table::lock_all();
}

extern "C" fn after_fork() {
    table::unlock_all();
}

/// What is an rsocket's own belongs to the parent.
extern "C" fn in_child() {
    table::unlock_all();
    table::close_internal(|fd| {
        // SAFETY: open here only because it is open there.
        unsafe { real::close(fd) };
    });
    for (_, socket) in table::all() {
        socket.forget_parents();
    }
}

/// `fork`, and `vfork` in its place.
#[unsafe(export_name = "ubiverbs_rspreload_fork")]
pub unsafe extern "C-unwind" fn fork() -> c_int {
    // SAFETY: no arguments.
    unsafe { real::fork() }
}

/// A program is started that may inherit descriptors.
///
/// # Safety
/// None needed; it is called from C.
#[unsafe(export_name = "ubiverbs_rspreload_before_spawn")]
pub unsafe extern "C" fn before_spawn() -> c_int {
    let code = super::errno();
    handover::hand_over_all();
    fail(code);
    0
}

/// This process is about to become another program, which has no rsockets. Refused while this would end connections
/// that the other program is to have, or that other processes have.
///
/// # Safety
/// None needed; it is called from C.
#[unsafe(export_name = "ubiverbs_rspreload_before_exec")]
pub unsafe extern "C" fn before_exec() -> c_int {
    let code = super::errno();
    // SAFETY: plain numbers.
    let stays = |fd: c_int| unsafe { real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC == 0 };
    let kept = table::all().filter(|(fd, socket)| socket.direct().is_some() && is_used(socket) && stays(*fd)).count();
    let moved = pump::at_work();
    if kept > 0 || moved > 0 {
        crate::log::print(format_args!(
            "exec is refused (EBUSY): this process moves the bytes of {} sockets over RDMA, which would end; \
             fork first",
            kept + moved
        ));
        return fail(libc::EBUSY);
    }
    // What closes with this is told to be complete.
    let used = table::all().filter(|(_, socket)| is_used(socket)).filter_map(|(_, socket)| socket.direct());
    let used: Vec<c_int> = used.collect();
    for rsocket in &used {
        rsocket::rshutdown(*rsocket, libc::SHUT_WR);
    }
    let since = Instant::now();
    while since.elapsed() < END_STALL && !used.iter().all(|rsocket| rsocket::is_flushed(*rsocket)) {
        std::thread::sleep(LOOK_INTERVAL);
    }
    fail(code);
    0
}

fn is_used(socket: &Socket) -> bool {
    socket.connects.load(Ordering::Relaxed) || socket.listens.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    if table::highest() > 0 && (pump::at_work() > 0 || table::all().next().is_some()) {
        // What waits in streams of the C library would be written after this.
        // SAFETY: all streams.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        finish();
    }
}

/// Closes what this process has, and waits for those who still use what it moves. What nobody has any more is sent as
/// long as its peers take it.
fn finish() {
    for (fd, _) in table::all() {
        table::close(fd);
    }
    let since = Instant::now();
    let mut said = false;
    let (mut moved, mut moved_at) = (pump::moved(), since);
    while pump::at_work() > 0 {
        if std::mem::replace(&mut moved, pump::moved()) != moved {
            moved_at = Instant::now();
        }
        let stalls = moved_at.elapsed() > END_STALL || since.elapsed() > END_WAIT_MAX;
        if stalls && pump::at_work() == pump::orphans() {
            break;
        }
        if !said && since.elapsed() > SAY_AFTER {
            said = true;
            crate::log::print(format_args!(
                "process {} stays until others have closed {} of its sockets over RDMA",
                std::process::id(),
                pump::at_work()
            ));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// `_exit` and `_Exit`.
#[unsafe(export_name = "ubiverbs_rspreload__exit")]
pub unsafe extern "C-unwind" fn exit(status: c_int) {
    let owns = pump::at_work() > 0 || table::all().any(|(_, socket)| socket.direct().is_some());
    if owns && table::book_is_free() {
        finish();
        let since = Instant::now();
        while !sockets::nothing_lingers() && since.elapsed() < END_WAIT_MAX {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
    // SAFETY: a plain number.
    unsafe { real::_exit(status) }
}

/// `daemon`: the child goes on. A parent that moves bytes for it stays in the background.
#[unsafe(export_name = "ubiverbs_rspreload_daemon")]
pub unsafe extern "C-unwind" fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int {
    // SAFETY: plain numbers and strings.
    unsafe {
        if table::all().next().is_none() {
            return real::daemon(keep_directory, keep_streams);
        }
        match real::fork() {
            -1 => return -1,
            0 => {}
            _ => exit(0),
        }
        if libc::setsid() < 0 {
            return -1;
        }
        if keep_directory == 0 {
            libc::chdir(c"/".as_ptr());
        }
        if keep_streams == 0 {
            let null = real::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null < 0 {
                return -1;
            }
            for fd in 0..3 {
                super::descriptors::dup2(null, fd);
            }
            if null > 2 {
                real::close(null);
            }
        }
        0
    }
}
