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
mod sync;
mod threads;

pub use mutex::{Guard, Mutex};
pub use order::{Held, Rank};
pub use per_process::{PerProcess, generation};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};

use bias::Bias;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

static BIAS: Bias = Bias { owner: AtomicUsize::new(0), inside: AtomicUsize::new(0), held: AtomicU32::new(0) };

/// How often in a row one thread must ask before it gets the right.
const ENOUGH: u32 = 256;

/// How often the asking thread may be another than the last before no thread gets it any more.
const MANY: u32 = 1000;

/// No thread gets the right: several threads want it, or the system lacks what it takes.
static SHUT: AtomicBool = AtomicBool::new(false);
/// The thread that asked last, and how often in a row. These, and the next, are written without care: a count that is
/// lost does no harm.
static LAST: AtomicUsize = AtomicUsize::new(0);
static ASKED: AtomicU32 = AtomicU32::new(0);
static CHANGES: AtomicU32 = AtomicU32::new(0);

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
    Alone { uses: me != 0 && (BIAS.enter(me) || ask(me)), _thread: std::marker::PhantomData }
}

impl Drop for Alone {
    #[inline]
    fn drop(&mut self) {
        if self.uses {
            BIAS.leave();
        }
    }
}

/// Gives this thread the right, if it has asked often enough.
fn ask(me: usize) -> bool {
    if SHUT.load(Ordering::Relaxed) || BIAS.is_inside(me) {
        return false;
    }
    if LAST.load(Ordering::Relaxed) != me {
        LAST.store(me, Ordering::Relaxed);
        ASKED.store(0, Ordering::Relaxed);
        let changes = CHANGES.load(Ordering::Relaxed) + 1;
        CHANGES.store(changes, Ordering::Relaxed);
        if changes > MANY {
            SHUT.store(true, Ordering::Relaxed);
        }
        return false;
    }
    let asked = ASKED.load(Ordering::Relaxed) + 1;
    ASKED.store(asked, Ordering::Relaxed);
    asked >= ENOUGH && earn(me)
}

#[cold]
fn earn(me: usize) -> bool {
    ASKED.store(0, Ordering::Relaxed);
    if !is_possible() {
        SHUT.store(true, Ordering::Relaxed);
        return false;
    }
    BIAS.grant(me, || threads::hold() || SHUT.load(Ordering::SeqCst)) && BIAS.enter(me)
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
    if !BIAS.is_inside(me) {
        BIAS.admit(me);
    }
}

/// Whether this thread uses its right to all locks.
#[inline]
pub fn is_alone() -> bool {
    let me = token();
    me != 0 && BIAS.is_inside(me)
}

/// Whether several threads have asked for the right by turns, so often that none gets it.
#[inline]
pub fn is_crowded() -> bool {
    CHANGES.load(Ordering::Relaxed) > MANY
}

/// A number below [`STRIPES`] that is the same for a thread each time it asks, and mostly another for another thread:
/// for what threads count or look at, each for itself.
#[inline]
pub fn stripe() -> usize {
    (token() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (usize::BITS - STRIPES.trailing_zeros())
}

/// How many stripes there are.
pub const STRIPES: usize = 8;

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
    SHUT.store(true, Ordering::SeqCst);
    // Takes it from any thread that has it, this one as well.
    BIAS.admit(usize::MAX);
}

/// Begins a new [generation], and forgets which thread had the right and which held locks, in a process that has just
/// been forked. Async-signal-safe.
pub fn forget_in_child() {
    per_process::begin_generation();
    BIAS.forget();
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
