//! Copies inside a GPU are done by its multiprocessors, on which processes take turns. While kernels of two processes
//! run, such a copy waits for its process's turn: 5 ms on an H200, whatever its length. Copies to and from the host are
//! done by engines of their own, and do not wait. So a copy that took longer than it would have by way of the host makes
//! the next ones go there for a while.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For how long: a try that fails costs a twentieth of it.
const WHILE: Duration = Duration::from_millis(100);

/// What a copy out and one in cost, with some patience: the calls, and one byte after the other.
const CALLS: Duration = Duration::from_micros(150);
const BYTES_PER_MICROSECOND: u64 = 20_000;

static BEGAN: OnceLock<Instant> = OnceLock::new();

/// Nanoseconds since then until which copies make the detour.
static UNTIL: AtomicU64 = AtomicU64::new(0);

fn nanoseconds() -> u64 {
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Whether the next copy goes by way of the host.
pub(super) fn is_quicker() -> bool {
    let until = UNTIL.load(Ordering::Relaxed);
    until != 0 && nanoseconds() < until
}

/// A copy inside the GPU took so long.
pub(super) fn note(length: usize, taken: Duration) {
    if taken > CALLS + Duration::from_micros(length as u64 / BYTES_PER_MICROSECOND) {
        UNTIL.store(nanoseconds() + WHILE.as_nanos() as u64, Ordering::Relaxed);
    }
}
