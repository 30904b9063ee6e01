//! Multicast groups: which datagram queue pairs get what is sent to a group. The host's kernel brings a packet to every process that joined its
//! group, also to the one that sent it; here each attached queue pair gets a copy.

use crate::nic::{Error, Nic};
use crate::queue_pair::Qp;
use link::udp::{Arrival, Group};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use transport::Kind;
use wire::{Gid, Qpn};

/// The most queue pairs of a process in one group.
pub const MAX_MEMBERS: u32 = 1 << 12;

/// The most groups of a process over IPv4 where the system does not say.
const USUAL_GROUPS: u32 = 20;

/// How many groups a process may be in: what the system allows a socket. IPv6 allows more.
pub fn max_groups() -> u32 {
    let said = std::fs::read_to_string("/proc/sys/net/ipv4/igmp_max_memberships");
    said.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_GROUPS)
}

/// Who is in which group. Never locked while a socket is: whoever receives has its socket first.
#[derive(Debug, Default)]
pub(crate) struct Groups(RwLock<HashMap<Group, Vec<Qpn>>>);

impl Groups {
    /// True if it was not in it before.
    fn enter(&self, group: Group, qpn: Qpn) -> Result<bool, Error> {
        let mut groups = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let members = groups.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(false);
        }
        if members.len() >= MAX_MEMBERS as usize {
            return Err(Error::Exhausted { what: "places in a multicast group", limit: MAX_MEMBERS });
        }
        members.push(qpn);
        Ok(true)
    }

    /// True if it was in it.
    fn exit(&self, group: Group, qpn: Qpn) -> bool {
        let mut groups = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let Some(members) = groups.get_mut(&group) else { return false };
        let before = members.len();
        members.retain(|member| *member != qpn);
        let found = members.len() < before;
        if members.is_empty() {
            groups.remove(&group);
        }
        found
    }

    /// The groups a queue pair is in.
    fn of(&self, qpn: Qpn) -> Vec<Group> {
        let groups = self.0.read().unwrap_or_else(PoisonError::into_inner);
        groups.iter().filter(|(_, members)| members.contains(&qpn)).map(|(group, _)| *group).collect()
    }
}

impl Qp {
    /// Attaches a datagram queue pair to a multicast group, by its GID: from now on it gets what is sent to the group over the network of its device.
    /// Once is enough; a second time changes nothing. Waits for whoever receives, so it must not be called while packets are taken.
    pub fn attach(&self, nic: &Nic, group: Gid) -> Result<(), Error> {
        let group = self.group(group)?;
        nic.udp.join(group).map_err(|source| Error::System { what: "cannot join the multicast group", source })?;
        match nic.groups.enter(group, self.qpn()) {
            Ok(true) => Ok(()),
            // The socket was in it already, for this queue pair.
            known => {
                nic.udp.leave(group);
                known.map(drop)
            }
        }
    }

    /// Detaches it from a group.
    pub fn detach(&self, nic: &Nic, group: Gid) -> Result<(), Error> {
        let group = self.group(group)?;
        if !nic.groups.exit(group, self.qpn()) {
            return Err(Error::NotAttached { group: group.address });
        }
        nic.udp.leave(group);
        Ok(())
    }

    /// Whether it is attached to any group.
    pub fn is_attached(&self, nic: &Nic) -> bool {
        self.kind() == Kind::UnreliableDatagram && !nic.groups.of(self.qpn()).is_empty()
    }

    fn group(&self, gid: Gid) -> Result<Group, Error> {
        let address = gid.to_ip();
        if self.kind() != Kind::UnreliableDatagram || !address.is_multicast() {
            return Err(Error::NoGroup { address });
        }
        let device = self.context().device();
        let on_loopback = device.port().gids.iter().flatten().any(|gid| gid.to_ip().is_loopback());
        if on_loopback && address.is_ipv6() {
            // It would be joined, and silent.
            let source = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
            return Err(Error::System { what: "IPv6 has no multicast on the loopback device", source });
        }
        Ok(Group { address, interface: device.interface_index() })
    }
}

impl Nic {
    /// Detaches a queue pair from all its groups.
    pub(crate) fn detach_all(&self, qp: &Qp) {
        if qp.kind() != Kind::UnreliableDatagram {
            return;
        }
        for group in self.groups.of(qp.qpn()) {
            if self.groups.exit(group, qp.qpn()) {
                self.udp.leave(group);
            }
        }
    }

    /// The queue pairs that a packet to a group is for.
    pub(crate) fn members(&self, arrival: &Arrival<'_>, mut each: impl FnMut(&Arc<Qp>)) {
        let group = Group { address: arrival.destination().to_ip(), interface: arrival.interface };
        let groups = self.groups.0.read().unwrap_or_else(PoisonError::into_inner);
        for qpn in groups.get(&group).into_iter().flatten() {
            let Some(qp) = self.qp(*qpn) else { continue };
            if !(qp.ignores_own() && self.is_from(&qp, arrival)) {
                each(&qp);
            }
        }
    }

    /// Whether a queue pair sent this itself.
    fn is_from(&self, qp: &Qp, arrival: &Arrival<'_>) -> bool {
        let sender = arrival.headers.deth.map(|deth| deth.src_qpn);
        sender == Some(qp.qpn()) && qp.context().device().port().gids.contains(&Some(arrival.source()))
    }
}

/// The interface that packets to an address must leave by, or 0 if routes know: groups and link-local addresses mean something on one link only.
pub(crate) fn scope(address: IpAddr, interface: u32) -> u32 {
    let bound = match address {
        IpAddr::V4(address) => address.is_multicast(),
        IpAddr::V6(address) => address.is_multicast() || address.is_unicast_link_local(),
    };
    if bound { interface } else { 0 }
}
