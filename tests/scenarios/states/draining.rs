//! The send queue drained: what has begun ends, nothing new begins, and the program hears of it if it asked.

use super::rig::*;
use sim::script::times;
use sim::{Fate, Work};
use transport::{AsyncEvent, Kind, Modify, Status};

#[test]
fn draining_lets_what_has_begun_end_and_begins_nothing_new() {
    for kind in [Kind::ReliableConnected, Kind::XrcInitiator] {
        for lost in [0, 3] {
            let mut rig = Rig::at(kind, Rts);
            for id in 0..2 {
                let work = rig.address(Work::send().id(id));
                rig.sim.post(rig.qp, &work).unwrap();
            }
            let alice = rig.alice;
            // What was under way is lost; only what is sent again arrives.
            if lost > 0 {
                rig.sim.partition(rig.alice, rig.bob);
                rig.sim.run_for(1_000);
            }
            rig.sim.script(times(lost, move |sighting| sighting.from == alice, Fate::Drop));
            let drain = Modify { sqd_async_notify: Some(true), ..rig.move_to(Sqd) };
            rig.sim.modify(rig.qp, &drain).unwrap();
            assert_eq!(rig.state(), Sqd);
            assert_eq!(rig.events(), [], "not yet");
            for id in 2..4 {
                let work = rig.address(Work::send().id(id));
                rig.sim.post(rig.qp, &work).unwrap();
            }
            rig.sim.heal(rig.alice, rig.bob);
            rig.sim.run_until_idle();
            assert_eq!(rig.ends(), [(0, Status::Success), (1, Status::Success)], "{kind}");
            assert_eq!(rig.events(), [AsyncEvent::SendQueueDrained], "{kind}");
            assert_eq!(rig.sim.attributes(rig.qp).sq_psn, OWN.add(2));
            rig.go(Rts).unwrap();
            rig.sim.run_until_idle();
            assert_eq!(rig.ends(), [(2, Status::Success), (3, Status::Success)], "{kind}");
            assert_eq!(rig.events(), [], "once");
        }
    }
}

#[test]
fn a_drained_queue_says_so_at_once_and_only_if_it_was_asked() {
    for kind in kinds() {
        for (asked, expected) in
            [(Some(true), vec![AsyncEvent::SendQueueDrained]), (Some(false), vec![]), (None, vec![])]
        {
            let mut rig = Rig::at(kind, Rts);
            let drain = Modify { sqd_async_notify: asked, ..rig.move_to(Sqd) };
            rig.sim.modify(rig.qp, &drain).unwrap();
            rig.sim.run_until_idle();
            assert_eq!(rig.events(), expected, "{kind} {asked:?}");
            // Moving within SQD owes nothing new.
            rig.go(Sqd).unwrap();
            assert_eq!(rig.events(), [], "{kind}");
        }
    }
}

#[test]
fn a_read_under_way_is_drained_when_its_answer_is_there() {
    let mut rig = Rig::at(Kind::ReliableConnected, Rts);
    rig.sim.post(rig.qp, &Work::read(rig.far.remote(0)).sge(rig.near.sge(0, 5000)).id(1)).unwrap();
    rig.sim.post(rig.qp, &Work::fetch_add(rig.far.remote(0), 1).sge(rig.near.sge(8000, 8)).id(2)).unwrap();
    let bob = rig.bob;
    rig.sim.script(times(2, move |sighting| sighting.from == bob, Fate::Drop));
    let drain = Modify { sqd_async_notify: Some(true), ..rig.move_to(Sqd) };
    rig.sim.modify(rig.qp, &drain).unwrap();
    let (qp, mut done) = (rig.qp, 0);
    rig.sim.run_until(1_000_000_000, |sim| {
        let events = sim.async_events(qp);
        if events.is_empty() {
            return false;
        }
        done = sim.completion_count(qp);
        assert_eq!(events, [AsyncEvent::SendQueueDrained]);
        true
    });
    assert_eq!(done, 2, "both were complete when it was told");
    assert_eq!(rig.ends(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_peer_is_served_while_the_send_queue_drains() {
    let mut rig = Rig::at(Kind::ReliableConnected, Sqd);
    rig.post_receive(5).unwrap();
    let peer = rig.peer;
    rig.sim.post(peer, &Work::send()).unwrap();
    rig.sim.post(peer, &Work::read(rig.near.remote(0)).sge(rig.far.sge(0, 3000))).unwrap();
    rig.sim.run_until_idle();
    assert!(rig.sim.completions(peer).iter().all(|end| end.status == Status::Success));
    assert_eq!((rig.ends(), rig.state()), (vec![(5, Status::Success)], Sqd));
}

#[test]
fn attributes_changed_while_drained_count_afterwards() {
    let mut rig = Rig::at(Kind::ReliableConnected, Sqd);
    let change = Modify { timeout: Some(10), retry_cnt: Some(2), ..rig.move_to(Sqd) };
    rig.sim.modify(rig.qp, &change).unwrap();
    let attributes = rig.attributes();
    assert_eq!((attributes.timeout, attributes.retry_cnt, attributes.sq_psn), (10, 2, OWN));
    rig.go(Rts).unwrap();
    rig.sim.partition(rig.alice, rig.bob);
    let start = rig.sim.now();
    rig.sim.post(rig.qp, &Work::send()).unwrap();
    rig.sim.run_until_idle();
    assert_eq!(rig.ends(), [(0, Status::RetryExceeded)]);
    assert_eq!(rig.log.packets().len(), 3);
    assert_eq!(rig.sim.now().since(start), 3 * (4096 << 10));
}
