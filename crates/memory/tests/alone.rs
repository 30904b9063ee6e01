//! A thread that has the right to all locks is not counted at the gates. The thread that takes memory away waits for it
//! all the same.

#![cfg(not(miri))]

mod harness;

use harness::{ALL, Buffer, REMOTE, rounds};
use memory::{Key, Memory, RefusalCause};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

const LENGTH: usize = 2000;

#[test]
fn after_deregistration_no_byte_changes() {
    let (memory, buffer) = (Memory::new(), Buffer::new(LENGTH));
    let (current, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let (written, alone) = (AtomicU64::new(0), AtomicU64::new(0));
    let message = vec![1; LENGTH];
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let _alone = latch::alone();
                let result =
                    memory.write(REMOTE, Key::new(current.load(Ordering::Acquire)), buffer.address(), &message);
                match result {
                    Ok(()) => {
                        alone.fetch_add(u64::from(latch::is_alone()), Ordering::Relaxed);
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(refusal) => {
                        assert!(
                            matches!(refusal.cause, RefusalCause::UnknownKey | RefusalCause::Invalidated),
                            "{refusal}"
                        );
                    }
                }
            }
        });
        for round in rounds(2000) {
            let key = buffer.register(&memory, ALL);
            current.store(key.value(), Ordering::Release);
            // Now and then long enough to earn the right.
            let enough = written.load(Ordering::Relaxed) + if round % 4 == 0 { 600 } else { 1 };
            while written.load(Ordering::Relaxed) < enough {
                thread::yield_now();
            }
            memory.deregister(key).unwrap();
            for i in 0..buffer.len() {
                buffer.cell(i).store(2, Ordering::Relaxed);
            }
            for _ in 0..3 {
                thread::yield_now();
                assert!(buffer.bytes().iter().all(|byte| *byte == 2), "written after it was taken away");
            }
        }
        stop.store(true, Ordering::Release);
    });
    assert!(alone.into_inner() > 0, "it was counted every time");
}
