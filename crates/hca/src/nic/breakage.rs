//! Ports and devices that are broken on purpose: what a kernel's events would tell happens here, and the events with it.

use super::Nic;
use crate::objects::context::AsyncEvent;
use crate::objects::device::{Change, Device, Imposed};
use std::io;
use std::sync::Arc;

impl Nic {
    /// Breaks a port this way and no other from now on: a port that is down sends and receives no packet, by whatever
    /// link; speed, LID, partition key and GID table are what programs see. Events tell of what changes.
    pub fn impose(&self, device: &Arc<Device>, imposed: Imposed) {
        if device.has_failed() {
            return;
        }
        let change = device.impose(imposed);
        self.show_port(device);
        self.follow_change(device, change);
    }

    /// What changed has consequences for queue pairs, and programs hear of it.
    fn follow_change(&self, device: &Arc<Device>, change: Change) {
        self.ground.links.ways_changed();
        if change.cut {
            // Also those on other ports: datagrams go out by the port that their address handle names.
            self.each_qp(|qp| {
                if qp.context().device().has_port(device) {
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
        device.ports().for_each(|port| self.show_port(port));
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
        let there = self.devices().into_iter().filter(|other| other.number() == device.number());
        there.for_each(|device| device.ports().for_each(|port| self.show_port(port)));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
