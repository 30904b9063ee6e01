//! What a reliable connection makes of packets that are lost, damaged, doubled or late: every packet of every kind of work, one by one and in pairs.
//! How often and how long it tries is told in `rc_retry_limits`.

use scenery::{Log, Pair, Seen, Setting};
use sim::{Fate, LinkKind, Outcome, QpSpec, Work, script};
use std::collections::VecDeque;
use trace::DropReason;
use transport::{Completion, CompletionKind, Count, Counts, Remote, SendFlags, Status};
use wire::{Mtu, NakCode, Opcode, Placement, Psn, Syndrome};

/// A program with every kind of work; what must be true after it whatever happened on the way.
struct Program {
    works: Vec<(Work, CompletionKind, u32)>,
}

const CELL: usize = 40_000;
const SWAP: usize = 40_008;
const STORE: usize = 40_016;

impl Program {
    fn new(pair: &Pair) -> Program {
        let (near, far) = (pair.near, pair.far);
        let works = vec![
            (Work::write(far.remote(0)).sge(near.sge(0, 1000)), CompletionKind::Write, 1000),
            (Work::fetch_add(far.remote(CELL as u64), 3).sge(near.sge(50_000, 8)), CompletionKind::FetchAdd, 8),
            (Work::send().sge(near.sge(2000, 1000)).immediate(77), CompletionKind::Send, 1000),
            (Work::read(far.remote(30_000)).sge(near.sge(30_000, 1000)), CompletionKind::Read, 1000),
            (Work::fetch_add(far.remote(CELL as u64), 4).sge(near.sge(50_008, 8)), CompletionKind::FetchAdd, 8),
            (
                Work::compare_swap(far.remote(SWAP as u64), 0, 9).sge(near.sge(50_016, 8)),
                CompletionKind::CompareSwap,
                8,
            ),
            (Work::write(far.remote(4000)).sge(near.sge(4000, 700)).immediate(78), CompletionKind::Write, 700),
            (Work::atomic_write(far.remote(STORE as u64)).sge(near.sge(0, 8)), CompletionKind::AtomicWrite, 8),
            (Work::flush(far.remote(0), 5000, Placement::GLOBAL), CompletionKind::Flush, 0),
            (Work::read(far.remote(31_000)).sge(near.sge(31_000, 600)), CompletionKind::Read, 600),
        ];
        Program { works }
    }

    fn prepare(&self, pair: &mut Pair) {
        pair.sim.count(pair.a);
        pair.sim.count(pair.b);
        sim::Rng::new(5).fill(&mut pair.sim.bytes_mut(&pair.far)[30_000..32_000]);
        pair.sim.bytes_mut(&pair.near)[30_000..32_000].fill(0);
        pair.sim.receive(pair.b, 100, &[pair.far.sge(2000, 1000)]).unwrap();
        pair.sim.receive(pair.b, 101, &[]).unwrap();
    }

    /// Posts everything at once, or each piece when the one before it is done.
    fn run(&self, pair: &mut Pair, at_once: bool) -> Vec<Completion> {
        self.prepare(pair);
        let mut completions = Vec::new();
        for (id, (work, ..)) in self.works.iter().enumerate() {
            pair.sim.post(pair.a, &work.clone().id(id as u64)).unwrap();
            if !at_once {
                pair.sim.run_until_idle();
                completions.extend(pair.sim.completions(pair.a));
            }
        }
        pair.sim.run_until_idle();
        completions.extend(pair.sim.completions(pair.a));
        completions
    }

    #[track_caller]
    fn check(&self, pair: &mut Pair, completions: &[Completion], context: &str) {
        let got: Vec<_> = completions.iter().map(|end| (end.wr_id, end.status, end.kind, end.bytes)).collect();
        let expected: Vec<_> =
            self.works.iter().zip(0..).map(|((_, kind, bytes), id)| (id, Status::Success, *kind, *bytes)).collect();
        assert_eq!(got, expected, "{context}");
        let received = pair.sim.completions(pair.b);
        let got: Vec<_> = received.iter().map(|end| (end.wr_id, end.status, end.bytes, end.immediate)).collect();
        assert_eq!(got, [(100, Status::Success, 1000, Some(77)), (101, Status::Success, 700, Some(78))], "{context}");
        // Each is counted once, however often its packets were sent.
        let done = |requests, bytes| Count { requests, bytes, failures: 0 };
        let counts = Counts { sends: done(1, 1000), writes: done(2, 1700), reads: done(2, 1600), ..Counts::default() };
        assert_eq!(pair.sim.take_counts(pair.a), Some(counts), "{context}");
        let counts = Counts {
            receives: done(2, 1700),
            remote_writes: done(2, 1700),
            remote_reads: done(2, 1600),
            ..Counts::default()
        };
        assert_eq!(pair.sim.take_counts(pair.b), Some(counts), "{context}");
        for (offset, length) in [(0, 1000), (2000, 1000), (4000, 700), (30_000, 1000), (31_000, 600)] {
            assert!(pair.far_bytes(offset, length) == pair.near_bytes(offset, length), "{context}: bytes at {offset}");
        }
        assert!(
            pair.far_bytes(1000, 1000).iter().chain(pair.far_bytes(4700, 3000)).all(|byte| *byte == 0),
            "{context}"
        );
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        let (cell, swap) = (word(pair.far_bytes(CELL, 8)), word(pair.far_bytes(SWAP, 8)));
        assert_eq!((cell, swap), (7, 9), "{context}: each atomic ran exactly once");
        let originals = [50_000, 50_008, 50_016].map(|offset| word(pair.near_bytes(offset, 8)));
        assert_eq!(originals, [0, 3, 0], "{context}: and told what it had found");
        assert_eq!(pair.far_bytes(STORE, 8), pair.near_bytes(0, 8), "{context}");
        assert_eq!((pair.sim.async_events(pair.a), pair.sim.async_events(pair.b)), (vec![], vec![]), "{context}");
    }
}

fn setting(kind: LinkKind, psn: u32) -> Setting {
    let mut setting = Setting::on(kind).mtu(Mtu::B256);
    setting.options.psn = Some((Psn::new(psn), Psn::new(900)));
    setting
}

/// How many packets the program needs when nothing happens to them.
fn undisturbed(kind: LinkKind, at_once: bool) -> u64 {
    let mut pair = Pair::rc(&setting(kind, 0));
    let log = Log::of(&mut pair.sim);
    let program = Program::new(&pair);
    let completions = program.run(&mut pair, at_once);
    program.check(&mut pair, &completions, "nothing happens");
    log.packets().len() as u64
}

/// Does `fate` to each packet in turn.
fn every_packet_meets(fate: Fate) {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for at_once in [true, false] {
            let count = undisturbed(kind, at_once);
            assert!(count > 15, "{count} packets");
            for nth in 0..count {
                let mut pair = Pair::rc(&setting(kind, 0xff_fff0));
                pair.sim.script(script::nth(nth, |_| true, fate));
                let program = Program::new(&pair);
                let completions = program.run(&mut pair, at_once);
                program.check(&mut pair, &completions, &format!("{kind:?}, {fate:?} of packet {nth}, {at_once}"));
                let counters = pair.sim.counters();
                let happened = match fate {
                    Fate::Drop => counters.dropped_for(DropReason::RandomLoss) > 0,
                    Fate::Corrupt => counters.dropped_for(DropReason::BadIcrc) > 0,
                    Fate::Duplicate => counters.duplicated > 0,
                    _ => true,
                };
                assert!(happened, "{kind:?}, {fate:?} of packet {nth}");
            }
        }
    }
}

#[test]
fn the_loss_of_any_single_packet_changes_nothing() {
    every_packet_meets(Fate::Drop);
}

#[test]
fn the_doubling_of_any_single_packet_changes_nothing() {
    every_packet_meets(Fate::Duplicate);
}

#[test]
fn damage_to_any_single_packet_acts_as_its_loss() {
    every_packet_meets(Fate::Corrupt);
}

#[test]
fn the_lateness_of_any_single_packet_changes_nothing() {
    // Overtaken by its neighbours, by their acknowledgements, and by the retry it causes.
    for delay in [1, 11_000, 100_000, 1_500_000] {
        every_packet_meets(Fate::Delay(delay));
    }
}

#[test]
fn the_loss_of_any_two_packets_changes_nothing() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let count = undisturbed(kind, true) + 8;
        for first in 0..count {
            for second in first + 1..count {
                let mut pair = Pair::rc(&setting(kind, 77));
                pair.sim.intercept(move |seen| match seen.nth == first || seen.nth == second {
                    true => Fate::Drop,
                    false => Fate::Pass,
                });
                let program = Program::new(&pair);
                let completions = program.run(&mut pair, true);
                program.check(&mut pair, &completions, &format!("{kind:?}, loss of {first} and {second}"));
            }
        }
    }
}

#[test]
fn a_packet_lost_and_another_late_change_nothing() {
    let count = undisturbed(LinkKind::Datagram, true) + 8;
    for lost in 0..count {
        for late in 0..count {
            let mut pair = Pair::rc(&setting(LinkKind::Datagram, 77));
            pair.sim.intercept(move |seen| match seen.nth {
                nth if nth == lost => Fate::Drop,
                nth if nth == late => Fate::Delay(1_100_000),
                _ => Fate::Pass,
            });
            let program = Program::new(&pair);
            let completions = program.run(&mut pair, true);
            program.check(&mut pair, &completions, &format!("loss of {lost} and delay of {late}"));
        }
    }
}

#[test]
fn sequence_numbers_may_wrap_anywhere_in_any_message() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for at_once in [true, false] {
            let count = undisturbed(kind, at_once) as u32;
            for before in 0..count + 8 {
                for fault in [None, Some(5), Some(14)] {
                    let mut pair = Pair::rc(&setting(kind, 0x100_0000 - before));
                    if let Some(nth) = fault {
                        pair.sim.script(script::nth(nth, |_| true, Fate::Drop));
                    }
                    let program = Program::new(&pair);
                    let completions = program.run(&mut pair, at_once);
                    program.check(&mut pair, &completions, &format!("{kind:?}, wrap after {before}, {fault:?}"));
                }
            }
        }
    }
}

#[test]
fn a_network_that_does_everything_wrong_at_once_changes_nothing() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for seed in 0..60 {
            let mut setting = setting(kind, 0xff_fff8).seed(seed);
            setting.link.loss = 0.08;
            setting.link.duplication = 0.08;
            setting.link.reordering = 0.08;
            setting.link.corruption = 0.04;
            setting.link.jitter = 3_000;
            let mut pair = Pair::rc(&setting);
            let program = Program::new(&pair);
            let completions = program.run(&mut pair, seed % 2 == 0);
            program.check(&mut pair, &completions, &format!("{kind:?}, seed {seed}"));
        }
    }
}

#[test]
fn both_directions_may_lose_at_once() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for seed in 0..40 {
            let mut setting = setting(kind, 0xff_fff8).seed(seed);
            setting.link.loss = 0.1;
            let mut pair = Pair::rc(&setting);
            let program = Program::new(&pair);
            program.prepare(&mut pair);
            sim::Rng::new(seed + 1).fill(&mut pair.sim.bytes_mut(&pair.far)[60_000..62_000]);
            for (id, (work, ..)) in program.works.iter().enumerate() {
                pair.sim.post(pair.a, &work.clone().id(id as u64)).unwrap();
                let back = match id % 3 {
                    0 => Work::write(pair.near.remote(60_000)).sge(pair.far.sge(60_000, 2000)),
                    1 => Work::read(pair.near.remote(0)).sge(pair.far.sge(63_000, 2000)),
                    _ => Work::fetch_add(pair.near.remote(65_000), 1).sge(pair.far.sge(65_000, 8)),
                };
                pair.sim.post(pair.b, &back.id(1000 + id as u64)).unwrap();
            }
            pair.sim.bytes_mut(&pair.near)[65_000..65_008].fill(0);
            pair.sim.run_until_idle();
            let (back, received): (Vec<_>, Vec<_>) =
                pair.sim.completions(pair.b).into_iter().partition(|end| end.queue == transport::Queue::Send);
            let got: Vec<_> = back.iter().map(|end| (end.wr_id, end.status)).collect();
            let expected: Vec<_> = (1000..1010).map(|id| (id, Status::Success)).collect();
            assert_eq!(got, expected, "{kind:?}, seed {seed}");
            assert_eq!(received.iter().map(|end| end.wr_id).collect::<Vec<_>>(), [100, 101]);
            assert!(pair.near_bytes(60_000, 2000) == pair.far_bytes(60_000, 2000));
            assert!(pair.near_bytes(0, 2000) == pair.far_bytes(63_000, 2000));
            assert_eq!(u64::from_ne_bytes(pair.near_bytes(65_000, 8).try_into().unwrap()), 3);
            let completions = pair.sim.completions(pair.a);
            assert!(completions.iter().all(|end| end.status == Status::Success), "{kind:?}, seed {seed}");
        }
    }
}

/// Packets of one side, as offsets from a sequence number.
fn sent(packets: &[Seen], from: sim::HostId, first: Psn) -> Vec<(Opcode, u32)> {
    packets
        .iter()
        .filter(|seen| seen.from == from)
        .map(|seen| (seen.opcode(), seen.psn().distance_from(first)))
        .collect()
}

fn refusals(packets: &[Seen]) -> Vec<(Syndrome, Psn)> {
    let refusal = |seen: &Seen| Some((seen.syndrome()?, seen.psn())).filter(|(syndrome, _)| *syndrome != Syndrome::ACK);
    packets.iter().filter_map(refusal).collect()
}

#[test]
fn a_lost_packet_is_refused_once_and_sending_resumes_with_it() {
    for lost in 0..5u32 {
        let first = Psn::new(0xff_fffd);
        let mut pair = Pair::rc(&setting(LinkKind::Datagram, first.value()));
        let log = Log::of(&mut pair.sim);
        let alice = pair.alice;
        pair.sim.script(script::nth(u64::from(lost), move |seen| seen.from == alice, Fate::Drop));
        pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 6 * 256)));
        let packets = log.packets();
        assert_eq!(refusals(&packets), [(Syndrome::Nak(NakCode::SequenceError), first.add(lost))], "lost {lost}");
        let opcode = |index| match index {
            0 => Opcode::RcWriteFirst,
            5 => Opcode::RcWriteLast,
            _ => Opcode::RcWriteMiddle,
        };
        let expected: Vec<_> = (0..6).chain([lost; 2]).map(|index| (opcode(index), index)).collect();
        assert_eq!(sent(&packets, alice, first), expected, "lost {lost}");
        assert!(packets.iter().filter(|seen| seen.from == alice).skip(6).all(|seen| seen.again), "marked as repeated");
        assert!(pair.sim.now().as_nanos() < 100_000, "without waiting for the timer");
        assert_eq!(pair.far_bytes(0, 6 * 256), pair.near_bytes(0, 6 * 256));
    }
}

/// Soft-RoCE heeds a second refusal only if an acknowledgement came since the first.
#[test]
fn a_refusal_in_the_middle_of_a_message_is_preceded_by_what_has_arrived() {
    let first = Psn::new(0xff_fffd);
    let mut drops_early = QpSpec::rc();
    drops_early.limits.keeps_early = false;
    let mut pair = Pair::new(&setting(LinkKind::Datagram, first.value()), QpSpec::rc(), drops_early, 64 * 1024);
    let log = Log::of(&mut pair.sim);
    let (alice, bob) = (pair.alice, pair.bob);
    // The second packet, and the fourth when it comes again.
    let mut fourth = 0;
    pair.sim.intercept(move |seen| {
        let index = seen.headers.bth.psn.distance_from(first);
        fourth += u32::from(seen.from == alice && index == 3);
        let lost = seen.nth == 1 || seen.from == alice && index == 3 && fourth == 2;
        if lost { Fate::Drop } else { Fate::Pass }
    });
    pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8 * 256)));
    let packets = log.packets();
    let nak = Syndrome::Nak(NakCode::SequenceError);
    assert_eq!(refusals(&packets), [(nak, first.add(1)), (nak, first.add(3))]);
    let answers: Vec<_> = packets.iter().filter(|seen| seen.from == bob).collect();
    for (at, refusal) in answers.iter().enumerate().filter(|(_, seen)| seen.syndrome() == Some(nak)) {
        let before = answers[at - 1];
        assert_eq!((before.syndrome(), before.psn()), (Some(Syndrome::ACK), refusal.psn().sub(1)));
    }
    assert_eq!(pair.far_bytes(0, 8 * 256), pair.near_bytes(0, 8 * 256));
}

/// Kernel Soft-RoCE can stop for ever when it hears of a message that it is about to repeat. So a peer that goes back hears nothing
/// but what it would hear if nothing were kept.
#[test]
fn a_peer_that_goes_back_does_not_hear_of_what_was_kept() {
    let first = Psn::new(0xff_fff0);
    let mut goes_back = QpSpec::rc();
    goes_back.limits.keeps_early = false;
    for seed in 0..100 {
        let mut pair = Pair::new(&setting(LinkKind::Datagram, first.value()), goes_back, QpSpec::rc(), 64 * 1024);
        let (alice, bob) = (pair.alice, pair.bob);
        let mut dice = sim::Rng::new(seed);
        pair.sim.intercept(move |seen| if seen.from == alice && dice.chance(0.08) { Fate::Drop } else { Fate::Pass });
        // What a responder expects that keeps nothing, and what is still on its way to it.
        let (mut expected, mut under_way) = (first, VecDeque::new());
        pair.sim.watch(move |passing| {
            let (seen, bth) = (&passing.sighting, &passing.sighting.headers.bth);
            if let (true, Outcome::Arrives { at, .. }) = (seen.from == alice, passing.outcome) {
                under_way.push_back((at, bth.psn));
            }
            while under_way.front().is_some_and(|(at, _)| *at <= seen.at) {
                let (_, psn) = under_way.pop_front().unwrap();
                expected = if psn == expected { expected.add(1) } else { expected };
            }
            let refused = seen.headers.aeth.is_some_and(|aeth| aeth.syndrome != Syndrome::ACK);
            let told = if refused { bth.psn } else { bth.psn.add(1) };
            assert!(seen.from != bob || !told.is_after(expected), "seed {seed}: {told:?} with {expected:?} expected");
        });
        sim::Rng::new(seed).fill(&mut pair.sim.bytes_mut(&pair.near)[..8 * 4096]);
        for at in (0..8).map(|message| message * 4096) {
            pair.sim.post(pair.a, &Work::write(pair.far.remote(at)).sge(pair.near.sge(at, 4096))).unwrap();
        }
        pair.sim.run_until_idle();
        let statuses: Vec<_> = pair.sim.completions(pair.a).iter().map(|completion| completion.status).collect();
        assert_eq!(statuses, [Status::Success; 8], "seed {seed}");
        assert_eq!(pair.far_bytes(0, 8 * 4096), pair.near_bytes(0, 8 * 4096));
    }
}

#[test]
fn a_lost_last_packet_waits_for_the_timer() {
    let first = Psn::new(50);
    let mut pair = Pair::rc(&setting(LinkKind::Datagram, 50));
    let log = Log::of(&mut pair.sim);
    let alice = pair.alice;
    pair.sim.script(script::once(move |seen| seen.headers.bth.opcode == Opcode::RcWriteLast, Fate::Drop));
    pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 3 * 256)));
    let packets = log.packets();
    assert_eq!(refusals(&packets), []);
    let requests: Vec<_> = packets.iter().filter(|seen| seen.from == alice).collect();
    // Nothing acknowledged the first two: all three go out again.
    assert_eq!(requests.iter().map(|seen| seen.psn().distance_from(first)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    assert_eq!(requests[3].at.since(requests[0].at), 4096 << 8);
    let acks = packets.iter().filter(|seen| seen.from == pair.bob);
    let acks: Vec<_> = acks.map(|seen| seen.psn().distance_from(first)).collect();
    assert_eq!(acks, [1, 1, 2], "each repeated packet is acknowledged as far as we are");
}

#[test]
fn a_lost_acknowledgement_costs_one_repetition_and_no_second_execution() {
    let mut pair = Pair::rc(&setting(LinkKind::Datagram, 50));
    pair.sim.receive(pair.b, 1, &[pair.far.sge(0, 100)]).unwrap();
    pair.sim.receive(pair.b, 2, &[pair.far.sge(0, 100)]).unwrap();
    let log = Log::of(&mut pair.sim);
    let bob = pair.bob;
    pair.sim.script(script::once(move |seen| seen.from == bob, Fate::Drop));
    pair.succeed(&Work::send().sge(pair.near.sge(0, 100)));
    assert_eq!(pair.received().wr_id, 1);
    let opcodes: Vec<_> = log.packets().iter().map(|seen| (seen.opcode(), seen.psn().value())).collect();
    let (send, ack) = ((Opcode::RcSendOnly, 50), (Opcode::RcAcknowledge, 50));
    assert_eq!(opcodes, [send, ack, send, ack]);
}

/// Soft-RoCE asks with the last packet of a message. While it repeats one it survives a late acknowledgement of it, and no second.
#[test]
fn a_repetition_of_what_arrived_is_acknowledged_where_it_asks() {
    let mut pair = Pair::rc(&setting(LinkKind::Datagram, 50));
    pair.sim.receive(pair.b, 1, &[pair.far.sge(0, 6 * 256)]).unwrap();
    let log = Log::of(&mut pair.sim);
    let (alice, bob) = (pair.alice, pair.bob);
    pair.succeed(&Work::send().sge(pair.near.sge(0, 6 * 256)));
    assert_eq!(pair.received().wr_id, 1);
    let message: Vec<_> = log.packets().into_iter().filter(|seen| seen.from == alice).collect();
    log.clear();
    let source = pair.sim.gid(alice, 0);
    for seen in &message {
        pair.sim.inject(bob, source, &seen.headers, &[0; 256]).unwrap();
        pair.sim.run_until_idle();
        let asks = seen.opcode() == Opcode::RcSendLast;
        let acks: Vec<_> = log.packets().iter().map(|seen| (seen.from, seen.psn().value())).collect();
        assert_eq!(acks, if asks { vec![(bob, 55)] } else { vec![] }, "{:?}", seen.psn());
    }
    assert_eq!(message.len(), 6);
    assert_eq!(pair.sim.completions(pair.b), []);
}

#[test]
fn one_acknowledgement_stands_for_all_before_it() {
    let mut pair = Pair::rc(&setting(LinkKind::Datagram, 50));
    let log = Log::of(&mut pair.sim);
    let bob = pair.bob;
    pair.sim.script(script::times(9, move |seen| seen.from == bob, Fate::Drop));
    for id in 0..10 {
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8)).id(id)).unwrap();
    }
    pair.sim.run_until_idle();
    let ids: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| end.wr_id).collect();
    assert_eq!(ids, (0..10).collect::<Vec<_>>());
    assert!(log.packets().iter().all(|seen| !seen.again), "nothing had to be repeated");
}

/// The READ requests of a run: offset of the sequence number, and of address and length.
fn read_requests(packets: &[Seen], first: Psn, remote: Remote) -> Vec<(u32, u64, u32)> {
    let requests = packets.iter().filter(|seen| seen.opcode() == Opcode::RcReadRequest);
    requests
        .map(|seen| {
            let reth = seen.headers.reth.expect("a READ request has a RETH");
            assert_eq!(reth.rkey, remote.key);
            (seen.psn().distance_from(first), reth.va - remote.address, reth.len)
        })
        .collect()
}

#[test]
fn a_lost_read_response_is_asked_for_again() {
    for lost in 0..7u32 {
        let first = Psn::new(0xff_fffe);
        let mut pair = Pair::rc(&setting(LinkKind::Datagram, first.value()));
        sim::Rng::new(5).fill(pair.sim.bytes_mut(&pair.far));
        let log = Log::of(&mut pair.sim);
        let bob = pair.bob;
        pair.sim.script(script::nth(u64::from(lost), move |seen| seen.from == bob, Fate::Drop));
        let there = pair.far.remote(333);
        pair.succeed(&Work::read(there).sge(pair.near.sge(0, 6 * 256 + 100)));
        let packets = log.packets();
        let whole = 6 * 256 + 100;
        let moved = lost * 256;
        // Only that packet, and twice: either may be lost. The last leaves nothing behind it that tells of the loss.
        let times = if lost == 6 { 1 } else { 2 };
        let again = (lost, u64::from(moved), (whole - moved).min(256));
        let expected: Vec<_> = [(0, 0, whole)].into_iter().chain(vec![again; times]).collect();
        assert_eq!(read_requests(&packets, first, there), expected, "lost {lost}");
        let numbers: Vec<_> = sent(&packets, bob, first).iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..7).chain(vec![lost; times]).collect::<Vec<_>>(), "lost {lost}");
        let waited = pair.sim.now().as_nanos() >= 100_000;
        assert_eq!(waited, lost == 6, "lost {lost}");
        assert_eq!(pair.near_bytes(0, whole as usize), pair.far_bytes(333, whole as usize));
    }
}

#[test]
fn a_lost_read_request_is_asked_again_whole() {
    let first = Psn::new(9);
    let mut pair = Pair::rc(&setting(LinkKind::Datagram, 9));
    let log = Log::of(&mut pair.sim);
    let read = |seen: &sim::Sighting<'_>| seen.headers.bth.opcode == Opcode::RcReadRequest;
    pair.sim.script(script::once(read, Fate::Drop));
    let there = pair.far.remote(0);
    pair.sim.post(pair.a, &Work::read(there).sge(pair.near.sge(0, 1000))).unwrap();
    pair.sim.post(pair.a, &Work::write(pair.far.remote(8192)).sge(pair.near.sge(8192, 8))).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.completions(pair.a).len(), 2);
    let packets = log.packets();
    assert_eq!(read_requests(&packets, first, there), [(0, 0, 1000); 3]);
    // The WRITE behind it is refused, because the READ's answers own four numbers.
    assert_eq!(refusals(&packets), [(Syndrome::Nak(NakCode::SequenceError), first)]);
    assert_eq!(pair.sim.now().as_nanos(), 20_000, "two round trips, no timer");
}

#[test]
fn a_long_read_over_a_small_window_survives_the_loss_of_any_response() {
    // Cut into several requests, each kept by the responder on its own: what is asked again must fit what was kept.
    let packets = 100u64;
    for lost in 0..packets {
        let mut setting = Setting::default().mtu(Mtu::B4096);
        setting.options.timeout = 20; // four seconds: a queue pair that needs the timer is found out
        let size = packets as usize * 4096;
        let mut pair = Pair::new(&setting, sim::QpSpec::rc(), sim::QpSpec::rc(), size);
        sim::Rng::new(5).fill(pair.sim.bytes_mut(&pair.far));
        let bob = pair.bob;
        pair.sim.script(script::nth(lost, move |seen| seen.from == bob, Fate::Drop));
        pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.whole()));
        assert!(pair.sim.bytes(&pair.near) == pair.sim.bytes(&pair.far), "lost {lost}");
        let waited = pair.sim.now().as_nanos() > 1_000_000_000;
        assert!(!waited || lost == packets - 1, "lost {lost}: {}", pair.sim.now());
    }
}

/// A responder that keeps its answers as kernel Soft-RoCE does: one entry for each request, and in it where it was last asked to begin. It is silent
/// when it is asked for something before that, or for more than the entry has left.
#[test]
fn reads_are_asked_again_so_that_soft_roce_answers() {
    struct Kept {
        begin: Psn,
        end: Psn,
    }
    let mut repeated = 0;
    for seed in 0..30 {
        let mut setting = Setting::default().mtu(Mtu::B1024).seed(seed);
        setting.link.loss = 0.02;
        let mut pair = Pair::new(&setting, sim::QpSpec::rc(), sim::QpSpec::rc(), 300_000);
        let log = Log::of(&mut pair.sim);
        pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.whole()));
        let packets = log.packets();
        let asked = packets.iter().filter(|seen| seen.opcode() == Opcode::RcReadRequest);
        let mut expected = asked.clone().next().unwrap().headers.bth.psn;
        let mut kept: Vec<Kept> = Vec::new();
        for seen in asked.filter(|seen| !seen.lost) {
            let begin = seen.headers.bth.psn;
            let end = begin.add(seen.headers.reth.unwrap().len.div_ceil(1024));
            if begin == expected {
                kept.push(Kept { begin, end });
                expected = end;
            } else if begin.is_before(expected) {
                let entry = kept.iter_mut().rev().find(|entry| !begin.is_before(entry.begin));
                let entry = entry.unwrap_or_else(|| panic!("seed {seed}: {begin:?} lies before what is kept"));
                assert!(begin.is_before(entry.end), "seed {seed}: {begin:?} lies before where it began last");
                assert!(!end.is_after(entry.end), "seed {seed}: {begin:?} to {end:?} reaches beyond a request");
                entry.begin = begin;
                repeated += 1;
            }
        }
    }
    assert!(repeated > 30, "{repeated} requests were repeated");
}

#[test]
fn an_atomic_whose_answer_is_lost_again_and_again_runs_once() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut pair = Pair::rc(&setting(kind, 50));
        let bob = pair.bob;
        pair.sim.script(script::times(7, move |seen| seen.from == bob, Fate::Drop));
        let work = Work::fetch_add(pair.far.remote(0), 5).sge(pair.near.sge(0, 8));
        assert_eq!(work.request().flags, SendFlags::SIGNALED);
        pair.succeed(&work);
        assert_eq!(u64::from_ne_bytes(pair.far_bytes(0, 8).try_into().unwrap()), 5);
        assert_eq!(u64::from_ne_bytes(pair.near_bytes(0, 8).try_into().unwrap()), 0, "the original, kept seven times");
    }
}

#[test]
fn as_many_atomics_as_agreed_are_kept_for_repetition() {
    for kept in [1u8, 2, 16] {
        let mut setting = setting(LinkKind::Datagram, 0xff_fffc);
        setting.options.max_rd_atomic = kept;
        setting.options.max_dest_rd_atomic = kept;
        let mut pair = Pair::rc(&setting);
        let bob = pair.bob;
        // The answers to the first round of all of them are lost.
        pair.sim.script(script::times(u32::from(kept), move |seen| seen.from == bob, Fate::Drop));
        for id in 0..40u64 {
            let work = Work::fetch_add(pair.far.remote(0), 1).sge(pair.near.sge(id * 8, 8)).id(id);
            pair.sim.post(pair.a, &work).unwrap();
        }
        pair.sim.run_until_idle();
        assert!(pair.sim.completions(pair.a).iter().all(|end| end.status == Status::Success));
        assert_eq!(u64::from_ne_bytes(pair.far_bytes(0, 8).try_into().unwrap()), 40);
        for id in 0..40 {
            let original = u64::from_ne_bytes(pair.near_bytes(id * 8, 8).try_into().unwrap());
            assert_eq!(original, id as u64, "{kept} kept");
        }
    }
}
