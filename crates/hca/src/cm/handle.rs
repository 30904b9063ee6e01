//! What the NIC keeps of an id beside [`Ids`](::cm::Ids): where its events go, its device, the peer's process, its
//! place in the connection records. And the way of an event from there to the program.

use super::Inner;
use super::event::{Event, EventChannel};
use super::id::Id;
use crate::nic::Nic;
use crate::objects::device::Device;
use ::cm::id::{Body, EventKind, IdRecord, LocalAddress, Output, Stage};
use ::cm::{IdKey, Time};
use ::host::process_watch::WatchedProcess;
use std::sync::{Arc, Weak};
use wire::Gid;
use wire::cm::{PortSpace, RejectReason};

/// What the NIC keeps of an id.
#[derive(Debug)]
pub(super) struct Handle {
    pub id: Weak<Id>,
    pub channel: Arc<EventChannel>,
    pub device: Option<Arc<Device>>,
    /// The process of the peer, if it is on this host and we watch it.
    pub watched: Option<WatchedProcess>,
    /// Where it stands in the connection records of this process, and since when.
    pub recorded_at: Option<usize>,
    pub recorded_since: Time,
}

impl Handle {
    pub fn new(id: &Arc<Id>, channel: &Arc<EventChannel>, device: Option<Arc<Device>>) -> Handle {
        let (id, channel) = (Arc::downgrade(id), Arc::clone(channel));
        Handle { id, channel, device, watched: None, recorded_at: None, recorded_since: Time::ZERO }
    }
}

impl Inner {
    /// Brings to programs what there is for them. True if there was something.
    pub(super) fn tell_all(&mut self, nic: &Nic, now: Time) -> bool {
        let local = |gid: Gid| -> Option<LocalAddress> { Some(nic.known_place(gid.to_ip(), 0)?.local()) };
        let mut any = false;
        while let Some(output) = self.ids.poll_output(now, local) {
            any = true;
            match output {
                Output::Event { key, kind, status, body } => {
                    let (kind, status, body) = self.event_in_place(nic, now, key, (kind, status, body));
                    match kind {
                        EventKind::ConnectResponse => self.watch_peer(nic, key),
                        EventKind::Established => self.record_connection(nic, key),
                        _ => {}
                    }
                    self.push(key, kind, status, body);
                }
                Output::Request { key, listener, body } => self.introduce(nic, now, key, listener, body),
                Output::Ended { key } => self.record_connection(nic, key),
                Output::Suspected { key, communication } => self.suspected(nic, key, communication, now),
                Output::PortFreed { space, port } => drop(self.ports.remove(&(space, port))),
            }
        }
        any
    }

    /// Gives a peer's request an id, and tells the program that listens.
    fn introduce(&mut self, nic: &Nic, now: Time, key: IdKey, listener: IdKey, body: Body) {
        if let Some(reason) = self.rejects(nic, key) {
            let _ = self.ids.reject(now, key, reason, &[]);
            return self.ids.destroy(now, key, false);
        }
        let listening = self.handles.get(&listener).and_then(|handle| Some((handle.id.upgrade()?, handle)));
        let Some((listener, Handle { channel, .. })) = listening else {
            let _ = self.ids.reject(now, key, RejectReason::InvalidServiceId, &[]);
            return self.ids.destroy(now, key, false);
        };
        let channel = Arc::clone(channel);
        let id = Id::for_request(&listener, key);
        let local = self.ids.get(key).and_then(|record| record.local);
        let device = local.and_then(|local| nic.known_place(local.gid.to_ip(), 0)).map(|place| place.device);
        self.handles.insert(key, Handle::new(&id, &channel, device));
        channel.push(Event { id, listener: Some(listener), kind: EventKind::ConnectRequest, status: 0, body });
        self.note(key);
    }

    pub(super) fn push(&mut self, key: IdKey, kind: EventKind, status: i32, body: Body) {
        let Some(handle) = self.handles.get(&key) else { return };
        if let Some(id) = handle.id.upgrade() {
            handle.channel.push(Event { id, listener: None, kind, status, body });
            self.note(key);
        }
    }

    /// Remembers to tell the observer of an id's channel, if it has one.
    pub(super) fn note(&mut self, key: IdKey) {
        if let Some(handle) = self.handles.get(&key)
            && handle.channel.has_news()
        {
            self.told.push(Arc::clone(&handle.channel));
        }
    }
}

/// An id, for those who ask what there is.
pub(super) fn report(key: IdKey, record: &IdRecord, device: Option<&Arc<Device>>) -> inventory::ConnectionId {
    // The kernel's `enum rdma_cm_state`.
    let state = match record.stage {
        Stage::Idle => 0,
        Stage::AddressQueried => 1,
        Stage::AddressResolved => 2,
        Stage::RouteResolved => 4,
        Stage::Connecting | Stage::Answered | Stage::Requested | Stage::Accepted | Stage::Connected => 5,
        Stage::Disconnecting | Stage::PeerLeft | Stage::Ended => 6,
        Stage::Bound => 7,
        Stage::Listening => 8,
    };
    let space = match record.space {
        PortSpace::Ipoib => 0x0002,
        PortSpace::Tcp => 0x0106,
        PortSpace::Udp => 0x0111,
        PortSpace::Ib => 0x013f,
    };
    inventory::ConnectionId {
        number: key.0 as u32,
        interface: device.map_or(0, |device| device.number()),
        port: record.local.map_or(1, |local| local.port),
        queue_pair: record.qpn.value(),
        kind: record.kind.code(),
        space,
        state,
        source: record.source,
        destination: record.destination,
    }
}
