//! What the trace is told of ids, their channels and their events.

use super::delivered_event::DeliveredEvent;
use super::event;
use super::id::ConnectionId;
use crate::boundary::tell;
use crate::object::{Object, field};
use crate::queue_pair::QueuePair;
use abi::{Handle, rdma_cm_id};
use hca::cm::{ConnectParameters, EventChannel};
use std::net::SocketAddr;
use trace::Call;
use transport::{Kind, State};
use wire::{Gid, Qkey, Qpn};

/// The program called this for an event channel.
pub(super) fn channel(function: &'static str, channel: &EventChannel) {
    tell(None, || Call::CmCall { function, id: channel.number().into(), id_qpn: None });
}

impl ConnectionId {
    fn qpn(&self) -> Option<Qpn> {
        QueuePair::of(self.qp()).ok().map(|pair| pair.qp.qpn())
    }

    /// The program calls this for the id. A call whose event may come at any moment is told when it begins.
    pub(super) fn tell(&self, function: &'static str) {
        tell(None, || Call::CmCall { function, id: self.number(), id_qpn: self.qpn() });
    }

    /// The program connects or accepts.
    pub(super) fn tell_offer(&self, function: &'static str, offer: &ConnectParameters<'_>) {
        tell(None, || Call::CmOffer {
            function,
            id: self.number(),
            id_qpn: self.qpn(),
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            retry_count: offer.retry_count,
            rnr_retry_count: offer.rnr_retry_count,
            private_data_len: offer.private_data.len() as u32,
            // Who asks for a queue pair of datagrams tells of none.
            offered_qpn: (function == "rdma_accept" || self.id.kind() != Kind::UnreliableDatagram).then_some(offer.qpn),
        });
    }

    /// Where the program connects to, or listens.
    pub(super) fn tell_place(&self, function: &'static str, place: Option<SocketAddr>) {
        let Some(place) = place else { return };
        tell(None, || Call::CmPlace {
            function,
            id: self.number(),
            space: match field!(self.base, ps) {
                abi::RDMA_PS_TCP => "RDMA_PS_TCP",
                abi::RDMA_PS_UDP => "RDMA_PS_UDP",
                abi::RDMA_PS_IPOIB => "RDMA_PS_IPOIB",
                _ => "RDMA_PS_IB",
            },
            address: Gid::from_ip(place.ip()).octets(),
            port: place.port().into(),
        });
    }

    /// The id has a channel, perhaps another than before.
    pub(super) fn tell_channel(&self) {
        tell(None, || {
            let state = self.state();
            let (channel, synchronous) = (state.channel.number().into(), !state.sync_channel.is_null());
            Call::CmChannel { id: self.number(), channel, synchronous }
        });
    }

    /// Its queue pair is about to be moved.
    pub(super) fn tell_move(&self, qpn: Qpn, state: State) {
        tell(Some(qpn), || Call::CmMovesQp { id: self.number(), state: state.name() });
    }
}

/// The number of the id behind a pointer that an event has.
fn number(id: *mut rdma_cm_id) -> Option<u64> {
    // SAFETY: null, or an id that does not go before its events are acknowledged.
    ConnectionId::of(unsafe { Handle::new(id) }).ok().map(ConnectionId::number)
}

/// What came with an event: the READs and atomics in either direction, and the peer's queue pair of datagrams.
#[derive(Default)]
pub(super) struct Brought {
    pub responder_resources: Option<u8>,
    pub initiator_depth: Option<u8>,
    pub peer_qpn: Option<Qpn>,
    pub peer_qkey: Option<Qkey>,
}

impl DeliveredEvent {
    /// The program gets the event.
    pub(super) fn tell(&mut self, brought: &Brought) {
        let (event, id) = (event::name(self.base.event), number(self.base.id).unwrap_or_default());
        self.about = id;
        tell(None, || {
            let id_qpn = self.id_qpn();
            Call::CmEvent { event, id, listen_id: number(self.base.listen_id), status: self.base.status, id_qpn }
        });
        let &Brought { responder_resources, initiator_depth, peer_qpn, peer_qkey } = brought;
        if responder_resources.is_some() || peer_qpn.is_some() {
            tell(None, || Call::CmPeer { event, id, responder_resources, initiator_depth, peer_qpn, peer_qkey });
        }
    }

    /// The queue pair of the id that it is about.
    pub(super) fn id_qpn(&self) -> Option<Qpn> {
        // SAFETY: as in `number`.
        ConnectionId::of(unsafe { Handle::new(self.base.id) }).ok().and_then(ConnectionId::qpn)
    }

    /// The program gives the event back.
    pub(super) fn tell_ack(&self) {
        tell(None, || Call::CmAck { event: event::name(self.base.event), id: self.about });
    }
}
