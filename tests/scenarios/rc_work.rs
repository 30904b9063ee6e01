//! What the options and limits of work requests mean on a reliable connection: fences, READs at once, signaling, inline data, pieces, lengths, full
//! queues, and how acknowledgements are saved. Windows and invalidation have a file of their own.

use scenery::{Log, Pair, Seen, Setting};
use sim::{Fate, LinkConfig, LinkKind, QpSpec, RegionSpec, Work, script};
use transport::{Access, Capabilities, CompletionKind, PostError, Remote, SendFlags, Sge, Status};
use wire::{Key, Mtu, Opcode, Operation, Placement, Psn, Syndrome};

fn requests(log: &Log, pair: &Pair) -> Vec<Seen> {
    log.packets().into_iter().filter(|seen| seen.from == pair.alice).collect()
}

/// The kinds of work a fence waits for.
fn questions(pair: &Pair) -> [Work; 5] {
    let (there, here) = (pair.far.remote(0), pair.near.sge(0, 8));
    [
        Work::read(there).sge(here),
        Work::compare_swap(there, 1, 2).sge(here),
        Work::fetch_add(there, 1).sge(here),
        Work::atomic_write(there).sge(here),
        Work::flush(there, 8, Placement::GLOBAL),
    ]
}

#[test]
fn without_a_fence_a_write_follows_a_read_at_once() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for index in 0..5 {
            let mut pair = Pair::rc(&Setting::on(kind));
            let log = Log::of(&mut pair.sim);
            pair.sim.post(pair.a, &questions(&pair)[index]).unwrap();
            pair.sim.post(pair.a, &Work::write(pair.far.remote(64)).sge(pair.near.sge(0, 8))).unwrap();
            pair.sim.run_until_idle();
            let times: Vec<_> = requests(&log, &pair).iter().map(|seen| seen.at.as_nanos()).collect();
            assert_eq!(times, [0, 0], "{kind:?}, {index}");
        }
    }
}

#[test]
fn a_fence_waits_for_reads_and_atomics_and_holds_what_is_behind_it() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let round_trip = 2 * LinkConfig::of(kind).delay;
        for index in 0..5 {
            let mut pair = Pair::rc(&Setting::on(kind));
            let log = Log::of(&mut pair.sim);
            let write = Work::write(pair.far.remote(64)).sge(pair.near.sge(0, 8));
            pair.sim.post(pair.a, &questions(&pair)[index].clone().id(0)).unwrap();
            pair.sim.post(pair.a, &write.clone().fenced().id(1)).unwrap();
            pair.sim.post(pair.a, &write.clone().id(2)).unwrap();
            pair.sim.run_until_idle();
            let times: Vec<_> = requests(&log, &pair).iter().map(|seen| seen.at.as_nanos()).collect();
            assert_eq!(times, [0, round_trip, round_trip], "{kind:?}, {index}");
            let ids: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
            assert_eq!(ids, [(0, Status::Success), (1, Status::Success), (2, Status::Success)]);
        }
    }
}

#[test]
fn a_fence_waits_for_nothing_else() {
    let mut pair = Pair::rc(&Setting::default());
    pair.sim.receive(pair.b, 0, &[]).unwrap();
    let log = Log::of(&mut pair.sim);
    let write = Work::write(pair.far.remote(64)).sge(pair.near.sge(0, 2000));
    for work in [write.clone(), Work::send(), write.clone().fenced(), questions(&pair)[0].clone().fenced()] {
        pair.sim.post(pair.a, &work).unwrap();
    }
    pair.sim.run_until_idle();
    assert!(requests(&log, &pair).iter().all(|seen| seen.at.as_nanos() == 0));
}

#[test]
fn a_fenced_write_sends_what_the_read_before_it_brought() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        sim::Rng::new(4).fill(&mut pair.sim.bytes_mut(&pair.far)[..5000]);
        pair.sim.post(pair.a, &Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 5000))).unwrap();
        pair.sim.post(pair.a, &Work::write(pair.far.remote(10_000)).sge(pair.near.sge(0, 5000)).fenced()).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(pair.far_bytes(10_000, 5000), pair.far_bytes(0, 5000));
    }
}

/// The most questions that were under way at any time, as the wire shows it: asked, and the last packet of the answer not yet back.
fn most_at_once(packets: &[Seen], delay: u64) -> usize {
    let mut events = Vec::new();
    for seen in packets {
        let opcode = seen.opcode();
        let asks = matches!(
            opcode.operation(),
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::AtomicWrite
                | Operation::Flush
        );
        let answers = matches!(opcode.operation(), Operation::ReadResponse | Operation::AtomicAcknowledge);
        if asks {
            events.push((seen.at.as_nanos(), 1, 1));
        } else if answers && opcode.ends() {
            events.push((seen.at.as_nanos() + delay, 0, -1));
        }
    }
    // An answer makes room for a question of the same moment.
    events.sort_by_key(|(at, order, _)| (*at, *order));
    let mut now = 0i64;
    let mut most = 0;
    for (_, _, change) in events {
        now += change;
        most = most.max(now);
    }
    assert_eq!(now, 0, "every question was answered");
    most as usize
}

#[test]
fn no_more_reads_and_atomics_are_under_way_than_allowed() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for allowed in [1u8, 2, 3, 7, 16] {
            let mut setting = Setting::on(kind);
            setting.options.max_rd_atomic = allowed;
            setting.options.max_dest_rd_atomic = allowed;
            let mut pair = Pair::rc(&setting);
            let log = Log::of(&mut pair.sim);
            for id in 0..60u64 {
                let work = match id % 7 {
                    5 => Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 5000)),
                    6 => Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 3000)),
                    index => questions(&pair)[index as usize].clone(),
                };
                pair.sim.post(pair.a, &work.id(id)).unwrap();
            }
            pair.sim.run_until_idle();
            let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
            assert_eq!(ends, (0..60).map(|id| (id, Status::Success)).collect::<Vec<_>>());
            let packets = log.packets();
            assert!(packets.iter().all(|seen| !seen.again));
            assert_eq!(most_at_once(&packets, setting.link.delay), usize::from(allowed), "{kind:?}, {allowed}");
        }
    }
}

/// Kernel Soft-RoCE answers 128 at once, and perftest then wants as many under way. How many really are is up to the window.
#[test]
fn as_many_atomics_as_soft_roce_allows_may_be_under_way() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut setting = Setting::on(kind);
        setting.options.max_rd_atomic = 128;
        setting.options.max_dest_rd_atomic = 128;
        let mut pair = Pair::rc(&setting);
        let log = Log::of(&mut pair.sim);
        for _ in 0..256 {
            pair.sim.post(pair.a, &questions(&pair)[2]).unwrap();
        }
        pair.sim.run_until_idle();
        assert!(pair.sim.completions(pair.a).iter().all(|end| end.status == Status::Success));
        let most = most_at_once(&log.packets(), setting.link.delay);
        assert!((17..=128).contains(&most), "{kind:?}: {most}");
        assert_eq!(pair.far_bytes(0, 8), 256u64.to_ne_bytes());
    }
}

#[test]
fn the_parts_of_a_long_read_count_one_by_one() {
    for allowed in [1u8, 2] {
        let mut setting = Setting::default().mtu(Mtu::B4096);
        setting.options.max_rd_atomic = allowed;
        setting.options.max_dest_rd_atomic = allowed;
        let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 4 << 20);
        let log = Log::of(&mut pair.sim);
        pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.whole()));
        let packets = log.packets();
        let parts = packets.iter().filter(|seen| seen.opcode() == Opcode::RcReadRequest).count();
        assert!(parts > 4, "{parts} parts");
        assert!(most_at_once(&packets, setting.link.delay) <= usize::from(allowed));
    }
}

#[test]
fn work_behind_a_read_that_must_wait_stays_behind_it() {
    let mut setting = Setting::default();
    setting.options.max_rd_atomic = 1;
    let mut pair = Pair::rc(&setting);
    let log = Log::of(&mut pair.sim);
    let read = questions(&pair)[0].clone();
    for work in [read.clone(), read, Work::write(pair.far.remote(64)).inline(b"behind")] {
        pair.sim.post(pair.a, &work).unwrap();
    }
    pair.sim.run_until_idle();
    let sent: Vec<_> = requests(&log, &pair).iter().map(|seen| (seen.opcode(), seen.at.as_nanos())).collect();
    let (read, write) = (Opcode::RcReadRequest, Opcode::RcWriteOnly);
    assert_eq!(sent, [(read, 0), (read, 10_000), (write, 10_000)]);
}

#[test]
fn unsignaled_work_of_every_kind_is_silent_and_leaves_its_place() {
    for setting in Setting::each_link() {
        // Four places for forty pieces of work: those that are done must make room although nobody hears of them.
        let capabilities = Capabilities { max_send_wr: 4, ..QpSpec::rc().capabilities };
        let mut pair = Pair::new(&setting, QpSpec { capabilities, ..QpSpec::rc() }, QpSpec::rc(), Pair::SIZE);
        for round in 0..8 {
            pair.sim.receive(pair.b, round, &[pair.far.sge(0, 8)]).unwrap();
            let all = questions(&pair);
            let more = [Work::send().inline(b"x"), Work::write(pair.far.remote(0)).inline(b"y")];
            for work in all.into_iter().chain(more) {
                pair.sim.post(pair.a, &work.unsignaled()).unwrap();
                pair.sim.run_until_idle();
            }
        }
        assert_eq!(pair.sim.completions(pair.a), []);
        assert_eq!(pair.sim.completions(pair.b).len(), 8, "the receiver hears of each SEND");
        // A signaled one tells that all before it are done.
        for id in 0..3 {
            pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(b"z").unsignaled().id(id)).unwrap();
        }
        assert_eq!(pair.succeed(&Work::write(pair.far.remote(0)).inline(b"z").id(3)).wr_id, 3);
    }
}

#[test]
fn solicitation_travels_with_the_last_packet_and_wakes_only_receives() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut pair = Pair::rc(&Setting::on(kind).mtu(Mtu::B256));
        let log = Log::of(&mut pair.sim);
        for id in 0..4 {
            pair.sim.receive(pair.b, id, &[pair.far.sge(0, 1000)]).unwrap();
        }
        let (here, there) = (pair.near.sge(0, 1000), pair.far.remote(0));
        let works = [
            Work::send().sge(here).solicited(),
            Work::send().sge(here),
            Work::write(there).sge(here).immediate(1).solicited(),
            Work::write(there).sge(here).immediate(1),
            Work::write(there).sge(here).solicited(),
        ];
        for work in works {
            let end = pair.succeed(&work);
            assert!(!end.solicited, "it is the peer that is woken");
        }
        let solicited: Vec<_> = pair.sim.completions(pair.b).iter().map(|end| end.solicited).collect();
        assert_eq!(solicited, [true, false, true, false]);
        if kind == LinkKind::Datagram {
            let marked: Vec<_> = requests(&log, &pair).into_iter().filter(|seen| seen.headers.bth.solicited).collect();
            assert!(marked.iter().all(|seen| seen.opcode().ends()), "{marked:?}");
            assert_eq!(marked.len(), 3);
        }
    }
}

#[test]
fn inline_data_is_still_there_when_it_is_sent_again() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for lost in 0..4 {
            let mut pair = Pair::rc(&Setting::on(kind).mtu(Mtu::B256));
            pair.sim.script(script::nth(lost, |_| true, Fate::Drop));
            let mut bytes: Vec<u8> = (0..=255).chain(0..=255).collect();
            pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(&bytes)).unwrap();
            pair.sim.post(pair.a, &Work::write(pair.far.remote(512)).inline(&bytes[..3])).unwrap();
            let expected = bytes.clone();
            bytes.fill(0xff);
            pair.sim.run_until_idle();
            assert_eq!(pair.far_bytes(0, 512), expected, "{kind:?}, {lost}");
            assert_eq!(pair.far_bytes(512, 4), [0, 1, 2, 0]);
        }
    }
}

#[test]
fn inline_data_makes_no_sense_where_an_answer_comes_back() {
    let mut pair = Pair::rc(&Setting::default());
    let there = pair.far.remote(0);
    let works = [Work::read(there), Work::fetch_add(there, 1), Work::compare_swap(there, 1, 1)];
    for work in works {
        let operation = work.request().operation.name();
        assert_eq!(pair.sim.post(pair.a, &work.inline(&[0; 8])), Err(PostError::InlineNotAllowed { operation }));
    }
    pair.succeed(&Work::atomic_write(there).inline(b"inlined!"));
    assert_eq!(pair.far_bytes(0, 8), b"inlined!");
}

#[test]
fn a_piece_of_no_length_may_name_anything() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        let nothing = Sge { address: u64::MAX, length: 0, key: Key::new(0xdead_0000) };
        let pieces = [nothing, pair.near.sge(0, 1500), nothing, nothing, pair.near.sge(5000, 1500), nothing];
        pair.succeed(&Work::write(pair.far.remote(0)).sges(&pieces));
        assert_eq!(pair.far_bytes(0, 1500), pair.near_bytes(0, 1500));
        assert_eq!(pair.far_bytes(1500, 1500), pair.near_bytes(5000, 1500));
        let places = [nothing, pair.far.sge(10_000, 1), nothing, pair.far.sge(20_000, 3000), nothing];
        pair.sim.receive(pair.b, 0, &places).unwrap();
        pair.succeed(&Work::send().sges(&pieces));
        assert_eq!(pair.received().bytes, 3000);
        assert_eq!(pair.far_bytes(20_000, 2999), &pair.far_bytes(0, 3000)[1..]);
        pair.succeed(&Work::read(pair.far.remote(0)).sges(&pieces));
    }
}

#[test]
fn an_empty_write_with_immediate_is_one_packet_and_one_receive_without_pieces() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let mut pair = Pair::rc(&Setting::on(kind));
        pair.sim.receive(pair.b, 3, &[]).unwrap();
        let log = Log::of(&mut pair.sim);
        let nowhere = Remote { address: 0x1234, key: Key::new(0xdead_0000) };
        let end = pair.succeed(&Work::write(nowhere).immediate(0x0102_0304));
        assert_eq!((end.kind, end.bytes), (CompletionKind::Write, 0));
        let got = pair.received();
        assert_eq!((got.wr_id, got.kind, got.bytes), (3, CompletionKind::ReceiveWriteImmediate, 0));
        assert_eq!(got.immediate, Some(0x0102_0304));
        let sent = requests(&log, &pair);
        assert_eq!((sent.len(), sent[0].bytes, sent[0].count), (1, 0, 1));
        assert_eq!(sent[0].opcode(), Opcode::RcWriteOnlyImmediate);
        assert_eq!(sent[0].headers.reth.map(|reth| (reth.len, reth.va)), Some((0, 0x1234)));
    }
}

#[test]
fn a_queue_takes_what_it_was_made_for_and_no_more() {
    let capabilities =
        Capabilities { max_send_wr: 3, max_recv_wr: 2, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 10 };
    let spec = QpSpec { capabilities, ..QpSpec::rc() };
    let mut pair = Pair::new(&Setting::default(), spec, QpSpec::rc(), 1000);
    let (write, piece) = (Work::write(pair.far.remote(0)), pair.near.sge(0, 8));
    pair.sim.partition(pair.alice, pair.bob);
    for id in 0..3 {
        pair.sim.post(pair.a, &write.clone().sge(piece).id(id).unsignaled()).unwrap();
    }
    let full = PostError::QueueFull { queue: "send", capacity: 3 };
    assert_eq!(pair.sim.post(pair.a, &write.clone().sge(piece).id(3)), Err(full));
    for id in 0..2 {
        pair.sim.receive(pair.a, id, &[pair.near.sge(0, 8)]).unwrap();
    }
    let full = PostError::QueueFull { queue: "receive", capacity: 2 };
    assert_eq!(pair.sim.receive(pair.a, 2, &[]), Err(full));
    let many = PostError::TooManySges { given: 3, max: 2 };
    assert_eq!(pair.sim.post(pair.a, &write.clone().sges(&[piece; 3])), Err(many));
    let many = PostError::TooManySges { given: 2, max: 1 };
    assert_eq!(pair.sim.receive(pair.a, 2, &[piece; 2]), Err(many));
    let long = PostError::InlineTooLong { given: 11, max: 10 };
    assert_eq!(pair.sim.post(pair.a, &write.clone().inline(&[0; 11])), Err(long));
    // As soon as one is done there is room for one, heard of or not.
    pair.sim.heal(pair.alice, pair.bob);
    pair.sim.run_until_idle();
    assert_eq!(pair.sim.completions(pair.a), []);
    for id in 4..7 {
        pair.sim.post(pair.a, &write.clone().sges(&[piece; 2]).id(id)).unwrap();
    }
    pair.sim.run_until_idle();
    let ids: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| end.wr_id).collect();
    assert_eq!(ids, [4, 5, 6], "what was refused left nothing behind");
}

#[test]
fn two_to_the_thirty_first_bytes_are_a_message_and_one_more_is_not() {
    let mut pair = Pair::rc(&Setting::default());
    let spec = RegionSpec::new(QpSpec::PD, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ);
    let huge = pair.sim.register_pattern(pair.alice, 1 << 32, 1, &spec);
    let half = 1 << 30;
    let pieces = [huge.sge(0, half), huge.sge(half.into(), half)];
    pair.sim.partition(pair.alice, pair.bob);
    let works = [Work::send(), Work::write(pair.far.remote(0)), Work::read(pair.far.remote(0))];
    for work in works {
        assert_eq!(pair.sim.post(pair.a, &work.clone().sges(&pieces)), Ok(()));
        let refused = Err(PostError::MessageTooLong { length: (1 << 31) + 1 });
        assert_eq!(pair.sim.post(pair.a, &work.clone().sges(&pieces).sge(huge.sge(0, 1))), refused);
        let refused = Err(PostError::MessageTooLong { length: u64::from(u32::MAX) * 8 });
        assert_eq!(pair.sim.post(pair.a, &work.sges(&[huge.sge(0, u32::MAX); 8])), refused);
    }
}

#[test]
fn messages_that_arrive_together_are_acknowledged_together() {
    let mut setting = Setting::on(LinkKind::Whole);
    setting.options.psn = Some((Psn::new(0), Psn::new(0)));
    let mut pair = Pair::rc(&setting);
    // Bob's ring towards Alice is full and stays so while she does not look.
    pair.sim.change_link(pair.bob, pair.alice, |link| link.ring = 100);
    pair.sim.pause(pair.alice);
    pair.sim.post(pair.b, &Work::write(pair.near.remote(0)).sge(pair.far.sge(0, 200))).unwrap();
    for id in 0..50 {
        let work = Work::write(pair.far.remote(1000 + id * 8)).sge(pair.near.sge(1000 + id * 8, 8)).id(id);
        pair.sim.post(pair.a, &work).unwrap();
    }
    pair.sim.run_for(100_000);
    assert_eq!(pair.far_bytes(1000, 400), pair.near_bytes(1000, 400), "all of it is there");
    let log = Log::of(&mut pair.sim);
    pair.sim.resume(pair.alice);
    pair.sim.run_until_idle();
    let ids: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| end.wr_id).collect();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
    let answers: Vec<_> = log.packets().into_iter().filter(|seen| seen.from == pair.bob).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    let aeth = answers[0].headers.aeth.expect("an acknowledgement");
    assert_eq!((answers[0].psn(), aeth.syndrome, aeth.msn.value()), (Psn::new(49), Syndrome::ACK, 50));
}

#[test]
fn a_long_message_asks_for_few_acknowledgements() {
    let mut pair = Pair::new(&Setting::default().mtu(Mtu::B256), QpSpec::rc(), QpSpec::rc(), 1 << 20);
    let log = Log::of(&mut pair.sim);
    let work = Work::write(pair.far.remote(0)).sge(pair.near.whole());
    assert_eq!(work.request().flags, SendFlags::SIGNALED);
    pair.succeed(&work);
    let packets = log.packets();
    let (sent, acks) = (
        packets.iter().filter(|seen| seen.from == pair.alice).count(),
        packets.iter().filter(|seen| seen.from == pair.bob).count(),
    );
    assert_eq!(sent, 4096);
    let asked = packets.iter().filter(|seen| seen.headers.bth.ack_req).count();
    assert_eq!(acks, asked, "one for each that asks, none for others");
    assert!(acks * 4 < sent, "{acks} acknowledgements for {sent} packets");
    let last = packets.iter().rfind(|seen| seen.from == pair.alice).expect("packets were sent");
    assert!(last.headers.bth.ack_req && last.opcode() == Opcode::RcWriteLast);
}
