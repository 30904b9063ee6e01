//! Regions on demand: memory that may come and go, and never takes the process with it.

#![cfg(not(miri))]

use crate::harness::{ALL, Buffer, LOCAL, PD, Pages, REMOTE, cause, register, window};
use memory::{Access, Atomic, Error, Memory, Range, RefusalCause, RegionSpec, Translation, WindowType};

const ON_DEMAND: Access = ALL.union(Access::ON_DEMAND);

fn spec(translation: Translation) -> RegionSpec {
    RegionSpec { translation, domain: PD, access: ON_DEMAND }
}

fn everything() -> Translation {
    Translation::new(std::ptr::null_mut(), usize::MAX)
}

#[test]
fn what_is_not_there_is_refused_when_it_is_touched() {
    let memory = Memory::new();
    let pages = Pages::private(3);
    pages.protect(1, 1, libc::PROT_NONE);
    let key = register(&memory, &spec(pages.translation())).unwrap();
    let first = pages.first.addr() as u64;
    let hole = first + Pages::SIZE as u64;
    memory.write(REMOTE, key, first, &[1; 100]).unwrap();
    let mut out = [0; 100];
    memory.read(REMOTE, key, first, &mut out).unwrap();
    assert_eq!(out, [1; 100]);
    assert_eq!(memory.atomic(REMOTE, key, first + 104, Atomic::FetchAdd { add: 1 }), Ok(0));
    assert_eq!(memory.atomic(REMOTE, key, first + 104, Atomic::FetchAdd { add: 1 }), Ok(1));
    for (address, length) in [(hole, 1), (hole - 1, 2), (first, 3 * Pages::SIZE), (hole + 4095, 2)] {
        assert_eq!(cause(memory.write(REMOTE, key, address, &vec![2; length])), RefusalCause::Faulted);
        assert_eq!(cause(memory.read(REMOTE, key, address, &mut vec![2; length])), RefusalCause::Faulted);
    }
    assert_eq!(cause(memory.atomic(REMOTE, key, hole, Atomic::FetchAdd { add: 1 })), RefusalCause::Faulted);
    pages.protect(1, 1, libc::PROT_READ);
    memory.read(REMOTE, key, hole, &mut [1; 4096]).unwrap();
    assert_eq!(cause(memory.write(REMOTE, key, hole, &[1])), RefusalCause::Faulted, "the mapping forbids it");
    pages.protect(1, 1, libc::PROT_READ | libc::PROT_WRITE);
    memory.write(REMOTE, key, first, &vec![3; pages.length]).unwrap();
    let mut all = vec![0; pages.length];
    memory.read(REMOTE, key, first, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 3));
}

#[test]
fn unmapping_a_region_on_demand_ends_nothing() {
    let memory = Memory::new();
    let pages = Pages::private(1);
    let key = register(&memory, &spec(pages.translation())).unwrap();
    let address = pages.first.addr() as u64;
    memory.write(REMOTE, key, address, &[1]).unwrap();
    let guard = memory.lend(LOCAL, Range { key, address, length: 8 }, Access::empty()).unwrap();
    assert!(guard.may_vanish());
    drop((guard, pages));
    // Another test may have mapped something of its own there meanwhile; that it is not fatal is the point.
    let _ = memory.read(REMOTE, key, address, &mut [0; 8]);
    memory.deregister(key).unwrap();
}

#[test]
fn one_region_may_be_all_memory_there_is_or_will_be() {
    let memory = Memory::new();
    let key = register(&memory, &spec(everything())).unwrap();
    let later = Buffer::of(b"allocated afterwards");
    let mut out = [0; 20];
    memory.read(LOCAL, key, later.address(), &mut out).unwrap();
    assert_eq!(&out, b"allocated afterwards");
    memory.write(LOCAL, key, later.address(), b"A").unwrap();
    assert_eq!(&later.bytes()[..2], b"Al");
    for address in [0, 8, 0xfff, 1 << 63, u64::MAX - 8] {
        assert_eq!(cause(memory.read(LOCAL, key, address, &mut [0; 8])), RefusalCause::Faulted, "{address:#x}");
        assert_eq!(cause(memory.write(LOCAL, key, address, &[0; 8])), RefusalCause::Faulted, "{address:#x}");
        let aligned = address & !7;
        assert_eq!(cause(memory.atomic(REMOTE, key, aligned, Atomic::FetchAdd { add: 1 })), RefusalCause::Faulted);
    }
    memory.deregister(key).unwrap();
    // Only on demand.
    let pinned = RegionSpec { access: ALL, ..spec(everything()) };
    assert!(matches!(register(&memory, &pinned), Err(Error::TooLong { .. })));
}

#[test]
fn a_window_over_memory_on_demand_is_as_careful() {
    let memory = Memory::new();
    let pages = Pages::private(2);
    let region = register(&memory, &spec(pages.translation())).unwrap();
    let address = pages.first.addr() as u64;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let key = window(&memory, WindowType::Type1, region, address, pages.length as u64, rights);
    pages.protect(0, 2, libc::PROT_NONE);
    assert_eq!(cause(memory.read(REMOTE, key, address, &mut [0; 8])), RefusalCause::Faulted);
    assert_eq!(cause(memory.write(REMOTE, key, address, &[0; 8])), RefusalCause::Faulted);
}
