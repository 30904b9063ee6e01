//! Many threads at once: copies against deregistration, reregistration, binding and invalidation. What must hold is
//! that after memory was taken away not one byte of it changes, that nothing is seen half changed, and that everybody
//! gets to the end.

use crate::harness::{self, ALL, Buffer, LOCAL, PD, REMOTE, register, rounds};
use memory::{
    Access, Atomic, Bind, Change, DeviceMemory, Error, Key, Memory, Range, Refusal, RefusalCause, WindowType,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

/// At most.
const ROUNDS: u32 = if cfg!(miri) { 4 } else { 3000 };
/// How often device memory is freed in vain before the threads that use it let go.
const TRIES_UNDER_FIRE: u32 = 20;
const LENGTH: usize = if cfg!(miri) { 24 } else { 2000 };

/// The key that is good now, for threads that hammer on it.
struct Current(AtomicU32);

impl Current {
    fn get(&self) -> Key {
        Key::new(self.0.load(Ordering::Acquire))
    }

    fn set(&self, key: Key) {
        self.0.store(key.value(), Ordering::Release);
    }
}

/// Runs `hammer` on some threads until `work` is done.
fn under_fire(threads: usize, hammer: impl Fn() + Sync, work: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    hammer();
                }
            });
        }
        // Also when `work` panics.
        let _stop = Stop(&stop);
        work();
    });
}

fn gone(result: Result<(), Refusal>) {
    if let Err(refusal) = result {
        assert!(matches!(refusal.cause, RefusalCause::UnknownKey | RefusalCause::Invalidated), "{refusal}");
    }
}

/// The buffer is filled with a mark of our own and must keep it.
fn keeps_its_bytes(buffer: &Buffer, mark: u8) {
    for i in 0..buffer.len() {
        buffer.cell(i).store(mark, Ordering::Relaxed);
    }
    for _ in 0..3 {
        thread::yield_now();
        assert!(buffer.bytes().iter().all(|byte| *byte == mark), "written after it was taken away");
    }
}

#[test]
fn after_deregistration_no_byte_changes() {
    let (memory, buffer) = (Memory::new(), Buffer::new(LENGTH));
    let current = Current(AtomicU32::new(0));
    let message = vec![1; LENGTH];
    let written = AtomicU64::new(0);
    let hammer = || {
        let result = memory.write(REMOTE, current.get(), buffer.address(), &message);
        written.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
        gone(result);
        let mut out = [0; 8];
        gone(memory.read(REMOTE, current.get(), buffer.address(), &mut out));
    };
    under_fire(3, hammer, || {
        for _ in rounds(ROUNDS) {
            let key = buffer.register(&memory, ALL);
            current.set(key);
            let before = written.load(Ordering::Relaxed);
            for _ in 0..if cfg!(miri) { 200 } else { 10_000 } {
                if written.load(Ordering::Relaxed) > before {
                    break;
                }
                thread::yield_now();
            }
            memory.deregister(key).unwrap();
            keeps_its_bytes(&buffer, 2);
        }
    });
    assert!(written.into_inner() > 0, "nothing was tested");
    assert_eq!(memory.usage().regions, 0);
}

#[test]
fn deregistration_waits_for_a_guard_and_for_nothing_else() {
    let (memory, buffer) = (Memory::new(), Buffer::new(16));
    for dropped_by_another in [false, true] {
        let key = buffer.register(&memory, ALL);
        let guard = memory.lend(LOCAL, buffer.range(key, 0, 16), Access::LOCAL_WRITE).unwrap();
        let (done, finished) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                memory.deregister(key).unwrap();
                done.send(()).unwrap();
            });
            // It has begun when the key opens nothing any more.
            while memory.check(LOCAL, buffer.range(key, 0, 1), Access::empty()).is_ok() {
                thread::yield_now();
            }
            assert_eq!(memory.deregister(key), Err(Error::ChangeUnderWay { key }));
            // The rest of the world goes on.
            let other = buffer.register(&memory, ALL);
            memory.write(LOCAL, other, buffer.address(), &[1]).unwrap();
            memory.deregister(other).unwrap();
            assert!(finished.recv_timeout(Duration::from_millis(20)).is_err(), "it did not wait");
            match dropped_by_another {
                true => scope.spawn(move || drop(guard)).join().unwrap(),
                false => drop(guard),
            }
            finished.recv_timeout(Duration::from_secs(60)).expect("it waits for ever");
        });
        assert_eq!(memory.deregister(key), Err(Error::UnknownKey { key }));
    }
}

#[test]
fn of_many_who_deregister_one_succeeds() {
    let (memory, buffer) = (Memory::new(), Buffer::new(64));
    for _ in rounds(ROUNDS) {
        let keys: Vec<_> = (0..3).map(|_| buffer.register(&memory, ALL)).collect();
        let (start, succeeded) = (Barrier::new(3), AtomicU32::new(0));
        thread::scope(|scope| {
            for i in 0..3 {
                let (memory, keys, start, succeeded) = (&memory, &keys, &start, &succeeded);
                scope.spawn(move || {
                    start.wait();
                    // Each in another order.
                    for j in 0..3 {
                        let key = keys[(i + j) % 3];
                        match memory.deregister(key) {
                            Ok(()) => succeeded.fetch_add(1, Ordering::Relaxed),
                            Err(Error::UnknownKey { .. } | Error::ChangeUnderWay { .. }) => 0,
                            Err(error) => panic!("{error}"),
                        };
                    }
                });
            }
        });
        assert_eq!(succeeded.into_inner(), 3);
    }
    assert_eq!(memory.usage().regions, 0);
}

#[test]
fn a_region_that_moves_is_in_one_place_at_a_time() {
    let memory = Memory::new();
    let places = [Buffer::new(LENGTH), Buffer::new(LENGTH)];
    // Both answer to the same addresses.
    let translations = places.each_ref().map(|place| memory::Translation { iova: Some(0x1000), ..place.translation() });
    let spec = memory::RegionSpec { translation: translations[0], domain: PD, access: ALL };
    let key = register(&memory, &spec).unwrap();
    let message = vec![1; LENGTH];
    let hammer = || {
        gone(memory.write(REMOTE, key, 0x1000, &message));
        gone(memory.check(REMOTE, Range { key, address: 0x1000, length: LENGTH as u64 }, ALL));
    };
    under_fire(2, hammer, || {
        for round in rounds(ROUNDS).map(|round| round as usize + 1) {
            let change = Change { translation: Some(translations[round % 2]), ..Change::default() };
            // SAFETY: both buffers outlive the region.
            unsafe { memory.reregister(key, &change) }.unwrap();
            keeps_its_bytes(&places[(round + 1) % 2], 3);
        }
    });
    memory.deregister(key).unwrap();
}

#[test]
fn a_question_is_answered_from_one_state() {
    // Two states that each refuse what the other grants, for different reasons: a mixture would grant it or name a
    // third.
    let (memory, small, large) = (Memory::new(), Buffer::new(64), Buffer::new(128));
    let key = small.register(&memory, Access::REMOTE_READ);
    let asked = large.range(key, 64, 64);
    let hammer = || match memory.check(REMOTE, asked, Access::REMOTE_READ).map_err(|refusal| refusal.cause) {
        Ok(()) => panic!("granted by neither"),
        Err(RefusalCause::OutOfBounds { start, length }) => assert_eq!((start, length), (small.address(), 64)),
        Err(RefusalCause::NotPermitted | RefusalCause::Invalidated) => {}
        Err(other) => panic!("{other}"),
    };
    under_fire(2, hammer, || {
        for round in rounds(ROUNDS).map(|round| round + 1) {
            let (buffer, access) = match round % 2 {
                0 => (&small, Access::REMOTE_READ),
                _ => (&large, Access::empty()),
            };
            let change = Change { translation: Some(buffer.translation()), access: Some(access), ..Change::default() };
            // SAFETY: both buffers outlive the region.
            unsafe { memory.reregister(key, &change) }.unwrap();
        }
    });
    memory.deregister(key).unwrap();
}

#[test]
fn after_invalidation_no_byte_changes() {
    let (memory, buffer) = (Memory::new(), Buffer::new(LENGTH));
    let region = buffer.register(&memory, ALL);
    let mut key = memory.allocate_window(PD, WindowType::Type2).unwrap();
    let current = Current(AtomicU32::new(key.value()));
    let message = vec![1; LENGTH];
    let hammer = || match memory.write(REMOTE, current.get(), buffer.address(), &message) {
        Err(Refusal { cause: RefusalCause::WindowUnbound, .. }) => {}
        result => gone(result),
    };
    under_fire(2, hammer, || {
        for round in rounds(ROUNDS) {
            let bind = Bind {
                window: key,
                new_key: key.next(),
                region,
                address: buffer.address(),
                length: LENGTH as u64,
                access: Access::REMOTE_WRITE,
            };
            memory.bind(LOCAL, &bind).unwrap();
            key = bind.new_key;
            current.set(key);
            thread::yield_now();
            assert!(matches!(memory.deregister(region), Err(Error::WindowsBound { .. })));
            match round % 3 {
                0 => memory.invalidate(LOCAL, key).unwrap(),
                1 => memory.invalidate(REMOTE, key).unwrap(),
                _ => memory.release_queue_pair(LOCAL.qpn),
            }
            keeps_its_bytes(&buffer, 4);
        }
    });
    memory.free_window(key).unwrap();
    memory.deregister(region).unwrap();
}

#[test]
fn a_window_is_invalidated_once_whoever_tries() {
    let (memory, buffer) = (Memory::new(), Buffer::new(64));
    let region = buffer.register(&memory, ALL);
    for _ in rounds(ROUNDS) {
        let key = harness::window(&memory, WindowType::Type2, region, buffer.address(), 64, Access::REMOTE_READ);
        let (start, succeeded) = (Barrier::new(3), AtomicU32::new(0));
        thread::scope(|scope| {
            for subject in [LOCAL, REMOTE] {
                let (memory, start, succeeded) = (&memory, &start, &succeeded);
                scope.spawn(move || {
                    start.wait();
                    match memory.invalidate(subject, key).map_err(|refusal| refusal.cause) {
                        Ok(()) => _ = succeeded.fetch_add(1, Ordering::Relaxed),
                        Err(RefusalCause::Invalidated | RefusalCause::UnknownKey) => {}
                        Err(cause) => panic!("{cause}"),
                    }
                });
            }
            start.wait();
            // Freeing it at the same time succeeds sooner or later.
            while let Err(error) = memory.free_window(key) {
                assert_eq!(error, Error::ChangeUnderWay { key });
                thread::yield_now();
            }
        });
        assert!(succeeded.into_inner() <= 1);
    }
    memory.deregister(region).unwrap();
    assert_eq!(memory.usage(), memory::Usage::default());
}

#[test]
fn atomics_of_peers_and_of_the_program_add_up() {
    let (memory, buffer) = (Memory::new(), Buffer::new(16));
    let key = buffer.register(&memory, ALL);
    let each = if cfg!(miri) { 20 } else { 20_000 };
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..each {
                memory.atomic(REMOTE, key, buffer.address() + 8, Atomic::FetchAdd { add: 1 }).unwrap();
            }
        });
        scope.spawn(|| {
            for _ in 0..each {
                let mut compare = 0;
                loop {
                    let operation = Atomic::CompareSwap { compare, swap: compare + 1 };
                    let found = memory.atomic(REMOTE, key, buffer.address() + 8, operation).unwrap();
                    if found == compare {
                        break;
                    }
                    compare = found;
                }
            }
        });
        for _ in 0..each {
            buffer.word(8).fetch_add(1, Ordering::SeqCst);
        }
    });
    assert_eq!(buffer.word(8).load(Ordering::SeqCst), 3 * each);
}

#[test]
fn device_memory_comes_and_goes_under_use() {
    let memory = Memory::new();
    let current = AtomicU32::new(0);
    // Without it the memory might be in use for ever: where processors are few, one thread or the other is always at it.
    let stands_back = AtomicBool::new(false);
    let access = ALL | Access::ZERO_BASED;
    let hammer = || {
        if stands_back.load(Ordering::Acquire) {
            return thread::yield_now();
        }
        let device = DeviceMemory(current.load(Ordering::Acquire));
        match memory.write_device(device, 0, &[1; 64]).and_then(|()| memory.register_device(device, 0, 64, PD, access))
        {
            Ok(key) => {
                memory.write(REMOTE, key, 0, &[2; 64]).unwrap();
                memory.deregister(key).unwrap();
            }
            Err(error) => assert_eq!(error, Error::UnknownDeviceMemory),
        }
    };
    under_fire(2, hammer, || {
        for _ in rounds(ROUNDS) {
            let device = memory.allocate_device(64, 0).unwrap();
            current.store(device.0, Ordering::Release);
            thread::yield_now();
            let mut tries = 0;
            while let Err(error) = memory.free_device(device) {
                assert!(matches!(error, Error::DeviceMemoryInUse { .. }));
                tries += 1;
                stands_back.store(tries >= TRIES_UNDER_FIRE, Ordering::Release);
                thread::yield_now();
            }
            stands_back.store(false, Ordering::Release);
        }
    });
    assert_eq!(memory.usage(), memory::Usage::default());
}

/// Everything at once, from threads that each own their objects and reach for one another's keys.
#[test]
fn a_crowd_gets_to_the_end() {
    let (memory, buffer) = (Memory::new(), Buffer::new(LENGTH));
    let keys: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        for own in 0..4usize {
            let (memory, buffer, keys) = (&memory, &buffer, &keys);
            scope.spawn(move || {
                for round in rounds(ROUNDS) {
                    let region = buffer.register(memory, ALL);
                    keys[own].store(region.value(), Ordering::Release);
                    let kind = if round % 2 == 0 { WindowType::Type1 } else { WindowType::Type2 };
                    let window = harness::window(memory, kind, region, buffer.address(), 16, Access::REMOTE_WRITE);
                    keys[own + 4].store(window.value(), Ordering::Release);
                    for key in keys {
                        let key = Key::new(key.load(Ordering::Acquire));
                        gone(memory.write(REMOTE, key, buffer.address(), &[1; 16]));
                        drop(memory.lend(REMOTE, buffer.range(key, 0, 8), Access::REMOTE_WRITE));
                    }
                    if kind == WindowType::Type2 {
                        memory.invalidate(LOCAL, window).unwrap();
                    }
                    memory.free_window(window).unwrap();
                    memory.deregister(region).unwrap();
                }
            });
        }
    });
    assert_eq!(memory.usage(), memory::Usage::default());
}
