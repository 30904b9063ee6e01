//! A lock that is taken in one call and let go in another: between `ibv_start_poll` and `ibv_end_poll`, and between `ibv_wr_start` and
//! `ibv_wr_complete`, the queue belongs to the thread that started.

use std::cell::UnsafeCell;
use std::fmt;

/// Whose turn it is, and what the one whose turn it is may touch.
pub struct Turns<T> {
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    state: UnsafeCell<T>,
}

// SAFETY: the state is only reached by the thread that holds the mutex, as `Turns::mine` demands.
unsafe impl<T: Send> Sync for Turns<T> {}
// SAFETY: the mutex lies in a box and does not move.
unsafe impl<T: Send> Send for Turns<T> {}

impl<T> Turns<T> {
    /// Nobody's turn yet.
    pub fn new(state: T) -> Turns<T> {
        Turns { mutex: Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)), state: UnsafeCell::new(state) }
    }

    /// Waits for one's turn.
    pub fn take(&self) {
        // SAFETY: an initialised mutex that does not move.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
    }

    /// Ends one's turn.
    ///
    /// # Safety
    /// It is the calling thread's turn.
    pub unsafe fn give(&self) {
        // SAFETY: as for taking; the caller holds it.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
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

impl<T> fmt::Debug for Turns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turns")
    }
}
