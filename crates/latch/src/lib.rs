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
mod crowd;
mod mutex;
mod order;
mod per_process;
pub mod plain;
mod rwlock;
pub mod sanitizer;
mod stripes;
mod sync;
mod threads;

pub use crowd::{CalmWatch, is_crowded};
pub use mutex::{Guard, Mutex};
pub use order::{HeldLock, Rank};
pub use per_process::{PerProcess, generation};
pub use plain::lock;
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use stripes::{STRIPE_COUNT, stripe};
pub use sync::pause;

use bias::Bias;
use std::sync::atomic::{AtomicU32, AtomicUsize};

static PROCESS_BIAS: Bias = Bias { owner: AtomicUsize::new(0), inside: AtomicUsize::new(0), held: AtomicU32::new(0) };

/// How often in a row one thread must ask before it gets the right.
const ASKS_BEFORE_RIGHT: u32 = 256;

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

impl Alone {
    /// Whether this thread had the right.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.uses
    }
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
    !crowd::is_shut() && !PROCESS_BIAS.is_inside(me) && crowd::ask(me) && earn(me)
}

#[cold]
fn earn(me: usize) -> bool {
    if !is_possible() {
        crowd::shut();
        return false;
    }
    PROCESS_BIAS.grant(me, || threads::hold() || crowd::is_shut()) && PROCESS_BIAS.enter(me)
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
    crowd::shut();
    // Takes it from any thread that has it, this one as well.
    PROCESS_BIAS.admit(usize::MAX);
}

/// Begins a new [generation], and forgets which thread had the right and which held locks, in a process that has just
/// been forked. Async-signal-safe.
pub fn forget_in_child() {
    per_process::begin_generation();
    PROCESS_BIAS.forget();
    threads::forget();
    stripes::forget();
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
