//! From what the connection manager found out to what programs are told.

use super::Inner;
use super::event::{Body, ConnectionBody, DatagramBody, Event, EventKind};
use super::id::Id;
use super::record::{Record, Stage, UDP_QKEY};
use super::route::{self, PathFacts};
use crate::nic::Nic;
use crate::tuning::DISCONNECT_EVENT_DELAY;
use std::net::SocketAddr;
use std::sync::Arc;
use transport::{Kind, Time};
use wire::cm::{CommId, IpCm, RejectReason, Rep, Req, SidrRep, SidrReq, SidrStatus};
use wire::{Qpn, Transport};

/// The peer that asked, and how.
struct Caller<'a> {
    listener: ::cm::ListenerId,
    id: CommId,
    route: ::cm::Route,
    port: u16,
    private_data: &'a [u8],
    kind: Kind,
}

impl Inner {
    /// Tells programs what there is to tell. True if there was something.
    pub(super) fn tell_all(&mut self, nic: &Nic) -> bool {
        let mut any = false;
        while let Some(event) = self.manager.poll_event() {
            any = true;
            self.tell(nic, event);
        }
        any
    }

    fn tell(&mut self, nic: &Nic, event: ::cm::Event) {
        use ::cm::Event as Cm;
        let out_of_time = -libc::ETIMEDOUT;
        match event {
            Cm::Request { listener, id, route, request, ece } => {
                self.requested(nic, listener, id, route, &request, ece)
            }
            Cm::ServiceRequest { listener, id, route, request } => {
                self.asked_for_service(nic, listener, id, route, &request)
            }
            Cm::Reply { id, reply, ece } => self.about(id, |record| {
                record.stage = Stage::Answered;
                record.take_reply(&reply);
                record.watch_peer(nic);
                let retry_count = record.asked.map_or(0, |asked| asked.retry_count);
                (
                    EventKind::ConnectResponse,
                    0,
                    Body::Connection(answered(&reply, record.answering_qpn(&reply), retry_count, ece)),
                )
            }),
            Cm::Established { id } => {
                self.about(id, |record| {
                    record.stage = Stage::Connected;
                    (EventKind::Established, 0, Body::Connection(ConnectionBody::default()))
                });
                self.update_will(nic, id);
            }
            Cm::Rejected { id, reason, private_data, .. } => self.about(id, |record| {
                record.stage = Stage::Ended;
                let private_data = private_data.bytes().to_vec();
                let body = ConnectionBody { private_data, ..ConnectionBody::default() };
                (EventKind::Rejected, i32::from(reason.code()), Body::Connection(body))
            }),
            Cm::TimedOut { id, what: ::cm::Unanswered::Dreq } => self.ended(nic, id, out_of_time, &[], None),
            Cm::TimedOut { id, .. } | Cm::ServiceTimedOut { id } => self.about(id, |record| {
                record.stage = Stage::Ended;
                (EventKind::Unreachable, out_of_time, Body::None)
            }),
            Cm::DisconnectRequested { id, private_data } => {
                self.ended(nic, id, 0, private_data.bytes(), Some(nic.now() + DISCONNECT_EVENT_DELAY));
            }
            Cm::Disconnected { id, .. } => self.ended(nic, id, 0, &[], None),
            Cm::Suspected { id } => self.suspected(nic, id, nic.now()),
            Cm::TimewaitEnded { id } => {
                self.about(id, |_| (EventKind::TimewaitExit, 0, Body::None));
            }
            Cm::ServiceAnswer { id, answer, .. } => self.about(id, |record| resolved(record, &answer)),
            // What it learns to tell some day.
            _ => {}
        }
    }

    /// Changes the record of a communication and tells its program.
    fn about(&mut self, id: CommId, change: impl FnOnce(&mut Record) -> (EventKind, i32, Body)) {
        let Some(&key) = self.communications.get(&id) else { return };
        let Some(record) = self.records.get_mut(&key) else { return };
        let (kind, status, body) = change(record);
        let _ = record.tell(kind, status, body);
        self.note(key);
    }

    /// The end of a connection, told once, and perhaps not yet.
    fn ended(&mut self, nic: &Nic, id: CommId, status: i32, private_data: &[u8], later: Option<Time>) {
        let Some(&key) = self.communications.get(&id) else { return };
        let Some(record) = self.records.get_mut(&key) else { return };
        let stage = match record.stage {
            Stage::Connected | Stage::Accepted | Stage::Answered => Stage::PeerLeft,
            _ => Stage::Ended,
        };
        let by_us = std::mem::replace(&mut record.stage, stage) == Stage::Disconnecting;
        if !std::mem::replace(&mut record.told_of_end, true) {
            record.note_end(nic, by_us, private_data);
            match later {
                Some(when) => self.farewells.push_back((when, key)),
                None => self.tell_of_end(key, status),
            }
        }
        self.update_will(nic, id);
    }

    fn tell_of_end(&mut self, key: u64, status: i32) {
        let Some(record) = self.records.get(&key) else { return };
        let _ = record.tell(EventKind::Disconnected, status, Body::Connection(record.end.clone()));
        self.note(key);
    }

    /// Tells of connections that peers have ended a moment ago. Answers when the next is to be told.
    pub(super) fn tell_farewells(&mut self, now: Time) -> Option<Time> {
        while let Some((when, key)) = self.farewells.front().copied() {
            if when > now {
                return Some(when);
            }
            self.farewells.pop_front();
            self.tell_of_end(key, 0);
        }
        None
    }

    fn update_will(&mut self, nic: &Nic, id: CommId) {
        let Inner { records, communications, connection_records, .. } = self;
        if let Some(record) = communications.get(&id).and_then(|key| records.get_mut(key)) {
            record.record_connection(connection_records, nic);
        }
    }

    fn requested(
        &mut self,
        nic: &Nic,
        listener: ::cm::ListenerId,
        id: CommId,
        route: ::cm::Route,
        request: &Req,
        ece: ::cm::Ece,
    ) {
        let kind = match request.transport() {
            Some(Transport::Rc) => Kind::ReliableConnected,
            Some(Transport::Uc) => Kind::UnreliableConnected,
            Some(Transport::Xrc) => Kind::XrcTarget,
            _ => return self.turn_away(nic, id, RejectReason::InvalidTransport),
        };
        let private_data = request.private_data.bytes();
        let port = request.service_id.port().unwrap_or(0);
        let caller = Caller { listener, id, route, port, private_data, kind };
        let Some((mut record, listener, data)) = self.admit(nic, &caller) else {
            return self.turn_away(nic, id, RejectReason::InvalidServiceId);
        };
        if let Some(path) = &mut record.path {
            path.traffic_class = request.primary.traffic_class;
            path.flow_label = request.primary.flow_label;
        }
        let mtu = record.path.map_or(wire::Mtu::B1024, |path| path.mtu);
        record.take_request(request, mtu);
        let body = ConnectionBody {
            private_data: data,
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            flow_control: request.flow_control,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            srq: request.srq,
            qpn: request.local_qpn.value(),
            ece,
            end: None,
        };
        self.introduce(nic, record, listener, id, Body::Connection(body));
    }

    fn asked_for_service(
        &mut self,
        nic: &Nic,
        listener: ::cm::ListenerId,
        id: CommId,
        route: ::cm::Route,
        request: &SidrReq,
    ) {
        let private_data = request.private_data.bytes();
        let port = request.service_id.port().unwrap_or(0);
        let caller = Caller { listener, id, route, port, private_data, kind: Kind::UnreliableDatagram };
        let Some((record, listener, private_data)) = self.admit(nic, &caller) else {
            let answer = ::cm::SidrAnswer::refused(SidrStatus::Rejected);
            let _ = self.manager.answer(nic.now(), id, answer);
            return;
        };
        let av = record.address_vector().unwrap_or_default();
        let body = DatagramBody { private_data, av, qpn: Qpn::new(0), qkey: UDP_QKEY, user: 0 };
        self.introduce(nic, record, listener, id, Body::Datagram(body));
    }

    fn turn_away(&mut self, nic: &Nic, id: CommId, reason: RejectReason) {
        let now = nic.now();
        let _ = self.manager.reject(now, id, reason, &[], &[]);
        let _ = self.manager.abandon(now, id);
    }

    /// A record for the peer that asked, the id that listens, and what is for its program; nothing if it cannot be
    /// served.
    fn admit(&mut self, nic: &Nic, caller: &Caller<'_>) -> Option<(Record, Arc<Id>, Vec<u8>)> {
        let listening = self.listeners.get(&caller.listener).and_then(|key| self.records.get(key))?;
        let serves = |kind| match kind {
            Kind::XrcInitiator => Kind::XrcTarget,
            kind => kind,
        };
        if serves(listening.kind) != caller.kind {
            return None;
        }
        let (header, rest) = IpCm::parse(caller.private_data).ok()?;
        let ours = caller.route.source.to_ip();
        let place = nic.known_place(ours, 0)?;
        let scope = |address| if route::is_link_local(address) { place.device.interface_index() } else { 0 };
        let at = |address, port| -> SocketAddr { route::with_scope(address, port, scope(address)) };
        let psn = super::secret::psn();
        let channel = Arc::clone(&listening.channel);
        let mut record = Record::new(std::sync::Weak::new(), channel, listening.space, caller.kind, psn);
        record.settings = listening.settings;
        (record.stage, record.unaccepted) = (Stage::Requested, true);
        record.source = Some(at(header.destination, caller.port));
        record.destination = Some(at(header.source, header.source_port));
        record.path = Some(PathFacts {
            sgid: caller.route.source,
            dgid: caller.route.destination,
            sgid_index: place.index,
            mtu: place.device.port().mtu(),
            traffic_class: listening.settings.type_of_service,
            flow_label: 0,
            hop_limit: 64,
            service_level: 0,
            packet_lifetime: super::record::PACKET_LIFETIME,
        });
        record.place = Some(place);
        record.communication = Some(caller.id);
        // Last: it must not be the one that lets go of it, while the lock is held.
        let listener = listening.id.upgrade()?;
        Some((record, listener, rest.to_vec()))
    }

    /// Gives the request an id, and tells the program that listens.
    fn introduce(&mut self, nic: &Nic, mut record: Record, listener: Arc<Id>, communication: CommId, body: Body) {
        let id = Id::for_request(&listener, nic.cm.new_key());
        record.id = Arc::downgrade(&id);
        let channel = Arc::clone(&record.channel);
        self.communications.insert(communication, id.key);
        self.records.insert(id.key, record);
        let key = id.key;
        channel.push(Event { id, listener: Some(listener), kind: EventKind::ConnectRequest, status: 0, body });
        self.note(key);
    }
}

fn answered(reply: &Rep, qpn: Qpn, retry_count: u8, ece: ::cm::Ece) -> ConnectionBody {
    ConnectionBody {
        private_data: reply.private_data.bytes().to_vec(),
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.flow_control,
        retry_count,
        rnr_retry_count: reply.rnr_retry_count,
        srq: reply.srq,
        qpn: qpn.value(),
        ece,
        end: None,
    }
}

/// What came of asking for a queue pair of datagrams.
fn resolved(record: &mut Record, answer: &SidrRep) -> (EventKind, i32, Body) {
    let private_data = answer.private_data.bytes().to_vec();
    let av = record.address_vector().unwrap_or_default();
    let body = Body::Datagram(DatagramBody { private_data, av, qpn: answer.qpn, qkey: answer.qkey, user: 0 });
    if answer.status == SidrStatus::Valid {
        record.stage = Stage::Connected;
        return (EventKind::Established, 0, body);
    }
    record.stage = Stage::Ended;
    (EventKind::Unreachable, i32::from(answer.status.code()), body)
}
