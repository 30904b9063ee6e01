//! What is counted: per queue pair and connection, and per device.

use crate::device::Context;
use crate::queue_pair::QueuePair;
use crate::transports::Transport;
use std::time::Duration;
use transport::Counters;
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

impl Stats {
    pub(crate) fn new(counters: Counters, congestion: Option<hca::Congestion>) -> Stats {
        let congestion = congestion.map(|hca::Congestion { round_trip_nanos, window, in_flight }| Congestion {
            round_trip: round_trip_nanos.map(Duration::from_nanos),
            window,
            in_flight,
        });
        Stats { traffic: counters.traffic, incidents: counters.incidents, congestion }
    }
}

impl<T: Transport> QueuePair<T> {
    /// What it has counted since it was made, and how congested the way to its peer is. A
    /// [`Connection`](crate::cm::Connection) has this, too.
    pub fn stats(&self) -> Stats {
        self.core().pair().stats()
    }
}

impl Context {
    /// What this process has counted on the device's port since it opened its NIC; what belongs to no queue pair counts
    /// for the device that it opened first.
    ///
    /// ```
    /// let context = ubiverbs::device("ubi_lo")?.open()?;
    /// println!("{} packets sent", context.counters().traffic.sent_packets);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    pub fn counters(&self) -> Counters {
        self.core.opened.counters()
    }

    /// The device's clock as it is now, by which [completions are stamped](crate::CompletionQueueBuilder::timestamps).
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn clock(&self) -> Duration {
        Duration::from_nanos(self.core.opened.clock())
    }

    /// What the device allows.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn limits(&self) -> crate::DeviceLimits {
        self.core.opened.limits()
    }
}
