//! What is counted: per queue pair and connection, and per device.

use std::time::Duration;
use transport::packet_counters::{Incidents, Traffic};

/// What a queue pair has counted since it was made, and how congested the way to its peer is. In the words of the
/// counters that `ubiverbs` and `rdma statistic` show.
///
/// ```
/// # use ubiverbs::Reliable;
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// let receiving = b.recv(pd.allocate(64)?)?;
/// a.send_inline(b"hello")?.wait()?;
/// receiving.wait()?;
///
/// let stats = a.stats();
/// assert_eq!((stats.traffic.sends, stats.incidents.retries), (1, 0));
/// assert_eq!(b.stats().traffic.receives, 1);
/// if let Some(congestion) = stats.congestion {
///     println!("round trip {:?}, window {} bytes", congestion.round_trip, congestion.window);
/// }
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Packets, octets and messages.
    pub traffic: Traffic,
    /// Retransmissions, refusals because the receiver was not ready, and whatever else does not happen to every
    /// message.
    pub incidents: Incidents,
    /// How congested the way to its peer is; none where nothing can get lost, as through shared memory.
    pub congestion: Option<Congestion>,
}

impl Stats {
    /// What a queue pair has counted.
    #[doc(hidden)] // for NICs
    pub fn new(traffic: Traffic, incidents: Incidents, congestion: Option<Congestion>) -> Stats {
        Stats { traffic, incidents, congestion }
    }
}

/// How congested the way to another process is. All queue pairs of this process that lead there have this in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Congestion {
    /// The smoothed round trip, once one was measured.
    pub round_trip: Option<Duration>,
    /// How many bytes may be on their way, counted as they fill the peer's socket buffer: with headers, and rounded up.
    pub window: u64,
    /// How many are.
    pub in_flight: u64,
}

impl Congestion {
    /// How congested a way is.
    #[doc(hidden)] // for NICs
    pub fn new(round_trip: Option<Duration>, window: u64, in_flight: u64) -> Congestion {
        Congestion { round_trip, window, in_flight }
    }
}
