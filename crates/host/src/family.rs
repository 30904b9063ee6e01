//! The sockets that share the host's UDP port differ in their address family and in what they receive.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What a socket receives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// What is sent to any address of the host.
    Everywhere,
    /// What is sent to 127.0.0.1, and then no socket of the other kind gets it. The kernel need not tell where packets
    /// went and how they came: each note of its takes time.
    Inside,
}

impl Scope {
    /// Where such a socket is bound.
    pub fn address(self, family: Family) -> IpAddr {
        match (self, family) {
            (Scope::Inside, _) => Ipv4Addr::LOCALHOST.into(),
            (Scope::Everywhere, Family::V4) => Ipv4Addr::UNSPECIFIED.into(),
            (Scope::Everywhere, Family::V6) => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Where it can be reached from this host, and no socket of the other kind.
    pub fn reach(self, family: Family) -> IpAddr {
        match (self, family) {
            (Scope::Inside, _) => Ipv4Addr::LOCALHOST.into(),
            (Scope::Everywhere, Family::V4) => Ipv4Addr::new(127, 0, 0, 2).into(),
            (Scope::Everywhere, Family::V6) => Ipv6Addr::LOCALHOST.into(),
        }
    }
}
