//! Which queue pairs are in which multicast group.

use latch::{Rank, RwLock};
use link::udp::Group;
use std::collections::HashMap;
use std::ops::Deref;
use wire::Qpn;

/// The most queue pairs of a process in one group.
pub const MAX_MEMBERS: u32 = 1 << 12;

/// A group has as many members as it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Crowded;

/// Which queue pair is in which group. No socket is locked while this is: the receiving thread locks its socket first.
#[derive(Debug)]
pub(crate) struct Groups(RwLock<HashMap<Group, Vec<Qpn>>>);

impl Default for Groups {
    fn default() -> Groups {
        Groups(RwLock::new(Rank::Groups, HashMap::new()))
    }
}

impl Groups {
    /// True if it was not in it before.
    pub fn enter(&self, group: Group, qpn: Qpn) -> Result<bool, Crowded> {
        let mut groups = self.0.write();
        let members = groups.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(false);
        }
        if members.len() >= MAX_MEMBERS as usize {
            return Err(Crowded);
        }
        members.push(qpn);
        Ok(true)
    }

    /// True if it was in it.
    pub fn exit(&self, group: Group, qpn: Qpn) -> bool {
        let mut groups = self.0.write();
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
    pub fn of(&self, qpn: Qpn) -> Vec<Group> {
        let groups = self.0.read();
        groups.iter().filter(|(_, members)| members.contains(&qpn)).map(|(group, _)| *group).collect()
    }

    /// All of them, to look at.
    pub fn read(&self) -> impl Deref<Target = HashMap<Group, Vec<Qpn>>> {
        self.0.read()
    }
}
