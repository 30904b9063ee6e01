//! Copies inside a GPU are done by its multiprocessors, on which processes take turns. While kernels of two processes
//! run, such a copy waits for its process's turn: 4.4 ms on an H200, whatever its length. Copies to and from the host are
//! done by engines of their own, and do not wait. So where two copies in a row took long enough for that, the next ones
//! go by way of the host for a while.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For how long: a try that fails costs a twentieth of it.
const DETOUR_TIME: Duration = Duration::from_millis(100);

/// A turn lasts about 2 ms; a copy that waits for none takes a tenth of that, and as long as its bytes need.
const MIN_WAITED_TIME: Duration = Duration::from_millis(1);
const BYTES_PER_MICROSECOND: u64 = 100_000;

static CLOCK_START: OnceLock<Instant> = OnceLock::new();

/// Nanoseconds since then until which copies make the detour.
static DETOUR_END_NANOS: AtomicU64 = AtomicU64::new(0);

/// Whether the last copy inside the GPU waited for a turn.
static LAST_WAITED: AtomicBool = AtomicBool::new(false);

fn nanoseconds() -> u64 {
    CLOCK_START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Whether the next copy goes by way of the host.
pub(super) fn is_quicker() -> bool {
    let until = DETOUR_END_NANOS.load(Ordering::Relaxed);
    until != 0 && nanoseconds() < until
}

/// A copy inside the GPU took so long.
pub(super) fn note(length: usize, taken: Duration) {
    let waited = taken > MIN_WAITED_TIME + Duration::from_micros(length as u64 / BYTES_PER_MICROSECOND);
    // One alone may have waited for a busy machine.
    if LAST_WAITED.swap(waited, Ordering::Relaxed) && waited {
        DETOUR_END_NANOS.store(nanoseconds() + DETOUR_TIME.as_nanos() as u64, Ordering::Relaxed);
    }
}
