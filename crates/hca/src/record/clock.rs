//! The NIC's clock: nanoseconds since it was opened, as the system's monotonic clock counts them, which stands still
//! while the machine sleeps: no timer expires because of that. Asking the system costs as much as a third of a message,
//! so where the system itself trusts the processor's counter that is read instead, once it is known how fast it counts.
//! The counter may go on while the machine sleeps, or begin anew: whenever it has moved by more than a second since it
//! was last compared with the system's clock, it is compared again before it is believed, and a jump is taken back.

use crate::tuning::{self, CLOCK_CALIBRATION, CLOCK_JUMP};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Where time comes from: the system, or a test.
pub(crate) trait Source {
    /// Nanoseconds of the system's monotonic clock since a moment that stays the same.
    fn system(&self) -> u64;

    /// The processor's counter; none where it is not to be trusted.
    fn counter(&self) -> Option<u64>;
}

/// The real one.
#[derive(Debug)]
pub(crate) struct Machine {
    started: Instant,
    trusted: bool,
}

impl Source for Machine {
    fn system(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    #[inline]
    fn counter(&self) -> Option<u64> {
        counter().filter(|_| self.trusted)
    }
}

#[derive(Debug)]
pub(crate) struct Clock<S = Machine> {
    source: S,
    /// What both said when the clock was started.
    started: u64,
    first: Option<u64>,
    /// Nanoseconds per count times 2^32; 0 until it is known.
    scale: AtomicU64,
    /// Counts in a second.
    second: AtomicU64,
    /// The counter when it was last compared with the system's clock.
    compared: AtomicU64,
    /// By how much the counter was ahead of the system's clock then, modulo 2^64: it is a little faster or slower.
    ahead: AtomicU64,
    /// How much it has jumped, modulo 2^64.
    jumped: AtomicU64,
}

impl Clock {
    pub fn start() -> Clock {
        Clock::with(Machine { started: Instant::now(), trusted: is_trusted() })
    }
}

impl<S: Source> Clock<S> {
    fn with(source: S) -> Clock<S> {
        let (started, first) = both(&source);
        let zero = || AtomicU64::new(0);
        let compared = AtomicU64::new(first.unwrap_or(0));
        let (scale, second, ahead, jumped) = (zero(), zero(), zero(), zero());
        Clock { source, started, first, scale, second, compared, ahead, jumped }
    }

    /// What time it is.
    #[inline]
    pub fn nanos(&self) -> u64 {
        let scale = self.scale.load(Ordering::Relaxed);
        match (self.first, self.source.counter()) {
            (Some(first), Some(count)) if scale != 0 => {
                let since = count.wrapping_sub(self.compared.load(Ordering::Relaxed));
                if since > self.second.load(Ordering::Relaxed) {
                    return self.compare(first, count, scale);
                }
                at(first, count, scale).wrapping_sub(self.jumped.load(Ordering::Relaxed))
            }
            _ => self.ask(),
        }
    }

    #[cold]
    fn ask(&self) -> u64 {
        let (now, count) = both(&self.source);
        let nanos = now.saturating_sub(self.started);
        if let (Some(first), Some(count)) = (self.first, count)
            && nanos >= tuning::nanos(CLOCK_CALIBRATION)
            && count > first
            && let Ok(scale) = u64::try_from((u128::from(nanos) << 32) / u128::from(count - first))
            && scale > 0
        {
            self.second.store(((u128::from(NANOS_PER_SECOND) << 32) / u128::from(scale)) as u64, Ordering::Relaxed);
            self.compared.store(count, Ordering::Relaxed);
            // Several threads may come here at once: one of them decides.
            let _ = self.scale.compare_exchange(0, scale, Ordering::Release, Ordering::Relaxed);
            return at(first, count, self.scale.load(Ordering::Relaxed));
        }
        nanos
    }

    /// Compares the counter with the system's clock. Processors may disagree by a little, so that the counter seems to
    /// go back: that is no jump.
    #[cold]
    fn compare(&self, first: u64, seen: u64, scale: u64) -> u64 {
        let before = self.compared.load(Ordering::Relaxed);
        let (now, count) = both(&self.source);
        let (now, count) = (now.saturating_sub(self.started), count.unwrap_or(seen));
        let ahead = self.ahead.load(Ordering::Relaxed);
        // Of several threads one decides; for the others the system's clock is right.
        if self.compared.compare_exchange(before, count, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let jumped = self.jumped.load(Ordering::Relaxed);
            let ahead_now = at(first, count, scale).wrapping_sub(jumped).wrapping_sub(now);
            let jump = ahead_now.wrapping_sub(ahead);
            if (jump as i64).unsigned_abs() > tuning::nanos(CLOCK_JUMP) {
                self.jumped.store(jumped.wrapping_add(jump), Ordering::Relaxed);
            } else {
                self.ahead.store(ahead_now, Ordering::Relaxed);
                return now.wrapping_add(ahead_now);
            }
        }
        now.wrapping_add(ahead)
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[inline]
fn at(first: u64, count: u64, scale: u64) -> u64 {
    // Before the beginning if the counter has begun anew: then the difference is less than zero, and so is the answer.
    let since = i128::from(count.wrapping_sub(first) as i64);
    ((since * i128::from(scale)) >> 32) as u64
}

/// What the system's clock and the counter say at the same moment, as nearly as can be: another process may have the
/// processor in between, so the closest of a few looks counts.
fn both(source: &impl Source) -> (u64, Option<u64>) {
    let look = |_| {
        let (before, now, after) = (source.counter(), source.system(), source.counter());
        let (Some(before), Some(after)) = (before, after) else { return (u64::MAX, now, None) };
        let apart = after.wrapping_sub(before);
        (apart, now, Some(before.wrapping_add(apart / 2)))
    };
    let (_, now, count) = (0..5).map(look).min_by_key(|(apart, ..)| *apart).unwrap_or((0, source.system(), None));
    (now, count)
}

/// The processor's counter, if there is one.
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

/// Whether the system keeps its own time by it, and says that it counts at a steady pace.
fn is_trusted() -> bool {
    let source = std::fs::read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let processors = std::fs::read_to_string("/proc/cpuinfo");
    matches!((source, processors), (Ok(source), Ok(processors)) if is_steady(&source, &processors))
}

/// Whether the system counts at a steady pace, by the name of the system's source of time and the list of the
/// processors' features.
fn is_steady(source: &[u8], processors: &str) -> bool {
    let flags = processors.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let mut flags = flags.split_ascii_whitespace();
    source.trim_ascii() == b"tsc" && flags.any(|flag| flag == "constant_tsc")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
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
        // Another process may have the processor between two looks: it is within what the real one says before and
        // after.
        let before = real.elapsed().as_nanos() as i64;
        let now = clock.nanos() as i64;
        let after = real.elapsed().as_nanos() as i64;
        assert!((before - 1_000_000..after + 1_000_000).contains(&now), "{now}, not from {before} to {after}");
        assert_eq!(clock.first.is_some(), clock.scale.load(Ordering::Relaxed) != 0);
    }

    /// A machine whose counter makes three counts in a nanosecond, until the test says otherwise.
    #[derive(Debug, Default)]
    struct Told {
        system: Cell<u64>,
        counter: Cell<u64>,
        untrusted: bool,
    }

    impl Told {
        fn pass(&self, nanos: u64) {
            self.system.set(self.system.get() + nanos);
            self.counter.set(self.counter.get().wrapping_add(3 * nanos));
        }
    }

    impl Source for &Told {
        fn system(&self) -> u64 {
            self.system.get()
        }

        fn counter(&self) -> Option<u64> {
            Some(self.counter.get()).filter(|_| !self.untrusted)
        }
    }

    /// A clock that reads the counter, and the time it shows after a second.
    fn calibrated(told: &Told) -> (Clock<&Told>, u64) {
        told.counter.set(7_000_000_000_000);
        let clock = Clock::with(told);
        told.pass(NANOS_PER_SECOND);
        clock.nanos();
        assert_ne!(clock.scale.load(Ordering::Relaxed), 0);
        let now = clock.nanos();
        assert!(now.abs_diff(NANOS_PER_SECOND) < 10, "{now}");
        (clock, now)
    }

    #[test]
    fn a_machine_that_slept_for_hours_finds_its_clock_where_it_was() {
        const HOURS: u64 = 5 * 3600 * NANOS_PER_SECOND;
        for counter in [
            // It went on counting, which the system's clock does not.
            |told: &Told| told.counter.set(told.counter.get() + 3 * HOURS),
            // It began anew.
            |told: &Told| told.counter.set(1000),
        ] {
            let told = Told::default();
            let (clock, mut before) = calibrated(&told);
            for _ in 0..3 {
                told.pass(1000);
                counter(&told);
                for step in [0, 1000, 10 * NANOS_PER_SECOND, 1000] {
                    told.pass(step);
                    before += step;
                    let now = clock.nanos();
                    assert!(now.abs_diff(before) < 10_000, "{now}, not about {before}");
                }
            }
        }
    }

    #[test]
    fn a_counter_that_is_not_steady_is_not_read() {
        let told = Told { untrusted: true, ..Told::default() };
        let clock = Clock::with(&told);
        told.pass(NANOS_PER_SECOND);
        assert_eq!(clock.nanos(), NANOS_PER_SECOND);
        told.counter.set(1);
        told.pass(NANOS_PER_SECOND);
        assert_eq!(clock.nanos(), 2 * NANOS_PER_SECOND);
        let steady = "processor : 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n";
        assert!(is_steady(b"tsc\n", steady));
        assert!(!is_steady(b"hpet\n", steady) && !is_steady(b"tsc\n", "flags : fpu tsc\n") && !is_steady(b"tsc\n", ""));
    }
}
