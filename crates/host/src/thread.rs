//! Threads of ours in a program that is not: no signal is handled on one. A program that blocks signals in all of its
//! threads and reads them from a `signalfd` knows nothing of ours, and a handler may rely on the thread that it runs
//! on.
//!
//! Threads of the program that call the NIC: none is cancelled (`pthread_cancel`) while it has our locks.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::thread::Builder;

/// Starts a thread of that name, which ends by itself. It takes no signals from its first instruction on: it inherits
/// the mask, which is set for so long.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let _blocked = Blocked::all();
    let run = move || {
        let _unjudged = latch::sanitizer::begin_thread();
        run();
    };
    Builder::new().name(name.into()).spawn(run).map(drop)
}

/// [`spawn`], which returns when the thread runs. Before, the C library makes room for what it allocates, with `mmap`
/// and `munmap`: libfabric and UCX write over the code of these functions soon after a device was opened, and a thread
/// that is inside of one dies.
pub fn spawn_and_wait(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (runs, begun) = mpsc::sync_channel::<()>(0);
    spawn(name, move || {
        drop(runs);
        run();
    })?;
    let _ = begun.recv();
    Ok(())
}

thread_local! {
    /// The number of this thread; 0 until it was asked for. It has no destructor, so that a thread that ends may ask.
    static THREAD_NUMBER: Cell<u32> = const { Cell::new(0) };
}

/// The number of the calling thread, as the system has it. The system is asked once.
#[inline]
pub fn number() -> u32 {
    THREAD_NUMBER.with(|number| match number.get() {
        0 => {
            // SAFETY: a call without arguments.
            number.set(unsafe { libc::syscall(libc::SYS_gettid) } as u32);
            number.get()
        }
        known => known,
    })
}

/// Whether memory is part of the calling thread's stack. `None` if the system does not say.
#[must_use]
pub fn is_on_stack(address: u64, length: u64) -> Option<bool> {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: fills in the attributes of the thread itself.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    let (mut lowest, mut size) = (null_mut(), 0);
    // SAFETY: they were filled in, are read, and given back once.
    let known = unsafe {
        let known = libc::pthread_attr_getstack(attributes.as_ptr(), &mut lowest, &mut size) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        known
    };
    let lowest = lowest.addr() as u64;
    let end = |start: u64, bytes: u64| start.saturating_add(bytes);
    known.then(|| address < end(lowest, size as u64) && lowest < end(address, length))
}

/// The calling thread is the first of a forked child, and has another number from now on.
pub fn forget_number() {
    THREAD_NUMBER.with(|number| number.set(0));
}

/// The calling thread takes no signals, until this is dropped.
#[derive(Debug)]
pub struct Blocked {
    before: libc::sigset_t,
    /// The mask is the thread's own.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    /// No signal but those that cannot be blocked.
    pub fn all() -> Blocked {
        let mut all = MaybeUninit::uninit();
        // SAFETY: fills the set, which is large enough.
        Blocked::set(unsafe {
            libc::sigfillset(all.as_mut_ptr());
            all.assume_init()
        })
    }

    fn set(signals: libc::sigset_t) -> Blocked {
        let mut before = MaybeUninit::uninit();
        // SAFETY: two live sets. It cannot fail for a known operation; the kernel then has filled the second.
        let before = unsafe {
            libc::sigemptyset(before.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, before.as_mut_ptr());
            before.assume_init()
        };
        Blocked { before, _thread: std::marker::PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: a live set, and no place for the old one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut()) };
    }
}

/// The calling thread is not cancelled, until this is dropped. A thread that is to be cancelled is, in most functions
/// of the C library that make a system call: it would leave our locks behind, taken.
#[derive(Debug)]
#[must_use]
pub struct Shield {
    before: libc::c_int,
    /// The state is the thread's own.
    _thread: std::marker::PhantomData<*const ()>,
}

const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

impl Shield {
    /// Lets no cancellation through. Costs two locked instructions.
    pub fn up() -> Shield {
        let mut before = 0;
        // SAFETY: a number, and a place for what was before.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Shield { before, _thread: std::marker::PhantomData }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        // SAFETY: what the C library answered before. It cancels no thread here, unless that asked to be cancelled at
        // any instruction, and such a thread must not call us.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// `SigBlk` of the calling thread.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_knows_its_own_stack() {
        let look = || {
            let (local, heap) = ([0_u8; 64], vec![0_u8; 64]);
            let on_stack = |bytes: &[u8]| is_on_stack(bytes.as_ptr().addr() as u64, bytes.len() as u64);
            assert_eq!((on_stack(&local), on_stack(&heap)), (Some(true), Some(false)));
        };
        look();
        std::thread::spawn(look).join().unwrap();
    }

    #[test]
    fn a_thread_of_ours_takes_no_signals_and_the_callers_mask_stays() {
        let before = blocked();
        let (tell, told) = channel();
        spawn("quiet", move || tell.send((blocked(), std::thread::current().name().map(str::to_owned))).unwrap())
            .unwrap();
        assert_eq!(blocked(), before);
        let (mask, name) = told.recv().unwrap();
        // All 64, but SIGKILL and SIGSTOP, and the two that the C library keeps for itself.
        let never = [9, 19, 32, 33].map(|signal: u32| 1u64 << (signal - 1)).iter().sum::<u64>();
        assert_eq!(mask | never, u64::MAX);
        assert_eq!(name.as_deref(), Some("quiet"));
    }
}
