use super::*;
use crate::host::HostId;
use transport::Bind;
use wire::{Qpn, Selectivity};

const PD: ProtectionDomain = ProtectionDomain(1);
const OTHER: ProtectionDomain = ProtectionDomain(2);
const LOCAL: Subject = Subject { qpn: Qpn::new(0x11), pd: PD, remote: false };
const REMOTE: Subject = Subject { qpn: Qpn::new(0x11), pd: PD, remote: true };
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

fn memory() -> Memory {
    Memory::new(HostId(0))
}

fn range(region: &Region, offset: u64, length: u64) -> Range {
    Range { key: region.key, address: region.address.wrapping_add(offset), length }
}

fn cause<T: std::fmt::Debug>(result: Result<T, Refusal>) -> RefusalCause {
    result.unwrap_err().cause
}

#[test]
fn bytes_written_are_bytes_read() {
    let mut memory = memory();
    let region = memory.register(vec![0; 16], &RegionSpec::new(PD, ALL));
    memory.write(REMOTE, range(&region, 3, 4), b"data").unwrap();
    let mut out = [0; 6];
    memory.read(REMOTE, range(&region, 2, 6), &mut out).unwrap();
    assert_eq!(&out, b"\0data\0");
    assert_eq!(&memory.bytes(&region)[3..7], b"data");
}

#[test]
fn a_range_ends_at_the_region_and_not_one_byte_later() {
    let mut memory = memory();
    let region = memory.register(vec![0; 16], &RegionSpec::new(PD, ALL));
    let bounds = RefusalCause::OutOfBounds { start: region.address, length: 16 };
    for (offset, length, fits) in [(0, 16, true), (15, 1, true), (0, 17, false), (16, 1, false), (15, 2, false)] {
        let result = memory.check(LOCAL, range(&region, offset, length), Access::empty());
        assert_eq!(result.is_ok(), fits, "{offset}+{length}");
        assert!(fits || cause(result) == bounds);
    }
    let below = Range { address: region.address - 1, ..range(&region, 0, 1) };
    assert_eq!(cause(memory.check(LOCAL, below, Access::empty())), bounds);
    for (address, length) in [(u64::MAX, 1), (u64::MAX, u64::MAX), (region.address + 1, u64::MAX), (0, u64::MAX)] {
        let wild = Range { key: region.key, address, length };
        assert_eq!(cause(memory.check(LOCAL, wild, Access::empty())), bounds, "{address:#x}+{length:#x}");
    }
}

#[test]
fn nothing_needs_no_key() {
    let mut memory = memory();
    let nothing = Range { key: Key::new(0xdead), address: 0x1234, length: 0 };
    memory.check(REMOTE, nothing, ALL).unwrap();
    memory.write(REMOTE, nothing, &[]).unwrap();
    memory.read(LOCAL, nothing, &mut []).unwrap();
}

#[test]
fn a_key_counts_in_its_protection_domain_with_all_its_bits() {
    let mut memory = memory();
    let region = memory.register(vec![0; 8], &RegionSpec::new(PD, ALL));
    let stranger = Subject { pd: OTHER, ..REMOTE };
    assert_eq!(cause(memory.check(stranger, range(&region, 0, 8), ALL)), RefusalCause::WrongProtectionDomain);
    for wrong in [region.key.value() ^ 1, region.key.value() ^ 0x100, 0] {
        let range = Range { key: Key::new(wrong), ..range(&region, 0, 8) };
        assert_eq!(cause(memory.check(REMOTE, range, Access::empty())), RefusalCause::UnknownKey);
    }
    assert!(memory.deregister(region.key));
    assert_eq!(cause(memory.check(REMOTE, range(&region, 0, 8), Access::empty())), RefusalCause::UnknownKey);
}

#[test]
fn every_right_is_asked_for_and_needed() {
    let mut memory = memory();
    let bare = memory.register(vec![0; 8], &RegionSpec::new(PD, Access::empty()));
    let bytes = range(&bare, 0, 8);
    let denied = RefusalCause::NotPermitted;
    memory.read(LOCAL, bytes, &mut [0; 8]).unwrap();
    assert_eq!(cause(memory.write(LOCAL, bytes, &[0; 8])), denied);
    assert_eq!(cause(memory.read(REMOTE, bytes, &mut [0; 8])), denied);
    assert_eq!(cause(memory.write(REMOTE, bytes, &[0; 8])), denied);
    assert_eq!(cause(memory.atomic(REMOTE, bytes, Atomic::FetchAdd { add: 1 })), denied);
    assert_eq!(cause(memory.atomic(REMOTE, bytes, Atomic::Write { bytes: [0; 8] })), denied);
    for (placement, right) in
        [(Placement::GLOBAL, Access::FLUSH_GLOBAL), (Placement::PERSISTENT, Access::FLUSH_PERSISTENT)]
    {
        let feth = Feth { placement, selectivity: Selectivity::Range };
        assert_eq!(cause(memory.flush(REMOTE, bytes, feth)), denied);
        let open = memory.register(vec![0; 8], &RegionSpec::new(PD, right));
        memory.flush(REMOTE, range(&open, 0, 8), feth).unwrap();
    }
}

#[test]
fn atomics_are_native_integers_on_aligned_addresses() {
    let mut memory = memory();
    let region = memory.register(40u64.to_ne_bytes().repeat(2), &RegionSpec::new(PD, ALL));
    let cell = range(&region, 8, 8);
    assert_eq!(memory.atomic(REMOTE, cell, Atomic::FetchAdd { add: 2 }), Ok(40));
    assert_eq!(memory.atomic(REMOTE, cell, Atomic::CompareSwap { compare: 41, swap: 0 }), Ok(42));
    assert_eq!(memory.atomic(REMOTE, cell, Atomic::CompareSwap { compare: 42, swap: 7 }), Ok(42));
    assert_eq!(memory.atomic(REMOTE, cell, Atomic::FetchAdd { add: u64::MAX }), Ok(7));
    assert_eq!(memory.atomic(REMOTE, cell, Atomic::Write { bytes: *b"8 bytes!" }), Ok(6));
    assert_eq!(&memory.bytes(&region)[8..], b"8 bytes!");
    assert_eq!(memory.bytes(&region)[..8], 40u64.to_ne_bytes());
    let odd = range(&region, 4, 8);
    assert_eq!(cause(memory.atomic(REMOTE, odd, Atomic::FetchAdd { add: 1 })), RefusalCause::Misaligned);
    let short = range(&region, 8, 4);
    assert_eq!(cause(memory.atomic(REMOTE, short, Atomic::FetchAdd { add: 1 })), RefusalCause::WrongKind);
}

#[test]
fn addresses_may_start_where_the_owner_likes() {
    let mut memory = memory();
    let zero = memory.register(b"abc".to_vec(), &RegionSpec::new(PD, ALL | Access::ZERO_BASED));
    assert_eq!(zero.address, 0);
    let spec = RegionSpec { iova: Some(u64::MAX - 2), ..RegionSpec::new(PD, ALL) };
    let last = memory.register_again(&zero, 1, 2, &spec);
    let mut out = [0; 2];
    memory.read(REMOTE, range(&last, 0, 2), &mut out).unwrap();
    assert_eq!(&out, b"bc");
    memory.write(REMOTE, range(&last, 1, 1), b"!").unwrap();
    assert_eq!(memory.bytes(&zero), b"ab!");
    assert!(memory.check(REMOTE, range(&last, 1, 2), ALL).is_err());
}

#[test]
fn a_pattern_reads_as_itself_and_notices_what_differs() {
    let mut memory = memory();
    let region = memory.register_pattern(1 << 40, 9, &RegionSpec::new(PD, ALL));
    let mut out = [0; 64];
    let far = range(&region, (1 << 40) - 64, 64);
    memory.read(REMOTE, far, &mut out).unwrap();
    memory.write(REMOTE, far, &out).unwrap();
    assert_eq!(memory.pattern_written(&region), (64, 0));
    out[5] ^= 1;
    memory.write(REMOTE, far, &out).unwrap();
    assert_eq!(memory.pattern_written(&region), (128, 1));
    assert!(memory.read(REMOTE, range(&region, 1 << 40, 1), &mut [0]).is_err());
}

struct Bound {
    memory: Memory,
    region: Region,
    key: Key,
}

/// A window over bytes 8 to 24 of a region of 32.
fn bound(kind: WindowKind, access: Access) -> Bound {
    let mut memory = memory();
    let region = memory.register((0..32).collect(), &RegionSpec::new(PD, ALL));
    let window = memory.allocate_window(WindowSpec { pd: PD, kind });
    let key = Key::new(window.value() | 0x42);
    let bind = Bind { window, new_key: key, region: region.key, address: region.address + 8, length: 16, access };
    memory.bind(LOCAL, &bind).unwrap();
    Bound { memory, region, key }
}

#[test]
fn a_window_opens_its_part_of_a_region_and_no_more() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let Bound { memory, region, key } = bound(kind, Access::REMOTE_READ);
        let at = |offset, length| Range { key, ..range(&region, offset, length) };
        let mut out = [0; 16];
        memory.read(REMOTE, at(8, 16), &mut out).unwrap();
        assert_eq!((out[0], out[15]), (8, 23));
        let bounds = RefusalCause::OutOfBounds { start: region.address + 8, length: 16 };
        assert_eq!(cause(memory.check(REMOTE, at(7, 1), Access::REMOTE_READ)), bounds);
        assert_eq!(cause(memory.check(REMOTE, at(8, 17), Access::REMOTE_READ)), bounds);
        assert_eq!(cause(memory.check(REMOTE, at(8, 1), Access::REMOTE_WRITE)), RefusalCause::NotPermitted);
        assert_eq!(cause(memory.check(LOCAL, at(8, 1), Access::empty())), RefusalCause::WrongKind);
        let elsewhere = Subject { pd: OTHER, ..REMOTE };
        assert_eq!(cause(memory.check(elsewhere, at(8, 1), Access::REMOTE_READ)), RefusalCause::WrongProtectionDomain);
        let old = Range { key: Key::new(key.value() & !0xff), ..at(8, 1) };
        assert_eq!(cause(memory.check(REMOTE, old, Access::REMOTE_READ)), RefusalCause::UnknownKey);
    }
}

#[test]
fn a_zero_based_window_counts_from_its_start() {
    let Bound { memory, key, .. } = bound(WindowKind::Type1, Access::REMOTE_READ | Access::ZERO_BASED);
    let mut out = [0; 2];
    memory.read(REMOTE, Range { key, address: 14, length: 2 }, &mut out).unwrap();
    assert_eq!(out, [22, 23]);
    assert!(memory.read(REMOTE, Range { key, address: 15, length: 2 }, &mut out).is_err());
}

#[test]
fn a_type_2_window_belongs_to_its_queue_pair_and_a_type_1_to_all() {
    let other = Subject { qpn: Qpn::new(0x12), ..REMOTE };
    let Bound { memory, region, key } = bound(WindowKind::Type2, Access::REMOTE_READ);
    let bytes = Range { key, ..range(&region, 8, 1) };
    assert_eq!(cause(memory.check(other, bytes, Access::REMOTE_READ)), RefusalCause::WrongQueuePair);
    let Bound { memory, region, key } = bound(WindowKind::Type1, Access::REMOTE_READ);
    memory.check(other, Range { key, ..range(&region, 8, 1) }, Access::REMOTE_READ).unwrap();
}

#[test]
fn invalidating_frees_a_type_2_window_and_nothing_else() {
    let Bound { mut memory, region, key } = bound(WindowKind::Type2, Access::REMOTE_READ);
    let bytes = Range { key, ..range(&region, 8, 1) };
    assert!(!memory.deregister(region.key), "a window is bound to it");
    let other = Subject { qpn: Qpn::new(0x12), ..REMOTE };
    assert_eq!(cause(memory.invalidate(other, key)), RefusalCause::WrongQueuePair);
    memory.invalidate(REMOTE, key).unwrap();
    assert_eq!(cause(memory.check(REMOTE, bytes, Access::REMOTE_READ)), RefusalCause::Invalidated);
    assert_eq!(cause(memory.invalidate(REMOTE, key)), RefusalCause::Invalidated);
    assert!(memory.deregister(region.key));
    let Bound { mut memory, region, key } = bound(WindowKind::Type1, Access::REMOTE_READ);
    assert_eq!(cause(memory.invalidate(LOCAL, key)), RefusalCause::WrongKind);
    assert_eq!(cause(memory.invalidate(LOCAL, region.key)), RefusalCause::WrongKind);
    assert!(memory.free_window(key) && memory.deregister(region.key));
}

#[test]
fn memory_that_may_be_invalidated_is_gone_after_it() {
    let mut memory = memory();
    let spec = RegionSpec { invalidatable: true, ..RegionSpec::new(PD, ALL) };
    let region = memory.register(vec![0; 8], &spec);
    memory.invalidate(REMOTE, region.key).unwrap();
    assert_eq!(cause(memory.check(LOCAL, range(&region, 0, 1), Access::empty())), RefusalCause::Invalidated);
    assert_eq!(cause(memory.invalidate(LOCAL, region.key)), RefusalCause::Invalidated);
    assert_eq!(cause(memory.invalidate(LOCAL, Key::new(77))), RefusalCause::UnknownKey);
}

#[test]
fn a_bind_that_would_open_too_much_is_refused() {
    let mut memory = memory();
    let region = memory.register(vec![0; 32], &RegionSpec::new(PD, ALL));
    let read_only = memory.register(vec![0; 32], &RegionSpec::new(PD, Access::MW_BIND));
    let closed = memory.register(vec![0; 32], &RegionSpec::new(PD, ALL - Access::MW_BIND));
    let zero = memory.register(vec![0; 32], &RegionSpec::new(PD, ALL | Access::ZERO_BASED));
    let foreign = memory.register(vec![0; 32], &RegionSpec::new(OTHER, ALL));
    let window = memory.allocate_window(WindowSpec { pd: PD, kind: WindowKind::Type2 });
    let bind = |region: &Region, access| Bind {
        window,
        new_key: Key::new(window.value() + 1),
        region: region.key,
        address: region.address,
        length: 32,
        access,
    };
    let good = bind(&region, Access::REMOTE_READ);
    let mut refused = |bind: Bind| cause(memory.bind(LOCAL, &bind));
    assert_eq!(refused(bind(&closed, Access::REMOTE_READ)), RefusalCause::NotPermitted);
    assert_eq!(refused(bind(&read_only, Access::REMOTE_WRITE)), RefusalCause::NotPermitted);
    assert_eq!(refused(bind(&zero, Access::REMOTE_READ)), RefusalCause::WrongKind);
    assert_eq!(refused(bind(&foreign, Access::REMOTE_READ)), RefusalCause::WrongProtectionDomain);
    assert!(matches!(refused(Bind { length: 33, ..good }), RefusalCause::OutOfBounds { .. }));
    assert_eq!(refused(Bind { length: 0, ..good }), RefusalCause::WrongKind);
    assert_eq!(refused(Bind { region: Key::new(1), ..good }), RefusalCause::UnknownKey);
    assert_eq!(refused(Bind { window: region.key, new_key: region.key, ..good }), RefusalCause::UnknownKey);
    // Of a key that the program chose only the lowest byte counts.
    let chosen = Key::new(0xabcd_ef00 | good.new_key.value() & 0xff);
    memory.bind(LOCAL, &Bind { new_key: chosen, ..bind(&read_only, Access::REMOTE_READ) }).unwrap();
    let bound = Bind { window: good.new_key, ..good };
    assert_eq!(cause(memory.bind(LOCAL, &bound)), RefusalCause::WrongKind, "it is not free");
}
