//! The way to a peer: over which link, and from which of our addresses.

use link::shared::Outbound;
use link::udp::Route;
use std::sync::Arc;
use wire::Gid;

/// How packets reach a peer.
#[derive(Clone, Debug, Default)]
pub(crate) enum Link {
    /// Not known, or there is none: packets are dropped, as a network without a route drops them.
    #[default]
    None,
    /// The peer is in this process.
    Process,
    /// The peer is in another process of this host and user.
    Shared(Arc<Outbound>),
    /// The peer is on another host, or in another process that is not reached through shared memory.
    Udp,
}

impl Link {
    /// In words.
    pub fn name(&self) -> &'static str {
        match self {
            Link::None => "none",
            Link::Process => "inside the process",
            Link::Shared(_) => "shared memory",
            Link::Udp => "UDP",
        }
    }
}

/// The way to a peer.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Path {
    pub link: Link,
    /// Our address on it.
    pub source: Gid,
    /// The peer's.
    pub destination: Gid,
    pub route: Option<Route>,
}

impl Path {
    /// Whether nothing is lost on the way.
    pub fn is_lossless(&self) -> bool {
        matches!(self.link, Link::Process | Link::Shared(_))
    }
}
