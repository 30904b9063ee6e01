//! The order in which bytes appear: a program that spins on the last byte, or the last word, finds all the others when
//! it sees it.

use crate::harness::{ALL, Buffer, LOCAL, REMOTE, window};
use memory::{Access, Memory, WindowType};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What message number `round` is made of: no byte is that of the message before, and none is zero.
fn value(round: u64) -> u8 {
    (round % 255) as u8 + 1
}

/// Waits by spinning, but not for ever: on a crowded machine the other side may need this core.
fn wait_until(done: impl Fn() -> bool) {
    while !(0..2000).any(|_| {
        std::hint::spin_loop();
        done()
    }) {
        std::thread::yield_now();
    }
}

/// One thread writes messages of `length` bytes at `start`, another waits for the last byte of each and checks all of
/// it. Ends after so many messages, or when the time is over: a crowded machine takes a time slice for each.
fn spin_on_the_last_byte(start: usize, length: usize, rounds: u64, time: Duration) {
    let (memory, buffer) = (Memory::new(), Buffer::new(start + length));
    let region = buffer.register(&memory, ALL);
    let key = window(&memory, WindowType::Type1, region, buffer.address(), buffer.len() as u64, Access::REMOTE_WRITE);
    let (seen, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let last = buffer.cell(start + length - 1);
            for round in 1.. {
                wait_until(|| last.load(Ordering::Acquire) == value(round) || over.load(Ordering::Acquire));
                if over.load(Ordering::Acquire) {
                    break;
                }
                for i in 0..length {
                    let found = buffer.cell(start + i).load(Ordering::Relaxed);
                    assert_eq!(found, value(round), "byte {i} of {length} at {start}, message {round}");
                }
                seen.store(round, Ordering::Release);
            }
        });
        let began = Instant::now();
        for round in (1..=rounds).take_while(|round| *round < 5 || began.elapsed() < time) {
            let message = vec![value(round); length];
            let address = buffer.address() + start as u64;
            match round % 2 {
                0 => memory.write(REMOTE, key, address, &message).unwrap(),
                _ => memory.write(LOCAL, region, address, &message).unwrap(),
            }
            wait_until(|| seen.load(Ordering::Acquire) == round || reader.is_finished());
            assert_eq!(seen.load(Ordering::Acquire), round, "the reader gave up");
        }
        over.store(true, Ordering::Release);
    });
}

#[test]
fn whoever_sees_the_last_byte_sees_all_of_them() {
    if cfg!(miri) {
        for (start, length) in [(0, 1), (0, 8), (3, 9), (0, 20), (5, 7)] {
            spin_on_the_last_byte(start, length, 3, Duration::ZERO);
        }
        return;
    }
    for length in (1..=40).chain([63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1024, 4096, 4097, 9000, 65_536]) {
        for start in [0, 1, 4, 7] {
            spin_on_the_last_byte(start, length, 400, Duration::from_millis(50));
        }
    }
}

/// A program may wait for a counter in the last eight bytes, and must never see half of it, nor anything before it
/// older.
#[test]
#[cfg_attr(miri, ignore = "there all goes byte by byte")]
fn the_last_word_is_never_seen_half_stored() {
    let rounds: u64 = 100_000;
    for length in [8, 16, 24, 64, 4096] {
        let (memory, buffer) = (Memory::new(), Buffer::new(length));
        let key = buffer.register(&memory, ALL);
        // Two halves that say the same.
        let word = |round: u64| round << 32 | round;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let last = buffer.word(length - 8);
                let mut before = 0;
                while before < word(rounds) {
                    let now = last.load(Ordering::Acquire);
                    assert_eq!(now >> 32, now & 0xffff_ffff, "of two stores");
                    assert!(now >= before, "it never goes back");
                    if length > 8 {
                        assert!(buffer.word(length - 16).load(Ordering::Relaxed) >= now);
                        assert!(buffer.word(0).load(Ordering::Relaxed) >= now);
                    }
                    before = now;
                }
            });
            for round in 1..=rounds {
                let message = word(round).to_ne_bytes().repeat(length / 8);
                memory.write(REMOTE, key, buffer.address(), &message).unwrap();
            }
        });
    }
}

/// Eight aligned bytes are read whole while the program stores them.
#[test]
#[cfg_attr(miri, ignore = "there all goes byte by byte")]
fn eight_bytes_are_read_whole() {
    let rounds: u64 = 200_000;
    let (memory, buffer) = (Memory::new(), Buffer::new(16));
    let key = buffer.register(&memory, ALL);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                buffer.word(8).store((round % 256) * 0x0101_0101_0101_0101, Ordering::Release);
            }
        });
        for _ in 0..rounds {
            let mut out = [0; 8];
            memory.read(REMOTE, key, buffer.address() + 8, &mut out).unwrap();
            assert!(out.iter().all(|byte| *byte == out[0]), "{out:?}");
        }
    });
}
