//! Whether a peer can be reached at all, asked before a queue pair is told that it is connected: a wrong address is an
//! error where it is given, not a time-out later. As with kernels, the network is asked for the peer's neighbour, and a
//! call may wait for that; whether a process has the queue pair is not asked.

use crate::ground::Ground;
use crate::links::path::{Link, Path};
use crate::objects::device::Device;
use crate::tuning::NEIGHBOUR_TIMEOUT;
use ::host::descriptor::udp_socket;
use ::host::neighbours::{Search, Unreachable, Way};
use link::udp::{Family, Route};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use transport::{AddressVector, ModifyError};
use wire::{Mtu, Qpn, ROCE_PORT};

impl Ground {
    /// What is in the way from a device's port, which the vector names, to a peer, over packets of up to `mtu` bytes.
    pub(crate) fn obstacle(
        &self,
        device: &Arc<Device>,
        av: &AddressVector,
        peer: Qpn,
        mtu: Option<Mtu>,
        lane: u32,
        neighbour: Neighbour,
    ) -> Result<(), ModifyError> {
        let to = av.dgid.to_ip();
        let no_way = |why| Err(ModifyError::NoWay { to, why });
        let (source, max) = {
            // The transport has looked at the number.
            let port = device.at_port(av.port).unwrap_or(device).port();
            (port.gid(av.sgid_index), port.mtu())
        };
        let Some(source) = source else { return Err(ModifyError::NoSourceAddress { index: av.sgid_index }) };
        if let Some(mtu) = mtu
            && mtu > max
        {
            return Err(ModifyError::MtuTooLarge { mtu, max });
        }
        if av.dgid.is_zero() || av.dgid.is_multicast() {
            return no_way("it is not the address of a single host");
        }
        if source.to_ip().is_ipv4() != to.is_ipv4() {
            return no_way("it is of another family than the source address; choose another AV.sgid_index");
        }
        let Path { link: Link::Udp, route: Some(route), .. } = self.path(device, av, peer, lane) else { return Ok(()) };
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        if let Some(why) = self.links.udp.obstacle(family) {
            return no_way(why);
        }
        match routed(&route) {
            Err(error) if no_route(&error) => no_way("the system has no route to it from the source address"),
            // There is one, or the system had no socket to ask with.
            _ if neighbour == Neighbour::Unasked => Ok(()),
            _ => find_neighbour(&route),
        }
    }
}

/// Whether the network is asked for the neighbour by which a peer is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Neighbour {
    /// It is, and a neighbour that is not known yet is waited for.
    Asked,
    /// Not by a thread that must not wait.
    Unasked,
}

/// Waits until the neighbour is known by which a peer is reached. Mostly it is.
fn find_neighbour(route: &Route) -> Result<(), ModifyError> {
    let way = Way { source: route.source, destination: route.destination, scope: route.scope };
    let found = match Search::begin(way, NEIGHBOUR_TIMEOUT) {
        Ok(Some(search)) => search.wait(),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    match found {
        Err(Unreachable::TimedOut) => Err(ModifyError::NoNeighbour { to: route.destination }),
        // There was a route a moment ago.
        _ => Ok(()),
    }
}

/// Asks the system for a route. Nothing is sent.
fn routed(route: &Route) -> io::Result<()> {
    let socket = udp_socket(at(route.source, 0, route.scope))?;
    socket.connect(at(route.destination, ROCE_PORT, route.scope))
}

fn at(address: IpAddr, port: u16, scope: u32) -> SocketAddr {
    let mut at = SocketAddr::new(address, port);
    if let SocketAddr::V6(at) = &mut at {
        at.set_scope_id(scope);
    }
    at
}

fn no_route(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL))
}
