//! Unreliable connections: what arrives is right and in order, what is lost is lost as a whole message, and nobody hears of it.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Log, Pair, Seen, Setting};
use sim::script::{nth, once};
use sim::{Fate, LinkConfig, LinkKind, QpSpec, Rng, Work};
use trace::DropReason;
use transport::{
    Access, AsyncEvent, Completion, CompletionKind, Failure, Modify, ProtectionDomain, Queue, Remote, State, Status,
};
use wire::{Headers, Key, Mtu, Opcode, Operation, Placement, Psn, Reth};

fn uc(setting: &Setting) -> Pair {
    Pair::new(setting, QpSpec::uc(), QpSpec::uc(), 300_000)
}

/// `wr_id` and length of completions that must all be successes of one kind.
#[track_caller]
fn successes(completions: &[Completion], kind: CompletionKind) -> Vec<(u64, u32)> {
    assert!(completions.iter().all(|c| c.status == Status::Success && c.kind == kind), "{completions:?}");
    completions.iter().map(|completion| (completion.wr_id, completion.bytes)).collect()
}

/// A message of either kind must still pass from Alice to Bob.
#[track_caller]
fn still_works(pair: &mut Pair) {
    pair.sim.completions(pair.a);
    pair.sim.completions(pair.b);
    pair.sim.bytes_mut(&pair.far).fill(0);
    pair.sim.receive(pair.b, 900, &[pair.far.sge(0, 5000)]).unwrap();
    pair.succeed(&Work::send().sge(pair.near.sge(77, 5000)).immediate(1));
    let got = pair.received();
    assert_eq!((got.status, got.bytes, got.immediate), (Status::Success, 5000, Some(1)), "{got:?}");
    assert_eq!(pair.far_bytes(0, 5000), pair.near_bytes(77, 5000));
    pair.succeed(&Work::write(pair.far.remote(10_000)).sge(pair.near.sge(3, 5000)));
    assert_eq!(pair.far_bytes(10_000, 5000), pair.near_bytes(3, 5000));
}

#[test]
fn sends_and_writes_move_their_bytes_and_nothing_comes_back() {
    for setting in Setting::all() {
        let mut pair = uc(&setting);
        let log = Log::of(&mut pair.sim);
        let mtu = setting.options.mtu.bytes();
        for length in [0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu - 3, 100_001] {
            for immediate in [None, Some(0xcafe_0001)] {
                let with = |work: Work| match immediate {
                    Some(value) => work.immediate(value),
                    None => work,
                };
                pair.sim.bytes_mut(&pair.far).fill(0xee);
                pair.sim.receive(pair.b, 5, &[pair.far.sge(9, 200_000)]).unwrap();
                let sent = pair.succeed(&with(Work::send()).sge(pair.near.sge(3, length)).id(1).solicited());
                assert_eq!((sent.wr_id, sent.kind, sent.queue), (1, CompletionKind::Send, Queue::Send));
                let got = pair.received();
                assert_eq!((got.wr_id, got.status, got.kind), (5, Status::Success, CompletionKind::Receive));
                assert_eq!((got.bytes, got.immediate, got.queue), (length, immediate, Queue::Receive));
                assert!(got.solicited && !got.grh);
                let size = length as usize;
                assert_eq!(pair.far_bytes(9, size), pair.near_bytes(3, size));
                assert!(pair.far_bytes(9 + size, 100).iter().all(|byte| *byte == 0xee));

                pair.sim.bytes_mut(&pair.far).fill(0xee);
                let work = with(Work::write(pair.far.remote(21))).sge(pair.near.sge(5, length));
                if immediate.is_some() {
                    pair.sim.receive(pair.b, 6, &[]).unwrap();
                }
                assert_eq!(pair.succeed(&work).kind, CompletionKind::Write);
                assert_eq!(pair.far_bytes(21, size), pair.near_bytes(5, size));
                assert!(pair.far_bytes(0, 21).iter().all(|byte| *byte == 0xee));
                assert!(pair.far_bytes(21 + size, 100).iter().all(|byte| *byte == 0xee));
                if immediate.is_some() {
                    let got = pair.received();
                    assert_eq!((got.wr_id, got.bytes, got.immediate), (6, length, immediate));
                    assert_eq!(got.kind, CompletionKind::ReceiveWriteImmediate);
                }
                assert_eq!(pair.sim.completions(pair.b), []);
            }
        }
        let packets = log.packets();
        assert!(packets.iter().all(|seen| seen.from == pair.alice), "no acknowledgements");
        assert!(packets.iter().all(|seen| !seen.headers.bth.ack_req), "and none asked for");
        assert_eq!(log.drops(pair.bob), []);
    }
}

#[test]
fn a_message_is_cut_into_first_middle_and_last() {
    let mut pair = uc(&Setting::default());
    let first = pair.sim.attributes(pair.a).sq_psn;
    let log = Log::of(&mut pair.sim);
    pair.sim.receive(pair.b, 1, &[]).unwrap();
    pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 2500)).immediate(7));
    let line = |seen: &Seen| (seen.opcode(), seen.psn(), seen.bytes, seen.headers.reth.is_some());
    let expected = [
        (Opcode::UcWriteFirst, first, 1024, true),
        (Opcode::UcWriteMiddle, first.add(1), 1024, false),
        (Opcode::UcWriteLastImmediate, first.add(2), 452, false),
    ];
    assert_eq!(log.packets().iter().map(line).collect::<Vec<_>>(), expected);
    assert_eq!(pair.sim.attributes(pair.a).sq_psn, first.add(3));
    assert_eq!(pair.sim.attributes(pair.b).rq_psn, first.add(3));
}

#[test]
fn work_is_done_the_moment_it_is_sent_whoever_may_hear_it() {
    for setting in Setting::each_link() {
        let mut pair = uc(&setting);
        pair.sim.partition(pair.alice, pair.bob);
        let before = pair.sim.now();
        pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 10_000)).id(1)).unwrap();
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 10_000)).id(2)).unwrap();
        pair.sim.post(pair.a, &Work::send().unsignaled().id(3)).unwrap();
        let done: Vec<_> = pair.sim.completions(pair.a).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, [(1, Status::Success), (2, Status::Success)], "without a moment passing");
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.now(), before, "and no timer runs");
        assert_eq!(pair.sim.completions(pair.a), []);
        assert_eq!(pair.sim.state(pair.a), State::ReadyToSend);
    }
}

/// How many packets (or, on a link that carries trains whole, trains) a message of this length is.
fn parcels(setting: &Setting, length: u32) -> u64 {
    let unit = match setting.link.kind {
        LinkKind::Datagram => setting.options.mtu.bytes(),
        LinkKind::Whole => transport::MAX_TRAIN,
    };
    u64::from(length.div_ceil(unit))
}

#[test]
fn losing_any_one_packet_of_a_send_loses_that_send_and_no_other() {
    for setting in Setting::each_link() {
        let length = if setting.link.kind == LinkKind::Whole { 200_000 } else { 5000 };
        for k in 0..parcels(&setting, length) {
            let mut pair = uc(&setting);
            for (id, offset) in [(10, 0), (11, 1), (12, 2)] {
                pair.sim.receive(pair.b, id, &[pair.far.sge(offset, length)]).unwrap();
            }
            let log = Log::of(&mut pair.sim);
            pair.sim.script(nth(k, |sighting| sighting.wr_id == Some(2), Fate::Drop));
            // Each message lies elsewhere, so that a byte of the lost one would show.
            for id in 1..=3u64 {
                pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(id * 1000, length)).id(id)).unwrap();
            }
            pair.sim.run_until_idle();
            let done = pair.sim.completions(pair.a);
            assert_eq!(successes(&done, CompletionKind::Send), [(1, length), (2, length), (3, length)]);
            let got = pair.sim.completions(pair.b);
            assert_eq!(successes(&got, CompletionKind::Receive), [(10, length), (11, length)], "packet {k}");
            assert_eq!(pair.far_bytes(1, length as usize), pair.near_bytes(3000, length as usize));
            // What came after the lost packet was passed over. A lost last packet leaves nothing to pass over.
            let later = parcels(&setting, length) - 1 - k;
            assert_eq!(log.drops(pair.bob), vec![DropReason::MessageAbandoned; later as usize]);
            // The receive the lost message had begun to fill served the next; the third is still there.
            pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(7, length))).unwrap();
            pair.sim.run_until_idle();
            let got = pair.sim.completions(pair.b);
            assert_eq!(successes(&got, CompletionKind::Receive), [(12, length)]);
            assert_eq!(pair.far_bytes(2, length as usize), pair.near_bytes(7, length as usize));
            assert_eq!(pair.sim.async_events(pair.b), []);
        }
    }
}

#[test]
fn losing_any_one_packet_of_a_write_with_immediate_takes_no_receive() {
    for setting in Setting::each_link() {
        let length = if setting.link.kind == LinkKind::Whole { 200_000 } else { 5000 };
        for k in 0..parcels(&setting, length) {
            let mut pair = uc(&setting);
            pair.sim.receive(pair.b, 10, &[]).unwrap();
            pair.sim.script(nth(k, |sighting| sighting.wr_id == Some(2), Fate::Drop));
            let lost = Work::write(pair.far.remote(0)).sge(pair.near.sge(0, length)).immediate(2).id(2);
            pair.sim.post(pair.a, &lost).unwrap();
            pair.sim.run_until_idle();
            assert_eq!(pair.sim.completions(pair.a).len(), 1);
            assert_eq!(pair.sim.completions(pair.b), [], "packet {k}");
            let whole = Work::write(pair.far.remote(50)).sge(pair.near.sge(9, length)).immediate(3).id(3);
            pair.sim.post(pair.a, &whole).unwrap();
            pair.sim.run_until_idle();
            let got = pair.received();
            assert_eq!((got.wr_id, got.immediate, got.bytes), (10, Some(3), length));
            assert_eq!(pair.far_bytes(50, length as usize), pair.near_bytes(9, length as usize));
        }
    }
}

#[test]
fn a_packet_that_comes_twice_or_late_costs_its_message() {
    // Duplicated: the copy is out of sequence, and the rest of the message is with it.
    for (opcode, fate) in [
        (Opcode::UcSendMiddle, Fate::Duplicate),
        (Opcode::UcSendMiddle, Fate::Delay(9_000)),
        (Opcode::UcSendFirst, Fate::Delay(9_000)),
    ] {
        let mut pair = uc(&Setting::default());
        let log = Log::of(&mut pair.sim);
        pair.sim.receive(pair.b, 10, &[pair.far.sge(0, 5000)]).unwrap();
        pair.sim.script(once(move |sighting| sighting.headers.bth.opcode == opcode, fate));
        pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 5000))).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.completions(pair.b), [], "{opcode} {fate:?}");
        let drops = log.drops(pair.bob);
        assert!(!drops.is_empty() && drops.iter().all(|reason| *reason == DropReason::MessageAbandoned), "{drops:?}");
        still_works(&mut pair);
    }
}

#[test]
fn a_message_of_one_packet_that_comes_twice_is_received_twice() {
    // Nothing tells a copy from a new message: the sequence number only says that something was lost (IBA 9.8.2.2.1).
    for setting in Setting::each_link() {
        let mut pair = uc(&setting);
        pair.sim.receive(pair.b, 10, &[pair.far.sge(0, 100)]).unwrap();
        pair.sim.receive(pair.b, 11, &[pair.far.sge(100, 100)]).unwrap();
        pair.sim.script(once(|_| true, Fate::Duplicate));
        pair.succeed(&Work::send().sge(pair.near.sge(0, 100)));
        assert_eq!(successes(&pair.sim.completions(pair.b), CompletionKind::Receive), [(10, 100), (11, 100)]);
    }
}

#[test]
fn what_arrives_under_random_loss_is_whole_and_in_order() {
    for setting in Setting::each_link() {
        for seed in 0..20 {
            let mut setting = setting.seed(seed).loss(0.1).mtu(Mtu::B256);
            setting.link.reordering = 0.02;
            setting.link.duplication = 0.02;
            let mut pair = uc(&setting);
            let mut rng = Rng::new(seed);
            for id in 0..100 {
                pair.sim.receive(pair.b, id, &[pair.far.sge(id * 3000, 3000)]).unwrap();
            }
            let mut lengths = Vec::new();
            for id in 0..100u32 {
                let length = 4 + rng.below(2000) as u32;
                lengths.push(length);
                // Each message starts with its number.
                pair.sim.bytes_mut(&pair.near)[..4].copy_from_slice(&id.to_ne_bytes());
                pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, length)).id(id.into())).unwrap();
                pair.sim.run_until_idle();
            }
            let got = pair.sim.completions(pair.b);
            assert!(got.len() < 100 || setting.link.kind == LinkKind::Whole, "some were lost");
            assert!(got.len() > 30, "and some were not");
            let mut last = None;
            for (nth, completion) in got.iter().enumerate() {
                assert_eq!(
                    (completion.wr_id, completion.status),
                    (nth as u64, Status::Success),
                    "receives are used in order"
                );
                let bytes = pair.far_bytes(nth * 3000, completion.bytes as usize);
                let id = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
                assert_eq!(completion.bytes, lengths[id as usize]);
                assert_eq!(bytes[4..], pair.near_bytes(4, bytes.len() - 4)[..], "seed {seed}");
                // A copy of a whole message may follow it; nothing comes back after a later one.
                assert!(last <= Some(id), "message {id} after {last:?}, seed {seed}");
                last = Some(id);
            }
            assert_eq!(pair.sim.state(pair.b), State::ReadyToSend);
        }
    }
}

#[test]
fn sequence_numbers_wrap_without_losing_anything() {
    for mut setting in Setting::each_link() {
        setting.options.psn = Some((Psn::new(0xff_fffd), Psn::new(0xff_ffff)));
        let mut pair = uc(&setting);
        for id in 0..5 {
            pair.sim.receive(pair.b, id, &[pair.far.sge(0, 3000)]).unwrap();
            pair.succeed(&Work::send().sge(pair.near.sge(id, 3000)));
            assert_eq!(pair.received().bytes, 3000);
            assert_eq!(pair.far_bytes(0, 3000), pair.near_bytes(id as usize, 3000));
        }
        assert_eq!(pair.sim.attributes(pair.a).sq_psn, Psn::new(12));
    }
}

#[test]
fn without_a_receive_a_message_vanishes_in_silence() {
    for setting in Setting::each_link() {
        let mut pair = uc(&setting);
        let log = Log::of(&mut pair.sim);
        let writing = Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 100)).immediate(1);
        for work in [Work::send().sge(pair.near.sge(0, 100)), writing] {
            pair.succeed(&work);
            assert_eq!(log.drops(pair.bob), [DropReason::NoReceive]);
            assert_eq!(pair.sim.completions(pair.b), []);
            assert!(log.opcodes(pair.bob).is_empty());
        }
        assert_eq!(pair.sim.async_events(pair.b), []);
        still_works(&mut pair);
    }
}

#[test]
fn a_receive_posted_in_the_middle_of_a_message_waits_for_the_next_one() {
    let mut setting = Setting::default();
    setting.link.bandwidth = Some(1_000_000_000); // 8 us for a packet, so that there is a middle
    let mut pair = uc(&setting);
    let log = Log::of(&mut pair.sim);
    pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 5000))).unwrap();
    pair.sim.run_until(1_000_000, |_| log.drops(pair.bob) == [DropReason::NoReceive]);
    pair.sim.receive(pair.b, 10, &[pair.far.sge(0, 6000)]).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(log.drops(pair.bob), [DropReason::MessageAbandoned; 4]);
    assert_eq!(pair.sim.completions(pair.b), []);
    pair.sim.completions(pair.a);
    pair.succeed(&Work::send().sge(pair.near.sge(1, 5000)));
    assert_eq!(pair.received().wr_id, 10);
    assert_eq!(pair.far_bytes(0, 5000), pair.near_bytes(1, 5000));
}

#[test]
fn a_write_that_may_not_be_vanishes_in_silence_and_writes_nothing() {
    for setting in Setting::each_link() {
        let mut pair = uc(&setting);
        let unwritable = pair.sim.register(pair.bob, QpSpec::PD, 5000, Access::LOCAL_WRITE | Access::REMOTE_READ);
        let foreign = pair.sim.register(pair.bob, ProtectionDomain(77), 5000, ALL_ACCESS);
        let log = Log::of(&mut pair.sim);
        let cases = [
            ("no such key", Remote { address: pair.far.address, key: Key::new(0xdead_0000) }),
            ("one byte too far", pair.far.remote(300_000 - 2999)),
            ("before the start", Remote { address: pair.far.address - 1, key: pair.far.key }),
            ("no right to write", unwritable.remote(0)),
            ("another protection domain", foreign.remote(0)),
        ];
        for (what, remote) in cases {
            let work = Work::write(remote).sge(pair.near.sge(0, 3000)).immediate(5);
            pair.sim.receive(pair.b, 4, &[]).unwrap();
            pair.succeed(&work);
            assert_eq!(pair.sim.completions(pair.b), [], "{what}");
            let drops = log.drops(pair.bob);
            assert_eq!(drops[0], DropReason::AccessRefused, "{what}");
            assert!(drops[1..].iter().all(|reason| *reason == DropReason::MessageAbandoned));
            assert!(log.opcodes(pair.bob).is_empty(), "{what}");
            // The receive is still there: take it away again with an honest message.
            pair.succeed(&Work::write(pair.far.remote(0)).immediate(6));
            assert_eq!((pair.received().wr_id, log.drops(pair.bob).len()), (4, 0));
        }
        assert!(pair.sim.bytes(&pair.far).iter().all(|byte| *byte == 0));
        assert!(pair.sim.bytes(&unwritable).iter().chain(pair.sim.bytes(&foreign)).all(|byte| *byte == 0));
        assert_eq!(pair.sim.async_events(pair.b), []);
        assert_eq!(pair.sim.state(pair.b), State::ReadyToSend);
        still_works(&mut pair);
    }
}

#[test]
fn a_refused_write_says_in_the_trace_what_was_refused() {
    let mut pair = uc(&Setting::default());
    let log = Log::of(&mut pair.sim);
    let key = Key::new(0xdead_0000);
    pair.succeed(&Work::write(Remote { address: 0x1234, key }).sge(pair.near.sge(0, 8)));
    let refused = log.events().into_iter().find_map(|(host, event)| match event.kind {
        trace::Kind::AccessRefused { key, address, length, cause, .. } if host == pair.bob => {
            Some((key, address, length, cause))
        }
        _ => None,
    });
    assert_eq!(refused, Some((key, 0x1234, 8, trace::RefusalCause::UnknownKey)));
}

#[test]
fn a_queue_pair_that_does_not_grant_writes_gets_none() {
    for mut setting in Setting::each_link() {
        setting.options.access = Access::empty();
        let mut pair = uc(&setting);
        let log = Log::of(&mut pair.sim);
        pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8)));
        assert_eq!(log.drops(pair.bob), [DropReason::AccessRefused]);
        assert!(pair.far_bytes(0, 8).iter().all(|byte| *byte == 0));
        pair.sim.receive(pair.b, 1, &[pair.far.sge(0, 8)]).unwrap();
        pair.succeed(&Work::send().sge(pair.near.sge(0, 8)));
        assert_eq!(pair.received().status, Status::Success);
    }
}

#[test]
fn what_needs_an_answer_stops_the_send_queue() {
    let mut pair = uc(&Setting::default());
    let (remote, sge) = (pair.far.remote(0), pair.near.sge(0, 8));
    let cases = [
        Work::read(remote).sge(sge),
        Work::compare_swap(remote, 0, 1).sge(sge),
        Work::fetch_add(remote, 1).sge(sge),
        Work::atomic_write(remote).sge(sge),
        Work::flush(remote, 8, Placement::GLOBAL),
        Work::send_invalidate(pair.far.key),
    ];
    let back = Modify { state: Some(State::ReadyToSend), ..Modify::default() };
    for work in cases {
        pair.sim.post(pair.a, &work).unwrap();
        pair.sim.run_until_idle();
        let statuses: Vec<_> = pair.sim.completions(pair.a).iter().map(|completion| completion.status).collect();
        assert_eq!(statuses, [Status::LocalQpOperation]);
        assert_eq!(pair.sim.state(pair.a), State::SendQueueError);
        pair.sim.modify(pair.a, &back).unwrap();
    }
    assert_eq!(pair.sim.counters().sent, 0);
    still_works(&mut pair);
}

#[test]
fn a_local_error_stops_sending_but_not_receiving_until_the_program_goes_on() {
    for setting in Setting::each_link() {
        let mut pair = uc(&setting);
        let log = Log::of(&mut pair.sim);
        let bad = transport::Sge { key: Key::new(0xdead_0000), ..pair.near.sge(0, 8) };
        pair.sim.receive(pair.b, 20, &[pair.far.sge(0, 100)]).unwrap();
        pair.sim.receive(pair.b, 21, &[pair.far.sge(0, 100)]).unwrap();
        pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 8)).id(1)).unwrap();
        pair.sim.post(pair.a, &Work::send().sge(bad).id(2)).unwrap();
        assert_eq!(pair.sim.state(pair.a), State::SendQueueError);
        pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 8)).id(3)).unwrap();
        pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 8)).id(4).unsignaled()).unwrap();
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|c| (c.wr_id, c.status)).collect();
        let flushed = Status::WorkRequestFlushed;
        assert_eq!(ends, [(1, Status::Success), (2, Status::LocalProtection), (3, flushed), (4, flushed)]);
        assert_eq!(pair.received().wr_id, 20, "only what came before the error was sent");
        assert_eq!(log.states(pair.a.qpn), [State::SendQueueError]);
        assert_eq!(pair.sim.async_events(pair.a), [], "a send queue error is told by its completion alone");

        // Receiving goes on meanwhile: sends and writes.
        pair.sim.receive(pair.a, 30, &[pair.near.sge(500, 100)]).unwrap();
        pair.sim.post(pair.b, &Work::send().inline(b"still here")).unwrap();
        pair.sim.post(pair.b, &Work::write(pair.near.remote(600)).inline(b"and here")).unwrap();
        pair.sim.run_until_idle();
        let got = pair.sim.completions(pair.a);
        assert_eq!(successes(&got, CompletionKind::Receive), [(30, 10)]);
        assert_eq!((pair.near_bytes(500, 10), pair.near_bytes(600, 8)), (&b"still here"[..], &b"and here"[..]));
        assert_eq!(pair.sim.state(pair.a), State::SendQueueError);
        pair.sim.completions(pair.b);

        let back = Modify { state: Some(State::ReadyToSend), ..Modify::default() };
        pair.sim.modify(pair.a, &back).unwrap();
        pair.succeed(&Work::send().sge(pair.near.sge(0, 8)).id(5));
        let got = pair.received();
        assert_eq!((got.wr_id, got.status), (21, Status::Success), "nothing was lost in between");
        assert!(!log.drops(pair.bob).contains(&DropReason::MessageAbandoned));
        still_works(&mut pair);
    }
}

#[test]
fn every_local_fault_of_a_send_stops_the_queue_with_its_own_status() {
    let cases: [(&str, fn(&mut Pair) -> Work, Status); 4] = [
        (
            "unknown key",
            |p| Work::send().sge(transport::Sge { key: Key::new(9), ..p.near.sge(0, 8) }),
            Status::LocalProtection,
        ),
        ("past the end", |p| Work::send().sge(p.near.sge(300_000 - 7, 8)), Status::LocalProtection),
        (
            "another domain",
            |p| {
                let foreign = p.sim.register(p.alice, ProtectionDomain(77), 8, ALL_ACCESS);
                Work::write(p.far.remote(0)).sge(foreign.whole())
            },
            Status::LocalProtection,
        ),
        ("a key that cannot be invalidated", |p| Work::local_invalidate(p.near.key), Status::MemoryWindowBind),
    ];
    for (what, work, status) in cases {
        let mut pair = uc(&Setting::default());
        let work = work(&mut pair);
        let end = pair.finish(&work);
        assert_eq!((end.status, pair.sim.state(pair.a)), (status, State::SendQueueError), "{what}");
        assert!(matches!(end.failure(), Some(Failure::Refused(_))), "{what}: {end:?}");
        assert_eq!(pair.sim.counters().sent, 0, "{what}");
    }
}

#[test]
fn memory_that_goes_away_under_a_long_send_stops_it_and_the_receiver_never_knows() {
    // A ring with room for one train holds the rest of the message back.
    let mut setting = Setting::on(LinkKind::Whole);
    setting.link = LinkConfig { ring: 1000, ..LinkConfig::WHOLE };
    let mut pair = uc(&setting);
    let extra = pair.sim.register(pair.alice, QpSpec::PD, 200_000, ALL_ACCESS);
    pair.sim.receive(pair.b, 1, &[pair.far.sge(0, 200_000)]).unwrap();
    pair.sim.post(pair.a, &Work::send().sge(extra.whole()).id(1)).unwrap();
    pair.sim.post(pair.a, &Work::send().id(2)).unwrap();
    assert_eq!(pair.sim.completions(pair.a), [], "not all is sent yet");
    assert!(pair.sim.deregister(&extra));
    pair.sim.run_until_idle();
    let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed)]);
    assert_eq!(pair.sim.state(pair.a), State::SendQueueError);
    assert_eq!(pair.sim.completions(pair.b), []);
    pair.sim.modify(pair.a, &Modify { state: Some(State::ReadyToSend), ..Modify::default() }).unwrap();
    pair.succeed(&Work::send().sge(pair.near.sge(0, 100_000)).id(3));
    let got = pair.received();
    assert_eq!((got.wr_id, got.bytes), (1, 100_000), "its receive serves the next message");
    assert_eq!(pair.far_bytes(0, 100_000), pair.near_bytes(0, 100_000));
}

/// Class D of IBA 9.9.3; Soft-RoCE does the same.
#[test]
fn a_message_longer_than_its_receive_is_dropped_and_the_receive_serves_the_next() {
    for setting in Setting::each_link() {
        // Too long in its only packet, in its last, in the middle of several trains.
        for (length, space) in [(8, 7), (5000, 4999), (5000, 0), (200_000, 70_000)] {
            let mut pair = uc(&setting);
            let log = Log::of(&mut pair.sim);
            pair.sim.receive(pair.b, 1, &[pair.far.sge(0, space)]).unwrap();
            pair.sim.receive(pair.b, 2, &[pair.far.sge(0, length)]).unwrap();
            pair.succeed(&Work::send().sge(pair.near.sge(0, length)));
            assert_eq!(pair.sim.completions(pair.b), [], "{length} into {space}");
            let drops = log.drops(pair.bob);
            assert_eq!(drops[0], DropReason::TooLong, "{length} into {space}");
            assert!(drops[1..].iter().all(|reason| *reason == DropReason::MessageAbandoned), "{drops:?}");
            assert!(pair.far_bytes(space as usize, 100).iter().all(|byte| *byte == 0), "nothing beyond the receive");
            assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::ReadyToSend, State::ReadyToSend));
            assert_eq!(pair.sim.async_events(pair.b), []);

            // One that fits takes that receive; then the long one finds the one for it.
            pair.succeed(&Work::send().sge(pair.near.sge(50, space)));
            let got = pair.received();
            assert_eq!((got.wr_id, got.status, got.bytes), (1, Status::Success, space));
            assert_eq!(pair.far_bytes(0, space as usize), pair.near_bytes(50, space as usize));
            pair.succeed(&Work::send().sge(pair.near.sge(0, length)));
            let got = pair.received();
            assert_eq!((got.wr_id, got.status, got.bytes), (2, Status::Success, length));
            assert_eq!(pair.far_bytes(0, length as usize), pair.near_bytes(0, length as usize));
            assert!(log.opcodes(pair.bob).is_empty(), "nothing is answered");
            still_works(&mut pair);
        }
    }
}

#[test]
fn a_receive_over_forbidden_memory_breaks_the_receiver_alone() {
    for setting in Setting::each_link() {
        let mut pair = uc(&setting);
        let read_only = pair.sim.register(pair.bob, QpSpec::PD, 100, Access::REMOTE_READ);
        let log = Log::of(&mut pair.sim);
        pair.sim.receive(pair.b, 1, &[read_only.whole()]).unwrap();
        pair.succeed(&Work::send().sge(pair.near.sge(0, 100)));
        let end = pair.received();
        assert_eq!((end.wr_id, end.status), (1, Status::LocalProtection));
        assert_eq!(pair.sim.state(pair.b), State::Error);
        assert!(log.opcodes(pair.bob).is_empty());
        assert_eq!(pair.sim.async_events(pair.b), []);
        assert_eq!(pair.sim.state(pair.a), State::ReadyToSend);
    }
}

/// A packet of Alice's that Alice never sent.
fn forged(pair: &Pair, opcode: Opcode, psn: Psn) -> Headers {
    let mut headers = Headers::new(opcode, pair.b.qpn, psn);
    if opcode.operation() == Operation::Write && opcode.starts() {
        headers.reth = Some(Reth { va: pair.far.address, rkey: pair.far.key, len: 2048 });
    }
    headers.immediate = opcode.has_immediate().then_some(1);
    headers
}

#[test]
fn packets_in_an_impossible_order_cost_their_message_and_nothing_more() {
    use DropReason::{BadLength, BadSequence, MessageAbandoned};
    use Opcode::*;
    // Opcode, payload, and what becomes of it.
    let cases: &[(&str, &[(Opcode, usize, Option<DropReason>)])] = &[
        ("a middle without a first", &[(UcSendMiddle, 1024, Some(MessageAbandoned))]),
        (
            "a last without a first",
            &[(UcSendLast, 10, Some(MessageAbandoned)), (UcWriteLast, 10, Some(MessageAbandoned))],
        ),
        (
            "a send that ends as a write",
            &[
                (UcSendFirst, 1024, None),
                (UcWriteLast, 1024, Some(BadSequence)),
                (UcSendLast, 9, Some(MessageAbandoned)),
            ],
        ),
        (
            "a write that ends as a send",
            &[
                (UcWriteFirst, 1024, None),
                (UcSendLast, 1024, Some(BadSequence)),
                (UcWriteLast, 9, Some(MessageAbandoned)),
            ],
        ),
        ("a first inside a message, never ended", &[(UcSendFirst, 1024, None), (UcSendFirst, 1024, None)]),
        ("a short first", &[(UcSendFirst, 1023, Some(BadLength)), (UcSendLast, 5, Some(MessageAbandoned))]),
        (
            "a short middle",
            &[
                (UcSendFirst, 1024, None),
                (UcSendMiddle, 1000, Some(BadLength)),
                (UcSendLast, 5, Some(MessageAbandoned)),
            ],
        ),
        ("a long middle", &[(UcSendFirst, 1024, None), (UcSendMiddle, 1025, Some(BadLength))]),
        ("an empty last", &[(UcSendFirst, 1024, None), (UcSendLast, 0, Some(BadLength))]),
        ("a long only", &[(UcSendOnly, 1025, Some(BadLength))]),
        ("a write that is shorter than it said", &[(UcWriteFirst, 1024, None), (UcWriteLast, 1023, Some(BadLength))]),
        (
            "a write that is longer than it said",
            &[
                (UcWriteFirst, 1024, None),
                (UcWriteMiddle, 1024, Some(BadLength)),
                (UcWriteLast, 1, Some(MessageAbandoned)),
            ],
        ),
        ("a write of one packet that lies", &[(UcWriteOnlyImmediate, 1024, Some(BadLength))]),
    ];
    for (what, packets) in cases {
        let mut pair = uc(&Setting::default());
        let log = Log::of(&mut pair.sim);
        pair.sim.receive(pair.b, 900, &[pair.far.sge(100_000, 8000)]).unwrap();
        let source = pair.sim.gid(pair.alice, 0);
        let first = pair.sim.attributes(pair.b).rq_psn;
        for (nth, (opcode, length, drop)) in packets.iter().enumerate() {
            let headers = forged(&pair, *opcode, first.add(nth as u32));
            pair.sim.inject(pair.bob, source, &headers, &vec![0x5a; *length]).unwrap();
            pair.sim.run_until_idle();
            assert_eq!(log.drops(pair.bob), drop.iter().copied().collect::<Vec<_>>(), "{what}, packet {nth}");
            assert_eq!(pair.sim.completions(pair.b), [], "{what}, packet {nth}");
        }
        assert_eq!(pair.sim.state(pair.b), State::ReadyToSend, "{what}");
        assert_eq!(pair.sim.async_events(pair.b), [], "{what}");
        assert!(log.opcodes(pair.bob).is_empty(), "{what}");
        assert!(pair.far_bytes(2048, 1000).iter().all(|byte| *byte == 0), "{what}");
        // The receive from before is still the next one.
        pair.succeed(&Work::send().sge(pair.near.sge(0, 8)));
        assert_eq!(pair.received().wr_id, 900, "{what}");
        still_works(&mut pair);
    }
}

#[test]
fn the_first_packet_in_rtr_establishes_an_unreliable_connection_too() {
    let mut pair = uc(&Setting::default());
    let b = pair.sim.create_qp(pair.bob, QpSpec::uc());
    let a = pair.sim.create_qp(pair.alice, QpSpec::uc());
    let (psn, options) = (Psn::new(5), pair.options);
    for (qp, peer, states) in [
        (b, a, &[State::Init, State::ReadyToReceive][..]),
        (a, b, &[State::Init, State::ReadyToReceive, State::ReadyToSend][..]),
    ] {
        for state in states {
            let modify = pair.sim.modification(qp, peer, psn, psn, *state, &options);
            pair.sim.modify(qp, &modify).unwrap();
        }
    }
    pair.sim.post(a, &Work::send()).unwrap();
    pair.sim.post(a, &Work::send()).unwrap();
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.async_events(b), [AsyncEvent::CommunicationEstablished]);
}
