//! Who may touch what: each rule of access from both sides.

use crate::harness::{ALL, Buffer, LOCAL, REMOTE, STRANGER, cause, register};
use memory::{Access, Atomic, Key, Limits, Memory, Range, RefusalCause, RegionSpec, Translation};

#[test]
fn bytes_written_are_bytes_read() {
    let (memory, buffer) = (Memory::new(), Buffer::new(16));
    let key = buffer.register(&memory, ALL);
    memory.write(REMOTE, key, buffer.address() + 3, b"data").unwrap();
    let mut out = [0; 6];
    memory.read(REMOTE, key, buffer.address() + 2, &mut out).unwrap();
    assert_eq!(&out, b"\0data\0");
    assert_eq!(&buffer.bytes()[3..7], b"data");
    memory.deregister(key).unwrap();
}

#[test]
fn nothing_reads_as_zeros_forgets_what_is_written_and_is_for_its_owner() {
    let memory = Memory::new();
    let key = memory.register_null(LOCAL.pd).unwrap();
    for address in [0, 1, 0x7fff_0000_0000, u64::MAX - 8] {
        memory.write(LOCAL, key, address, b"unheard").unwrap();
        let mut out = *b"unasked";
        memory.read(LOCAL, key, address, &mut out).unwrap();
        assert_eq!(out, [0; 7]);
        assert_eq!(cause(memory.read(REMOTE, key, address, &mut out)), RefusalCause::WrongKind);
        assert_eq!(cause(memory.write(REMOTE, key, address, b"x")), RefusalCause::WrongKind);
        let range = Range { key, address, length: 7 };
        assert_eq!(cause(memory.lend(LOCAL, range, Access::empty()).map(drop)), RefusalCause::WrongKind);
    }
    let stranger = memory::Subject { remote: false, ..STRANGER };
    assert_eq!(cause(memory.read(stranger, key, 0, &mut [0; 7])), RefusalCause::WrongProtectionDomain);
    assert_eq!(cause(memory.atomic(REMOTE, key, 0, Atomic::FetchAdd { add: 1 })), RefusalCause::WrongKind);
    let change = memory::Change { access: Some(ALL), ..memory::Change::default() };
    // SAFETY: it is refused.
    assert!(unsafe { memory.reregister(key, &change) }.is_err());
    memory.deregister(key).unwrap();
    assert_eq!(cause(memory.read(LOCAL, key, 0, &mut [0; 7])), RefusalCause::UnknownKey);
}

#[test]
fn a_key_may_be_given_out_before_its_memory_is_there() {
    let (memory, buffer) = (Memory::new(), Buffer::new(16));
    let key = memory.register_null(LOCAL.pd).unwrap();
    let translation = Translation { iova: Some(0x5000), ..Translation::new(buffer.address() as *mut u8, 16) };
    let spec = RegionSpec { translation, domain: LOCAL.pd, access: ALL };
    assert_eq!(cause(memory.write(REMOTE, key, 0x5003, b"early")), RefusalCause::WrongKind);
    // SAFETY: the buffer outlives the region, and is read when nobody writes. The second call is refused.
    unsafe {
        memory.fill(key, &spec).unwrap();
        assert!(memory.fill(key, &spec).is_err(), "it has memory");
    }
    memory.write(REMOTE, key, 0x5003, b"data").unwrap();
    assert_eq!(&buffer.bytes()[3..7], b"data");
    let outside = cause(memory.write(REMOTE, key, buffer.address(), b"x"));
    assert!(matches!(outside, RefusalCause::OutOfBounds { .. }), "{outside:?}");
    memory.deregister(key).unwrap();
}

#[test]
fn copies_of_every_length_and_alignment_are_exact() {
    let length = if cfg!(miri) { 24 } else { 300 };
    let memory = Memory::new();
    let pattern: Vec<u8> = (0..length).map(|i| (i * 7 + 1) as u8).collect();
    for start in 0..9 {
        for count in 0..=length - 9 {
            let buffer = Buffer::of(&vec![0xee; length]);
            let key = buffer.register(&memory, ALL);
            let at = buffer.address() + start as u64;
            memory.write(LOCAL, key, at, &pattern[..count]).unwrap();
            let mut expected = vec![0xee; length];
            expected[start..start + count].copy_from_slice(&pattern[..count]);
            assert_eq!(buffer.bytes(), expected, "{count} bytes at {start}");
            let mut out = vec![0; count];
            memory.read(LOCAL, key, at, &mut out).unwrap();
            assert_eq!(out, &pattern[..count]);
            memory.deregister(key).unwrap();
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn copies_longer_than_a_chunk_are_exact() {
    let memory = Memory::new();
    let buffer = Buffer::new(70_000);
    let key = buffer.register(&memory, ALL);
    let pattern: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for count in [4095, 4096, 4097, 4103, 4104, 4105, 8192, 8200, 65_536, 69_000] {
        for start in [0, 1, 5] {
            memory.write(LOCAL, key, buffer.address(), &vec![0; 70_000]).unwrap();
            memory.write(LOCAL, key, buffer.address() + start as u64, &pattern[..count]).unwrap();
            let bytes = buffer.bytes();
            assert!(bytes[start..start + count] == pattern[..count], "{count} at {start}");
            assert!(bytes[..start].iter().chain(&bytes[start + count..]).all(|byte| *byte == 0), "{count} at {start}");
            let mut out = vec![0; count];
            memory.read(LOCAL, key, buffer.address() + start as u64, &mut out).unwrap();
            assert!(out == pattern[..count]);
        }
    }
}

#[test]
fn a_range_ends_at_the_region_and_not_one_byte_later() {
    let (memory, buffer) = (Memory::new(), Buffer::new(16));
    let key = buffer.register(&memory, ALL);
    let start = buffer.address();
    let bounds = RefusalCause::OutOfBounds { start, length: 16 };
    for (offset, length, fits) in [(0, 16, true), (15, 1, true), (0, 17, false), (16, 1, false), (15, 2, false)] {
        let range = buffer.range(key, offset, length);
        let result = memory.check(LOCAL, range, Access::empty());
        assert_eq!(result.is_ok(), fits, "{offset}+{length}");
        assert_eq!(memory.lend(LOCAL, range, Access::empty()).is_ok(), fits);
        assert!(fits || cause(result) == bounds);
    }
    assert_eq!(cause(memory.check(LOCAL, buffer.range(key, u64::MAX, 1), Access::empty())), bounds);
    for (address, length) in [(u64::MAX, 1), (u64::MAX, u64::MAX), (start + 1, u64::MAX), (0, u64::MAX)] {
        let wild = Range { key, address, length };
        assert_eq!(cause(memory.check(LOCAL, wild, Access::empty())), bounds, "{address:#x}+{length:#x}");
        assert_eq!(cause(memory.lend(LOCAL, wild, Access::empty())), bounds);
    }
    memory.write(LOCAL, key, start + 15, &[1, 2]).unwrap_err();
    assert_eq!(buffer.bytes(), [0; 16], "a refused write writes nothing");
}

#[test]
fn nothing_needs_no_key() {
    let memory = Memory::new();
    let nothing = Range { key: Key::new(0xdead), address: 0x1234, length: 0 };
    memory.check(REMOTE, nothing, ALL).unwrap();
    memory.write(REMOTE, nothing.key, 7, &[]).unwrap();
    memory.read(LOCAL, nothing.key, 7, &mut []).unwrap();
    memory.flush(REMOTE, nothing, Access::FLUSH_GLOBAL).unwrap();
    assert!(memory.lend(REMOTE, nothing, ALL).unwrap().is_empty());
}

#[test]
fn a_key_counts_with_all_its_bits_and_in_its_domain() {
    let (memory, buffer) = (Memory::new(), Buffer::new(8));
    let key = buffer.register(&memory, ALL);
    assert_eq!(cause(memory.check(STRANGER, buffer.range(key, 0, 8), ALL)), RefusalCause::WrongProtectionDomain);
    assert_eq!(cause(memory.write(STRANGER, key, buffer.address(), &[1])), RefusalCause::WrongProtectionDomain);
    for wrong in (0..32).map(|bit| key.value() ^ 1 << bit).chain([0, u32::MAX]) {
        let result = memory.check(REMOTE, buffer.range(Key::new(wrong), 0, 8), Access::empty());
        assert_eq!(cause(result), RefusalCause::UnknownKey, "{wrong:#x}");
        assert_eq!(cause(memory.read(REMOTE, Key::new(wrong), buffer.address(), &mut [0])), RefusalCause::UnknownKey);
    }
    memory.deregister(key).unwrap();
    assert_eq!(cause(memory.check(REMOTE, buffer.range(key, 0, 8), Access::empty())), RefusalCause::UnknownKey);
    assert_eq!(cause(memory.write(REMOTE, key, buffer.address(), &[1])), RefusalCause::UnknownKey);
}

#[test]
fn every_right_is_asked_for_and_needed() {
    let (memory, buffer) = (Memory::new(), Buffer::new(8));
    let add = Atomic::FetchAdd { add: 1 };
    let swap = Atomic::CompareSwap { compare: 0, swap: 0 };
    let store = Atomic::Write { bytes: [0; 8] };
    let write = Access::LOCAL_WRITE;
    type Try<'a> = (&'a str, Access, &'a dyn Fn(Key) -> bool);
    let at = buffer.address();
    let range = |key| buffer.range(key, 0, 8);
    let tries: [Try<'_>; 9] = [
        ("local read", Access::empty(), &|key| memory.read(LOCAL, key, at, &mut [0; 8]).is_ok()),
        ("local write", Access::LOCAL_WRITE, &|key| memory.write(LOCAL, key, at, &[0; 8]).is_ok()),
        ("remote read", Access::REMOTE_READ, &|key| memory.read(REMOTE, key, at, &mut [0; 8]).is_ok()),
        ("remote write", Access::REMOTE_WRITE, &|key| memory.write(REMOTE, key, at, &[0; 8]).is_ok()),
        ("fetch-add", Access::REMOTE_ATOMIC, &|key| memory.atomic(REMOTE, key, at, add).is_ok()),
        ("compare-swap", Access::REMOTE_ATOMIC, &|key| memory.atomic(REMOTE, key, at, swap).is_ok()),
        ("atomic write", Access::REMOTE_WRITE, &|key| memory.atomic(REMOTE, key, at, store).is_ok()),
        ("flush", Access::FLUSH_GLOBAL, &|key| memory.flush(REMOTE, range(key), Access::FLUSH_GLOBAL).is_ok()),
        ("persist", Access::FLUSH_PERSISTENT, &|key| {
            memory.flush(REMOTE, range(key), Access::FLUSH_PERSISTENT).is_ok()
        }),
    ];
    let every = ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    for (name, right, attempt) in tries {
        let alone = if right.intersects(ALL) { right | write } else { right };
        let key = buffer.register(&memory, alone);
        assert!(attempt(key), "{name} with its right");
        memory.deregister(key).unwrap();
        if !right.is_empty() {
            // What cannot be granted without it goes too.
            let without = if right == write { Access::REMOTE_READ } else { every - right };
            let key = buffer.register(&memory, without);
            assert!(!attempt(key), "{name} without its right");
            let result = memory.check(REMOTE, range(key), right);
            assert_eq!(cause(result), RefusalCause::NotPermitted, "{name}");
            memory.deregister(key).unwrap();
        }
    }
}

#[test]
fn atomics_are_native_integers_on_aligned_addresses() {
    let (memory, buffer) = (Memory::new(), Buffer::of(&40u64.to_ne_bytes().repeat(2)));
    let key = buffer.register(&memory, ALL);
    let atomic = |offset, operation| memory.atomic(REMOTE, key, buffer.address() + offset, operation);
    assert_eq!(atomic(8, Atomic::FetchAdd { add: 2 }), Ok(40));
    assert_eq!(atomic(8, Atomic::CompareSwap { compare: 41, swap: 0 }), Ok(42));
    assert_eq!(atomic(8, Atomic::CompareSwap { compare: 42, swap: 7 }), Ok(42));
    assert_eq!(atomic(8, Atomic::FetchAdd { add: u64::MAX }), Ok(7));
    assert_eq!(atomic(8, Atomic::Write { bytes: *b"8 bytes!" }), Ok(6));
    assert_eq!(&buffer.bytes()[8..], b"8 bytes!");
    assert_eq!(buffer.bytes()[..8], 40u64.to_ne_bytes());
    for offset in 1..8 {
        assert_eq!(cause(atomic(offset, Atomic::FetchAdd { add: 1 })), RefusalCause::Misaligned);
    }
    assert!(matches!(cause(atomic(9, Atomic::FetchAdd { add: 1 })), RefusalCause::OutOfBounds { .. }));
    // Aligned as the peer sees it, and not where it lies: refused, rather than a split atomic.
    let translation = Translation { address: buffer.pointer().wrapping_add(1), length: 15, iova: Some(0x1000) };
    let odd = register(&memory, &RegionSpec { translation, ..buffer.spec(ALL) }).unwrap();
    assert_eq!(cause(memory.atomic(REMOTE, odd, 0x1000, Atomic::FetchAdd { add: 1 })), RefusalCause::Misaligned);
}

#[test]
fn addresses_may_start_where_the_owner_likes() {
    let (memory, buffer) = (Memory::new(), Buffer::of(b"abc"));
    let zero = buffer.register(&memory, ALL | Access::ZERO_BASED);
    let mut out = [0; 3];
    memory.read(REMOTE, zero, 0, &mut out).unwrap();
    assert_eq!(&out, b"abc");
    assert_eq!(cause(memory.read(REMOTE, zero, 1, &mut out)), RefusalCause::OutOfBounds { start: 0, length: 3 });
    let translation = Translation { address: buffer.pointer().wrapping_add(1), length: 2, iova: Some(u64::MAX - 1) };
    let last = register(&memory, &RegionSpec { translation, ..buffer.spec(ALL) }).unwrap();
    let mut out = [0; 2];
    memory.read(REMOTE, last, u64::MAX - 1, &mut out).unwrap();
    assert_eq!(&out, b"bc");
    memory.write(REMOTE, last, u64::MAX, b"!").unwrap();
    assert_eq!(buffer.bytes(), b"ab!");
    assert!(memory.write(REMOTE, last, u64::MAX, b"!!").is_err());
    assert!(memory.write(REMOTE, last, 0, b"!").is_err(), "addresses do not wrap");
}

#[test]
fn a_guard_lends_the_bytes_themselves() {
    let (memory, buffer) = (Memory::new(), Buffer::new(32));
    let key = buffer.register(&memory, ALL);
    let guard = memory.lend(REMOTE, buffer.range(key, 8, 16), Access::REMOTE_WRITE).unwrap();
    assert_eq!((guard.as_ptr(), guard.len(), guard.may_vanish()), (buffer.pointer().wrapping_add(8), 16, false));
    assert_eq!((guard.cells().as_ptr().cast::<u8>(), guard.cells().len()), (guard.as_ptr().cast_const(), 16));
    assert_eq!(cause(memory.lend(REMOTE, buffer.range(key, 8, 16), Access::FLUSH_GLOBAL)), RefusalCause::NotPermitted);
    // A second guard, on another thread, and dropped there.
    let other = memory.lend(LOCAL, buffer.range(key, 0, 32), Access::LOCAL_WRITE).unwrap();
    std::thread::scope(|scope| scope.spawn(move || assert_eq!(other.len(), 32)).join().unwrap());
    drop(guard);
    memory.deregister(key).unwrap();
}

#[test]
fn memory_is_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Memory>();
    shared::<memory::Guard<'static>>();
    assert_eq!(Memory::default().limits(), Limits::default());
}
