//! How a requester's access to a target's memory ends, under a model checker: whatever order the steps of both come
//! in, nothing is touched that was taken back, and nothing but what the table says. The source is the crate's own.

#[path = "../../src/shared/direct/protocol.rs"]
#[allow(dead_code)]
mod protocol;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use protocol::{
    Entry, NO_MEMORY_ADDRESS, begin_claim, end_claim, end_generation, find_entry, is_current, publish_entry, reach,
    wait_until_over, withdraw_entry,
};

const ENTRY_NAME: u64 = 7;

const THREAD_NUMBER: u64 = 9;

/// Two places of memory, each with whether it is the peer's to touch; the table; the open file of both processes, which
/// the kernel locks; the claim of the requester, and whether its thread is off its processor.
struct Processes {
    table: [Entry; 1],
    generation: AtomicU64,
    claim: AtomicU64,
    is_off: AtomicBool,
    position: Mutex<u64>,
    is_lent: [AtomicBool; 2],
    accesses: AtomicU64,
}

impl Processes {
    fn new() -> Arc<Processes> {
        let processes = Processes {
            table: [Entry::default()],
            generation: AtomicU64::new(0),
            claim: AtomicU64::new(0),
            is_off: AtomicBool::new(false),
            position: Mutex::new(NO_MEMORY_ADDRESS),
            is_lent: [AtomicBool::new(false), AtomicBool::new(false)],
            accesses: AtomicU64::new(0),
        };
        processes.lend(0);
        Arc::new(processes)
    }

    fn lend(&self, place: u64) {
        self.is_lent[place as usize].store(true, Ordering::Relaxed);
        assert!(publish_entry(&self.table, ENTRY_NAME, &[place]));
    }

    fn take_back(&self, place: u64) {
        assert!(withdraw_entry(&self.table, ENTRY_NAME));
        end_generation(&self.generation, true);
        self.set_position(NO_MEMORY_ADDRESS);
        wait_until_over(&self.claim, |thread| {
            assert_eq!(thread, THREAD_NUMBER);
            loom::thread::yield_now();
            self.is_off.load(Ordering::Relaxed)
        });
        self.is_lent[place as usize].store(false, Ordering::Relaxed);
    }

    fn set_position(&self, address: u64) {
        *self.position.lock().unwrap() = address;
    }

    /// A system call: the position cannot be changed meanwhile.
    fn access(&self) {
        let position = self.position.lock().unwrap();
        if *position != NO_MEMORY_ADDRESS {
            assert!(self.is_lent[*position as usize].load(Ordering::Relaxed), "touched after it was taken back");
            self.accesses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// By the open file.
    fn request(&self) {
        let generation = self.generation.load(Ordering::Acquire);
        let Some([place, ..]) = find_entry(&self.table, ENTRY_NAME) else { return };
        reach((&self.generation, generation), || self.set_position(place), || self.access());
    }

    /// By the mapping, so often under one claim. A thread that is stopped on the way is off its processor, and then
    /// begins the sequence again.
    fn store(&self, times: u32, is_stopped: bool) {
        let generation = self.generation.load(Ordering::Acquire);
        let Some([place, ..]) = find_entry(&self.table, ENTRY_NAME) else { return };
        begin_claim(&self.claim, THREAD_NUMBER, true);
        for _ in 0..times {
            let is_current = || is_current((&self.generation, generation));
            let mut goes_on = is_current();
            if is_stopped {
                self.is_off.store(true, Ordering::Relaxed);
                self.is_off.store(false, Ordering::Relaxed);
                // Other threads ran meanwhile, or the kernel did.
                fence(Ordering::SeqCst);
                goes_on = is_current();
            }
            if goes_on {
                assert!(self.is_lent[place as usize].load(Ordering::Relaxed), "touched after it was taken back");
                self.accesses.fetch_add(1, Ordering::Relaxed);
            }
        }
        end_claim(&self.claim);
    }
}

#[test]
fn nothing_is_touched_after_it_was_taken_back() {
    loom::model(|| {
        let processes = Processes::new();
        let requester = {
            let processes = Arc::clone(&processes);
            thread::spawn(move || {
                processes.request();
                processes.request();
            })
        };
        processes.take_back(0);
        requester.join().unwrap();
    });
}

#[test]
fn a_key_that_leads_elsewhere_now_leads_nowhere_else() {
    loom::model(|| {
        let processes = Processes::new();
        let requester = {
            let processes = Arc::clone(&processes);
            thread::spawn(move || processes.request())
        };
        processes.take_back(0);
        processes.lend(1);
        requester.join().unwrap();
    });
}

#[test]
fn what_is_lent_is_reached() {
    loom::model(|| {
        let processes = Processes::new();
        let requester = {
            let processes = Arc::clone(&processes);
            thread::spawn(move || processes.request())
        };
        requester.join().unwrap();
        assert_eq!(processes.accesses.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn nothing_is_stored_after_it_was_taken_back() {
    loom::model(|| {
        let processes = Processes::new();
        let requester = {
            let processes = Arc::clone(&processes);
            thread::spawn(move || {
                processes.store(1, false);
                processes.store(1, false);
            })
        };
        processes.take_back(0);
        processes.lend(1);
        requester.join().unwrap();
    });
}

#[test]
fn several_stores_under_one_claim_end_together() {
    loom::model(|| {
        let processes = Processes::new();
        let requester = {
            let processes = Arc::clone(&processes);
            thread::spawn(move || processes.store(2, false))
        };
        processes.take_back(0);
        processes.lend(1);
        requester.join().unwrap();
    });
}

#[test]
fn a_stopped_requester_is_not_waited_for_and_stores_nothing_later() {
    loom::model(|| {
        let processes = Processes::new();
        let requester = {
            let processes = Arc::clone(&processes);
            thread::spawn(move || processes.store(1, true))
        };
        processes.take_back(0);
        requester.join().unwrap();
    });
}
