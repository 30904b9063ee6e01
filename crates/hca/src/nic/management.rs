//! Ports that programs open for management datagrams, and the port's own answers to performance management.

use crate::error::{Error, system};
use crate::gsi::{self, Counters, Delivery, Outgoing, PortId, Question, RegisterError, Registration, SendError};
use crate::nic::Nic;
use crate::objects::channel::Channel;
use crate::objects::device::Device;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use trace::DropReason;
use wire::{Gid, Qpn};

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

impl Nic {
    /// Answers requests for the counters of ports. The host's counters are those of all its processes, and asking them
    /// takes a moment: so a thread does it, one request at a time. Whoever asks meanwhile asks again.
    pub(crate) fn answer_counters(self: &Arc<Nic>) {
        let (weak, busy) = (Arc::downgrade(self), Arc::new(AtomicBool::new(false)));
        self.gsi.count_with(Box::new(move |question| {
            let Some(nic) = weak.upgrade() else { return };
            if busy.swap(true, Ordering::AcqRel) {
                return nic.dropped(nic.now(), Some(Qpn::GSI), None, DropReason::CmCrowded);
            }
            let (nic, done) = (Weak::clone(&weak), Arc::clone(&busy));
            let started = ::host::thread::spawn("ubiverbs counts", move || {
                count(&nic, &question);
                done.store(false, Ordering::Release);
            });
            if started.is_err() {
                busy.store(false, Ordering::Release);
            }
        }));
    }
}

/// Adds up what the processes of the host have counted on the port that was asked, and answers.
fn count(nic: &Weak<Nic>, question: &Question) {
    let sums = inventory::port_counters().unwrap_or_default();
    let Some(nic) = nic.upgrade() else { return };
    let device = nic.device_with(question.route.local);
    let counted = device.and_then(|device| sums.get(device.name()).copied()).unwrap_or_default();
    let (traffic, incidents) = (counted.traffic, counted.incidents);
    let counters = Counters {
        xmit_bytes: traffic.sent_octets,
        rcv_bytes: traffic.received_octets,
        xmit_packets: traffic.sent_packets,
        rcv_packets: traffic.received_packets,
        multicast_xmit_packets: incidents.multicast_sent_packets,
        multicast_rcv_packets: incidents.multicast_received_packets,
        rcv_errors: incidents.receive_errors,
        xmit_discards: incidents.send_errors,
        // In microseconds, as the port's files have it.
        xmit_wait: incidents.wait_nanos / 1000,
        ..Counters::default()
    };
    nic.gsi.answer_with(&nic, question, counters);
}

impl Drop for ManagementPort {
    fn drop(&mut self) {
        self.nic.gsi.close(self.id);
    }
}
