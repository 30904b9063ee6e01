//! The connection manager of a simulated host, on the sans-IO one of the crate `cm`: ids with addresses and ports,
//! messages between the queue pairs 1 of hosts, and events for the channels of the program. Queue pairs are not touched
//! here.

use super::connections::{Channel, SimulatedId};
use super::record::{Record, Stage};
use super::world::{After, Place};
use crate::backend::connections::ConnectionEvent;
use cm::{Event, Time};
use hca::cm::{Body, ConnectionBody, DatagramBody, EventKind, UDP_QKEY};
use sim::{HostId, Management, QpId, Sim};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use trace::ConnectionEnd;
use transport::Kind;
use wire::cm::{CmDatagram, CommId, IpCm, PortSpace, RejectReason, Req, SidrRep, SidrReq, SidrStatus};
use wire::mad::{MAD_LEN, MadHeader};
use wire::{Deth, Gid, Headers, Opcode, Pkey, Psn, Qkey, Qpn, Transport};

/// How much later than the peer's word a program hears that a connection has ended: what was sent before is there by
/// then. As on the NIC of a process.
const FAREWELL: Duration = Duration::from_micros(500);

/// What nobody answers.
const OUT_OF_TIME: i32 = -110;

pub(super) struct Manager {
    pub(super) core: cm::Manager,
    pub(super) records: BTreeMap<u64, Record>,
    pub(super) communications: BTreeMap<CommId, u64>,
    pub(super) listeners: BTreeMap<cm::ListenerId, u64>,
    /// Ports in use, and by how many ids.
    pub(super) ports: BTreeSet<(PortSpace, u16, u64)>,
    next_key: u64,
    next_port: u16,
    farewells: VecDeque<(Time, u64)>,
    /// Counts the packets that carry messages.
    psn: u32,
    /// Whom to make ids for: set while messages are looked at.
    told: Vec<Arc<Channel>>,
    /// Sequence numbers of ids are drawn from it.
    draw: sim::Rng,
    /// What must not be let go of while the lock is held.
    trash: Vec<Arc<SimulatedId>>,
}

/// What the manager must know of its party.
pub(super) struct Facts {
    pub(super) party: usize,
    pub(super) gids: Vec<Gid>,
}

/// What came of a call.
pub(super) struct Outcome {
    pub(super) after: Vec<After>,
    pub(super) deadline: Option<Time>,
}

/// The addresses of a host: one of IPv4, one of IPv6.
pub(super) fn gids(sim: &Sim, host: HostId) -> Vec<Gid> {
    vec![sim.gid(host, 0), sim.gid(host, 1)]
}

impl Manager {
    pub(super) fn new(seed: u128) -> Manager {
        let config = cm::Config::new(CommId::new(1), CommId::new(u32::MAX), seed);
        Manager {
            core: cm::Manager::new(config),
            records: BTreeMap::new(),
            communications: BTreeMap::new(),
            listeners: BTreeMap::new(),
            ports: BTreeSet::new(),
            next_key: 1,
            next_port: 32_768,
            farewells: VecDeque::new(),
            psn: 0,
            told: Vec::new(),
            draw: sim::Rng::new(seed as u64),
            trash: Vec::new(),
        }
    }

    pub(super) fn new_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }

    pub(super) fn new_psn(&mut self) -> Psn {
        Psn::new(self.draw.next_u64() as u32 & 0xff_ffff)
    }

    /// A port that nobody has.
    pub(super) fn free_port(&mut self, space: PortSpace) -> Option<u16> {
        for _ in 0..u16::MAX {
            self.next_port = if self.next_port == u16::MAX { 32_768 } else { self.next_port + 1 };
            if !self.has_port(space, self.next_port) {
                return Some(self.next_port);
            }
        }
        None
    }

    pub(super) fn has_port(&self, space: PortSpace, port: u16) -> bool {
        self.ports.range((space, port, 0)..=(space, port, u64::MAX)).next().is_some()
    }

    /// A datagram came for queue pair 1.
    pub(super) fn receive(&mut self, now: Time, datagram: &Management) {
        let Some(message) = read(datagram) else { return };
        let route = cm::Route { source: datagram.from, destination: datagram.to };
        self.core.handle(now, route, &message);
    }

    /// A deadline has come, perhaps.
    pub(super) fn wake(&mut self, now: Time, sim: &Sim, host: HostId) {
        if self.core.poll_timeout().is_some_and(|deadline| deadline <= now) {
            // Peers that have sent something to their queue pairs are ready, whatever became of their word.
            let unheard: Vec<CommId> = self.core.unheard(now).collect();
            for id in unheard {
                let Some(record) = self.communications.get(&id).and_then(|key| self.records.get(key)) else { continue };
                let queue_pair = sim.queue_pair(QpId { host, qpn: record.qpn });
                if queue_pair.is_some_and(|queue_pair| queue_pair.has_heard()) {
                    self.core.heard(now, id);
                }
            }
            self.core.handle_timeout(now);
        }
    }

    /// The process has ended without a word: peers are told so. Answers what may only be let go of without the lock.
    pub(super) fn process_ended(&mut self, now: Time) -> Vec<Record> {
        for (listener, _) in std::mem::take(&mut self.listeners) {
            self.core.stop_listening(now, listener);
        }
        for (communication, _) in std::mem::take(&mut self.communications) {
            let last_words = cm::process_ended();
            if self.core.disconnect(now, communication, last_words.bytes()).is_err() {
                let _ = self.core.abandon(now, communication);
            }
        }
        self.forget()
    }

    /// Forgets all ids.
    pub(super) fn forget(&mut self) -> Vec<Record> {
        self.ports.clear();
        self.farewells.clear();
        self.communications.clear();
        self.listeners.clear();
        std::mem::take(&mut self.records).into_values().collect()
    }

    /// Ends an id. Its record may only be let go of without the lock.
    pub(super) fn destroy(&mut self, now: Time, key: u64) -> Option<Record> {
        let record = self.records.remove(&key)?;
        if let Some(listener) = record.listener {
            self.listeners.remove(&listener);
            self.core.stop_listening(now, listener);
        }
        if let Some(communication) = record.communication {
            self.communications.remove(&communication);
            // Unknown if it has ended already.
            let _ = self.core.abandon(now, communication);
        }
        if let Some(source) = record.source {
            self.ports.remove(&(record.space, source.port(), key));
        }
        Some(record)
    }

    /// Sends what is to be sent, and tells what is to be told.
    pub(super) fn pump(&mut self, now: Time, facts: &Facts, sim: &mut Sim, host: HostId) -> Outcome {
        loop {
            while let Some(cm::Transmit { route, datagram }) = self.core.poll_transmit() {
                self.psn = self.psn.wrapping_add(1);
                let mut bytes = [0; MAD_LEN];
                if datagram.encode(&mut bytes).is_ok() {
                    sim.send_packet(host, route.source, route.destination, &headers(self.psn), &bytes);
                }
            }
            let Some(event) = self.core.poll_event() else { break };
            self.tell(now, facts, event);
        }
        self.core.take_drops();
        while let Some(&(when, key)) = self.farewells.front() {
            if when > now {
                break;
            }
            self.farewells.pop_front();
            self.tell_of_end(key, 0);
        }
        let mut after: Vec<After> = Vec::new();
        for channel in self.told.drain(..) {
            after.extend(channel.observer().map(|observer| After::Tell(facts.party, observer)));
        }
        after.extend(self.trash.drain(..).map(|id| After::Drop(Box::new(id))));
        let farewell = self.farewells.front().map(|(when, _)| *when);
        Outcome { after, deadline: [self.core.poll_timeout(), farewell].into_iter().flatten().min() }
    }

    fn tell(&mut self, now: Time, facts: &Facts, event: Event) {
        match event {
            Event::Request { listener, id, route, request, ece } => {
                self.requested(now, facts, listener, id, route, &request, ece);
            }
            Event::ServiceRequest { listener, id, route, request } => {
                self.asked_for_service(now, facts, listener, id, route, &request);
            }
            Event::Reply { id, reply, ece } => self.about(id, |record| {
                record.stage = Stage::Answered;
                record.take_reply(&reply);
                let body = ConnectionBody {
                    private_data: reply.private_data.bytes().to_vec(),
                    responder_resources: reply.initiator_depth,
                    initiator_depth: reply.responder_resources,
                    flow_control: reply.flow_control,
                    retry_count: record.asked.map_or(0, |asked| asked.retry_count),
                    rnr_retry_count: reply.rnr_retry_count,
                    srq: reply.srq,
                    qpn: record.answering_qpn(&reply).value(),
                    ece,
                    end: None,
                };
                (EventKind::ConnectResponse, 0, Body::Connection(body))
            }),
            Event::Established { id } => self.about(id, |record| {
                record.stage = Stage::Connected;
                (EventKind::Established, 0, Body::Connection(ConnectionBody::default()))
            }),
            Event::Rejected { id, reason, private_data, .. } => self.about(id, |record| {
                record.stage = Stage::Ended;
                let private_data = private_data.bytes().to_vec();
                let body = ConnectionBody { private_data, ..ConnectionBody::default() };
                (EventKind::Rejected, i32::from(reason.code()), Body::Connection(body))
            }),
            Event::TimedOut { id, what: cm::Unanswered::Dreq } => self.ended(id, OUT_OF_TIME, &[], None),
            Event::TimedOut { id, .. } | Event::ServiceTimedOut { id } => self.about(id, |record| {
                record.stage = Stage::Ended;
                (EventKind::Unreachable, OUT_OF_TIME, Body::None)
            }),
            Event::DisconnectRequested { id, private_data } => {
                self.ended(id, 0, private_data.bytes(), Some(now + FAREWELL));
            }
            Event::Disconnected { id, .. } => self.ended(id, 0, &[], None),
            Event::TimewaitEnded { id } => self.about(id, |_| (EventKind::TimewaitExit, 0, Body::None)),
            Event::ServiceAnswer { id, answer } => self.about(id, |record| resolved(record, &answer)),
            // Numbers of queue pairs are not used again in a simulation, so none is asked for twice.
            _ => {}
        }
    }

    fn about(&mut self, id: CommId, change: impl FnOnce(&mut Record) -> (EventKind, i32, Body)) {
        let Some(record) = self.communications.get(&id).and_then(|key| self.records.get_mut(key)) else { return };
        let (kind, status, body) = change(record);
        self.trash.extend(record.tell(kind, status, body));
        self.told.push(Arc::clone(&record.channel));
    }

    /// The end of a connection, told once, and perhaps not yet.
    fn ended(&mut self, id: CommId, status: i32, private_data: &[u8], later: Option<Time>) {
        let Some(&key) = self.communications.get(&id) else { return };
        let Some(record) = self.records.get_mut(&key) else { return };
        let stage = match record.stage {
            Stage::Connected | Stage::Accepted | Stage::Answered => Stage::PeerLeft,
            _ => Stage::Ended,
        };
        let by_us = std::mem::replace(&mut record.stage, stage) == Stage::Disconnecting;
        if std::mem::replace(&mut record.told_of_end, true) {
            return;
        }
        let by = match by_us {
            true => ConnectionEnd::Local,
            false if private_data.starts_with(cm::PROCESS_ENDED) => ConnectionEnd::PeerDied,
            false => ConnectionEnd::Peer,
        };
        record.end.end = Some(by);
        if by == ConnectionEnd::Peer && private_data.iter().any(|byte| *byte != 0) {
            record.end.private_data = private_data.to_vec();
        }
        match later {
            Some(when) => self.farewells.push_back((when, key)),
            None => self.tell_of_end(key, status),
        }
    }

    fn tell_of_end(&mut self, key: u64, status: i32) {
        let Some(record) = self.records.get(&key) else { return };
        let body = Body::Connection(record.end.clone());
        self.trash.extend(record.tell(EventKind::Disconnected, status, body));
        self.told.push(Arc::clone(&record.channel));
    }

    #[allow(clippy::too_many_arguments)] // what the message has
    fn requested(
        &mut self,
        now: Time,
        facts: &Facts,
        listener: cm::ListenerId,
        id: CommId,
        route: cm::Route,
        request: &Req,
        ece: cm::Ece,
    ) {
        let kind = match request.transport() {
            Some(Transport::Rc) => Kind::ReliableConnected,
            Some(Transport::Uc) => Kind::UnreliableConnected,
            Some(Transport::Xrc) => Kind::XrcTarget,
            _ => return self.turn_away(now, id, RejectReason::InvalidTransport),
        };
        let port = request.service_id.port().unwrap_or(0);
        let caller = Caller { listener, id, route, port, private_data: request.private_data.bytes(), kind };
        let Some((mut record, listener, private_data)) = self.admit(facts, &caller) else {
            return self.turn_away(now, id, RejectReason::InvalidServiceId);
        };
        record.take_request(request);
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

    fn asked_for_service(
        &mut self,
        now: Time,
        facts: &Facts,
        listener: cm::ListenerId,
        id: CommId,
        route: cm::Route,
        request: &SidrReq,
    ) {
        let port = request.service_id.port().unwrap_or(0);
        let private_data = request.private_data.bytes();
        let caller = Caller { listener, id, route, port, private_data, kind: Kind::UnreliableDatagram };
        let Some((record, listener, private_data)) = self.admit(facts, &caller) else {
            let _ = self.core.answer(now, id, cm::SidrAnswer::refused(SidrStatus::Rejected));
            return;
        };
        let av = record.address_vector().unwrap_or_default();
        let body = DatagramBody { private_data, av, qpn: Qpn::new(0), qkey: UDP_QKEY, user: 0 };
        self.introduce(record, listener, id, Body::Datagram(body));
    }

    fn turn_away(&mut self, now: Time, id: CommId, reason: RejectReason) {
        let _ = self.core.reject(now, id, reason, &[], &[]);
        let _ = self.core.abandon(now, id);
    }

    /// A record for the peer that asked, the id that listens, and what is for its program; nothing if the listener does
    /// not serve it.
    fn admit(&mut self, facts: &Facts, caller: &Caller<'_>) -> Option<(Record, Arc<SimulatedId>, Vec<u8>)> {
        let psn = self.new_psn();
        let listening = self.listeners.get(&caller.listener).and_then(|key| self.records.get(key))?;
        let serves = if listening.kind == Kind::XrcInitiator { Kind::XrcTarget } else { listening.kind };
        if serves != caller.kind {
            return None;
        }
        let (header, rest) = IpCm::parse(caller.private_data).ok()?;
        // The way back: our address is where the message went.
        let cm::Route { source: ours, destination: theirs } = caller.route;
        let index = facts.gids.iter().position(|gid| *gid == ours)?;
        let mut record = Record::new(Weak::new(), Arc::clone(&listening.channel), listening.space, caller.kind, psn);
        record.settings = listening.settings;
        (record.stage, record.unaccepted) = (Stage::Requested, true);
        record.source = Some(SocketAddr::new(header.destination, caller.port));
        record.destination = Some(SocketAddr::new(header.source, header.source_port));
        record.path = Some((ours, theirs, index as u8));
        record.communication = Some(caller.id);
        Some((record, listening.id.upgrade()?, rest.to_vec()))
    }

    /// Gives the request an id, and tells the program that listens.
    fn introduce(&mut self, mut record: Record, listener: Arc<SimulatedId>, communication: CommId, body: Body) {
        let Place { world, party, life } = listener.place.clone();
        let key = self.new_key();
        let id = SimulatedId::new(Place { world, party, life }, key);
        record.id = Arc::downgrade(&id);
        let channel = Arc::clone(&record.channel);
        self.communications.insert(communication, key);
        self.records.insert(key, record);
        let event = ConnectionEvent { id, listener: Some(listener), kind: EventKind::ConnectRequest, status: 0, body };
        channel.push(key, event);
        self.told.push(channel);
    }

    pub(super) fn note(&mut self, key: u64) {
        if let Some(record) = self.records.get(&key) {
            self.told.push(Arc::clone(&record.channel));
        }
    }
}

/// The peer that asked, and how.
struct Caller<'a> {
    listener: cm::ListenerId,
    id: CommId,
    route: cm::Route,
    port: u16,
    private_data: &'a [u8],
    kind: Kind,
}

/// What came of asking for a queue pair of datagrams.
fn resolved(record: &mut Record, answer: &SidrRep) -> (EventKind, i32, Body) {
    let private_data = answer.private_data.bytes().to_vec();
    let av = record.address_vector().unwrap_or_default();
    let body = Body::Datagram(DatagramBody { private_data, av, qpn: answer.qpn, qkey: answer.qkey, user: 0 });
    let valid = answer.status == SidrStatus::Valid;
    record.stage = if valid { Stage::Connected } else { Stage::Ended };
    match valid {
        true => (EventKind::Established, 0, body),
        false => (EventKind::Unreachable, i32::from(answer.status.code()), body),
    }
}

fn headers(psn: u32) -> Headers {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(psn));
    headers.bth.pkey = Pkey::DEFAULT;
    headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
    headers
}

/// The message in a packet for queue pair 1, if it is one that a queue pair 1 of the default partition has sent.
fn read(datagram: &Management) -> Option<CmDatagram> {
    let headers = &datagram.headers;
    let deth = headers.deth?;
    let proper = headers.bth.opcode == Opcode::UdSendOnly
        && Pkey::DEFAULT.matches(headers.bth.pkey)
        && deth.qkey == Qkey::GSI
        && deth.src_qpn == Qpn::GSI;
    let (header, _) = MadHeader::parse(&datagram.payload).ok()?;
    let ours = header.management_class == MadHeader::CLASS_CM && header.method == MadHeader::METHOD_SEND;
    (proper && ours).then(|| CmDatagram::parse(&datagram.payload).ok()).flatten()
}
