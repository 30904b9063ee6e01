//! Every way a connection can end, by whom, in fine weather and with every twentieth message lost: what each side hears, and that both forget.
#![allow(missing_docs)]

use std::time::Duration;

use cm::{Accept, Connect};
use scenery::connections::{A, Answer, B, Weather, World};
use wire::cm::CommId;
use wire::{Psn, Qpn};

/// How it ends. The bool of the table says whether the active side does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// One side disconnects, the other agrees.
    Disconnects,
    /// Both disconnect at once.
    BothDisconnect,
    /// One side disconnects, the other answers by disconnecting too.
    DisconnectsInAnswer,
    /// One side disconnects and the other never answers.
    DisconnectsUnanswered,
    /// One side forgets an established connection.
    Abandons,
    /// One side's process ends.
    Exits,
    /// One side's host dies, the other disconnects later.
    Dies,
    /// One side's host dies and comes back, the other disconnects later.
    Restarts,
    /// One side's host dies, comes back and connects the same queue pairs again.
    RestartsAndConnects,
    /// The request is rejected, or the reply is.
    Rejects,
    /// One side forgets the request it sent, or the one it got.
    AbandonsRequest,
    /// One side forgets the reply it got, or the one it sent.
    AbandonsReply,
    /// Nobody answers the request, or nobody confirms the reply.
    NeverAnswers,
    /// Nobody listens: there is no local way of it.
    NobodyListens,
    /// The listener stops before it tells of the request: there is no local way of it.
    ListenerStops,
}

use Way::*;

/// Which of them does it.
const LOCAL: bool = true;
const REMOTE: bool = false;

/// What the active side hears, and the passive side, in fine weather. In bad weather other outcomes are possible where a message that is sent
/// only once says it: they are listed behind.
type Row = (Way, bool, &'static [&'static str], &'static [&'static str], &'static [[&'static [&'static str]; 2]]);

const ASKED: &[&str] = &["reply", "disconnect requested", "timewait ended"];
const ASKS: &[&str] = &["reply", "disconnected", "timewait ended"];
const IS_ASKED: &[&str] = &["request", "established", "disconnect requested", "timewait ended"];
const IS_TOLD: &[&str] = &["request", "established", "disconnected", "timewait ended"];
const SUSPECTS: &[&str] = &["request", "established", "suspected", "disconnected", "timewait ended"];
const IN_VAIN: &[&str] = &["reply", "timed out Dreq", "timewait ended"];
const IS_IN_VAIN: &[&str] = &["request", "established", "timed out Dreq", "timewait ended"];
const CONNECTED: &[&str] = &["request", "established"];

const TABLE: &[Row] = &[
    (Disconnects, LOCAL, ASKS, IS_ASKED, &[]),
    (Disconnects, REMOTE, ASKED, IS_TOLD, &[]),
    (BothDisconnect, LOCAL, ASKS, IS_TOLD, &[[ASKED, IS_TOLD], [ASKS, IS_ASKED]]),
    (BothDisconnect, REMOTE, ASKS, IS_TOLD, &[[ASKED, IS_TOLD], [ASKS, IS_ASKED]]),
    (DisconnectsInAnswer, LOCAL, ASKS, IS_ASKED, &[]),
    (DisconnectsInAnswer, REMOTE, ASKED, IS_TOLD, &[]),
    (DisconnectsUnanswered, LOCAL, IN_VAIN, &["request", "established", "disconnect requested"], &[]),
    (DisconnectsUnanswered, REMOTE, &["reply", "disconnect requested"], IS_IN_VAIN, &[]),
    (Abandons, LOCAL, &["reply"], IS_ASKED, &[]),
    (Abandons, REMOTE, ASKED, CONNECTED, &[]),
    (Exits, LOCAL, &["reply"], IS_ASKED, &[]),
    (Exits, REMOTE, ASKED, CONNECTED, &[]),
    (Dies, LOCAL, &["reply"], IS_IN_VAIN, &[]),
    (Dies, REMOTE, IN_VAIN, CONNECTED, &[]),
    (Restarts, LOCAL, &["reply"], IS_TOLD, &[]),
    (Restarts, REMOTE, ASKS, CONNECTED, &[]),
    (RestartsAndConnects, LOCAL, &["reply"], SUSPECTS, &[]),
    (RestartsAndConnects, REMOTE, &["reply", "suspected", "disconnected", "timewait ended"], CONNECTED, &[]),
    (Rejects, LOCAL, &["reply"], &["request", "rejected 28"], &[[&["reply"], &["request", "timed out Rep"]]]),
    (Rejects, REMOTE, &["rejected 28"], &["request"], &[]),
    // Where the REJ is lost, the passive side learns it when it replies.
    (
        AbandonsRequest,
        LOCAL,
        &[],
        &["request", "rejected 4"],
        &[[&[], &["request", "rejected 6"]], [&[], &["request", "timed out Rep"]]],
    ),
    (AbandonsRequest, REMOTE, &["rejected 28"], &["request"], &[]),
    (
        AbandonsReply,
        LOCAL,
        &["reply"],
        &["request", "rejected 28"],
        &[[&["reply"], &["request", "rejected 6"]], [&["reply"], &["request", "timed out Rep"]]],
    ),
    // The passive side has replied and not heard a confirmation; the active side has confirmed, in vain.
    (AbandonsReply, REMOTE, ASKS, &["request"], &[]),
    // The passive program gives it up when it likes; here it lives on until then.
    // A side that proves nothing hears no more than one message.
    (
        NeverAnswers,
        LOCAL,
        &["reply"],
        &["request", "timed out Rep"],
        &[[&["reply", "rejected 4"], &["request", "timed out Rep"]]],
    ),
    (NeverAnswers, REMOTE, &["timed out Req"], &["request", "rejected 4"], &[[&["timed out Req"], &["request"]]]),
    (NobodyListens, REMOTE, &["rejected 8"], &[], &[]),
    (ListenerStops, REMOTE, &["rejected 28"], &[], &[[&["rejected 8"], &[]]]),
];

fn patient() -> Duration {
    Duration::from_secs(20)
}

/// Passes time until a host has heard of something.
fn wait_for(world: &mut World, host: usize, word: &str) {
    for _ in 0..100_000 {
        if world.hosts[host].heard_all().iter().any(|heard| heard == word) {
            return;
        }
        world.run_for(Duration::from_millis(1));
    }
    panic!("host {host} never heard of {word}: {:?}", world.hosts[host].heard_all());
}

/// A call that may come too late.
fn perhaps(world: &mut World, call: impl FnOnce(&mut World) -> Result<(), cm::CmError>) {
    let _ = call(world);
    world.drain();
}

fn connect(world: &mut World) -> (CommId, Connect) {
    let request = world.request(A);
    (world.connect_with(A, request), request)
}

/// Plays one row and returns what both sides heard.
fn play(way: Way, local: bool, world: &mut World) -> [Vec<String>; 2] {
    let (who, other) = if local { (A, B) } else { (B, A) };
    let weather = world.weather;
    let mut ids = [CommId::new(0); 2];
    match way {
        Rejects | AbandonsRequest | AbandonsReply | NeverAnswers | NobodyListens | ListenerStops => {
            ids = before_it_is_established(way, local, world);
        }
        _ => {
            world.weather = Weather::FINE;
            let (active, request) = connect(world);
            world.run_for(Duration::from_millis(5));
            ids[A] = active;
            ids[B] = world.hosts[B].requested();
            assert_eq!(world.hosts[B].heard(ids[B]), CONNECTED);
            world.weather = weather;
            after_it_is_established(way, world, ids, who, other, request);
        }
    }
    world.run_until_quiet();
    [A, B].map(|host| world.hosts[host].heard(ids[host]))
}

fn after_it_is_established(way: Way, world: &mut World, ids: [CommId; 2], who: usize, other: usize, request: Connect) {
    match way {
        BothDisconnect => {
            world.hosts[A].manager.disconnect(world.now, ids[A], b"").unwrap();
            world.call(B, |manager, now| manager.disconnect(now, ids[B], b""));
        }
        DisconnectsInAnswer => {
            world.hosts[other].manners.agree = false;
            world.call(who, |manager, now| manager.disconnect(now, ids[who], b""));
            wait_for(world, other, "disconnect requested");
            world.call(other, |manager, now| manager.disconnect(now, ids[other], b""));
        }
        DisconnectsUnanswered => {
            world.hosts[other].manners.agree = false;
            world.call(who, |manager, now| manager.disconnect(now, ids[who], b""));
            world.run_until_quiet();
            // The other program leaves it at that, and in the end goes away.
            world.call(other, |manager, now| manager.abandon(now, ids[other]));
        }
        Abandons => world.call(who, |manager, now| manager.abandon(now, ids[who])),
        Exits => world.call(who, |manager, now| {
            manager.abandon_all(now);
            Ok(())
        }),
        Dies => {
            world.hosts[who].up = false;
            world.run_for(patient());
            world.call(other, |manager, now| manager.disconnect(now, ids[other], b""));
        }
        Restarts => {
            world.restart(who, 4711);
            world.run_for(patient());
            world.call(other, |manager, now| manager.disconnect(now, ids[other], b""));
        }
        RestartsAndConnects => {
            let qpn = if who == A {
                request.qpn
            } else {
                match world.hosts[A].events[0] {
                    cm::Event::Reply { reply, .. } => reply.local_qpn,
                    _ => unreachable!("the first event is the reply"),
                }
            };
            world.restart(who, 4711);
            world.peers_lost = true;
            if who == B {
                world.listen(A);
            }
            let again = Connect { qpn, ..world.request(who) };
            world.connect_with(who, again);
            world.run_until_quiet();
            // Where the REJ was lost and the request repeated, there is a new connection now. It is another story.
            for host in [A, B] {
                world.hosts[host].manager.abandon_all(world.now);
            }
        }
        _ => world.call(who, |manager, now| manager.disconnect(now, ids[who], b"")),
    }
}

fn before_it_is_established(way: Way, local: bool, world: &mut World) -> [CommId; 2] {
    let nobody = CommId::new(0);
    match way {
        NobodyListens => {
            let request = Connect { service: wire::cm::ServiceId::new(1), ..world.request(A) };
            return [world.connect_with(A, request), nobody];
        }
        ListenerStops => {
            // The listener stops between the message and the program.
            let weather = std::mem::replace(&mut world.weather, Weather::FINE);
            world.restart(B, 3);
            world.hosts[B].manager = cm::Manager::new(cm::Config::default());
            let listener = world.listen(B);
            let request = world.request(A);
            let id = world.hosts[A].manager.connect(world.now, request).unwrap();
            let req = world.hosts[A].manager.poll_transmit().unwrap();
            world.weather = weather;
            world.hosts[B].manager.handle(world.now, req.route, &req.datagram);
            world.hosts[B].manager.stop_listening(world.now, listener);
            world.drain();
            return [id, nobody];
        }
        Rejects if !local => world.hosts[B].manners.request = Answer::Reject,
        Rejects => world.hosts[A].manners.reply = Answer::Reject,
        AbandonsReply if local => world.hosts[A].manners.reply = Answer::Nothing,
        AbandonsRequest | NeverAnswers | AbandonsReply => world.hosts[B].manners.request = Answer::Nothing,
        _ => unreachable!("not before"),
    }
    let (active, _) = connect(world);
    wait_for(world, B, "request");
    let passive = world.hosts[B].requested();
    let accept = |world: &mut World| {
        let accept = Accept::new(Qpn::new(0x99), Psn::new(1));
        world.hosts[B].manager.accept(world.now, passive, accept)
    };
    match (way, local) {
        (AbandonsRequest, true) => {
            world.call(A, |manager, now| manager.abandon(now, active));
            world.run_for(patient());
            perhaps(world, accept);
        }
        (AbandonsRequest, false) => world.call(B, |manager, now| manager.abandon(now, passive)),
        (AbandonsReply, true) => {
            wait_for(world, A, "reply");
            world.call(A, |manager, now| manager.abandon(now, active));
        }
        (AbandonsReply, false) => {
            world.censored = vec![(A, wire::cm::MessageKind::Rtu)];
            perhaps(world, accept);
            wait_for(world, A, "reply");
            world.call(B, |manager, now| manager.abandon(now, passive));
            world.run_for(patient());
            // Where the REJ was lost its queue pair tells the active program, and it disconnects.
            perhaps(world, |world| world.hosts[A].manager.disconnect(world.now, active, b""));
        }
        (NeverAnswers, true) => {
            perhaps(world, accept);
            world.hosts[A].manners.reply = Answer::Nothing;
            world.censored = vec![(A, wire::cm::MessageKind::Mra), (A, wire::cm::MessageKind::Rtu)];
            world.run_until_quiet();
            // It thought for too long.
            perhaps(world, |world| world.hosts[A].manager.abandon(world.now, active));
        }
        (NeverAnswers, false) => {
            world.run_until_quiet();
            perhaps(world, |world| world.hosts[B].manager.abandon(world.now, passive));
        }
        _ => {}
    }
    [active, passive]
}

#[test]
fn every_way_a_connection_can_end_is_heard_by_both_sides_in_fine_weather() {
    for &(way, local, active, passive, _) in TABLE {
        let mut world = World::new(1, Weather::FINE);
        let heard = play(way, local, &mut world);
        assert_eq!(heard[A], active, "active side: {way:?}, local {local}");
        assert_eq!(heard[B], passive, "passive side: {way:?}, local {local}");
        world.assert_forgotten();
    }
}

#[test]
fn every_way_a_connection_can_end_is_heard_by_both_sides_with_every_twentieth_message_lost() {
    for &(way, local, active, passive, others) in TABLE {
        for seed in 0..600 {
            let mut world = World::new(seed, Weather { loss: 0.05, ..Weather::FINE });
            let heard = play(way, local, &mut world);
            let fits = |[first, second]: &[&[&str]; 2]| heard[A] == *first && heard[B] == *second;
            assert!(
                fits(&[active, passive]) || others.iter().any(fits),
                "{way:?}, local {local}, seed {seed}: {heard:?}"
            );
            world.assert_forgotten();
        }
    }
}

#[test]
fn the_table_has_every_way_by_either_side() {
    let both = [
        Disconnects,
        BothDisconnect,
        DisconnectsInAnswer,
        DisconnectsUnanswered,
        Abandons,
        Exits,
        Dies,
        Restarts,
        RestartsAndConnects,
        Rejects,
        AbandonsRequest,
        AbandonsReply,
        NeverAnswers,
    ];
    for way in both {
        for local in [LOCAL, REMOTE] {
            assert!(TABLE.iter().any(|row| row.0 == way && row.1 == local), "{way:?} {local}");
        }
    }
}
