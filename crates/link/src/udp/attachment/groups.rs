//! The multicast groups that this process is in, counted.

use super::Attachment;
use crate::udp::{BindError, Family, Group, Receiver};
use std::collections::HashMap;
use std::io;

/// How often each group was joined.
#[derive(Debug, Default)]
pub(super) struct Groups(HashMap<Group, u32>);

impl Attachment {
    /// Joins a group; packets to it arrive like any others. The same group may be joined several times, and is left
    /// when it was left as often.
    pub fn join(&mut self, group: Group) -> io::Result<()> {
        if let Some(count) = self.groups.0.get_mut(&group) {
            *count += 1;
            return Ok(());
        }
        match self.side(family(&group)) {
            Some(Ok(receiver)) => receiver.join(&group)?,
            // The holder of the port gets the group's packets, and no process passes on what is for all.
            Some(Err(BindError::OtherUser { .. } | BindError::Taken)) => {
                return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
            }
            _ => return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT)),
        }
        self.groups.0.insert(group, 1);
        Ok(())
    }

    /// Leaves a group once.
    pub fn leave(&mut self, group: Group) {
        let Some(count) = self.groups.0.get_mut(&group) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.groups.0.remove(&group);
        if let Some(Ok(receiver)) = self.side(family(&group)) {
            // The interface may have gone, and its groups with it.
            let _ = receiver.leave(&group);
        }
    }

    fn side(&self, family: Family) -> Option<&Result<Receiver, BindError>> {
        self.sides.iter().find(|side| side.family == family).map(|side| &side.state)
    }
}

fn family(group: &Group) -> Family {
    if group.address.is_ipv4() { Family::V4 } else { Family::V6 }
}
