//! The word by which a process says whether it must be rung for. A model checker compiles this file for itself
//! (`tests/suite/word_model.rs`).

use crate::sync::{AtomicU32, Ordering, fence};

/// Awake: it will look before it sleeps.
const AWAKE: u32 = 0;
/// Asleep: ring for its engine.
const RING: u32 = 1;
/// Its program polls: it will look soon.
const LEASED: u32 = 2;
/// A thread of its program sleeps in a call: ring for that one.
const CALL: u32 = 3;
/// Asleep, and no thread there waits for what the process itself has asked for: ring for its engine, but not to tell it
/// that something was done.
const LAZY: u32 = 4;

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
        RING => Sleeper::Engine,
        LAZY if urgent => Sleeper::Engine,
        CALL => Sleeper::Caller,
        _ => return None,
    };
    word.compare_exchange(seen, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(sleeper)
}

/// Whether the program is said to poll.
#[inline]
pub(crate) fn is_leased(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) == LEASED
}

/// Takes the word back though the program is said to poll, because it does not look: its engine is to be rung for.
/// False if it says so no more.
pub(crate) fn to_insist(word: &AtomicU32) -> bool {
    word.compare_exchange(LEASED, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// From now on this sleeper is rung for. It must look once more after this, and sleep only then.
pub(crate) fn prepare_sleep(word: &AtomicU32, sleeper: Sleeper) {
    word.store(if sleeper == Sleeper::Caller { CALL } else { RING }, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// [`prepare_sleep`] for an engine, if no thread waits for what the process has asked for: `waited_for` is asked
/// afterwards, and a thread that begins to wait calls [`expect`] afterwards, so that one of the two sees the other.
pub(crate) fn prepare_sleep_lazily(word: &AtomicU32, waited_for: impl FnOnce() -> bool) {
    word.store(LAZY, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if waited_for() {
        prepare_sleep(word, Sleeper::Engine);
    }
}

/// A thread begins to wait for what the process has asked for: a lazy sleeper is to be rung for all the same. What came
/// before that is there to be seen afterwards.
pub(crate) fn expect(word: &AtomicU32) {
    fence(Ordering::SeqCst);
    let _ = word.compare_exchange(LAZY, RING, Ordering::AcqRel, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// The program polls: its peers need not ring.
pub(crate) fn lease(word: &AtomicU32) {
    word.store(LEASED, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// A sleeper is awake again, and will look. Answers whether another process rang, or is about to.
pub(crate) fn wake(word: &AtomicU32) -> bool {
    word.swap(AWAKE, Ordering::AcqRel) == AWAKE
}
