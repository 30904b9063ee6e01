//! Ports that programs open for management datagrams, and the port's own answers to performance management.

use crate::error::{Error, system};
use crate::gsi::{self, CounterRequest, Counters, Delivery, Outgoing, PortId, RegisterError, Registration, SendError};
use crate::nic::Nic;
use crate::objects::channel::Channel;
use crate::objects::device::Device;
use crate::tuning::COUNT_INTERVAL;
use std::collections::BTreeMap;
use std::sync::Arc;
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
        self.nic.gsi.register(&self.nic.ground.host, &self.device, self.id, wanted)
    }

    /// Ends an agent.
    pub fn unregister(&self, agent: u8) -> Result<(), SendError> {
        self.nic.gsi.unregister(self.id, agent)
    }

    /// Sends a datagram of an agent.
    pub fn send(&self, agent: u8, out: &Outgoing<'_>) -> Result<(), SendError> {
        self.nic.gsi.send(&self.nic.ground, &self.device, (self.id, agent), out)
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
    /// Answers requests for the counters of ports, which anybody on the network may ask for. What is told is what this
    /// process and the others of its user have counted; asking those takes a moment, so a thread does it, for all
    /// requests that have come, and not again before an interval has passed. Other users' processes are not asked:
    /// what they answer is theirs to choose.
    pub(crate) fn answer_counters(self: &Arc<Nic>) {
        let weak = Arc::downgrade(self);
        self.background.port_counting.does(move |questions: Vec<CounterRequest>| {
            if let Some(nic) = weak.upgrade() {
                let sums = nic.user_counters();
                questions.iter().for_each(|question| count(&nic, question, &sums));
            }
            std::thread::sleep(COUNT_INTERVAL);
        });
        let weak = Arc::downgrade(self);
        self.gsi.count_with(Box::new(move |question| {
            if let Some(nic) = weak.upgrade()
                && !nic.background.port_counting.add("ubiverbs-counts", question)
            {
                nic.ground.dropped(nic.now(), Some(Qpn::GSI), None, DropReason::CmCrowded);
            }
        }));
    }

    /// What processes of this user have counted on each port, living and ended.
    fn user_counters(&self) -> BTreeMap<String, transport::Counters> {
        let mut sums = inventory::port_counters(inventory::Users::Own).unwrap_or_default();
        for (device, counters) in self.living_counters() {
            *sums.entry(device.port_name().to_owned()).or_default() += counters;
        }
        sums
    }
}

/// Answers a request with what was counted on the port that was asked.
fn count(nic: &Nic, question: &CounterRequest, sums: &BTreeMap<String, transport::Counters>) {
    let device = nic.ground.host.device_with(question.route.local);
    let counted = device.and_then(|device| sums.get(device.port_name()).copied()).unwrap_or_default();
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
    nic.gsi.answer_with(&nic.ground, question, counters);
}

impl Drop for ManagementPort {
    fn drop(&mut self) {
        self.nic.gsi.close(self.id);
    }
}
