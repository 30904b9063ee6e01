//! The way to a peer: over which link, and from which of our addresses.

use crate::links::registry::LinkEntry;
use link::Handling;
use link::shared::Outbound;
use link::udp::Route;
use std::net::IpAddr;
use std::sync::Arc;
use wire::{Ecn, Gid, Headers, IpHeader, Ipv4Header, Ipv6Header, Opcode, grh_bytes};

/// How packets reach a peer.
#[derive(Clone, Debug, Default)]
pub(crate) enum Link {
    /// Not known, or there is none: packets are dropped, as a network without a route drops them.
    #[default]
    None,
    /// The port is down: packets are dropped.
    Down,
    /// What is sent there disappears, as a failure script wants it; what comes from there is taken.
    BlackHole,
    /// A link that is used through the trait alone, such as the one inside the process.
    General(Arc<LinkEntry>),
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
            Link::Down => "none: the port is down",
            Link::BlackHole => "none: a black hole",
            Link::General(entry) => entry.link().name(),
            Link::Shared(_) => "shared memory",
            Link::Udp => "UDP",
        }
    }
}

impl Link {
    /// Whether nothing gets through, on purpose.
    pub fn is_cut(&self) -> bool {
        matches!(self, Link::Down | Link::BlackHole)
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
    /// Whether what is under way has to be limited: sent too fast, it would be lost. A ring is never too full, as its
    /// writer looks for room first; and trains that fill a wide window would be too long for it.
    pub fn needs_windows(&self) -> bool {
        match &self.link {
            Link::General(entry) => !entry.link().is_lossless(),
            Link::Shared(_) => false,
            Link::None | Link::Down | Link::BlackHole | Link::Udp => true,
        }
    }

    /// The route for a train with these headers: a congestion notification takes no marks, everything else does.
    #[inline]
    pub fn route_of(&self, headers: &Headers) -> Option<Route> {
        let mut route = self.route?;
        if headers.bth.opcode == Opcode::Cnp {
            route.traffic_class = Ecn::of_sent(Opcode::Cnp).in_class(route.traffic_class);
        }
        Some(route)
    }

    /// How the network is to handle what goes this way.
    pub fn handling(&self) -> Handling {
        self.route.as_ref().map_or(Handling::USUAL, |route| Handling {
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
        })
    }
}

/// What a receiver of datagrams sees before the data, where no packet was.
pub(crate) fn local_grh((source, destination): (Gid, Gid), handling: Handling, length: usize) -> [u8; 40] {
    let ip = match (source.to_ip(), destination.to_ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Ipv4Header::udp(source, destination, length)
            .map(|ip| IpHeader::V4(Ipv4Header { tos: handling.traffic_class, ttl: handling.hops(), ..ip })),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Ipv6Header::udp(source, destination, length).map(|ip| {
            IpHeader::V6(Ipv6Header { traffic_class: handling.traffic_class, hop_limit: handling.hops(), ..ip })
        }),
        _ => return [0; 40],
    };
    ip.map_or([0; 40], |ip| grh_bytes(&ip))
}

/// The interface that packets to an address must leave by, or 0 if routes know: groups and link-local addresses mean
/// something on one link only.
pub(crate) fn scope(address: IpAddr, interface: u32) -> u32 {
    let bound = match address {
        IpAddr::V4(address) => address.is_multicast(),
        IpAddr::V6(address) => address.is_multicast() || address.is_unicast_link_local(),
    };
    if bound { interface } else { 0 }
}
