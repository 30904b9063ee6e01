//! How much of anything there can be: backlogs, ids, floods of requests, strangers, ended connections, and very many good ones.
#![allow(missing_docs)]

use std::time::Duration;

use cm::{CmError, Config, Connect, Listen, Manager, State};
use scenery::connections::{A, Answer, B, Weather, World, arrives, fine, next, seconds};
use wire::cm::{CommId, MessageKind, RejectReason};

#[test]
fn a_full_backlog_makes_requests_wait_until_one_is_taken() {
    let mut world = fine();
    let listener = world.hosts[B].manager.listen(Listen { backlog: 2, ..Listen::new(wire::cm::ServiceId::new(5)) });
    listener.unwrap();
    world.hosts[B].manners.request = Answer::Nothing;
    let ids: Vec<CommId> = (0..3)
        .map(|_| {
            let connect = Connect { service: wire::cm::ServiceId::new(5), ..world.request(A) };
            world.connect_with(A, connect)
        })
        .collect();
    world.run_for(seconds(3));
    assert_eq!(world.hosts[B].heard_all(), ["request", "request"]);
    let first = world.hosts[B].requested();
    world.hosts[B].manager.taken(first);
    world.run_for(seconds(5));
    assert_eq!(world.hosts[B].heard_all(), ["request", "request", "request"]);
    assert!(ids.iter().all(|id| world.hosts[A].manager.state(*id) == Some(State::MraReqReceived)));
}

#[test]
fn ids_run_out_and_come_back() {
    let narrow = |config| Config { first: CommId::new(100), last: CommId::new(103), ..config };
    let mut world = World::with(3, Weather::FINE, narrow);
    let ids: Vec<CommId> = (0..4).map(|_| world.connect(A)).collect();
    assert!(ids.iter().all(|id| (100..=103).contains(&id.value())));
    let more = world.request(A);
    assert_eq!(world.hosts[A].manager.connect(world.now, more), Err(CmError::NoId));
    world.run_for(Duration::from_millis(1));
    world.hosts[A].manager.abandon_all(world.now);
    world.run_until_quiet();
    world.assert_forgotten();
    let connected = world.connect(A);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(connected).last().map(String::as_str), Some("reply"));
}

#[test]
fn a_host_without_ids_says_that_it_has_no_resources() {
    let mut world = fine();
    let one = Config { first: CommId::new(7), last: CommId::new(7), ..Config::default() };
    world.hosts[B].manager = Manager::new(one);
    world.listen(B);
    let ids = [world.connect(A), world.connect(A)];
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(ids[0]), ["reply"]);
    assert_eq!(world.hosts[A].heard(ids[1]), ["rejected 3"]);
}

/// Requests of a peer that never does anything else.
fn flood(world: &mut World, count: u32, service: wire::cm::ServiceId) -> usize {
    let mut twin = Manager::new(Config { seed: 4711, ..Config::default() });
    let mut answers = 0;
    for _ in 0..count {
        let connect = Connect { service, ..world.request(A) };
        let id = twin.connect(world.now, connect).unwrap();
        let req = next(&mut twin);
        let _ = twin.reject(world.now, id, RejectReason::Consumer, &[], &[]);
        let _ = twin.poll_transmit();
        answers += arrives(world, B, req).len();
    }
    answers
}

#[test]
fn a_flood_of_requests_costs_a_bounded_amount_of_memory() {
    let mut world = fine();
    world.audited = false;
    world.hosts[B].manager = Manager::new(Config { half_open: 500, ..Config::default() });
    world.hosts[B].manager.listen(Listen { backlog: u32::MAX, ..Listen::new(World::service()) }).unwrap();
    flood(&mut world, 3000, World::service());
    assert_eq!(world.hosts[B].manager.live(), 500);
    let events = std::iter::from_fn(|| world.hosts[B].manager.poll_event()).count();
    assert_eq!(events, 500);
    world.hosts[B].manager.audit().unwrap();
}

#[test]
fn strangers_get_a_bounded_number_of_answers() {
    let mut world = fine();
    let answers = flood(&mut world, 6000, wire::cm::ServiceId::new(1));
    assert_eq!(answers, 4096);
    world.run_for(seconds(1));
    assert_eq!(flood(&mut world, 100, wire::cm::ServiceId::new(1)), 100);
    assert_eq!(world.hosts[B].manager.remembered(), 0);
}

/// How many messages a host sends back to an address that says nothing but one REQ, so many times.
fn echoes(world: &mut World, requests: usize) -> usize {
    let connect = world.request(A);
    let mut stranger = Manager::new(Config { seed: 11, ..Config::default() });
    stranger.connect(world.now, connect).unwrap();
    let req = next(&mut stranger);
    let before = world.hosts[B].sent.len();
    world.hosts[A].up = false;
    for _ in 0..requests {
        world.hosts[B].manager.handle(world.now, world.route(A), &req);
        world.run_for(seconds(1));
    }
    world.run_until_quiet();
    world.hosts[A].up = true;
    world.hosts[B].sent.len() - before
}

#[test]
fn one_request_brings_one_message_back_to_a_side_that_has_proven_nothing() {
    for requests in [1, 2, 5] {
        for answer in [Answer::Accept, Answer::Reject, Answer::Nothing] {
            let mut world = fine();
            world.hosts[B].manners.request = answer;
            let echoes = echoes(&mut world, requests);
            assert!(echoes <= requests, "{answer:?}: {echoes} messages for {requests}");
            assert_eq!(echoes, if answer == Answer::Nothing { requests - 1 } else { requests });
        }
    }
    // An address that has proven itself lately gets its REP repeated, and no longer when that was long ago.
    let mut world = fine();
    world.established();
    assert!(echoes(&mut world, 1) > 5);
    world.run_for(seconds(600));
    assert_eq!(echoes(&mut world, 1), 1);
}

#[test]
fn a_lost_rtu_comes_again_though_the_other_side_may_not_ask_for_it() {
    let mut world = fine();
    world.censored = vec![(A, MessageKind::Rtu)];
    let active = world.connect(A);
    world.run_for(Duration::from_millis(200));
    world.censored.clear();
    world.run_for(seconds(1));
    let passive = world.hosts[B].requested();
    assert_eq!(world.hosts[B].heard(passive), ["request", "established"]);
    assert_eq!(world.hosts[B].count(MessageKind::Rep), 1);
    world.run_for(seconds(100));
    assert_eq!(world.hosts[A].count(MessageKind::Rtu), 7, "once and six times more");
    // A side whose peer was heard repeats nothing.
    let quiet = world.connect(A);
    world.run_for(Duration::from_millis(1));
    world.hosts[A].manager.heard(world.now, quiet);
    world.run_for(seconds(100));
    assert_eq!(world.hosts[A].count(MessageKind::Rtu), 8);
    assert_eq!(world.hosts[A].manager.state(active), Some(State::Established));
}

#[test]
fn too_many_ended_connections_are_forgotten_early_and_say_so() {
    let mut world = World::with(1, Weather::FINE, |config| Config { timewait: 3, ..config });
    let ids: Vec<CommId> = (0..5).map(|_| world.connect(A)).collect();
    world.run_for(Duration::from_millis(1));
    for id in &ids {
        world.call(A, |manager, now| manager.disconnect(now, *id, b""));
        world.run_for(Duration::from_millis(1));
    }
    let ended = |world: &World| world.hosts[A].heard_all().iter().filter(|word| *word == "timewait ended").count();
    assert_eq!((ended(&world), world.hosts[A].manager.remembered()), (2, 3));
    world.run_until_quiet();
    assert_eq!(ended(&world), 5);
}

#[test]
fn ten_thousand_connections_come_and_go() {
    let mut world = fine();
    world.audited = false;
    world.hosts[B].manager = Manager::new(Config { seed: 8, ..Config::default() });
    world.hosts[B].manager.listen(Listen { backlog: 100_000, ..Listen::new(World::service()) }).unwrap();
    for _ in 0..10_000 {
        world.connect(A);
    }
    world.run_for(seconds(2));
    for host in &world.hosts {
        assert_eq!(host.manager.live(), 10_000);
        host.manager.audit().unwrap();
    }
    assert_eq!(world.hosts[B].events.len(), 20_000);
    world.hosts[A].manager.abandon_all(world.now);
    world.run_until_quiet();
    world.assert_forgotten();
    assert_eq!(world.hosts[B].events.len(), 40_000);
    assert_eq!(world.hosts[A].count(MessageKind::Dreq), 10_000, "nothing was repeated");
}
