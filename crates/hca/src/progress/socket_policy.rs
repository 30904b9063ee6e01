//! When a polling thread looks at the sockets, and at which. A look is a system call, which costs as much as a message
//! through shared memory; so where trains come through rings, sockets are looked at now and then, and every time for a
//! while after a packet came. While one socket brings packets, the others are asked at growing intervals.

use crate::tuning::{OTHER_SOCKETS_INTERVAL_MAX, SOCKET_HOT, SOCKET_LOOK_INTERVAL, SOCKET_LOOK_INTERVAL_IDLE, nanos};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use transport::Time;

/// See the module. Threads share it; a count that is lost between two of them costs one look.
#[derive(Debug, Default)]
pub(crate) struct SocketPolicy {
    /// When a polling thread last looked.
    looked: AtomicU64,
    /// Until when polling threads look every time.
    hot_until: AtomicU64,
    /// When more than the socket that brings packets was looked at.
    looked_at_all: AtomicU64,
    /// How long to look at that one only.
    others_interval: AtomicU64,
    /// Queue pairs that may hear from other hosts at any time.
    udp_users: AtomicU32,
}

impl SocketPolicy {
    /// Whether packets came lately.
    #[inline]
    pub fn is_hot(&self) -> bool {
        self.hot_until.load(Ordering::Relaxed) > self.looked.load(Ordering::Relaxed)
    }

    /// Whether a polling thread should look; `reads_rings` if trains come through shared memory, too.
    pub fn should_look(&self, now: Time, reads_rings: bool) -> bool {
        let since = now.as_nanos().saturating_sub(self.looked.load(Ordering::Relaxed));
        let interval = match self.udp_users.load(Ordering::Relaxed) {
            0 => nanos(SOCKET_LOOK_INTERVAL_IDLE),
            _ => nanos(SOCKET_LOOK_INTERVAL),
        };
        if reads_rings && !self.is_hot() && since < interval {
            return false;
        }
        self.looked.store(now.as_nanos(), Ordering::Relaxed);
        true
    }

    /// Whether the socket that brought packets last is enough. Only for a polling thread: it comes again at once.
    pub fn is_one_enough(&self, now: Time) -> bool {
        let since = now.as_nanos().saturating_sub(self.looked_at_all.load(Ordering::Relaxed));
        since < self.others_interval.load(Ordering::Relaxed)
    }

    /// All sockets were looked at; `elsewhere` if another than the one that brought packets last had something.
    pub fn looked_at_all(&self, now: Time, elsewhere: bool) {
        self.looked_at_all.store(now.as_nanos(), Ordering::Relaxed);
        let (min, max) = (nanos(SOCKET_LOOK_INTERVAL), nanos(OTHER_SOCKETS_INTERVAL_MAX));
        let last = self.others_interval.load(Ordering::Relaxed);
        self.others_interval.store(if elsewhere { min } else { (2 * last).clamp(min, max) }, Ordering::Relaxed);
    }

    /// Packets for queue pairs came.
    pub fn received(&self, now: Time) {
        self.hot_until.store(now.as_nanos() + nanos(SOCKET_HOT), Ordering::Relaxed);
    }

    /// A queue pair begins, or ceases, to be one that other hosts may send to.
    pub fn uses_udp(&self, uses: bool) {
        match uses {
            true => self.udp_users.fetch_add(1, Ordering::Relaxed),
            false => self.udp_users.fetch_sub(1, Ordering::Relaxed),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(1_000_000_000 + nanos)
    }

    #[test]
    fn where_trains_come_through_rings_sockets_are_looked_at_now_and_then() {
        for (users, interval) in [(0, nanos(SOCKET_LOOK_INTERVAL_IDLE)), (1, nanos(SOCKET_LOOK_INTERVAL))] {
            let policy = SocketPolicy::default();
            (0..users).for_each(|_| policy.uses_udp(true));
            assert!(policy.should_look(at(0), true));
            assert!(!policy.should_look(at(interval - 1), true));
            assert!(policy.should_look(at(interval), true));
            assert!(policy.should_look(at(interval + 1), false), "without rings every time");
        }
    }

    #[test]
    fn after_a_packet_every_poll_looks_for_a_while() {
        let policy = SocketPolicy::default();
        assert!(policy.should_look(at(0), true));
        policy.received(at(0));
        assert!(policy.is_hot() && policy.should_look(at(1), true) && policy.should_look(at(2), true));
        assert!(policy.should_look(at(nanos(SOCKET_HOT)), true));
        assert!(!policy.is_hot());
        assert!(!policy.should_look(at(nanos(SOCKET_HOT) + 1), true));
    }

    #[test]
    fn the_other_sockets_are_asked_at_growing_intervals_until_they_have_something() {
        let policy = SocketPolicy::default();
        let (min, max) = (nanos(SOCKET_LOOK_INTERVAL), nanos(OTHER_SOCKETS_INTERVAL_MAX));
        assert!(!policy.is_one_enough(at(0)));
        let mut interval = min;
        while interval < max {
            policy.looked_at_all(at(0), false);
            assert!(policy.is_one_enough(at(interval - 1)) && !policy.is_one_enough(at(interval)));
            interval *= 2;
        }
        policy.looked_at_all(at(0), false);
        policy.looked_at_all(at(0), false);
        assert!(policy.is_one_enough(at(max - 1)) && !policy.is_one_enough(at(max)));
        policy.looked_at_all(at(0), true);
        assert!(!policy.is_one_enough(at(min)));
    }
}
