//! Locks that cost a thread nothing as long as it is the only one that calls.
//!
//! Most programs use the NIC from one thread. It would pay for about twenty locked instructions per message, for the
//! sake of an engine thread that looks in once a millisecond. Here such a thread earns the right to all locks of the
//! process ([`alone`]): while it uses it, taking a [`Mutex`] is a store. Any other thread that wants one takes the
//! right away first, which costs a system call; where several threads call all the time none earns it, and the locks
//! are ordinary ones.
//!
//! **The thread that uses the right in effect holds every lock of this crate.** So it must not wait meanwhile for a
//! thread that may want one: no blocking call, no lock of another kind under which locks of this kind are taken, no
//! call into a program.

mod bias;
mod mutex;
mod order;
mod per_process;
pub mod plain;
mod rwlock;
pub mod sanitizer;
mod sync;
mod threads;

pub use mutex::{Guard, Mutex};
pub use order::{HeldLock, Rank};
pub use per_process::{PerProcess, generation};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};

use bias::Bias;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

static PROCESS_BIAS: Bias = Bias { owner: AtomicUsize::new(0), inside: AtomicUsize::new(0), held: AtomicU32::new(0) };

/// How often in a row one thread must ask before it gets the right.
const ASKS_BEFORE_RIGHT: u32 = 256;

/// How often the asking thread may be another than the last before no thread gets it any more.
const MAX_THREAD_CHANGES: u32 = 1000;

/// No thread gets the right: several threads want it, or the system lacks what it takes.
static BIAS_SHUT: AtomicBool = AtomicBool::new(false);
/// The thread that asked last, and how often in a row. These, and the next, are written without care: a count that is
/// lost does no harm.
static LAST_THREAD: AtomicUsize = AtomicUsize::new(0);
static ASKED_IN_ROW: AtomicU32 = AtomicU32::new(0);
static THREAD_CHANGES: AtomicU32 = AtomicU32::new(0);

/// The use of the right to all locks, or nothing, until it is dropped.
#[derive(Debug)]
pub struct Alone {
    uses: bool,
    /// It belongs to its thread.
    _thread: std::marker::PhantomData<*const ()>,
}

/// Uses the right to all locks, if this thread has it; earns it otherwise. Everything that is locked meanwhile must be
/// let go before.
#[inline]
pub fn alone() -> Alone {
    let me = token();
    Alone { uses: me != 0 && (PROCESS_BIAS.enter(me) || ask(me)), _thread: std::marker::PhantomData }
}

impl Drop for Alone {
    #[inline]
    fn drop(&mut self) {
        if self.uses {
            PROCESS_BIAS.leave();
        }
    }
}

/// Gives this thread the right, if it has asked often enough.
fn ask(me: usize) -> bool {
    if BIAS_SHUT.load(Ordering::Relaxed) || PROCESS_BIAS.is_inside(me) {
        return false;
    }
    if LAST_THREAD.load(Ordering::Relaxed) != me {
        LAST_THREAD.store(me, Ordering::Relaxed);
        ASKED_IN_ROW.store(0, Ordering::Relaxed);
        let changes = THREAD_CHANGES.load(Ordering::Relaxed) + 1;
        THREAD_CHANGES.store(changes, Ordering::Relaxed);
        if changes > MAX_THREAD_CHANGES {
            BIAS_SHUT.store(true, Ordering::Relaxed);
        }
        return false;
    }
    let asked = ASKED_IN_ROW.load(Ordering::Relaxed) + 1;
    ASKED_IN_ROW.store(asked, Ordering::Relaxed);
    asked >= ASKS_BEFORE_RIGHT && earn(me)
}

#[cold]
fn earn(me: usize) -> bool {
    ASKED_IN_ROW.store(0, Ordering::Relaxed);
    if !is_possible() {
        BIAS_SHUT.store(true, Ordering::Relaxed);
        return false;
    }
    PROCESS_BIAS.grant(me, || threads::hold() || BIAS_SHUT.load(Ordering::SeqCst)) && PROCESS_BIAS.enter(me)
}

/// Whether the system can put fences into the way of threads. It must be asked once before it does.
fn is_possible() -> bool {
    static POSSIBLE: PerProcess<bool> = PerProcess::new();
    *POSSIBLE.get_or_make(|| {
        // SAFETY: numbers.
        cfg!(miri)
            || unsafe {
                libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
            }
    })
}

/// Waits until no other thread uses a right to all locks, and takes it away: for a thread that changes what other
/// threads look at without a lock.
pub fn nobody_else() {
    let me = token();
    if !PROCESS_BIAS.is_inside(me) {
        PROCESS_BIAS.admit(me);
    }
}

/// Whether this thread uses its right to all locks.
#[inline]
pub fn is_alone() -> bool {
    let me = token();
    me != 0 && PROCESS_BIAS.is_inside(me)
}

/// Whether several threads have asked for the right by turns, so often that none gets it.
#[inline]
pub fn is_crowded() -> bool {
    THREAD_CHANGES.load(Ordering::Relaxed) > MAX_THREAD_CHANGES
}

/// A number below [`STRIPE_COUNT`] that is the same for a thread each time it asks, and mostly another for another thread:
/// for what threads count or look at, each for itself.
#[inline]
pub fn stripe() -> usize {
    (token() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (usize::BITS - STRIPE_COUNT.trailing_zeros())
}

/// How many stripes there are.
pub const STRIPE_COUNT: usize = 8;

/// A value on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

/// A number that no other thread of the process has at the same time; 0 where it is not known.
#[inline]
pub fn this_thread() -> usize {
    token()
}

/// Lets no thread have the right from now on. Not to be called by the thread that uses it.
pub fn shut() {
    BIAS_SHUT.store(true, Ordering::SeqCst);
    // Takes it from any thread that has it, this one as well.
    PROCESS_BIAS.admit(usize::MAX);
}

/// Begins a new [generation], and forgets which thread had the right and which held locks, in a process that has just
/// been forked. Async-signal-safe.
pub fn forget_in_child() {
    per_process::begin_generation();
    PROCESS_BIAS.forget();
    threads::forget();
}

/// A number that no other thread of the process has at the same time; 0 where there is none to be had cheaply.
#[inline]
fn token() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let token: usize;
        // SAFETY: the first word a thread has of its own is the address of that word, by the convention of the system.
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) token, options(nostack, readonly, preserves_flags)) };
        token
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let token: usize;
        // SAFETY: reads a register that is the thread's own.
        unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) token, options(nomem, nostack, preserves_flags)) };
        token
    }
    #[cfg(miri)]
    {
        // Miri runs no assembly. The address of something that each thread has of its own is dearer, and as good.
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| (&raw const *here).addr())
    }
    #[cfg(not(any(miri, target_arch = "x86_64", target_arch = "aarch64")))]
    0
}
