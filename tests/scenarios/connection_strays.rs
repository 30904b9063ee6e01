//! Messages that fit nothing, or not quite: about connections that are not there, from others than the peer, with names that are taken or old.
#![allow(missing_docs)]

use std::time::Duration;

use cm::{Config, Event, Manager, Route, State};
use scenery::connections::{A, B, arrives, fine, forged, next};
use wire::cm::{
    ApStatus, CmDatagram, CommId, Data, Drep, Dreq, Lap, Message, MessageKind, Path, Rej, RejectReason,
    RejectedMessage, Rtu,
};
use wire::{Gid, Qpn, Timeout};

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
fn a_queue_pair_that_connects_again_ends_its_old_connection() {
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
    assert_eq!(world.hosts[B].heard(passive), ["request", "established", "disconnected"]);
    let third = world.connect_with(A, connect);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(third), ["reply"], "the way is free");
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
    arrives(&mut world, B, CmDatagram::new(1, rej.into()));
    arrives(&mut world, B, CmDatagram::new(1, Rej { local_comm_id: CommId::new(0), ..rej }.into()));
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
    let answers = arrives(&mut world, A, CmDatagram::new(1, other.into()));
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
