//! The right of one thread to all locks, under a model checker: every order in which a thread can earn it, use it and
//! lose it to others is tried, with the memory ordering of the language and not of this machine. Its own source is
//! compiled here over the checker's types.

#[path = "../../src/bias.rs"]
#[allow(dead_code)]
mod bias;

pub(crate) mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

    /// What the kernel puts into the way of a thread is a fence wherever the thread is: so here it is where it matters.
    pub(crate) fn light_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(crate) fn pause(_times: u32) {
        loom::thread::yield_now();
    }
}

use bias::Bias;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicU32, AtomicUsize, Ordering};

/// A lock of the process, and what it guards. The checker reports any order in which two threads meet there.
struct World {
    bias: Bias,
    /// Of threads 2 and 3, as `threads.rs` counts them.
    holding: [AtomicU32; 2],
    lock: AtomicU32,
    value: UnsafeCell<u32>,
}

// SAFETY: that it is only touched under the rules is what is being checked.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(owner: usize) -> Arc<World> {
        let bias = Bias { owner: AtomicUsize::new(owner), inside: AtomicUsize::new(0), held: AtomicU32::new(0) };
        Arc::new(World {
            bias,
            holding: [AtomicU32::new(0), AtomicU32::new(0)],
            lock: AtomicU32::new(0),
            value: UnsafeCell::new(0),
        })
    }

    fn change(&self) {
        // SAFETY: locked, or by right.
        self.value.with_mut(|value| unsafe { *value += 1 });
    }

    /// By right, if there is one. Answers whether it was.
    fn alone(&self, me: usize) -> bool {
        let inside = self.bias.enter(me);
        if inside {
            self.bias.hold();
            self.change();
            self.bias.let_go();
            self.bias.leave();
        }
        inside
    }

    /// As everybody does.
    fn locked(&self, me: usize) {
        let holding = &self.holding[me - 2];
        holding.store(1, Ordering::Relaxed);
        self.bias.admit(me);
        while self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            thread::yield_now();
        }
        self.change();
        self.lock.store(0, Ordering::Release);
        holding.store(0, Ordering::Release);
    }

    fn earn(&self, me: usize) -> bool {
        self.bias.grant(me, || self.holding.iter().any(|holding| holding.load(Ordering::Acquire) > 0))
    }

    fn total(&self) -> u32 {
        // SAFETY: the other threads have ended.
        self.value.with(|value| unsafe { *value })
    }
}

#[test]
fn the_owner_and_one_who_locks_never_meet() {
    loom::model(|| {
        let world = World::new(2);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.locked(3));
        let mut done = 0;
        for _ in 0..2 {
            if world.alone(2) {
                done += 1;
            } else {
                world.locked(2);
                done += 1;
            }
        }
        thread.join().unwrap();
        assert_eq!(world.total(), done + 1);
    });
}

#[test]
fn one_who_earns_the_right_waits_for_those_who_hold_locks() {
    loom::model(|| {
        let world = World::new(0);
        let other = Arc::clone(&world);
        let thread = thread::spawn(move || other.locked(3));
        let mut done = 0;
        if world.earn(2) && world.alone(2) {
            done += 1;
        }
        thread.join().unwrap();
        assert_eq!(world.total(), done + 1);
    });
}

#[test]
fn two_who_take_the_right_away_both_wait_for_its_owner() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = World::new(4);
        let threads = [2, 3].map(|me| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.locked(me))
        });
        let done = u32::from(world.alone(4));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.total(), done + 2);
        assert!(!world.alone(4), "it was taken away");
    });
}
