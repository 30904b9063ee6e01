//! The links of a NIC, by the names of those that have fast ways, and the groups that multicast packets go to.

use crate::links::packets::Packets;
use crate::links::registry::Registry;
use crate::links::udp::{Reach, Udp};
use crate::links::unread_watch::UnreadWatch;
use crate::objects::groups::Groups;
use link::shared::Exchange;
use link::shared::direct::Published;
use link::udp::Family;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::ROCE_PORT;

/// See the module.
#[derive(Debug)]
pub(crate) struct NicLinks {
    pub udp: Arc<Udp>,
    pub exchange: Arc<Exchange>,
    /// What peers may reach of the memory of this process; none where they may not, or cannot.
    pub published: Option<Arc<Published>>,
    /// All of them, in order of preference.
    pub registry: Registry,
    /// Interfaces of raw queue pairs.
    pub packets: Packets,
    pub unread_watch: UnreadWatch,
    pub groups: Groups,
    /// Counts what may have changed the ways of datagrams.
    pub epoch: AtomicU32,
}

impl NicLinks {
    /// A number that is another when the ways of datagrams may have changed.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    pub fn ways_changed(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// How packets of other hosts reach this process: over IPv4, and over IPv6.
    pub fn reach(&self) -> [Reach; 2] {
        [Family::V4, Family::V6].map(|family| self.udp.reach(family))
    }

    /// Why packets of other hosts do not reach this process, if they do not: one reason per address family that is out.
    pub fn unreachable(&self) -> Vec<String> {
        let reason = |(family, reach)| match reach {
            Reach::Direct | Reach::Forwarded { .. } => None,
            Reach::Taken => Some(format!(
                "UDP port {ROCE_PORT} ({family}) is held by something that does not share it (kernel Soft-RoCE, or \
                 another program)"
            )),
            Reach::NoFamily => Some(format!("the system has no {family}")),
            Reach::Refused(error) => Some(error),
        };
        ["IPv4", "IPv6"].into_iter().zip(self.reach()).filter_map(reason).collect()
    }
}
