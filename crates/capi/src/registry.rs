//! What a process knows of its objects as a whole. A forked child begins with nothing: the lock it would inherit may be
//! held for ever, by a thread that it does not have.

use abi::Handle;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};

pub(crate) use latch::lock;

/// A pointer that may be kept where threads share it.
pub(crate) struct Pointer<T>(pub *mut T);

// SAFETY: it is only followed under the lock that keeps its object from going.
unsafe impl<T> Send for Pointer<T> {}

impl<T> fmt::Debug for Pointer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

/// Objects that C has, by number, for events that know only the number. An object leaves under the lock around the list
/// before it is destroyed, so what the list answers is alive as long as the lock is held.
pub(crate) struct LiveObjects<K, C>(HashMap<K, Pointer<C>>);

impl<K, C> Default for LiveObjects<K, C> {
    fn default() -> Self {
        LiveObjects(HashMap::new())
    }
}

impl<K: fmt::Debug, C> fmt::Debug for LiveObjects<K, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.0).finish()
    }
}

impl<K: Copy + Eq + Hash, C> LiveObjects<K, C> {
    /// Enters an object.
    ///
    /// # Safety
    /// The library hands `object` out as a `C`, and removes it from the list before it destroys it.
    pub unsafe fn insert(&mut self, number: K, object: *mut C) {
        self.0.insert(number, Pointer(object));
    }

    /// Removes an object.
    pub fn remove(&mut self, number: K) {
        self.0.remove(&number);
    }

    /// The object of that number.
    pub fn get(&self, number: K) -> Option<Handle<'_, C>> {
        // SAFETY: entered as an object of this library, and not yet destroyed, as it is still in the list.
        self.0.get(&number).map(|object| unsafe { Handle::new(object.0) })
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = Handle<'_, C>> {
        // SAFETY: as above.
        self.0.values().map(|object| unsafe { Handle::new(object.0) })
    }
}

/// Something of which every process has its own, behind a lock.
pub(crate) struct PerProcess<T: 'static>(latch::PerProcess<Mutex<T>>);

impl<T: Default + Send> PerProcess<T> {
    /// Empty.
    pub const fn new() -> PerProcess<T> {
        PerProcess(latch::PerProcess::new())
    }

    /// This process's own.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        lock(self.0.get_or_make(Mutex::default))
    }
}
