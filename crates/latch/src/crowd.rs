//! Which thread earns the right to all locks: one that asks often in a row. Where several threads ask alternately the
//! process is *crowded*: none gets it, and no thread writes what others read, but for the count of its own stripe. A
//! watcher, which looks now and then, sees by these counts that one thread asks alone again.

use crate::{ASKS_BEFORE_RIGHT, Apart, STRIPE_COUNT, stripe};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// How often the asking thread may be another than the last before no thread gets the right.
const MAX_THREAD_CHANGES: u32 = 1000;
/// How many of these are left to threads that were crowded before.
const CHANGES_AFTER_CALM: u32 = 32;
/// So many looks in a row at which no more than one thread had asked since the last make an end of the crowd.
const CALM_LOOKS: u32 = 8;

/// Who has asked. Counts are written without care: one that is lost does no harm.
struct Asking {
    /// No thread gets the right any more: the program or the system forbids it.
    shut: AtomicBool,
    /// The thread that asked last, and how often in a row.
    last_thread: AtomicUsize,
    asked_in_row: AtomicU32,
    thread_changes: AtomicU32,
}

static RECENT_ASKERS: Apart<Asking> = Apart(Asking {
    shut: AtomicBool::new(false),
    last_thread: AtomicUsize::new(0),
    asked_in_row: AtomicU32::new(0),
    thread_changes: AtomicU32::new(0),
});

/// How often threads have asked while there was a crowd.
static ASKS_IN_CROWD: [Apart<AtomicU32>; STRIPE_COUNT] = [const { Apart(AtomicU32::new(0)) }; STRIPE_COUNT];

/// A thread asks. Whether it has done so often enough.
#[inline]
pub(crate) fn ask(me: usize) -> bool {
    let Asking { last_thread, asked_in_row, thread_changes, .. } = &RECENT_ASKERS.0;
    if is_crowded() {
        let asks = &ASKS_IN_CROWD[stripe()].0;
        asks.store(asks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        return false;
    }
    if last_thread.load(Ordering::Relaxed) != me {
        last_thread.store(me, Ordering::Relaxed);
        asked_in_row.store(0, Ordering::Relaxed);
        thread_changes.store(thread_changes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        return false;
    }
    let asked = asked_in_row.load(Ordering::Relaxed) + 1;
    let enough = asked >= ASKS_BEFORE_RIGHT;
    asked_in_row.store(if enough { 0 } else { asked }, Ordering::Relaxed);
    enough
}

/// Whether several threads have asked for the right alternately, so often that none gets it.
#[inline]
pub fn is_crowded() -> bool {
    RECENT_ASKERS.0.thread_changes.load(Ordering::Relaxed) > MAX_THREAD_CHANGES
}

/// No thread gets the right from now on.
pub(crate) fn shut() {
    RECENT_ASKERS.0.shut.store(true, Ordering::SeqCst);
}

#[inline]
pub(crate) fn is_shut() -> bool {
    RECENT_ASKERS.0.shut.load(Ordering::SeqCst)
}

/// What a watcher remembers from look to look.
#[derive(Debug, Default)]
pub struct CalmWatch {
    asks: [u32; STRIPE_COUNT],
    calm_looks: u32,
}

impl CalmWatch {
    /// Looks whether the crowd has gone. Then one thread may earn the right again.
    pub fn look(&mut self) {
        if !is_crowded() {
            return;
        }
        let mut active = 0;
        for (before, asks) in self.asks.iter_mut().zip(&ASKS_IN_CROWD) {
            let asks = asks.0.load(Ordering::Relaxed);
            active += u32::from(std::mem::replace(before, asks) != asks);
        }
        self.calm_looks = if active > 1 { 0 } else { self.calm_looks + 1 };
        if self.calm_looks >= CALM_LOOKS {
            self.calm_looks = 0;
            RECENT_ASKERS.0.thread_changes.store(MAX_THREAD_CHANGES - CHANGES_AFTER_CALM, Ordering::Relaxed);
        }
    }
}
