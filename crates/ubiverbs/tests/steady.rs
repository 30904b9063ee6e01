//! Steady state allocates nothing: buffers go around, and so do slots, in both styles and in batches.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use ubiverbs::{Access, Error, Reliable, connected_pair};

struct Counting;

thread_local! {
    /// Allocations of this thread: others, the NIC's among them, have their own business.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work; this only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time: they share a NIC, and a thread that drives it does the other's work, too.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn ping_pong_allocates_nothing() -> Result<(), Error> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(64).create()?;
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(4096, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let there = region.remote_slice();
    let mut sending = pd.allocate(4096)?;
    let mut receiving = pd.allocate(4096)?;
    let mut before = 0;
    for round in 0..200 {
        if round == 100 {
            before = ALLOCATIONS.get();
        }
        // Awaited.
        let message = b.recv(receiving)?;
        sending = a.send(sending)?.wait()?;
        receiving = message.wait()?.into_buffer();
        sending = a.write(sending, there)?.wait()?;
        receiving = a.read(receiving, there)?.wait()?;
        a.fetch_add(there, 1)?.wait()?;
        // Polled.
        b.recv(receiving)?.polled(1);
        a.send(sending)?.polled(2);
        let (mut first, mut second) = (None, None);
        while first.is_none() || second.is_none() {
            for completion in cq.poll()? {
                match completion.wr_id() {
                    1 => first = completion.into_received().ok().map(|message| message.into_buffer()),
                    _ => second = completion.into_buffer().and_then(|buffer| buffer.into_mut()),
                }
            }
        }
        (receiving, sending) = (first.expect("received"), second.expect("sent"));
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in 100 rounds");
    Ok(())
}

#[test]
fn batches_on_several_queue_pairs_allocate_nothing() -> Result<(), Error> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const PAIRS: usize = 8;
    const WORK_UNDER_WAY: usize = 20;
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(64).create()?;
    let pairs: Vec<_> = (0..PAIRS).map(|_| connected_pair::<Reliable>(&pd, &cq)).collect::<Result<_, Error>>()?;
    let region = pd.share(4096, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let there = region.remote_slice();
    let own = pd.share(64, Access::LOCAL_WRITE)?;
    let mut before = ALLOCATIONS.get();
    // How much is under way at a time depends on the NIC's own thread, so its queues reach their sizes sooner or later.
    // Then nothing may grow.
    for round in 1..=2000 {
        for [a, _] in &pairs {
            let mut batch = a.batch();
            for number in 0..WORK_UNDER_WAY as u64 {
                match number % 3 {
                    0 => batch.write_inline(&number.to_ne_bytes(), there)?.polled(number),
                    1 => batch.write(own.part(0..64)?, there)?.polled(number),
                    _ => batch.fetch_add(there, 1)?.polled(number),
                }
            }
            batch.post()?;
            // One that is never posted, and one that nobody waits for.
            drop(a.batch().write_inline(b"never", there)?);
            drop(a.write_inline(b"dropped", there)?);
        }
        let mut left = PAIRS * WORK_UNDER_WAY;
        while left > 0 {
            for completion in cq.poll()? {
                completion.result()?;
                left -= 1;
            }
        }
        if round % 50 == 0 {
            if ALLOCATIONS.get() == before {
                return Ok(());
            }
            before = ALLOCATIONS.get();
        }
    }
    panic!("not even in 2000 rounds are there 50 without an allocation");
}
