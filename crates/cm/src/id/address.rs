//! Addresses of a host as ids use them, and the way between two of them.

use core::net::{IpAddr, SocketAddr, SocketAddrV6};

use wire::{Gid, Mtu};

/// An address of this host, and what its driver knows of the device that has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalAddress {
    /// The address.
    pub gid: Gid,
    /// The port of the device that has it.
    pub port: u8,
    /// Its index in the port's table.
    pub index: u8,
    /// The largest path MTU of the device.
    pub mtu: Mtu,
    /// The device's globally unique identifier.
    pub ca_guid: u64,
    /// The number of its network interface: the scope of link-local addresses.
    pub interface: u32,
}

impl LocalAddress {
    /// An IP address of this device's link, with the scope that it needs to mean something.
    pub(super) fn scoped(&self, address: IpAddr, port: u16) -> SocketAddr {
        with_scope(address, port, if is_link_local(address) { self.interface } else { 0 })
    }
}

/// The way between two addresses, as a path record tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathFacts {
    /// Our address.
    pub sgid: Gid,
    /// The peer's.
    pub dgid: Gid,
    /// Our address in the device's table.
    pub sgid_index: u8,
    /// The most payload of a packet.
    pub mtu: Mtu,
    /// IP type of service.
    pub traffic_class: u8,
    /// IPv6 flow label, and what a RoCE peer may make its source port of.
    pub flow_label: u32,
    /// IP time to live.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: u8,
    /// How long a packet lives, as `4.096 us * 2^n`.
    pub packet_lifetime: u8,
}

/// A socket address with the scope of an IPv6 one.
pub fn with_scope(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    match address {
        IpAddr::V6(address) => SocketAddr::V6(SocketAddrV6::new(address, port, 0, scope)),
        IpAddr::V4(_) => SocketAddr::new(address, port),
    }
}

/// Whether an address belongs to no device in particular: a wildcard, or a loopback address.
pub fn is_anywhere(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

/// Whether an address means something only on its own link.
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80)
}
