//! Memory of a GPU, on the stand-in for its driver: the processor cannot touch it, so what works here touches it
//! through the driver, and what the driver refuses is refused.
#![cfg(not(miri))]

mod harness;

use std::time::{Duration, Instant};

use harness::stand_in::StandIn;
use harness::{ALL, Buffer, LOCAL, PD, REMOTE, STRANGER, cause};
use memory::{
    Access, Atomic, Bind, Change, Error, Key, Memory, Range, RefusalCause, RegionSpec, Translation, WindowType,
};

fn pointer(address: u64) -> *mut u8 {
    std::ptr::without_provenance_mut(address as usize)
}

fn register(memory: &Memory, address: u64, length: usize, access: Access) -> Result<Key, Error> {
    let spec = RegionSpec { translation: Translation::new(pointer(address), length), domain: PD, access };
    // SAFETY: memory of the stand-in, which no code of the process touches.
    unsafe { memory.register(&spec) }
}

#[test]
fn bytes_go_in_and_out_through_the_driver() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(10_000);
    let key = register(&memory, address, 10_000, ALL).unwrap();
    let bytes: Vec<u8> = (0..9_000u32).map(|i| (i % 251) as u8).collect();
    memory.write(REMOTE, key, address + 500, &bytes).unwrap();
    assert_eq!(gpu.bytes(address + 500, 9_000), bytes, "a kernel sees it when the access is over");
    gpu.put(address, b"from a kernel");
    let mut out = [0; 13];
    memory.read(LOCAL, key, address, &mut out).unwrap();
    assert_eq!(&out, b"from a kernel");
    memory.check(REMOTE, Range { key, address, length: 10_000 }, Access::REMOTE_WRITE).unwrap();
    assert_eq!(cause(memory.read(STRANGER, key, address, &mut out)), RefusalCause::WrongProtectionDomain);
    let outside = RefusalCause::OutOfBounds { start: address, length: 10_000 };
    assert_eq!(cause(memory.write(REMOTE, key, address + 9_999, b"xy")), outside);
    let waited = gpu.calls("cuStreamSynchronize");
    memory.write(REMOTE, key, address, &[]).unwrap();
    assert_eq!(gpu.calls("cuStreamSynchronize"), waited, "nothing to copy");
    assert!(memory::is_in_gpu_region(address + 9_999, 1) && !memory::is_in_gpu_region(address + 10_000, 1));
    memory.deregister(key).unwrap();
    assert!(!memory::is_in_gpu_region(address, 10_000));
    gpu.free(address);
}

#[test]
fn it_is_not_lent_and_does_not_outlast_the_process() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    let flushed = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
    let key = register(&memory, address, 4096, ALL | flushed).unwrap();
    let range = Range { key, address, length: 64 };
    assert_eq!(memory.lend(LOCAL, range, Access::empty()).unwrap_err().cause, RefusalCause::WrongKind);
    memory.flush(REMOTE, range, Access::FLUSH_GLOBAL).unwrap();
    assert_eq!(cause(memory.flush(REMOTE, range, flushed)), RefusalCause::WrongKind);
    memory.deregister(key).unwrap();
}

#[test]
fn atomic_operations_do_not_lose_one_another() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(64);
    let key = register(&memory, address, 64, ALL).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    memory.atomic(REMOTE, key, address + 8, Atomic::FetchAdd { add: 3 }).unwrap();
                }
            });
        }
    });
    let swap = |compare| memory.atomic(REMOTE, key, address + 8, Atomic::CompareSwap { compare, swap: 7 });
    assert_eq!(swap(1199), Ok(1200));
    assert_eq!(swap(1200), Ok(1200));
    assert_eq!(gpu.bytes(address + 8, 8), 7u64.to_ne_bytes());
    let written = Atomic::Write { bytes: *b"eight by" };
    assert_eq!(memory.atomic(REMOTE, key, address + 8, written), Ok(7));
    assert_eq!(gpu.bytes(address + 8, 8), b"eight by");
    assert_eq!(memory.atomic(REMOTE, key, address + 9, written).unwrap_err().cause, RefusalCause::Misaligned);
}

#[test]
fn windows_iova_and_zero_based_regions_reach_the_same_bytes() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    let translation = Translation { address: pointer(address), length: 4096, iova: Some(0x1000) };
    // SAFETY: memory of the stand-in.
    let key = unsafe { memory.register(&RegionSpec { translation, domain: PD, access: ALL }) }.unwrap();
    memory.write(LOCAL, key, 0x1010, b"by iova").unwrap();
    let window = memory.allocate_window(PD, WindowType::Type1).unwrap();
    let access = Access::REMOTE_WRITE;
    let bind = Bind { window, new_key: window.next(), region: key, address: 0x1100, length: 16, access };
    memory.bind(LOCAL, &bind).unwrap();
    memory.write(REMOTE, bind.bound_key(), 0x1104, b"through").unwrap();
    let zero = register(&memory, address, 4096, ALL | Access::ZERO_BASED).unwrap();
    memory.write(REMOTE, zero, 8, b"from 0").unwrap();
    assert_eq!(gpu.bytes(address + 16, 7), b"by iova");
    assert_eq!(gpu.bytes(address + 0x104, 7), b"through");
    assert_eq!(gpu.bytes(address + 8, 6), b"from 0");
}

#[test]
fn a_region_moves_between_kinds_of_memory() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    let buffer = Buffer::new(4096);
    let key = register(&memory, buffer.address(), 4096, ALL).unwrap();
    let moved = |address| Change { translation: Some(Translation::new(pointer(address), 4096)), ..Change::default() };
    // SAFETY: memory of the stand-in, then a buffer that is only touched by atomics.
    unsafe {
        memory.reregister(key, &moved(address)).unwrap();
        memory.write(REMOTE, key, address, b"GPU").unwrap();
        assert!(memory::is_in_gpu_region(address, 1));
        memory.reregister(key, &moved(buffer.address())).unwrap();
    }
    assert!(!memory::is_in_gpu_region(address, 1));
    memory.write(REMOTE, key, buffer.address(), b"host").unwrap();
    assert_eq!(gpu.bytes(address, 3), b"GPU");
    memory.deregister(key).unwrap();
}

#[test]
fn a_range_may_end_on_the_last_page_of_an_allocation() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(65_544);
    let key = register(&memory, address, 65_552, ALL).unwrap();
    memory.write(REMOTE, key, address + 65_541, b"end").unwrap();
    assert_eq!(gpu.bytes(address + 65_541, 3), b"end");
    let refused = memory.write(REMOTE, key, address + 65_541, b"past").unwrap_err();
    assert!(matches!(refused.cause, RefusalCause::GpuFailed { .. }), "{refused:?}");
    register(&memory, address, 17 * 4096, ALL).unwrap();
    assert_eq!(register(&memory, address, 17 * 4096 + 1, ALL).unwrap_err().errno(), libc::EFAULT);
}

#[test]
fn what_is_no_memory_of_a_gpu_is_not_registered_as_such() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    let past = register(&memory, address + 4000, 97, ALL).unwrap_err();
    assert_eq!((past, past.errno()), (Error::GpuRange { address: address + 4000, length: 97 }, libc::EFAULT));
    register(&memory, address + 4000, 96, ALL).unwrap();
    gpu.free(address);
    assert_eq!(register(&memory, address, 4096, ALL).unwrap_err().errno(), libc::EFAULT, "freed");
    let address = gpu.allocate(4096);
    gpu.fail("cuPointerGetAttributes", 0, 999);
    let refused = register(&memory, address, 4096, ALL).unwrap_err().errno();
    gpu.fail("cuPointerGetAttributes", 0, 0);
    assert_eq!(refused, libc::EFAULT, "a driver that does not answer");
    // Memory of the processor is what it was.
    let buffer = Buffer::new(64);
    let key = register(&memory, buffer.address(), 64, ALL).unwrap();
    memory.write(REMOTE, key, buffer.address(), b"host").unwrap();
    memory.deregister(key).unwrap();
}

#[test]
fn a_driver_that_fails_refuses_the_access_and_nothing_else() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    let key = register(&memory, address, 4096, ALL).unwrap();
    let failed = |error| RefusalCause::GpuFailed { error };
    let mut out = [0; 8];
    memory.read(LOCAL, key, address, &mut out).unwrap();
    for (call, error) in [("cuCtxPushCurrent_v2", 709), ("cuMemcpyDtoHAsync_v2", 1), ("cuStreamSynchronize", 700)] {
        gpu.fail(call, 0, error);
        assert_eq!(cause(memory.read(LOCAL, key, address, &mut out)), failed(error), "{call}");
        gpu.fail(call, 0, 0);
        memory.read(LOCAL, key, address, &mut out).unwrap();
    }
    gpu.fail("cuMemcpyHtoDAsync_v2", 0, 700);
    assert_eq!(cause(memory.write(REMOTE, key, address, &out)), failed(700));
    assert_eq!(
        memory.atomic(REMOTE, key, address, Atomic::FetchAdd { add: 1 }).unwrap_err().cause,
        failed(700),
        "read and not written"
    );
    gpu.fail("cuMemcpyHtoDAsync_v2", 0, 0);
    memory.write(REMOTE, key, address, &out).unwrap();
    memory.deregister(key).unwrap();
}

/// As when `cudaFree` waits in the driver for a kernel that waits for this write.
#[test]
fn a_driver_that_does_not_return_refuses_the_access_in_time() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let (address, late) = (gpu.allocate(4096), RefusalCause::GpuFailed { error: 909 });
    let key = register(&memory, address, 4096, ALL).unwrap();
    memory.write(REMOTE, key, address, b"before").unwrap();
    memory::set_gpu_patience(Duration::from_millis(50));
    for call in ["cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuPointerGetAttributes"] {
        gpu.hold(call, true);
        // More than there are threads for it: the others are refused too, and none hangs.
        for _ in 0..10 {
            assert_eq!(cause(memory.write(REMOTE, key, address, b"late")), late, "{call}");
        }
        gpu.hold(call, false);
    }
    memory::set_gpu_patience(Duration::from_secs(30));
    // The calls that were held end when they can; then everything is as before.
    memory.write(REMOTE, key, address, b"after!").unwrap();
    let mut out = [0; 6];
    memory.read(LOCAL, key, address, &mut out).unwrap();
    assert!(out == *b"after!" || out == *b"later!", "{out:?}");
    memory.deregister(key).unwrap();
}

/// The thread that waits for the driver may have the right to all locks, and its call must not want one.
#[test]
fn a_thread_with_the_right_to_all_locks_does_not_wait_for_itself() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    let key = register(&memory, address, 4096, ALL).unwrap();
    memory::set_gpu_patience(Duration::from_secs(5));
    for _ in 0..1000 {
        drop(latch::alone());
    }
    let right = latch::alone();
    assert!(latch::is_alone());
    memory.write(REMOTE, key, address, b"alone").unwrap();
    for (call, error) in [("cuMemcpyHtoDAsync_v2", 1), ("cuStreamSynchronize", 700)] {
        gpu.fail(call, 0, error);
        let refused = cause(memory.write(REMOTE, key, address, b"fails"));
        gpu.fail(call, 0, 0);
        assert_eq!(refused, RefusalCause::GpuFailed { error }, "{call}");
    }
    memory.write(REMOTE, key, address, b"again").unwrap();
    drop(right);
    memory::set_gpu_patience(Duration::from_secs(30));
}

/// As behind a copy of the program that waits for a kernel which waits for this write.
#[test]
fn work_of_the_program_is_not_waited_for() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    let key = register(&memory, address, 4096, ALL).unwrap();
    gpu.hold_program(true);
    memory.write(REMOTE, key, address, b"meanwhile").unwrap();
    let mut out = [0; 9];
    memory.read(LOCAL, key, address, &mut out).unwrap();
    gpu.hold_program(false);
    assert_eq!(&out, b"meanwhile");
}

#[test]
fn a_context_that_an_error_has_broken_is_made_anew() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    let key = register(&memory, address, 4096, ALL).unwrap();
    let (made, ended) = (gpu.calls("cuCtxCreate_v2"), gpu.calls("cuCtxDestroy_v2"));
    gpu.fail("cuStreamSynchronize", 0, 700);
    assert_eq!(cause(memory.write(REMOTE, key, address, b"lost")), RefusalCause::GpuFailed { error: 700 });
    gpu.fail("cuStreamSynchronize", 0, 0);
    // There is no room for the streams of the next.
    gpu.fail("cuStreamCreate", 3, 2);
    let refused = register(&memory, address, 4096, ALL).unwrap_err();
    gpu.fail("cuStreamCreate", 0, 0);
    assert_eq!((refused, refused.errno()), (Error::GpuDriver { error: 2 }, libc::EFAULT));
    memory.write(REMOTE, key, address, b"it goes on").unwrap();
    assert_eq!(gpu.bytes(address, 10), b"it goes on");
    assert_eq!(gpu.calls("cuCtxCreate_v2"), made + 2);
    let begun = Instant::now();
    while gpu.calls("cuCtxDestroy_v2") < ended + 2 {
        assert!(begun.elapsed() < Duration::from_secs(10), "what is not used any more is given back");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_freed_or_destroyed_under_a_region_is_refused() {
    let (mut gpu, memory) = (StandIn::new(), Memory::new());
    let (first, second) = (gpu.allocate(4096), gpu.allocate(4096));
    let key = register(&memory, first, 4096, ALL).unwrap();
    let other = register(&memory, second, 4096, ALL).unwrap();
    gpu.free(first);
    let freed = cause(memory.write(REMOTE, key, first, b"gone"));
    assert!(matches!(freed, RefusalCause::GpuFailed { .. }), "{freed}");
    memory.write(REMOTE, other, second, b"here").unwrap();
    gpu.destroy_context();
    for attempt in [memory.write(REMOTE, other, second, b"gone"), memory.read(LOCAL, key, first, &mut [0; 8])] {
        assert!(matches!(cause(attempt), RefusalCause::GpuFailed { .. }));
    }
    memory.deregister(key).unwrap();
    memory.deregister(other).unwrap();
    drop(gpu);
    // A context that comes to lie in the same place is another.
    let gpu = StandIn::new();
    let address = gpu.allocate(4096);
    let key = register(&memory, address, 4096, ALL).unwrap();
    memory.write(REMOTE, key, address, b"new").unwrap();
    assert_eq!(gpu.bytes(address, 3), b"new");
}

#[test]
fn a_name_that_another_process_made_up_opens_nothing() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(1 << 20);
    let key = register(&memory, address, 1 << 20, ALL).unwrap();
    let range = Range { key, address: address + 100, length: 5000 };
    let name = memory.refer(LOCAL, range, Access::empty()).unwrap();
    assert!(memory.can_refer(key) && name.to_pass.is_none());
    let name = name.bytes;
    // The driver opens nothing of its own process.
    assert!(memory::open(&name, |_| None).is_err());
    assert!(
        memory::open(&[0; memory::REFERENCE_BYTES], |_| None).is_err()
            && memory::open(&[0xff; memory::REFERENCE_BYTES], |_| None).is_err()
    );
    for at in 0..memory::REFERENCE_BYTES {
        let mut forged = name;
        forged[at] ^= 0x55;
        assert!(memory::open(&forged, |_| None).is_err(), "byte {at}");
    }
    // Memory that was passed: none, none of a GPU, and less than was said.
    let mut passed = [0; memory::REFERENCE_BYTES];
    passed[..8].copy_from_slice(&(1u64 << 20).to_ne_bytes());
    passed[72..80].copy_from_slice(&(1u64 << 32 | 1).to_ne_bytes());
    passed[88..96].copy_from_slice(&8u64.to_ne_bytes());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("short");
    let short = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    short.set_len(4096).unwrap();
    assert!(memory::open(&passed, |_| None).is_err());
    assert!(memory::open(&passed, |_| Some(std::fs::File::open("/dev/null").unwrap().into())).is_err());
    assert!(memory::open(&passed, |_| Some(short.into())).is_err());
    // What is not the GPU's, or not the subject's, has no name.
    assert!(memory.refer(STRANGER, range, Access::REMOTE_READ).is_none());
    assert!(memory.refer(LOCAL, Range { length: 2 << 20, ..range }, Access::empty()).is_none());
    let buffer = Buffer::new(64);
    let other = register(&memory, buffer.address(), 64, ALL).unwrap();
    assert!(!memory.can_refer(other));
    assert!(
        memory.refer(LOCAL, Range { key: other, address: buffer.address(), length: 64 }, Access::empty()).is_none()
    );
    let zeros = memory::shadow(100).unwrap();
    assert!(zeros.len() == 100 && zeros.iter().all(|byte| *byte == 0));
    assert!(memory::shadow(memory::LONGEST_REFERENCE as usize + 1).is_none());
}

#[test]
fn a_forked_child_has_no_gpu() {
    let (gpu, memory) = (StandIn::new(), Memory::new());
    let address = gpu.allocate(4096);
    register(&memory, address, 4096, ALL).unwrap();
    // SAFETY: the child makes what it needs anew and ends without running what its parent left.
    match unsafe { libc::fork() } {
        0 => {
            let refused =
                register(&Memory::new(), address, 4096, ALL).is_err_and(|error| error.errno() == libc::EFAULT);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        child => {
            let mut status = -1;
            // SAFETY: our own child, and room for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
}
