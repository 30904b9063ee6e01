//! Queue pairs come and go in the middle of their work, thousands of times: nothing is freed too early, and nothing is
//! kept.
//!
//! The allocator counts what is alive and overwrites what is freed, so that a NIC that writes to a buffer after it was
//! given up, or reads from one, is seen: by a broken canary, or by bytes that nobody sent.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use ubiverbs::{Access, CompletionQueue, Error, ProtectionDomain, QueuePair, Reliable};

struct Counting;

static ALIVE: AtomicIsize = AtomicIsize::new(0);

/// What freed memory looks like.
const FREED: u8 = 0xdd;

// SAFETY: the system's allocator does the work; this counts, and writes only to memory that is being freed.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the memory is the caller's until the next line.
        unsafe { memory.write_bytes(FREED, layout.size()) };
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A small generator, seeded, so that a failure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn pair(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<[QueuePair<Reliable>; 2], Error> {
    let prepare = || pd.queue_pair::<Reliable>(cq).max_sends(16).max_receives(16).prepare();
    let (a, b) = (prepare()?, prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    Ok([a.connect(&at_b)?, b.connect(&at_a)?])
}

/// One life: work of all kinds under way, and everything is let go in some order.
fn life(pd: &ProtectionDomain, cq: &CompletionQueue, random: &mut Random, forgetful: bool) -> Result<(), Error> {
    let [a, b] = pair(pd, cq)?;
    let region = pd.share(20_000, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let there = region.remote_slice();
    let mut kept = Vec::new();
    for _ in 0..random.below(6) {
        let length = 1 + random.below(20_000) as usize;
        let receiving = b.recv(pd.allocate(length)?)?;
        match random.below(4) {
            0 => kept.push(receiving),
            1 => receiving.polled(1),
            2 if forgetful => std::mem::forget(receiving),
            _ => drop(receiving),
        }
    }
    for _ in 0..random.below(10) {
        let length = 1 + random.below(20_000) as usize;
        let mut buffer = pd.allocate(length)?;
        buffer.fill(0x55);
        match random.below(5) {
            0 => drop(a.send(buffer)?),
            1 => a.write(buffer.freeze(), there)?.polled(2),
            2 => drop(a.read(buffer, there.slice(0..length as u64)?)?),
            3 => a.fetch_add(there, 0)?.polled(3),
            _ if forgetful => std::mem::forget(a.write(buffer, there)?),
            _ => drop(a.send(vec![buffer])?),
        }
    }
    match random.below(4) {
        0 => drop(a),
        1 => drop((b, region)),
        2 => region.revoke()?,
        _ => drop(cq.poll()?.count()),
    }
    for receiving in kept {
        // A message may have come, or not any more; what came is what was sent.
        if receiving.is_done()
            && let Ok(message) = receiving.wait()
        {
            assert!(message.payload().iter().all(|byte| *byte == 0x55), "a message of freed memory");
        }
    }
    Ok(())
}

fn lives(count: u64, seed: u64, forgetful: bool) -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let mut random = Random(seed);
    for _ in 0..count {
        let cq = context.completion_queue(64).create()?;
        life(&pd, &cq, &mut random, forgetful)?;
    }
    Ok(())
}

#[test]
fn queue_pairs_dropped_in_the_middle_of_their_work_leak_nothing() -> Result<(), Error> {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed);
    println!("SEED={seed}");
    // Tables and spare buffers of the NIC reach their size; numbers that rest do too.
    lives(2000, seed, false)?;
    let before = ALIVE.load(Ordering::Relaxed);
    lives(10_000, seed + 1, false)?;
    let threads: Vec<_> = (0..4).map(|thread| thread::spawn(move || lives(2500, seed + 2 + thread, false))).collect();
    for thread in threads {
        thread.join().unwrap()?;
    }
    // The NIC keeps some spare buffers of 64 KiB. A single buffer lost in each life would be two hundred megabytes. Its
    // own thread may not have put away everything yet.
    let kept = || ALIVE.load(Ordering::Relaxed) - before;
    let deadline = Instant::now() + Duration::from_secs(30);
    while kept() >= 8 << 20 {
        assert!(Instant::now() < deadline, "{} bytes are left of 20,000 lives", kept());
        thread::sleep(Duration::from_millis(10));
    }
    // Who forgets a handle keeps what it would have given back, and does no other harm.
    lives(500, seed + 6, true)
}
