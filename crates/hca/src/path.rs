//! The way to a peer: over which link, and from which of our addresses.

use link::udp::Route;
use wire::Gid;

/// How packets reach a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Link {
    /// Not known, or there is none: packets are dropped, as a network without a route drops them.
    #[default]
    None,
    /// The peer is in this process.
    Process,
    /// The peer is on another host, or in another process.
    Udp,
}

/// The way to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Path {
    pub link: Link,
    /// Our address on it.
    pub source: Gid,
    /// The peer's.
    pub destination: Gid,
    pub route: Option<Route>,
}
