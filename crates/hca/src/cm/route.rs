//! Addresses: which device an address of this host is on, and from which of them a peer is reached. The kernel's
//! routing decides; nothing is sent.

use super::error::CmError;
use crate::nic::Nic;
use crate::objects::device::Device;
use ::cm::IdError;
use ::cm::id::LocalAddress;
use ::cm::id::address::{is_link_local, with_scope};
use ::host::descriptor::udp_socket;
use profiles::Feature;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use wire::{Gid, ROCE_PORT};

/// A device and an address of one of its ports.
#[derive(Clone, Debug)]
pub(crate) struct DeviceAddress {
    pub device: Arc<Device>,
    pub port: u8,
    pub gid: Gid,
    pub index: u8,
}

impl DeviceAddress {
    /// It as ids know it.
    pub fn local(&self) -> LocalAddress {
        let DeviceAddress { device, port, gid, index } = self;
        let (mtu, ca_guid, interface) = (device.port().mtu(), device.guid(), device.interface_index());
        LocalAddress { gid: *gid, port: *port, index: *index, mtu, ca_guid, interface }
    }

    /// That address of one of a device's ports.
    fn on(device: &Arc<Device>, gid: Gid) -> Option<DeviceAddress> {
        device.ports().find_map(|port| {
            // Of two entries of one address the second is that of RoCE version 2.
            let index = port.port().gids.iter().rposition(|entry| *entry == Some(gid))?;
            let (device, port) = (Arc::clone(device), port.port_number());
            Some(DeviceAddress { device, port, gid, index: u8::try_from(index).ok()? })
        })
    }
}

impl Nic {
    /// The device that has an address of this host, among those that programs may see.
    pub(crate) fn place(&self, address: IpAddr, scope: u32) -> Result<DeviceAddress, CmError> {
        // Or an address that was given a moment ago.
        let found = self.known_place(address, scope).or_else(|| {
            self.follow_interfaces().ok()?;
            self.known_place(address, scope)
        });
        let gid = Gid::from_ip(address);
        let refused = |device: Arc<Device>| DeviceAddress::on(&device, gid).and(device.offers(Feature::Manager).err());
        if found.is_none()
            && let Some(refusal) = self.shown_devices().into_iter().find_map(refused)
        {
            return Err(refusal.into());
        }
        found.ok_or_else(|| match udp_socket(with_scope(address, 0, scope)) {
            Ok(_) => CmError::NoDevice(address),
            Err(_) => IdError::NotLocal(address).into(),
        })
    }

    /// Where a destination on the loopback is reached from if programs may not see the loopback's device: the first
    /// device that they may, as kernels have it, from an address of the same family if it has one.
    pub(crate) fn loopback_place(&self, destination: IpAddr) -> Option<DeviceAddress> {
        let device = self.shown_devices().into_iter().find(|device| device.port().active)?;
        let gids: Vec<Gid> = device.port().gids.iter().flatten().copied().collect();
        let same = gids.iter().find(|gid| gid.to_ip().is_ipv4() == destination.is_ipv4());
        DeviceAddress::on(&device, *same.or(gids.first())?)
    }

    /// A GID of a link says by itself which of the host's links it is on: that of the source, or else the first one that
    /// has such addresses.
    pub(crate) fn on_a_link(&self, destination: SocketAddr, source: Option<IpAddr>, by_gid: bool) -> SocketAddr {
        if !by_gid || !is_link_local(destination.ip()) || scope_of(destination) != 0 {
            return destination;
        }
        let is_on = |device: &Arc<Device>| {
            let port = device.port();
            port.active
                && port.gids.iter().flatten().any(|gid| match source {
                    Some(source) => gid.to_ip() == source,
                    None => is_link_local(gid.to_ip()),
                })
        };
        let device = self.shown_devices().into_iter().find(is_on);
        with_scope(destination.ip(), destination.port(), device.map_or(0, |device| device.interface_index()))
    }

    /// The NIC that has a loopback address, if several share the loopback; the first of them, which has the usual one,
    /// is left out.
    pub(crate) fn place_on_shared_loopback(&self, address: IpAddr) -> Option<DeviceAddress> {
        let place = self.known_place(address, 0)?;
        let is_meant = place.device.nic_position().is_some() && place.gid != Gid::from_ipv4(Ipv4Addr::LOCALHOST);
        is_meant.then_some(place)
    }

    /// What [`place`](Nic::place) returns, as far as it is known already.
    pub(crate) fn known_place(&self, address: IpAddr, scope: u32) -> Option<DeviceAddress> {
        let gid = Gid::from_ip(address);
        let find = |mut devices: Vec<Arc<Device>>, gid: Gid| {
            devices.retain(|device| device.offers(Feature::Manager).is_ok());
            let is_there = |device: &&Arc<Device>| scope == 0 || device.interface_index() == scope;
            devices.iter().filter(is_there).find_map(|device| DeviceAddress::on(device, gid))
        };
        find(self.shown_devices(), gid).or_else(|| {
            // All of 127/8 is this host's, though the interface has one of them.
            let local = address.is_ipv4() && address.is_loopback();
            find(self.shown_devices(), Gid::from_ipv4(Ipv4Addr::LOCALHOST)).filter(|_| local)
        })
    }
}

/// The address from which the system reaches `destination`. `source` may have chosen already.
pub(crate) fn source_for(source: Option<IpAddr>, destination: SocketAddr) -> Result<IpAddr, CmError> {
    let no_route = |source| CmError::NoRoute { to: destination.ip(), source };
    let any = match destination {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let from = source.unwrap_or(any);
    let scope = scope_of(destination);
    let socket = udp_socket(with_scope(from, 0, scope)).map_err(no_route)?;
    socket.connect(with_scope(destination.ip(), ROCE_PORT, scope)).map_err(no_route)?;
    Ok(socket.local_addr().map_err(no_route)?.ip())
}

/// Where a request to nowhere in particular goes: this host.
pub(crate) fn concrete(destination: SocketAddr, source: Option<IpAddr>) -> SocketAddr {
    if !destination.ip().is_unspecified() {
        return destination;
    }
    let here = source.unwrap_or(match destination {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    });
    with_scope(here, destination.port(), scope_of(destination))
}

/// The interface that a link-local address means.
pub(crate) fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}
