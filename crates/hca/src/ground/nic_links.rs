//! The links of a NIC, by the names of those that have fast ways, and the groups that multicast packets go to.

use crate::links::packets::Packets;
use crate::links::registry::Registry;
use crate::links::udp::{Reach, Udp};
use crate::links::unread_watch::UnreadWatch;
use crate::objects::groups::Groups;
use latch::plain::RwLock;
use link::faults::{Plan, Rule};
use link::shared::Exchange;
use link::shared::direct::Published;
use link::udp::Family;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use wire::{Gid, ROCE_PORT};

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
    /// Where what is sent disappears.
    pub black_holes: RwLock<Vec<BlackHole>>,
}

/// What is sent from one address to the other disappears; `None` is any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlackHole {
    /// Ours.
    pub from: Option<IpAddr>,
    /// The peer's.
    pub to: Option<IpAddr>,
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

    /// Whether what is sent from one address to another disappears.
    pub fn is_black_hole(&self, source: Gid, destination: Gid) -> bool {
        let is = |address: Option<IpAddr>, gid: Gid| address.is_none_or(|address| address == gid.to_ip());
        self.black_holes.read().iter().any(|hole| is(hole.from, source) && is(hole.to, destination))
    }

    /// Changes what goes wrong with packets that arrive, beside what the environment asks for.
    pub fn add_faults(&self, rules: &[Rule], seed: u64) {
        self.registry.add_faults(rules, seed);
        let asked = self.registry.plan().cloned().unwrap_or_else(|| Plan { seed, ..Plan::default() });
        let plan = Plan { added: rules.to_vec(), ..asked };
        self.udp.change_faults(&plan);
        self.packets.change_faults(&plan);
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
