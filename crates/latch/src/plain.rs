//! Ordinary locks with a [rank](crate::Rank), for what is not on the way of a message. A panic while one is held leaves
//! it as any other end does.

use crate::order::{HeldLock, LockRank, Rank};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};

/// A value that is locked, in one way or another, and the lock's place in the order until it is let go.
#[derive(Debug)]
pub struct Guard<G> {
    // Let go of in this order.
    guard: G,
    _held: HeldLock,
}

impl<G> Guard<G> {
    /// Takes a lock of another kind, which has that rank.
    #[inline]
    pub fn new(rank: Rank, take: impl FnOnce() -> G) -> Guard<G> {
        let held = HeldLock::wait(rank);
        Guard { guard: take(), _held: held }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Takes a lock of the standard library, whose holder may have panicked: what it guards is valid at every step.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock for one.
pub struct Mutex<T> {
    place: LockRank,
    lock: std::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A lock around a value.
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { place: LockRank::new(rank), lock: std::sync::Mutex::new(value) }
    }

    /// Takes it, when it is free.
    #[inline]
    pub fn lock(&self) -> Guard<MutexGuard<'_, T>> {
        let held = self.place.wait();
        Guard { guard: self.lock.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Takes it, if it is free now.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<MutexGuard<'_, T>>> {
        let guard = match self.lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { guard, _held: self.place.tried() })
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// A lock for many readers or one writer.
pub struct RwLock<T> {
    place: LockRank,
    lock: std::sync::RwLock<T>,
}

impl<T> RwLock<T> {
    /// A lock around a value.
    pub const fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock { place: LockRank::new(rank), lock: std::sync::RwLock::new(value) }
    }

    /// Takes it to read, when no thread holds it to write.
    #[inline]
    pub fn read(&self) -> Guard<RwLockReadGuard<'_, T>> {
        let held = self.place.wait();
        Guard { guard: self.lock.read().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Takes it to write, when it is free.
    #[inline]
    pub fn write(&self) -> Guard<RwLockWriteGuard<'_, T>> {
        let held = self.place.wait();
        Guard { guard: self.lock.write().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RwLock")
    }
}
