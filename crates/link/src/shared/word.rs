//! The word by which a process says whether it must be rung for. A model checker compiles this file for itself
//! (`tests/suite/word_model.rs`).

use crate::sync::{AtomicU32, Ordering, fence};

/// Awake: it will look before it sleeps.
const WORD_AWAKE: u32 = 0;
/// Asleep: ring for its engine.
const WORD_RING: u32 = 1;
/// Its program polls: it will look soon.
const WORD_LEASED: u32 = 2;
/// A thread of its program sleeps in a call: ring for that one.
const WORD_CALL: u32 = 3;
/// Asleep, and no thread there waits for what the process itself has asked for: ring for its engine, but not to tell it
/// that something was done.
const WORD_LAZY: u32 = 4;

/// The thread that sleeps, and is rung for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleeper {
    /// The engine.
    Engine,
    /// A thread of the program, inside a call.
    Caller,
}

/// Takes the word back if it says that a sleeper must be rung for, and answers which. Something must have been
/// published before; `urgent` if it is more than an acknowledgement.
#[inline]
pub(crate) fn to_ring_for(word: &AtomicU32, urgent: bool) -> Option<Sleeper> {
    fence(Ordering::SeqCst);
    let seen = word.load(Ordering::Relaxed);
    let sleeper = match seen {
        WORD_RING => Sleeper::Engine,
        WORD_LAZY if urgent => Sleeper::Engine,
        WORD_CALL => Sleeper::Caller,
        _ => return None,
    };
    word.compare_exchange(seen, WORD_AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(sleeper)
}

/// Whether the program is said to poll.
#[inline]
pub(crate) fn is_leased(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) == WORD_LEASED
}

/// Takes the word back though the program is said to poll, because it does not look: its engine is to be rung for.
/// False if it says so no more.
pub(crate) fn to_insist(word: &AtomicU32) -> bool {
    word.compare_exchange(WORD_LEASED, WORD_AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// From now on this sleeper is rung for. It must look once more after this, and sleep only then.
pub(crate) fn prepare_sleep(word: &AtomicU32, sleeper: Sleeper) {
    word.store(if sleeper == Sleeper::Caller { WORD_CALL } else { WORD_RING }, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// [`prepare_sleep`] for an engine, if no thread waits for what the process has asked for: `waited_for` is asked
/// afterwards, and a thread that begins to wait calls [`expect`] afterwards, so that one of the two sees the other.
pub(crate) fn prepare_sleep_lazily(word: &AtomicU32, waited_for: impl FnOnce() -> bool) {
    word.store(WORD_LAZY, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if waited_for() {
        prepare_sleep(word, Sleeper::Engine);
    }
}

/// A thread begins to wait for what the process has asked for: a lazy sleeper is to be rung for all the same. What came
/// before that is there to be seen afterwards.
pub(crate) fn expect(word: &AtomicU32) {
    fence(Ordering::SeqCst);
    let _ = word.compare_exchange(WORD_LAZY, WORD_RING, Ordering::AcqRel, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// The program polls: its peers need not ring.
pub(crate) fn lease(word: &AtomicU32) {
    word.store(WORD_LEASED, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// A sleeper is awake again, and will look. Returns whether another process rang, or is about to.
pub(crate) fn wake(word: &AtomicU32) -> bool {
    word.swap(WORD_AWAKE, Ordering::AcqRel) == WORD_AWAKE
}
