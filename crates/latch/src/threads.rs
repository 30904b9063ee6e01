//! The threads of the process, as far as they hold locks: a count each, so that no thread gets the right to all locks
//! while any thread holds one. The list only grows, and what a thread leaves behind the next one takes, so that it can
//! be walked without a lock.

use crate::bias::Bias;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// One thread's count.
#[derive(Debug)]
struct Thread {
    holding: AtomicU32,
    taken: AtomicBool,
    next: *const Thread,
}

// SAFETY: atomics, and a pointer to what is never freed.
unsafe impl Sync for Thread {}

static FIRST_THREAD: AtomicPtr<Thread> = AtomicPtr::new(null_mut());

/// For threads that have none of their own any more, because they are ending.
static ENDING_THREADS: AtomicU32 = AtomicU32::new(0);

/// The place of a thread in the list, for as long as the thread runs.
struct ThreadPlace(&'static Thread);

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        // One that ends and holds a lock all the same keeps its place.
        if self.0.holding.load(Ordering::Relaxed) == 0 {
            self.0.taken.store(false, Ordering::Release);
        }
    }
}

thread_local! {
    static PLACE: ThreadPlace = ThreadPlace(Thread::find());
}

fn all() -> impl Iterator<Item = &'static Thread> {
    // SAFETY: null, or a leaked box.
    let mut next = unsafe { FIRST_THREAD.load(Ordering::Acquire).as_ref() };
    std::iter::from_fn(move || {
        let thread = next?;
        // SAFETY: as above.
        next = unsafe { thread.next.as_ref() };
        Some(thread)
    })
}

impl Thread {
    #[cold]
    fn find() -> &'static Thread {
        let free =
            |thread: &&Thread| thread.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if let Some(thread) = all().find(free) {
            return thread;
        }
        let mut first = FIRST_THREAD.load(Ordering::Acquire);
        let new = Box::leak(Box::new(Thread { holding: AtomicU32::new(0), taken: AtomicBool::new(true), next: first }));
        while let Err(other) = FIRST_THREAD.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            first = other;
            new.next = first;
        }
        new
    }
}

/// This thread is about to hold a lock, and waits until no other thread has the right to all.
#[inline]
pub(crate) fn begin(bias: &Bias, me: usize) {
    let counted = PLACE.try_with(|place| {
        let holding = &place.0.holding;
        holding.store(holding.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    });
    if counted.is_err() {
        ENDING_THREADS.fetch_add(1, Ordering::SeqCst);
    }
    bias.admit(me);
}

/// It holds one less.
#[inline]
pub(crate) fn end() {
    let counted = PLACE.try_with(|place| {
        let holding = &place.0.holding;
        holding.store(holding.load(Ordering::Relaxed).saturating_sub(1), Ordering::Release);
    });
    if counted.is_err() {
        let _ = ENDING_THREADS.fetch_update(Ordering::Release, Ordering::Relaxed, |count| count.checked_sub(1));
    }
}

/// Whether any thread holds a lock.
pub(crate) fn hold() -> bool {
    all().any(|thread| thread.holding.load(Ordering::Acquire) > 0) || ENDING_THREADS.load(Ordering::Acquire) > 0
}

/// No thread holds any, in a process that has just been forked.
pub(crate) fn forget() {
    all().for_each(|thread| thread.holding.store(0, Ordering::Relaxed));
    ENDING_THREADS.store(0, Ordering::Relaxed);
}
