//! Steady state allocates nothing: counted by the allocator itself.

mod direct;

use direct::{Pair, write};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use ubiverbs_transport::{Operation, Remote, SendFlags};
use wire::{Key, Mtu};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system allocator unchanged; counting touches only a thread-local integer that
// needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Runs `work` until its buffers have their final size, then counts.
fn steady(mut work: impl FnMut(u64)) -> u64 {
    for round in 0..200 {
        work(round);
    }
    let before = allocations();
    for round in 0..1000 {
        work(round);
    }
    allocations() - before
}

#[test]
fn a_steady_stream_of_work_allocates_nothing() {
    let remote = Remote { address: 0, key: Key::new(1) };
    let operations = [write(), Operation::Read { remote }, Operation::FetchAdd { remote, add: 1 }];
    for (operation, lengths) in operations.into_iter().zip([&[8, 4096, 65536][..], &[8, 65536], &[8]]) {
        for &length in lengths {
            for packets in [false, true] {
                let mut pair = Pair::new(Mtu::B1024, 65536);
                pair.packets = packets;
                let mut completed = 0u64;
                let counted = steady(|round| {
                    pair.post(round, operation, length, SendFlags::SIGNALED);
                    pair.post(round, operation, length, SendFlags::empty());
                    pair.run(|completion| {
                        assert!(completion.cause.is_none());
                        completed += 1;
                    });
                });
                assert_eq!(completed, 1200, "{operation:?}");
                assert_eq!(counted, 0, "{operation:?} of {length} bytes, packet by packet: {packets}");
            }
        }
    }
}

#[test]
fn the_counter_counts() {
    let before = allocations();
    drop(std::hint::black_box(vec![1u8; 10]));
    assert!(allocations() > before);
}
