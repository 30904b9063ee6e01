//! What is simulated: a network, what its hosts do, what goes wrong and when. Everything a run depends on is here, so
//! that the same scenario gives the same bytes.

use crate::topology::{Cables, Shape};
use sim::Red;
use wire::Mtu;

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Where chance begins.
    pub seed: u64,
    /// How many hosts.
    pub hosts: u32,
    /// How they are cabled.
    pub shape: Shape,
    /// With what.
    pub cables: Cables,
    /// What switches do when queues grow.
    pub switch: SwitchConfig,
    /// What senders do when they hear of it.
    pub congestion: Congestion,
    /// The limit of a congestion window, as a socket counts ([`transport::congestion::packet_cost`]).
    pub window: u64,
    /// The longest payload of a packet.
    pub mtu: Mtu,
    /// The local ACK timeout, `4.096 us * 2^timeout`.
    pub timeout: u8,
    /// How often a packet is sent again before the work fails.
    pub retries: u8,
    /// What the hosts do.
    pub workload: Workload,
    /// What goes wrong.
    pub failures: Vec<Failure>,
    /// How long after a link went down or came back flows take other ways, in nanoseconds.
    pub reroute: u64,
    /// When the run ends even if work is left, in nanoseconds.
    pub until: Option<u64>,
    /// Hosts whose packets are captured.
    pub capture: Vec<u32>,
}

/// How a switch treats its queues.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SwitchConfig {
    /// Bytes that all queues of a switch share.
    pub buffer: u64,
    /// Pauses the senders that fill it (IEEE 802.1Qbb). If not, it drops.
    pub pfc: bool,
    /// A queue (without PFC), or what came from one port (with it), may take up to so many times what is free.
    pub alpha: f64,
    /// Marks packets ("congestion experienced") where queues are long.
    pub ecn: Option<Red>,
}

/// How senders react.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Congestion {
    /// By notifications that slow a queue pair down.
    Dcqcn,
    /// By the window towards a destination, which is what ubiverbs does over UDP.
    Window,
    /// Both, as the real NIC has them.
    Both,
    /// Not at all.
    None,
}

impl Congestion {
    /// Names, as scripts have them.
    pub const NAMES: [(&str, Congestion); 4] = [
        ("dcqcn", Congestion::Dcqcn),
        ("window", Congestion::Window),
        ("both", Congestion::Both),
        ("none", Congestion::None),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Congestion::NAMES.iter().find(|(_, other)| *other == self).map_or("", |(name, _)| name)
    }
}

/// What the hosts do. Messages are RDMA WRITEs with immediate data.
#[derive(Clone, PartialEq, Debug)]
pub enum Workload {
    /// `senders` hosts send to host 0, `messages` each.
    Incast {
        /// Hosts 1 to this; 0: all others.
        senders: u32,
        /// Of each message.
        bytes: u32,
        /// From each sender, one after the other.
        messages: u32,
    },
    /// Each host sends to another, and each receives from one.
    Permutation {
        /// Of each message.
        bytes: u32,
        /// From each sender.
        messages: u32,
    },
    /// A ring all-reduce: 2(n-1) steps of a n-th of the vector.
    AllReduceRing {
        /// Of the vector.
        bytes: u32,
    },
    /// An all-reduce up and down a binary tree, in chunks that follow each other.
    AllReduceTree {
        /// Of the vector.
        bytes: u32,
        /// Of a chunk.
        chunk: u32,
    },
    /// Each host sends to each other.
    AllToAll {
        /// Of each message.
        bytes: u32,
        /// How many messages of a host are under way at once.
        parallel: u32,
    },
    /// Messages that a file lists.
    Trace {
        /// The messages.
        messages: Vec<TraceMessage>,
    },
}

impl Workload {
    /// Its name, as scripts have it.
    pub fn name(&self) -> &'static str {
        match self {
            Workload::Incast { .. } => "incast",
            Workload::Permutation { .. } => "permutation",
            Workload::AllReduceRing { .. } => "all-reduce-ring",
            Workload::AllReduceTree { .. } => "all-reduce-tree",
            Workload::AllToAll { .. } => "all-to-all",
            Workload::Trace { .. } => "trace",
        }
    }
}

/// One message of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceMessage {
    /// When it is posted, in nanoseconds.
    pub at: u64,
    /// Who sends it.
    pub from: u32,
    /// To whom.
    pub to: u32,
    /// How long it is.
    pub bytes: u32,
}

/// Something that goes wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Failure {
    /// What.
    pub kind: FailureKind,
    /// Where.
    pub place: FailurePlace,
    /// When it begins, in nanoseconds.
    pub at: u64,
    /// How much later it begins at most, by chance.
    pub within: u64,
    /// How long it lasts, in nanoseconds; none for ever.
    pub lasts: Option<u64>,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FailureKind {
    /// A cable carries nothing, in both directions.
    LinkDown,
    /// It goes down and comes back.
    Flapping {
        /// From one time it goes down to the next, in nanoseconds; it is down half of it.
        period: u64,
    },
    /// It loses packets, in both directions.
    Lossy {
        /// The part that is lost.
        probability: f64,
    },
    /// A host takes what it receives no faster than this.
    SlowHost {
        /// In bit/s.
        rate: u64,
    },
}

/// Where something goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FailurePlace {
    /// A cable between two nodes, by their names.
    Link(String, String),
    /// The cable, or all cables, of a host.
    Host(u32),
    /// So many cables between switches, by chance (of all cables where there are none).
    RandomLinks(u32),
    /// So many hosts, by chance.
    RandomHosts(u32),
}

/// 16 hosts at a switch with 100 Gbit/s, DCQCN on a lossless network, an incast of eight.
impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            seed: 1,
            hosts: 16,
            shape: Shape::Star,
            cables: Cables { host_rate: 100_000_000_000, switch_rate: 100_000_000_000, delay: 600 },
            switch: SwitchConfig {
                buffer: 16 << 20,
                pfc: true,
                alpha: 0.125,
                ecn: Some(red_for_rate(100_000_000_000)),
            },
            congestion: Congestion::Dcqcn,
            window: transport::congestion::STOCK_BUFFER,
            mtu: Mtu::B4096,
            timeout: 12, // 17 ms
            retries: 7,
            workload: Workload::Incast { senders: 8, bytes: 1 << 20, messages: 1 },
            failures: Vec::new(),
            reroute: 100_000,
            until: None,
            capture: Vec::new(),
        }
    }
}

/// What the paper of DCQCN has at 40 Gbit/s (5 KB, 200 KB, 1 %), longer at higher rates.
pub fn red_for_rate(rate: u64) -> Red {
    let scale = |bytes: u64| (u128::from(bytes) * u128::from(rate) / 40_000_000_000).max(1) as u64;
    Red { from: scale(5_000), all: scale(200_000), most: 0.01 }
}
