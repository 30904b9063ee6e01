//! Device memory: so much and no more, copied in fours, registered from zero, and kept while it is.

use crate::harness::{ALL, LOCAL, OTHER, PD, REMOTE, STRANGER, cause};
use memory::{Access, Atomic, Change, DeviceMemory, Error, Limits, Memory, RefusalCause, Translation};

const ACCESS: Access = ALL.union(Access::ZERO_BASED);

fn limited(device_memory: u64) -> Memory {
    Memory::with_limits(Limits { device_memory, ..Limits::default() })
}

#[test]
fn what_is_copied_in_comes_out() {
    let memory = Memory::new();
    let device = memory.allocate_device(100, 0).unwrap();
    let mut out = [7; 100];
    memory.read_device(device, 0, &mut out).unwrap();
    assert_eq!(out, [0; 100], "it starts as zeros");
    memory.write_device(device, 8, b"twelve bytes").unwrap();
    memory.read_device(device, 4, &mut out[..20]).unwrap();
    assert_eq!(&out[..20], b"\0\0\0\0twelve bytes\0\0\0\0");
    memory.write_device(device, 100, &[]).unwrap();
}

#[test]
fn copies_are_in_fours_and_inside() {
    let memory = Memory::new();
    let device = memory.allocate_device(100, 0).unwrap();
    let attempt = |offset, length: usize| {
        let into = memory.write_device(device, offset, &vec![1; length]);
        assert_eq!(memory.read_device(device, offset, &mut vec![0; length]), into);
        into
    };
    for (offset, length) in [(3, 4), (4, 3), (1, 1), (2, 2), (u64::MAX, 4)] {
        let refused = attempt(offset, length).unwrap_err();
        assert_eq!(
            (refused, refused.errno()),
            (Error::DeviceMemoryMisaligned { offset, length: length as u64 }, libc::EINVAL)
        );
    }
    for (offset, length) in [(104, 4), (0, 104), (100, 4), (96, 8), (u64::MAX - 3, 8)] {
        let refused = attempt(offset, length).unwrap_err();
        let bounds = Error::DeviceMemoryBounds { offset, length: length as u64, size: 100 };
        assert_eq!((refused, refused.errno()), (bounds, libc::EINVAL));
    }
    attempt(96, 4).unwrap();
    attempt(0, 100).unwrap();
}

#[test]
fn there_is_only_so_much() {
    let memory = limited(100);
    let first = memory.allocate_device(60, 0).unwrap();
    let refused = memory.allocate_device(41, 0).unwrap_err();
    assert_eq!((refused, refused.errno()), (Error::DeviceMemoryExhausted { length: 41, left: 40 }, libc::ENOMEM));
    let second = memory.allocate_device(40, 0).unwrap();
    assert_eq!(memory.usage().device_memory, 100);
    memory.free_device(first).unwrap();
    assert_eq!(memory.free_device(first), Err(Error::UnknownDeviceMemory));
    let third = memory.allocate_device(60, 0).unwrap();
    assert!(third != first && third != second);
    assert_eq!(memory.allocate_device(0, 0), Err(Error::Empty));
    assert!(limited(0).allocate_device(1, 0).is_err());
    assert!(matches!(Memory::new().allocate_device(usize::MAX, 0), Err(Error::DeviceMemoryExhausted { .. })));
    assert_eq!(memory.read_device(DeviceMemory(77), 0, &mut []), Err(Error::UnknownDeviceMemory));
}

#[test]
fn alignment_is_granted_up_to_two_megabytes() {
    let memory = Memory::new();
    for log in [0, 3, 6, 12, 21] {
        let device = memory.allocate_device(64, log).unwrap();
        let key = memory.register_device(device, 0, 64, PD, ACCESS).unwrap();
        let guard = memory.lend(LOCAL, memory::Range { key, address: 0, length: 64 }, Access::LOCAL_WRITE).unwrap();
        assert!(guard.as_ptr().addr().is_multiple_of(1 << log));
        drop(guard);
        memory.deregister(key).unwrap();
        memory.free_device(device).unwrap();
    }
    for log in [22, 31, 32, 64, u32::MAX] {
        assert_eq!(memory.allocate_device(64, log), Err(Error::DeviceMemoryAlignment { log }));
    }
}

#[test]
fn a_part_of_it_is_a_region_from_zero() {
    let memory = Memory::new();
    let device = memory.allocate_device(100, 3).unwrap();
    memory.write_device(device, 0, &(0..100).collect::<Vec<u8>>()).unwrap();
    let key = memory.register_device(device, 40, 24, PD, ACCESS).unwrap();
    let mut out = [0; 24];
    memory.read(REMOTE, key, 0, &mut out).unwrap();
    assert_eq!((out[0], out[23]), (40, 63));
    assert_eq!(cause(memory.read(REMOTE, key, 1, &mut out)), RefusalCause::OutOfBounds { start: 0, length: 24 });
    memory.write(REMOTE, key, 2, b"ab").unwrap();
    memory.atomic(REMOTE, key, 8, Atomic::Write { bytes: [9; 8] }).unwrap();
    let mut out = [0; 16];
    memory.read_device(device, 40, &mut out).unwrap();
    assert_eq!(out, [40, 41, b'a', b'b', 44, 45, 46, 47, 9, 9, 9, 9, 9, 9, 9, 9]);
    assert_eq!(cause(memory.read(STRANGER, key, 0, &mut out)), RefusalCause::WrongProtectionDomain);
}

#[test]
fn a_region_over_it_keeps_the_rules() {
    let memory = Memory::new();
    let device = memory.allocate_device(100, 0).unwrap();
    let register = |offset, length, access| memory.register_device(device, offset, length, PD, access);
    assert!(matches!(register(0, 104, ACCESS), Err(Error::DeviceMemoryBounds { .. })));
    assert!(matches!(register(4, 100, ACCESS), Err(Error::DeviceMemoryBounds { .. })));
    assert_eq!(register(0, 100, ALL), Err(Error::ZeroBasedMissing), "it counts from zero");
    assert!(matches!(register(0, 100, ACCESS | Access::ON_DEMAND), Err(Error::Rights { .. })));
    assert_eq!(register(0, 100, Access::ZERO_BASED | Access::REMOTE_WRITE), Err(Error::LocalWriteMissing));
    let empty = register(100, 0, ACCESS).unwrap();
    assert_eq!(cause(memory.read(LOCAL, empty, 0, &mut [0])), RefusalCause::OutOfBounds { start: 0, length: 0 });
    let key = register(0, 100, ACCESS).unwrap();
    let change = |change: Change| {
        // SAFETY: no memory of the program is involved.
        unsafe { memory.reregister(key, &change) }
    };
    let elsewhere = Translation::new(std::ptr::dangling_mut(), 8);
    assert_eq!(change(Change { translation: Some(elsewhere), ..Change::default() }), Err(Error::WrongKind { key }));
    assert_eq!(change(Change { access: Some(ALL), ..Change::default() }), Err(Error::ZeroBasedMissing));
    change(Change { domain: Some(OTHER), access: Some(Access::ZERO_BASED | Access::REMOTE_READ), ..Change::default() })
        .unwrap();
    memory.read(STRANGER, key, 0, &mut [0; 100]).unwrap();
    assert_eq!(cause(memory.write(STRANGER, key, 0, &[0])), RefusalCause::NotPermitted);
}

#[test]
fn it_is_kept_while_registered() {
    let memory = Memory::new();
    let device = memory.allocate_device(100, 0).unwrap();
    let keys = [0, 4].map(|offset| memory.register_device(device, offset, 96, PD, ACCESS).unwrap());
    let busy = Error::DeviceMemoryInUse { regions: 2 };
    assert_eq!((memory.free_device(device), busy.errno()), (Err(busy), libc::EBUSY));
    memory.deregister(keys[0]).unwrap();
    assert_eq!(memory.free_device(device), Err(Error::DeviceMemoryInUse { regions: 1 }));
    memory.read(LOCAL, keys[1], 0, &mut [0; 96]).unwrap();
    memory.deregister(keys[1]).unwrap();
    memory.free_device(device).unwrap();
    assert_eq!(memory.register_device(device, 0, 4, PD, ACCESS), Err(Error::UnknownDeviceMemory));
    assert_eq!(memory.usage(), memory::Usage::default());
}
