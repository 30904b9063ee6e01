//! What both ends of a reliable connection learn when a request cannot be carried out: the status, the refusal on the wire, the event, and that
//! nothing was touched. What becomes of the work around the failure is told in `rc_error_state`.

use scenery::{ALL_ACCESS, Log, Pair, Setting};
use sim::{LinkConfig, LinkKind, QpSpec, Work};
use transport::{Access, AsyncEvent, CompletionKind, Failure, ProtectionDomain, Remote, Sge, State, Status};
use wire::{Key, Msn, Mtu, NakCode, Opcode, Placement, Psn, Syndrome};

const FIRST: Psn = Psn::new(0xff_fffe);

/// Every link, with sequence numbers that can be foretold.
fn settings() -> impl Iterator<Item = Setting> {
    Setting::each_link().map(|mut setting| {
        setting.options.psn = Some((FIRST, Psn::new(7)));
        setting
    })
}

/// How a refusal is to look.
#[derive(Clone, Copy, Debug)]
struct Refused {
    status: Status,
    code: NakCode,
    event: AsyncEvent,
}

const ACCESS: Refused =
    Refused { status: Status::RemoteAccess, code: NakCode::RemoteAccess, event: AsyncEvent::QpAccessError };
const UNSUPPORTED: Refused =
    Refused { status: Status::RemoteInvalidRequest, code: NakCode::InvalidRequest, event: AsyncEvent::QpRequestError };
/// Requests that break a limit are access violations to the responder's program, though the wire calls them invalid.
const LIMIT: Refused =
    Refused { status: Status::RemoteInvalidRequest, code: NakCode::InvalidRequest, event: AsyncEvent::QpAccessError };

/// Posts one piece of work that the peer refuses outright, without using a receive, and looks at everything that follows.
#[track_caller]
fn is_refused(pair: &mut Pair, work: &Work, refused: Refused, what: &str) {
    let log = Log::of(&mut pair.sim);
    let before = (pair.sim.bytes(&pair.near).to_vec(), pair.sim.bytes(&pair.far).to_vec());
    let psn = pair.sim.attributes(pair.a).sq_psn;
    let completion = pair.finish(&work.clone().id(11));
    assert_eq!((completion.wr_id, completion.status, completion.bytes), (11, refused.status, 0), "{what}");
    assert_eq!(completion.failure(), Some(Failure::Nak { code: refused.code, psn, peer: None }), "{what}");
    assert!(completion.solicited, "an error wakes everybody");
    assert_eq!(pair.sim.completions(pair.b), [], "{what}: no receive was used");
    assert_eq!(pair.sim.async_events(pair.b), [refused.event], "{what}");
    assert_eq!(pair.sim.async_events(pair.a), [], "{what}");
    assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::Error, State::Error), "{what}");
    let answers: Vec<_> = log.packets().into_iter().filter(|seen| seen.from == pair.bob).collect();
    let [nak] = answers.as_slice() else { panic!("{what}: one answer expected: {answers:?}") };
    assert_eq!((nak.opcode(), nak.psn()), (Opcode::RcAcknowledge, psn), "{what}");
    assert_eq!(nak.syndrome(), Some(Syndrome::Nak(refused.code)), "{what}");
    let after = (pair.sim.bytes(&pair.near).to_vec(), pair.sim.bytes(&pair.far).to_vec());
    assert!(before == after, "{what}: nothing is touched");
}

/// One of each kind of request that names memory of the peer's.
fn requests(pair: &Pair, remote: Remote, length: u32) -> [(&'static str, Work); 6] {
    let here = pair.near.sge(64, length);
    let word = pair.near.sge(64, 8);
    [
        ("WRITE", Work::write(remote).sge(here)),
        ("READ", Work::read(remote).sge(here)),
        ("compare and swap", Work::compare_swap(remote, 0, 1).sge(word)),
        ("fetch and add", Work::fetch_add(remote, 1).sge(word)),
        ("ATOMIC WRITE", Work::atomic_write(remote).sge(word)),
        ("FLUSH", Work::flush(remote, length, Placement::GLOBAL)),
    ]
}

/// Runs every kind of request with `length` bytes against the place that `arrange` makes.
#[track_caller]
fn each_is_refused(length: u32, refused: Refused, arrange: impl Fn(&mut Pair) -> Remote) {
    for setting in settings() {
        for index in 0..6 {
            let mut pair = Pair::rc(&setting);
            let remote = arrange(&mut pair);
            let (what, work) = &requests(&pair, remote, length)[index];
            is_refused(&mut pair, work, refused, what);
        }
    }
}

#[test]
fn a_key_nobody_gave_out_is_refused() {
    // Another index, and the right index with a wrong low byte.
    each_is_refused(3000, ACCESS, |pair| Remote { key: Key::new(0xdead_be00), ..pair.far.remote(0) });
    each_is_refused(8, ACCESS, |pair| Remote { key: Key::new(pair.far.key.value() ^ 1), ..pair.far.remote(0) });
    each_is_refused(8, ACCESS, |pair| Remote { key: Key::new(0), ..pair.far.remote(0) });
}

#[test]
fn a_key_of_another_protection_domain_is_refused() {
    each_is_refused(3000, ACCESS, |pair| {
        let other = pair.sim.register(pair.bob, ProtectionDomain(2), 8192, ALL_ACCESS);
        other.remote(0)
    });
}

#[test]
fn the_key_of_a_deregistered_region_is_refused() {
    each_is_refused(3000, ACCESS, |pair| {
        let gone = pair.sim.register(pair.bob, QpSpec::PD, 8192, ALL_ACCESS);
        assert!(pair.sim.deregister(&gone));
        gone.remote(0)
    });
}

/// The right each kind of request needs, in the order of `requests`.
const NEEDS: [Access; 6] = [
    Access::REMOTE_WRITE,
    Access::REMOTE_READ,
    Access::REMOTE_ATOMIC,
    Access::REMOTE_ATOMIC,
    Access::REMOTE_WRITE,
    Access::FLUSH_GLOBAL,
];

#[test]
fn the_region_must_grant_the_right_and_no_more_than_that() {
    for setting in settings() {
        for (index, needed) in NEEDS.into_iter().enumerate() {
            let mut pair = Pair::rc(&setting);
            let poor = pair.sim.register(pair.bob, QpSpec::PD, 8192, ALL_ACCESS - needed);
            let (what, work) = &requests(&pair, poor.remote(0), 3000)[index];
            is_refused(&mut pair, work, ACCESS, what);

            let mut pair = Pair::rc(&setting);
            let enough = pair.sim.register(pair.bob, QpSpec::PD, 8192, needed | Access::LOCAL_WRITE);
            let (_, work) = &requests(&pair, enough.remote(0), 3000)[index];
            pair.succeed(work);
        }
    }
}

#[test]
fn the_queue_pair_must_grant_the_right_and_no_more_than_that() {
    for mut setting in settings() {
        let all = setting.options.access;
        for (index, needed) in NEEDS.into_iter().enumerate() {
            setting.options.access = all - needed;
            let mut pair = Pair::rc(&setting);
            let (what, work) = &requests(&pair, pair.far.remote(0), 3000)[index];
            is_refused(&mut pair, work, UNSUPPORTED, what);

            setting.options.access = needed;
            let mut pair = Pair::rc(&setting);
            let (_, work) = &requests(&pair, pair.far.remote(0), 3000)[index];
            pair.succeed(work);
        }
    }
}

#[test]
fn one_byte_past_either_end_of_the_region_is_refused_and_the_last_byte_is_not() {
    let size = Pair::SIZE as u64;
    for setting in settings() {
        for index in [0, 1, 5] {
            for (offset, length) in [(size - 2999, 3000), (size, 1), (u64::MAX, 2), (size - 4095, 4096)] {
                let mut pair = Pair::rc(&setting);
                let (what, work) = &requests(&pair, pair.far.remote(offset), length)[index];
                is_refused(&mut pair, work, ACCESS, what);
            }
            let mut pair = Pair::rc(&setting);
            let (_, work) = &requests(&pair, pair.far.remote(size - 3000), 3000)[index];
            pair.succeed(work);
        }
        // An atomic reaches for eight bytes, whatever else is there.
        for index in [2, 3, 4] {
            let mut pair = Pair::rc(&setting);
            let short = pair.sim.register(pair.bob, QpSpec::PD, 23, ALL_ACCESS);
            pair.succeed(&requests(&pair, short.remote(8), 8)[index].1);
            let (what, work) = &requests(&pair, short.remote(16), 8)[index];
            is_refused(&mut pair, work, ACCESS, what);
        }
    }
}

#[test]
fn a_region_that_would_wrap_around_the_address_space_does_not() {
    for setting in settings() {
        let mut pair = Pair::rc(&setting);
        let last = sim::RegionSpec { iova: Some(u64::MAX - 4095), ..sim::RegionSpec::new(QpSpec::PD, ALL_ACCESS) };
        let high = pair.sim.register_spec(pair.bob, vec![0; 4096], &last);
        pair.succeed(&Work::write(high.remote(0)).sge(pair.near.sge(0, 4096)));
        assert_eq!(pair.sim.bytes(&high), pair.near_bytes(0, 4096), "the very last page is there");
        let work = Work::write(high.remote(4000)).sge(pair.near.sge(0, 97));
        is_refused(&mut pair, &work, ACCESS, "a WRITE past the end of all addresses");
    }
}

#[test]
fn an_atomic_off_its_eight_byte_boundary_is_refused() {
    for setting in settings() {
        for offset in [1, 4, 7] {
            for index in [2, 3, 4] {
                let mut pair = Pair::rc(&setting);
                let (what, work) = &requests(&pair, pair.far.remote(offset), 8)[index];
                is_refused(&mut pair, work, LIMIT, what);
            }
        }
    }
}

#[test]
fn a_write_past_the_region_writes_nothing_although_its_beginning_would_fit() {
    for setting in settings() {
        let mut pair = Pair::rc(&setting.mtu(Mtu::B256));
        let end = Pair::SIZE as u64;
        let work = Work::write(pair.far.remote(end - 1024)).sge(pair.near.sge(0, 1025));
        is_refused(&mut pair, &work, ACCESS, "a WRITE of five packets of which four fit");
    }
}

#[test]
fn a_send_longer_than_the_receive_fails_on_both_sides() {
    for setting in settings() {
        for (length, space) in [(1, 0), (101, 100), (2049, 2048), (5000, 4999), (5000, 1024), (5000, 1025)] {
            let mut pair = Pair::rc(&setting);
            pair.sim.receive(pair.b, 1, &[pair.far.sge(0, space)]).unwrap();
            pair.sim.receive(pair.b, 2, &[pair.far.sge(0, 5000)]).unwrap();
            let sent = pair.finish(&Work::send().sge(pair.near.sge(0, length)).id(5));
            assert_eq!((sent.wr_id, sent.status), (5, Status::RemoteInvalidRequest), "{length} into {space}");
            let received = pair.sim.completions(pair.b);
            let ends: Vec<_> = received.iter().map(|end| (end.wr_id, end.status)).collect();
            assert_eq!(ends, [(1, Status::LocalLength), (2, Status::WorkRequestFlushed)]);
            assert_eq!((received[0].kind, received[0].bytes), (CompletionKind::Receive, 0));
            // Its completion tells the program; an event would tell it twice (IBA 11.6.3.2 is for what no completion can report).
            assert_eq!(pair.sim.async_events(pair.b), []);
            assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::Error, State::Error));
            let untouched = space.next_multiple_of(1024).max(space) as usize;
            assert!(pair.far_bytes(untouched, 5000).iter().all(|byte| *byte == 0), "nothing past the receive");

            // The other side of the boundary.
            let mut pair = Pair::rc(&setting);
            pair.sim.receive(pair.b, 1, &[pair.far.sge(0, length - 1), pair.far.sge(9000, 1)]).unwrap();
            pair.succeed(&Work::send().sge(pair.near.sge(0, length)));
            assert_eq!(pair.received().bytes, length);
        }
    }
}

#[test]
fn a_receive_into_memory_it_may_not_write_fails_on_both_sides() {
    for setting in settings() {
        for case in 0..5 {
            let mut pair = Pair::rc(&setting);
            let sge = match case {
                0 => Sge { key: Key::new(0xbad0_0000), ..pair.far.sge(0, 4000) },
                1 => pair.sim.register(pair.bob, ProtectionDomain(9), 4000, ALL_ACCESS).whole(),
                2 => pair.sim.register(pair.bob, QpSpec::PD, 4000, Access::REMOTE_READ).whole(),
                3 => pair.far.sge(Pair::SIZE as u64 - 3999, 4000),
                _ => {
                    let gone = pair.sim.register(pair.bob, QpSpec::PD, 4000, ALL_ACCESS);
                    assert!(pair.sim.deregister(&gone));
                    gone.whole()
                }
            };
            pair.sim.receive(pair.b, 1, &[pair.far.sge(0, 10), sge]).unwrap();
            pair.sim.receive(pair.b, 2, &[]).unwrap();
            let sent = pair.finish(&Work::send().sge(pair.near.sge(0, 4010)).id(5));
            assert_eq!((sent.wr_id, sent.status), (5, Status::RemoteOperation), "case {case}");
            assert!(matches!(sent.failure(), Some(Failure::Nak { code: NakCode::RemoteOperational, .. })));
            let received = pair.sim.completions(pair.b);
            let ends: Vec<_> = received.iter().map(|end| (end.wr_id, end.status)).collect();
            assert_eq!(ends, [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed)], "case {case}");
            assert!(matches!(received[0].failure(), Some(Failure::Refused(_))), "the cause names the memory");
            assert_eq!(pair.sim.async_events(pair.b), [], "the completion says it");
        }
        // A bad piece that the message does not reach does no harm.
        let mut pair = Pair::rc(&setting);
        let bad = Sge { key: Key::new(0xbad0_0000), ..pair.far.sge(0, 4000) };
        pair.sim.receive(pair.b, 1, &[pair.far.sge(0, 10), bad]).unwrap();
        pair.succeed(&Work::send().sge(pair.near.sge(0, 10)));
        assert_eq!(pair.received().bytes, 10);
    }
}

#[test]
fn a_write_with_immediate_that_fails_ends_the_receive_it_took() {
    // The key is looked at with the first packet, the receive is taken with the last: here they are the same packet, or the same train.
    for setting in settings() {
        let mut pair = Pair::rc(&setting);
        pair.sim.receive(pair.b, 1, &[]).unwrap();
        pair.sim.receive(pair.b, 2, &[]).unwrap();
        let bad = Remote { key: Key::new(0xbad0_0000), ..pair.far.remote(0) };
        let completion = pair.finish(&Work::write(bad).sge(pair.near.sge(0, 1000)).immediate(3).id(6));
        assert_eq!((completion.wr_id, completion.status), (6, Status::RemoteAccess));
        let ends: Vec<_> = pair.sim.completions(pair.b).iter().map(|end| (end.wr_id, end.status, end.kind)).collect();
        let receive = CompletionKind::Receive;
        assert_eq!(ends, [(1, Status::LocalAccess, receive), (2, Status::WorkRequestFlushed, receive)]);
        assert_eq!(pair.sim.async_events(pair.b), [], "the completion says it");
    }
    let mut pair = Pair::rc(&Setting::default().mtu(Mtu::B256));
    pair.sim.receive(pair.b, 1, &[]).unwrap();
    let bad = Remote { key: Key::new(0xbad0_0000), ..pair.far.remote(0) };
    assert_eq!(pair.finish(&Work::write(bad).sge(pair.near.sge(0, 1000)).immediate(3)).status, Status::RemoteAccess);
    let flushed = pair.received();
    assert_eq!((flushed.wr_id, flushed.status, flushed.immediate), (1, Status::WorkRequestFlushed, None));
    assert_eq!(pair.sim.async_events(pair.b), [AsyncEvent::QpAccessError], "no receive was taken yet");
}

#[test]
fn a_write_with_immediate_that_the_queue_pair_does_not_grant_needs_no_receive_to_be_refused() {
    for mut setting in settings() {
        setting.options.access -= Access::REMOTE_WRITE;
        setting.options.rnr_retry = 0;
        let mut pair = Pair::rc(&setting);
        let work = Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 100)).immediate(3);
        is_refused(&mut pair, &work, UNSUPPORTED, "a WRITE with immediate");
    }
}

/// A wire that is slow enough for things to happen while a message is under way.
fn slow(kind: LinkKind, mut setting: Setting) -> Setting {
    setting.link = LinkConfig { bandwidth: Some(1_000_000_000), ring: 4096, ..LinkConfig::of(kind) };
    setting.options.timeout = 14;
    setting
}

#[test]
fn a_source_deregistered_while_it_is_sent_fails_here() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let setting = slow(kind, Setting::default());
        let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 1 << 20);
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 1 << 20)).id(1)).unwrap();
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(b"after").id(2)).unwrap();
        pair.sim.run_for(3_000_000);
        assert_eq!(pair.sim.completion_count(pair.a), 0, "under way");
        assert!(pair.sim.deregister(&pair.near));
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
        assert_eq!(ends, [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed)], "{kind:?}");
        assert_eq!(pair.sim.state(pair.a), State::Error);
        assert_eq!(pair.sim.state(pair.b), State::ReadyToSend, "the peer did nothing wrong and is told nothing");
        assert_eq!((pair.sim.async_events(pair.a), pair.sim.async_events(pair.b)), (vec![], vec![]));
        let far = pair.sim.bytes(&pair.far);
        let arrived = far.iter().rposition(|byte| *byte != 0).expect("something arrived") + 1;
        assert!(arrived < 1 << 20 && far[..arrived] == pair.sim.bytes(&pair.near)[..arrived], "{kind:?}: {arrived}");
    }
}

#[test]
fn a_target_deregistered_while_it_is_written_is_refused_from_there_on() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let setting = slow(kind, Setting::default());
        let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 1 << 20);
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 1 << 20)).id(1)).unwrap();
        pair.sim.run_for(3_000_000);
        assert!(pair.sim.deregister(&pair.far));
        let arrived = pair.sim.bytes(&pair.far).to_vec();
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
        assert_eq!(ends, [(1, Status::RemoteAccess)], "{kind:?}");
        assert_eq!(pair.sim.async_events(pair.b), [AsyncEvent::QpAccessError]);
        assert!(arrived[0] != 0 && pair.sim.bytes(&pair.far) == arrived, "{kind:?}: not one byte more");
    }
}

#[test]
fn a_source_deregistered_while_it_is_read_is_refused_from_there_on() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for reads in [1, 3] {
            let setting = slow(kind, Setting::default());
            let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 1 << 20);
            pair.sim.bytes_mut(&pair.near).fill(0);
            pair.sim.bytes_mut(&pair.far).fill(0xaa);
            for id in 1..=reads {
                let work = Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 1 << 20)).id(id);
                pair.sim.post(pair.a, &work).unwrap();
            }
            pair.sim.run_for(3_000_000);
            let log = Log::of(&mut pair.sim);
            assert!(pair.sim.deregister(&pair.far));
            pair.sim.run_until_idle();
            let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
            let flushed = (2..=reads).map(|id| (id, Status::WorkRequestFlushed));
            let expected: Vec<_> = std::iter::once((1, Status::RemoteAccess)).chain(flushed).collect();
            assert_eq!(ends, expected, "{kind:?}");
            assert_eq!(pair.sim.async_events(pair.b), [AsyncEvent::QpAccessError], "{kind:?}: once, not per READ");
            let naks: Vec<_> =
                log.packets().into_iter().filter(|seen| seen.opcode() == Opcode::RcAcknowledge).collect();
            assert_eq!(naks.len(), 1, "{kind:?}: {naks:?}");
            assert_eq!(naks[0].syndrome(), Some(Syndrome::Nak(NakCode::RemoteAccess)));
        }
    }
}

#[test]
fn a_target_deregistered_while_it_is_read_into_fails_here() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        let setting = slow(kind, Setting::default());
        let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 1 << 20);
        pair.sim.post(pair.a, &Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 1 << 20)).id(1)).unwrap();
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(b"after").fenced().id(2)).unwrap();
        pair.sim.run_for(3_000_000);
        assert!(pair.sim.deregister(&pair.near));
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
        assert_eq!(ends, [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed)], "{kind:?}");
        assert_eq!(pair.sim.state(pair.b), State::ReadyToSend);
        assert_eq!(pair.far_bytes(0, 5), [0; 5], "what follows a failure is not carried out");
    }
}

#[test]
fn more_reads_than_the_responder_agreed_to_keep_are_refused() {
    for (asked, refused) in [(2, false), (3, true)] {
        // A ring of one train each way: the first answer is still waiting to leave when the other requests come.
        let mut setting = Setting::on(LinkKind::Whole);
        setting.options.max_dest_rd_atomic = 2;
        setting.options.max_rd_atomic = 16;
        setting.options.psn = Some((FIRST, Psn::new(7)));
        let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 1 << 20);
        pair.sim.change_link(pair.bob, pair.alice, |link| (link.ring, link.delay) = (1, 1_000_000));
        for id in 0..asked {
            pair.sim.post(pair.a, &Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 200_000)).id(id)).unwrap();
        }
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
        if refused {
            let (done, last) = ends.split_at(2);
            assert_eq!(done, [(0, Status::Success), (1, Status::Success)], "what was accepted is still answered");
            assert_eq!(last, [(2, Status::RemoteInvalidRequest)]);
            assert_eq!(pair.sim.async_events(pair.b), [AsyncEvent::QpAccessError]);
        } else {
            assert_eq!(ends, [(0, Status::Success), (1, Status::Success)]);
        }
    }
}

#[test]
fn a_responder_that_keeps_no_reads_refuses_the_first() {
    for mut setting in settings() {
        setting.options.max_dest_rd_atomic = 0;
        for index in 1..6 {
            let mut pair = Pair::rc(&setting);
            let (what, work) = &requests(&pair, pair.far.remote(0), 8)[index];
            is_refused(&mut pair, work, LIMIT, what);
        }
        let mut pair = Pair::rc(&setting);
        pair.succeed(&Work::write(pair.far.remote(0)).inline(b"no READ, no limit"));
    }
}

#[test]
fn a_refusal_counts_the_messages_before_it_and_acknowledges_them() {
    for setting in settings() {
        let mut pair = Pair::rc(&setting);
        let log = Log::of(&mut pair.sim);
        for id in 0..3 {
            pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 2000)).id(id)).unwrap();
        }
        let bad = Remote { key: Key::new(0xbad0_0000), ..pair.far.remote(0) };
        pair.sim.post(pair.a, &Work::write(bad).inline(b"x").id(3)).unwrap();
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(pair.a).iter().map(|end| (end.wr_id, end.status)).collect();
        let fine = Status::Success;
        assert_eq!(ends, [(0, fine), (1, fine), (2, fine), (3, Status::RemoteAccess)]);
        let nak = log.packets().into_iter().rfind(|seen| seen.from == pair.bob).expect("an answer");
        assert_eq!(nak.psn(), FIRST.add(6));
        let aeth = nak.headers.aeth.expect("a NAK has an AETH");
        assert_eq!((aeth.syndrome, aeth.msn), (Syndrome::Nak(NakCode::RemoteAccess), Msn::new(3)));
    }
}
