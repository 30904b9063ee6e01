//! A port: where packets wait for a cable, and the cable. Also the node they wait in, whose buffer they share.

use crate::graph::{Edge, LinkClass, Node};

/// Picoseconds in a nanosecond: the clock counts nanoseconds, cables count finer, so that no rounding adds up.
pub(crate) const PICOS_PER_NANO: u64 = 1000;

/// One direction of a cable, and what waits for it: what every packet needs, in one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Port {
    /// When the cable is free, in picoseconds.
    pub busy_until: u64,
    /// Picoseconds for 1024 bytes.
    pub pace: u64,
    /// Packets that wait, and those that nothing delays.
    pub queued: u32,
    pub urgent: u32,
    /// Bytes that wait, and the most there were: less than the buffer, which is no larger than 1 GiB.
    pub waiting: u32,
    pub longest_queue: u32,
    pub sent_bytes: u64,
    /// In nanoseconds.
    pub delay: u32,
    pub from: Node,
    /// The list of queue pairs that send here, if it is a host's.
    pub nic: u32,
    /// The node it leads to has asked for a pause.
    pub paused: bool,
    /// A wake-up is planned.
    pub awaited: bool,
    pub down: bool,
}

/// What is rarely needed of a port.
#[derive(Clone, Debug)]
pub(crate) struct Cable {
    pub to: Node,
    pub class: LinkClass,
    pub loss: f64,
    pub paused_since: u64,
}

/// What a port has brought into the node it leads to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ingress {
    /// Bytes that wait there.
    pub held: u64,
    /// The node has asked for a pause.
    pub pause_asked: bool,
}

impl Port {
    pub fn new(edge: &Edge, nic: u32) -> Port {
        Port {
            busy_until: 0,
            pace: pace(edge.rate),
            queued: 0,
            urgent: 0,
            waiting: 0,
            longest_queue: 0,
            sent_bytes: 0,
            delay: edge.delay as u32,
            from: edge.from,
            nic,
            paused: false,
            awaited: false,
            down: false,
        }
    }
}

impl Cable {
    pub fn new(edge: &Edge) -> Cable {
        Cable { to: edge.to, class: edge.class, loss: 0.0, paused_since: 0 }
    }
}

/// Picoseconds that 1024 bytes take at a rate in bit/s.
pub(crate) fn pace(rate: u64) -> u64 {
    (1024 * 8 * 1_000_000_000_000u128 / u128::from(rate.max(1))) as u64
}

/// The buffer of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    /// Bytes in all its queues.
    pub used: u64,
    /// What is kept free for packets under way when a pause is asked for.
    pub headroom: u64,
    /// The port to itself of a slow host, by which it takes what it received.
    pub service: u32,
}
