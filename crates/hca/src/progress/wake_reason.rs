//! Why the engine's thread woke. Each time counts once, so that the counters tell what keeps a process awake that
//! should sleep.

use std::sync::atomic::{AtomicU64, Ordering};
use transport::packet_counters::EngineWakes;

/// What ended a sleep of the engine's thread. Of several that did, the first of these counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum WakeReason {
    /// Another process wrote a train into a ring and struck the doorbell.
    Doorbell,
    /// A UDP socket was readable.
    Socket,
    /// A thread of the program rang: it begins to poll, has set an earlier deadline, or needs the engine otherwise.
    Bell,
    /// A network interface has changed.
    Interface,
    /// A link that is used through the trait alone had something.
    Link,
    /// A deadline came, or the time to look at a program that polls.
    Timeout,
}

impl WakeReason {
    const COUNT: usize = WakeReason::Timeout as usize + 1;

    /// The stable name: what the trace says.
    pub fn name(self) -> &'static str {
        match self {
            WakeReason::Doorbell => "doorbell",
            WakeReason::Socket => "socket",
            WakeReason::Bell => "bell",
            WakeReason::Interface => "interface",
            WakeReason::Link => "link",
            WakeReason::Timeout => "timeout",
        }
    }

    /// What to count for a sleep on these descriptors, each with its reason; `ready` has a bit for each that was.
    pub fn of(ready: u32, reasons: impl IntoIterator<Item = WakeReason>) -> WakeReason {
        let bits = (0..u32::BITS).map(|place| ready >> place & 1 == 1);
        let found = reasons.into_iter().zip(bits).filter(|(_, ready)| *ready).map(|(reason, _)| reason);
        found.min_by_key(|reason| *reason as usize).unwrap_or(WakeReason::Timeout)
    }
}

/// How often the engine's thread woke, for each reason. Only this thread counts.
#[derive(Debug, Default)]
pub(crate) struct WakeCounts([AtomicU64; WakeReason::COUNT]);

impl WakeCounts {
    pub fn count(&self, reason: WakeReason) {
        if let Some(count) = self.0.get(reason as usize) {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    pub fn of(&self, reason: WakeReason) -> u64 {
        self.0.get(reason as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The counts so far.
    pub fn so_far(&self) -> EngineWakes {
        EngineWakes {
            doorbell: self.of(WakeReason::Doorbell),
            socket: self.of(WakeReason::Socket),
            bell: self.of(WakeReason::Bell),
            interface: self.of(WakeReason::Interface),
            link: self.of(WakeReason::Link),
            timeout: self.of(WakeReason::Timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_counts_once_for_the_first_of_its_reasons() {
        use WakeReason::{Bell, Doorbell, Link, Socket, Timeout};
        let slept_on = [Bell, Socket, Doorbell].into_iter().chain(std::iter::repeat(Link));
        let counts = WakeCounts::default();
        for (ready, reason) in [(0, Timeout), (1, Bell), (0b111, Doorbell), (0b11, Socket), (1 << 7, Link)] {
            assert_eq!(WakeReason::of(ready, slept_on.clone()), reason, "{ready:b}");
            counts.count(reason);
        }
        counts.count(Doorbell);
        let expected = EngineWakes { doorbell: 2, socket: 1, bell: 1, link: 1, timeout: 1, interface: 0 };
        assert_eq!(counts.so_far(), expected);
    }
}
