//! The host's devices, and what this process has of its host: slots, queue pair numbers, ports, and the right to hear
//! which other processes end.

use crate::ground::nic_links::BlackHole;
use crate::objects::device::Device;
use crate::objects::numbers::Numbers;
use ::host::ports::Ports;
use ::host::process_watch::ProcessWatch;
use ::host::slots::{Slot, Slots};
use latch::plain::RwLock;
use std::net::IpAddr;
use std::sync::Arc;
use wire::Gid;

/// See the module.
#[derive(Debug)]
pub(crate) struct HostShare {
    pub devices: RwLock<Vec<Arc<Device>>>,
    pub slots: Slots,
    pub numbers: Numbers,
    /// Ports of the connection manager.
    pub ports: Ports,
    pub process_watch: ProcessWatch,
}

impl HostShare {
    /// The devices of this host, as they are now.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.devices.read().iter().filter(|device| !device.is_unplugged()).cloned().collect()
    }

    /// All their ports, as they are now.
    pub fn port_devices(&self) -> Vec<Arc<Device>> {
        let devices = self.devices.read();
        devices.iter().filter(|device| !device.is_unplugged()).flat_map(Device::ports).cloned().collect()
    }

    /// What devices send to themselves, where the cards that they are like do not have it arrive.
    pub fn without_loopback(&self) -> Vec<BlackHole> {
        let devices = self.port_devices();
        let silent = devices.iter().filter(|device| device.profile().is_some_and(|profile| !profile.loopback));
        let addresses =
            silent.flat_map(|device| device.port().gids.iter().flatten().map(|gid| gid.to_ip()).collect::<Vec<_>>());
        addresses.map(|address| BlackHole { from: Some(address), to: Some(address) }).collect()
    }

    /// The place of a device among all, by its number.
    pub fn device_index(&self, number: u32) -> u32 {
        self.devices.read().iter().position(|device| device.number() == number).unwrap_or(0) as u32
    }

    /// Whether a slot is of this process.
    pub fn has_slot(&self, slot: Slot) -> bool {
        self.numbers.owns(slot.qpn(0))
    }

    pub fn is_own_address(&self, gid: Gid) -> bool {
        self.port_devices().iter().any(|device| device.port().gids.contains(&Some(gid)))
            || matches!(gid.to_ip(), IpAddr::V4(address) if address.is_loopback())
    }

    /// Whether the port that has an address was taken down on purpose.
    pub fn is_cut(&self, gid: Gid) -> bool {
        self.device_with(gid).is_some_and(|device| device.port().is_cut)
    }

    /// The interface of the device that has an address, 0 if none has it.
    pub fn interface_of(&self, gid: Gid) -> u32 {
        self.device_with(gid).map_or(0, |device| device.interface_index())
    }

    /// The [`port_id`](Device::port_id) of the port that has an address, 0 if none has it.
    pub fn port_id_of(&self, gid: Gid) -> u32 {
        self.device_with(gid).map_or(0, |device| device.port_id())
    }

    /// The port that has an address.
    pub fn device_with(&self, gid: Gid) -> Option<Arc<Device>> {
        self.port_devices().into_iter().find(|device| device.port().gids.contains(&Some(gid)))
    }
}
