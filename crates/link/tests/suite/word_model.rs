//! The word that says "ring for me" under a model checker: every interleaving of those who sleep and of one who has
//! written something for them. A wake-up that is lost is a thread that sleeps for ever, which the checker reports. The
//! source is the crate's own.

#[path = "../../src/shared/word.rs"]
#[allow(dead_code)]
mod word;

use crate::sync::heavy_fence;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use word::{Needs, Sleeper};

/// A process: its word, its bells (an eventfd each), and how much is in its ring.
struct Process {
    word: AtomicU32,
    bells: [(Mutex<u32>, Condvar); 2],
    written: AtomicUsize,
}

impl Process {
    fn new() -> Arc<Process> {
        let bell = || (Mutex::new(0), Condvar::new());
        Arc::new(Process { word: AtomicU32::new(0), bells: [bell(), bell()], written: AtomicUsize::new(0) })
    }

    fn bell(&self, sleeper: Sleeper) -> &(Mutex<u32>, Condvar) {
        &self.bells[usize::from(sleeper == Sleeper::Caller)]
    }

    /// What another process does. Answers whether it rang.
    fn write(&self) -> bool {
        self.write_what(true)
    }

    fn write_what(&self, urgent: bool) -> bool {
        self.written.fetch_add(1, Ordering::Relaxed);
        let Needs::Ring(sleeper) = word::needs(&self.word, urgent, true) else { return false };
        let (count, rung) = self.bell(sleeper);
        *count.lock().unwrap() += 1;
        rung.notify_one();
        true
    }

    /// Sleeps and looks until `all` is there.
    fn drive_until(&self, all: usize, sleeper: Sleeper) {
        loop {
            word::prepare_sleep(&self.word, sleeper);
            if self.written.load(Ordering::Relaxed) == all {
                return;
            }
            let (count, rung) = self.bell(sleeper);
            let mut count = count.lock().unwrap();
            while *count == 0 {
                count = rung.wait(count).unwrap();
            }
            *count = 0;
            drop(count);
            word::wake(&self.word);
        }
    }
}

#[test]
fn what_is_written_is_seen() {
    for sleeper in [Sleeper::Engine, Sleeper::Caller] {
        loom::model(move || {
            let process = Process::new();
            let writer = {
                let process = Arc::clone(&process);
                thread::spawn(move || process.write())
            };
            process.drive_until(1, sleeper);
            writer.join().unwrap();
        });
    }
}

#[test]
fn what_two_write_is_seen() {
    // Three threads have too many interleavings for all of them; what goes wrong does so within few switches.
    let mut few = loom::model::Builder::new();
    few.preemption_bound = Some(2);
    few.check(|| {
        let process = Process::new();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let process = Arc::clone(&process);
                thread::spawn(move || process.write())
            })
            .collect();
        process.drive_until(2, Sleeper::Engine);
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// A thread of the program leaves its call: from then on the engine, which has slept all the while, is the one to ring
/// for.
#[test]
fn what_is_written_while_a_call_ends_is_seen() {
    loom::model(|| {
        let process = Process::new();
        word::prepare_sleep(&process.word, Sleeper::Engine);
        let writer = {
            let process = Arc::clone(&process);
            thread::spawn(move || process.write())
        };
        word::prepare_sleep(&process.word, Sleeper::Caller);
        word::wake(&process.word);
        word::prepare_sleep(&process.word, Sleeper::Engine);
        let seen = process.written.load(Ordering::Relaxed) == 1;
        let rang = writer.join().unwrap();
        assert!(seen || rang, "neither saw the other");
    });
}

/// The engine goes to sleep when nobody waits for acknowledgements, and just then the program begins to. It looks for
/// itself once it has said so.
#[test]
fn an_acknowledgement_is_seen_by_one_who_begins_to_wait() {
    let mut few = loom::model::Builder::new();
    few.preemption_bound = Some(3);
    few.check(|| {
        let process = Process::new();
        let waits = Arc::new(AtomicUsize::new(0));
        let writer = {
            let process = Arc::clone(&process);
            thread::spawn(move || process.write_what(false))
        };
        let engine = {
            let (process, waits) = (Arc::clone(&process), Arc::clone(&waits));
            thread::spawn(move || {
                word::prepare_sleep_lazily(&process.word, || waits.load(Ordering::Relaxed) > 0);
                process.written.load(Ordering::Relaxed) == 1
            })
        };
        waits.fetch_add(1, Ordering::SeqCst);
        word::expect(&process.word);
        let seen = process.written.load(Ordering::Relaxed) == 1;
        let (rang, found) = (writer.join().unwrap(), engine.join().unwrap());
        assert!(seen || rang || found, "nobody knows of it");
    });
}

#[test]
fn a_lazy_sleeper_is_rung_for_unless_it_is_told_that_something_was_done() {
    loom::model(|| {
        let process = Process::new();
        word::prepare_sleep_lazily(&process.word, || false);
        assert!(!process.write_what(false));
        assert!(process.write_what(true));
        word::prepare_sleep_lazily(&process.word, || true);
        assert!(process.write_what(false));
    });
}

#[test]
fn who_polls_is_not_rung_for() {
    for fenced in [false, true] {
        loom::model(move || {
            let process = Process::new();
            word::lease(&process.word, fenced);
            assert!(!process.write());
        });
    }
}

/// A program that polled goes to sleep. What a peer wrote without a fence is seen by the look after the sleeper's fence.
#[test]
fn what_is_written_while_a_lease_ends_is_seen() {
    for sleeper in [Sleeper::Engine, Sleeper::Caller] {
        loom::model(move || {
            let process = Process::new();
            word::lease(&process.word, true);
            let writer = {
                let process = Arc::clone(&process);
                thread::spawn(move || process.write())
            };
            word::wake(&process.word);
            word::prepare_sleep(&process.word, sleeper);
            heavy_fence();
            let seen = process.written.load(Ordering::Relaxed) == 1;
            let rang = writer.join().unwrap();
            assert!(seen || rang, "neither saw the other");
        });
    }
}

/// A process whose program is said to poll and does not: its engine sleeps, but looks once after it has said so.
#[test]
fn what_is_written_for_one_who_does_not_look_is_insisted_on() {
    loom::model(|| {
        let process = Process::new();
        let writer = {
            let process = Arc::clone(&process);
            thread::spawn(move || {
                if process.write() {
                    return;
                }
                // Not rung for: either it is awake and looks, or it says that its program polls, and then its engine is
                // rung for in the end.
                if word::to_insist(&process.word) {
                    let (count, rung) = process.bell(Sleeper::Engine);
                    *count.lock().unwrap() += 1;
                    rung.notify_one();
                }
            })
        };
        word::lease(&process.word, false);
        if process.written.load(Ordering::Relaxed) == 0 {
            let (count, rung) = process.bell(Sleeper::Engine);
            let mut count = count.lock().unwrap();
            while *count == 0 {
                count = rung.wait(count).unwrap();
            }
            drop(count);
            assert_eq!(process.written.load(Ordering::Relaxed), 1);
        }
        writer.join().unwrap();
    });
}
