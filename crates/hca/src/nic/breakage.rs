//! Ports and devices that are broken on purpose, as failure scripts ask for it: what a kernel's events would tell
//! happens here, and the events with it. Whatever was broken is whole again after [`Nic::mend_port`] or
//! [`Nic::plug_in`].

use super::Nic;
use crate::objects::context::AsyncEvent;
use crate::objects::device::{Change, Device, Imposed, LinkRate};
use std::io;
use std::sync::Arc;
use wire::Gid;

impl Nic {
    /// Takes the port of a device down, or lets it be up again: its packets are neither sent nor received meanwhile, by
    /// whatever link. `IBV_EVENT_PORT_ERR` or `IBV_EVENT_PORT_ACTIVE` tells of it.
    pub fn set_port_down(&self, device: &Arc<Device>, down: bool) {
        self.impose(device, |imposed| imposed.down = down);
    }

    /// Has the port say that it carries so much; none is its own rate.
    pub fn set_link_rate(&self, device: &Arc<Device>, rate: Option<LinkRate>) {
        self.impose(device, |imposed| imposed.rate = rate);
    }

    /// Takes an address out of the GID table. False if there is none at that index.
    pub fn remove_gid(&self, device: &Arc<Device>, index: u8) -> bool {
        let Some(gid) = device.port().gid(index) else { return false };
        self.impose(device, |imposed| {
            imposed.added.retain(|(_, added)| *added != gid);
            imposed.removed.push(gid);
        });
        true
    }

    /// Puts another address into the GID table, in the place of the one that is there. False if there is no such place.
    pub fn change_gid(&self, device: &Arc<Device>, index: u8, gid: Gid) -> bool {
        if usize::from(index) >= device.port().gids.len() {
            return false;
        }
        let before = device.port().gid(index);
        self.impose(device, |imposed| {
            imposed.added.retain(|(place, _)| *place != index);
            imposed.removed.extend(before.filter(|before| *before != gid));
            imposed.added.push((index, gid));
        });
        true
    }

    /// The GID table is that of the interface again.
    pub fn restore_gids(&self, device: &Arc<Device>) {
        self.impose(device, |imposed| {
            imposed.added.clear();
            imposed.removed.clear();
        });
    }

    /// Nothing about the port is broken any more.
    pub fn mend_port(&self, device: &Arc<Device>) {
        self.impose(device, |imposed| *imposed = Imposed::default());
    }

    /// Has the port say that it has this local identifier: `IBV_EVENT_LID_CHANGE`.
    pub fn set_lid(&self, device: &Arc<Device>, lid: u16) {
        self.impose(device, |imposed| imposed.lid = lid);
        self.raise(device, AsyncEvent::LidChange);
    }

    /// Has the port say that its one partition key is this, or its own: `IBV_EVENT_PKEY_CHANGE`. Packets keep theirs.
    pub fn set_pkey(&self, device: &Arc<Device>, pkey: Option<u16>) {
        self.impose(device, |imposed| imposed.pkey = pkey);
        self.raise(device, AsyncEvent::PkeyChange);
    }

    /// Tells the programs of a device of something that is nothing but an event here: RoCE has no subnet manager.
    pub fn tell_of_port(&self, device: &Arc<Device>, event: AsyncEvent) {
        self.raise(device, event);
    }

    fn impose(&self, device: &Arc<Device>, change: impl FnOnce(&mut Imposed)) {
        if device.has_failed() {
            return;
        }
        let change = device.impose(change);
        self.follow_change(device, change);
    }

    /// What changed has consequences for queue pairs, and programs hear of it.
    fn follow_change(&self, device: &Arc<Device>, change: Change) {
        self.ground.links.ways_changed();
        if change.cut {
            self.each_qp(|qp| {
                if Arc::ptr_eq(qp.context().device(), device) {
                    qp.follow_ways(&self.ground);
                }
            });
        }
        self.tell_change(device, change);
        self.after_call(self.now());
    }

    /// A device fails, as when its firmware hangs: its queue pairs stop and flush what was posted, calls return `EIO`,
    /// and `IBV_EVENT_DEVICE_FATAL` tells of it. It never works again; [`plug_in`](Nic::plug_in) puts a new one in its
    /// place, as a driver does that starts the adapter again.
    pub fn fail_device(&self, device: &Arc<Device>) {
        self.end_device(device, false);
    }

    /// A device is pulled out: as if it failed, and lists do not have it; ids of the connection manager on it hear
    /// `RDMA_CM_EVENT_DEVICE_REMOVAL`.
    pub fn unplug(&self, device: &Arc<Device>) {
        self.end_device(device, true);
        self.cm.device_gone(self, device);
    }

    fn end_device(&self, device: &Arc<Device>, unplugged: bool) {
        device.fail(unplugged);
        self.ground.links.ways_changed();
        self.raise(device, AsyncEvent::DeviceFatal);
        self.each_qp(|qp| {
            if Arc::ptr_eq(qp.context().device(), device) {
                qp.follow_ways(&self.ground);
                qp.stop_with_device(&self.ground);
            }
        });
        self.after_call(self.now());
    }

    /// A device of the same name takes the place of one that failed or was pulled out. What had the old one open keeps
    /// that, and it does not work.
    pub fn plug_in(&self, device: &Arc<Device>) -> io::Result<()> {
        self.ground.host.devices.write().retain(|other| !Arc::ptr_eq(other, device));
        self.follow_interfaces()?;
        self.ground.host.devices.write().sort_by_key(|device| device.number());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
