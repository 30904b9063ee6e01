//! What is counted while a network runs.

use serde::Serialize;

/// Numbers of the whole network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Packets that hosts sent.
    pub packets_sent: u64,
    /// Of these, packets that had been sent before.
    pub retransmitted: u64,
    /// Acknowledgements and refusals among them.
    pub acknowledgements: u64,
    /// Packets that reached their host.
    pub packets_delivered: u64,
    /// Packets that found no room in a switch.
    pub dropped_full: u64,
    /// Packets on a link that was down.
    pub dropped_down: u64,
    /// Packets that a lossy cable lost.
    pub dropped_lost: u64,
    /// Packets that switches marked.
    pub marked: u64,
    /// Congestion notifications sent.
    pub notifications: u64,
    /// Pauses that were asked for (PFC).
    pub pauses: u64,
    /// For how long ports were paused, all together, in nanoseconds.
    pub paused_nanos: u64,
    /// How often queue pairs went back to send again.
    pub retries: u64,
    /// Of these, because nothing came in time.
    pub timeouts: u64,
    /// Messages that were posted.
    pub messages: u64,
    /// Messages that arrived.
    pub messages_received: u64,
    /// Messages that failed.
    pub messages_failed: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Things that happened: a packet arrived, a port became free, a timer fired.
    pub events: u64,
}

/// How many packets found how long a queue, in steps of a quarter of a power of two.
#[derive(Clone, Debug)]
pub(crate) struct QueueDepths {
    counts: Vec<u64>,
}

impl QueueDepths {
    pub fn new() -> QueueDepths {
        QueueDepths { counts: vec![0; 256] }
    }

    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.counts[Self::step(bytes)] += 1;
    }

    fn step(bytes: u64) -> usize {
        if bytes < 4 {
            return bytes as usize;
        }
        let exponent = 63 - bytes.leading_zeros();
        (exponent * 4) as usize + ((bytes >> (exponent - 2)) & 3) as usize - 4
    }

    /// The least length of a step.
    fn least(step: usize) -> u64 {
        if step < 4 {
            return step as u64;
        }
        let (exponent, quarter) = ((step + 4) / 4, (step + 4) % 4);
        (4 + quarter as u64) << (exponent - 2)
    }

    /// The length that this part of all packets did not exceed (to the next step).
    pub fn quantile(&self, part: f64) -> u64 {
        let all: u64 = self.counts.iter().sum();
        let wanted = (all as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (step, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Self::least(step);
            }
        }
        0
    }
}

/// One point of the course of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sample {
    /// When, in nanoseconds.
    pub at: u64,
    /// Bytes of messages that had arrived at hosts by then, in packets.
    pub delivered: u64,
    /// Bytes that wait in all queues.
    pub queued: u64,
    /// The longest queue since the last sample.
    pub longest_queue: u64,
    /// Packets dropped so far.
    pub dropped: u64,
    /// Packets marked so far.
    pub marked: u64,
    /// Ports that are paused.
    pub paused: u64,
    /// Messages received so far.
    pub messages: u64,
}

/// Samples in even steps. When there are too many every second is forgotten and steps are twice as long.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub samples: Vec<Sample>,
    pub step: u64,
}

impl Course {
    const MAX_SAMPLES: usize = 400;

    pub fn new() -> Course {
        Course { samples: Vec::new(), step: 1_000 }
    }

    pub fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
        if self.samples.len() >= Self::MAX_SAMPLES {
            let mut nth = 0;
            self.samples.retain(|_| {
                nth += 1;
                nth % 2 == 0
            });
            self.step *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_depth_are_in_order_and_without_gaps() {
        for bytes in 0..100_000u64 {
            let step = QueueDepths::step(bytes);
            assert!(QueueDepths::least(step) <= bytes && bytes < QueueDepths::least(step + 1), "{bytes}");
        }
        assert!(QueueDepths::step(u64::MAX) < 256);
    }

    #[test]
    fn a_quantile_is_found_to_the_next_step() {
        let mut depths = QueueDepths::new();
        assert_eq!(depths.quantile(0.5), 0);
        for bytes in 0..1000 {
            depths.add(bytes);
        }
        assert_eq!([depths.quantile(0.0), depths.quantile(0.5), depths.quantile(1.0)], [0, 448, 896]);
    }

    #[test]
    fn a_long_course_is_thinned_out() {
        let mut course = Course::new();
        let mut at = 0;
        for _ in 0..2_000 {
            at += course.step;
            course.add(Sample { at, ..Sample::default() });
        }
        assert!(course.samples.len() < Course::MAX_SAMPLES);
        assert!(course.samples.windows(2).all(|pair| pair[0].at < pair[1].at));
    }
}
