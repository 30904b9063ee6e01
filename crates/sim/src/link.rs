//! One direction of a wire between two hosts: how long a packet takes, and what can happen to it on the way. It decides
//! the fate of packets and never sees their bytes; doing to them what was decided is the network's business.

use crate::rng::Rng;
use std::collections::VecDeque;
use transport::Time;

/// How a link carries what a queue pair sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinkKind {
    /// As datagrams: every packet is a frame of Ethernet, IP, UDP and RoCE with its ICRC, parsed and checked on
    /// arrival.
    #[default]
    Datagram,
    /// Trains whole, without IP and ICRC, as a ring in shared memory carries them.
    Whole,
}

/// Random early detection: how a queue marks packets before it is full.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Red {
    /// Bytes that wait, up to which none is marked,
    pub from: u64,
    /// and from which on all are.
    pub all: u64,
    /// The probability just below that; in between it rises evenly.
    pub most: f64,
}

impl Red {
    /// Whether a packet is marked that finds so many bytes waiting.
    pub fn marks(&self, waiting: u64, rng: &mut Rng) -> bool {
        match waiting {
            waiting if waiting >= self.all => true,
            waiting if waiting <= self.from => false,
            waiting => rng.chance(self.most * (waiting - self.from) as f64 / (self.all - self.from) as f64),
        }
    }
}

/// Properties of one direction. They may be changed while the simulation runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkConfig {
    /// How packets are carried.
    pub kind: LinkKind,
    /// Nanoseconds a packet travels.
    pub delay: u64,
    /// Up to this many nanoseconds more, evenly distributed. Order is kept.
    pub jitter: u64,
    /// Bits per second; `None` is a wire that takes no time per byte.
    pub bandwidth: Option<u64>,
    /// Bytes that may wait for a wire with a bandwidth; a packet beyond is dropped.
    pub queue: u64,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplication: f64,
    /// Probability that a packet is held back and overtaken.
    pub reordering: f64,
    /// How long a packet that is to be overtaken is held back, in nanoseconds.
    pub held_back: u64,
    /// Probability that a bit flips.
    pub corruption: f64,
    /// Probability that a packet is marked "congestion experienced".
    pub marking: f64,
    /// Bytes waiting for the wire from which on packets are marked; needs a bandwidth.
    pub mark_above: Option<u64>,
    /// Marks with a probability that rises with what waits for the wire.
    pub red: Option<Red>,
    /// Whole links: bytes the ring holds. Queue pairs wait until there is room.
    pub ring: u64,
}

impl LinkConfig {
    /// A wire of five microseconds that does nothing else.
    pub const PERFECT: LinkConfig = LinkConfig {
        kind: LinkKind::Datagram,
        delay: 5_000,
        jitter: 0,
        bandwidth: None,
        queue: u64::MAX,
        loss: 0.0,
        duplication: 0.0,
        reordering: 0.0,
        held_back: 20_000,
        corruption: 0.0,
        marking: 0.0,
        mark_above: None,
        red: None,
        ring: 1 << 20,
    };

    /// A ring of half a microsecond that carries trains whole.
    pub const WHOLE: LinkConfig = LinkConfig { kind: LinkKind::Whole, delay: 500, ..LinkConfig::PERFECT };

    /// A perfect link of this kind.
    pub const fn of(kind: LinkKind) -> LinkConfig {
        match kind {
            LinkKind::Datagram => LinkConfig::PERFECT,
            LinkKind::Whole => LinkConfig::WHOLE,
        }
    }
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig::PERFECT
    }
}

/// One direction of a wire, in operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) config: LinkConfig,
    /// When the last byte accepted so far will have left.
    busy_until: Time,
    /// When the last packet that keeps its place arrives.
    last_arrival: Time,
    /// The most bytes that have waited.
    pub(crate) most_waiting: u64,
    /// Whole links: bytes sent and not yet consumed.
    pub(crate) in_ring: u64,
    /// Whole links: queue pairs of the sender that wait for room.
    pub(crate) waiting: VecDeque<u32>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Passage {
    /// When it arrives, unless it was lost.
    pub(crate) arrival: Option<Time>,
    /// When it arrives again.
    pub(crate) again: Option<Time>,
    /// Lost because the queue before the wire was full, not by chance.
    pub(crate) overflow: bool,
    /// A bit flips on the way.
    pub(crate) corrupt: bool,
    /// It gets a congestion mark.
    pub(crate) marked: bool,
}

impl Link {
    pub(crate) fn new(config: LinkConfig) -> Link {
        Link { config, ..Link::default() }
    }

    /// Whether a queue pair must wait before it sends more.
    pub(crate) fn is_full(&self) -> bool {
        self.config.kind == LinkKind::Whole && self.in_ring >= self.config.ring
    }

    /// Sends `bytes` at `now`.
    pub(crate) fn pass(&mut self, now: Time, bytes: u64, rng: &mut Rng) -> Passage {
        let LinkConfig { delay, jitter, bandwidth, queue, held_back, .. } = self.config;
        let mut passage = Passage { arrival: None, again: None, overflow: false, corrupt: false, marked: false };
        let mut departure = now;
        if let Some(bandwidth) = bandwidth {
            let waiting = bytes_in(self.busy_until.since(now), bandwidth);
            if waiting.saturating_add(bytes) > queue {
                passage.overflow = true;
                return passage;
            }
            passage.marked = self.config.mark_above.is_some_and(|limit| waiting > limit);
            passage.marked |= self.config.red.is_some_and(|red| red.marks(waiting, rng));
            self.most_waiting = self.most_waiting.max(waiting);
            departure = self.busy_until.max(now).plus_nanos(nanos_of(bytes, bandwidth));
            self.busy_until = departure;
        }
        // A packet that is lost has still taken its time on the wire.
        if rng.chance(self.config.loss) {
            return passage;
        }
        passage.marked |= rng.chance(self.config.marking);
        passage.corrupt = rng.chance(self.config.corruption);
        let mut arrival = departure.plus_nanos(delay);
        if jitter > 0 {
            arrival = arrival.plus_nanos(rng.below(jitter + 1));
        }
        if rng.chance(self.config.reordering) {
            arrival = arrival.plus_nanos(held_back);
        } else {
            arrival = arrival.max(self.last_arrival);
            self.last_arrival = arrival;
        }
        passage.arrival = Some(arrival);
        if rng.chance(self.config.duplication) {
            passage.again = Some(arrival.plus_nanos(rng.below(held_back.saturating_add(1))));
        }
        passage
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

fn nanos_of(bytes: u64, bandwidth: u64) -> u64 {
    let nanos = (u128::from(bytes) * 8 * NANOS_PER_SECOND).div_ceil(u128::from(bandwidth.max(1)));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

fn bytes_in(nanos: u64, bandwidth: u64) -> u64 {
    u64::try_from(u128::from(nanos) * u128::from(bandwidth) / 8 / NANOS_PER_SECOND).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    #[test]
    fn a_perfect_wire_only_delays() {
        let mut link = Link::new(LinkConfig::PERFECT);
        let passage = link.pass(at(7), 4096, &mut Rng::new(0));
        assert_eq!(passage.arrival, Some(at(5_007)));
        assert_eq!((passage.again, passage.overflow, passage.corrupt, passage.marked), (None, false, false, false));
    }

    #[test]
    fn bandwidth_spaces_packets_and_a_full_queue_drops() {
        let config = LinkConfig {
            delay: 0,
            bandwidth: Some(8_000_000_000), // one byte per nanosecond
            queue: 2_500,
            mark_above: Some(999),
            ..LinkConfig::PERFECT
        };
        let mut link = Link::new(config);
        let mut rng = Rng::new(0);
        let passages: Vec<_> = (0..3).map(|_| link.pass(at(0), 1000, &mut rng)).collect();
        assert_eq!((passages[0].arrival, passages[0].marked), (Some(at(1000)), false));
        assert_eq!((passages[1].arrival, passages[1].marked), (Some(at(2000)), true));
        assert!(passages[2].overflow && passages[2].arrival.is_none());
        let later = link.pass(at(2000), 1000, &mut rng);
        assert_eq!((later.arrival, later.marked), (Some(at(3000)), false));
    }

    #[test]
    fn jitter_keeps_order_and_reordering_does_not() {
        let mut rng = Rng::new(3);
        let mut link = Link::new(LinkConfig { jitter: 10_000, ..LinkConfig::PERFECT });
        let arrivals: Vec<_> = (0..100).map(|i| link.pass(at(i), 100, &mut rng).arrival).collect();
        assert!(arrivals.is_sorted());
        link.config.reordering = 0.2;
        let arrivals: Vec<_> = (100..200).map(|i| link.pass(at(i), 100, &mut rng).arrival).collect();
        assert!(!arrivals.is_sorted());
    }

    #[test]
    fn loss_duplication_corruption_and_marks_come_at_their_rates() {
        let config = LinkConfig { loss: 0.1, duplication: 0.2, corruption: 0.3, marking: 0.4, ..LinkConfig::PERFECT };
        let mut link = Link::new(config);
        let mut rng = Rng::new(4);
        let passages: Vec<_> = (0..10_000).map(|i| link.pass(at(i), 100, &mut rng)).collect();
        let rate = |hit: fn(&Passage) -> bool| passages.iter().filter(|passage| hit(passage)).count();
        assert!((850..1150).contains(&rate(|passage| passage.arrival.is_none())));
        assert!((1600..2000).contains(&rate(|passage| passage.again.is_some())));
        assert!((2500..2900).contains(&rate(|passage| passage.corrupt)));
        assert!((3400..3800).contains(&rate(|passage| passage.marked)));
    }
}
