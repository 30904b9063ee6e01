//! What a process knows of its objects as a whole. A forked child begins with nothing: the lock it would inherit may be held for ever, by a thread
//! that it does not have.

use std::process;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Something of which every process has its own, behind a lock.
pub(crate) struct PerProcess<T> {
    place: AtomicPtr<Place<T>>,
}

struct Place<T> {
    process: u32,
    content: Mutex<T>,
}

impl<T: Default + Send> PerProcess<T> {
    /// Empty.
    pub const fn new() -> PerProcess<T> {
        PerProcess { place: AtomicPtr::new(null_mut()) }
    }

    /// This process's own.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        self.place().content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&'static self) -> &'static Place<T> {
        let process = process::id();
        let mut found = self.place.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or from a leaked box: what a parent left stays where it is.
            match unsafe { found.as_ref() } {
                Some(place) if place.process == process => return place,
                _ => {}
            }
            let made = Box::into_raw(Box::new(Place { process, content: Mutex::default() }));
            match self.place.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just leaked.
                Ok(_) => return unsafe { &*made },
                Err(other) => {
                    // SAFETY: nobody has seen ours.
                    drop(unsafe { Box::from_raw(made) });
                    found = other;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NUMBERS: PerProcess<Vec<u32>> = PerProcess::new();

    #[test]
    fn a_child_has_its_own_although_the_parent_s_is_locked() {
        let mut numbers = NUMBERS.lock();
        numbers.push(1);
        // SAFETY: the child only takes a lock of its own and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mine = NUMBERS.lock().len();
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(mine as i32) };
        }
        let mut status = -1;
        // SAFETY: waits for our child; the place for its status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "it began with nothing");
        assert_eq!(*numbers, [1]);
    }
}
