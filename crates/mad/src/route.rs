//! Addresses of datagrams.

use wire::{Gid, Qpn};

/// From which of our addresses to which other one, or the reverse for what arrived: always seen from this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Route {
    /// Ours.
    pub local: Gid,
    /// The other's.
    pub remote: Gid,
    /// The queue pair there, mostly 1.
    pub qpn: Qpn,
    /// The class of the packet.
    pub traffic_class: u8,
    /// How far it goes, or how far it could still have gone.
    pub hop_limit: u8,
    /// The flow it belongs to.
    pub flow_label: u32,
}

/// Whom a program wants to send to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// An address, with a global route header.
    Address(Route),
    /// A LID. A RoCE port has none; see [`path`](crate::path).
    Lid(u16),
}
