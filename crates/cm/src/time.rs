//! Moments and how messages encode spans of time. The manager never reads a clock: whoever drives it says what time it is.

use core::fmt;
use core::ops::Add;
use core::time::Duration;

use wire::Timeout;

/// A moment: nanoseconds since an origin that the driver chose once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);

    /// `nanos` after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// From `earlier` until this moment; zero if it is the later one.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// The span a field of a message stands for.
pub(crate) const fn span(timeout: Timeout) -> Duration {
    Duration::from_nanos(timeout.duration_ns())
}
