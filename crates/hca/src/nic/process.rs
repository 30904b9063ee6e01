//! One NIC per process, and none that outlives a fork: the child closes what its parent's NIC had open, without taking
//! a lock that a thread of the parent may have held, and makes a NIC of its own when it needs one. What it sees of the
//! parent's objects in its memory is dead. A process that ends in good order first sends what still waits in its NIC.

use crate::call_trace as calls;
use crate::error::Error;
use crate::ground::Options;
use crate::nic::Nic;
use crate::record::tracing::is_traced;
use crate::tuning::{EXIT_LOOK_INTERVAL, EXIT_WAIT_MAX};
use latch::plain::Mutex;
use latch::{PerProcess, Rank};
use std::mem::forget;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use trace::Call;

/// The NIC of this process, and how it was asked to be attached.
static PROCESS_NIC: PerProcess<Mutex<Option<(Arc<Nic>, Options)>>> = PerProcess::new();

/// Whether a thread holds `PROCESS_NIC` to make it, which takes long.
static BEING_MADE: AtomicBool = AtomicBool::new(false);

/// So often a thread that is told `PROCESS_NIC` is in use lets others run before it gives up.
const ASKED_AT_ONCE: u32 = 10_000;

impl Nic {
    /// The NIC of this process, made when it is first asked for. A forked child gets its own.
    pub fn of_process() -> Result<Arc<Nic>, Error> {
        Nic::of_process_with(Options::default()).map(|(nic, _)| nic)
    }

    /// The NIC of this process, if there is one: while the NIC is being made there is none. It waits for other threads
    /// that ask the same, and gives up on one that may be itself, interrupted by a signal.
    pub fn present() -> Option<Arc<Nic>> {
        let ours = PROCESS_NIC.get()?;
        for _ in 0..ASKED_AT_ONCE {
            if let Some(held) = ours.try_lock() {
                return held.as_ref().map(|(nic, _)| Arc::clone(nic));
            }
            if BEING_MADE.load(Ordering::Acquire) {
                return None;
            }
            std::thread::yield_now();
        }
        None
    }

    /// The NIC of this process, attached as `options` say if it is made now. Also returns the options with which it was
    /// made, which may have been others.
    pub fn of_process_with(options: Options) -> Result<(Arc<Nic>, Options), Error> {
        guard_forks();
        let mut held = PROCESS_NIC.get_or_make(|| Mutex::new(Rank::Process, None)).lock();
        if let Some((nic, asked)) = &*held {
            return Ok((Arc::clone(nic), *asked));
        }
        BEING_MADE.store(true, Ordering::Release);
        let made = Nic::open_with(options);
        BEING_MADE.store(false, Ordering::Release);
        let nic = made?;
        *held = Some((Arc::clone(&nic), options));
        Ok((nic, options))
    }
}

/// From now on a forked child lets go of what its parent has.
pub(crate) fn guard_forks() {
    // Not a `Once`: a child that is forked in the middle of it would wait for ever. The handler may be entered twice.
    static FORKS_GUARDED: AtomicBool = AtomicBool::new(false);
    if !FORKS_GUARDED.load(Ordering::Acquire) {
        // SAFETY: the handlers are async-signal-safe: the child's stores to atomics and closes descriptors, the
        // parent's takes locks only where it need not wait.
        unsafe { libc::pthread_atfork(Some(::host::descriptor::before_fork), Some(in_parent), Some(in_child)) };
        FORKS_GUARDED.store(true, Ordering::Release);
    }
}

/// Tells the traces of this process.
extern "C" fn in_parent() {
    ::host::descriptor::after_fork();
    if is_traced() {
        tell_all(Call::Fork {});
    }
}

/// Tells the traces of all NICs, without waiting for a lock.
fn tell_all(call: Call) {
    let Some(nics) = LIVING_NICS.get().and_then(Mutex::try_lock) else { return };
    for nic in nics.iter().filter_map(Weak::upgrade) {
        if nic.ground.records.trace.is_on() {
            nic.ground.records.trace.try_record(&calls::event(nic.now(), None, call));
        }
        if Arc::strong_count(&nic) == 1 {
            // Dropping the last would take locks.
            forget(nic);
        }
    }
}

/// Whether the program has prepared for forks.
static PREPARED_FOR_FORKS: AtomicBool = AtomicBool::new(false);

/// The program prepares for forks (`ibv_fork_init`), most often before there is a NIC.
pub fn fork_init() {
    PREPARED_FOR_FORKS.store(true, Ordering::Relaxed);
    if is_traced() {
        tell_all(Call::ForkInit {});
    }
}

/// Tells the trace of a new NIC what the program did before there was one.
pub(crate) fn tell_past(nic: &Nic) {
    // rdma-core's library prepares where one of these is set, whatever it is set to.
    let asked = || ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"].iter().any(|name| std::env::var_os(name).is_some());
    if PREPARED_FOR_FORKS.load(Ordering::Relaxed) || (is_traced() && asked()) {
        nic.called(None, || Call::ForkInit {});
    }
}

extern "C" fn in_child() {
    let _unjudged = latch::sanitizer::Unjudged::begin();
    ::host::thread::forget_number();
    latch::forget_in_child();
    memory::keep_replaced_pages_in_child();
    ::host::descriptor::close_in_child();
}

/// The NICs of this process: something may wait in them to be sent when it ends.
static LIVING_NICS: PerProcess<Mutex<Vec<Weak<Nic>>>> = PerProcess::new();

/// Sees to it that what waits in this NIC to be sent to peers is sent when the process ends, though its objects are
/// never destroyed.
pub(crate) fn flush_at_exit(nic: &Arc<Nic>) {
    static EXIT_HOOK_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !EXIT_HOOK_REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the handler is a plain function that takes nothing and does not unwind.
        unsafe { libc::atexit(at_exit) };
        EXIT_HOOK_REGISTERED.store(true, Ordering::Release);
    }
    let mut nics = LIVING_NICS.get_or_make(|| Mutex::new(Rank::Nics, Vec::new())).lock();
    nics.retain(|nic| nic.strong_count() > 0);
    nics.push(Arc::downgrade(nic));
}

/// A reference to this NIC that does not keep it alive; none if it is one that is not told of the process's end.
pub(crate) fn weak(nic: &Nic) -> Weak<Nic> {
    let nics = LIVING_NICS.get_or_make(|| Mutex::new(Rank::Nics, Vec::new())).lock();
    nics.iter().find(|weak| std::ptr::eq(weak.as_ptr(), nic)).cloned().unwrap_or_default()
}

/// Runs when the process ends, after what the program has registered with `atexit` and the destructors of its objects,
/// which may still destroy queue pairs.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_VERY_END: extern "C" fn() = at_the_very_end;

/// Has the engines say what was found or failed. Takes no lock that it would have to wait for, as [`at_exit`].
extern "C" fn at_the_very_end() {
    let _unjudged = latch::sanitizer::Unjudged::begin();
    let Some(nics) = LIVING_NICS.get().and_then(Mutex::try_lock) else { return };
    let since = Instant::now();
    for nic in nics.iter().filter_map(Weak::upgrade) {
        if nic.ground.records.trace.is_checked() || nic.ground.records.failures.any() {
            nic.ground.progress.engine.summarize_before_exit(since);
        }
        forget(nic);
    }
}

/// What is asked before the process ends.
static DONE_BEFORE_EXIT: OnceLock<fn() -> bool> = OnceLock::new();

/// Has a process that ends in good order wait until `is_done`, a little at most, while engines still send and receive.
/// It may be asked in a signal handler, so it must not wait for locks. There can be one; returns whether it is this.
pub fn wait_before_exit(is_done: fn() -> bool) -> bool {
    DONE_BEFORE_EXIT.set(is_done).is_ok()
}

/// Lists the sockets over RDMA that use a NIC.
static LIST_OF_SOCKETS: OnceLock<fn(&Nic) -> Vec<inventory::Socket>> = OnceLock::new();

/// Has reports of what this process has tell of its sockets over RDMA. A thread that does nothing else calls `list`,
/// which must not wait for locks of the data path. There can be one; returns whether it is this.
pub fn report_sockets(list: fn(&Nic) -> Vec<inventory::Socket>) -> bool {
    LIST_OF_SOCKETS.set(list).is_ok()
}

/// The sockets over RDMA that use this NIC.
pub(crate) fn sockets_of(nic: &Nic) -> Vec<inventory::Socket> {
    LIST_OF_SOCKETS.get().map_or_else(Vec::new, |list| list(nic))
}

/// The program may end inside a signal handler, while its own thread is in the middle of a call and holds locks: so the
/// engines flush, and this thread takes no lock and waits for them only for so long.
extern "C" fn at_exit() {
    let _unjudged = latch::sanitizer::Unjudged::begin();
    if is_traced() {
        tell_all(Call::Exit {});
    }
    let Some(nics) = LIVING_NICS.get().and_then(Mutex::try_lock) else { return };
    let since = Instant::now();
    if let Some(is_done) = DONE_BEFORE_EXIT.get() {
        while !is_done() && since.elapsed() < EXIT_WAIT_MAX {
            std::thread::sleep(EXIT_LOOK_INTERVAL);
        }
    }
    let since = Instant::now();
    for nic in nics.iter().filter_map(Weak::upgrade) {
        nic.ground.progress.engine.flush_before_exit(since);
        // Dropping the last would take locks.
        forget(nic);
    }
}
