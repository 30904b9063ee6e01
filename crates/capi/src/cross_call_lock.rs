//! A lock that is taken in one call and let go in another: between `ibv_start_poll` and `ibv_end_poll`, and between
//! `ibv_wr_start` and `ibv_wr_complete`, the queue belongs to the thread that started. A program that ends what it did
//! not start does no harm.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::forget;

/// A lock that one call takes and another lets go, around the state that it guards.
pub struct CrossCallLock<T> {
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    state: UnsafeCell<T>,
}

// SAFETY: the state is only reached by the thread that holds the mutex, as `CrossCallLock::get_locked` demands.
unsafe impl<T: Send> Sync for CrossCallLock<T> {}
// SAFETY: the mutex lies in a box and does not move.
unsafe impl<T: Send> Send for CrossCallLock<T> {}

/// The lock is held. It is let go when this is dropped, also by a panic, unless a later call is to do that.
#[derive(Debug)]
#[must_use]
pub struct CrossCallGuard<'a, T>(&'a CrossCallLock<T>);

impl<T> CrossCallLock<T> {
    /// Not held.
    pub fn new(state: T) -> CrossCallLock<T> {
        let mutex = Box::new(UnsafeCell::new(libc::PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP));
        CrossCallLock { mutex, state: UnsafeCell::new(state) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> CrossCallGuard<'_, T> {
        self.lock_again().0
    }

    /// Waits for the lock, and says whether the calling thread holds it already: then nothing changes.
    pub fn lock_again(&self) -> (CrossCallGuard<'_, T>, bool) {
        // SAFETY: an initialised mutex that does not move.
        let answer = unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        (CrossCallGuard(self), answer == libc::EDEADLK)
    }

    /// The lock, which an earlier call of this thread kept.
    pub fn resume(&self) -> CrossCallGuard<'_, T> {
        CrossCallGuard(self)
    }

    /// The state.
    ///
    /// # Safety
    /// The calling thread holds the lock, and has no other reference from here.
    #[allow(clippy::mut_from_ref, reason = "the caller holds the lock")]
    pub unsafe fn get_locked(&self) -> &mut T {
        // SAFETY: the caller holds the mutex and no other reference.
        unsafe { &mut *self.state.get() }
    }
}

impl<T> CrossCallGuard<'_, T> {
    /// Lets it go, and says whether the calling thread held it.
    pub fn unlock(self) -> bool {
        // SAFETY: an initialised mutex; it refuses if this thread does not hold it.
        let answer = unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
        forget(self);
        answer == 0
    }

    /// A later call lets it go.
    pub fn keep_locked(self) {
        forget(self);
    }
}

impl<T> Drop for CrossCallGuard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: an initialised mutex; it refuses if this thread does not hold it.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
    }
}

impl<T> fmt::Debug for CrossCallLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CrossCallLock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Counts under the lock, which every thread takes in one call and ends in another.
    #[test]
    fn it_is_held_by_one_thread() {
        let lock = CrossCallLock::new(0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        lock.lock().keep_locked();
                        let guard = lock.resume();
                        // SAFETY: this thread holds the lock.
                        unsafe { *lock.get_locked() += 1 };
                        drop(guard);
                    }
                });
            }
        });
        drop(lock.lock());
        // SAFETY: the other threads have ended.
        assert_eq!(unsafe { *lock.get_locked() }, 40_000);
    }

    #[test]
    fn ending_what_was_not_begun_does_no_harm() {
        let lock = CrossCallLock::new(());
        assert!(!lock.resume().unlock());
        drop(lock.lock());
        // Taken twice by one thread is taken once.
        lock.lock().keep_locked();
        let (guard, is_again) = lock.lock_again();
        assert!(is_again && guard.unlock());
        thread::scope(|scope| scope.spawn(|| drop(lock.lock())).join().unwrap());
    }
}
