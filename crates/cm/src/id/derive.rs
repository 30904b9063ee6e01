//! From messages to what programs are told: what the manager found out moves ids through their lives.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use trace::{ConnectionEnd, DropReason};
use transport::Kind;
use wire::cm::{
    CmDatagram, CommId, Data, Dreq, IpCm, Message, RejectReason, RejectedMessage, Rep, SidrRep, SidrStatus,
};
use wire::{Gid, Psn, Qpn, Transport};

use super::{
    Body, ConnectionBody, DatagramBody, EventKind, IdKey, IdRecord, Ids, LocalAddress, Output, Stage, UDP_QKEY,
    trace_end,
};
use crate::{Event, ListenerId, Route, SidrAnswer, Time, Unanswered};

/// The status of what nobody answered: Linux's `-ETIMEDOUT`.
const OUT_OF_TIME: i32 = -110;

impl Ids {
    /// A message arrived. If `proven`, it came from the address that it names, as with
    /// [`handle_proven`](crate::Manager::handle_proven).
    pub fn handle(&mut self, now: Time, from: Route, datagram: &CmDatagram, proven: bool) {
        if self.is_hasty(now, datagram) {
            return self.manager.drop_message(now, datagram, DropReason::CmTooSoon);
        }
        match proven {
            true => self.manager.handle_proven(now, from, datagram),
            false => self.manager.handle(now, from, datagram),
        }
    }

    /// Whether a message says that no program listens, and may say so only because the request came too soon.
    ///
    /// A program that has a connection to a port, and asks there for another one, has agreed on that with its peer:
    /// perftest does so, whose server listens anew for each connection. With kernels the asking program is slower,
    /// since its calls go through several work queues. Here both are as fast, and the asking program may be first. So a
    /// refusal for want of a listener is believed only as the answer to a repeated request, if the process has a
    /// connection to that very port; any other refusal is believed at once.
    fn is_hasty(&self, now: Time, datagram: &CmDatagram) -> bool {
        let id = match &datagram.message {
            Message::Rej(rej)
                if rej.reason == RejectReason::InvalidServiceId && rej.rejected == RejectedMessage::Req =>
            {
                rej.remote_comm_id
            }
            Message::SidrRep(answer) if answer.status == SidrStatus::ServiceIdNotSupported => answer.request_id,
            _ => return false,
        };
        let Some(asking) = self.of(id) else { return false };
        let is_early = asking.asked_at.is_some_and(|asked| now < asked + self.manager.config.early_refusal);
        let is_there = |record: &IdRecord| record.stage == Stage::Connected && record.destination == asking.destination;
        asking.stage == Stage::Connecting && is_early && self.records.values().any(is_there)
    }

    /// Does what is due. Peers whose packets have reached their queue pairs (`has_heard`) need not be reminded.
    pub fn handle_timeout(&mut self, now: Time, has_heard: impl Fn(&IdRecord) -> bool) {
        if self.manager.poll_timeout().is_none_or(|deadline| deadline > now) {
            return;
        }
        let unheard: Vec<CommId> = self.manager.unheard(now).collect();
        for id in unheard {
            if self.of(id).is_some_and(&has_heard) {
                self.manager.heard(now, id);
            }
        }
        self.manager.handle_timeout(now);
    }

    /// A packet came for a queue pair that does not exist yet. If it is the first of a connection that waits for its
    /// peer's confirmation, it is as good as one: it has two numbers right that only the peer was told.
    pub fn heard_early(&mut self, now: Time, source: Gid, qpn: Qpn, psn: Psn) {
        let record = self.accepted.get(&qpn).and_then(|key| self.records.get(key));
        let Some(record) = record.filter(|record| record.stage == Stage::Accepted) else { return };
        let is_peer = record.path.is_some_and(|path| path.dgid == source) && record.receive_psn == psn;
        if let Some(communication) = record.communication.filter(|_| is_peer) {
            self.manager.heard(now, communication);
        }
    }

    /// The process of the peer has ended: it is as if that had asked to disconnect.
    pub fn peer_died(&mut self, now: Time, key: IdKey) {
        let Some(record) = self.records.get_mut(&key) else { return };
        record.foreseen_end = Some(ConnectionEnd::PeerDied);
        if let (Some(path), Some(ours), Some(peers)) = (record.path, record.communication, record.peer_communication) {
            let dreq = Dreq {
                local_comm_id: peers,
                remote_comm_id: ours,
                remote_qpn: record.qpn,
                private_data: Data::default(),
            };
            // As it would have come.
            let route = Route { source: path.dgid, destination: path.sgid };
            self.manager.handle(now, route, &CmDatagram::new(0, Message::Dreq(dreq)));
        }
    }

    /// A [suspected](Output::Suspected) peer does not have the connection any more, and why.
    pub fn peer_lost(&mut self, now: Time, communication: CommId, why: ConnectionEnd) {
        if let Some(record) = self.communications.get(&communication).and_then(|key| self.records.get_mut(key)) {
            record.foreseen_end = Some(why);
        }
        self.manager.peer_lost(now, communication);
    }

    /// When [`handle_timeout`](Ids::handle_timeout) or [`poll_output`](Ids::poll_output) wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let farewell = self.farewells.front().map(|(when, _)| *when);
        self.manager.poll_timeout().into_iter().chain(farewell).min()
    }

    /// The next thing to bring to a program or to its queue pair. `local` finds an address of this host, for a peer
    /// that asks there.
    pub fn poll_output(&mut self, now: Time, local: impl Fn(Gid) -> Option<LocalAddress>) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            if let Some((_, key)) = self.farewells.pop_front_if(|(when, _)| *when <= now) {
                self.tell_of_end(key, 0);
            } else {
                let event = self.manager.poll_event()?;
                self.derive(now, &local, event);
            }
        }
    }

    /// Whether a disconnection waits to be told.
    pub fn has_farewells(&self) -> bool {
        !self.farewells.is_empty()
    }

    /// Tells at once of the disconnections whose program has nothing else to look at first, as `is_idle` says of an id.
    pub fn tell_farewells_of(&mut self, is_idle: impl Fn(IdKey, &IdRecord) -> bool) {
        let records = &self.records;
        let is_idle = |key: &IdKey| records.get(key).is_some_and(|record| is_idle(*key, record));
        let (told, kept): (VecDeque<_>, _) = self.farewells.drain(..).partition(|(_, key)| is_idle(key));
        self.farewells = kept;
        told.into_iter().for_each(|(_, key)| self.tell_of_end(key, 0));
    }

    /// Tells the program of an id, unless it has yet to accept.
    pub(super) fn tell(&mut self, key: IdKey, kind: EventKind, status: i32, body: Body) {
        if self.get(key).is_some_and(|record| !record.unaccepted) {
            self.outputs.push_back(Output::Event { key, kind, status, body });
        }
    }

    /// What a peer has asked for since it disconnected is not told before the disconnection.
    fn tell_farewells_before(&mut self, event: &Event) {
        let peer = match event {
            Event::Request { route, .. } | Event::ServiceRequest { route, .. } => Some(route.destination),
            Event::DisconnectRequested { .. } | Event::Suspected { .. } | Event::TimewaitEnded { .. } => None,
            other => self.of(other.id()).and_then(|record| record.path).map(|path| path.dgid),
        };
        let records = &self.records;
        let is_of = |key: &IdKey| records.get(key).is_some_and(|record| record.path.map(|path| path.dgid) == peer);
        if peer.is_none() || !self.farewells.iter().any(|(_, key)| is_of(key)) {
            return;
        }
        let (told, kept): (VecDeque<_>, _) = self.farewells.drain(..).partition(|(_, key)| is_of(key));
        self.farewells = kept;
        told.into_iter().for_each(|(_, key)| self.tell_of_end(key, 0));
    }

    fn derive(&mut self, now: Time, local: &impl Fn(Gid) -> Option<LocalAddress>, event: Event) {
        self.tell_farewells_before(&event);
        match event {
            Event::Request { listener, id, route, request, ece } => {
                let kind = match request.transport() {
                    Some(Transport::Rc) => Kind::ReliableConnected,
                    Some(Transport::Uc) => Kind::UnreliableConnected,
                    Some(Transport::Xrc) => Kind::XrcTarget,
                    _ => return self.turn_away(now, id, RejectReason::InvalidTransport),
                };
                let port = request.service_id.port().unwrap_or(0);
                let caller = Caller { listener, id, route, port, data: request.private_data.bytes(), kind };
                let Some((listener, mut record, private_data)) = self.admit(local, &caller) else {
                    return self.turn_away(now, id, RejectReason::InvalidServiceId);
                };
                if let Some(path) = &mut record.path {
                    path.traffic_class = request.primary.traffic_class;
                    path.flow_label = request.primary.flow_label;
                }
                record.take_request(&request);
                let body = ConnectionBody {
                    private_data,
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
                self.introduce(record, listener, id, Body::Connection(body));
            }
            Event::ServiceRequest { listener, id, route, request } => {
                let (port, kind) = (request.service_id.port().unwrap_or(0), Kind::UnreliableDatagram);
                let caller = Caller { listener, id, route, port, data: request.private_data.bytes(), kind };
                let Some((listener, record, private_data)) = self.admit(local, &caller) else {
                    let _ = self.manager.answer(now, id, SidrAnswer::refused(SidrStatus::Rejected));
                    return;
                };
                let av = record.address_vector().unwrap_or_default();
                let body = DatagramBody { private_data, av, qpn: Qpn::new(0), qkey: UDP_QKEY, user: 0 };
                self.introduce(record, listener, id, Body::Datagram(body));
            }
            Event::Reply { id, reply, ece } => self.about(id, |record| {
                record.stage = Stage::Answered;
                record.take_reply(&reply);
                (EventKind::ConnectResponse, 0, Body::Connection(answered(record, &reply, ece)))
            }),
            Event::Established { id } => self.about(id, |record| {
                record.stage = Stage::Connected;
                (EventKind::Established, 0, Body::Connection(ConnectionBody::default()))
            }),
            Event::Rejected { id, reason, private_data, .. } => self.about(id, |record| {
                record.stage = Stage::Ended;
                let body = ConnectionBody { private_data: private_data.bytes().to_vec(), ..ConnectionBody::default() };
                (EventKind::Rejected, i32::from(reason.code()), Body::Connection(body))
            }),
            Event::TimedOut { id, what: Unanswered::Dreq } => self.ended(now, id, OUT_OF_TIME, &[], None),
            Event::TimedOut { id, .. } | Event::ServiceTimedOut { id } => self.about(id, |record| {
                record.stage = Stage::Ended;
                (EventKind::Unreachable, OUT_OF_TIME, Body::None)
            }),
            Event::DisconnectRequested { id, private_data } => {
                let later = now + self.manager.config.disconnect_event_delay;
                self.ended(now, id, 0, private_data.bytes(), Some(later));
            }
            Event::Disconnected { id, .. } => self.ended(now, id, 0, &[], None),
            Event::Suspected { id } => {
                let key = self.communications.get(&id);
                self.outputs.extend(key.map(|&key| Output::Suspected { key, communication: id }));
            }
            Event::TimewaitEnded { id } => self.about(id, |_| (EventKind::TimewaitExit, 0, Body::None)),
            Event::ServiceAnswer { id, answer } => self.about(id, |record| resolved(record, &answer)),
        }
    }

    /// Changes the id of a communication and tells its program.
    fn about(&mut self, id: CommId, change: impl FnOnce(&mut IdRecord) -> (EventKind, i32, Body)) {
        let Some(&key) = self.communications.get(&id) else { return };
        let Some(record) = self.records.get_mut(&key) else { return };
        let (kind, status, body) = change(record);
        self.tell(key, kind, status, body);
    }

    /// The end of a connection, told once, and perhaps not yet.
    fn ended(&mut self, now: Time, id: CommId, status: i32, private_data: &[u8], later: Option<Time>) {
        let Some(&key) = self.communications.get(&id) else { return };
        let Some(record) = self.records.get_mut(&key) else { return };
        let stage = match record.stage {
            Stage::Connected | Stage::Accepted | Stage::Answered => Stage::PeerLeft,
            _ => Stage::Ended,
        };
        let by_us = core::mem::replace(&mut record.stage, stage) == Stage::Disconnecting;
        self.outputs.push_back(Output::Ended { key });
        if core::mem::replace(&mut record.told_of_end, true) {
            return;
        }
        let by = match record.foreseen_end {
            Some(end) => end,
            None if by_us => ConnectionEnd::Local,
            None if private_data.starts_with(crate::PROCESS_ENDED) => ConnectionEnd::PeerDied,
            None => ConnectionEnd::Peer,
        };
        record.end.end = Some(by);
        // The field is always as long as the message has it; a peer that says nothing fills it with zeros.
        if by == ConnectionEnd::Peer && private_data.iter().any(|byte| *byte != 0) {
            record.end.private_data = private_data.to_vec();
        }
        trace_end(&mut self.manager, now, record, by);
        match later {
            Some(when) => self.farewells.push_back((when, key)),
            None => self.tell_of_end(key, status),
        }
    }

    fn tell_of_end(&mut self, key: IdKey, status: i32) {
        let Some(body) = self.get(key).map(|record| Body::Connection(record.end.clone())) else { return };
        self.tell(key, EventKind::Disconnected, status, body);
    }

    fn turn_away(&mut self, now: Time, id: CommId, reason: RejectReason) {
        let _ = self.manager.reject(now, id, reason, &[], &[]);
        let _ = self.manager.abandon(now, id);
    }

    /// The id that listens, one for the peer that asked, and what is for the program; nothing if it cannot be served.
    fn admit(
        &mut self,
        local: &impl Fn(Gid) -> Option<LocalAddress>,
        caller: &Caller<'_>,
    ) -> Option<(IdKey, IdRecord, Vec<u8>)> {
        let psn = self.manager.ids.draw_psn();
        let &key = self.listeners.get(&caller.listener)?;
        let listening = self.records.get(&key)?;
        let serves = if listening.kind == Kind::XrcInitiator { Kind::XrcTarget } else { listening.kind };
        if serves != caller.kind {
            return None;
        }
        let (theirs, ours, rest) = match listening.settings.by_gid {
            // Of a peer that is named by its GID no port is known.
            true => ((caller.route.destination.to_ip(), 0), caller.route.source.to_ip(), caller.data),
            false => {
                let (header, rest) = IpCm::parse(caller.data).ok()?;
                ((header.source, header.source_port), header.destination, rest)
            }
        };
        // The way back: our address is where the message went.
        let local = local(caller.route.source)?;
        let mut record = IdRecord::new(listening.space, caller.kind, psn);
        record.settings = listening.settings;
        (record.stage, record.unaccepted, record.is_asked_for) = (Stage::Requested, true, true);
        record.source = Some(local.scoped(ours, caller.port));
        record.destination = Some(local.scoped(theirs.0, theirs.1));
        record.local = Some(local);
        record.path = record.path_to(caller.route.destination);
        if let Some(path) = &mut record.path {
            (path.sgid, path.service_level) = (caller.route.source, 0);
        }
        record.communication = Some(caller.id);
        Some((key, record, rest.to_vec()))
    }

    /// Gives the request an id, and tells the program that listens.
    fn introduce(&mut self, mut record: IdRecord, listener: IdKey, communication: CommId, body: Body) {
        self.begun += 1;
        record.order = self.begun;
        let key = self.insert(record);
        self.communications.insert(communication, key);
        self.outputs.push_back(Output::Request { key, listener, body });
    }
}

/// The peer that asked, and how.
struct Caller<'a> {
    listener: ListenerId,
    id: CommId,
    route: Route,
    port: u16,
    data: &'a [u8],
    kind: Kind,
}

/// What a peer said that accepted.
fn answered(record: &IdRecord, reply: &Rep, ece: crate::Ece) -> ConnectionBody {
    ConnectionBody {
        private_data: reply.private_data.bytes().to_vec(),
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.flow_control,
        retry_count: record.asked.map_or(0, |asked| asked.retry_count),
        rnr_retry_count: reply.rnr_retry_count,
        srq: reply.srq,
        qpn: record.answering_qpn(reply).value(),
        ece,
        end: None,
    }
}

/// What came of asking for a queue pair of datagrams.
fn resolved(record: &mut IdRecord, answer: &SidrRep) -> (EventKind, i32, Body) {
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
