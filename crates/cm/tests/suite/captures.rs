//! What the manager puts on the wire beside what the kernel put there. The conversations of the captures are played
//! again with a manager of ours on either host: given the same queue pairs, programs and addresses, every message comes
//! out byte for byte, except for the names that each side draws for itself.
//!
//! Those are, in each message:
//! - the transaction id, bytes 8 to 16 of the MAD header. Who begins a transaction draws it and only it gives it a
//!   meaning. The kernel puts the number of its MAD agent and the communication id there, we a number that follows from
//!   that id and a secret. An answer repeats it.
//! - the local and the remote communication id, bytes 24 to 32. Each side draws its own.
//!
//! So each captured message is compared after those three were translated, and then nothing may differ: response
//! timeouts 20, local ACK timeout 19, 15 retries, LIDs 0xffff, target ACK delay 15 are what [`Connect::new`] and
//! [`Accept::new`] say by themselves.
#![allow(missing_docs)]

use crate::frames;
use std::collections::BTreeMap;

use ubiverbs_cm::{Accept, Config, Connect, Event, Listen, Manager, Resolve, Route, SidrAnswer, State, Time, Transmit};
use wire::cm::{CmDatagram, CommId, Message, MessageKind, RejectReason, Rep, Req};
use wire::mad::MAD_LEN;
use wire::{Frame, Gid, IpHeader, Packet, Qpn};

/// The CM messages of a capture with the way they went.
fn messages(name: &str) -> Vec<(Route, [u8; MAD_LEN])> {
    let mut found = Vec::new();
    for bytes in frames::of(name) {
        let Ok(frame) = Frame::parse(&bytes) else { continue };
        let Ok(packet) = Packet::parse(frame.payload) else { continue };
        if packet.headers.bth.dest_qpn == Qpn::GSI {
            let route = match frame.ip {
                IpHeader::V4(ip) => (Gid::from_ipv4(ip.source), Gid::from_ipv4(ip.destination)),
                IpHeader::V6(ip) => (Gid::from_ipv6(ip.source), Gid::from_ipv6(ip.destination)),
            };
            let route = Route { source: route.0, destination: route.1 };
            found.push((route, packet.payload.try_into().expect("a management datagram")));
        }
    }
    found
}

/// The programs, and what the kernel's names are called here.
struct Stage {
    hosts: BTreeMap<Gid, Manager>,
    events: BTreeMap<Gid, Vec<Event>>,
    names: BTreeMap<CommId, CommId>,
    transactions: BTreeMap<u64, u64>,
    under_way: Vec<Transmit>,
    now: Time,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let mut hosts = BTreeMap::new();
        for (route, _) in messages(name) {
            for gid in [route.source, route.destination] {
                let mut manager = Manager::new(Config { seed: hosts.len() as u128, eager: None, ..Config::default() });
                if name != "rping-no-listener" {
                    manager.listen(Listen { mask: 0, ..Listen::new(wire::cm::ServiceId::new(0)) }).unwrap();
                }
                hosts.entry(gid).or_insert(manager);
            }
        }
        let (names, transactions) = (BTreeMap::from([(CommId::new(0), CommId::new(0))]), BTreeMap::new());
        Stage { hosts, events: BTreeMap::new(), names, transactions, under_way: Vec::new(), now: Time::ZERO }
    }

    /// Lets the program of the sender do what makes its manager send the message; returns what it sent.
    fn provoke(&mut self, route: Route, message: &Message) -> Transmit {
        let (now, names) = (self.now, &self.names);
        let host = self.hosts.get_mut(&route.source).expect("the host is there");
        let ours = |id: &CommId| names.get(id).copied().expect("the name was drawn");
        match message {
            Message::Req(req) if names.contains_key(&req.local_comm_id) => {
                // The kernel repeats itself, and so do we, at the same time.
                self.now = host.poll_timeout().expect("the request waits");
                host.handle_timeout(self.now);
            }
            Message::Req(req) => {
                host.connect(now, connect(route, req)).unwrap();
            }
            Message::Rep(rep) => {
                let id = requested(&self.events, route.source, ours(&rep.remote_comm_id));
                host.accept(now, id, accept(rep)).unwrap();
            }
            Message::Rtu(rtu) => host.confirm(now, ours(&rtu.local_comm_id), rtu.private_data.bytes()).unwrap(),
            Message::Dreq(dreq) => host.disconnect(now, ours(&dreq.local_comm_id), dreq.private_data.bytes()).unwrap(),
            Message::Drep(drep) => {
                let id = ours(&drep.local_comm_id);
                // Where both disconnected, the answer goes out by itself.
                if host.state(id) == Some(State::DreqReceived) {
                    host.answer_disconnect(now, id, drep.private_data.bytes()).unwrap();
                }
            }
            Message::SidrReq(req) => {
                let (service, pkey, private_data) = (req.service_id, req.pkey, req.private_data);
                host.resolve(now, Resolve { pkey, private_data, ..Resolve::new(route, service) }).unwrap();
            }
            Message::SidrRep(rep) => {
                let (status, qpn, qkey, private_data) = (rep.status, rep.qpn, rep.qkey, rep.private_data);
                let id = requested(&self.events, route.source, ours(&rep.request_id));
                host.answer(now, id, SidrAnswer { status, qpn, qkey, private_data }).unwrap();
            }
            Message::Rej(rej) if rej.reason == RejectReason::Timeout => {
                host.abandon(now, ours(&rej.local_comm_id)).unwrap();
            }
            Message::Rej(_) => {} // nobody listens: it goes out by itself
            other => panic!("{} is in no capture", other.kind()),
        }
        let host = self.hosts.get_mut(&route.source).expect("the host is there");
        host.poll_transmit().unwrap_or_else(|| panic!("no {} was sent", message.kind()))
    }

    /// Delivers what a host had heard when it sent `message`: of a DREQ that crossed its own it had not.
    fn deliver_before(&mut self, gid: Gid, message: &Message) {
        let begins = matches!(message, Message::Req(_) | Message::Dreq(_) | Message::SidrReq(_));
        let heard = |transmit: &Transmit| {
            let crosses = begins && transmit.datagram.message.kind() == MessageKind::Dreq;
            transmit.route.destination == gid && !crosses
        };
        let host = self.hosts.get_mut(&gid).expect("the host is there");
        for transmit in self.under_way.extract_if(.., |transmit| heard(transmit)) {
            host.handle(self.now, transmit.route, &transmit.datagram);
        }
        self.events.entry(gid).or_default().extend(std::iter::from_fn(|| host.poll_event()));
    }
}

/// The request that the program of this host heard of, by the peer's name for it.
fn requested(events: &BTreeMap<Gid, Vec<Event>>, gid: Gid, theirs: CommId) -> CommId {
    let found = events[&gid].iter().find(|event| match event {
        Event::Request { request, .. } => request.local_comm_id == theirs,
        Event::ServiceRequest { request, .. } => request.request_id == theirs,
        _ => false,
    });
    found.expect("the request was heard of").id()
}

/// What the program said that made the kernel send this REQ. What is not named here is what we say by ourselves.
fn connect(route: Route, req: &Req) -> Connect {
    Connect {
        ca_guid: req.local_ca_guid,
        transport: req.transport().expect("a transport of RoCE"),
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        flow_control: req.flow_control,
        srq: req.srq,
        mtu: req.mtu().expect("an MTU"),
        flow_label: req.primary.flow_label,
        packet_rate: req.primary.packet_rate,
        traffic_class: req.primary.traffic_class,
        private_data: req.private_data,
        ..Connect::new(route, req.service_id, req.local_qpn, req.starting_psn)
    }
}

/// The acceptance that a REP carries.
fn accept(rep: &Rep) -> Accept {
    Accept {
        ca_guid: rep.local_ca_guid,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        rnr_retry_count: rep.rnr_retry_count,
        flow_control: rep.flow_control,
        srq: rep.srq,
        private_data: rep.private_data,
        ..Accept::new(rep.local_qpn, rep.starting_psn)
    }
}

/// The names in a message: who sends it, and whom it is for.
fn names(message: &mut Message) -> [Option<&mut CommId>; 2] {
    match message {
        Message::Req(req) => [Some(&mut req.local_comm_id), None],
        Message::Rep(rep) => [Some(&mut rep.local_comm_id), Some(&mut rep.remote_comm_id)],
        Message::Rtu(rtu) => [Some(&mut rtu.local_comm_id), Some(&mut rtu.remote_comm_id)],
        Message::Rej(rej) => [Some(&mut rej.local_comm_id), Some(&mut rej.remote_comm_id)],
        Message::Dreq(dreq) => [Some(&mut dreq.local_comm_id), Some(&mut dreq.remote_comm_id)],
        Message::Drep(drep) => [Some(&mut drep.local_comm_id), Some(&mut drep.remote_comm_id)],
        Message::SidrReq(req) => [Some(&mut req.request_id), None],
        Message::SidrRep(rep) => [Some(&mut rep.request_id), None],
        _ => [None, None],
    }
}

/// Plays a capture and returns how often each message was compared.
fn play(name: &str) -> BTreeMap<MessageKind, usize> {
    let mut stage = Stage::new(name);
    let mut compared = BTreeMap::new();
    for (index, (route, captured)) in messages(name).into_iter().enumerate() {
        let mut expected = CmDatagram::parse(&captured).expect("the kernel's messages parse");
        stage.deliver_before(route.source, &expected.message);
        let mut sent = stage.provoke(route, &expected.message);
        assert_eq!(sent.route, route);
        let transaction = expected.header.transaction_id;
        expected.header.transaction_id =
            *stage.transactions.entry(transaction).or_insert(sent.datagram.header.transaction_id);
        let theirs = names(&mut expected.message);
        for (captured, drawn) in theirs.into_iter().zip(names(&mut sent.datagram.message)) {
            if let (Some(captured), Some(drawn)) = (captured, drawn) {
                *captured = *stage.names.entry(*captured).or_insert(*drawn);
            }
        }
        let [mut want, mut have] = [[0; MAD_LEN]; 2];
        expected.encode(&mut want).unwrap();
        sent.datagram.encode(&mut have).unwrap();
        assert_eq!(want, have, "{name}, message {index}: {:#?} is not {:#?}", sent.datagram, expected);
        // The translation left the rest of the capture as it was.
        assert_eq!(want[..8], captured[..8]);
        assert_eq!(want[32..], captured[32..]);
        stage.under_way.push(sent);
        *compared.entry(expected.message.kind()).or_default() += 1;
    }
    compared
}

#[test]
fn every_message_of_the_kernel_comes_out_of_our_manager_byte_for_byte() {
    let mut compared: BTreeMap<MessageKind, usize> = BTreeMap::new();
    for name in frames::names() {
        for (kind, count) in play(&name) {
            *compared.entry(kind).or_default() += count;
        }
    }
    for kind in [
        MessageKind::Req,
        MessageKind::Rep,
        MessageKind::Rtu,
        MessageKind::Dreq,
        MessageKind::Drep,
        MessageKind::Rej,
        MessageKind::SidrReq,
        MessageKind::SidrRep,
    ] {
        assert!(compared.contains_key(&kind), "no {kind} was compared");
    }
    assert!(compared[&MessageKind::Req] >= 19 && compared[&MessageKind::Rep] >= 8, "{compared:?}");
}

/// What the manager demands of answers: see `an_answer_repeats_the_transaction_or_is_dropped` among the scenarios.
#[test]
fn the_kernels_answers_repeat_the_transaction_of_what_they_answer() {
    let mut answers: BTreeMap<MessageKind, usize> = BTreeMap::new();
    for name in frames::names() {
        // By the name of who asked: it is the sender's in a request, and one of the two in all that follows.
        let (mut requests, mut ends) = (BTreeMap::new(), BTreeMap::new());
        for (_, captured) in messages(&name) {
            let mut datagram = CmDatagram::parse(&captured).expect("the kernel's messages parse");
            let transaction = datagram.header.transaction_id;
            let kind = datagram.message.kind();
            let [sender, receiver] = names(&mut datagram.message).map(|id| id.map(|id| *id));
            let known = |asked: &BTreeMap<CommId, u64>| {
                [sender, receiver].into_iter().flatten().find_map(|id| asked.get(&id).copied())
            };
            let expected = match (kind, sender) {
                (MessageKind::Req | MessageKind::SidrReq, Some(sender)) => {
                    requests.insert(sender, transaction);
                    continue;
                }
                (MessageKind::Dreq, Some(sender)) => {
                    ends.insert(sender, transaction);
                    continue;
                }
                (MessageKind::Drep, _) => receiver.and_then(|receiver| ends.get(&receiver).copied()),
                _ => known(&requests),
            };
            assert_eq!(Some(transaction), expected, "{kind} in {name}");
            *answers.entry(kind).or_default() += 1;
        }
    }
    for kind in [MessageKind::Rep, MessageKind::Rtu, MessageKind::Rej, MessageKind::Drep, MessageKind::SidrRep] {
        assert!(answers.contains_key(&kind), "no {kind} was looked at");
    }
}
