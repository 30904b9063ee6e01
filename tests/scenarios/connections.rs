//! How connections come and go: who repeats what and when, who waits for whom, and what a program may ask for.
#![allow(missing_docs)]

use std::time::Duration;

use cm::{
    Accept, CmError, Config, Connect, Ece, Event, Listen, Manager, Orphan, Route, SidrAnswer, State, Time, Transmit,
};
use scenery::connections::{A, Answer, B, Manners, Weather, World, arrives, fine, next, seconds};
use wire::cm::{CmDatagram, CommId, Data, Dreq, Message, MessageKind, RejectReason, SidrStatus};
use wire::{Gid, Psn, Qpn, Timeout, Transport};

/// The kernel counts milliseconds: 2^(20 - 8) for the peer, and 2^(16 - 8) for a packet there and one back.
const TIMEOUT: Duration = Duration::from_millis(4096 + 2 * 256);

#[test]
fn without_haste_a_request_is_repeated_as_the_kernel_does() {
    let mut world = World::with(1, Weather::FINE, |config| Config { eager: None, ..config });
    world.hosts[B].up = false;
    let id = world.connect(A);
    world.run_for(TIMEOUT - Duration::from_nanos(1));
    assert_eq!(world.hosts[A].count(MessageKind::Req), 1);
    world.run_for(Duration::from_nanos(1));
    assert_eq!(world.hosts[A].count(MessageKind::Req), 2);
    world.run_for(TIMEOUT * 15 - Duration::from_nanos(1));
    assert_eq!(world.hosts[A].heard_all(), [""; 0]);
    assert_eq!(world.hosts[A].count(MessageKind::Req), 16);
    world.run_for(Duration::from_nanos(1));
    assert_eq!(world.hosts[A].heard(id), ["timed out Req"]);
    assert_eq!(world.hosts[A].sent[16..], [MessageKind::Rej]);
    let again = world.hosts[A].manager.abandon(world.now, id);
    assert_eq!(again, Err(CmError::UnknownId(id)), "it is gone");
    world.run_until_quiet();
    world.assert_forgotten();
}

#[test]
fn an_eager_manager_repeats_sooner_and_gives_up_at_the_same_time() {
    let mut world = fine();
    world.hosts[B].up = false;
    let id = world.connect(A);
    world.run_for(Duration::from_millis(250));
    assert_eq!(world.hosts[A].count(MessageKind::Req), 2);
    world.run_for(Duration::from_millis(500));
    assert_eq!(world.hosts[A].count(MessageKind::Req), 3);
    world.run_for(TIMEOUT * 16 - Duration::from_millis(751));
    assert_eq!(world.hosts[A].heard(id), [""; 0]);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(id), ["timed out Req"]);
    assert!((16..=22).contains(&world.hosts[A].count(MessageKind::Req)));
}

#[test]
fn the_program_chooses_how_long_to_wait() {
    let mut world = World::with(1, Weather::FINE, |config| Config { eager: None, ..config });
    world.hosts[B].up = false;
    let connect = Connect {
        remote_cm_response_timeout: Timeout::new(14),
        local_ack_timeout: Timeout::new(14),
        max_cm_retries: 1,
        ..world.request(A)
    };
    let id = world.connect_with(A, connect);
    world.run_for(Duration::from_millis(2 * (64 + 2 * 256)));
    assert_eq!(world.hosts[A].heard(id), ["timed out Req"]);
    assert_eq!(world.hosts[A].count(MessageKind::Req), 2);
}

#[test]
fn a_lost_message_of_any_kind_is_made_up_for() {
    for (host, kind) in [
        (A, MessageKind::Req),
        (B, MessageKind::Rep),
        (A, MessageKind::Rtu),
        (A, MessageKind::Dreq),
        (B, MessageKind::Drep),
    ] {
        let mut world = fine();
        world.censored = vec![(host, kind)];
        let active = world.connect(A);
        world.run_for(Duration::from_millis(10));
        world.censored.clear();
        world.run_for(seconds(2));
        let passive = world.hosts[B].requested();
        assert_eq!(world.hosts[B].heard(passive), ["request", "established"], "without the first {kind}");
        world.censored = vec![(host, kind)];
        world.call(A, |manager, now| manager.disconnect(now, active, b""));
        world.run_for(Duration::from_millis(10));
        world.censored.clear();
        world.run_until_quiet();
        assert_eq!(world.hosts[A].heard(active), ["reply", "disconnected", "timewait ended"], "{kind}");
        let passive = world.hosts[B].heard(passive);
        assert_eq!(passive, ["request", "established", "disconnect requested", "timewait ended"], "{kind}");
        world.assert_forgotten();
    }
}

#[test]
fn a_repeated_request_gets_the_same_reply() {
    let mut world = fine();
    world.censored = vec![(A, MessageKind::Rtu)];
    let connect = world.request(A);
    let mut twin = Manager::new(Config { seed: 2, ..Config::default() });
    twin.connect(world.now, connect).unwrap();
    let req = next(&mut twin);
    let first = arrives(&mut world, B, req);
    assert_eq!(first.len(), 0);
    world.drain();
    assert_eq!(world.hosts[B].heard_all(), ["request"]);
    let again = arrives(&mut world, B, req);
    assert!(matches!(again[..], [Transmit { datagram: CmDatagram { message: Message::Rep(_), .. }, .. }]));
    assert_eq!(again, arrives(&mut world, B, req));
    assert_eq!(world.hosts[B].heard_all(), ["request"]);
}

#[test]
fn a_repeated_rep_gets_the_same_rtu_and_a_repeated_dreq_the_same_drep() {
    let mut world = fine();
    let [active, passive] = world.established();
    let answer = |transmits: &[Transmit]| transmits.iter().map(|t| t.datagram.message.kind()).collect::<Vec<_>>();
    // Another REP of the same connection, as the peer would repeat it.
    let mut rep = None;
    let mut twin = fine();
    twin.hosts[A].manners.reply = Answer::Nothing;
    twin.connect(A);
    twin.run_for(Duration::from_millis(1));
    if let Some(Event::Reply { reply, .. }) = twin.hosts[A].events.first() {
        rep = Some(*reply);
    }
    let rep = CmDatagram::new(world.transactions[&active], rep.expect("the twin heard a reply").into());
    assert_eq!(answer(&arrives(&mut world, A, rep)), [MessageKind::Rtu]);
    world.call(A, |manager, now| manager.disconnect(now, active, b""));
    world.run_for(Duration::from_millis(10));
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::Timewait));
    let qpn = match world.hosts[A].events[0] {
        Event::Reply { reply, .. } => reply.local_qpn,
        _ => unreachable!("the first event is the reply"),
    };
    let dreq = Dreq { local_comm_id: active, remote_comm_id: passive, remote_qpn: qpn, private_data: Data::default() };
    assert_eq!(answer(&arrives(&mut world, B, CmDatagram::new(1, dreq.into()))), [MessageKind::Drep]);
    // And after timewait, when nobody remembers.
    world.run_until_quiet();
    assert_eq!(answer(&arrives(&mut world, B, CmDatagram::new(1, dreq.into()))), [MessageKind::Drep]);
    assert_eq!(world.hosts[A].heard(active), ["reply", "disconnected", "timewait ended"]);
}

#[test]
fn a_refusal_that_is_lost_comes_again_and_the_request_is_heard_once() {
    let mut world = fine();
    world.hosts[B].manners.request = Answer::Reject;
    world.censored = vec![(B, MessageKind::Rej)];
    // Its packets are late by little, so what has ended is forgotten sooner than a request is repeated.
    let request = Connect { local_ack_timeout: Timeout::new(10), ..world.request(A) };
    let active = world.connect_with(A, request);
    world.run_for(Duration::from_millis(10));
    world.censored.clear();
    world.run_for(seconds(5));
    assert_eq!(world.hosts[A].heard(active), ["rejected 28"]);
    assert_eq!(world.hosts[B].heard_all(), ["request"]);
    assert!(world.hosts[A].count(MessageKind::Req) > 1 && world.hosts[B].count(MessageKind::Rej) > 1);
    world.run_until_quiet();
    world.assert_forgotten();
}

#[test]
fn a_request_that_nobody_listens_for_is_rejected_with_reason_8() {
    let mut world = fine();
    let connect = Connect { service: wire::cm::ServiceId::new(99), ..world.request(A) };
    let id = world.connect_with(A, connect);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(id), ["rejected 8"]);
    assert_eq!(world.hosts[A].manager.remembered() + world.hosts[B].manager.remembered(), 0);
}

#[test]
fn two_that_disconnect_at_once_both_learn_it_once() {
    let mut world = fine();
    let [active, passive] = world.established();
    world.hosts[A].manager.disconnect(world.now, active, b"").unwrap();
    world.hosts[B].manager.disconnect(world.now, passive, b"").unwrap();
    world.run_until_quiet();
    assert_eq!(world.hosts[A].heard(active), ["reply", "disconnected", "timewait ended"]);
    assert_eq!(world.hosts[B].heard(passive), ["request", "established", "disconnected", "timewait ended"]);
    world.assert_forgotten();
}

#[test]
fn two_that_connect_to_each_other_at_once_get_two_connections() {
    let mut world = fine();
    world.listen(A);
    let ids = [world.connect(A), world.connect(B)];
    world.run_for(Duration::from_millis(1));
    for host in [A, B] {
        assert_eq!(world.hosts[host].heard(ids[host]), ["reply"]);
        let passive = world.hosts[host].requested();
        assert_eq!(world.hosts[host].heard(passive), ["request", "established"]);
    }
}

#[test]
fn a_process_connects_to_itself() {
    let mut manager = Manager::new(Config::default());
    let own = Gid::from_ipv4([127, 0, 0, 1].into());
    let route = Route { source: own, destination: own };
    manager.listen(Listen::new(World::service())).unwrap();
    let now = Time::ZERO;
    let active = manager.connect(now, Connect::new(route, World::service(), Qpn::new(1), Psn::new(2))).unwrap();
    let mut heard = Vec::new();
    loop {
        while let Some(transmit) = manager.poll_transmit() {
            manager.handle(now, transmit.route, &transmit.datagram);
        }
        let Some(event) = manager.poll_event() else { break };
        heard.push(scenery::connections::words(&event));
        match event {
            Event::Request { id, .. } => manager.accept(now, id, Accept::new(Qpn::new(3), Psn::new(4))).unwrap(),
            Event::Reply { id, .. } => manager.confirm(now, id, b"").unwrap(),
            Event::Established { .. } => manager.disconnect(now, active, b"").unwrap(),
            Event::DisconnectRequested { id, .. } => manager.answer_disconnect(now, id, b"").unwrap(),
            _ => {}
        }
        manager.audit().unwrap();
    }
    assert_eq!(heard, ["request", "reply", "established", "disconnect requested", "disconnected"]);
}

#[test]
fn data_before_the_confirmation_establishes_the_connection_once() {
    let mut world = fine();
    world.censored = vec![(A, MessageKind::Rtu)];
    let active = world.connect(A);
    world.run_for(Duration::from_millis(1));
    let passive = world.hosts[B].requested();
    assert_eq!(world.hosts[B].heard(passive), ["request"]);
    world.call(B, |manager, now| manager.established(now, passive));
    world.call(B, |manager, now| manager.established(now, passive));
    world.censored.clear();
    world.run_for(seconds(9));
    assert_eq!(world.hosts[B].heard(passive), ["request", "established"]);
    assert_eq!(world.hosts[B].count(MessageKind::Rep), 1, "nothing is left to repeat");
    assert_eq!(world.hosts[A].manager.state(active), Some(State::Established));
}

#[test]
fn a_program_that_thinks_is_not_given_up() {
    let mut world = fine();
    world.hosts[B].manners.request = Answer::Nothing;
    let active = world.connect(A);
    world.run_for(seconds(1));
    let passive = world.hosts[B].requested();
    // The repeated REQ was answered by an MRA, and so the next one takes its time.
    assert_eq!(world.hosts[B].sent, [MessageKind::Mra]);
    assert_eq!(world.hosts[A].manager.state(active), Some(State::MraReqReceived));
    let repeated = world.hosts[A].count(MessageKind::Req);
    world.run_for(seconds(60));
    assert_eq!(world.hosts[A].count(MessageKind::Req), repeated);
    world.call(B, |manager, now| manager.accept(now, passive, Accept::new(Qpn::new(9), Psn::new(9))));
    world.run_for(seconds(1));
    assert_eq!(world.hosts[B].heard(passive), ["request", "established"]);
    assert_eq!(world.hosts[A].heard(active), ["reply"]);
}

#[test]
fn a_delay_that_was_asked_for_is_waited_and_no_longer() {
    let mut world = fine();
    // Otherwise a side that has not proven itself would hear of the delay when it asks again.
    world.established();
    world.hosts[B].manners.request = Answer::Nothing;
    let connect = Connect { max_cm_retries: 0, ..world.request(A) };
    let active = world.connect_with(A, connect);
    world.run_for(Duration::from_millis(1));
    let passive = world.hosts[B].requested();
    world.call(B, |manager, now| manager.delay(now, passive, Timeout::new(22), b"wait"));
    world.run_for(Duration::from_millis(1));
    world.hosts[B].up = false;
    let delay = Duration::from_nanos(4096 << 22);
    world.run_for(delay + TIMEOUT - Duration::from_millis(5));
    assert_eq!(world.hosts[A].heard(active), [""; 0]);
    world.run_for(seconds(20));
    assert_eq!(world.hosts[A].heard(active), ["timed out Req"]);
}

#[test]
fn a_peer_that_always_asks_for_more_time_is_not_believed_for_ever() {
    let mut world = fine();
    world.hosts[B].manners.request = Answer::Nothing;
    let active = world.connect(A);
    world.run_for(Duration::from_millis(1));
    let passive = world.hosts[B].requested();
    world.censored.clear();
    let mut waited = 0;
    while world.hosts[A].heard(active).is_empty() {
        let _ = world.hosts[B].manager.delay(world.now, passive, Timeout::new(31), b"");
        world.run_for(seconds(60));
        waited += 1;
        assert!(waited < 100, "it still waits");
    }
    assert_eq!(world.hosts[A].heard(active), ["timed out Req"]);
}

#[test]
fn the_side_that_replied_waits_too_while_the_other_thinks() {
    let mut world = fine();
    world.hosts[A].manners.reply = Answer::Nothing;
    let active = world.connect(A);
    world.run_for(seconds(1));
    let passive = world.hosts[B].requested();
    assert_eq!(world.hosts[A].manager.state(active), Some(State::MraRepSent));
    assert_eq!(world.hosts[B].manager.state(passive), Some(State::MraRepReceived));
    world.run_for(seconds(30));
    world.call(A, |manager, now| manager.confirm(now, active, b""));
    world.run_for(seconds(1));
    assert_eq!(world.hosts[B].heard(passive), ["request", "established"]);
}

#[test]
fn a_listener_that_stops_rejects_what_nobody_was_told_of() {
    let mut world = fine();
    world.hosts[B].manager = Manager::new(Config { seed: 5, ..Config::default() });
    let listener = world.listen(B);
    let mut reqs = Vec::new();
    for _ in 0..2 {
        let connect = world.request(A);
        world.hosts[A].manager.connect(world.now, connect).unwrap();
        reqs.push(next(&mut world.hosts[A].manager));
    }
    for req in reqs {
        assert_eq!(arrives(&mut world, B, req), []);
    }
    let told = world.hosts[B].manager.poll_event().unwrap().id();
    world.hosts[B].manager.stop_listening(world.now, listener);
    assert_eq!(world.hosts[B].manager.poll_event(), None, "the other is not told of any more");
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard_all(), ["rejected 28"]);
    world.call(B, |manager, now| manager.accept(now, told, Accept::new(Qpn::new(9), Psn::new(9))));
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[B].heard(told), ["established"]);
    let late = world.connect(A);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(late), ["rejected 8"]);
}

#[test]
fn timewait_is_late_but_not_too_late() {
    for (code, expected) in [(0, Duration::from_millis(50)), (19, Duration::from_nanos(4096 << 19)), (31, seconds(4))] {
        let mut world = fine();
        let connect = Connect { local_ack_timeout: Timeout::new(code), ..world.request(A) };
        let active = world.connect_with(A, connect);
        world.run_for(Duration::from_millis(1));
        world.call(A, |manager, now| manager.disconnect(now, active, b""));
        world.run_for(Duration::from_millis(1));
        world.run_for(expected - Duration::from_millis(2));
        assert_eq!(world.hosts[A].heard(active), ["reply", "disconnected"]);
        world.run_for(Duration::from_millis(2));
        assert_eq!(world.hosts[A].heard(active), ["reply", "disconnected", "timewait ended"]);
        assert_eq!(world.hosts[B].heard_all().last().map(String::as_str), Some("timewait ended"));
    }
}

#[test]
fn calls_that_the_state_does_not_allow_are_refused() {
    let mut world = fine();
    world.hosts[B].manners.request = Answer::Nothing;
    let active = world.connect(A);
    let (now, manager) = (world.now, &mut world.hosts[A].manager);
    let state = State::ReqSent;
    let wrong = |call| Err(CmError::WrongState { id: active, call, state });
    assert_eq!(manager.accept(now, active, Accept::new(Qpn::new(1), Psn::new(1))), wrong("accept"));
    assert_eq!(manager.confirm(now, active, b""), wrong("confirm"));
    assert_eq!(manager.established(now, active), wrong("establish"));
    assert_eq!(manager.disconnect(now, active, b""), wrong("disconnect"));
    assert_eq!(manager.delay(now, active, Timeout::new(1), b""), wrong("delay"));
    let error = manager.disconnect(now, active, b"").unwrap_err();
    assert_eq!(error.to_string(), format!("cannot disconnect connection {active}: it is in state REQ sent"));
    let nobody = CommId::new(12345);
    assert_eq!(manager.abandon(now, nobody), Err(CmError::UnknownId(nobody)));
    assert_eq!(manager.answer(now, nobody, SidrAnswer::refused(SidrStatus::NoQp)), Err(CmError::UnknownId(nobody)));
    let too_long = CmError::DataTooLong { what: "private data", have: 149, room: 148 };
    assert_eq!(manager.reject(now, active, RejectReason::Consumer, &[], &[0; 149]), Err(too_long));
    assert!(manager.reject(now, active, RejectReason::Consumer, &[0; 73], &[]).is_err());
    assert_eq!(manager.state(active), Some(State::ReqSent), "nothing changed");
    let bad = Connect { retry_count: 8, ..Connect::new(world.route(A), World::service(), Qpn::new(1), Psn::new(1)) };
    let refused = world.hosts[A].manager.connect(now, bad);
    assert_eq!(refused, Err(CmError::OutOfRange("retry count")));
    let bad = Connect { transport: Transport::Ud, retry_count: 7, ..bad };
    assert_eq!(world.hosts[A].manager.connect(now, bad), Err(CmError::OutOfRange("transport")));
}

#[test]
fn an_xrc_target_is_named_where_an_end_to_end_context_would_be() {
    let mut world = fine();
    let connect = Connect { transport: Transport::Xrc, ..world.request(A) };
    let active = world.connect_with(A, connect);
    world.run_for(Duration::from_millis(1));
    let Some(Event::Reply { reply, .. }) = world.hosts[A].events.first() else { panic!("no reply") };
    assert_eq!((reply.local_qpn, reply.srq), (Qpn::new(0), true));
    assert_ne!(reply.local_eecn, 0);
    world.call(A, |manager, now| manager.disconnect(now, active, b""));
    world.run_until_quiet();
    assert_eq!(world.hosts[A].heard(active), ["reply", "disconnected", "timewait ended"]);
}

#[test]
fn vendor_options_travel_both_ways() {
    let mut world = fine();
    world.hosts[B].manners.request = Answer::Nothing;
    let asked = Ece { vendor_id: 0x15b3, options: 0xdead_beef };
    let connect = Connect { ece: asked, ..world.request(A) };
    world.connect_with(A, connect);
    world.run_for(Duration::from_millis(1));
    assert!(matches!(world.hosts[B].events[0], Event::Request { ece, .. } if ece == asked));
    let (given, passive) = (Ece { vendor_id: 0x15b3, options: 7 }, world.hosts[B].requested());
    let accept = Accept { ece: given, ..Accept::new(Qpn::new(9), Psn::new(9)) };
    world.call(B, |manager, now| manager.accept(now, passive, accept));
    world.run_for(Duration::from_millis(1));
    assert!(matches!(world.hosts[A].events[0], Event::Reply { ece, .. } if ece == given));
}

#[test]
fn state_changes_can_be_traced() {
    let mut world = fine();
    world.hosts[A].manager.set_tracing(true);
    let active = world.connect(A);
    world.run_for(Duration::from_millis(1));
    world.call(A, |manager, now| manager.disconnect(now, active, b""));
    world.run_until_quiet();
    let traced: Vec<String> = std::iter::from_fn(|| world.hosts[A].manager.poll_trace())
        .map(|event| match event.kind {
            trace::Kind::CmTransition { from, to, message, .. } => {
                format!("{from} -> {to} ({})", message.unwrap_or("-"))
            }
            _ => unreachable!("the manager traces transitions"),
        })
        .collect();
    assert_eq!(
        traced,
        [
            "idle -> REQ sent (-)",
            "REQ sent -> REP received (REP)",
            "REP received -> established (-)",
            "established -> DREQ sent (-)",
            "DREQ sent -> timewait (DREP)",
            "timewait -> idle (-)"
        ]
    );
}

#[test]
fn manners_of_every_kind_come_to_an_end_in_bad_weather() {
    for seed in 0..200 {
        let weather = Weather { loss: 0.2, duplicate: 0.2, jitter: Duration::from_millis(400) };
        let mut world = World::new(seed, weather);
        let answers = [Answer::Accept, Answer::Reject, Answer::Nothing];
        let at = |place: u64| answers[(seed / place % 3) as usize];
        for (host, place) in [(A, 1), (B, 9)] {
            let (request, reply) = (at(place), at(place * 3));
            world.hosts[host].manners = Manners { request, reply, agree: seed % 2 == 0 };
        }
        let ids: Vec<CommId> = (0..3).map(|_| world.connect(A)).collect();
        world.run_for(seconds(30));
        for host in [A, B] {
            world.hosts[host].manager.abandon_all(world.now);
        }
        world.run_until_quiet();
        world.assert_forgotten();
        for id in ids {
            let ends = world.hosts[A].heard(id).iter().filter(|word| word.starts_with("rej")).count();
            assert!(ends <= 1, "seed {seed}");
        }
    }
}

#[test]
fn a_connection_whose_process_died_is_buried_by_another() {
    let mut world = fine();
    let [active, passive] = world.established();
    let Event::Reply { reply, .. } = world.hosts[A].events[0] else { panic!("no reply") };
    let Event::Request { request, .. } = world.hosts[B].events[0] else { panic!("no request") };
    // The process dies with its manager, and a survivor on its host knows the names.
    world.restart(A, 99);
    world.censored = vec![(A, MessageKind::Dreq)];
    let orphan = Orphan {
        id: active,
        peer: passive,
        route: world.route(A),
        local_qpn: request.local_qpn,
        remote_qpn: reply.local_qpn,
    };
    world.call(A, |manager, now| manager.disconnect_orphan(now, orphan));
    assert!(world.hosts[A].manager.disconnect_orphan(world.now, orphan).is_err(), "once is enough");
    world.run_for(Duration::from_millis(10));
    world.censored.clear();
    world.run_until_quiet();
    let heard = world.hosts[B].heard(passive);
    assert_eq!(heard, ["request", "established", "disconnect requested", "timewait ended"]);
    assert_eq!(world.hosts[A].heard(active), ["reply"], "the survivor has no part in it");
    world.assert_forgotten();
}
