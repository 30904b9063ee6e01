//! Payload that waits, against memory that is a list of bytes.

use super::*;
use wire::access::{ProtectionDomain, RefusalCause};
use wire::{Key, Qpn};

const KEY: Key = Key::new(0x101);

fn subject(remote: bool) -> Subject {
    Subject { pd: ProtectionDomain(1), qpn: Qpn::new(0x11), remote }
}

fn range(address: u64, length: u64) -> Range {
    Range { key: KEY, address, length }
}

fn place(memory: &mut [u8]) -> impl FnMut(Subject, Range, &[u8]) -> Result<(), Refusal> + '_ {
    |_, range, bytes| {
        memory[range.address as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

fn send(weak: &mut Weak, memory: &mut [u8], remote: bool, address: u64, bytes: &[u8]) {
    let range = range(address, bytes.len() as u64);
    weak.write(subject(remote), range, bytes, place(memory)).unwrap();
}

/// When something is placed next.
fn next(weak: &mut Weak, now: Time) -> Option<Time> {
    weak.plan(now);
    weak.places_at
}

#[test]
fn a_write_is_seen_in_every_state_between_none_and_all_of_its_bytes() {
    let mut seen = alloc::collections::BTreeSet::new();
    for seed in 0..2000 {
        let (mut weak, mut memory) = (Weak::new(Weakness::all(seed), 1), [0; 3]);
        send(&mut weak, &mut memory, true, 0, &[1, 1, 1]);
        let mut now = Time::ZERO;
        while let Some(deadline) = next(&mut weak, now) {
            seen.insert(memory);
            now = deadline;
            weak.time_has_come(now, place(&mut memory));
        }
        assert_eq!(memory, [1; 3], "seed {seed}: all of it comes in the end");
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
}

#[test]
fn what_was_written_last_to_a_byte_stays() {
    for seed in 0..2000 {
        let (mut weak, mut memory) = (Weak::new(Weakness::all(seed), 1), [0; 6]);
        for (value, from, length) in [(1, 0, 4), (2, 2, 4), (3, 1, 2), (4, 5, 1)] {
            send(&mut weak, &mut memory, true, from, &[value; 6][..length]);
        }
        let mut now = Time::ZERO;
        while let Some(deadline) = next(&mut weak, now) {
            now = deadline;
            weak.time_has_come(now, place(&mut memory));
        }
        assert_eq!(memory, [1, 3, 3, 2, 2, 4], "seed {seed}");
    }
}

#[test]
fn what_tells_the_program_comes_after_what_it_tells_of() {
    let cases: [(Before, [u8; 2]); 5] = [
        (Before::Completion(Queue::Receive), [1, 2]),
        (Before::Completion(Queue::Send), [0, 2]),
        (Before::Atomic, [1, 9]),
        (Before::Everything, [1, 2]),
        (Before::Read(range(0, 1)), [1, 9]),
    ];
    for (before, expected) in cases {
        for seed in 0..100 {
            let weakness = Weakness { scribbles: false, ..Weakness::all(seed) };
            let (mut weak, mut memory) = (Weak::new(weakness, 1), [0, 9]);
            send(&mut weak, &mut memory, true, 0, &[1]);
            send(&mut weak, &mut memory, false, 1, &[2]);
            assert_eq!(memory, [0, 9], "nothing is placed at once");
            weak.before(before, place(&mut memory));
            assert_eq!(memory, expected, "{before:?}, seed {seed}");
        }
    }
}

#[test]
fn payload_whose_key_has_gone_is_given_up() {
    let mut weak = Weak::new(Weakness::all(1), 1);
    let refusal = Refusal { range: range(0, 1), access: Access::REMOTE_WRITE, cause: RefusalCause::UnknownKey };
    weak.write(subject(true), range(0, 1), &[1], |_, _, _| panic!("not yet")).unwrap();
    weak.before(Before::Everything, |_, _, _| Err(refusal));
    assert_eq!(next(&mut weak, Time::ZERO), None, "it was given up");
}

#[test]
fn a_buffer_that_will_be_filled_is_scribbled_on_and_a_written_one_is_not() {
    let (mut weak, mut memory) = (Weak::new(Weakness::all(3), 1), [0; 96]);
    send(&mut weak, &mut memory, true, 0, &[1; 8]);
    assert_eq!(memory, [0; 96]);
    send(&mut weak, &mut memory, false, 16, &[1; 80]);
    assert!(memory[..16] == [0; 16] && memory[16..] != [0; 80] && memory[16..] != [1; 80], "{memory:?}");
    weak.before(Before::Everything, place(&mut memory));
    assert!(memory[..8] == [1; 8] && memory[16..] == [1; 80]);
}

#[test]
fn what_waits_is_bounded() {
    let (mut weak, mut memory) = (Weak::new(Weakness::all(4), 1), alloc::vec![0; 1 << 16]);
    for _ in 0..100 {
        send(&mut weak, &mut memory, true, 0, &alloc::vec![7; 1 << 16]);
        assert!(weak.waiting_bytes <= MAX_WAITING_BYTES);
    }
}

#[test]
fn a_queue_pair_sends_late_and_completes_later() {
    let (mut weak, mut now) = (Weak::new(Weakness::all(5), 1), Time::ZERO);
    for expected in [Turn::Wait, Turn::Send, Turn::All] {
        assert_eq!(weak.turn(now), expected);
        if expected != Turn::All {
            now = weak.deadline().expect("it says when it goes on");
        }
    }
    assert_eq!(weak.deadline(), None, "then nothing is left to do");
    let mut prompt = Weak::new(Weakness { late: false, ..Weakness::all(5) }, 1);
    assert_eq!(prompt.turn(Time::ZERO), Turn::All);
}

/// What a READ of three bytes brings that are 1 when its request comes and 2 when its answer is made.
fn torn(weak: &mut Weak, from: u64) -> [u8; 3] {
    let (early, mut answer) = ([1; 8], [2; 3]);
    let read = |part: Range, out: &mut [u8]| {
        out.copy_from_slice(&early[part.address as usize..][..out.len()]);
        Ok(())
    };
    weak.read_requested(range(from, 3), read);
    weak.answered(range(from, 3), &mut answer);
    answer
}

#[test]
fn a_read_brings_each_byte_from_before_or_after_a_store_and_the_next_read_nothing_older() {
    let mut seen = alloc::collections::BTreeSet::new();
    for seed in 0..2000 {
        let mut weak = Weak::new(Weakness::all(seed), 1);
        seen.insert(torn(&mut weak, 2));
        let mut later = [3; 8];
        weak.answered(range(0, 8), &mut later);
        assert_eq!(later, [3; 8], "seed {seed}: what was read early goes into one answer");
        // A READ whose answer is never made leaves nothing to one that comes later.
        weak.read_requested(range(2, 3), |_, out| {
            out.fill(1);
            Ok(())
        });
        weak.read_requested(range(0, 8), |_, out| {
            out.fill(3);
            Ok(())
        });
        weak.answered(range(0, 8), &mut later);
        assert_eq!(later, [3; 8], "seed {seed}");
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    let mut whole = Weak::new(Weakness { tears_reads: false, ..Weakness::all(1) }, 1);
    assert!((0..100).all(|_| torn(&mut whole, 0) == [2; 3]));
}

#[test]
fn programs_are_woken_for_nothing_now_and_then() {
    let mut weak = Weak::new(Weakness::all(1), 1);
    let count = (0..1000).filter(|_| weak.wakes_for_nothing()).count();
    assert!((100..500).contains(&count), "{count}");
    let mut exact = Weak::new(Weakness { spurious_events: false, ..Weakness::all(1) }, 1);
    assert!((0..1000).all(|_| !exact.wakes_for_nothing()));
}
