//! What a checked access costs: beside the plain copy it contains, in the same run, and with few regions and many.

#![allow(missing_docs, reason = "a benchmark has no readers of its interface")]

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use memory::{Access, Atomic, Key, Memory, ProtectionDomain, Qpn, Range, RegionSpec, Subject, Translation};
use std::sync::atomic::{AtomicU64, Ordering};

const PEER: Subject = Subject { pd: ProtectionDomain(1), qpn: Qpn::new(1), remote: true };
const SIZES: [usize; 4] = [8, 64, 4096, 65_536];
const REGIONS: [usize; 2] = [10, 100_000];

fn main() {
    divan::main();
}

/// Memory with many regions over one buffer.
struct Bench {
    memory: Memory,
    address: u64,
    keys: Vec<Key>,
}

impl Bench {
    fn new(regions: usize, length: usize) -> Bench {
        let memory = Memory::new();
        // Kept for as long as the process runs.
        let buffer = Vec::leak(vec![0u8; length + 64]).as_mut_ptr();
        let address = buffer.wrapping_add(buffer.align_offset(64));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let spec = RegionSpec { translation: Translation::new(address, length), domain: ProtectionDomain(1), access };
        // SAFETY: the buffer is never freed and nobody else's.
        let keys = (0..regions).map(|_| unsafe { memory.register(&spec) }.unwrap()).collect();
        Bench { memory, address: address.addr() as u64, keys }
    }
}

#[divan::bench(args = SIZES)]
fn copy_in_plain(bencher: Bencher<'_, '_>, size: usize) {
    let (source, mut target) = (vec![1u8; size], vec![0u8; size]);
    bencher.counter(BytesCount::new(size)).bench_local(|| {
        black_box(&mut target[..]).copy_from_slice(black_box(&source));
    });
}

#[divan::bench(args = SIZES)]
fn copy_in_checked(bencher: Bencher<'_, '_>, size: usize) {
    let Bench { memory, address, keys } = Bench::new(1, size);
    let source = vec![1u8; size];
    bencher
        .counter(BytesCount::new(size))
        .bench_local(|| memory.write(PEER, black_box(keys[0]), address, black_box(&source)).unwrap());
}

#[divan::bench(args = SIZES)]
fn copy_out_checked(bencher: Bencher<'_, '_>, size: usize) {
    let Bench { memory, address, keys } = Bench::new(1, size);
    let mut target = vec![1u8; size];
    bencher
        .counter(BytesCount::new(size))
        .bench_local(|| memory.read(PEER, black_box(keys[0]), address, black_box(&mut target)).unwrap());
}

/// One region after the other in an order the processor does not guess; with many, most of the time is the cache's.
fn scattered(keys: &[Key]) -> impl FnMut() -> Key + '_ {
    let mut next = 1usize;
    move || {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        keys[(next >> 33) % keys.len()]
    }
}

#[divan::bench(args = REGIONS)]
fn check_one_of(bencher: Bencher<'_, '_>, regions: usize) {
    let Bench { memory, address, keys } = Bench::new(regions, 64);
    let key = keys[regions / 2];
    bencher.bench_local(|| {
        let range = Range { key: black_box(key), address, length: 64 };
        memory.check(PEER, range, Access::REMOTE_WRITE).unwrap();
    });
}

#[divan::bench(args = REGIONS, sample_size = 1000)]
fn check_any_of(bencher: Bencher<'_, '_>, regions: usize) {
    let Bench { memory, address, keys } = Bench::new(regions, 64);
    let mut key = scattered(&keys);
    bencher.bench_local(|| {
        let range = Range { key: black_box(key()), address, length: 64 };
        memory.check(PEER, range, Access::REMOTE_WRITE).unwrap();
    });
}

/// What merely touching as many cache lines in that order costs.
#[divan::bench(args = REGIONS, sample_size = 1000)]
fn touch_any_of(bencher: Bencher<'_, '_>, regions: usize) {
    let lines = vec![[1u64; 8]; regions];
    let keys: Vec<Key> = (0..regions as u32).map(Key::new).collect();
    let mut key = scattered(&keys);
    bencher.bench_local(|| black_box(lines[black_box(key()).value() as usize][0]));
}

#[divan::bench(args = REGIONS)]
fn write_8_to_one_of(bencher: Bencher<'_, '_>, regions: usize) {
    let Bench { memory, address, keys } = Bench::new(regions, 64);
    let key = keys[regions / 2];
    bencher.bench_local(|| memory.write(PEER, black_box(key), address, black_box(&[1; 8])).unwrap());
}

/// One region for all threads, as of programs that register their memory once; each writes to cache lines of its own.
#[divan::bench(threads = [1, 2, 8])]
fn write_8_to_one_region(bencher: Bencher<'_, '_>) {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local!(static OWN_LINES: u64 = THREADS.fetch_add(128, Ordering::Relaxed) % 8192);
    let Bench { memory, address, keys } = Bench::new(1, 8192);
    bencher.bench(|| {
        let own = address + OWN_LINES.with(|lines| *lines);
        memory.write(PEER, black_box(keys[0]), own, black_box(&[1; 8])).unwrap();
    });
}

#[divan::bench]
fn fetch_add(bencher: Bencher<'_, '_>) {
    let Bench { memory, address, keys } = Bench::new(1, 64);
    bencher.bench_local(|| memory.atomic(PEER, black_box(keys[0]), address, Atomic::FetchAdd { add: 1 }).unwrap());
}

#[divan::bench]
fn lend(bencher: Bencher<'_, '_>) {
    let Bench { memory, address, keys } = Bench::new(1, 64);
    let range = Range { key: keys[0], address, length: 64 };
    bencher.bench_local(|| drop(black_box(memory.lend(PEER, black_box(range), Access::REMOTE_READ).unwrap())));
}

#[divan::bench(args = [4096, 1 << 20])]
fn register_and_deregister(bencher: Bencher<'_, '_>, length: usize) {
    let Bench { memory, .. } = Bench::new(1, length);
    let buffer = Vec::leak(vec![1u8; length]).as_mut_ptr();
    let translation = Translation::new(buffer, length);
    let spec = RegionSpec { translation, domain: ProtectionDomain(1), access: Access::LOCAL_WRITE };
    bencher.bench_local(|| {
        // SAFETY: the buffer is never freed and nobody else's.
        let key = unsafe { memory.register(&spec) }.unwrap();
        memory.deregister(key).unwrap();
    });
}
