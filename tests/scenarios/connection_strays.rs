//! Messages that fit nothing, or not quite: about connections that are not there, from others than the peer, with names that are taken or old.
#![allow(missing_docs)]

use std::time::Duration;

use cm::{Config, Event, Manager, Route, State, Transmit};
use scenery::connections::{A, B, World, arrives, fine, forged, next};
use wire::cm::{
    ApStatus, CmDatagram, CommId, Data, Drep, Dreq, Failover, Lap, Message, MessageKind, Mra, Path, ReceivedMessage,
    Rej, RejectReason, RejectedMessage, Rep, Rtu,
};
use wire::{Gid, Psn, Qkey, Qpn, Timeout};

#[test]
fn messages_about_nothing_are_answered_or_ignored_as_the_specification_says() {
    let mut world = fine();
    let (ours, theirs) = (CommId::new(5), CommId::new(6));
    let rtu = Rtu { local_comm_id: theirs, remote_comm_id: ours, private_data: Data::default() };
    let drep = Drep { local_comm_id: theirs, remote_comm_id: ours, private_data: Data::default() };
    for message in [rtu.into(), drep.into()] {
        assert_eq!(arrives(&mut world, B, CmDatagram::new(9, message)), []);
    }
    let (remote_qpn, private_data) = (Qpn::new(1), Data::default());
    let dreq = Dreq { local_comm_id: theirs, remote_comm_id: ours, remote_qpn, private_data };
    let answers = arrives(&mut world, B, CmDatagram::new(9, dreq.into()));
    let expected = Drep { local_comm_id: ours, remote_comm_id: theirs, private_data: Data::default() };
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].datagram, CmDatagram::new(9, expected.into()));
    assert_eq!(answers[0].route, world.route(B));
    for kind in [MessageKind::Rej, MessageKind::Mra, MessageKind::Lap, MessageKind::Apr, MessageKind::SidrRep] {
        let message = Message::parse(kind, &[0x5a; wire::cm::BODY_LEN]).unwrap();
        assert_eq!(arrives(&mut world, B, CmDatagram::new(9, message)), [], "{kind}");
    }
    let rep = Message::parse(MessageKind::Rep, &[0x5a; wire::cm::BODY_LEN]).unwrap();
    let answers = arrives(&mut world, B, CmDatagram::new(9, rep));
    assert!(matches!(answers[0].datagram.message, Message::Rej(rej) if rej.reason == RejectReason::InvalidCommId));
    assert_eq!(world.hosts[B].manager.remembered(), 0);
}

#[test]
fn a_queue_pair_that_connects_again_ends_its_old_connection_only_if_the_peer_does_not_answer() {
    let mut world = fine();
    let connect = world.request(A);
    let old = world.connect_with(A, connect);
    world.run_for(Duration::from_millis(1));
    let passive = world.hosts[B].requested();
    // The first host loses its memory but not its queue pair numbers.
    world.restart(A, 77);
    let new = world.connect_with(A, connect);
    assert_ne!(old, new);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(new), ["rejected 10"]);
    assert_eq!(world.hosts[B].heard(passive), ["request", "established", "suspected"]);
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::Established), "anybody may claim that");
    world.call(B, |manager, now| {
        manager.peer_lost(now, passive);
        Ok(())
    });
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[B].heard(passive), ["request", "established", "suspected", "disconnected"]);
    let third = world.connect_with(A, connect);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(third), ["reply"], "the way is free");
}

#[test]
fn however_often_it_is_claimed_that_a_peer_is_lost_it_is_asked_now_and_then() {
    let mut world = fine();
    let [_, passive] = world.established();
    let Event::Request { request, .. } = world.hosts[B].events[0] else { panic!("no request") };
    let mut stranger = Manager::new(Config { seed: 9, ..Config::default() });
    let claims = |world: &mut World, stranger: &mut Manager| {
        for _ in 0..100 {
            let connect = cm::Connect::new(world.route(A), World::service(), request.local_qpn, Psn::new(5));
            stranger.connect(world.now, connect).unwrap();
            let answers = arrives(world, B, next(stranger));
            assert_eq!(reasons(&answers), [RejectReason::StaleConnection], "and nothing else is sent");
        }
        world.drain();
    };
    claims(&mut world, &mut stranger);
    assert_eq!(world.hosts[B].heard(passive), ["request", "established", "suspected"]);
    world.run_for(Config::default().suspicion);
    claims(&mut world, &mut stranger);
    assert_eq!(world.hosts[B].heard(passive), ["request", "established", "suspected", "suspected"]);
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::Established));
}

#[test]
fn a_communication_id_that_is_in_use_is_refused_with_reason_30() {
    let mut world = fine();
    let [active, passive] = world.established();
    let connect = world.request(A);
    let mut twin = Manager::new(Config { seed: 9, ..Config::default() });
    twin.connect(world.now, connect).unwrap();
    let req = forged(&next(&mut twin), |message| {
        if let Message::Req(req) = message {
            req.local_comm_id = active;
        }
    });
    let answers = arrives(&mut world, B, req);
    let Message::Rej(rej) = answers[0].datagram.message else { panic!("{answers:?}") };
    assert_eq!(rej.reason, RejectReason::DuplicateLocalCommId);
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::Established), "the old one stays");
}

#[test]
fn only_the_peer_moves_a_connection() {
    let mut world = fine();
    let [active, passive] = world.established();
    let Some(Event::Reply { reply, .. }) = world.hosts[A].events.first().cloned() else { panic!("no reply") };
    let stranger = Route { source: Gid::from_ipv4([10, 9, 9, 9].into()), destination: world.hosts[B].gid };
    let private_data = Data::default();
    let dreq = Dreq { local_comm_id: active, remote_comm_id: passive, remote_qpn: reply.local_qpn, private_data };
    world.hosts[B].manager.handle(world.now, stranger, &CmDatagram::new(1, dreq.into()));
    // Nor does the peer with another queue pair, or another name.
    arrives(&mut world, B, CmDatagram::new(1, Dreq { remote_qpn: Qpn::new(0x999), ..dreq }.into()));
    arrives(&mut world, B, CmDatagram::new(1, Dreq { local_comm_id: CommId::new(3), ..dreq }.into()));
    let rej = Rej {
        local_comm_id: CommId::new(3),
        remote_comm_id: passive,
        rejected: RejectedMessage::NoMessage,
        info_length: 0,
        reason: RejectReason::Timeout,
        info: Data::default(),
        private_data: Data::default(),
    };
    let transaction = world.transactions[&active];
    arrives(&mut world, B, CmDatagram::new(transaction, rej.into()));
    arrives(&mut world, B, CmDatagram::new(transaction, Rej { local_comm_id: CommId::new(0), ..rej }.into()));
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::Established));
    arrives(&mut world, B, CmDatagram::new(1, dreq.into()));
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::DreqReceived));
}

#[test]
fn an_alternate_path_is_declined() {
    let mut world = fine();
    let [active, passive] = world.established();
    let lap = Lap {
        local_comm_id: active,
        remote_comm_id: passive,
        remote_qpn: Qpn::new(1),
        remote_cm_response_timeout: Timeout::new(20),
        alternate: Path::default(),
        private_data: Data::default(),
    };
    let answers = arrives(&mut world, B, CmDatagram::new(1, lap.into()));
    assert!(matches!(answers[0].datagram.message, Message::Apr(apr) if apr.status == ApStatus::NotSupported));
}

#[test]
fn a_second_reply_to_one_request_is_rejected() {
    let mut world = fine();
    let [active, _] = world.established();
    let Event::Reply { reply, .. } = world.hosts[A].events[0] else { panic!("no reply") };
    let other = wire::cm::Rep { local_comm_id: CommId::new(0x4242), ..reply };
    let transaction = world.transactions[&active];
    let answers = arrives(&mut world, A, CmDatagram::new(transaction, other.into()));
    let Message::Rej(rej) = answers[0].datagram.message else { panic!("{answers:?}") };
    assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::InvalidCommId, other.local_comm_id));
    assert_eq!(world.hosts[A].manager.state(active), Some(State::Established), "the first one stands");
}

#[test]
fn a_name_that_the_peer_uses_anew_after_the_end_is_a_new_connection() {
    let mut world = fine();
    let [active, passive] = world.established();
    world.call(A, |manager, now| manager.disconnect(now, active, b""));
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::Timewait));
    let connect = world.request(A);
    let mut twin = Manager::new(Config { seed: 9, ..Config::default() });
    twin.connect(world.now, connect).unwrap();
    let req = forged(&next(&mut twin), |message| {
        if let Message::Req(req) = message {
            req.local_comm_id = active;
        }
    });
    assert_eq!(arrives(&mut world, B, req), [], "no rejection");
    assert!(matches!(world.hosts[B].manager.poll_event(), Some(Event::Request { id, .. }) if id != passive));
    world.hosts[B].manager.audit().unwrap();
}

/// A connection that waits for its reply, and the reply: to be changed and delivered by hand.
fn asking(world: &mut World) -> (CommId, Rep) {
    world.censored = vec![(B, MessageKind::Rep)];
    let active = world.connect(A);
    world.run_for(Duration::from_millis(1));
    world.censored.clear();
    let passive = world.hosts[B].requested();
    let rep = Rep {
        local_comm_id: passive,
        remote_comm_id: active,
        local_qkey: Qkey::new(0),
        local_qpn: Qpn::new(0x1234),
        local_eecn: 0,
        starting_psn: Psn::new(0),
        vendor_id: 0,
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: Timeout::new(15),
        failover: Failover::Accepted,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        local_ca_guid: 0,
        private_data: Data::default(),
    };
    (active, rep)
}

fn reasons(transmits: &[Transmit]) -> Vec<RejectReason> {
    let reason = |transmit: &Transmit| match transmit.datagram.message {
        Message::Rej(rej) => Some(rej.reason),
        _ => None,
    };
    transmits.iter().filter_map(reason).collect()
}

#[test]
fn a_reply_with_a_name_that_another_connection_has_ends_the_attempt() {
    let mut world = fine();
    let [_, taken] = world.established();
    let (active, rep) = asking(&mut world);
    let transaction = world.transactions[&active];
    let answers = arrives(&mut world, A, CmDatagram::new(transaction, Rep { local_comm_id: taken, ..rep }.into()));
    assert_eq!(reasons(&answers), [RejectReason::DuplicateLocalCommId]);
    world.drain();
    assert_eq!(world.hosts[A].heard(active), ["rejected 30"]);
}

#[test]
fn a_reply_with_a_queue_pair_that_is_connected_makes_that_connection_suspect() {
    let mut world = fine();
    let [old, _] = world.established();
    let Event::Reply { reply, .. } = world.hosts[A].events[0] else { panic!("no reply") };
    let (active, rep) = asking(&mut world);
    let message = Rep { local_qpn: reply.local_qpn, ..rep }.into();
    let transaction = world.transactions[&active];
    let answers = arrives(&mut world, A, CmDatagram::new(transaction, message));
    assert_eq!(reasons(&answers), [RejectReason::StaleConnection]);
    world.drain();
    assert_eq!(world.hosts[A].heard(active), ["rejected 10"]);
    assert_eq!(world.hosts[A].heard(old), ["reply", "suspected"]);
    assert_eq!(world.hosts[A].manager.state(old), Some(State::Established));
}

#[test]
fn a_reply_that_comes_too_late_hears_that_it_did() {
    let mut world = fine();
    let (active, rep) = asking(&mut world);
    world.censored = vec![(A, MessageKind::Rej)];
    world.call(A, |manager, now| manager.abandon(now, active));
    let transaction = world.transactions[&active];
    let answers = arrives(&mut world, A, CmDatagram::new(transaction, rep.into()));
    assert_eq!(reasons(&answers), [RejectReason::Timeout]);
    assert_eq!(answers[0].datagram.header.transaction_id, transaction);
    assert_eq!(world.hosts[A].heard(active), [""; 0]);
}

#[test]
fn only_the_peer_can_ask_for_more_time() {
    let mut world = fine();
    world.censored = vec![(A, MessageKind::Rtu)];
    let active = world.connect(A);
    world.run_for(Duration::from_millis(1));
    let passive = world.hosts[B].requested();
    let mra = Mra {
        local_comm_id: CommId::new(3),
        remote_comm_id: passive,
        received: ReceivedMessage::Rep,
        service_timeout: Timeout::new(20),
        private_data: Data::default(),
    };
    let transaction = world.transactions[&active];
    arrives(&mut world, B, CmDatagram::new(transaction, mra.into()));
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::RepSent));
    arrives(&mut world, B, CmDatagram::new(transaction, Mra { local_comm_id: active, ..mra }.into()));
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::MraRepReceived));
}

#[test]
fn an_abandoned_connection_tells_nothing_that_was_not_heard_yet() {
    let mut world = fine();
    let (active, rep) = asking(&mut world);
    let transaction = world.transactions[&active];
    arrives(&mut world, A, CmDatagram::new(transaction, rep.into()));
    world.hosts[A].manager.abandon(world.now, active).unwrap();
    assert_eq!(world.hosts[A].manager.poll_event(), None);
    // Nor one that has ended by itself.
    let (active, rep) = asking(&mut world);
    let rej = Rej {
        local_comm_id: CommId::new(0),
        remote_comm_id: active,
        rejected: RejectedMessage::Req,
        info_length: 0,
        reason: RejectReason::NoQp,
        info: Data::default(),
        private_data: Data::default(),
    };
    let transaction = world.transactions[&active];
    arrives(&mut world, A, CmDatagram::new(transaction, rej.into()));
    assert_eq!(world.hosts[A].manager.state(rep.remote_comm_id), None);
    let _ = world.hosts[A].manager.abandon(world.now, active);
    assert_eq!(world.hosts[A].manager.poll_event(), None);
}

/// Whether a message changed nothing at a host but the count of those with another transaction than they should have.
fn has_wrong_transaction(world: &mut World, host: usize, id: CommId, message: impl Into<Message>) -> bool {
    let _ = world.hosts[host].manager.take_drops();
    let before = world.hosts[host].manager.state(id);
    let transaction = world.transactions.values().fold(1u64, |other, one| other.max(one.wrapping_add(1)));
    let answers = arrives(world, host, CmDatagram::new(transaction, message.into()));
    let manager = &mut world.hosts[host].manager;
    let dropped = manager.take_drops();
    assert_eq!((answers.len(), manager.poll_event(), manager.state(id)), (0, None, before));
    dropped == [(trace::DropReason::CmWrongTransaction, 1)]
}

#[test]
fn an_answer_repeats_the_transaction_or_is_dropped() {
    let rej = |local_comm_id, remote_comm_id, reason| Rej {
        local_comm_id,
        remote_comm_id,
        rejected: RejectedMessage::Req,
        info_length: 0,
        reason,
        info: Data::default(),
        private_data: Data::default(),
    };
    let private_data = Data::default();
    // To the active side that waits for a reply.
    let mut world = fine();
    let (active, rep) = asking(&mut world);
    let passive = rep.local_comm_id;
    let (received, service_timeout) = (ReceivedMessage::Req, Timeout::new(20));
    let mra = Mra { local_comm_id: passive, remote_comm_id: active, received, service_timeout, private_data };
    assert!(has_wrong_transaction(&mut world, A, active, rep));
    assert!(has_wrong_transaction(&mut world, A, active, mra));
    assert!(has_wrong_transaction(&mut world, A, active, rej(CommId::new(0), active, RejectReason::InvalidServiceId)));
    // To the passive side that waits for a confirmation, or has not replied yet.
    let rtu = Rtu { local_comm_id: active, remote_comm_id: passive, private_data: Data::default() };
    assert!(has_wrong_transaction(&mut world, B, passive, rtu));
    assert!(has_wrong_transaction(&mut world, B, passive, rej(active, passive, RejectReason::Consumer)));
    assert!(has_wrong_transaction(&mut world, B, passive, rej(active, CommId::new(0), RejectReason::Timeout)));
    // To the side that disconnects, whichever that is.
    for (host, other) in [(A, B), (B, A)] {
        let mut world = fine();
        let ids = world.established();
        world.censored = vec![(other, MessageKind::Drep)];
        world.call(host, |manager, now| manager.disconnect(now, ids[host], b""));
        world.run_for(Duration::from_millis(1));
        assert_eq!(world.hosts[host].manager.state(ids[host]), Some(State::DreqSent));
        let drep = Drep { local_comm_id: ids[other], remote_comm_id: ids[host], private_data: Data::default() };
        assert!(has_wrong_transaction(&mut world, host, ids[host], drep));
        world.censored.clear();
        world.run_for(Duration::from_secs(60));
        assert_eq!(world.hosts[host].manager.state(ids[host]), None, "and the right one ends it");
    }
}
