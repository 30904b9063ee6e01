//! The bell under a model checker: every interleaving of the engine and of those who have something for it. A wake-up
//! that is lost is a thread that sleeps for ever, which the checker reports. The source is the crate's own.

#[path = "../../src/progress/bell.rs"]
#[allow(dead_code)]
mod bell;

pub(crate) mod progress {
    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};
    }
}

use bell::{Bell, WakeSignal};
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// An eventfd: strikes are kept until they are read.
#[derive(Default)]
struct Counter {
    count: Mutex<u32>,
    struck: Condvar,
    strikes: AtomicUsize,
}

impl WakeSignal for Counter {
    fn strike(&self) {
        self.strikes.fetch_add(1, Ordering::Relaxed);
        *self.count.lock().unwrap() += 1;
        self.struck.notify_one();
    }
}

impl Counter {
    fn sleep(&self) {
        let mut count = self.count.lock().unwrap();
        while *count == 0 {
            count = self.struck.wait(count).unwrap();
        }
        *count = 0;
    }
}

fn bell() -> Arc<Bell<Counter>> {
    Arc::new(Bell::new(Counter::default()))
}

/// The engine's loop for one flag: until it has been seen. A wake-up that is lost is a deadlock, which the model
/// reports.
fn drive_until(bell: &Bell<Counter>, published: &AtomicUsize, all: usize) {
    loop {
        if published.load(Ordering::Relaxed) == all {
            return;
        }
        bell.prepare_sleep();
        if published.load(Ordering::Relaxed) == all {
            bell.wake();
            return;
        }
        bell.signal().sleep();
        bell.wake();
    }
}

/// Producers that publish once each and ring, and an engine that must see it all.
fn publish_and_ring(producers: usize) {
    let (bell, published) = (bell(), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..producers)
        .map(|_| {
            let (bell, published) = (Arc::clone(&bell), Arc::clone(&published));
            thread::spawn(move || {
                published.fetch_add(1, Ordering::Relaxed);
                bell.ring();
            })
        })
        .collect();
    drive_until(&bell, &published, producers);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_is_published_is_seen() {
    loom::model(|| publish_and_ring(1));
}

/// All interleavings of two producers with the engine are too many; those with a few switches are not.
#[test]
fn what_two_publish_is_seen() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| publish_and_ring(2));
}

#[test]
fn a_burst_strikes_once_per_sleep() {
    loom::model(|| {
        let bell = bell();
        bell.prepare_sleep();
        let other = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || bell.ring())
        };
        let struck = u32::from(bell.ring()) + u32::from(other.join().unwrap());
        assert_eq!(struck, 1);
        assert_eq!(bell.signal().strikes.load(Ordering::Relaxed), 1);
    });
}

/// A program that polls arms its queue: the engine, which had left the driving to it, must hear of that, or see it
/// before it sleeps.
#[test]
fn the_end_of_a_lease_is_heard() {
    loom::model(|| {
        let (bell, armed) = (bell(), Arc::new(AtomicBool::new(false)));
        let program = {
            let (bell, armed) = (Arc::clone(&bell), Arc::clone(&armed));
            thread::spawn(move || {
                armed.store(true, Ordering::Relaxed);
                bell.ring_even_if_leased();
            })
        };
        // The engine: a lease lasts only while nothing is armed.
        bell.prepare_sleep_leased();
        if !armed.load(Ordering::Relaxed) {
            bell.signal().sleep();
            assert!(armed.load(Ordering::Relaxed));
        }
        bell.wake();
        program.join().unwrap();
    });
}

/// What can wait for the program's next poll does not ring while it polls.
#[test]
fn a_lease_keeps_the_bell_quiet() {
    loom::model(|| {
        let bell = bell();
        bell.prepare_sleep_leased();
        let other = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || bell.ring())
        };
        assert!(!bell.ring());
        assert!(!other.join().unwrap());
        assert_eq!(bell.signal().strikes.load(Ordering::Relaxed), 0);
    });
}
