//! What came of a run: completion times, links, queues, what went wrong; as text, as data (`serde`), as a page.

mod html;
mod text;

use crate::graph::LinkClass;
use crate::network::Network;
use crate::port::{Cable, PICOS_PER_NANO, Port};
use crate::statistics::{Counts, Sample};
use serde::Serialize;

/// See the module.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The network in one line.
    pub network: String,
    /// How many hosts.
    pub hosts: u32,
    /// What they did.
    pub workload: &'static str,
    /// How senders reacted to congestion.
    pub congestion: &'static str,
    /// Where chance began.
    pub seed: u64,
    /// When the last message arrived, in nanoseconds.
    pub finished_at: u64,
    /// Whether all messages arrived.
    pub complete: bool,
    /// How long messages took.
    pub completion: Percentiles,
    /// Bytes of messages a second, all together, in bit/s.
    pub goodput: f64,
    /// Queue pairs that were connected.
    pub queue_pairs: usize,
    /// Links, by kind.
    pub links: Vec<Links>,
    /// Queues.
    pub queues: Queues,
    /// What was counted.
    pub counts: Counts,
    /// The course of the run.
    pub samples: Vec<Sample>,
}

/// Completion times, from posting to arrival, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct Percentiles {
    pub least: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub most: u64,
}

/// Links of one kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Links {
    /// Which.
    pub class: LinkClass,
    /// How many, each direction for itself.
    pub count: usize,
    /// The part of the time in which they sent, on average.
    pub mean_utilisation: f64,
    /// The part of the time in which the busiest sent.
    pub most_utilisation: f64,
    /// Which that is.
    pub busiest: String,
}

/// Queues of ports.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Queues {
    /// The longest that any port had, in bytes.
    pub longest: u64,
    /// Which.
    pub longest_at: String,
    /// What half of the packets found, in bytes.
    pub p50: u64,
    /// What 99 of 100 found at most.
    pub p99: u64,
    /// What 999 of 1000 found at most.
    pub p999: u64,
}

impl Network {
    /// What has come of it.
    pub fn report(&self) -> Report {
        let scenario = self.scenario();
        let (times, finished_at) = self.completions();
        let counts = self.counts();
        let seconds = finished_at as f64 / 1e9;
        let ports: Vec<(&Port, &Cable)> = self.ports().collect();
        let name =
            |(port, cable): (&Port, &Cable)| format!("{} to {}", self.node_name(port.from), self.node_name(cable.to));
        let longest = ports.iter().copied().max_by_key(|(port, _)| port.longest_queue);
        let depths = self.depths();
        Report {
            network: self.summary().to_owned(),
            hosts: scenario.hosts,
            workload: scenario.workload.name(),
            congestion: scenario.congestion.name(),
            seed: scenario.seed,
            finished_at,
            complete: self.is_complete(),
            completion: Percentiles::of(times),
            goodput: if seconds > 0.0 { counts.bytes_received as f64 * 8.0 / seconds } else { 0.0 },
            queue_pairs: self.footprint().queue_pairs,
            links: LinkClass::ALL.iter().filter_map(|class| Links::of(*class, &ports, finished_at, name)).collect(),
            queues: Queues {
                longest: longest.map_or(0, |(port, _)| u64::from(port.longest_queue)),
                longest_at: longest.map_or(String::new(), name),
                p50: depths.quantile(0.5),
                p99: depths.quantile(0.99),
                p999: depths.quantile(0.999),
            },
            counts,
            samples: self.samples().to_vec(),
        }
    }
}

impl Report {
    /// Packets that were dropped, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped_full + self.counts.dropped_down + self.counts.dropped_lost
    }
}

impl Percentiles {
    fn of(times: &[u64]) -> Percentiles {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let Some(last) = sorted.len().checked_sub(1) else { return Percentiles::default() };
        // The least time that is not exceeded by this part of all.
        let at = |part: f64| sorted[((sorted.len() as f64 * part).ceil() as usize).clamp(1, last + 1) - 1];
        Percentiles {
            least: sorted[0],
            mean: sorted.iter().map(|time| *time as f64).sum::<f64>() / sorted.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            most: sorted[last],
        }
    }
}

impl Links {
    fn of(
        class: LinkClass,
        ports: &[(&Port, &Cable)],
        nanos: u64,
        name: impl Fn((&Port, &Cable)) -> String,
    ) -> Option<Links> {
        let of_class = || ports.iter().copied().filter(|(_, cable)| cable.class == class);
        let busy = |(port, _): (&Port, &Cable)| {
            let picos = (u128::from(port.sent_bytes) * u128::from(port.pace)) >> 10;
            if nanos == 0 { 0.0 } else { picos as f64 / (nanos * PICOS_PER_NANO) as f64 }
        };
        let busiest = of_class().max_by_key(|(port, _)| port.sent_bytes)?;
        let count = of_class().count();
        Some(Links {
            class,
            count,
            mean_utilisation: of_class().map(busy).sum::<f64>() / count as f64,
            most_utilisation: busy(busiest),
            busiest: name(busiest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<u64> = (1..=1000).rev().collect();
        let percentiles = Percentiles::of(&times);
        let Percentiles { least, mean, p50, p90, p99, p999, most } = percentiles;
        assert_eq!([least, p50, p90, p99, p999, most], [1, 500, 900, 990, 999, 1000]);
        assert_eq!(mean, 500.5);
        assert_eq!(Percentiles::of(&[7]).p999, 7);
        assert_eq!(Percentiles::of(&[]), Percentiles::default());
    }
}
