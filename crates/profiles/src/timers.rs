//! How a card rounds the times that queue pairs ask for.

/// How long a time is at least, and in which steps it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Granularity {
    /// Shorter ones last so long, in nanoseconds.
    pub least: u64,
    /// Longer ones are rounded up to a multiple of this, in nanoseconds; 0 for none.
    pub step: u64,
}

/// What the table `timers` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timers {
    /// The ACK timeout.
    pub ack: Granularity,
    /// The wait after an RNR NAK.
    pub rnr: Granularity,
}

/// The words of the table: a key, and where it is kept.
#[cfg(feature = "parse")]
pub(crate) type TimerKey = (&'static str, fn(&mut Timers) -> &mut u64);

/// All of them.
#[cfg(feature = "parse")]
pub(crate) const KEYS: &[TimerKey] = &[
    ("ack-timeout-least", |timers| &mut timers.ack.least),
    ("ack-timeout-step", |timers| &mut timers.ack.step),
    ("rnr-timer-least", |timers| &mut timers.rnr.least),
    ("rnr-timer-step", |timers| &mut timers.rnr.step),
];

/// No time is rounded to more: ten seconds, in nanoseconds.
#[cfg(feature = "parse")]
pub(crate) const MAX_GRANULARITY: u64 = 10_000_000_000;
