//! What happens at hosts, told as events: for recordings. Packets are told as they leave and reach a host, one by one,
//! as that is where they get lost, and so are those that switches and cables lose, at the host that they were for; the
//! transport, which hands packets out as trains, tells everything else.

use crate::endpoint::{endpoint_of, qpn_of};
use crate::packets::Packet;
use trace::{DropReason, Event, Kind};
use wire::{Headers, Qpn};

/// Takes events: the host, and what happened there.
pub type EventSink = Box<dyn FnMut(u32, &Event) + Send>;

/// Where events go, and whose they are.
pub(crate) struct Recorder {
    sink: EventSink,
    /// The hosts of all endpoints.
    hosts: Vec<u32>,
}

impl Recorder {
    pub fn new(sink: EventSink) -> Recorder {
        Recorder { sink, hosts: Vec::new() }
    }

    /// The next endpoint is of this host.
    pub fn add_endpoint(&mut self, host: u32) {
        self.hosts.push(host);
    }

    /// The transport tells of something.
    pub fn record(&mut self, event: &Event) {
        if !matches!(event.kind, Kind::PacketSent { .. }) {
            self.tell(event);
        }
    }

    /// A packet leaves its host.
    pub fn sent(&mut self, at: u64, qpn: Qpn, headers: &Headers, payload_len: u32, wr_id: Option<u64>, again: bool) {
        let kind = Kind::PacketSent { headers: *headers, payload_len, packets: 1, wr_id, retransmit: again };
        self.tell(&Event { at, qpn: Some(qpn), kind });
    }

    /// A packet got lost on its way to a host.
    pub fn lost(&mut self, at: u64, packet: &Packet, reason: DropReason) {
        let kind = Kind::PacketDropped { headers: Some(packet.headers()), reason };
        self.tell(&Event { at, qpn: Some(qpn_of(packet.endpoint)), kind });
    }

    fn tell(&mut self, event: &Event) {
        let Some(qpn) = event.qpn else { return };
        if let Some(host) = self.hosts.get(endpoint_of(qpn) as usize) {
            (self.sink)(*host, event);
        }
    }
}
