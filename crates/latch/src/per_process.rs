//! What every process has of its own, though a fork copies it: a child must wait for no lock of its parent's, since the
//! thread that held it may not be there to let it go. A number tells the processes apart: the child adds one to it
//! before anything else runs. Comparing it costs a load, which is cheap enough for every call of a program.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static FORK_GENERATION: AtomicU32 = AtomicU32::new(0);

/// The number of this process among its forefathers. What was made under another number belongs to one of these.
#[inline]
pub fn generation() -> u32 {
    FORK_GENERATION.load(Ordering::Relaxed)
}

/// This process has just been forked.
pub(crate) fn begin_generation() {
    FORK_GENERATION.store(generation().wrapping_add(1), Ordering::Relaxed);
}

/// A value of which every process has its own, made when it is first asked for. Threads that ask at the same time may
/// make several, of which one stays: so no thread waits for another, which a fork might have taken away.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    place: AtomicPtr<ProcessValue<T>>,
}

#[derive(Debug)]
struct ProcessValue<T> {
    generation: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Not made yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess { place: AtomicPtr::new(null_mut()) }
    }

    /// This process's own, if it has been made.
    #[inline]
    pub fn get(&'static self) -> Option<&'static T> {
        // SAFETY: null, or from a leaked box: what a parent left stays where it is.
        let place = unsafe { self.place.load(Ordering::Acquire).as_ref() }?;
        (place.generation == generation()).then_some(&place.value)
    }

    /// This process's own.
    #[inline]
    pub fn get_or_make(&'static self, make: impl FnOnce() -> T) -> &'static T {
        match self.get() {
            Some(value) => value,
            None => self.make(make()),
        }
    }

    #[cold]
    fn make(&'static self, value: T) -> &'static T {
        let made = Box::into_raw(Box::new(ProcessValue { generation: generation(), value }));
        loop {
            let found = self.place.load(Ordering::Acquire);
            if let Some(value) = self.get() {
                // SAFETY: no other thread has seen ours.
                drop(unsafe { Box::from_raw(made) });
                return value;
            }
            if self.place.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // SAFETY: just leaked, and reachable for ever.
                return unsafe { &(*made).value };
            }
        }
    }
}

impl<T: Send + Sync> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::thread;

    #[test]
    fn all_threads_get_the_same() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| *VALUE.get_or_make(Mutex::default).lock().unwrap() += 1);
            }
        });
        assert_eq!(*VALUE.get().unwrap().lock().unwrap(), 8);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not fork")]
    fn a_child_has_its_own_though_the_parents_is_locked() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new();
        let _held = VALUE.get_or_make(|| Mutex::new(1)).lock().unwrap();
        // SAFETY: the child takes a lock of its own, allocates, and leaves with `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            begin_generation();
            let own = VALUE.get().is_none() && *VALUE.get_or_make(|| Mutex::new(2)).lock().unwrap() == 2;
            // SAFETY: leaves without running anything of the parent's.
            unsafe { libc::_exit(if own { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child; `status` is live.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
