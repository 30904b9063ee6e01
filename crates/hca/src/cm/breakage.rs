//! What failure scripts do to connections: events that people never see, requests that are rejected, messages that are
//! lost. All of it is asked for under the lock of the connection manager, and only while a script wants to hear of
//! connections.

use super::{Body, Cm, ConnectionBody, EventKind, Inner};
use crate::nic::Nic;
use crate::objects::device::Device;
use ::cm::id::IdRecord;
use ::cm::{IdKey, Route, Time};
use failures::{Action, ConnectionView, DeviceView, Moment, Scene};
use std::sync::Arc;
use trace::DropReason;
use wire::Qpn;
use wire::cm::{CmDatagram, CommId, Message, RejectReason};

/// The connection of an id, as scripts name it.
pub(crate) fn connection_of(record: &IdRecord) -> ConnectionView {
    ConnectionView {
        order: record.order,
        peer: record.destination.map(|address| address.ip()),
        port: record.service_port(),
    }
}

impl Cm {
    /// Tells the ids that are wanted of something that did not happen. Returns how many.
    pub fn tell_ids(
        &self,
        nic: &Nic,
        mut wanted: impl FnMut(&IdRecord, Option<&Arc<Device>>) -> bool,
        (kind, status): (EventKind, i32),
    ) -> usize {
        self.with(nic, |inner, _| {
            let device = |key: &IdKey| inner.handles.get(key).and_then(|handle| handle.device.as_ref());
            let keys: Vec<IdKey> = inner
                .ids
                .iter()
                .filter(|(key, record)| record.hears_events() && wanted(record, device(key)))
                .map(|(key, _)| key)
                .collect();
            keys.iter().for_each(|key| inner.push(*key, kind, status, Body::None));
            keys.len()
        })
    }
}

impl Inner {
    /// An id, as scripts name it.
    fn scene<'a>(&'a self, nic: &Nic, key: IdKey) -> Scene<'a> {
        let device = self.handles.get(&key).and_then(|handle| handle.device.as_ref());
        let index = |device: &Device| nic.ground.host.device_index(device.number());
        let device = device.map(|device| DeviceView { name: device.name(), index: index(device) });
        let record = self.ids.get(key);
        let port = record.and_then(|record| record.local).map(|local| local.port);
        Scene { device, port, connection: record.map(connection_of), ..Scene::default() }
    }

    /// The event that the program of an id hears of in place of one that it would hear of.
    pub(super) fn event_in_place(
        &mut self,
        nic: &Nic,
        now: Time,
        key: IdKey,
        event: (EventKind, i32, Body),
    ) -> (EventKind, i32, Body) {
        if !nic.ground.scripts.wants_connections() {
            return event;
        }
        // The side that asked hears of the peer's answer first, and most programs of nothing else.
        let told = if event.0 == EventKind::ConnectResponse { EventKind::Established } else { event.0 };
        let moment = Moment::ConnectionEvent { scene: self.scene(nic, key), event: told as u32 };
        let struck = nic.ground.take_hold(&moment);
        let Some(Action::CmEvent { event: number, status }) = struck else { return event };
        let Some(kind) = failure_of(number) else { return event };
        self.ids.fail(now, key, kind);
        let body = match kind {
            EventKind::Rejected => Body::Connection(ConnectionBody::default()),
            _ => Body::None,
        };
        (kind, status, body)
    }

    /// Why a peer's request is rejected before the program hears of it.
    pub(super) fn rejects(&self, nic: &Nic, key: IdKey) -> Option<RejectReason> {
        if !nic.ground.scripts.wants_connections() {
            return None;
        }
        match nic.ground.take_hold(&Moment::ConnectionRequest(self.scene(nic, key))) {
            Some(Action::Reject { reason }) => Some(RejectReason::from_code(reason)),
            _ => None,
        }
    }

    /// Whether a message that is sent, or has come, is lost.
    pub(super) fn loses(&self, nic: &Nic, route: &Route, datagram: &CmDatagram, is_sent: bool) -> bool {
        if !nic.ground.scripts.wants_connections() {
            return false;
        }
        let message = &datagram.message;
        let (ours, theirs) =
            if is_sent { (route.source, route.destination) } else { (route.destination, route.source) };
        let device = nic.ground.host.device_with(ours);
        let port = device.as_ref().map(|device| device.port_number());
        let device = device
            .as_ref()
            .map(|device| DeviceView { name: device.name(), index: nic.ground.host.device_index(device.number()) });
        let connection = match self.ids.of(communication(message, is_sent)) {
            Some(record) => connection_of(record),
            None => ConnectionView { order: 0, peer: Some(theirs.to_ip()), port: service_port(message) },
        };
        let scene = Scene { device, port, connection: Some(connection), ..Scene::default() };
        let moment = Moment::ConnectionMessage { scene, message: message.kind().attribute_id().into() };
        let is_lost = nic.ground.take_hold(&moment).is_some();
        if is_lost {
            nic.ground.dropped(nic.now(), Some(Qpn::GSI), None, DropReason::RandomLoss);
        }
        is_lost
    }
}

/// What a message that is sent, or has come, calls our end of the connection; 0 in a request that comes.
fn communication(message: &Message, is_sent: bool) -> CommId {
    let one_of = |ours, theirs| if is_sent { ours } else { theirs };
    match message {
        Message::Req(message) => one_of(message.local_comm_id, CommId::new(0)),
        Message::SidrReq(message) => one_of(message.request_id, CommId::new(0)),
        Message::SidrRep(message) => message.request_id,
        Message::Mra(message) => one_of(message.local_comm_id, message.remote_comm_id),
        Message::Rej(message) => one_of(message.local_comm_id, message.remote_comm_id),
        Message::Rep(message) => one_of(message.local_comm_id, message.remote_comm_id),
        Message::Rtu(message) => one_of(message.local_comm_id, message.remote_comm_id),
        Message::Dreq(message) => one_of(message.local_comm_id, message.remote_comm_id),
        Message::Drep(message) => one_of(message.local_comm_id, message.remote_comm_id),
        Message::Lap(message) => one_of(message.local_comm_id, message.remote_comm_id),
        Message::Apr(message) => one_of(message.local_comm_id, message.remote_comm_id),
    }
}

/// The port that a request is for.
fn service_port(message: &Message) -> Option<u16> {
    match message {
        Message::Req(request) => request.service_id.port(),
        Message::SidrReq(request) => request.service_id.port(),
        _ => None,
    }
}

/// The failures that come in place of other events.
fn failure_of(event: u32) -> Option<EventKind> {
    const FAILURES: [EventKind; 6] = [
        EventKind::AddressError,
        EventKind::RouteError,
        EventKind::ConnectError,
        EventKind::Unreachable,
        EventKind::Rejected,
        EventKind::MulticastError,
    ];
    FAILURES.into_iter().find(|kind| *kind as u32 == event)
}
