//! Anything at all, at a live connection manager: bytes decide which messages are forged, about which connections and from where, what the
//! program calls and how time passes. A fuzzer brings the bytes, or a generator with a seed. Whatever they are, nothing panics, nobody gets more
//! answers than it asked for, the tables agree, every attempt is heard of in order, what a stranger says touches no connection of others, and
//! afterwards nothing is left.

use std::collections::BTreeMap;
use std::time::Duration;

use cm::{
    Accept, Config, Connect, Event, Families, Listen, ListenerId, Manager, Resolve, Route, SidrAnswer, State, Time,
};
use wire::cm::{BODY_LEN, CmDatagram, CommId, Message, MessageKind, PortSpace, RejectReason, ServiceId, SidrStatus};
use wire::mad::MAD_LEN;
use wire::{Gid, Psn, Qkey, Qpn, Timeout};

/// What a storm reached.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    /// Messages that nobody sent honestly.
    pub forged: u64,
    /// Which messages named connections in which states; none for a connection that is not there.
    pub met: BTreeMap<(Option<State>, MessageKind), u64>,
    /// What was heard.
    pub heard: BTreeMap<String, u64>,
    /// What was sent.
    pub sent: BTreeMap<MessageKind, u64>,
}

impl Reached {
    /// Adds what another storm reached.
    pub fn add(&mut self, other: &Reached) {
        self.forged += other.forged;
        for (key, count) in &other.met {
            *self.met.entry(*key).or_default() += count;
        }
        for (key, count) in &other.heard {
            *self.heard.entry(key.clone()).or_default() += count;
        }
        for (key, count) in &other.sent {
            *self.sent.entry(*key).or_default() += count;
        }
    }
}

/// Lets the storm of these bytes pass over a manager.
///
/// # Panics
/// If anything happens that must not.
pub fn connection_storm(bytes: &[u8]) -> Reached {
    let mut choices = Choices { bytes };
    let mut scene = Scene::new(&mut choices);
    while !choices.bytes.is_empty() {
        scene.act(&mut choices);
        scene.look();
    }
    scene.finish()
}

/// Bytes as decisions; zero when there are no more.
struct Choices<'a> {
    bytes: &'a [u8],
}

impl Choices<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let length = N.min(self.bytes.len());
        let (front, rest) = self.bytes.split_at(length);
        taken[..length].copy_from_slice(front);
        self.bytes = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len())).copied()
    }
}

/// The manager, and what an outsider knows of it.
struct Scene {
    manager: Manager,
    now: Time,
    /// Names of ours that were heard of or are on the wire.
    ours: Vec<CommId>,
    /// Names of peers.
    theirs: Vec<CommId>,
    qpns: Vec<Qpn>,
    listeners: Vec<ListenerId>,
    /// What may be heard of an attempt next.
    phases: BTreeMap<CommId, Phase>,
    /// What a peer knows of each attempt.
    facts: BTreeMap<CommId, Facts>,
    /// The transaction of each attempt, by our name for it,
    transactions: BTreeMap<CommId, u64>,
    /// and of each request that arrived, by who sent it and its name there.
    asked: BTreeMap<(Gid, CommId), u64>,
    /// What arrived, to send again.
    last: Vec<(Route, CmDatagram)>,
    reached: Reached,
    /// A connection that no forged message comes from the peer of.
    safe: CommId,
}

/// What a peer says of itself and knows of us in the messages of one connection.
#[derive(Clone, Copy, Debug)]
struct Facts {
    source: Gid,
    theirs: CommId,
    qpn: Qpn,
}

/// How far an attempt has come, as its program has heard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Begun,
    Answered,
    Up,
    Ending,
    Over,
}

const OWN: Gid = gid(1);
const SAFE: Gid = gid(99);
/// Who forges. The peer of the safe connection is none of them.
const FORGERS: [Gid; 4] = [gid(2), gid(3), OWN, Gid::ZERO];

const fn gid(last: u8) -> Gid {
    Gid::from_ipv4(std::net::Ipv4Addr::new(10, 0, 0, last))
}

fn service(port: u16) -> ServiceId {
    ServiceId::ip(PortSpace::Tcp, port)
}

impl Scene {
    fn new(choices: &mut Choices<'_>) -> Scene {
        let (first, last) = (CommId::new(0x100), CommId::new(if choices.flag() { 0x17f } else { 0xffff_ffff }));
        let config = Config {
            half_open: 24,
            timewait: 16,
            eager: choices.flag().then(|| Duration::from_millis(100)),
            ..Config::new(first, last, choices.byte().into())
        };
        let mut manager = Manager::new(config);
        manager.set_tracing(choices.flag());
        let listeners = vec![manager.listen(Listen { backlog: 8, ..Listen::new(service(1)) }).expect("the first")];
        let mut scene = Scene {
            manager,
            now: Time::from_nanos(1),
            ours: Vec::new(),
            theirs: (0..4).map(|n| CommId::new(0x70 + n)).collect(),
            qpns: (0..4).map(|n| Qpn::new(0x20 + n)).collect(),
            listeners,
            phases: BTreeMap::new(),
            facts: BTreeMap::new(),
            transactions: BTreeMap::new(),
            asked: BTreeMap::new(),
            last: Vec::new(),
            reached: Reached::default(),
            safe: CommId::new(0),
        };
        scene.safe = scene.safe_connection();
        scene
    }

    /// Connects to a host that none here can speak for.
    fn safe_connection(&mut self) -> CommId {
        let route = Route { source: OWN, destination: SAFE };
        let connect = Connect::new(route, service(7), Qpn::new(0x777), Psn::new(0));
        let id = self.manager.connect(self.now, connect).expect("the first");
        let mut peer = Manager::new(Config { seed: 1234, ..Config::default() });
        peer.listen(Listen::new(service(7))).expect("the first");
        let req = self.manager.poll_transmit().expect("a request");
        peer.handle(self.now, req.route, &req.datagram);
        let passive = peer.poll_event().expect("a request").id();
        peer.accept(self.now, passive, Accept::new(Qpn::new(0x778), Psn::new(0))).expect("it is a request");
        let rep = peer.poll_transmit().expect("a reply");
        self.manager.handle(self.now, rep.route, &rep.datagram);
        self.manager.poll_event().expect("a reply");
        self.manager.confirm(self.now, id, b"").expect("it is a reply");
        while self.manager.poll_transmit().is_some() {}
        self.ours.push(id);
        self.theirs.push(passive);
        id
    }

    fn act(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 16 {
            0..8 => self.forge(choices),
            8 => self.repeat(choices),
            9..14 => self.call(choices),
            _ => self.wait(choices),
        }
    }

    fn wait(&mut self, choices: &mut Choices<'_>) {
        let due = self.manager.poll_timeout();
        self.now = match (choices.byte() % 3, due) {
            (0, Some(due)) => due.max(self.now),
            (1, _) => self.now + Duration::from_millis(choices.byte().into()),
            _ => self.now + Duration::from_secs(choices.byte().into()),
        };
        self.manager.handle_timeout(self.now);
    }

    /// A made-up message, mostly about things that exist.
    fn forge(&mut self, choices: &mut Choices<'_>) {
        let kinds = MessageKind::ALL;
        let kind = choices.pick(kinds).unwrap_or(MessageKind::Req);
        let mut body = [0; BODY_LEN];
        if choices.byte().is_multiple_of(8) {
            // Now and then every field is arbitrary.
            body.fill_with(|| choices.byte());
        }
        let Ok(mut message) = Message::parse(kind, &body) else { unreachable!("every body parses") };
        let ours = match choices.byte() % 8 {
            0 => CommId::new(u32::from_be_bytes(choices.take())),
            1 => self.safe,
            _ => choices.pick(self.recent()).unwrap_or_default(),
        };
        let theirs = match choices.byte() % 8 {
            0 => CommId::new(u32::from_be_bytes(choices.take())),
            _ => choices.pick(&self.theirs).unwrap_or_default(),
        };
        let qpn = choices.pick(&self.qpns).unwrap_or_default();
        let source = choices.pick(&FORGERS).unwrap_or(OWN);
        // Mostly everything in it fits the connection that it names.
        let guess = Facts { source, theirs, qpn };
        let facts = self.facts.get(&ours).copied().filter(|_| !choices.byte().is_multiple_of(4));
        let Facts { source, theirs, qpn } = facts.unwrap_or(guess);
        let timeout = Timeout::new(choices.byte());
        match &mut message {
            Message::Req(req) => {
                req.local_comm_id = theirs;
                req.local_qpn = qpn;
                req.service_id = service(u16::from(choices.byte() % 3));
                req.starting_psn = Psn::new(u32::from(choices.byte() % 2));
                req.local_cm_response_timeout = timeout;
                req.primary.local_ack_timeout = Timeout::new(choices.byte());
                req.max_cm_retries = choices.byte() % 16;
            }
            Message::Mra(mra) => {
                (mra.local_comm_id, mra.remote_comm_id, mra.service_timeout) = (theirs, ours, timeout);
                mra.received = wire::cm::ReceivedMessage::from_code(choices.byte() % 3);
            }
            Message::Rej(rej) => {
                (rej.local_comm_id, rej.remote_comm_id) = (theirs, ours);
                rej.reason = RejectReason::from_code(u16::from(choices.byte() % 36));
                rej.info_length = choices.byte() % 128;
                if choices.flag() {
                    rej.remote_comm_id = CommId::new(0);
                }
            }
            Message::Rep(rep) => (rep.local_comm_id, rep.remote_comm_id, rep.local_qpn) = (theirs, ours, qpn),
            Message::Rtu(rtu) => (rtu.local_comm_id, rtu.remote_comm_id) = (theirs, ours),
            Message::Dreq(dreq) => {
                (dreq.local_comm_id, dreq.remote_comm_id, dreq.remote_qpn) = (theirs, ours, qpn);
            }
            Message::Drep(drep) => (drep.local_comm_id, drep.remote_comm_id) = (theirs, ours),
            Message::SidrReq(req) => {
                (req.request_id, req.service_id) = (theirs, service(u16::from(choices.byte() % 3)));
            }
            Message::SidrRep(rep) => (rep.request_id, rep.service_id) = (ours, service(u16::from(choices.byte() % 3))),
            Message::Lap(lap) => (lap.local_comm_id, lap.remote_comm_id) = (theirs, ours),
            Message::Apr(apr) => (apr.local_comm_id, apr.remote_comm_id) = (theirs, ours),
        }
        let route = Route { source, destination: OWN };
        let chance = choices.byte();
        let begins = matches!(kind, MessageKind::Req | MessageKind::SidrReq | MessageKind::Dreq);
        // Mostly an answer repeats the transaction of what it answers.
        let known = self.transactions.get(&ours).copied().filter(|_| !begins && !chance.is_multiple_of(4));
        let transaction = known.unwrap_or(u64::from(chance % 2));
        *self.reached.met.entry((self.manager.state(ours), kind)).or_default() += 1;
        self.deliver(route, CmDatagram::new(transaction, message));
    }

    /// The names that are likely to be in use.
    fn recent(&self) -> &[CommId] {
        &self.ours[self.ours.len().saturating_sub(8)..]
    }

    /// A message that arrived before arrives again.
    fn repeat(&mut self, choices: &mut Choices<'_>) {
        if let Some((route, datagram)) = choices.pick(&self.last) {
            self.deliver(route, datagram);
        }
    }

    fn deliver(&mut self, route: Route, datagram: CmDatagram) {
        self.reached.forged += 1;
        if let Message::Req(req) = datagram.message {
            self.asked.insert((route.source, req.local_comm_id), datagram.header.transaction_id);
        }
        if self.last.len() < 64 {
            self.last.push((route, datagram));
        }
        // What arrives are bytes.
        let mut bytes = [0; MAD_LEN];
        if datagram.encode(&mut bytes).is_ok() {
            let datagram = CmDatagram::parse(&bytes).expect("what was encoded parses");
            let safe = self.manager.state(self.safe);
            self.manager.handle(self.now, route, &datagram);
            assert_eq!(self.manager.state(self.safe), safe, "a stranger touched a connection: {datagram:?}");
            let mut answers = 0;
            while let Some(transmit) = self.manager.poll_transmit() {
                answers += 1;
                self.sent(&transmit);
            }
            assert!(answers <= 1, "{answers} answers to {datagram:?}");
        }
    }

    fn sent(&mut self, transmit: &cm::Transmit) {
        assert_ne!(transmit.route.destination, Gid::new([0xff; 16]));
        let transaction = transmit.datagram.header.transaction_id;
        if let Some(id) = match transmit.datagram.message {
            Message::Req(req) => Some(req.local_comm_id),
            Message::SidrReq(req) => Some(req.request_id),
            _ => None,
        } {
            self.transactions.insert(id, transaction);
        }
        let mut bytes = [0; MAD_LEN];
        transmit.datagram.encode(&mut bytes).expect("what is sent can be encoded");
        assert_eq!(CmDatagram::parse(&bytes), Ok(transmit.datagram));
        *self.reached.sent.entry(transmit.datagram.message.kind()).or_default() += 1;
    }

    /// The program does something, sensible or not.
    fn call(&mut self, choices: &mut Choices<'_>) {
        let now = self.now;
        let id = choices.pick(self.recent()).unwrap_or_default();
        // Sensible things happen more often than others, for only they lead on.
        let what = match (choices.byte() % 2, self.manager.state(id)) {
            (0, Some(State::ReqReceived | State::MraReqSent)) => 3,
            (0, Some(State::RepReceived | State::MraRepSent)) => 7,
            _ => choices.byte() % 18,
        };
        let destination = choices.pick(&FORGERS).unwrap_or(OWN);
        let route = Route { source: OWN, destination };
        let long = [choices.byte(); 300];
        let data = &long[..(choices.below(2) * choices.below(256)).min(300)];
        if id == self.safe {
            return; // its program is content
        }
        let manager = &mut self.manager;
        match what {
            0 | 1 if self.phases.len() < 4096 => {
                let qpn = choices.pick(&self.qpns).unwrap_or_default();
                let connect = Connect {
                    remote_cm_response_timeout: Timeout::new(choices.byte()),
                    max_cm_retries: choices.byte() % 17,
                    local_ack_timeout: Timeout::new(choices.byte()),
                    retry_count: choices.byte() % 9,
                    ..Connect::new(route, service(1), qpn, Psn::new(0))
                };
                let theirs = choices.pick(&self.theirs).unwrap_or_default();
                if let Ok(id) = manager.connect(now, connect) {
                    self.facts.insert(id, Facts { source: destination, theirs, qpn });
                    self.ours.push(id);
                    self.phases.insert(id, Phase::Begun);
                }
            }
            2 => {
                let resolve = Resolve { retries: choices.byte(), ..Resolve::new(route, service(1)) };
                if let Ok(id) = manager.resolve(now, resolve) {
                    self.ours.push(id);
                    self.phases.insert(id, Phase::Begun);
                }
            }
            3 | 4 => {
                let qpn = choices.pick(&self.qpns).unwrap_or_default();
                let rnr_retry_count = choices.byte() % 9;
                let accept = Accept { rnr_retry_count, ..Accept::new(qpn, Psn::new(0)) };
                if manager.accept(now, id, accept).is_ok() {
                    self.facts.entry(id).and_modify(|facts| facts.qpn = qpn);
                }
            }
            5 => {
                let reason = RejectReason::from_code(choices.byte().into());
                if manager.reject(now, id, reason, &data[..data.len() / 2], data).is_ok() {
                    self.phases.insert(id, Phase::Over);
                }
            }
            6 => drop(manager.delay(now, id, Timeout::new(choices.byte()), data)),
            7 | 8 => {
                if manager.confirm(now, id, data).is_ok() {
                    self.phases.insert(id, Phase::Up);
                }
            }
            9 => drop(manager.established(now, id)),
            10 => drop(manager.disconnect(now, id, data)),
            11 => drop(manager.answer_disconnect(now, id, data)),
            12 => {
                if manager.abandon(now, id).is_ok() {
                    self.phases.insert(id, Phase::Over);
                }
            }
            13 => {
                let answer = SidrAnswer::valid(Qpn::new(5), Qkey::new(6));
                let refused = SidrAnswer::refused(SidrStatus::from_code(choices.byte()));
                if manager.answer(now, id, if choices.flag() { answer } else { refused }).is_ok() {
                    self.phases.insert(id, Phase::Over);
                }
            }
            14 => {
                let (mask, port) = (if choices.flag() { u64::MAX } else { 0xff_ffff }, u16::from(choices.byte() % 3));
                let address = choices.flag().then_some(OWN.to_ip());
                let families = if choices.flag() { Families::V4 } else { Families::Both };
                let listen = Listen { service: service(port), mask, address, families, backlog: choices.byte().into() };
                self.listeners.extend(manager.listen(listen));
            }
            15 => {
                if let Some(listener) = choices.pick(&self.listeners) {
                    self.listeners.retain(|other| *other != listener);
                    manager.stop_listening(now, listener);
                }
            }
            16 => manager.peer_lost(now, id),
            _ => manager.taken(id),
        }
    }

    /// Takes what came out and checks it.
    fn look(&mut self) {
        while let Some(transmit) = self.manager.poll_transmit() {
            self.sent(&transmit);
        }
        while let Some(event) = self.manager.poll_event() {
            self.hear(&event);
        }
        while self.manager.poll_trace().is_some() {}
        self.manager.audit().unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    fn hear(&mut self, event: &Event) {
        *self.reached.heard.entry(crate::connections::words(event)).or_default() += 1;
        let id = event.id();
        if let Event::Request { .. } | Event::ServiceRequest { .. } = event {
            if let Event::Request { route, request, .. } = event {
                let (source, theirs) = (route.destination, request.local_comm_id);
                self.facts.insert(id, Facts { source, theirs, qpn: Qpn::new(0) });
                self.transactions.extend(self.asked.get(&(source, theirs)).map(|transaction| (id, *transaction)));
            }
            self.ours.push(id);
            self.phases.insert(id, Phase::Begun);
            return;
        }
        if let Event::Suspected { .. } = event {
            assert_eq!(self.manager.state(id), Some(State::Established), "a claim ends nothing");
            return;
        }
        if id == self.safe {
            panic!("the safe connection heard {event:?}");
        }
        let phase = self.phases.get_mut(&id).unwrap_or_else(|| panic!("{event:?} of nothing"));
        let (allowed, next) = match event {
            Event::Reply { .. } => (*phase == Phase::Begun, Phase::Answered),
            Event::Established { .. } => (*phase == Phase::Begun, Phase::Up),
            Event::Rejected { .. } => (*phase <= Phase::Answered, Phase::Over),
            Event::TimedOut { what: cm::Unanswered::Dreq, .. } => (*phase == Phase::Up, Phase::Ending),
            Event::TimedOut { .. } => (*phase == Phase::Begun, Phase::Over),
            Event::DisconnectRequested { .. } | Event::Disconnected { .. } => (*phase == Phase::Up, Phase::Ending),
            Event::TimewaitEnded { .. } => (*phase == Phase::Ending, Phase::Over),
            _ => (*phase == Phase::Begun, Phase::Over),
        };
        assert!(allowed, "{event:?} in {phase:?}");
        *phase = next;
    }

    /// The program goes, and in time everything is forgotten.
    fn finish(mut self) -> Reached {
        assert_eq!(self.manager.state(self.safe), Some(State::Established), "the safe connection stands");
        self.manager.abandon_all(self.now);
        for listener in std::mem::take(&mut self.listeners) {
            self.manager.stop_listening(self.now, listener);
        }
        let mut turns = 0;
        while let Some(due) = self.manager.poll_timeout() {
            while let Some(transmit) = self.manager.poll_transmit() {
                self.sent(&transmit);
            }
            self.now = due.max(self.now);
            self.manager.handle_timeout(self.now);
            self.manager.audit().unwrap_or_else(|wrong| panic!("{wrong}"));
            turns += 1;
            assert!(turns < 1_000_000, "there is no end to it");
        }
        assert_eq!(self.manager.poll_event(), None, "nobody is there to hear");
        assert_eq!(self.manager.remembered(), 0);
        self.reached
    }
}
