//! Memory windows: what they open, to whom, and how they are bound, moved and taken away.

use crate::harness::{ALL, Buffer, LOCAL, OTHER, PD, REMOTE, STRANGER, cause, register, window};
use memory::{Access, Atomic, Bind, Change, Error, Key, Limits, Memory, Qpn, Range, RefusalCause, RegionSpec, Subject};
use memory::{Translation, WindowType};

const READ: Access = Access::REMOTE_READ;
const ELSEWHERE: Subject = Subject { qpn: Qpn::new(0x12), ..REMOTE };

struct Bound {
    memory: Memory,
    buffer: Buffer,
    region: Key,
    key: Key,
}

/// A window over bytes 8 to 24 of a region of 32.
fn bound(kind: WindowType, access: Access) -> Bound {
    let memory = Memory::new();
    let buffer = Buffer::of(&(0..32).collect::<Vec<u8>>());
    let region = buffer.register(&memory, ALL);
    let key = window(&memory, kind, region, buffer.address() + 8, 16, access);
    Bound { memory, buffer, region, key }
}

#[test]
fn a_window_opens_its_part_of_a_region_and_no_more() {
    for kind in [WindowType::Type1, WindowType::Type2] {
        let Bound { memory, buffer, key, .. } = bound(kind, READ);
        let mut out = [0; 16];
        memory.read(REMOTE, key, buffer.address() + 8, &mut out).unwrap();
        assert_eq!((out[0], out[15]), (8, 23));
        let at = |offset, length| buffer.range(key, offset, length);
        let bounds = RefusalCause::OutOfBounds { start: buffer.address() + 8, length: 16 };
        assert_eq!(cause(memory.check(REMOTE, at(7, 1), READ)), bounds);
        assert_eq!(cause(memory.check(REMOTE, at(8, 17), READ)), bounds);
        assert_eq!(cause(memory.check(REMOTE, at(24, 1), READ)), bounds);
        assert_eq!(cause(memory.check(REMOTE, at(8, 1), Access::REMOTE_WRITE)), RefusalCause::NotPermitted);
        assert_eq!(cause(memory.check(LOCAL, at(8, 1), Access::empty())), RefusalCause::WrongKind, "no L_Key");
        assert_eq!(cause(memory.check(STRANGER, at(8, 1), READ)), RefusalCause::WrongProtectionDomain);
        let old = Key::new(key.value() - 1);
        assert_eq!(cause(memory.check(REMOTE, buffer.range(old, 8, 1), READ)), RefusalCause::UnknownKey);
    }
}

#[test]
fn a_window_may_grant_what_its_region_does_not() {
    // Rights of peers come from the window alone; the region has to let the owner write and be bound (IBA C10-74).
    let (memory, buffer) = (Memory::new(), Buffer::new(16));
    let region = buffer.register(&memory, Access::LOCAL_WRITE | Access::MW_BIND);
    let rights = Access::REMOTE_WRITE | READ | Access::REMOTE_ATOMIC;
    let key = window(&memory, WindowType::Type1, region, buffer.address(), 16, rights);
    memory.write(REMOTE, key, buffer.address(), b"through").unwrap();
    memory.atomic(REMOTE, key, buffer.address() + 8, Atomic::FetchAdd { add: 5 }).unwrap();
    assert_eq!(cause(memory.write(REMOTE, region, buffer.address(), b"around")), RefusalCause::NotPermitted);
    assert_eq!(&buffer.bytes()[..7], b"through");
}

#[test]
fn a_zero_based_window_counts_from_its_start() {
    let Bound { memory, key, buffer: _buffer, .. } = bound(WindowType::Type1, READ | Access::ZERO_BASED);
    let mut out = [0; 2];
    memory.read(REMOTE, key, 14, &mut out).unwrap();
    assert_eq!(out, [22, 23]);
    assert_eq!(cause(memory.read(REMOTE, key, 15, &mut out)), RefusalCause::OutOfBounds { start: 0, length: 16 });
}

#[test]
fn a_window_sees_addresses_as_its_region_does() {
    let (memory, buffer) = (Memory::new(), Buffer::of(b"0123456789abcdef"));
    let translation = Translation { iova: Some(0x7000), ..buffer.translation() };
    let region = register(&memory, &RegionSpec { translation, ..buffer.spec(ALL) }).unwrap();
    let key = window(&memory, WindowType::Type2, region, 0x7004, 4, READ);
    let mut out = [0; 3];
    memory.read(REMOTE, key, 0x7005, &mut out).unwrap();
    assert_eq!(&out, b"567");
}

#[test]
fn a_type_2_window_belongs_to_its_queue_pair_and_a_type_1_to_all() {
    let Bound { memory, buffer, key, .. } = bound(WindowType::Type2, READ);
    assert_eq!(cause(memory.check(ELSEWHERE, buffer.range(key, 8, 1), READ)), RefusalCause::WrongQueuePair);
    let Bound { memory, buffer, key, .. } = bound(WindowType::Type1, READ);
    memory.check(ELSEWHERE, buffer.range(key, 8, 1), READ).unwrap();
}

#[test]
fn a_window_starts_unbound() {
    for kind in [WindowType::Type1, WindowType::Type2] {
        let memory = Memory::new();
        let key = memory.allocate_window(PD, kind).unwrap();
        let range = Range { key, address: 0, length: 1 };
        assert_eq!(cause(memory.check(REMOTE, range, READ)), RefusalCause::WindowUnbound);
        assert_eq!(cause(memory.read(REMOTE, key, 0, &mut [0])), RefusalCause::WindowUnbound);
        let never = if kind == WindowType::Type1 { RefusalCause::WrongKind } else { RefusalCause::WindowUnbound };
        assert_eq!(cause(memory.invalidate(LOCAL, key)), never);
        memory.free_window(key).unwrap();
        assert_eq!(cause(memory.check(REMOTE, range, READ)), RefusalCause::UnknownKey);
    }
}

#[test]
fn invalidating_frees_a_type_2_window_and_nothing_else() {
    for subject in [LOCAL, REMOTE] {
        let Bound { memory, buffer, region, key } = bound(WindowType::Type2, READ);
        let bytes = buffer.range(key, 8, 1);
        assert_eq!(cause(memory.invalidate(ELSEWHERE, key)), RefusalCause::WrongQueuePair);
        assert_eq!(cause(memory.invalidate(STRANGER, key)), RefusalCause::WrongProtectionDomain);
        assert_eq!(cause(memory.invalidate(subject, Key::new(key.value() ^ 1))), RefusalCause::UnknownKey);
        memory.check(REMOTE, bytes, READ).unwrap();
        memory.invalidate(subject, key).unwrap();
        assert_eq!(cause(memory.check(REMOTE, bytes, READ)), RefusalCause::Invalidated);
        assert_eq!(cause(memory.invalidate(subject, key)), RefusalCause::Invalidated);
        // Free to be bound again, by another queue pair.
        let again = Bind {
            window: key,
            new_key: key.next(),
            region,
            address: buffer.address(),
            length: 32,
            access: Access::REMOTE_WRITE,
        };
        memory.bind(ELSEWHERE, &again).unwrap();
        memory.check(ELSEWHERE, buffer.range(key.next(), 0, 32), Access::REMOTE_WRITE).unwrap();
        assert_eq!(cause(memory.check(REMOTE, bytes, READ)), RefusalCause::UnknownKey);
    }
    let Bound { memory, region, key, .. } = bound(WindowType::Type1, READ);
    assert_eq!(cause(memory.invalidate(LOCAL, key)), RefusalCause::WrongKind);
    assert_eq!(cause(memory.invalidate(LOCAL, region)), RefusalCause::WrongKind);
    assert_eq!(cause(memory.invalidate(STRANGER, region)), RefusalCause::WrongProtectionDomain);
}

#[test]
fn a_type_1_window_moves_with_every_bind_and_is_unbound_by_an_empty_one() {
    let Bound { memory, buffer, region, key } = bound(WindowType::Type1, READ);
    let other = Buffer::of(&[9; 8]);
    let second = other.register(&memory, Access::MW_BIND);
    let bind = |window: Key, region, address, length| {
        memory.bind(LOCAL, &Bind { window, new_key: window.next(), region, address, length, access: READ })
    };
    bind(key, second, other.address(), 8).unwrap();
    assert_eq!(cause(memory.check(REMOTE, buffer.range(key, 8, 1), READ)), RefusalCause::UnknownKey);
    memory.check(REMOTE, other.range(key.next(), 0, 8), READ).unwrap();
    memory.deregister(region).unwrap();
    assert_eq!(memory.deregister(second), Err(Error::WindowsBound { key: second, windows: 1 }));
    assert_eq!(cause(bind(key, second, other.address(), 0)), RefusalCause::UnknownKey, "that key is past");
    bind(key.next(), second, other.address(), 0).unwrap();
    let key = key.next().next();
    assert_eq!(cause(memory.check(REMOTE, other.range(key, 0, 1), READ)), RefusalCause::WindowUnbound);
    memory.deregister(second).unwrap();
    let same = Bind { window: key, new_key: key, region: second, address: 0, length: 0, access: READ };
    assert_eq!(cause(memory.bind(LOCAL, &same)), RefusalCause::WrongKind, "the key has to change");
    memory.bind(LOCAL, &Bind { new_key: key.next(), ..same }).unwrap();
}

#[test]
fn a_region_stays_while_windows_are_bound_to_it() {
    let Bound { memory, buffer, region, key } = bound(WindowType::Type2, READ);
    let second = window(&memory, WindowType::Type1, region, buffer.address(), 1, READ);
    let busy = Error::WindowsBound { key: region, windows: 2 };
    assert_eq!((memory.deregister(region), busy.errno()), (Err(busy), libc::EBUSY));
    let change = Change { access: Some(ALL), ..Change::default() };
    // SAFETY: nothing changes.
    assert_eq!(unsafe { memory.reregister(region, &change) }, Err(busy));
    memory.invalidate(LOCAL, key).unwrap();
    assert_eq!(memory.deregister(region), Err(Error::WindowsBound { key: region, windows: 1 }));
    memory.free_window(second).unwrap();
    memory.deregister(region).unwrap();
    assert_eq!(memory.free_window(key), Ok(()));
    assert_eq!(memory.usage(), memory::Usage::default());
}

#[test]
fn kinds_of_keys_are_not_mixed_up() {
    let Bound { memory, region, key, .. } = bound(WindowType::Type1, READ);
    assert_eq!(memory.free_window(region), Err(Error::WrongKind { key: region }));
    assert_eq!(memory.deregister(key), Err(Error::WrongKind { key }));
    assert_eq!(memory.free_window(Key::new(0)), Err(Error::UnknownKey { key: Key::new(0) }));
    memory.free_window(key).unwrap();
    assert_eq!(memory.free_window(key), Err(Error::UnknownKey { key }));
}

#[test]
fn a_bind_that_would_open_too_much_is_refused_and_changes_nothing() {
    let memory = Memory::new();
    let buffer = Buffer::new(32);
    let region = buffer.register(&memory, ALL);
    let read_only = buffer.register(&memory, Access::MW_BIND);
    let closed = buffer.register(&memory, ALL - Access::MW_BIND);
    let zero = buffer.register(&memory, ALL | Access::ZERO_BASED);
    let foreign = register(&memory, &RegionSpec { domain: OTHER, ..buffer.spec(ALL) }).unwrap();
    let window = memory.allocate_window(PD, WindowType::Type2).unwrap();
    let bind =
        |region, access| Bind { window, new_key: window.next(), region, address: buffer.address(), length: 32, access };
    let good = bind(region, READ);
    let refused = |bind: Bind| cause(memory.bind(LOCAL, &bind));
    assert_eq!(refused(bind(closed, READ)), RefusalCause::NotPermitted);
    assert_eq!(refused(bind(read_only, Access::REMOTE_WRITE)), RefusalCause::NotPermitted);
    assert_eq!(refused(bind(read_only, Access::REMOTE_ATOMIC)), RefusalCause::NotPermitted);
    assert_eq!(refused(Bind { address: 0, ..bind(zero, READ) }), RefusalCause::WrongKind);
    assert_eq!(refused(bind(foreign, READ)), RefusalCause::WrongProtectionDomain);
    let bounds = RefusalCause::OutOfBounds { start: buffer.address(), length: 32 };
    assert_eq!(refused(Bind { length: 33, ..good }), bounds);
    assert_eq!(refused(Bind { address: good.address + 1, ..good }), bounds);
    assert_eq!(refused(Bind { length: u64::MAX, ..good }), bounds);
    assert_eq!(refused(Bind { length: 0, ..good }), RefusalCause::WrongKind);
    assert_eq!(refused(Bind { region: Key::new(1), ..good }), RefusalCause::UnknownKey);
    assert_eq!(refused(Bind { region: window, ..good }), RefusalCause::UnknownKey);
    assert_eq!(refused(Bind { window: region, new_key: region, ..good }), RefusalCause::UnknownKey);
    assert_eq!(cause(memory.bind(STRANGER, &good)), RefusalCause::WrongProtectionDomain);
    for key in [region, read_only, closed, zero] {
        assert_eq!(
            cause(memory.check(REMOTE, Range { key: window, address: 0, length: 1 }, READ)),
            RefusalCause::WindowUnbound
        );
        if key != region && key != read_only {
            memory.deregister(key).unwrap();
        }
    }
    // Of a key that the program chose only the lowest byte counts.
    let chosen = Key::new(!window.value() & !0xff | good.new_key.value() & 0xff);
    memory.bind(LOCAL, &Bind { new_key: chosen, ..bind(read_only, READ) }).unwrap();
    memory.check(REMOTE, Range { key: good.new_key, address: good.address, length: 1 }, READ).unwrap();
    let bound = Bind { window: good.new_key, new_key: good.new_key.next(), ..good };
    assert_eq!(refused(bound), RefusalCause::WrongKind, "it is not free");
    memory.deregister(region).unwrap();
}

#[test]
fn windows_go_with_their_queue_pair() {
    let Bound { memory, buffer, region, key } = bound(WindowType::Type2, READ);
    let free = memory.allocate_window(PD, WindowType::Type2).unwrap();
    let bind = Bind { window: free, new_key: free.next(), region, address: buffer.address(), length: 8, access: READ };
    memory.bind(ELSEWHERE, &bind).unwrap();
    let lasting = window(&memory, WindowType::Type1, region, buffer.address(), 8, READ);
    memory.release_queue_pair(REMOTE.qpn);
    assert_eq!(cause(memory.check(REMOTE, buffer.range(key, 8, 1), READ)), RefusalCause::Invalidated);
    memory.check(ELSEWHERE, buffer.range(bind.new_key, 0, 8), READ).unwrap();
    memory.check(REMOTE, buffer.range(lasting, 0, 8), READ).unwrap();
    assert_eq!(memory.deregister(region), Err(Error::WindowsBound { key: region, windows: 2 }));
    memory.release_queue_pair(ELSEWHERE.qpn);
    memory.release_queue_pair(ELSEWHERE.qpn);
    memory.free_window(lasting).unwrap();
    memory.deregister(region).unwrap();
}

#[test]
fn the_limit_of_windows_is_an_error() {
    let memory = Memory::with_limits(Limits { windows: 2, ..Limits::default() });
    let first = memory.allocate_window(PD, WindowType::Type1).unwrap();
    memory.allocate_window(PD, WindowType::Type2).unwrap();
    let refused = memory.allocate_window(PD, WindowType::Type1).unwrap_err();
    assert_eq!((refused, refused.errno()), (Error::TooManyWindows { limit: 2 }, libc::ENOMEM));
    memory.free_window(first).unwrap();
    memory.allocate_window(PD, WindowType::Type1).unwrap();
}

#[test]
fn a_window_is_found_by_every_key_it_had() {
    let memory = memory::Memory::new();
    let first = memory.allocate_window(memory::ProtectionDomain(1), WindowType::Type1).unwrap();
    let mut buffer = [0u8; 64];
    let translation = memory::Translation::new(buffer.as_mut_ptr(), buffer.len());
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let spec = memory::RegionSpec { translation, domain: memory::ProtectionDomain(1), access };
    // SAFETY: the buffer is used by nobody else until the region is gone.
    let region = unsafe { memory.register(&spec) }.unwrap();
    assert_eq!(memory.window_key(first), Some(first));
    assert_eq!(memory.window_key(region), None, "a region is no window");
    let subject = memory::Subject { pd: memory::ProtectionDomain(1), qpn: memory::Qpn::new(7), remote: false };
    let (address, length) = (buffer.as_ptr().addr() as u64, 64);
    let next = first.next();
    let bind = memory::Bind { window: first, new_key: next, region, address, length, access: Access::REMOTE_READ };
    memory.bind(subject, &bind).unwrap();
    assert_eq!((memory.window_key(first), memory.window_key(next)), (Some(next), Some(next)));
    memory.free_window(next).unwrap();
    assert_eq!(memory.window_key(first), None);
    memory.deregister(region).unwrap();
}
