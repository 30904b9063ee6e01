//! Frames that are damaged, and trains that lie about what they are.

use super::victim::*;
use scenery::Setting;
use sim::{LinkKind, Rng, Work};
use trace::DropReason;
use transport::{State, Status};
use wire::{NakCode, Opcode, Operation, Psn, Reth, Syndrome};

#[test]
fn frames_cut_short_anywhere_are_malformed() {
    let mut victim = Victim::new();
    let (here, there) = (victim.pair.sim.gid(victim.pair.alice, 0), victim.pair.sim.gid(victim.pair.bob, 0));
    let mut cut = 0;
    for &opcode in Opcode::ALL {
        let headers = victim.forge(opcode, victim.expected());
        let payload: &[u8] = if opcode.has_payload() { &[1; 9] } else { &[] };
        let frame = victim.pair.sim.frame(here, there, &headers, payload).unwrap();
        for length in 0..frame.len() {
            victim.pair.sim.inject_bytes(victim.pair.bob, frame[..length].to_vec());
            cut += 1;
        }
    }
    victim.pair.sim.run_until_idle();
    assert_eq!(victim.pair.sim.counters().dropped_for(DropReason::Malformed), cut);
    assert_eq!(victim.pair.sim.counters().delivered, 0);
    assert!(victim.log.packets().is_empty());
    victim.assert_untouched();
    victim.assert_works();
}

#[test]
fn a_flipped_bit_is_found_or_changes_nothing() {
    // Every bit of a WRITE's frame, and then thousands of frames with several bits flipped.
    let mut victim = Victim::new();
    let (here, there) = (victim.pair.sim.gid(victim.pair.alice, 0), victim.pair.sim.gid(victim.pair.bob, 0));
    let headers = victim.forge(Opcode::RcWriteOnly, victim.expected());
    let frame = victim.pair.sim.frame(here, there, &headers, b"eight by").unwrap();
    let mut rng = Rng::new(5);
    let mut taken = 0;
    for round in 0..frame.len() * 8 + 5000 {
        let mut bytes = frame.clone();
        let flips = if round < frame.len() * 8 { 1 } else { 1 + rng.below(6) };
        for nth in 0..flips {
            let single = round < frame.len() * 8 && nth == 0;
            let bit = if single { round } else { rng.below(frame.len() as u64 * 8) as usize };
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let before = victim.pair.sim.counters().clone();
        victim.pair.sim.inject_bytes(victim.pair.bob, bytes);
        victim.pair.sim.run_until_idle();
        let after = victim.pair.sim.counters();
        let dropped = after.dropped.values().sum::<u64>() - before.dropped.values().sum::<u64>();
        let delivered = after.delivered - before.delivered;
        // Delivered packets are acknowledged, which is one delivery more; a bit makes the packet a marked one, and the
        // notification is another.
        assert!(dropped == 1 && delivered == 0 || dropped == 0 && delivered <= 3, "round {round}");
        taken += delivered.min(1);
    }
    // What the ICRC leaves out (Ethernet, hop limit, traffic class, UDP checksum) may change under way.
    assert!(taken > 50 && taken < 500, "{taken}");
    assert_eq!(victim.pair.far_bytes(0, 8), b"eight by", "and what was written is what was sent");
    assert!(victim.pair.far_bytes(8, OPEN).iter().all(|byte| *byte == 0xee));
    victim.assert_recovers();
}

#[test]
fn noise_is_not_a_frame() {
    let mut victim = Victim::new();
    let mut rng = Rng::new(77);
    for _ in 0..2000 {
        let mut bytes = vec![0; rng.below(200) as usize];
        rng.fill(&mut bytes);
        victim.pair.sim.inject_bytes(victim.pair.bob, bytes);
    }
    victim.pair.sim.run_until_idle();
    assert_eq!(victim.pair.sim.counters().dropped_for(DropReason::Malformed), 2000);
    victim.assert_works();
}

#[test]
fn a_train_that_lies_about_its_count_is_dropped_or_refused() {
    for (opcode, length) in single_requests() {
        let many = matches!(opcode.operation(), Operation::Send | Operation::Write);
        for count in [0, 2, 1000, Psn::COUNT / 2 - 1, Psn::COUNT / 2, Psn::COUNT, u32::MAX] {
            let mut victim = Victim::under(&Setting::on(LinkKind::Whole));
            victim.pair.sim.receive(victim.pair.b, 1, &[victim.pair.far.sge(0, 100)]).unwrap();
            let expected = victim.expected();
            let headers = victim.forge(opcode, expected);
            let (drops, sent) = victim.hit_with_train(&headers, count, &vec![0; length]);
            let what = format!("{opcode}, {count} packets");
            if many && (1..Psn::COUNT / 2).contains(&count) {
                // Several packets cannot carry so little.
                assert_eq!(drops, [], "{what}");
                assert_eq!(sent[0].syndrome(), Some(Syndrome::Nak(NakCode::InvalidRequest)), "{what}");
                assert_eq!(victim.state(), State::Error);
                let ends: Vec<_> = victim.pair.sim.completions(victim.pair.b).iter().map(|c| c.status).collect();
                assert_eq!(ends, [Status::WorkRequestFlushed], "{what}");
            } else {
                assert_eq!((drops, sent), (vec![DropReason::BadLength], vec![]), "{what}");
                assert_eq!((victim.state(), victim.expected()), (State::ReadyToSend, expected), "{what}");
                victim.pair.succeed(&Work::send());
                assert_eq!(victim.pair.received().wr_id, 1);
                victim.assert_works();
                continue;
            }
            victim.assert_untouched();
            victim.assert_recovers();
        }
    }
}

#[test]
fn a_train_that_overlaps_what_was_received_gives_only_what_is_new() {
    let setting = Setting::on(LinkKind::Whole);
    // Two packets were received; a train of four begins one, two or three packets before their end.
    for back in [1, 2, 3u32] {
        let mut victim = Victim::under(&setting);
        let first = victim.expected();
        let mut head = victim.forge(Opcode::RcWriteFirst, first);
        head.reth = head.reth.map(|reth| Reth { len: 4096, ..reth });
        victim.hit_with_train(&head, 2, &[1; 2048]);
        assert_eq!(victim.expected(), first.add(2));
        let tail = victim.forge(Opcode::RcWriteMiddle, first.add(2).sub(back));
        // Longer than the message: refused, whatever the overlap, unless it ends where the message must.
        let count = back + 1;
        let (_, sent) = victim.hit_with_train(&tail, count, &vec![2; 1024 * count as usize]);
        assert_eq!(victim.expected(), first.add(3), "{back}: {sent:?}");
        let mut expected = vec![1; 2048];
        expected.extend([2; 1024]);
        expected.extend([0xee; 1024]);
        assert_eq!(victim.pair.far_bytes(0, 4096), expected, "what was there is not written again");
        // One whose payload is too short for the overlap it claims says nothing.
        let short = victim.forge(Opcode::RcWriteMiddle, first.add(2));
        let (drops, _) = victim.hit_with_train(&short, 2, &[3; 1000]);
        assert_eq!(drops, [DropReason::BadLength]);
        assert_eq!(victim.expected(), first.add(3));
    }
}
