//! A sequence lock for one writer at a time: readers see values of one state or are told that they did not. What it
//! guards is atomic itself, so there is nothing unsafe about it. Run under a model checker, like the gate.

use crate::sync::{AtomicU32, Ordering, fence};

/// Even while nothing changes; another even number after each change.
#[derive(Debug)]
pub(crate) struct Version(AtomicU32);

impl Version {
    pub(crate) fn new() -> Version {
        Version(AtomicU32::new(0))
    }

    /// Runs `write`, which stores the guarded values, relaxed. No other thread may be in here.
    pub(crate) fn change(&self, write: impl FnOnce()) {
        let version = self.0.load(Ordering::Relaxed);
        self.0.store(version.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees a new value, and then fences, sees the odd version.
        fence(Ordering::Release);
        write();
        self.0.store(version.wrapping_add(2), Ordering::Release);
    }

    /// What `read` made of the guarded values, which it loads relaxed; `None` if they may have changed meanwhile.
    #[inline]
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let version = self.0.load(Ordering::Acquire);
        let result = read();
        fence(Ordering::Acquire);
        (version.is_multiple_of(2) && self.0.load(Ordering::Relaxed) == version).then_some(result)
    }
}
