//! What this NIC notices of congestion, under the names that mlx5 counts it by.

use std::sync::atomic::{AtomicU64, Ordering};
use transport::Congestion;

/// How often congestion was noticed, since the NIC was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CongestionCounters {
    /// Packets that came with a mark of the network.
    pub np_ecn_marked_roce_packets: u64,
    /// Notifications sent because of them.
    pub np_cnp_sent: u64,
    /// Notifications that came and slowed a queue pair down.
    pub rp_cnp_handled: u64,
    /// Notifications that came and were not believed: too soon after another, or from a stranger.
    pub rp_cnp_ignored: u64,
}

/// The counts as they grow.
#[derive(Debug, Default)]
pub(crate) struct CongestionCounts {
    marked: AtomicU64,
    notified: AtomicU64,
    believed: AtomicU64,
    ignored: AtomicU64,
}

impl CongestionCounts {
    #[cold]
    pub fn count(&self, what: Congestion) {
        let (counter, more) = match what {
            Congestion::Marked(packets) => (&self.marked, packets.into()),
            Congestion::Notified => (&self.notified, 1),
            Congestion::Believed => (&self.believed, 1),
            Congestion::Ignored => (&self.ignored, 1),
        };
        counter.fetch_add(more, Ordering::Relaxed);
    }

    pub fn read(&self) -> CongestionCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CongestionCounters {
            np_ecn_marked_roce_packets: value(&self.marked),
            np_cnp_sent: value(&self.notified),
            rp_cnp_handled: value(&self.believed),
            rp_cnp_ignored: value(&self.ignored),
        }
    }
}
