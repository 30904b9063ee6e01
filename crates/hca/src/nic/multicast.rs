//! Multicast groups: which datagram queue pairs get what is sent to a group. The host's kernel brings a packet to every
//! process that joined its group, also to the one that sent it; here each attached queue pair gets a copy.

use crate::error::Error;
use crate::nic::Nic;
pub use crate::objects::groups::MAX_MEMBERS;
use crate::queue_pair::Qp;
use link::udp::{Arrival, Group};
use std::io;
use std::sync::Arc;
use trace::DropReason;
use transport::{Kind, Time};
use wire::Gid;

/// The most groups of a process over IPv4 where the system does not say.
const USUAL_GROUPS: u32 = 20;

/// How many groups a process may be in: what the system allows a socket. IPv6 allows more.
pub fn max_groups() -> u32 {
    let said = std::fs::read_to_string("/proc/sys/net/ipv4/igmp_max_memberships");
    said.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_GROUPS)
}

impl Qp {
    /// Attaches a datagram queue pair to a multicast group, by its GID: from now on it gets what is sent to the group
    /// over the network of its device. Once is enough; a second time changes nothing. Waits for the thread that
    /// receives, so it must not be called while packets are taken.
    pub fn attach(&self, nic: &Nic, group: Gid) -> Result<(), Error> {
        let group = self.group(group)?;
        nic.ground
            .links
            .udp
            .join(group)
            .map_err(|source| Error::System { what: "cannot join the multicast group", source })?;
        match nic.ground.links.groups.enter(group, self.qpn()) {
            Ok(true) => Ok(()),
            // The socket was in it already, for this queue pair.
            known => {
                nic.ground.links.udp.leave(group);
                let crowded = |_| Error::Exhausted { what: "places in a multicast group", limit: MAX_MEMBERS };
                known.map(drop).map_err(crowded)
            }
        }
    }

    /// Detaches it from a group.
    pub fn detach(&self, nic: &Nic, group: Gid) -> Result<(), Error> {
        let group = self.group(group)?;
        if !nic.ground.links.groups.exit(group, self.qpn()) {
            return Err(Error::NotAttached { group: group.address });
        }
        nic.ground.links.udp.leave(group);
        Ok(())
    }

    /// Whether it is attached to any group.
    pub fn is_attached(&self, nic: &Nic) -> bool {
        self.kind() == Kind::UnreliableDatagram && !nic.ground.links.groups.of(self.qpn()).is_empty()
    }

    fn group(&self, gid: Gid) -> Result<Group, Error> {
        let address = gid.to_ip();
        if self.kind() != Kind::UnreliableDatagram || !address.is_multicast() {
            return Err(Error::NoGroup { address });
        }
        let device = self.port_device();
        let on_loopback = device.port().gids.iter().flatten().any(|gid| gid.to_ip().is_loopback());
        if on_loopback && address.is_ipv6() {
            // The join would succeed, and no packet would ever come.
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
        for group in self.ground.links.groups.of(qp.qpn()) {
            if self.ground.links.groups.exit(group, qp.qpn()) {
                self.ground.links.udp.leave(group);
            }
        }
    }

    /// The queue pairs that a packet to a group is for. Returns how many are in the group.
    pub(crate) fn members(&self, now: Time, arrival: &Arrival<'_>, mut each: impl FnMut(&Arc<Qp>)) -> u32 {
        let group = Group { address: arrival.destination().to_ip(), interface: arrival.interface };
        let groups = self.ground.links.groups.read();
        let mut members = 0;
        for qpn in groups.get(&group).into_iter().flatten() {
            let Some(qp) = self.qp(*qpn) else { continue };
            members += 1;
            if qp.ignores_own() && self.is_from(&qp, arrival) {
                self.ground.dropped(now, Some(*qpn), Some(&arrival.headers), DropReason::OwnMulticast);
            } else {
                each(&qp);
            }
        }
        members
    }

    /// Whether a queue pair sent this itself.
    fn is_from(&self, qp: &Qp, arrival: &Arrival<'_>) -> bool {
        let sender = arrival.headers.deth.map(|deth| deth.src_qpn);
        sender == Some(qp.qpn()) && qp.port_device().port().gids.contains(&Some(arrival.source()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::path::scope;
    use crate::objects::groups::Groups;
    use wire::Qpn;

    fn group(last: u8) -> Group {
        Group { address: [239, 77, 1, last].into(), interface: 1 }
    }

    #[test]
    fn once_in_is_in_and_once_out_is_out() {
        let groups = Groups::default();
        let [one, two] = [Qpn::new(0x1000), Qpn::new(0x1001)];
        assert!(groups.enter(group(1), one).unwrap());
        assert!(!groups.enter(group(1), one).unwrap(), "it was in already");
        assert!(groups.enter(group(1), two).unwrap() && groups.enter(group(2), two).unwrap());
        assert_eq!(groups.of(one), [group(1)]);
        assert_eq!(groups.of(two).len(), 2);
        assert!(groups.exit(group(1), one) && !groups.exit(group(1), one) && !groups.exit(group(3), one));
        assert!(groups.of(one).is_empty());
        let elsewhere = Group { interface: 2, ..group(2) };
        assert!(!groups.exit(elsewhere, two), "another interface is another group");
    }

    #[test]
    fn a_group_has_so_many_places() {
        let groups = Groups::default();
        for number in 0..MAX_MEMBERS {
            assert!(groups.enter(group(1), Qpn::new(0x1000 + number)).unwrap());
        }
        assert!(matches!(groups.enter(group(1), Qpn::new(7)), Err(crate::objects::groups::Crowded)));
        assert!(groups.enter(group(2), Qpn::new(7)).unwrap());
    }

    #[test]
    fn groups_and_neighbours_mean_something_on_one_link() {
        let scope = |text: &str| scope(text.parse().unwrap(), 9);
        assert_eq!(["239.1.2.3", "ff15::1", "ff02::1", "fe80::1"].map(scope), [9; 4]);
        assert_eq!(["10.1.2.3", "fd00::1", "::1"].map(scope), [0; 3]);
        assert!(max_groups() > 0);
    }

    /// A queue pair that goes leaves its groups, though its program forgot to.
    #[test]
    fn who_is_destroyed_is_in_no_group() {
        let nic = Nic::open().unwrap();
        let Some(device) = nic.devices().into_iter().find(|device| device.name() == "ubi_lo") else {
            panic!("the loopback device is down");
        };
        let context = nic.open_device(&device).unwrap();
        let cq = nic.create_cq(4, None).unwrap();
        let config = transport::QueuePairConfig {
            qpn: Qpn::SMI,
            kind: Kind::UnreliableDatagram,
            pd: transport::ProtectionDomain(1),
            capabilities: transport::Capabilities::default(),
            srq: None,
            signal_all: false,
            limits: transport::Limits::default(),
            pkey: wire::Pkey::DEFAULT,
            port_mtu: wire::Mtu::B1024,
        };
        let joins = crate::Joins { context, send_cq: Some(cq.clone()), receive_cq: Some(cq), xrc_domain: None };
        let qp = nic.create_qp(config, joins).unwrap();
        let gid = Gid::from_ip([239, 77, 1, 9].into());
        qp.attach(&nic, gid).unwrap();
        assert!(qp.is_attached(&nic));
        nic.destroy_qp(&qp);
        assert!(!qp.is_attached(&nic));
        assert!(matches!(qp.detach(&nic, gid), Err(Error::NotAttached { .. })));
    }
}
