//! A lock for one.

use crate::order::{HeldLock, LockRank, Rank};
use crate::{PROCESS_BIAS, threads, token};
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const STATE_FREE: u32 = 0;
const STATE_HELD: u32 = 1;
/// Held, and a thread sleeps until it is not.
const STATE_AWAITED: u32 = 2;

/// How often to look before going to sleep.
const SPINS_BEFORE_SLEEP: u32 = 100;

/// A lock around a value. A panic while it is held leaves it as any other end does.
pub struct Mutex<T: ?Sized> {
    word: AtomicU32,
    place: LockRank,
    value: UnsafeCell<T>,
}

// SAFETY: a value is reached by one thread at a time: that is what this is for.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

/// A value that is locked.
pub struct Guard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// Held by the right to all locks, which needs no more than a mark.
    by_right: bool,
    _held: HeldLock,
}

// SAFETY: shows a value and nothing else.
unsafe impl<T: ?Sized + Sync> Sync for Guard<'_, T> {}

impl<T> Mutex<T> {
    /// A lock around a value.
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { word: AtomicU32::new(STATE_FREE), place: LockRank::new(rank), value: UnsafeCell::new(value) }
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Takes it, when it is free.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let held = self.place.wait();
        let me = token();
        if PROCESS_BIAS.is_inside(me) && me != 0 {
            assert!(self.mark(), "a lock is taken twice");
            return self.guard(true, held);
        }
        self.wait(me, held)
    }

    /// Takes it, if it is free now.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let me = token();
        if PROCESS_BIAS.is_inside(me) && me != 0 {
            return self.mark().then(|| self.guard(true, self.place.tried()));
        }
        threads::begin(&PROCESS_BIAS, me);
        let taken = self.word.compare_exchange(STATE_FREE, STATE_HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !taken {
            threads::end();
        }
        taken.then(|| self.guard(false, self.place.tried()))
    }

    /// The value, which no other thread can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    fn guard(&self, by_right: bool, held: HeldLock) -> Guard<'_, T> {
        Guard { mutex: self, by_right, _held: held }
    }

    /// Takes it by right, unless this thread has it already.
    #[inline]
    fn mark(&self) -> bool {
        let free = self.word.load(Ordering::Relaxed) == STATE_FREE;
        if free {
            self.word.store(STATE_HELD, Ordering::Relaxed);
            PROCESS_BIAS.hold();
        }
        free
    }

    #[inline]
    fn wait(&self, me: usize, held: HeldLock) -> Guard<'_, T> {
        threads::begin(&PROCESS_BIAS, me);
        if self.word.compare_exchange(STATE_FREE, STATE_HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.sleep();
        }
        self.guard(false, held)
    }

    #[cold]
    fn sleep(&self) {
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.word.load(Ordering::Relaxed) == STATE_FREE
                && self.word.compare_exchange(STATE_FREE, STATE_HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            std::hint::spin_loop();
        }
        while self.word.swap(STATE_AWAITED, Ordering::Acquire) != STATE_FREE {
            futex(&self.word, libc::FUTEX_WAIT, STATE_AWAITED);
        }
    }

    #[inline]
    fn unlock(&self) {
        if self.word.swap(STATE_FREE, Ordering::Release) == STATE_AWAITED {
            futex(&self.word, libc::FUTEX_WAKE, 1);
        }
        threads::end();
    }
}

#[cold]
fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a live word, numbers, and no limit of time. Whatever comes of it the word is looked at again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, std::ptr::null::<libc::timespec>()) };
}

impl<T: ?Sized> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match self.by_right {
            true => {
                self.mutex.word.store(STATE_FREE, Ordering::Release);
                PROCESS_BIAS.let_go();
            }
            false => self.mutex.unlock(),
        }
    }
}

impl<T: ?Sized> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: locked, by this guard.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T: ?Sized> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: locked, by this guard, which is borrowed as a whole.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
