//! How a datagram service is found: repetition, refusal, and answers that are not believed.
#![allow(missing_docs)]

use std::time::Duration;

use cm::{Event, Resolve, Route};
use scenery::connections::{A, Answer, B, World, arrives, fine, seconds};
use wire::cm::{CmDatagram, Data, MessageKind, SidrStatus};
use wire::{Gid, Qkey, Qpn};

#[test]
fn a_datagram_service_is_asked_for_until_it_answers() {
    let mut world = fine();
    world.censored = vec![(B, MessageKind::SidrRep)];
    let resolve = Resolve::new(world.route(A), World::service());
    let id = world.hosts[A].manager.resolve(world.now, resolve).unwrap();
    world.run_for(seconds(1));
    world.censored.clear();
    world.run_until_quiet();
    assert_eq!(world.hosts[A].heard(id), ["service answer 0"]);
    assert_eq!(world.hosts[B].heard_all(), ["service request"], "repetitions are no new requests");
    world.assert_forgotten();
}

#[test]
fn a_datagram_service_that_nobody_offers_or_grants_says_why() {
    let mut world = fine();
    let nobody = Resolve::new(world.route(A), wire::cm::ServiceId::new(5));
    let id = world.hosts[A].manager.resolve(world.now, nobody).unwrap();
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(id), ["service answer 1"]);
    world.hosts[B].manners.request = Answer::Nothing;
    let resolve = Resolve::new(world.route(A), World::service());
    let id = world.hosts[A].manager.resolve(world.now, resolve).unwrap();
    world.run_for(Duration::from_millis(1));
    let asked = world.hosts[B].requested();
    world.call(B, |manager, now| manager.abandon(now, asked));
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.hosts[A].heard(id), ["service answer 2"]);
    world.hosts[B].up = false;
    let resolve = Resolve { retries: 2, ..resolve };
    let id = world.hosts[A].manager.resolve(world.now, resolve).unwrap();
    world.run_until_quiet();
    assert_eq!(world.hosts[A].heard(id), ["service timed out"]);
    let id = world.hosts[A].manager.resolve(world.now, resolve).unwrap();
    world.call(A, |manager, now| manager.abandon(now, id));
    world.run_until_quiet();
    assert_eq!(world.hosts[A].heard(id), [""; 0]);
    world.assert_forgotten();
}

#[test]
fn a_datagram_answer_from_elsewhere_is_not_believed() {
    let mut world = fine();
    world.hosts[B].up = false;
    let resolve = Resolve::new(world.route(A), World::service());
    let id = world.hosts[A].manager.resolve(world.now, resolve).unwrap();
    world.drain();
    let answer = wire::cm::SidrRep {
        request_id: id,
        status: SidrStatus::Valid,
        info_length: 0,
        qpn: Qpn::new(1),
        service_id: World::service(),
        qkey: Qkey::new(1),
        info: Data::default(),
        private_data: Data::default(),
    };
    let stranger = Route { source: Gid::from_ipv4([10, 9, 9, 9].into()), destination: world.hosts[A].gid };
    let transaction = world.transactions[&id];
    world.hosts[A].manager.handle(world.now, stranger, &CmDatagram::new(transaction, answer.into()));
    let other = wire::cm::SidrRep { service_id: wire::cm::ServiceId::new(4), ..answer };
    arrives(&mut world, A, CmDatagram::new(transaction, other.into()));
    assert_eq!(world.hosts[A].manager.poll_event(), None);
    // Nor one that does not repeat the transaction.
    let _ = world.hosts[A].manager.take_drops();
    arrives(&mut world, A, CmDatagram::new(transaction ^ 1, answer.into()));
    assert_eq!(world.hosts[A].manager.poll_event(), None);
    assert_eq!(world.hosts[A].manager.take_drops(), [(trace::DropReason::CmWrongTransaction, 1)]);
    arrives(&mut world, A, CmDatagram::new(transaction, answer.into()));
    assert!(matches!(world.hosts[A].manager.poll_event(), Some(Event::ServiceAnswer { .. })));
}
