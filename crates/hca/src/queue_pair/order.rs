//! Packets between processes of one host may overtake one another: while processes come and go, the kernel gives some
//! to a process that has to pass them on. A reliable connection puts that right. An unreliable one would take a late
//! packet for a new message (IBA 9.8.2.2.1 relies on networks that keep the order), so what comes late is dropped, as
//! if it had been lost.

use crate::tuning::OVERTAKEN_FOR;
use transport::Time;

/// Until when a packet with an earlier number is a late one. After a pause it is the first of a peer that began anew.
#[derive(Debug, Default)]
pub(super) struct Order {
    until: Time,
}

impl Order {
    /// Whether a packet is late; `behind` if its number is a little lower than the one that is expected.
    pub fn is_late(&mut self, behind: bool, now: Time) -> bool {
        let late = behind && now < self.until;
        if !late {
            self.until = now + OVERTAKEN_FOR;
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_number_is_late_until_there_was_a_pause() {
        let (mut order, start) = (Order::default(), Time::from_nanos(1));
        assert!(!order.is_late(true, start), "the first one of all");
        assert!(!order.is_late(false, start + OVERTAKEN_FOR / 2));
        assert!(order.is_late(true, start + OVERTAKEN_FOR));
        assert!(!order.is_late(true, start + OVERTAKEN_FOR * 2), "a peer that began anew");
    }
}
