//! How a requester's access to a target's memory ends, under a model checker: whatever order the steps of both come
//! in, nothing is touched that was taken back, and nothing but what the table says. The source is the crate's own.

#[path = "../../src/shared/direct/protocol.rs"]
#[allow(dead_code)]
mod protocol;

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use protocol::{Entry, NO_MEMORY_ADDRESS, find_entry, publish_entry, reach, withdraw_entry};

const ENTRY_NAME: u64 = 7;

/// Two places of memory, each with whether it is the peer's to touch; the table; and the open file of both processes,
/// which the kernel locks.
struct Processes {
    table: [Entry; 1],
    position: Mutex<u64>,
    is_lent: [AtomicBool; 2],
    accesses: AtomicU64,
}

impl Processes {
    fn new() -> Arc<Processes> {
        let processes = Processes {
            table: [Entry::default()],
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
        self.set_position(NO_MEMORY_ADDRESS);
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

    fn request(&self) {
        reach(
            || find_entry(&self.table, ENTRY_NAME).map(|[place, ..]| place),
            |address| self.set_position(address),
            || self.access(),
        );
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
