//! The threads of the process, as far as they hold locks: a count each, so that no thread gets the right to all locks
//! while any thread holds one. A thread counts at its stripe; where there are more threads than stripes, in a list. The
//! list only grows, and what a thread leaves behind the next one takes, so that it can be walked without a lock.

use crate::bias::Bias;
use crate::{Apart, STRIPE_COUNT, stripes, token};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// The counts of threads that have a stripe.
static STRIPES_HOLDING: [Apart<AtomicU32>; STRIPE_COUNT] = [const { Apart(AtomicU32::new(0)) }; STRIPE_COUNT];

/// The count of a thread that has none.
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

/// Where a thread counts, for as long as it runs.
enum ThreadPlace {
    Stripe(usize),
    List(&'static Thread),
}

impl ThreadPlace {
    fn new() -> ThreadPlace {
        stripes::claim().map_or_else(|| ThreadPlace::List(Thread::find()), ThreadPlace::Stripe)
    }

    #[inline]
    fn holding(&self) -> &'static AtomicU32 {
        match self {
            ThreadPlace::Stripe(stripe) => &STRIPES_HOLDING[*stripe].0,
            ThreadPlace::List(thread) => &thread.holding,
        }
    }
}

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        // One that ends and holds a lock all the same keeps its place.
        if self.holding().load(Ordering::Relaxed) > 0 {
            return;
        }
        match self {
            ThreadPlace::Stripe(stripe) => stripes::give_back(*stripe),
            ThreadPlace::List(thread) => thread.taken.store(false, Ordering::Release),
        }
    }
}

thread_local! {
    static PLACE: ThreadPlace = ThreadPlace::new();
}

/// The stripe that this thread has for itself, if it has one.
pub(crate) fn own_stripe() -> Option<usize> {
    PLACE.try_with(|place| if let ThreadPlace::Stripe(stripe) = place { Some(*stripe) } else { None }).ok()?
}

/// Where this thread, whose number is `me`, counts; none if it is ending.
#[inline]
fn count_of(me: usize) -> Option<&'static AtomicU32> {
    match stripes::own(me) {
        Some(stripe) => Some(&STRIPES_HOLDING[stripe].0),
        None => PLACE.try_with(ThreadPlace::holding).ok(),
    }
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
    match count_of(me) {
        Some(holding) => holding.store(holding.load(Ordering::Relaxed) + 1, Ordering::Relaxed),
        None => _ = ENDING_THREADS.fetch_add(1, Ordering::SeqCst),
    }
    bias.admit(me);
}

/// It holds one less.
#[inline]
pub(crate) fn end() {
    match count_of(token()) {
        Some(holding) => holding.store(holding.load(Ordering::Relaxed).saturating_sub(1), Ordering::Release),
        None => {
            let _ = ENDING_THREADS.fetch_update(Ordering::Release, Ordering::Relaxed, |count| count.checked_sub(1));
        }
    }
}

/// Whether any thread holds a lock.
pub(crate) fn hold() -> bool {
    STRIPES_HOLDING.iter().any(|holding| holding.0.load(Ordering::Acquire) > 0)
        || all().any(|thread| thread.holding.load(Ordering::Acquire) > 0)
        || ENDING_THREADS.load(Ordering::Acquire) > 0
}

/// No thread holds any, in a process that has just been forked.
pub(crate) fn forget() {
    STRIPES_HOLDING.iter().for_each(|holding| holding.0.store(0, Ordering::Relaxed));
    all().for_each(|thread| thread.holding.store(0, Ordering::Relaxed));
    ENDING_THREADS.store(0, Ordering::Relaxed);
}
