//! How an access by a requester ends before the target takes its memory back, whatever stops or ends the requester in
//! between. It holds no lock of the target's and is never waited for, but inside the one system call that moves bytes.
//! A model checker compiles this file for itself (`tests/suite/direct_model.rs`).
//!
//! Both sides have the same open file, whose position says where the next access goes. The kernel takes a lock for as
//! long as an access lasts, and so does who sets the position.
//!
//! | the requester | the target |
//! |---|---|
//! | 1 finds an address in the table | 1 takes the entry out of the table |
//! | 2 sets the position to it | 2 sets the position to [`NO_MEMORY_ADDRESS`], which waits for an access under way |
//! | 3 finds the same address once more | 3 takes its memory back |
//! | 4 accesses | |
//!
//! If 2 of the target comes after 2 of the requester, the access is over or will go nowhere. If it comes before, 3 of
//! the requester sees that the entry is gone.

use crate::sync::{AtomicU64, Ordering};

/// No process has memory there: the access fails.
pub(crate) const NO_MEMORY_ADDRESS: u64 = 0x7fff_ffff_ffff_f000;

/// What an entry says besides its name.
pub(crate) const ENTRY_WORDS: usize = 7;
pub(crate) const ENTRY_BYTES: usize = 64;

/// A published fact. One thread of the target at a time changes it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    /// 0 if there is none.
    name: AtomicU64,
    words: [AtomicU64; ENTRY_WORDS],
}

impl Entry {
    #[inline]
    fn read(&self, name: u64) -> Option<[u64; ENTRY_WORDS]> {
        let is_there = self.name.load(Ordering::Acquire) == name;
        is_there.then(|| std::array::from_fn(|word| self.words[word].load(Ordering::Relaxed)))
    }
}

/// Puts a fact into an entry that is free. False if none is.
pub(crate) fn publish_entry(entries: &[Entry], name: u64, words: &[u64]) -> bool {
    let Some(entry) = entries.iter().find(|entry| entry.name.load(Ordering::Relaxed) == 0) else { return false };
    for (word, value) in entry.words.iter().zip(words) {
        word.store(*value, Ordering::Relaxed);
    }
    entry.name.store(name, Ordering::Release);
    true
}

/// Takes a fact out again. False if it was not there.
#[must_use = "accesses by what was there have to be ended"]
pub(crate) fn withdraw_entry(entries: &[Entry], name: u64) -> bool {
    let found = entries.iter().find(|entry| entry.name.load(Ordering::Relaxed) == name);
    if let Some(entry) = found {
        entry.name.store(0, Ordering::Release);
    }
    found.is_some()
}

/// What is published by that name.
#[inline]
pub(crate) fn find_entry(entries: &[Entry], name: u64) -> Option<[u64; ENTRY_WORDS]> {
    entries.iter().find_map(|entry| entry.read(name))
}

/// Accesses memory of the target where `find` says, if it says so still when the position is set. The caller has the
/// file for itself among the threads of its process.
#[inline]
pub(crate) fn reach<T>(
    find: impl Fn() -> Option<u64>,
    set_position: impl FnOnce(u64),
    access: impl FnOnce() -> T,
) -> Option<T> {
    let address = find()?;
    set_position(address);
    (find() == Some(address)).then(access)
}
