//! The gate in front of one slot: a count of the accesses under way, and a bit that lets no more in. Closing it and
//! waiting for the count to reach zero is what makes deregistration final. It knows nothing of what it guards. The same
//! file is run under a model checker by `tests/suite/protocol.rs`, which puts other types behind `crate::sync`.

use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, SPINS_BEFORE_SLEEP, in_order, spin_loop};
use wire::refuse_if;

/// One word: the key that opens it (32 bits), the closed bit, and the number of accesses under way (31 bits).
///
/// Key and count share a word so that "is this still the key's slot" and "count me in" are one atomic step; a slot that
/// was freed and given to another key in between cannot be mistaken.
#[derive(Debug)]
pub(crate) struct Gate(AtomicU64);

const CLOSED_BIT: u64 = 1 << 31;
const COUNT_MASK: u64 = CLOSED_BIT - 1;
/// Past this many the gate refuses. It is the top bit of the count, so one comparison of the bits above it sees a wrong
/// key, a closed gate and a full one; and it is far from a carry into `CLOSED_BIT`, because every thread oversteps it by
/// one at most.
const FULL_BIT: u64 = 1 << 30;

/// Why a gate refused an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shut {
    /// It belongs to another key.
    OtherKey,
    /// It is the key's and closed.
    Closed,
    /// Too many are inside.
    Full,
}

impl Gate {
    /// A gate of no key, closed.
    pub(crate) fn new() -> Gate {
        Gate(AtomicU64::new(CLOSED_BIT))
    }

    /// Counts an access in. Everything that happened before the gate was opened is visible inside.
    ///
    /// The look before the addition keeps a closed gate quiet: once `CLOSED_BIT` is seen no thread adds, so the count falls
    /// to zero however often a peer retries an invalid key.
    #[inline]
    pub(crate) fn enter(&self, key: u32, bell: &Bell) -> Result<(), Shut> {
        let open = u64::from(key) << 2;
        let seen = self.0.load(Ordering::Relaxed);
        refuse_if!(seen / FULL_BIT != open, shut(seen, key));
        let before = self.0.fetch_add(1, Ordering::Acquire);
        if before / FULL_BIT != open {
            self.leave(bell);
            return Err(shut(before, key));
        }
        Ok(())
    }

    /// Counts an access out; a thread that waits at a closed gate sees all it did.
    #[inline]
    pub(crate) fn leave(&self, bell: &Bell) {
        let before = self.0.fetch_sub(1, Ordering::Release);
        if before & (CLOSED_BIT | COUNT_MASK) == CLOSED_BIT | 1 {
            bell.ring();
        }
    }

    /// Whether `enter` would succeed now.
    #[inline]
    pub(crate) fn test(&self, key: u32) -> Result<(), Shut> {
        let seen = self.0.load(Ordering::Acquire);
        if seen / FULL_BIT == u64::from(key) << 2 { Ok(()) } else { Err(shut(seen, key)) }
    }

    /// The key it belongs to; 0 if it has none.
    pub(crate) fn key(&self) -> u32 {
        (self.0.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Lets no more accesses in.
    pub(crate) fn close(&self) {
        self.0.fetch_or(CLOSED_BIT, Ordering::Relaxed);
    }

    /// Waits until all accesses under way are over. The gate must be closed, and stay so meanwhile: then no access is
    /// inside afterwards.
    pub(crate) fn drain(&self, bell: &Bell) {
        let mut spins = SPINS_BEFORE_SLEEP;
        while !self.drained() {
            if spins == 0 {
                return bell.wait(|| self.drained());
            }
            spins -= 1;
            spin_loop();
        }
    }

    fn drained(&self) -> bool {
        // Pairs with the release of every `leave`: the subtractions after it continue its release sequence.
        self.0.load(Ordering::Acquire) & COUNT_MASK == 0
    }

    /// Gives a closed and drained gate to `key` and opens it.
    pub(crate) fn open(&self, key: u32) {
        self.assign(key, 0);
    }

    /// Takes a closed and drained gate away from its key.
    pub(crate) fn abandon(&self) {
        self.assign(0, CLOSED_BIT);
    }

    fn assign(&self, key: u32, closed: u64) {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            // A thread that looked before it was closed may just have been counted in, and will count itself out: keep
            // the count.
            let next = u64::from(key) << 32 | closed | seen & COUNT_MASK;
            match self.0.compare_exchange_weak(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

#[cold]
fn shut(word: u64, key: u32) -> Shut {
    // 0 is no valid key, not even of a slot that has none.
    match (word >> 32 == u64::from(key) && key != 0, word & CLOSED_BIT != 0) {
        (false, _) => Shut::OtherKey,
        (true, true) => Shut::Closed,
        (true, false) => Shut::Full,
    }
}

/// Where threads sleep that wait at a closed gate. One for all gates: it rings only when the last access leaves a
/// closed one.
#[derive(Debug)]
pub(crate) struct Bell {
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    pub(crate) fn new() -> Bell {
        Bell { lock: Mutex::new(()), rung: Condvar::new() }
    }

    /// The waiter looks at the count while it holds the lock, and the ringing thread takes the lock after it changed
    /// the count: either the waiter sees the change, or it sleeps already when the bell rings.
    #[cold]
    fn ring(&self) {
        let _held = in_order(latch::Rank::MemoryBell);
        drop(self.lock.lock());
        self.rung.notify_all();
    }

    fn wait(&self, done: impl Fn() -> bool) {
        let _held = in_order(latch::Rank::MemoryBell);
        let mut held = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while !done() {
            held = self.rung.wait(held).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}
