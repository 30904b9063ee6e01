//! The NIC's clock: nanoseconds since it was opened. Asking the system costs as much as a third of a message, so where the system itself trusts the
//! processor's counter that is read instead, once it is known how fast it counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// How long the counter is watched before it is believed, in nanoseconds.
const WATCHED: u64 = 10_000_000;

#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// The counter when the clock was started; none where it is not to be trusted.
    first: Option<u64>,
    /// Nanoseconds per count times 2^32; 0 until it is known.
    scale: AtomicU64,
}

impl Clock {
    pub fn start() -> Clock {
        let trusted = is_trusted();
        let (started, first) = both();
        Clock { started, first: first.filter(|_| trusted), scale: AtomicU64::new(0) }
    }

    /// What time it is.
    #[inline]
    pub fn nanos(&self) -> u64 {
        let scale = self.scale.load(Ordering::Relaxed);
        match (self.first, counter()) {
            (Some(first), Some(count)) if scale != 0 => at(first, count, scale),
            _ => self.ask(),
        }
    }

    #[cold]
    fn ask(&self) -> u64 {
        let (now, count) = both();
        let nanos = now.duration_since(self.started).as_nanos() as u64;
        if let (Some(first), Some(count)) = (self.first, count)
            && nanos >= WATCHED
            && count > first
            && let Ok(scale) = u64::try_from((u128::from(nanos) << 32) / u128::from(count - first))
            && scale > 0
        {
            // Several threads may come here at once: one of them decides.
            let _ = self.scale.compare_exchange(0, scale, Ordering::Relaxed, Ordering::Relaxed);
            return at(first, count, self.scale.load(Ordering::Relaxed));
        }
        nanos
    }
}

#[inline]
fn at(first: u64, count: u64, scale: u64) -> u64 {
    // Processors may disagree by a little: never before the beginning.
    ((u128::from(count.saturating_sub(first)) * u128::from(scale)) >> 32) as u64
}

/// What the system's clock and the counter say at the same moment, as nearly as can be: another process may have the processor in between, so the
/// closest of a few looks counts.
fn both() -> (Instant, Option<u64>) {
    let look = |_| {
        let (before, now, after) = (counter(), Instant::now(), counter());
        let (Some(before), Some(after)) = (before, after) else { return (u64::MAX, now, None) };
        let apart = after.saturating_sub(before);
        (apart, now, Some(before + apart / 2))
    };
    let (_, now, count) = (0..5).map(look).min_by_key(|(apart, ..)| *apart).unwrap_or((0, Instant::now(), None));
    (now, count)
}

/// The processor's counter, if there is one that counts at a steady pace whatever the processor does.
#[inline]
fn counter() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every processor of this kind has the instruction, and the systems we know allow it to programs.
        Some(unsafe { std::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Whether the system keeps its own time by it: then it is steady, and the same on all processors.
fn is_trusted() -> bool {
    let source = std::fs::read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|source| source.trim_ascii() == b"tsc")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_goes_on_evenly_when_the_counter_is_believed() {
        let (clock, real) = (Clock::start(), Instant::now());
        let mut last = 0;
        while real.elapsed() < Duration::from_millis(60) {
            let now = clock.nanos();
            assert!(now >= last || last - now < 1000, "{now} after {last}");
            last = now;
        }
        // Another process may have the processor between two looks: it is within what the real one says before and after.
        let before = real.elapsed().as_nanos() as i64;
        let now = clock.nanos() as i64;
        let after = real.elapsed().as_nanos() as i64;
        assert!((before - 1_000_000..after + 1_000_000).contains(&now), "{now}, not from {before} to {after}");
        assert_eq!(clock.first.is_some(), clock.scale.load(Ordering::Relaxed) != 0);
    }
}
