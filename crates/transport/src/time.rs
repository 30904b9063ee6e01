//! How queue pairs encode spans of time, and how devices round them.

use wire::RnrTimer;

/// How long a time is at least, and in which steps a device counts it, in nanoseconds; 0 for neither.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Granularity {
    /// Shorter ones last so long.
    pub least: u64,
    /// Longer ones are rounded up to a multiple of this.
    pub step: u64,
}

/// How a device rounds the times that queue pairs ask for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Timers {
    /// The ACK timeout.
    pub ack: Granularity,
    /// The wait after an RNR NAK.
    pub rnr: Granularity,
}

impl Granularity {
    /// How long a time lasts that is asked for.
    #[must_use]
    pub fn round(self, nanos: u64) -> u64 {
        let nanos = nanos.max(self.least);
        if self.step == 0 { nanos } else { nanos.checked_next_multiple_of(self.step).unwrap_or(nanos) }
    }
}

impl Timers {
    /// How long the ACK timeout of this code lasts; never for 0.
    pub fn ack_timeout_nanos(self, code: u8) -> Option<u64> {
        ack_timeout_nanos(code).map(|nanos| self.ack.round(nanos))
    }

    /// How long the requester waits after an RNR NAK with this timer.
    pub fn rnr_nanos(self, timer: RnrTimer) -> u64 {
        self.rnr.round(timer.duration_ns())
    }
}

/// The local ACK timeout of a queue pair as the specification encodes it: `4.096 us * 2^code`, and never for 0 (IBA
/// 9.7.6.1.3).
pub fn ack_timeout_nanos(code: u8) -> Option<u64> {
    match code & 0x1f {
        0 => None,
        code => Some(4096u64 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up_and_never_to_nothing() {
        let jiffies = Granularity { least: 0, step: 4_000_000 };
        let timers = Timers { ack: jiffies, rnr: Granularity { least: 1_000_000, step: 0 } };
        assert_eq!(timers.ack_timeout_nanos(0), None);
        assert_eq!(timers.ack_timeout_nanos(1), Some(4_000_000));
        assert_eq!(timers.ack_timeout_nanos(14), Some(68_000_000));
        assert_eq!(timers.rnr_nanos(RnrTimer::new(1)), 1_000_000);
        assert_eq!(timers.rnr_nanos(RnrTimer::new(31)), 491_520_000);
        assert_eq!(Timers::default().ack_timeout_nanos(14), ack_timeout_nanos(14));
        assert_eq!(Granularity { least: u64::MAX, step: 7 }.round(1), u64::MAX);
    }
}
