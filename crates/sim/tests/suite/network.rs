//! What the simulated network does to packets, and that it does it the same way twice.
#![allow(missing_docs)]

use sim::script::{always, nth, once, times};
use sim::{
    ConnectOptions, Fate, HostConfig, HostId, LinkConfig, LinkKind, Outcome, QpId, QpSpec, ReceiveBuffer, Region,
    Shared, Sim, Work,
};
use trace::{DropReason, Event, Kind};
use transport::{Access, Status};
use wire::{Gid, Headers, Opcode, Psn, Qpn};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

struct Pair {
    sim: Sim,
    alice: HostId,
    bob: HostId,
    a: QpId,
    b: QpId,
    near: Region,
    far: Region,
}

fn pair_of(seed: u64, link: LinkConfig, host: HostConfig) -> Pair {
    let mut sim = Sim::with_seed(seed);
    sim.set_default_link(link);
    let alice = sim.add_host(HostConfig { name: Some("alice".into()), ..host.clone() });
    let bob = sim.add_host(HostConfig { name: Some("bob".into()), ..host });
    let a = sim.create_qp(alice, QpSpec::rc());
    let b = sim.create_qp(bob, QpSpec::rc());
    sim.connect(a, b, &ConnectOptions::default());
    let near = sim.register_bytes(alice, QpSpec::PD, (0..1_000_000).map(|i| sim::pattern(1, i)).collect(), ALL);
    let far = sim.register(bob, QpSpec::PD, 1_000_000, ALL);
    Pair { sim, alice, bob, a, b, near, far }
}

fn pair(seed: u64, link: LinkConfig) -> Pair {
    pair_of(seed, link, HostConfig::default())
}

impl Pair {
    fn write(&mut self, length: u32) {
        self.sim.post(self.a, &Work::write(self.far.remote(0)).sge(self.near.sge(0, length))).unwrap();
    }

    #[track_caller]
    fn expect_written(&mut self, length: usize) {
        let completions = self.sim.completions(self.a);
        assert_eq!(completions.iter().map(|c| c.status).collect::<Vec<_>>(), [Status::Success], "{completions:?}");
        assert_eq!(self.sim.bytes(&self.far)[..length], self.sim.bytes(&self.near)[..length]);
    }
}

const BAD: LinkConfig = LinkConfig {
    loss: 0.03,
    duplication: 0.03,
    reordering: 0.03,
    corruption: 0.03,
    marking: 0.02,
    jitter: 3_000,
    bandwidth: Some(10_000_000_000),
    ..LinkConfig::PERFECT
};

#[test]
fn the_same_seed_gives_the_same_events_at_the_same_nanosecond() {
    let run = |seed| {
        let mut pair = pair(seed, BAD);
        let events = Shared::new(Vec::<Event>::new());
        pair.sim.trace(events.clone());
        pair.write(200_000);
        pair.sim.run_until_idle();
        pair.expect_written(200_000);
        let counters = pair.sim.counters().clone();
        assert!(counters.duplicated > 0 && counters.corrupted > 0 && counters.marked > 0, "{counters:?}");
        assert!(counters.dropped_for(DropReason::RandomLoss) > 0 && counters.dropped_for(DropReason::BadIcrc) > 0);
        (events.borrow().clone(), counters, pair.sim.now())
    };
    let first = run(5);
    assert_eq!(first, run(5));
    assert_ne!(first.0, run(6).0);
}

#[test]
fn a_captured_run_is_the_same_run() {
    let bytes = Shared::new(Vec::new());
    struct Writer(Shared<Vec<u8>>);
    impl std::io::Write for Writer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let run = |captured: bool| {
            let mut pair = pair(9, LinkConfig { kind, loss: 0.2, ..BAD });
            if captured {
                pair.sim.capture(Writer(bytes.clone())).unwrap();
            }
            pair.write(600_000);
            pair.sim.run_until_idle();
            pair.sim.finish_capture().unwrap();
            (pair.sim.counters().clone(), pair.sim.now())
        };
        assert_eq!(run(true), run(false));
        let text = String::from_utf8_lossy(&bytes.borrow()).into_owned();
        for comment in ["alice", "bob", "work request 0", "sent again", "dropped: lost by an injected fault"] {
            assert!(text.contains(comment), "{comment}");
        }
        bytes.borrow_mut().clear();
    }
}

#[test]
fn bad_wires_of_both_kinds_carry_everything_in_the_end() {
    for seed in 0..40 {
        for kind in [LinkKind::Datagram, LinkKind::Whole] {
            let mut pair = pair(seed, LinkConfig { kind, ..BAD });
            pair.write(100_000);
            pair.sim.run_until_idle();
            pair.expect_written(100_000);
        }
    }
}

#[test]
fn a_script_picks_its_packet() {
    // Five packets go out; the third is number 2.
    let third = |sighting: &sim::Sighting<'_>| sighting.headers.bth.opcode == Opcode::RcWriteMiddle;
    for fate in [Fate::Drop, Fate::Duplicate, Fate::Delay(50_000), Fate::Corrupt, Fate::Mark] {
        let mut pair = pair(1, LinkConfig::PERFECT);
        let outcomes = Shared::new(Vec::new());
        let log = outcomes.clone();
        let alice = pair.alice;
        pair.sim.watch(move |passing| {
            if passing.sighting.from == alice && !passing.sighting.retransmission {
                log.borrow_mut().push(passing.outcome);
            }
        });
        pair.sim.script(nth(1, third, fate));
        pair.write(5 * 1024);
        pair.sim.run_until_idle();
        pair.expect_written(5 * 1024);
        let now = 5_000;
        let plain = |outcome: &Outcome| match *outcome {
            Outcome::Arrives { at, again, corrupt, marked } => (at.as_nanos() == now, again.is_some(), corrupt, marked),
            Outcome::Lost(_) => (false, false, false, false),
        };
        let expected = match fate {
            Fate::Drop | Fate::Delay(_) => (false, false, false, false),
            Fate::Duplicate => (true, true, false, false),
            Fate::Corrupt => (true, false, true, false),
            Fate::Mark => (true, false, false, true),
            Fate::Pass => unreachable!(),
        };
        let seen: Vec<_> = outcomes.borrow().iter().take(5).map(plain).collect();
        let good = (true, false, false, false);
        assert_eq!(seen, [good, good, expected, good, good], "{fate:?}");
        assert_eq!(pair.sim.counters().dropped_for(DropReason::BadIcrc), u64::from(fate == Fate::Corrupt));
    }
}

#[test]
fn ready_made_scripts_count() {
    let mut pair = pair(1, LinkConfig::PERFECT);
    let writes = |sighting: &sim::Sighting<'_>| sighting.headers.bth.opcode == Opcode::RcWriteOnly;
    for (script, lost) in [
        (once(writes, Fate::Drop), 1),
        (times(3, writes, Fate::Drop), 3),
        (nth(1, writes, Fate::Drop), 0),
        (always(|_| false, Fate::Drop), 0),
    ] {
        let before = pair.sim.counters().dropped_for(DropReason::RandomLoss);
        pair.sim.script(script);
        pair.write(10);
        pair.sim.run_until_idle();
        pair.expect_written(10);
        assert_eq!(pair.sim.counters().dropped_for(DropReason::RandomLoss) - before, lost);
    }
    pair.sim.end_script();
}

#[test]
fn a_partition_stops_everything_until_it_is_healed() {
    let mut pair = pair(1, LinkConfig::PERFECT);
    pair.sim.partition(pair.alice, pair.bob);
    pair.write(10);
    pair.sim.run_for(2_500_000);
    assert_eq!(pair.sim.completion_count(pair.a), 0);
    assert!(pair.sim.counters().dropped_for(DropReason::Partitioned) >= 2);
    assert_eq!(pair.sim.counters().delivered, 0);
    pair.sim.heal(pair.alice, pair.bob);
    pair.sim.run_until_idle();
    pair.expect_written(10);
    // One direction is enough to stop the acknowledgements.
    pair.sim.partition_direction(pair.bob, pair.alice);
    pair.write(10);
    let done = |sim: &mut Sim| sim.completion_count(pair.a) > 0;
    assert!(!pair.sim.run_until(2_000_000, done));
    pair.sim.heal(pair.alice, pair.bob);
    assert!(pair.sim.run_until(10_000_000, done));
}

#[test]
fn a_buffer_that_is_full_drops_and_says_so() {
    let host = HostConfig { receive_buffer: ReceiveBuffer::Packets(4), service: 2_000, ..HostConfig::default() };
    let mut pair = pair_of(1, LinkConfig::PERFECT, host);
    let events = Shared::new(trace::Counters::new());
    pair.sim.trace(events.clone());
    pair.write(100_000);
    pair.sim.run_until_idle();
    pair.expect_written(100_000);
    let dropped = pair.sim.counters().dropped_for(DropReason::Overflow);
    assert!(dropped > 0);
    assert_eq!(events.borrow().dropped(DropReason::Overflow), dropped);
}

#[test]
fn a_stopped_host_keeps_what_arrives_and_goes_on_later() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut pair = pair(1, LinkConfig::of(kind));
        pair.sim.pause(pair.bob);
        pair.write(5_000);
        pair.sim.run_for(500_000);
        assert_eq!(pair.sim.counters().delivered, 0);
        pair.sim.resume(pair.bob);
        assert!(pair.sim.counters().delivered >= 5);
        pair.sim.run_until_idle();
        pair.expect_written(5_000);
    }
}

#[test]
fn a_ring_holds_senders_back_instead_of_losing() {
    let mut pair = pair(1, LinkConfig { ring: 70_000, ..LinkConfig::WHOLE });
    pair.sim.pause(pair.bob);
    pair.write(1_000_000);
    let sent = pair.sim.counters().payload_sent;
    assert!((70_000..200_000).contains(&sent), "{sent}");
    pair.sim.resume(pair.bob);
    pair.sim.run_until_idle();
    pair.expect_written(1_000_000);
    assert_eq!(pair.sim.counters().dropped, Default::default());
}

#[test]
fn queue_pairs_take_turns_at_a_ring_of_one_train() {
    let mut pair = pair(1, LinkConfig { ring: 1, ..LinkConfig::WHOLE });
    let mut qps = vec![pair.a];
    for _ in 0..2 {
        let (a, b) = (pair.sim.create_qp(pair.alice, QpSpec::rc()), pair.sim.create_qp(pair.bob, QpSpec::rc()));
        pair.sim.connect(a, b, &ConnectOptions::default());
        qps.push(a);
    }
    for qp in &qps {
        for _ in 0..5 {
            pair.sim.post(*qp, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 10))).unwrap();
        }
    }
    pair.sim.run_until_idle();
    for qp in &qps {
        assert_eq!(pair.sim.completions(*qp).len(), 5);
    }
}

#[test]
fn the_clock_stops_at_the_last_thing_that_mattered() {
    let mut pair = pair(1, LinkConfig::PERFECT);
    pair.write(100);
    pair.sim.run_until_idle();
    // There and back; the acknowledgement timer of a millisecond was for nothing and moved nothing.
    assert_eq!(pair.sim.now().as_nanos(), 10_000);
    pair.sim.run_for(5_000);
    assert_eq!(pair.sim.now().as_nanos(), 15_000);
}

#[test]
#[should_panic(expected = "did not come to rest after 1000 events")]
fn a_run_without_end_is_reported() {
    let mut pair = pair(1, LinkConfig::PERFECT);
    pair.sim.set_event_cap(1000);
    // No receive is ever posted, and the sender may try forever.
    pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 10))).unwrap();
    pair.sim.run_until_idle();
}

#[test]
fn packets_from_nowhere_are_judged_before_a_queue_pair_sees_them() {
    let mut pair = pair(1, LinkConfig::PERFECT);
    let events = Shared::new(Vec::<Event>::new());
    pair.sim.trace(events.clone());
    let source = pair.sim.gid(pair.alice, 0);
    let own = pair.sim.gid(pair.bob, 0);
    let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(0x7777), Psn::new(0));
    pair.sim.inject(pair.bob, source, &headers, b"hello").unwrap();
    let mut bytes = pair.sim.frame(source, own, &headers, b"hello").unwrap();
    *bytes.last_mut().unwrap() ^= 0x80;
    pair.sim.inject_bytes(pair.bob, bytes.clone());
    bytes.truncate(50);
    pair.sim.inject_bytes(pair.bob, bytes);
    pair.sim.inject_bytes(pair.bob, Vec::new());
    let elsewhere = pair.sim.frame(source, Gid::from_ip([192, 0, 2, 1].into()), &headers, b"").unwrap();
    pair.sim.inject_bytes(pair.bob, elsewhere);
    pair.sim.run_until_idle();
    let reasons: Vec<_> = events
        .borrow()
        .iter()
        .map(|event| match event.kind {
            Kind::PacketDropped { reason, .. } => reason,
            other => panic!("{other:?}"),
        })
        .collect();
    use DropReason::*;
    assert_eq!(reasons, [UnknownQp, BadIcrc, Malformed, Malformed, WrongDestination]);
    assert_eq!(pair.sim.counters().delivered, 0);
}

#[test]
fn what_is_under_way_to_a_destroyed_queue_pair_finds_nobody() {
    let mut pair = pair(1, LinkConfig::PERFECT);
    pair.write(100);
    pair.sim.destroy_qp(pair.b);
    pair.sim.run_for(100_000);
    assert_eq!(pair.sim.counters().dropped_for(DropReason::UnknownQp), 1);
    // Its number may have another life.
    let again = pair.sim.create_qp(pair.bob, QpSpec { qpn: Some(pair.b.qpn), ..QpSpec::rc() });
    assert_eq!(again, pair.b);
}

#[test]
fn an_address_nobody_has_is_no_route() {
    let mut pair = pair(1, LinkConfig::PERFECT);
    let options = ConnectOptions::default();
    let qp = pair.sim.create_qp(pair.alice, QpSpec::ud());
    pair.sim.activate(qp, &options);
    let mut target = pair.sim.datagram_target(pair.b, &options);
    target.av.dgid = Gid::from_ip([192, 0, 2, 1].into());
    pair.sim.post(qp, &Work::send().sge(pair.near.sge(0, 10)).to(target)).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.counters().dropped_for(DropReason::NoRoute), 1);
}

#[test]
fn a_multicast_reaches_every_member_but_the_sender() {
    let mut pair = pair(1, LinkConfig::PERFECT);
    let options = ConnectOptions::default();
    let group = Gid::from_ip([239, 1, 2, 3].into());
    let members: Vec<QpId> = [pair.alice, pair.alice, pair.bob, pair.bob]
        .into_iter()
        .map(|host| {
            let qp = pair.sim.create_qp(host, QpSpec::ud());
            pair.sim.activate(qp, &options);
            pair.sim.join_group(qp, group);
            let region = if host == pair.alice { &pair.near } else { &pair.far };
            pair.sim.receive(qp, 1, &[region.sge(500_000, 100)]).unwrap();
            qp
        })
        .collect();
    let mut target = pair.sim.datagram_target(pair.b, &options);
    target.av.dgid = group;
    target.qpn = Qpn::MULTICAST;
    pair.sim.post(members[0], &Work::send().inline(b"to all").to(target)).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.completions(members[0]).len(), 1, "the send, and no receive");
    for member in &members[1..] {
        let completions = pair.sim.completions(*member);
        assert_eq!((completions.len(), completions[0].bytes, completions[0].status), (1, 46, Status::Success));
    }
}
