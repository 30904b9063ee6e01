//! A lock that is taken in one call and let go in another: between `ibv_start_poll` and `ibv_end_poll`, and between `ibv_wr_start` and
//! `ibv_wr_complete`, the queue belongs to the thread that started. A program that ends what it did not start does no harm.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::forget;

/// Whose turn it is, and what the one whose turn it is may touch.
pub struct Turns<T> {
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    state: UnsafeCell<T>,
}

// SAFETY: the state is only reached by the thread that holds the mutex, as `Turns::mine` demands.
unsafe impl<T: Send> Sync for Turns<T> {}
// SAFETY: the mutex lies in a box and does not move.
unsafe impl<T: Send> Send for Turns<T> {}

/// A turn. It ends when this is dropped, also by a panic, unless it is kept for a later call.
#[derive(Debug)]
#[must_use]
pub struct Turn<'a, T>(&'a Turns<T>);

impl<T> Turns<T> {
    /// Nobody's turn yet.
    pub fn new(state: T) -> Turns<T> {
        let mutex = Box::new(UnsafeCell::new(libc::PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP));
        Turns { mutex, state: UnsafeCell::new(state) }
    }

    /// Waits for one's turn.
    pub fn take(&self) -> Turn<'_, T> {
        // SAFETY: an initialised mutex that does not move. A thread that has its turn already keeps it.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        Turn(self)
    }

    /// The turn that an earlier call of this thread kept.
    pub fn resume(&self) -> Turn<'_, T> {
        Turn(self)
    }

    /// What the turn is about.
    ///
    /// # Safety
    /// It is the calling thread's turn, and it has no other reference from here.
    #[allow(clippy::mut_from_ref, reason = "the caller holds the lock")]
    pub unsafe fn mine(&self) -> &mut T {
        // SAFETY: the caller holds the mutex and no other reference.
        unsafe { &mut *self.state.get() }
    }
}

impl<T> Turn<'_, T> {
    /// It goes on in a later call.
    pub fn keep(self) {
        forget(self);
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        // SAFETY: an initialised mutex; it refuses if this thread does not hold it.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
    }
}

impl<T> fmt::Debug for Turns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turns")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Counts under the lock, which every thread takes in one call and ends in another.
    #[test]
    fn a_turn_is_one_thread_s() {
        let turns = Turns::new(0u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        turns.take().keep();
                        let turn = turns.resume();
                        // SAFETY: it is our turn.
                        unsafe { *turns.mine() += 1 };
                        drop(turn);
                    }
                });
            }
        });
        drop(turns.take());
        // SAFETY: nobody else is left.
        assert_eq!(unsafe { *turns.mine() }, 40_000);
    }

    #[test]
    fn ending_what_was_not_begun_does_no_harm() {
        let turns = Turns::new(());
        drop(turns.resume());
        drop(turns.take());
        // Taken twice by one thread is taken once.
        turns.take().keep();
        drop(turns.take());
        thread::scope(|scope| scope.spawn(|| drop(turns.take())).join().unwrap());
    }
}
