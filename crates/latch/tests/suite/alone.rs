//! Threads that use the right to all locks, and threads that take it away, for real.

use latch::{Mutex, Rank, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The right is the process's: one test at a time.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn earn() {
    // The thread of an earlier test may have ended with the right, and here no thread takes locks to take it away.
    latch::nobody_else();
    let begin = Instant::now();
    while !is_granted() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the right was never given");
    }
}

fn is_granted() -> bool {
    let _alone = latch::alone();
    latch::is_alone()
}

#[test]
#[cfg_attr(miri, ignore = "slow: the right is not earned within minutes")]
fn one_who_always_calls_earns_the_right_and_others_take_it_away() {
    let _turn = ONE_AT_A_TIME.lock();
    let (mutex, list) = (Mutex::new(Rank::QueuePair, 0u64), RwLock::new(Rank::CompletionQueue, Vec::new()));
    let done = AtomicBool::new(false);
    let granted = AtomicU32::new(0);
    let other = 2_000;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..other {
                *mutex.lock() += 1;
                list.write().push(number);
                if number % 100 == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut mine = 0;
        while !done.load(Ordering::Relaxed) {
            let alone = latch::alone();
            assert!(list.look(&alone, |list| list.len() <= other) != Some(false));
            granted.fetch_add(u32::from(latch::is_alone()), Ordering::Relaxed);
            // Not atomic: what another thread added in between would be lost.
            let before = *mutex.lock();
            assert!(list.read().len() <= other);
            let mut value = mutex.lock();
            if *value == before {
                *value = before + 1;
                mine += 1;
            }
        }
        *mutex.lock() -= mine;
    });
    assert_eq!((*mutex.lock(), list.read().len()), (other as u64, other));
    assert!(granted.into_inner() > 0, "it was never alone");
}

#[test]
fn what_is_held_is_not_had_twice() {
    let _turn = ONE_AT_A_TIME.lock();
    let (mutex, list) = (Mutex::new(Rank::QueuePair, 1), RwLock::new(Rank::CompletionQueue, 1));
    earn();
    let alone = latch::alone();
    assert!(latch::is_alone());
    {
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(mutex.lock()))).is_err());
        let read = list.read();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(list.write()))).is_err());
        // Nor may a thread read twice, by the order of locks: without the right, a waiting writer would stand between.
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(list.read())));
        assert_eq!(again.is_err(), cfg!(debug_assertions));
        assert_eq!(*held + *read, 2);
        // Within a call there may be another.
        drop(latch::alone());
        assert!(latch::is_alone());
    }
    *list.write() += 1;
    assert_eq!((*mutex.try_lock().unwrap(), *list.read()), (1, 2));
    drop(alone);
    assert!(!latch::is_alone());
}

#[test]
fn a_look_by_right_needs_the_right_and_shuts_changes_out() {
    let _turn = ONE_AT_A_TIME.lock();
    let list = RwLock::new(Rank::QueuePair, vec![1]);
    earn();
    let alone = latch::alone();
    assert_eq!(list.look(&alone, |list| list.len()), Some(1));
    assert_eq!(list.look(&latch::alone(), |list| list.len()), None, "this one does not use it");
    let change = || list.look(&alone, |_| list.write().push(2));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(change)).is_err());
    let change = list.write();
    assert_eq!(list.look(&alone, |list| list.len()), None, "it is being changed");
    drop(change);
    list.write().push(3);
    assert_eq!(list.look(&alone, |list| list.clone()), Some(vec![1, 3]));
}

#[test]
fn a_lock_that_is_held_by_right_is_had_when_it_is_let_go() {
    let _turn = ONE_AT_A_TIME.lock();
    let mutex = Mutex::new(Rank::QueuePair, 0);
    earn();
    let (has, waits) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let alone = latch::alone();
        let mut held = mutex.lock();
        scope.spawn(|| {
            waits.store(true, Ordering::SeqCst);
            let value = mutex.lock();
            has.store(true, Ordering::SeqCst);
            assert_eq!(*value, 1);
        });
        while !waits.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        thread::sleep(Duration::from_millis(20));
        assert!(!has.load(Ordering::SeqCst));
        *held = 1;
        drop(held);
        drop(alone);
    });
    assert!(has.into_inner());
}

#[test]
fn a_change_that_waits_for_the_owner_comes_after_it() {
    let _turn = ONE_AT_A_TIME.lock();
    earn();
    let (closed, inside) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(5));
            closed.store(true, Ordering::SeqCst);
            latch::nobody_else();
            assert!(!inside.load(Ordering::SeqCst), "it is still looking");
        });
        while !closed.load(Ordering::Relaxed) {
            let _alone = latch::alone();
            if !closed.load(Ordering::Relaxed) {
                inside.store(true, Ordering::Relaxed);
                std::hint::spin_loop();
                inside.store(false, Ordering::Relaxed);
            }
        }
    });
}
