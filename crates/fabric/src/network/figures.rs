//! What reports read of a network.

use super::Network;
use crate::port::{Cable, Port};
use crate::scenario::Scenario;
use crate::statistics::{Counts, QueueDepths, Sample};

impl Network {
    pub(crate) fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub(crate) fn summary(&self) -> &str {
        &self.topology.summary
    }

    /// Ports that have cables; the others are slow hosts'.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (&Port, &Cable)> + Clone {
        self.ports.iter().zip(&self.cables).take(self.topology.graph.edges.len())
    }

    /// Whether everything that was to be done is, and well.
    pub(crate) fn is_complete(&self) -> bool {
        let counts = &self.counts;
        self.started && self.is_over() && counts.messages_failed == 0 && counts.messages == self.program.messages()
    }

    pub(crate) fn node_name(&self, node: u32) -> String {
        self.topology.graph.name(node)
    }

    pub(crate) fn depths(&self) -> &QueueDepths {
        &self.depths
    }

    pub(crate) fn samples(&self) -> &[Sample] {
        &self.course.samples
    }

    /// Completion times and when the last message arrived.
    pub(crate) fn completions(&self) -> (&[u64], u64) {
        (&self.times, self.last)
    }

    /// Everything that was counted, by queue pairs too.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.counts;
        (counts.retries, counts.timeouts) = self.retired;
        for live in self.endpoints.iter().filter_map(|endpoint| endpoint.live.as_ref()) {
            let incidents = live.qp.counters().incidents;
            counts.retries += incidents.retries;
            counts.timeouts += incidents.timeouts;
        }
        let now = self.now();
        counts.paused_nanos += (self.ports.iter().zip(&self.cables))
            .filter(|(port, _)| port.paused)
            // Another region may be ahead of the clock.
            .map(|(_, cable)| now.saturating_sub(cable.paused_since))
            .sum::<u64>();
        counts
    }
}
