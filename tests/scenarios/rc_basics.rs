//! What a reliable connection does when nothing goes wrong: every operation, at every MTU, on every kind of link.
#![allow(missing_docs)]

use scenery::{Pair, Setting};
use sim::{QpSpec, Work};
use transport::{CompletionKind, PostError, Queue, Remote, SendFlags, Sge, State, Status};
use wire::{Key, Mtu, Opcode, Placement, Psn};

/// Lengths around the places where packets begin and end.
fn lengths(mtu: Mtu) -> [u32; 9] {
    let mtu = mtu.bytes();
    [1, 3, mtu - 1, mtu, mtu + 1, 2 * mtu, 2 * mtu + 3, 7 * mtu - 2, 33_333]
}

#[test]
fn a_write_puts_the_bytes_where_it_says() {
    for setting in Setting::all() {
        let mut pair = Pair::rc(&setting);
        for length in lengths(setting.options.mtu) {
            pair.sim.bytes_mut(&pair.far).fill(0xee);
            let work = Work::write(pair.far.remote(5)).sge(pair.near.sge(11, length)).id(u64::from(length));
            let completion = pair.succeed(&work);
            assert_eq!((completion.wr_id, completion.kind), (u64::from(length), CompletionKind::Write));
            assert_eq!(completion.queue, Queue::Send);
            let length = length as usize;
            assert_eq!(pair.far_bytes(5, length), pair.near_bytes(11, length), "{length} bytes, {setting:?}");
            assert!(pair.far_bytes(0, 5).iter().all(|byte| *byte == 0xee), "nothing before");
            assert!(pair.far_bytes(5 + length, 100).iter().all(|byte| *byte == 0xee), "nothing after");
            assert_eq!(pair.sim.completions(pair.b), [], "the target hears nothing of it");
        }
    }
}

#[test]
fn a_read_brings_the_bytes_here() {
    for setting in Setting::all() {
        let mut pair = Pair::rc(&setting);
        sim::Rng::new(9).fill(pair.sim.bytes_mut(&pair.far));
        for length in lengths(setting.options.mtu) {
            pair.sim.bytes_mut(&pair.near).fill(0xee);
            let completion = pair.succeed(&Work::read(pair.far.remote(7)).sge(pair.near.sge(3, length)));
            assert_eq!((completion.kind, completion.bytes), (CompletionKind::Read, length));
            let length = length as usize;
            assert_eq!(pair.near_bytes(3, length), pair.far_bytes(7, length), "{length} bytes, {setting:?}");
            assert!(pair.near_bytes(0, 3).iter().all(|byte| *byte == 0xee), "nothing before");
            assert!(pair.near_bytes(3 + length, 100).iter().all(|byte| *byte == 0xee), "nothing after");
            assert_eq!(pair.sim.completions(pair.b), [], "the target hears nothing of it");
        }
    }
}

#[test]
fn a_send_fills_the_receive_and_completes_on_both_sides() {
    for setting in Setting::all() {
        let mut pair = Pair::rc(&setting);
        for length in lengths(setting.options.mtu) {
            pair.sim.receive(pair.b, 70, &[pair.far.sge(1, 40_000)]).unwrap();
            let sent = pair.succeed(&Work::send().sge(pair.near.sge(2, length)).id(7));
            assert_eq!((sent.wr_id, sent.kind), (7, CompletionKind::Send));
            let got = pair.received();
            assert_eq!((got.wr_id, got.status, got.kind), (70, Status::Success, CompletionKind::Receive));
            assert_eq!((got.bytes, got.immediate, got.queue), (length, None, Queue::Receive));
            assert!(!got.solicited && !got.grh);
            let length = length as usize;
            assert_eq!(pair.far_bytes(1, length), pair.near_bytes(2, length), "{length} bytes, {setting:?}");
        }
    }
}

#[test]
fn immediate_data_comes_with_the_receive() {
    for setting in Setting::all() {
        let mut pair = Pair::rc(&setting);
        for length in [0, 5, 3 * setting.options.mtu.bytes()] {
            pair.sim.receive(pair.b, 1, &[pair.far.sge(0, 40_000)]).unwrap();
            pair.succeed(&Work::send().sge(pair.near.sge(0, length)).immediate(0xdead_beef).solicited());
            let got = pair.received();
            assert_eq!((got.immediate, got.bytes, got.kind), (Some(0xdead_beef), length, CompletionKind::Receive));
            assert!(got.solicited);

            // A WRITE takes the receive for its immediate only; the bytes go where the WRITE says.
            pair.sim.bytes_mut(&pair.far).fill(0);
            pair.sim.receive(pair.b, 2, &[]).unwrap();
            let work = Work::write(pair.far.remote(100)).sge(pair.near.sge(0, length)).immediate(9);
            pair.succeed(&work);
            let got = pair.received();
            assert_eq!((got.wr_id, got.immediate), (2, Some(9)));
            assert_eq!((got.kind, got.bytes), (CompletionKind::ReceiveWriteImmediate, length));
            assert_eq!(pair.far_bytes(100, length as usize), pair.near_bytes(0, length as usize));
        }
    }
}

#[test]
fn atomics_return_what_was_there_before() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        let cell = pair.far.remote(16);
        let value = |pair: &Pair| u64::from_ne_bytes(pair.far_bytes(16, 8).try_into().unwrap());
        let result = |pair: &Pair| u64::from_ne_bytes(pair.near_bytes(24, 8).try_into().unwrap());
        let place = pair.near.sge(24, 8);

        let completion = pair.succeed(&Work::fetch_add(cell, 0x1_0000_0005).sge(place));
        assert_eq!((completion.kind, completion.bytes), (CompletionKind::FetchAdd, 8));
        assert_eq!((result(&pair), value(&pair)), (0, 0x1_0000_0005));

        let completion = pair.succeed(&Work::compare_swap(cell, 4, 77).sge(place));
        assert_eq!(completion.kind, CompletionKind::CompareSwap);
        assert_eq!((result(&pair), value(&pair)), (0x1_0000_0005, 0x1_0000_0005), "no match, no swap");

        pair.succeed(&Work::compare_swap(cell, 0x1_0000_0005, 77).sge(place));
        assert_eq!((result(&pair), value(&pair)), (0x1_0000_0005, 77));

        pair.succeed(&Work::fetch_add(cell, u64::MAX).sge(place));
        assert_eq!((result(&pair), value(&pair)), (77, 76), "addition wraps");

        let completion = pair.succeed(&Work::atomic_write(cell).sge(pair.near.sge(40, 8)));
        assert_eq!(completion.kind, CompletionKind::AtomicWrite);
        assert_eq!(pair.far_bytes(16, 8), pair.near_bytes(40, 8));

        let completion = pair.succeed(&Work::flush(pair.far.remote(0), 4096, Placement::GLOBAL));
        assert_eq!(completion.kind, CompletionKind::Flush);
    }
}

#[test]
fn inline_data_is_taken_when_it_is_posted() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting.mtu(Mtu::B256));
        let mut bytes = *b"first";
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(&bytes)).unwrap();
        bytes.fill(0);
        pair.sim.run_until_idle();
        assert_eq!(pair.far_bytes(0, 5), b"first");
        let long: Vec<u8> = (0..512).map(|i| i as u8).collect();
        pair.sim.completions(pair.a);
        pair.sim.receive(pair.b, 0, &[pair.far.sge(1000, 600)]).unwrap();
        pair.succeed(&Work::send().inline(&long));
        assert_eq!(pair.received().bytes, 512);
        assert_eq!(pair.far_bytes(1000, 512), long, "two packets of inline data");
        let too_long = Work::send().inline(&[0; 513]);
        let refused = PostError::InlineTooLong { given: 513, max: 512 };
        assert_eq!(pair.sim.post(pair.a, &too_long), Err(refused));
    }
}

#[test]
fn empty_messages_are_messages() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        // No key at all is looked at for nothing, on either side.
        let nowhere = Remote { address: 0x1234, key: Key::new(0xdead_0000) };
        let nothing = Sge { address: 1, length: 0, key: Key::new(0xdead_0000) };
        assert_eq!(pair.succeed(&Work::write(nowhere)).kind, CompletionKind::Write);
        assert_eq!(pair.succeed(&Work::write(nowhere).sge(nothing)).kind, CompletionKind::Write);
        assert_eq!(pair.succeed(&Work::read(nowhere)).bytes, 0);
        assert_eq!(pair.succeed(&Work::read(nowhere).sge(nothing)).bytes, 0);
        pair.sim.receive(pair.b, 5, &[]).unwrap();
        pair.succeed(&Work::send());
        let got = pair.received();
        assert_eq!((got.wr_id, got.bytes, got.status), (5, 0, Status::Success));
        pair.succeed(&Work::write(nowhere).inline(&[]));
        assert_eq!(pair.sim.completions(pair.b), []);
    }
}

#[test]
fn pieces_are_gathered_and_scattered_in_order() {
    for setting in Setting::all() {
        let mut pair = Pair::rc(&setting);
        let here = [(0, 300), (1000, 0), (2000, 1), (3000, 4097), (900, 77)];
        let pieces: Vec<Sge> = here.iter().map(|&(offset, length)| pair.near.sge(offset, length)).collect();
        let expected: Vec<u8> = here
            .iter()
            .flat_map(|&(offset, length)| pair.near_bytes(offset as usize, length as usize).to_vec())
            .collect();

        pair.succeed(&Work::write(pair.far.remote(0)).sges(&pieces));
        assert_eq!(pair.far_bytes(0, expected.len()), expected);

        let there = [(10_000u64, 1u32), (20_000, 4000), (30_000, 0), (40_000, 5000)];
        let receive: Vec<Sge> = there.iter().map(|&(offset, length)| pair.far.sge(offset, length)).collect();
        pair.sim.receive(pair.b, 0, &receive).unwrap();
        pair.succeed(&Work::send().sges(&pieces));
        assert_eq!(pair.received().bytes, expected.len() as u32);
        assert_eq!(pair.far_bytes(10_000, 1), &expected[..1]);
        assert_eq!(pair.far_bytes(20_000, 4000), &expected[1..4001]);
        assert_eq!(pair.far_bytes(40_000, expected.len() - 4001), &expected[4001..]);

        pair.sim.bytes_mut(&pair.near).fill(0);
        pair.succeed(&Work::read(pair.far.remote(0)).sges(&pieces));
        let scattered: Vec<u8> = here
            .iter()
            .flat_map(|&(offset, length)| pair.near_bytes(offset as usize, length as usize).to_vec())
            .collect();
        assert_eq!(scattered, expected);
    }
}

#[test]
fn unsignaled_work_succeeds_without_a_word() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        for id in 0..5 {
            let work = Work::write(pair.far.remote(id * 8)).sge(pair.near.sge(id * 8, 8)).id(id);
            let work = if id % 2 == 0 { work.unsignaled() } else { work };
            pair.sim.post(pair.a, &work).unwrap();
        }
        pair.sim.run_until_idle();
        let completed: Vec<u64> = pair.sim.completions(pair.a).iter().map(|completion| completion.wr_id).collect();
        assert_eq!(completed, [1, 3]);
        assert_eq!(pair.far_bytes(0, 40), pair.near_bytes(0, 40));
    }
    // A queue pair may insist.
    let spec = QpSpec { signal_all: true, ..QpSpec::rc() };
    let mut pair = Pair::new(&Setting::default(), spec, QpSpec::rc(), 100);
    let work = Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8)).unsignaled();
    assert_eq!(work.request().flags, SendFlags::empty());
    pair.succeed(&work);
}

#[test]
fn completions_come_in_the_order_of_posting_whatever_the_mixture() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        for id in 0..40u64 {
            let work = match id % 4 {
                0 => Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 3000)),
                1 => Work::read(pair.far.remote(0)).sge(pair.near.sge(8192, 3000)),
                2 => Work::fetch_add(pair.far.remote(16_000), 1).sge(pair.near.sge(16_000, 8)),
                _ => {
                    pair.sim.receive(pair.b, id, &[pair.far.sge(20_000, 100)]).unwrap();
                    Work::send().sge(pair.near.sge(0, 100))
                }
            };
            pair.sim.post(pair.a, &work.id(id)).unwrap();
        }
        pair.sim.run_until_idle();
        let completions = pair.sim.completions(pair.a);
        assert!(completions.iter().all(|completion| completion.status == Status::Success));
        let order: Vec<u64> = completions.iter().map(|completion| completion.wr_id).collect();
        assert_eq!(order, (0..40).collect::<Vec<_>>());
        let received: Vec<u64> = pair.sim.completions(pair.b).iter().map(|completion| completion.wr_id).collect();
        assert_eq!(received, (0..40).filter(|id| id % 4 == 3).collect::<Vec<_>>());
        assert_eq!(u64::from_ne_bytes(pair.far_bytes(16_000, 8).try_into().unwrap()), 10);
    }
}

#[test]
fn both_sides_may_talk_at_once() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        let near = pair.near_bytes(0, 20_000).to_vec();
        pair.sim.bytes_mut(&pair.far)[..20_000].fill(0x55);
        pair.sim.post(pair.a, &Work::write(pair.far.remote(30_000)).sge(pair.near.sge(0, 20_000))).unwrap();
        pair.sim.post(pair.b, &Work::write(pair.near.remote(30_000)).sge(pair.far.sge(0, 20_000))).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.completions(pair.a)[0].status, Status::Success);
        assert_eq!(pair.sim.completions(pair.b)[0].status, Status::Success);
        assert_eq!(pair.far_bytes(30_000, 20_000), near);
        assert!(pair.near_bytes(30_000, 20_000).iter().all(|byte| *byte == 0x55));
    }
}

#[test]
fn a_queue_pair_may_be_connected_to_itself_or_its_neighbour() {
    let mut pair = Pair::rc(&Setting::default());
    let own = pair.sim.create_qp(pair.alice, QpSpec::rc());
    let psn = Psn::new(500);
    pair.sim.connect(own, own, &sim::ConnectOptions { psn: Some((psn, psn)), ..pair.options });
    let neighbour = pair.sim.create_qp(pair.alice, QpSpec::rc());
    let other = pair.sim.create_qp(pair.alice, QpSpec::rc());
    pair.sim.connect(neighbour, other, &pair.options);
    for (qp, offset) in [(own, 10_000), (neighbour, 20_000)] {
        pair.sim.post(qp, &Work::write(pair.near.remote(offset)).sge(pair.near.sge(0, 5000))).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.completions(qp)[0].status, Status::Success);
        assert_eq!(pair.near_bytes(offset as usize, 5000), pair.near_bytes(0, 5000));
    }
}

/// The sequence numbers, and with them everything a query tells, must not depend on how packets are carried.
#[test]
fn sequence_numbers_are_the_same_on_every_link() {
    for mtu in Mtu::ALL {
        let mut ends = Setting::each_link().map(|setting| {
            let mut setting = setting.mtu(mtu);
            setting.options.psn = Some((Psn::new(0xff_fffa), Psn::new(3)));
            let mut pair = Pair::rc(&setting);
            pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 10_000)));
            pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 9_999)));
            pair.succeed(&Work::write(pair.far.remote(0)));
            pair.succeed(&Work::fetch_add(pair.far.remote(0), 1).sge(pair.near.sge(0, 8)));
            pair.sim.receive(pair.b, 0, &[pair.far.sge(0, 9_000)]).unwrap();
            pair.succeed(&Work::send().sge(pair.near.sge(0, 8_193)));
            let (a, b) = (pair.sim.attributes(pair.a), pair.sim.attributes(pair.b));
            assert_eq!((a.state, b.state), (State::ReadyToSend, State::ReadyToSend));
            assert_eq!(a.sq_psn, b.rq_psn);
            assert_eq!((a.rq_psn, b.sq_psn), (Psn::new(3), Psn::new(3)));
            a.sq_psn
        });
        let packets = |bytes: u32| bytes.div_ceil(mtu.bytes()).max(1);
        let expected = packets(10_000) + packets(9_999) + packets(0) + 1 + packets(8_193);
        assert!(ends.all(|end| end == Psn::new(0xff_fffa).add(expected)), "{mtu}");
    }
}

#[test]
fn a_message_is_cut_into_first_middle_and_last() {
    let mut pair = Pair::rc(&Setting::default());
    let seen = sim::Shared::new(Vec::new());
    let log = seen.clone();
    let alice = pair.alice;
    pair.sim.watch(move |passing| {
        if passing.sighting.from == alice {
            let bth = passing.sighting.headers.bth;
            log.borrow_mut().push((bth.opcode, passing.sighting.payload.len(), bth.ack_req));
        }
    });
    pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 2500)));
    let expected =
        [(Opcode::RcWriteFirst, 1024, false), (Opcode::RcWriteMiddle, 1024, false), (Opcode::RcWriteLast, 452, true)];
    assert_eq!(*seen.borrow(), expected);
}
