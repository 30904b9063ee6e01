//! When a completion was raised, by the system's clock. The NIC's clock says how long ago that was, and the system's
//! what time it is now. The two are read one after the other, so the difference between them is not the same each time;
//! a completion must not seem older than the one before for that.

use std::time::Duration;

/// By how much the system's clock has to go back to be believed: less is the error of reading two clocks, and a clock
/// that is adjusted by more is set, not slowed down.
const SET_BACK_MIN: Duration = Duration::from_millis(100);

/// How closely together the two clocks are to be read, and how often that is tried: another process may have the
/// processor in between.
const READ_WITHIN: Duration = Duration::from_micros(1);
const CLOCK_READS: u32 = 4;

/// The times of the completions of one queue, one after the other.
#[derive(Debug, Default)]
pub struct WallClock {
    last: u64,
}

impl WallClock {
    /// The time of the next completion, in nanoseconds since 1970: `system` says what time it is, and `nic` what time
    /// it is by the clock by which the completion was raised at `at`. Never before the last one, unless the system's
    /// clock was set back.
    pub fn time_of(&mut self, at: u64, system: impl Fn() -> u64, nic: impl Fn() -> u64) -> u64 {
        let read = |_| {
            let (before, now, after) = (nic(), system(), nic());
            (after.saturating_sub(before), now, after)
        };
        let mut closest = read(0);
        for again in 1..CLOCK_READS {
            if closest.0 <= READ_WITHIN.as_nanos() as u64 {
                break;
            }
            closest = closest.min(read(again));
        }
        let (_, now, after) = closest;
        // Too old rather than too young: the next may be no older.
        let time = now.saturating_sub(after.saturating_sub(at));
        let behind = self.last.saturating_sub(time);
        self.last = if behind > SET_BACK_MIN.as_nanos() as u64 { time } else { time.max(self.last) };
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const BOOT: u64 = 1_700_000_000_000_000_000;
    const MILLISECOND: u64 = 1_000_000;

    /// Clocks of which each reading takes a while, given in turn.
    struct Clocks<'a> {
        nanos: Cell<u64>,
        ahead: Cell<u64>,
        steps: Cell<std::iter::Cycle<std::slice::Iter<'a, u64>>>,
    }

    impl<'a> Clocks<'a> {
        fn new(steps: &'a [u64]) -> Clocks<'a> {
            Clocks { nanos: Cell::new(0), ahead: Cell::new(BOOT), steps: Cell::new(steps.iter().cycle()) }
        }

        fn nic(&self) -> u64 {
            let mut steps = self.steps.replace([].iter().cycle());
            self.nanos.set(self.nanos.get() + steps.next().unwrap_or(&0));
            self.steps.set(steps);
            self.nanos.get()
        }

        fn time_of(&self, clock: &mut WallClock, at: u64) -> u64 {
            clock.time_of(at, || self.nic() + self.ahead.get(), || self.nic())
        }
    }

    #[test]
    fn times_never_go_back_however_long_it_takes_to_read_the_clocks() {
        let steps = [20, 20, 3 * MILLISECOND, 20, 20, 20, 20, 40_000, 20, 700, 20];
        let (clocks, mut clock) = (Clocks::new(&steps), WallClock::default());
        let mut last = 0;
        for at in (0..1_000_000).step_by(500) {
            let time = clocks.time_of(&mut clock, at);
            assert!(time >= last, "{time} after {last}");
            assert!((at + BOOT).abs_diff(time) <= 4 * MILLISECOND, "{time} at {at}");
            last = time;
        }
    }

    #[test]
    fn they_follow_the_systems_clock_forwards_and_when_it_is_set_back() {
        let (clocks, mut clock) = (Clocks::new(&[0]), WallClock::default());
        // All of them lie in the past.
        clocks.nanos.set(10_000);
        let mut time_at = |at, ahead| {
            clocks.ahead.set(ahead);
            clocks.time_of(&mut clock, at)
        };
        assert_eq!(time_at(10, BOOT), BOOT + 10);
        assert_eq!(time_at(20, BOOT + 5000), BOOT + 5020);
        // Slowed down, not set.
        assert_eq!(time_at(30, BOOT), BOOT + 5020);
        assert_eq!(time_at(6000, BOOT), BOOT + 6000);
        let hour = 3_600_000 * MILLISECOND;
        assert_eq!(time_at(7000, BOOT - hour), BOOT - hour + 7000);
    }
}
