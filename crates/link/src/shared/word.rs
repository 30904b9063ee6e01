//! The word by which a process says whether it must be rung for. A model checker compiles this file for itself
//! (`tests/suite/word_model.rs`).

use crate::sync::{AtomicU32, Ordering, fence, light_fence};

/// Awake: it will look before it sleeps.
const WORD_AWAKE: u32 = 0;
/// Asleep: ring for its engine.
const WORD_RING: u32 = 1;
/// Its program polls: it will look soon.
const WORD_LEASED: u32 = 2;
/// The same, and before it sleeps otherwise it puts a fence into the way of all processes that have registered for
/// that: such a writer needs none of its own.
const WORD_LEASED_FENCED: u32 = 5;
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

/// What a process needs to be told when something was written for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Nothing: it will look before it sleeps.
    Nothing,
    /// Nothing, as its program is said to poll.
    Lease,
    /// A ring, for this sleeper. The caller must ring, since no other process will.
    Ring(Sleeper),
}

/// Takes the word back if it says that a sleeper must be rung for, and answers which. Something must have been
/// published before; `urgent` if it is more than an acknowledgement. A process that is `registered` for the fences of
/// others runs none while the word promises one: 3.5 -> 3.9 million 64 B SENDs a second.
#[inline]
pub(crate) fn needs(word: &AtomicU32, urgent: bool, registered: bool) -> Needs {
    if registered {
        light_fence();
        if word.load(Ordering::Relaxed) == WORD_LEASED_FENCED {
            return Needs::Lease;
        }
    }
    fence(Ordering::SeqCst);
    let seen = word.load(Ordering::Relaxed);
    let sleeper = match seen {
        WORD_RING => Sleeper::Engine,
        WORD_LAZY if urgent => Sleeper::Engine,
        WORD_CALL => Sleeper::Caller,
        WORD_LEASED | WORD_LEASED_FENCED => return Needs::Lease,
        _ => return Needs::Nothing,
    };
    match word.compare_exchange(seen, WORD_AWAKE, Ordering::AcqRel, Ordering::Relaxed) {
        Ok(_) => Needs::Ring(sleeper),
        Err(_) => Needs::Nothing,
    }
}

/// Whether the program is said to poll.
#[inline]
pub(crate) fn is_leased(word: &AtomicU32) -> bool {
    matches!(word.load(Ordering::Relaxed), WORD_LEASED | WORD_LEASED_FENCED)
}

/// Takes the word back though the program is said to poll, because it does not look: its engine is to be rung for.
/// False if it says so no more.
pub(crate) fn to_insist(word: &AtomicU32) -> bool {
    [WORD_LEASED, WORD_LEASED_FENCED]
        .into_iter()
        .any(|leased| word.compare_exchange(leased, WORD_AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok())
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

/// The program polls: its peers need not ring. With `fenced` the caller promises a [`heavy_fence`](crate::sync::heavy_fence)
/// between the next `prepare_sleep` and the look that follows.
pub(crate) fn lease(word: &AtomicU32, fenced: bool) {
    word.store(if fenced { WORD_LEASED_FENCED } else { WORD_LEASED }, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// A sleeper is awake again, and will look. Returns whether another process rang, or is about to.
pub(crate) fn wake(word: &AtomicU32) -> bool {
    word.swap(WORD_AWAKE, Ordering::AcqRel) == WORD_AWAKE
}
