//! What may be registered, changed and given back, and what may not.

use crate::harness::{ALL, Buffer, LOCAL, OTHER, PD, Pages, REMOTE, STRANGER, cause, register};
use memory::{Access, Change, Error, Key, Limits, Memory, Range, RefusalCause, RegionSpec, Translation};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

fn reregister(memory: &Memory, key: Key, change: Change) -> Result<(), Error> {
    // SAFETY: tests touch what they register by atomics only, and keep it.
    unsafe { memory.reregister(key, &change) }
}

fn spec(translation: Translation, access: Access) -> RegionSpec {
    RegionSpec { translation, domain: PD, access }
}

/// Whether all of it can be read and, with the right, written.
fn works(memory: &Memory, key: Key, address: u64, length: usize, access: Access) {
    let mut out = vec![0; length];
    memory.read(LOCAL, key, address, &mut out).unwrap();
    if access.contains(Access::LOCAL_WRITE) {
        memory.write(LOCAL, key, address, &out).unwrap();
    }
}

#[test]
fn peers_get_no_right_the_owner_lacks() {
    let (memory, buffer) = (Memory::new(), Buffer::new(8));
    for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC] {
        let refused = register(&memory, &buffer.spec(remote | Access::REMOTE_READ)).unwrap_err();
        assert_eq!((refused, refused.errno()), (Error::LocalWriteMissing, libc::EINVAL));
        let key = buffer.register(&memory, remote | Access::LOCAL_WRITE);
        let change = Change { access: Some(remote), ..Change::default() };
        assert_eq!(reregister(&memory, key, change), Err(Error::LocalWriteMissing));
        works(&memory, key, buffer.address(), 8, Access::LOCAL_WRITE);
    }
    buffer.register(&memory, Access::REMOTE_READ);
    let unknown = register(&memory, &buffer.spec(Access::from_bits_retain(1 << 12))).unwrap_err();
    assert_eq!((unknown, unknown.errno()), (Error::Rights { bits: 1 << 12 }, libc::EINVAL));
}

#[test]
fn lengths_and_addresses_have_limits() {
    let buffer = Buffer::new(64);
    let memory = Memory::with_limits(Limits { region_length: 32, ..Limits::default() });
    let of = |length| spec(Translation { length, ..buffer.translation() }, ALL);
    let pages = Pages::private(1);
    let empty = |offset| Translation { address: pages.first.wrapping_add(offset), length: 0, iova: None };
    assert_eq!(register(&memory, &spec(empty(0), ALL)), Err(Error::Empty));
    assert_eq!(register(&memory, &spec(Translation::new(std::ptr::null_mut(), 0), ALL)), Err(Error::Empty));
    assert_eq!(Error::Empty.errno(), libc::EINVAL);
    assert!(register(&memory, &of(32)).is_ok());
    assert_eq!(register(&memory, &of(33)), Err(Error::TooLong { length: 33, limit: 32 }));
    let iova = |iova| spec(Translation { length: 32, iova: Some(iova), ..buffer.translation() }, ALL);
    assert!(register(&memory, &iova(u64::MAX - 31)).is_ok());
    assert!(matches!(register(&memory, &iova(u64::MAX - 30)), Err(Error::AddressOverflow { .. })));
    let last = Translation::new(std::ptr::without_provenance_mut(usize::MAX), 2);
    assert!(matches!(register(&memory, &spec(last, ALL)), Err(Error::AddressOverflow { .. })));
}

#[test]
fn the_limit_of_regions_is_an_error_and_counts_what_is_there() {
    let (memory, buffer) = (Memory::with_limits(Limits { regions: 3, ..Limits::default() }), Buffer::new(8));
    let keys: Vec<_> = (0..3).map(|_| buffer.register(&memory, ALL)).collect();
    let refused = register(&memory, &buffer.spec(ALL)).unwrap_err();
    assert_eq!((refused, refused.errno()), (Error::TooManyRegions { limit: 3 }, libc::ENOMEM));
    assert_eq!(memory.usage().regions, 3);
    memory.deregister(keys[1]).unwrap();
    let again = buffer.register(&memory, ALL);
    assert!(!keys.contains(&again));
    assert!(register(&memory, &buffer.spec(ALL)).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "slow")]
fn the_table_fills_to_its_last_place_and_empties_again() {
    let limits = Limits { regions: u32::MAX, windows: u32::MAX, ..Limits::default() };
    let (memory, buffer) = (Memory::with_limits(limits), Buffer::new(8));
    let keys: Vec<_> = (0..Limits::PLACES).map(|_| buffer.register(&memory, Access::empty())).collect();
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "keys differ");
    assert!(matches!(register(&memory, &buffer.spec(ALL)), Err(Error::TooManyRegions { .. })));
    assert!(matches!(memory.allocate_window(PD, memory::WindowType::Type1), Err(Error::TooManyWindows { .. })));
    for key in &keys {
        works(&memory, *key, buffer.address(), 8, Access::empty());
    }
    memory.deregister(keys[5]).unwrap();
    let key = buffer.register(&memory, Access::empty());
    assert_ne!(key.value() >> 8, keys[5].value() >> 8, "the place is the same and its key is not");
    for key in keys.iter().filter(|key| **key != keys[5]).chain([&key]) {
        memory.deregister(*key).unwrap();
    }
    assert_eq!(memory.usage().regions, 0);
}

#[test]
fn a_dead_key_stays_dead() {
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    let (memory, buffer) = (Memory::new(), Buffer::new(8));
    let mut dead = HashSet::new();
    let mut first = None;
    for _ in 0..rounds {
        let key = buffer.register(&memory, ALL);
        assert!(dead.insert(key), "{key} was a key before");
        if let Some(first) = first {
            assert_eq!(cause(memory.read(LOCAL, first, buffer.address(), &mut [0])), RefusalCause::UnknownKey);
        }
        memory.deregister(key).unwrap();
        assert_eq!(memory.deregister(key), Err(Error::UnknownKey { key }));
        assert_eq!(
            reregister(&memory, key, Change { domain: Some(PD), ..Change::default() }),
            Err(Error::UnknownKey { key })
        );
        first.get_or_insert(key);
    }
}

static COUNTER: AtomicU64 = AtomicU64::new(7);
static CONSTANT: [u8; 16] = *b"read-only bytes!";

#[test]
fn any_memory_of_the_process_will_do() {
    let memory = Memory::new();
    let stack = [const { AtomicU64::new(0) }; 4];
    let places = [
        ("stack", stack.as_ptr().cast::<u8>().cast_mut(), 32, ALL),
        ("static", COUNTER.as_ptr().cast(), 8, ALL),
        ("constant", CONSTANT.as_ptr().cast_mut(), 16, Access::REMOTE_READ),
    ];
    for (name, address, length, access) in places {
        if cfg!(miri) && name == "constant" {
            // There all goes through atomics, which want memory that may be written.
            continue;
        }
        let key = register(&memory, &spec(Translation::new(address, length), access)).expect(name);
        works(&memory, key, address.addr() as u64, length, access);
        memory.deregister(key).unwrap();
    }
    let heap = Buffer::new(100);
    for start in 0..8 {
        let at = heap.pointer().wrapping_add(start);
        let key = register(&memory, &spec(Translation::new(at, 91), ALL)).unwrap();
        works(&memory, key, at.addr() as u64, 91, ALL);
        memory.deregister(key).unwrap();
    }
    assert_eq!(COUNTER.load(Ordering::Relaxed), 7);
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn mapped_memory_of_every_kind_will_do() {
    let memory = Memory::new();
    // SAFETY: a name of our own, and no more.
    let file = unsafe { libc::memfd_create(c"ubiverbs-test".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a descriptor of our own.
    assert_eq!(unsafe { libc::ftruncate(file, 2 * Pages::SIZE as i64) }, 0);
    let anonymous = libc::MAP_ANONYMOUS;
    for pages in [
        Pages::private(2),
        Pages::new(2, libc::MAP_SHARED | anonymous, -1),
        Pages::new(2, libc::MAP_SHARED, file),
        Pages::new(2, libc::MAP_PRIVATE, file),
    ] {
        let address = pages.first.addr() as u64;
        let key = register(&memory, &spec(pages.translation(), ALL | Access::FLUSH_PERSISTENT)).unwrap();
        works(&memory, key, address, pages.length, ALL);
        let range = memory::Range { key, address: address + 5, length: 9 };
        memory.flush(REMOTE, range, Access::FLUSH_PERSISTENT).unwrap();
        memory.deregister(key).unwrap();
    }
    // The third page of a file of two: mapped, and nothing there.
    let beyond = Pages::new(3, libc::MAP_SHARED, file);
    let refused = register(&memory, &spec(beyond.translation(), ALL)).unwrap_err();
    assert_eq!((matches!(refused, Error::Absent { .. }), refused.errno()), (true, libc::EFAULT), "{refused}");
    // SAFETY: a descriptor of our own.
    unsafe { libc::close(file) };
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn memory_that_is_not_there_is_an_error_and_not_a_crash() {
    let memory = Memory::new();
    let nowhere = |address| spec(Translation::new(std::ptr::without_provenance_mut(address), 64), ALL);
    for address in [0, 64, 0x1000, 1 << 62, usize::MAX - 64] {
        let refused = register(&memory, &nowhere(address)).unwrap_err();
        assert!(matches!(refused, Error::NotMapped { .. }), "{address:#x}: {refused}");
        assert_eq!(refused.errno(), libc::EFAULT);
    }
    let pages = Pages::private(4);
    let whole = |access| register(&memory, &spec(pages.translation(), access));
    let first = pages.first.addr() as u64;
    for (rights, readable, writable) in [
        (libc::PROT_NONE, false, false),
        (libc::PROT_READ, true, false),
        (libc::PROT_READ | libc::PROT_WRITE, true, true),
    ] {
        // A hole in the middle is as bad as none at all.
        pages.protect(2, 1, rights);
        let address = first + 2 * Pages::SIZE as u64;
        for (access, write, fits) in [
            (Access::LOCAL_WRITE, true, writable),
            (ALL, true, writable),
            (Access::empty(), false, readable),
            (Access::REMOTE_READ, false, readable),
        ] {
            match whole(access) {
                Ok(key) => {
                    assert!(fits, "{access:?}");
                    works(&memory, key, first, pages.length, access);
                    memory.deregister(key).unwrap();
                }
                Err(refused) => {
                    assert!(!fits, "{access:?}: {refused}");
                    assert_eq!((refused, refused.errno()), (Error::Protected { address, write }, libc::EFAULT));
                }
            }
        }
        // What stops before it, to the byte, does not care.
        let before = Translation::new(pages.first.wrapping_add(1), 2 * Pages::SIZE - 1);
        let key = register(&memory, &spec(before, ALL)).unwrap();
        memory.deregister(key).unwrap();
        let touching = Translation { length: 2 * Pages::SIZE, ..before };
        assert_eq!(register(&memory, &spec(touching, ALL)).is_ok(), writable);
    }
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn rights_to_write_are_not_given_later_to_memory_that_may_not_be_written() {
    let memory = Memory::new();
    let pages = Pages::private(2);
    pages.protect(1, 1, libc::PROT_READ);
    let key = register(&memory, &spec(pages.translation(), Access::REMOTE_READ)).unwrap();
    let change = |access| Change { access: Some(access), ..Change::default() };
    let refused = reregister(&memory, key, change(ALL)).unwrap_err();
    assert_eq!(refused.errno(), libc::EFAULT);
    let address = pages.first.addr() as u64;
    assert_eq!(cause(memory.write(LOCAL, key, address, &[1])), RefusalCause::NotPermitted, "it is as it was");
    works(&memory, key, address, pages.length, Access::empty());
    pages.protect(1, 1, libc::PROT_READ | libc::PROT_WRITE);
    reregister(&memory, key, change(ALL)).unwrap();
    works(&memory, key, address, pages.length, ALL);
}

#[test]
fn a_region_changes_in_any_combination() {
    let (one, two) = (Buffer::of(&[1; 64]), Buffer::of(&[2; 128]));
    for combination in 0..8 {
        let memory = Memory::new();
        let key = one.register(&memory, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let change = Change {
            translation: (combination & 1 != 0).then(|| two.translation()),
            domain: (combination & 2 != 0).then_some(OTHER),
            access: (combination & 4 != 0).then_some(Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        };
        let result = reregister(&memory, key, change);
        if combination == 0 {
            assert_eq!(result, Err(Error::NothingToChange));
            continue;
        }
        result.unwrap();
        let buffer = if change.translation.is_some() { &two } else { &one };
        let (subject, wrong) = if change.domain.is_some() { (STRANGER, REMOTE) } else { (REMOTE, STRANGER) };
        let (right, other) = match change.access {
            Some(_) => (Access::REMOTE_WRITE, Access::REMOTE_READ),
            None => (Access::REMOTE_READ, Access::REMOTE_WRITE),
        };
        let all = buffer.range(key, 0, buffer.len() as u64);
        memory.check(subject, all, right).unwrap();
        drop(memory.lend(subject, all, right).unwrap());
        assert_eq!(cause(memory.check(subject, all, other)), RefusalCause::NotPermitted);
        assert_eq!(cause(memory.check(wrong, all, right)), RefusalCause::WrongProtectionDomain);
        let old = if change.translation.is_some() { &one } else { &two };
        assert!(matches!(cause(memory.check(subject, old.range(key, 0, 1), right)), RefusalCause::OutOfBounds { .. }));
        memory.deregister(key).unwrap();
    }
}

#[test]
fn a_region_of_no_bytes_needs_a_page_and_opens_nothing() {
    let (memory, pages) = (Memory::new(), Pages::private(2));
    let at = |offset: usize| Translation::new(pages.first.wrapping_add(offset), 0);
    let key = register(&memory, &spec(at(Pages::SIZE - 1), ALL)).unwrap();
    let address = pages.first.addr() as u64 + Pages::SIZE as u64 - 1;
    let range = |length| Range { key, address, length };
    memory.check(REMOTE, range(0), ALL).unwrap();
    let refused = cause(memory.check(REMOTE, range(1), ALL));
    assert_eq!(refused, RefusalCause::OutOfBounds { start: address, length: 0 });
    memory.deregister(key).unwrap();
    pages.protect(1, 1, libc::PROT_NONE);
    let refused = register(&memory, &spec(at(Pages::SIZE + 1), ALL)).unwrap_err();
    assert_eq!(refused.errno(), libc::EFAULT);
    register(&memory, &spec(at(Pages::SIZE + 1), ALL | Access::ON_DEMAND)).unwrap();
}

#[test]
fn a_failed_change_leaves_the_region_as_it_was() {
    let (memory, buffer) = (Memory::new(), Buffer::new(64));
    let key = buffer.register(&memory, ALL);
    let empty = Translation::new(std::ptr::null_mut(), 0);
    let change = Change { translation: Some(empty), domain: Some(OTHER), access: Some(Access::empty()) };
    assert_eq!(reregister(&memory, key, change), Err(Error::Empty));
    memory.check(REMOTE, buffer.range(key, 0, 64), ALL).unwrap();
    memory.deregister(key).unwrap();
}

#[test]
fn zero_based_follows_the_rights() {
    let (memory, buffer) = (Memory::new(), Buffer::new(64));
    let key = buffer.register(&memory, ALL);
    let change = |access| Change { access: Some(access), ..Change::default() };
    reregister(&memory, key, change(ALL | Access::ZERO_BASED)).unwrap();
    works(&memory, key, 0, 64, ALL);
    reregister(&memory, key, change(ALL)).unwrap();
    works(&memory, key, buffer.address(), 64, ALL);
    assert!(memory.read(LOCAL, key, 0, &mut [0]).is_err());
}
