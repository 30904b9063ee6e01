//! Gate and version under a model checker: every order in which a few threads can enter, leave, ask, close, wait and
//! open is tried, with the memory ordering of the language and not of this machine. Their own sources are compiled here
//! over the checker's types. Part of the ordinary tests; `LOOM_LOG=trace cargo test -p ubiverbs-memory --test suite
//! protocol` shows the steps of a run that fails.

#![cfg(not(miri))]

#[path = "../../src/current_access.rs"]
mod current_access;

#[path = "../../src/gate.rs"]
#[allow(dead_code)]
mod gate;

#[path = "../../src/version.rs"]
mod version;

pub(crate) mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex};

    /// The checker's threads are one thread of the system, which has no order to keep.
    pub(crate) fn in_order(rank: latch::Rank) -> latch::Rank {
        rank
    }
    pub(crate) fn fence_after_exchange() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn pause(_times: u32) {
        loom::thread::yield_now();
    }

    /// At once to sleep: the model is about the sleeping.
    pub(crate) const SPINS_BEFORE_SLEEP: u32 = 0;
}

use current_access::CurrentAccess;
use gate::{Bell, Gate, Shut};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicU32, Ordering};
use version::Version;

/// A gate, and something that only those inside may read and only the owner of a drained gate may write. The checker
/// reports any order in which the two meet.
struct Guarded {
    gate: Gate,
    bell: Bell,
    inside: UnsafeCell<u32>,
}

// SAFETY: that it is only touched under the rules of the gate is what is being checked.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn open(key: u32, value: u32) -> Arc<Guarded> {
        let slot = Guarded { gate: Gate::new(), bell: Bell::new(), inside: UnsafeCell::new(value) };
        slot.gate.open(key);
        Arc::new(slot)
    }

    /// An access: what it found inside.
    fn access(&self, key: u32) -> Result<u32, Shut> {
        self.gate.enter(key, &self.bell)?;
        // SAFETY: inside.
        let found = self.inside.with(|value| unsafe { *value });
        self.gate.leave(&self.bell);
        Ok(found)
    }

    fn set(&self, value: u32) {
        // SAFETY: the gate is closed and drained.
        self.inside.with_mut(|inside| unsafe { *inside = value });
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn after_draining_nobody_is_inside_and_nobody_sleeps_for_ever() {
    check(4, || {
        let slot = Guarded::open(1, 10);
        let accesses: Vec<_> = (0..2)
            .map(|_| {
                let slot = slot.clone();
                thread::spawn(move || match slot.access(1) {
                    Ok(value) => assert_eq!(value, 10),
                    Err(shut) => assert!(matches!(shut, Shut::Closed | Shut::OtherKey)),
                })
            })
            .collect();
        slot.gate.close();
        slot.gate.drain(&slot.bell);
        slot.set(11);
        slot.gate.abandon();
        for access in accesses {
            access.join().unwrap();
        }
    });
}

#[test]
fn a_slot_given_to_another_key_is_never_mistaken() {
    check(4, || {
        let slot = Guarded::open(1, 10);
        let old = {
            let slot = slot.clone();
            thread::spawn(move || slot.access(1).map(|value| assert_eq!(value, 10)))
        };
        let new = {
            let slot = slot.clone();
            thread::spawn(move || slot.access(2).map(|value| assert_eq!(value, 20)))
        };
        slot.gate.close();
        slot.gate.drain(&slot.bell);
        slot.gate.abandon();
        slot.set(20);
        slot.gate.open(2);
        let _ = (old.join().unwrap(), new.join().unwrap());
        assert_eq!(slot.access(1), Err(Shut::OtherKey));
        assert_eq!(slot.access(2), Ok(20), "an access that was turned away has counted itself out");
        slot.gate.close();
        slot.gate.drain(&slot.bell);
    });
}

#[test]
fn a_slot_that_changes_twice_under_one_key_shows_one_state_at_a_time() {
    check(3, || {
        let slot = Guarded::open(1, 10);
        let access = {
            let slot = slot.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Ok(value) = slot.access(1) {
                        assert!([10, 11, 12].contains(&value));
                    }
                }
            })
        };
        for value in [11, 12] {
            slot.gate.close();
            slot.gate.drain(&slot.bell);
            slot.set(value);
            slot.gate.open(1);
        }
        access.join().unwrap();
        assert_eq!(slot.access(1), Ok(12));
    });
}

#[test]
fn two_who_wait_at_two_gates_share_the_bell() {
    check(3, || {
        let bell = Arc::new(Bell::new());
        let gates = Arc::new([Gate::new(), Gate::new()]);
        for gate in gates.iter() {
            gate.open(1);
            gate.enter(1, &bell).unwrap();
        }
        let waiters: Vec<_> = (0..2)
            .map(|i| {
                let (gates, bell) = (gates.clone(), bell.clone());
                thread::spawn(move || {
                    gates[i].close();
                    gates[i].drain(&bell);
                })
            })
            .collect();
        for gate in gates.iter() {
            gate.leave(&bell);
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

/// An access that is counted on the line of its thread, or at the gate if that line is in use.
fn access_at(current: &CurrentAccess, slot: &Guarded, key: u32) -> Result<u32, Shut> {
    if !current.begin(key) {
        return slot.access(key);
    }
    let found = slot.gate.test(key).map(|()| {
        // SAFETY: inside.
        slot.inside.with(|value| unsafe { *value })
    });
    current.end();
    found
}

#[test]
fn the_access_that_a_thread_is_in_the_middle_of_is_waited_for_and_a_slot_is_not_mistaken() {
    check(2, || {
        let slot = Guarded::open(1, 10);
        let currents = Arc::new([CurrentAccess::new(), CurrentAccess::new()]);
        let accesses: Vec<_> = [(0, 1, 10), (1, 2, 20)]
            .into_iter()
            .map(|(place, key, value): (usize, u32, u32)| {
                let (slot, currents) = (slot.clone(), currents.clone());
                thread::spawn(move || match access_at(&currents[place], &slot, key) {
                    Ok(found) => assert_eq!(found, value),
                    Err(shut) => assert!(matches!(shut, Shut::Closed | Shut::OtherKey)),
                })
            })
            .collect();
        slot.gate.close();
        slot.gate.drain(&slot.bell);
        CurrentAccess::wait_until_over(currents.iter(), 1);
        slot.gate.abandon();
        slot.set(20);
        slot.gate.open(2);
        for access in accesses {
            access.join().unwrap();
        }
        assert_eq!(access_at(&currents[0], &slot, 2), Ok(20), "the line is free again");
    });
}

#[test]
fn threads_that_share_a_line_are_both_waited_for() {
    check(2, || {
        let slot = Guarded::open(1, 10);
        let current = Arc::new(CurrentAccess::new());
        let accesses: Vec<_> = (0..2)
            .map(|_| {
                let (slot, current) = (slot.clone(), current.clone());
                thread::spawn(move || match access_at(&current, &slot, 1) {
                    Ok(found) => assert_eq!(found, 10),
                    Err(shut) => assert!(matches!(shut, Shut::Closed | Shut::OtherKey)),
                })
            })
            .collect();
        slot.gate.close();
        slot.gate.drain(&slot.bell);
        CurrentAccess::wait_until_over(std::iter::once(&*current), 1);
        slot.set(11);
        slot.gate.abandon();
        for access in accesses {
            access.join().unwrap();
        }
    });
}

/// A slot as questions see it: the gate, and two terms under the version.
struct Asked {
    gate: Gate,
    bell: Bell,
    version: Version,
    terms: [AtomicU32; 2],
}

impl Asked {
    fn open(key: u32, term: u32) -> Arc<Asked> {
        let terms = [AtomicU32::new(term), AtomicU32::new(term)];
        let asked = Asked { gate: Gate::new(), bell: Bell::new(), version: Version::new(), terms };
        asked.gate.open(key);
        Arc::new(asked)
    }

    fn look(&self, key: u32) -> Option<Result<[u32; 2], Shut>> {
        let load = |term: &AtomicU32| term.load(Ordering::Relaxed);
        let read = self.version.read(|| (self.gate.test(key), self.terms.each_ref().map(load)))?;
        Some(read.0.map(|()| read.1))
    }

    fn reopen(&self, key: u32, term: u32) {
        self.gate.close();
        self.gate.drain(&self.bell);
        self.version.change(|| self.terms.iter().for_each(|cell| cell.store(term, Ordering::Relaxed)));
        self.gate.open(key);
    }
}

#[test]
fn a_question_beside_the_gate_sees_whole_terms_of_the_right_key() {
    check(4, || {
        let slot = Asked::open(1, 10);
        let asked = {
            let slot = slot.clone();
            thread::spawn(move || match slot.look(1) {
                Some(Ok(terms)) => assert_eq!(terms, [10; 2]),
                Some(Err(Shut::Closed | Shut::OtherKey)) | None => {}
                Some(Err(Shut::Full)) => panic!("nobody is inside"),
            })
        };
        slot.reopen(2, 20);
        assert_eq!(slot.look(2), Some(Ok([20; 2])));
        assert_eq!(slot.look(1), Some(Err(Shut::OtherKey)));
        asked.join().unwrap();
    });
}

#[test]
fn terms_that_change_under_one_key_are_seen_in_one_state() {
    check(3, || {
        let slot = Asked::open(1, 10);
        let asked = {
            let slot = slot.clone();
            thread::spawn(move || match slot.look(1) {
                Some(Ok(terms)) => assert!([[10; 2], [20; 2], [30; 2]].contains(&terms), "{terms:?}"),
                Some(Err(shut)) => assert_eq!(shut, Shut::Closed),
                None => {}
            })
        };
        slot.reopen(1, 20);
        slot.reopen(1, 30);
        asked.join().unwrap();
    });
}
