//! How an access by a requester ends before the target takes its memory back, whatever stops or ends the requester in
//! between. It holds no lock of the target's and is never waited for, but inside the one system call that moves bytes.
//! A model checker compiles this file for itself (`tests/suite/direct_model.rs`).
//!
//! There are two ways to the memory. Both begin alike: the target counts a word on, the *generation*, whenever something
//! was taken out of its table, and the requester looks whether it is still the one under which it found its address.
//!
//! **By an open file** of the target's memory, which both sides have. Its position says where the next access goes. The
//! kernel takes a lock for as long as an access lasts, and so does who sets the position.
//!
//! | the requester | the target |
//! |---|---|
//! | 1 reads the generation, finds an address in the table | 1 takes the entry out of the table |
//! | 2 sets the position to it | 2 counts the generation on |
//! | 3 reads the same generation once more | 3 sets the position to [`NO_MEMORY_ADDRESS`], which waits for an access under way |
//! | 4 accesses | 4 takes its memory back |
//!
//! If 3 of the target comes after 2 of the requester, the access is over or will go nowhere. If it comes before, 3 of
//! the requester sees another generation.
//!
//! **By its own mapping** of the file that the memory is of. Nothing ends a store of another process, so the target waits
//! for the one that is under way: the requester says in a word, its *claim*, which thread it is in.
//!
//! | the requester | the target |
//! |---|---|
//! | 1 reads the generation, finds an address in the table | 1 takes the entry out of the table |
//! | 2 writes its thread into the claim | 2 counts the generation on |
//! | 3 reads the same generation once more, and accesses | 3 waits until the claim is 0, or its thread was off its processor |
//! | 4 writes 0 into the claim | 4 takes its memory back |
//!
//! Between 2 and 3 both have a full fence, so one of them sees the other. The target's is one in the requester as well,
//! where the kernel has that (`membarrier`): then the requester spares its own. 3 of the requester is a sequence that the
//! kernel starts again from the first step, the look at the generation, when it takes the thread from its processor
//! (`restartable`). It may be done several times under one claim. So a thread that is stopped in the middle of 3 does nothing with what it saw before, and the target
//! need not wait for it.

use crate::sync::{AtomicU64, Ordering, fence, heavy_fence, light_fence};

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

/// The requester: sets the position to `address`, and accesses if the table is still of that generation. The caller has
/// the file for itself among the threads of its process.
#[inline]
pub(crate) fn reach<T>(
    generation: (&AtomicU64, u64),
    set_position: impl FnOnce(),
    access: impl FnOnce() -> T,
) -> Option<T> {
    set_position();
    is_current(generation).then(access)
}

/// The requester: whether nothing was taken out of the table since it was of that generation.
#[inline]
pub(crate) fn is_current((generation, known): (&AtomicU64, u64)) -> bool {
    generation.load(Ordering::Acquire) == known
}

/// The requester: from here on accesses may begin, each of which looks at the generation itself. Where the fence of the
/// target reaches this process, it needs none of its own.
#[inline]
pub(crate) fn begin_claim(claim: &AtomicU64, thread: u64, is_reached: bool) {
    // What was done under the claim before is done.
    claim.store(thread, Ordering::Release);
    if is_reached { light_fence() } else { fence(Ordering::SeqCst) }
}

/// The requester: none is under way any more.
#[inline]
pub(crate) fn end_claim(claim: &AtomicU64) {
    claim.store(0, Ordering::Release);
}

/// The target: what was taken out of the table is not found again. Before it ends accesses; whether there are peers that
/// make claims, it has to say.
pub(crate) fn end_generation(generation: &AtomicU64, has_claims: bool) {
    generation.fetch_add(1, Ordering::Release);
    if has_claims { heavy_fence() } else { fence(Ordering::SeqCst) }
}

/// The target: waits until an access by a mapping is over. `is_off_processor` says of the thread of a claim that it did
/// not run for a moment, or waits a little.
pub(crate) fn wait_until_over(claim: &AtomicU64, mut is_off_processor: impl FnMut(u64) -> bool) {
    let first = claim.load(Ordering::Acquire);
    let mut thread = first;
    // Another claim is a later one, which has seen the new generation.
    while thread != 0 && thread == first && !is_off_processor(thread) {
        thread = claim.load(Ordering::Acquire);
    }
}
