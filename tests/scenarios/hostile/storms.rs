//! Storms of one packet: notifications, duplicates, packets of a former life, requests that cannot be served.

use super::victim::*;
use scenery::{Seen, Setting};
use sim::script::always;
use sim::{Fate, LinkKind, QpSpec, Work};
use trace::DropReason;
use transport::rate::DcqcnConfig;
use transport::{CompletionKind, Modify, State, Status};
use wire::{Headers, Opcode, Operation, Psn, RnrTimer, Syndrome};

#[test]
fn a_flood_of_congestion_notifications_slows_and_does_not_stop() {
    let mut victim = Victim::new();
    let headers = Headers::new(Opcode::Cnp, victim.pair.b.qpn, Psn::new(0));
    let source = victim.pair.sim.gid(victim.pair.alice, 0);
    for _ in 0..5000 {
        victim.pair.sim.inject(victim.pair.bob, source, &headers, &[0; 16]).unwrap();
        victim.pair.sim.run_for(100_000);
    }
    assert!(victim.log.packets().is_empty(), "nobody answers a notification");
    assert_eq!(victim.log.drops(victim.pair.bob), []);
    let (rate, least) = (victim.pair.sim.congested_rate(victim.pair.b), DcqcnConfig::default().minimum_rate);
    assert!(rate.is_some_and(|rate| (least..10 * least).contains(&rate)), "{rate:?}");
    victim.assert_works();
    // From a stranger, or to a queue pair that has sent to nobody, it is nothing.
    let stranger = wire::Gid::from_ipv4([192, 0, 2, 7].into());
    victim.log.clear();
    victim.pair.sim.inject(victim.pair.bob, stranger, &headers, &[0; 16]).unwrap();
    assert_eq!(victim.settle(), (vec![DropReason::WrongSource], vec![]));
    let ud = victim.pair.sim.create_qp(victim.pair.bob, QpSpec::ud());
    victim.pair.sim.activate(ud, &victim.pair.options);
    let headers = Headers::new(Opcode::Cnp, ud.qpn, Psn::new(0));
    assert_eq!(victim.hit(&headers, &[0; 16]), (vec![DropReason::WrongSource], vec![]));
}

#[test]
fn marked_notifications_do_not_call_for_notifications() {
    // Everything is marked, and the way is so long that each side would be ready for the next by the time one arrives.
    let mut setting = Setting::default();
    setting.link.delay = 100_000;
    let mut victim = Victim::under(&setting);
    victim.pair.sim.set_event_cap(1000);
    victim.pair.sim.script(always(|_| true, Fate::Mark));
    victim.pair.succeed(&Work::write(victim.pair.far.remote(0)).sge(victim.pair.near.sge(0, 8)));
    let packets = victim.log.packets();
    let notifications = packets.iter().filter(|seen| seen.opcode() == Opcode::Cnp).count();
    assert!(
        (1..=2).contains(&notifications),
        "one for the request, at most one for its acknowledgement: {notifications}"
    );
}

/// All requests and answers of some honest work, as they went over the wire.
fn record(victim: &mut Victim) -> Vec<(bool, Headers, Vec<u8>)> {
    let seen = sim::Shared::new(Vec::new());
    let (into, alice) = (seen.clone(), victim.pair.alice);
    victim.pair.sim.watch(move |passing| {
        let sighting = &passing.sighting;
        into.borrow_mut().push((sighting.from == alice, *sighting.headers, sighting.payload.to_vec()));
    });
    work_both_ways(&mut victim.pair);
    let packets = seen.borrow().clone();
    assert!(packets.len() > 20, "{}", packets.len());
    packets
}

#[test]
fn packets_of_a_former_life_change_nothing_in_the_new_one() {
    // New numbers that lie before, behind, and far from the old ones.
    for shift in [0x1000, 0xff_f000, 0x40_0000, 0x7f_0000] {
        let mut setting = Setting::default();
        let (old_a, old_b) = (Psn::new(5000), Psn::new(900_000));
        setting.options.psn = Some((old_a, old_b));
        let mut victim = Victim::under(&setting);
        let packets = record(&mut victim);
        let pair = &mut victim.pair;
        for qp in [pair.a, pair.b] {
            pair.sim.modify(qp, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap();
        }
        let options = sim::ConnectOptions { psn: Some((old_a.add(shift), old_b.add(shift))), ..pair.options };
        pair.sim.connect(pair.a, pair.b, &options);
        for (region, byte) in [(pair.near, 0x77), (pair.far, 0xee)] {
            pair.sim.bytes_mut(&region).fill(byte);
        }
        for (qp, memory) in [(pair.a, pair.near), (pair.b, pair.far)] {
            pair.sim.receive(qp, 5, &[memory.sge(0, 5000)]).unwrap();
        }
        victim.log.clear();
        let before = victim.pair.sim.counters().sent;
        let old = packets.len() as u64;
        for (from_alice, headers, payload) in packets {
            let pair = &mut victim.pair;
            let (from, to) = if from_alice { (pair.alice, pair.bob) } else { (pair.bob, pair.alice) };
            let source = pair.sim.gid(from, 0);
            pair.sim.inject(to, source, &headers, &payload).unwrap();
            pair.sim.run_until_idle();
        }
        let said = victim.pair.sim.counters().sent - before;
        assert!(said <= old, "at most an answer to each: {said} to {old}");
        assert!(victim.pair.sim.bytes(&victim.pair.near).iter().all(|byte| *byte == 0x77), "{shift:#x}");
        victim.assert_untouched();
        for qp in [victim.pair.a, victim.pair.b] {
            assert_eq!(victim.pair.sim.completions(qp), [], "{shift:#x}");
            // The receive has waited for honest work.
            let other = if qp == victim.pair.a { victim.pair.b } else { victim.pair.a };
            victim.pair.sim.post(other, &Work::send()).unwrap();
            victim.pair.sim.run_until_idle();
            assert_eq!(victim.pair.sim.completions(other)[0].status, Status::Success);
            assert_eq!(victim.pair.sim.completions(qp)[0].wr_id, 5);
        }
        victim.assert_works();
    }
}

#[test]
fn a_storm_of_duplicates_is_answered_and_carried_out_once() {
    let mut victim = Victim::new();
    let packets = record(&mut victim);
    let value = victim.pair.far_bytes(24_000, 8).to_vec();
    victim.log.clear();
    let pair = &mut victim.pair;
    for (from_alice, headers, payload) in &packets {
        let (from, to) = if *from_alice { (pair.alice, pair.bob) } else { (pair.bob, pair.alice) };
        let source = pair.sim.gid(from, 0);
        let expected_answers = match headers.bth.opcode.operation() {
            // Three packets of READ response.
            Operation::ReadRequest => 3,
            operation if operation.is_request() => 1,
            _ => 0,
        };
        for _ in 0..100 {
            let before = pair.sim.counters().sent;
            pair.sim.inject(to, source, headers, payload).unwrap();
            pair.sim.run_for(1);
            let answers = pair.sim.counters().sent - before;
            assert!(answers <= expected_answers, "{}: {answers}", headers.bth.opcode);
        }
        pair.sim.run_until_idle();
    }
    assert_eq!(pair.far_bytes(24_000, 8), value, "atomics ran once");
    assert!(pair.sim.completions(pair.a).is_empty() && pair.sim.completions(pair.b).is_empty());
    let reasons = victim.log.drops(victim.pair.bob);
    let known = [DropReason::Duplicate, DropReason::StaleAck, DropReason::GhostAck];
    assert!(reasons.iter().all(|reason| known.contains(reason)), "{reasons:?}");
    victim.assert_works();
}

#[test]
fn a_flood_of_sends_without_receives_gets_one_refusal_each_and_no_more() {
    let mut victim = Victim::new();
    let headers = victim.forge(Opcode::RcSendOnly, victim.expected());
    for _ in 0..1000 {
        let (drops, sent) = victim.hit(&headers, b"hello");
        assert_eq!(drops, [DropReason::NoReceive]);
        let refusal = Syndrome::RnrNak { timer: RnrTimer::new(1) };
        assert_eq!(sent.iter().map(Seen::syndrome).collect::<Vec<_>>(), [Some(refusal)]);
    }
    assert_eq!(victim.expected(), headers.bth.psn);
    victim.assert_works();
}

#[test]
fn a_queue_pair_that_cannot_send_its_answers_owes_only_so_many_and_recovers() {
    // Bob's ring towards Alice is full, so that everything Bob owes waits.
    let mut setting = Setting::on(LinkKind::Whole);
    setting.link.ring = 1;
    let mut victim = Victim::under(&setting);
    victim.pair.sim.pause(victim.pair.alice);
    victim
        .pair
        .sim
        .post(victim.pair.b, &Work::write(victim.pair.near.remote(0)).sge(victim.pair.far.sge(0, 8)))
        .unwrap();
    victim.pair.sim.run_for(1_000);
    // Alternating, so that nothing merges: an old request to acknowledge and one without a receive.
    let source = victim.pair.sim.gid(victim.pair.alice, 0);
    let expected = victim.expected();
    for _ in 0..500 {
        for headers in [victim.forge(Opcode::RcWriteOnly, expected.sub(1)), victim.forge(Opcode::RcSendOnly, expected)]
        {
            victim.pair.sim.inject_train(victim.pair.bob, source, &headers, 1, &[0; 8]);
        }
    }
    victim.pair.sim.run_for(1_000);
    victim.log.clear();
    // A READ that arrives on top of it is not forgotten for ever.
    let question = victim.forge(Opcode::RcReadRequest, expected);
    victim.pair.sim.inject_train(victim.pair.bob, source, &question, 1, &[]);
    victim.pair.sim.run_for(1_000);
    victim.pair.sim.resume(victim.pair.alice);
    victim.pair.sim.run_until_idle();
    let said = victim.log.packets().iter().filter(|seen| seen.from == victim.pair.bob).count();
    assert!(said <= 100, "{said}");
    victim.log.clear();
    victim.pair.sim.inject_train(victim.pair.bob, source, &question, 1, &[]);
    victim.pair.sim.run_until_idle();
    let answers = victim.log.packets().iter().filter(|seen| seen.opcode() == Opcode::RcReadResponseOnly).count();
    assert_eq!(answers, 1, "asked again, it is answered");
    assert_eq!(victim.pair.sim.completions(victim.pair.b)[0].kind, CompletionKind::Write);
}
