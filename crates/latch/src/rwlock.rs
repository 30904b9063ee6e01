//! A lock for many readers, or one writer.

use crate::order::{HeldLock, LockRank, Rank};
use crate::{Alone, PROCESS_BIAS, threads, token};
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// A writer, among the marks of the thread that has the right to all locks.
const WRITER_MARK: u32 = 1 << 31;

/// A lock around a value. A panic while it is held leaves it as any other end does.
pub struct RwLock<T> {
    lock: std::sync::RwLock<()>,
    /// How it is held by right. Written by the thread that has it.
    marks: AtomicU32,
    place: LockRank,
    value: UnsafeCell<T>,
}

// SAFETY: a value is changed by one thread at a time, and not while others look: that is what this is for.
unsafe impl<T: Send> Send for RwLock<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}

/// A value that other threads may read, too, and no thread changes.
#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    of: &'a RwLock<T>,
    /// None if it is held by right.
    lock: Option<RwLockReadGuard<'a, ()>>,
    _held: HeldLock,
}

/// A value that no other thread reads.
#[derive(Debug)]
pub struct WriteGuard<'a, T> {
    of: &'a RwLock<T>,
    lock: Option<RwLockWriteGuard<'a, ()>>,
    _held: HeldLock,
}

impl<T> RwLock<T> {
    /// A lock around a value.
    pub const fn new(rank: Rank, value: T) -> RwLock<T> {
        let (lock, marks) = (std::sync::RwLock::new(()), AtomicU32::new(0));
        RwLock { lock, marks, place: LockRank::new(rank), value: UnsafeCell::new(value) }
    }

    /// Takes it to read, when no thread changes it.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let held = self.place.wait();
        let me = token();
        let lock = match PROCESS_BIAS.is_inside(me) && me != 0 {
            true => {
                let marks = self.marks.load(Ordering::Relaxed);
                assert!(marks < WRITER_MARK, "a lock is taken twice");
                self.marks.store(marks + 1, Ordering::Relaxed);
                PROCESS_BIAS.hold();
                None
            }
            false => {
                threads::begin(&PROCESS_BIAS, me);
                Some(self.lock.read().unwrap_or_else(PoisonError::into_inner))
            }
        };
        ReadGuard { of: self, lock, _held: held }
    }

    /// Looks at the value by the right to all locks, if that is being used and this thread is not in the middle of
    /// changing it: the cheapest way there is, for looks that mostly find nothing.
    #[inline]
    pub fn look<R>(&self, alone: &Alone, look: impl FnOnce(&T) -> R) -> Option<R> {
        let marks = self.marks.load(Ordering::Relaxed);
        if !alone.uses || marks >= WRITER_MARK {
            return None;
        }
        self.marks.store(marks + 1, Ordering::Relaxed);
        let _held = self.place.wait();
        let _marked = Marked(&self.marks, marks);
        // SAFETY: no other thread has any lock while `alone` is there, and this thread takes none to change it while it
        // is marked.
        Some(look(unsafe { &*self.value.get() }))
    }

    /// Takes it to change it, when it is free.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let held = self.place.wait();
        let me = token();
        let lock = match PROCESS_BIAS.is_inside(me) && me != 0 {
            true => {
                let free = self.marks.load(Ordering::Relaxed) == 0 && self.lock.try_write().is_ok();
                assert!(free, "a lock is taken twice");
                self.marks.store(WRITER_MARK, Ordering::Relaxed);
                PROCESS_BIAS.hold();
                None
            }
            false => {
                threads::begin(&PROCESS_BIAS, me);
                Some(self.lock.write().unwrap_or_else(PoisonError::into_inner))
            }
        };
        WriteGuard { of: self, lock, _held: held }
    }

    #[inline]
    fn unmark(&self, marks: u32) {
        self.marks.store(marks, Ordering::Release);
        PROCESS_BIAS.let_go();
    }
}

/// The marks of a lock, and what they were before.
struct Marked<'a>(&'a AtomicU32, u32);

impl Drop for Marked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.store(self.1, Ordering::Relaxed);
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match self.lock.take() {
            None => self.of.unmark(self.of.marks.load(Ordering::Relaxed) - 1),
            Some(lock) => {
                drop(lock);
                threads::end();
            }
        }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        match self.lock.take() {
            None => self.of.unmark(0),
            Some(lock) => {
                drop(lock);
                threads::end();
            }
        }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: no thread changes it while this guard is there.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: locked, by this guard.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: locked, by this guard, which is borrowed as a whole.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock")
    }
}
