//! A packet that has arrived at the host's UDP port, as the process that received it sees it, or the process that it
//! was forwarded to.

use std::net::Ipv4Addr;
use wire::{Gid, Headers, IpHeader, Ipv4Header};

/// How a packet came to this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// By a UDP socket of this process.
    Socket,
    /// By a UDP socket of another process of this host, which passed it on.
    Forwarded,
    /// A process of this host wrote it for this one. The kernel says which process, and it speaks for itself only.
    Local,
}

/// A packet that arrived undamaged.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its headers.
    pub headers: Headers,
    /// Its payload without pad.
    pub payload: &'a [u8],
    /// The IP header it came with, as far as a socket sees it.
    pub ip: IpHeader,
    /// The packet as it was on the wire, from the BTH to the ICRC: what is forwarded to another process.
    pub bytes: &'a [u8],
    /// The sender's UDP port.
    pub port: u16,
    /// The interface it came in by; 0 if another process passed it on.
    pub interface: u32,
    /// A router marked it "congestion experienced".
    pub congestion_marked: bool,
    /// How it came here.
    pub origin: Origin,
}

impl Arrival<'_> {
    /// None yet.
    pub const NONE: Arrival<'static> = Arrival {
        headers: Headers::NONE,
        payload: &[],
        ip: IpHeader::V4(Ipv4Header {
            tos: 0,
            total_length: 0,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 0,
            protocol: 0,
            source: Ipv4Addr::UNSPECIFIED,
            destination: Ipv4Addr::UNSPECIFIED,
        }),
        bytes: &[],
        port: 0,
        interface: 0,
        congestion_marked: false,
        origin: Origin::Socket,
    };

    /// The sender's address.
    pub fn source(&self) -> Gid {
        match self.ip {
            IpHeader::V4(ip) => Gid::from_ipv4(ip.source),
            IpHeader::V6(ip) => Gid::from_ipv6(ip.source),
        }
    }

    /// Sent to all in a multicast group.
    pub fn is_multicast(&self) -> bool {
        match self.ip {
            IpHeader::V4(ip) => ip.destination.is_multicast(),
            IpHeader::V6(ip) => ip.destination.is_multicast(),
        }
    }

    /// The address it was sent to.
    pub fn destination(&self) -> Gid {
        match self.ip {
            IpHeader::V4(ip) => Gid::from_ipv4(ip.destination),
            IpHeader::V6(ip) => Gid::from_ipv6(ip.destination),
        }
    }
}
