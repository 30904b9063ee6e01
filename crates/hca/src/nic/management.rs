//! Ports that programs open for management datagrams.

use crate::error::{Error, system};
use crate::gsi::{self, Delivery, Outgoing, PortId, RegisterError, Registration, SendError};
use crate::nic::Nic;
use crate::objects::channel::Channel;
use crate::objects::device::Device;
use std::sync::Arc;
use wire::Gid;

/// An open port: agents are registered on it, send and receive. Dropped, it is closed.
#[derive(Debug)]
pub struct ManagementPort {
    nic: Arc<Nic>,
    device: Arc<Device>,
    id: PortId,
    channel: Arc<Channel<Delivery>>,
}

impl ManagementPort {
    /// Opens the port of a device.
    pub fn open(nic: &Arc<Nic>, device: &Arc<Device>) -> Result<ManagementPort, Error> {
        let (id, channel) = nic.gsi.open(device).map_err(system("cannot make a descriptor for datagrams"))?;
        Ok(ManagementPort { nic: Arc::clone(nic), device: Arc::clone(device), id, channel })
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// What its agents receive; its descriptor is readable while there is something.
    pub fn channel(&self) -> &Arc<Channel<Delivery>> {
        &self.channel
    }

    /// Registers an agent; answers its number.
    pub fn register(&self, wanted: &Registration) -> Result<u8, RegisterError> {
        self.nic.gsi.register(&self.nic, &self.device, self.id, wanted)
    }

    /// Ends an agent.
    pub fn unregister(&self, agent: u8) -> Result<(), SendError> {
        self.nic.gsi.unregister(self.id, agent)
    }

    /// Sends a datagram of an agent.
    pub fn send(&self, agent: u8, out: &Outgoing<'_>) -> Result<(), SendError> {
        self.nic.gsi.send(&self.nic, &self.device, (self.id, agent), out)
    }

    /// The address of the port from which another is reached: the one at an index of its table, if that can be.
    pub fn source(&self, index: u8, remote: Gid) -> Option<Gid> {
        let is_ipv4 = |gid: Gid| gid.to_ip().is_ipv4();
        let chosen = self.device.port().gid(index);
        match chosen {
            Some(gid) if is_ipv4(gid) == is_ipv4(remote) => Some(gid),
            // Programs that set a global route header leave the index at 0, whatever stands there.
            _ if index == 0 => gsi::source_towards(&self.device, remote),
            _ => None,
        }
    }
}

impl Drop for ManagementPort {
    fn drop(&mut self) {
        self.nic.gsi.close(self.id);
    }
}
