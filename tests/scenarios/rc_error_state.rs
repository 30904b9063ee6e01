//! The way of a reliable connection into the error state, what happens to the work around the failure, and the way back through RESET. Which
//! status belongs to which cause at the responder is told in `rc_errors`.

use scenery::{ALL_ACCESS, Log, Pair, Setting};
use sim::{Fate, LinkConfig, LinkKind, QpId, QpSpec, Sim, Work, script};
use transport::{
    Access, AsyncEvent, CompletionKind, Failure, Modify, PostError, ProtectionDomain, Queue, Remote, Sge, State, Status,
};
use wire::{Aeth, Headers, Key, Msn, Mtu, NakCode, Opcode, Psn, RnrTimer, Syndrome};

const FINE: Status = Status::Success;
const FLUSHED: Status = Status::WorkRequestFlushed;

/// How work of one queue ended, in order.
fn ends(sim: &mut Sim, qp: QpId, queue: Queue) -> Vec<(u64, Status)> {
    let all = sim.completions(qp);
    all.iter().filter(|end| end.queue == queue).map(|end| (end.wr_id, end.status)).collect()
}

fn to(state: State) -> Modify {
    Modify { state: Some(state), ..Modify::default() }
}

/// A place in the peer's memory that it never gave out.
fn nowhere(pair: &Pair) -> Remote {
    Remote { key: Key::new(0xbad0_0000), ..pair.far.remote(0) }
}

#[test]
fn local_pieces_must_be_good_for_the_work_that_uses_them() {
    for setting in Setting::each_link() {
        for case in 0..7 {
            let mut pair = Pair::rc(&setting);
            let size = Pair::SIZE as u64;
            let foreign = pair.sim.register(pair.alice, ProtectionDomain(2), 4096, ALL_ACCESS);
            let fixed = pair.sim.register(pair.alice, QpSpec::PD, 4096, Access::REMOTE_READ);
            let gone = pair.sim.register(pair.alice, QpSpec::PD, 4096, ALL_ACCESS);
            assert!(pair.sim.deregister(&gone));
            let there = pair.far.remote(0);
            let work = match case {
                0 => Work::write(there).sge(Sge { key: Key::new(0xbad0_0000), ..pair.near.sge(0, 8) }),
                1 => Work::write(there).sge(foreign.whole()),
                2 => Work::write(there).sge(pair.near.sge(0, 8)).sge(pair.near.sge(size - 7, 8)),
                3 => Work::read(there).sge(fixed.whole()),
                4 => Work::fetch_add(there, 1).sge(fixed.sge(0, 8)),
                5 => Work::send().sge(gone.whole()),
                _ => Work::atomic_write(there).sge(Sge { key: Key::new(0xbad0_0000), ..pair.near.sge(0, 8) }),
            };
            let log = Log::of(&mut pair.sim);
            let end = pair.finish(&work.id(9));
            assert_eq!((end.wr_id, end.status), (9, Status::LocalProtection), "case {case}");
            assert!(matches!(end.failure(), Some(Failure::Refused(_))), "case {case}: {:?}", end.failure());
            assert_eq!(log.packets(), [], "case {case}: nothing is sent");
            assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::Error, State::ReadyToSend));
            assert_eq!(pair.sim.async_events(pair.a), [], "the completion says it");
        }
        // What is only read needs no right to write.
        let mut pair = Pair::rc(&setting);
        let fixed = pair.sim.register(pair.alice, QpSpec::PD, 4096, Access::empty());
        pair.succeed(&Work::write(pair.far.remote(0)).sge(fixed.whole()));
        pair.succeed(&Work::atomic_write(pair.far.remote(0)).sge(fixed.sge(1, 8)));
    }
}

#[test]
fn an_atomic_needs_eight_bytes_to_answer_into() {
    for setting in Setting::each_link() {
        for length in [0, 7, 8] {
            for index in 0..3 {
                let mut pair = Pair::rc(&setting);
                let (there, here) = (pair.far.remote(8), pair.near.sge(8, length));
                let work = match index {
                    0 => Work::compare_swap(there, 0, 5).sge(here),
                    1 => Work::fetch_add(there, 5).sge(here),
                    _ => Work::atomic_write(there).sge(here),
                };
                let expected = if length < 8 { Status::LocalLength } else { FINE };
                assert_eq!(pair.finish(&work).status, expected, "{length} bytes, kind {index}");
                let changed = pair.far_bytes(8, 8) != [0; 8];
                assert_eq!(changed, length == 8, "{length} bytes, kind {index}");
            }
        }
    }
}

#[test]
fn a_queue_pair_that_may_have_no_reads_outstanding_refuses_to_begin_one() {
    for mut setting in Setting::each_link() {
        setting.options.max_rd_atomic = 0;
        for index in 0..3 {
            let mut pair = Pair::rc(&setting);
            let (there, here) = (pair.far.remote(0), pair.near.sge(0, 8));
            let work = match index {
                0 => Work::read(there).sge(here),
                1 => Work::fetch_add(there, 1).sge(here),
                _ => Work::atomic_write(there).sge(here),
            };
            pair.succeed(&Work::write(there).sge(here));
            assert_eq!(pair.finish(&work).status, Status::LocalQpOperation);
        }
    }
}

#[test]
fn work_before_a_local_error_succeeds_and_work_after_it_is_never_begun() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        let bad = Sge { key: Key::new(0xbad0_0000), ..pair.near.sge(0, 8) };
        for id in 0..6u64 {
            let there = pair.far.remote(id * 8192);
            let work = match id {
                0 | 1 => Work::write(there).sge(pair.near.sge(0, 5000)),
                2 => Work::read(there).sge(pair.near.sge(10_000, 5000)),
                3 => Work::write(there).sge(bad),
                _ => Work::write(there).sge(pair.near.sge(0, 5000)),
            };
            pair.sim.post(pair.a, &work.id(id)).unwrap();
        }
        pair.sim.run_until_idle();
        let expected = [(0, FINE), (1, FINE), (2, FINE), (3, Status::LocalProtection), (4, FLUSHED), (5, FLUSHED)];
        assert_eq!(ends(&mut pair.sim, pair.a, Queue::Send), expected);
        assert_eq!(pair.far_bytes(8192, 5000), pair.near_bytes(0, 5000));
        assert!(pair.far_bytes(3 * 8192, 3 * 8192).iter().all(|byte| *byte == 0), "nothing after the failure");
        assert_eq!(pair.sim.state(pair.b), State::ReadyToSend);
    }
}

#[test]
fn a_local_error_waits_for_earlier_work_however_often_that_is_sent_again() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        let alice = pair.alice;
        // Everything is lost four times; after each loss the requester comes past the bad work again.
        pair.sim.script(script::times(4, move |sighting| sighting.from == alice, Fate::Drop));
        let bad = Sge { key: Key::new(0xbad0_0000), ..pair.near.sge(0, 8) };
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8)).id(0)).unwrap();
        pair.sim.post(pair.a, &Work::write(pair.far.remote(8)).sge(bad).id(1)).unwrap();
        pair.sim.post(pair.a, &Work::write(pair.far.remote(16)).sge(pair.near.sge(0, 8)).id(2)).unwrap();
        assert_eq!(pair.sim.completion_count(pair.a), 0);
        pair.sim.run_until_idle();
        assert_eq!(ends(&mut pair.sim, pair.a, Queue::Send), [(0, FINE), (1, Status::LocalProtection), (2, FLUSHED)]);
        assert_eq!(pair.far_bytes(0, 8), pair.near_bytes(0, 8));
        assert_eq!(pair.far_bytes(8, 16), [0; 16]);
    }
}

#[test]
fn work_posted_behind_a_local_error_that_still_waits_is_flushed_too() {
    let mut pair = Pair::rc(&Setting::default());
    let bad = Sge { key: Key::new(0xbad0_0000), ..pair.near.sge(0, 8) };
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8)).id(0)).unwrap();
    pair.sim.post(pair.a, &Work::write(pair.far.remote(8)).sge(bad).id(1).unsignaled()).unwrap();
    pair.sim.run_for(1000);
    assert_eq!(pair.sim.state(pair.a), State::ReadyToSend, "the first is under way");
    pair.sim.post(pair.a, &Work::write(pair.far.remote(8)).sge(pair.near.sge(0, 8)).id(2).unsignaled()).unwrap();
    pair.sim.run_until_idle();
    // Errors are told, signaled or not.
    assert_eq!(ends(&mut pair.sim, pair.a, Queue::Send), [(0, FINE), (1, Status::LocalProtection), (2, FLUSHED)]);
    assert_eq!(pair.far_bytes(8, 8), [0; 8]);
}

#[test]
fn nothing_after_a_remote_error_is_executed() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting.mtu(Mtu::B256));
        pair.sim.receive(pair.b, 50, &[pair.far.sge(0, 100)]).unwrap();
        let there = pair.far.remote(4096);
        let works = [
            Work::write(pair.far.remote(0)).inline(b"before"),
            Work::write(nowhere(&pair)).sge(pair.near.sge(0, 600)),
            Work::write(there).sge(pair.near.sge(0, 600)).unsignaled(),
            Work::fetch_add(there, 1).sge(pair.near.sge(0, 8)),
            Work::read(there).sge(pair.near.sge(0, 600)),
            Work::send().inline(b"for nobody").unsignaled(),
        ];
        for (id, work) in works.into_iter().enumerate() {
            pair.sim.post(pair.a, &work.id(id as u64)).unwrap();
        }
        pair.sim.run_until_idle();
        let expected = [(0, FINE), (1, Status::RemoteAccess), (2, FLUSHED), (3, FLUSHED), (4, FLUSHED), (5, FLUSHED)];
        assert_eq!(ends(&mut pair.sim, pair.a, Queue::Send), expected);
        assert_eq!(ends(&mut pair.sim, pair.b, Queue::Receive), [(50, FLUSHED)]);
        assert_eq!(pair.far_bytes(0, 6), b"before");
        assert!(pair.far_bytes(4096, 600).iter().all(|byte| *byte == 0));
        assert_eq!(pair.sim.async_events(pair.b), [AsyncEvent::QpAccessError], "once, whatever followed");
    }
}

#[test]
fn both_queues_of_both_sides_are_flushed_in_order() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        for id in 100..105 {
            pair.sim.receive(pair.a, id, &[pair.near.sge(0, 64)]).unwrap();
            pair.sim.receive(pair.b, id + 100, &[pair.far.sge(0, 64)]).unwrap();
        }
        pair.sim.post(pair.a, &Work::write(nowhere(&pair)).inline(b"x").id(0)).unwrap();
        for id in 1..5 {
            pair.sim.post(pair.a, &Work::read(pair.far.remote(0)).sge(pair.near.sge(0, 64)).id(id)).unwrap();
            pair.sim.post(pair.b, &Work::read(pair.near.remote(0)).sge(pair.far.sge(0, 64)).id(id + 10)).unwrap();
        }
        // Bob's READs pass Alice's bad WRITE on the wire; she answers them, but he has stopped by then.
        pair.sim.run_until_idle();
        let all = pair.sim.completions(pair.a);
        let of = |queue| all.iter().filter(move |end| end.queue == queue).map(|end| (end.wr_id, end.status));
        let sends = [(0, Status::RemoteAccess), (1, FLUSHED), (2, FLUSHED), (3, FLUSHED), (4, FLUSHED)];
        assert_eq!(of(Queue::Send).collect::<Vec<_>>(), sends);
        assert_eq!(of(Queue::Receive).collect::<Vec<_>>(), (100..105).map(|id| (id, FLUSHED)).collect::<Vec<_>>());
        let all = pair.sim.completions(pair.b);
        let of = |queue| all.iter().filter(move |end| end.queue == queue).map(|end| (end.wr_id, end.status));
        assert_eq!(of(Queue::Send).collect::<Vec<_>>(), (11..15).map(|id| (id, FLUSHED)).collect::<Vec<_>>());
        assert_eq!(of(Queue::Receive).collect::<Vec<_>>(), (200..205).map(|id| (id, FLUSHED)).collect::<Vec<_>>());
    }
}

#[test]
fn a_half_received_send_is_flushed_before_the_receives_behind_it() {
    let mut pair = Pair::rc(&Setting::default());
    for id in 0..3 {
        pair.sim.receive(pair.b, id, &[pair.far.sge(0, 5000)]).unwrap();
    }
    let alice = pair.alice;
    let middle = move |seen: &sim::Sighting<'_>| seen.from == alice && seen.headers.bth.opcode != Opcode::RcSendFirst;
    pair.sim.script(script::always(middle, Fate::Drop));
    pair.sim.post(pair.a, &Work::send().sge(pair.near.sge(0, 5000)).id(7)).unwrap();
    pair.sim.run_for(20_000);
    assert_eq!(pair.sim.completion_count(pair.b), 0);
    pair.sim.modify(pair.b, &to(State::Error)).unwrap();
    assert_eq!(ends(&mut pair.sim, pair.b, Queue::Receive), [(0, FLUSHED), (1, FLUSHED), (2, FLUSHED)]);
    pair.sim.run_until_idle();
    assert_eq!(ends(&mut pair.sim, pair.a, Queue::Send), [(7, Status::RetryExceeded)], "an ERR queue pair is silent");
}

#[test]
fn a_queue_pair_moved_to_err_flushes_everything_and_sends_nothing_more() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        pair.sim.receive(pair.a, 9, &[]).unwrap();
        for id in 0..4 {
            pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 30_000)).id(id)).unwrap();
        }
        pair.sim.modify(pair.a, &to(State::Error)).unwrap();
        let log = Log::of(&mut pair.sim);
        let all = pair.sim.completions(pair.a);
        assert!(all.iter().all(|end| end.status == FLUSHED && end.failure() == Some(Failure::Flushed)));
        let ids: Vec<_> = all.iter().map(|end| (end.queue, end.wr_id)).collect();
        let send = Queue::Send;
        assert_eq!(ids, [(send, 0), (send, 1), (send, 2), (send, 3), (Queue::Receive, 9)]);
        pair.sim.run_until_idle();
        assert!(log.packets().iter().all(|seen| seen.from == pair.bob), "only what was under way is answered");
        assert_eq!(pair.sim.completions(pair.a), []);
        assert_eq!(pair.sim.async_events(pair.a), []);
        assert_eq!(pair.sim.state(pair.b), State::ReadyToSend);
    }
}

#[test]
fn work_posted_in_err_is_flushed_at_once_and_in_order() {
    let mut pair = Pair::rc(&Setting::default());
    pair.sim.modify(pair.a, &to(State::Error)).unwrap();
    for id in 0..300 {
        // More than the queue holds at once: a flushed entry makes room again.
        pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 8)).id(id).unsignaled()).unwrap();
        pair.sim.receive(pair.a, 1000 + id, &[]).unwrap();
    }
    let all = pair.sim.completions(pair.a);
    assert!(all.iter().all(|end| end.status == FLUSHED));
    let ids = |queue| all.iter().filter(move |end| end.queue == queue).map(|end| end.wr_id).collect::<Vec<_>>();
    assert_eq!(ids(Queue::Send), (0..300).collect::<Vec<_>>());
    assert_eq!(ids(Queue::Receive), (1000..1300).collect::<Vec<_>>());
    let log = Log::of(&mut pair.sim);
    pair.sim.run_until_idle();
    assert_eq!(log.packets(), []);
    // What makes no sense is refused there as anywhere.
    let many = vec![pair.near.sge(0, 1); 9];
    let error = PostError::TooManySges { given: 9, max: 8 };
    assert_eq!(pair.sim.post(pair.a, &Work::send().sges(&many)), Err(error));
}

#[test]
fn sends_are_taken_from_rts_on_and_receives_from_init_on() {
    let mut pair = Pair::rc(&Setting::default());
    let qp = pair.sim.create_qp(pair.alice, QpSpec::rc());
    let options = pair.options;
    let (own, other) = (Psn::new(1), Psn::new(2));
    let send = Work::send();
    let wrong = |state, queue| Err(PostError::WrongState { state, queue });
    assert_eq!(pair.sim.post(qp, &send), wrong(State::Reset, "send"));
    assert_eq!(pair.sim.receive(qp, 0, &[]), wrong(State::Reset, "receive"));
    for state in [State::Init, State::ReadyToReceive] {
        let modify = pair.sim.modification(qp, pair.b, own, other, state, &options);
        pair.sim.modify(qp, &modify).unwrap();
        assert_eq!(pair.sim.post(qp, &send), wrong(state, "send"));
        assert_eq!(pair.sim.receive(qp, u64::from(state.code()), &[]), Ok(()));
    }
    let modify = pair.sim.modification(qp, pair.b, own, other, State::ReadyToSend, &options);
    pair.sim.modify(qp, &modify).unwrap();
    assert_eq!(pair.sim.post(qp, &send), Ok(()));
    assert_eq!(pair.sim.completions(qp), [], "what was refused leaves nothing behind");
    pair.sim.modify(qp, &to(State::Reset)).unwrap();
    assert_eq!(pair.sim.completions(qp), [], "RESET forgets without a word");
    assert_eq!(pair.sim.post(qp, &send), wrong(State::Reset, "send"));
}

#[test]
fn each_refusal_code_from_the_wire_has_its_status() {
    let cases = [
        (Syndrome::Nak(NakCode::InvalidRequest), Status::RemoteInvalidRequest),
        (Syndrome::Nak(NakCode::RemoteAccess), Status::RemoteAccess),
        (Syndrome::Nak(NakCode::RemoteOperational), Status::RemoteOperation),
        // These cannot be right on a reliable connection.
        (Syndrome::Nak(NakCode::InvalidRdRequest), Status::BadResponse),
        (Syndrome::Nak(NakCode::Reserved(17)), Status::BadResponse),
    ];
    for (syndrome, status) in cases {
        let mut pair = Pair::rc(&Setting::default());
        pair.sim.partition(pair.alice, pair.bob);
        let psn = pair.sim.attributes(pair.a).sq_psn;
        for id in 0..4 {
            pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 2000)).id(id)).unwrap();
        }
        let source = pair.sim.gid(pair.bob, 0);
        let nak = |psn, syndrome| {
            let mut headers = Headers::new(Opcode::RcAcknowledge, pair.a.qpn, psn);
            headers.aeth = Some(Aeth { syndrome, msn: Msn::new(2) });
            headers
        };
        // Refusals of what was never sent and of what means nothing do no harm.
        pair.sim.inject(pair.alice, source, &nak(psn.add(8), syndrome), &[]).unwrap();
        pair.sim.inject(pair.alice, source, &nak(psn.sub(1), syndrome), &[]).unwrap();
        pair.sim.inject(pair.alice, source, &nak(psn, Syndrome::Reserved(0b0100_0001)), &[]).unwrap();
        pair.sim.run_for(1000);
        assert_eq!(pair.sim.completions(pair.a), []);
        pair.sim.inject(pair.alice, source, &nak(psn.add(4), syndrome), &[]).unwrap();
        pair.sim.run_for(1000);
        let expected = [(0, FINE), (1, FINE), (2, status), (3, FLUSHED)];
        assert_eq!(ends(&mut pair.sim, pair.a, Queue::Send), expected, "{syndrome}");
        assert_eq!(pair.sim.state(pair.a), State::Error);
        assert_eq!(pair.sim.async_events(pair.a), []);
    }
}

#[test]
fn the_first_packet_at_a_peer_that_is_only_ready_to_receive_announces_the_connection() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        let options = pair.options;
        let qp = pair.sim.create_qp(pair.bob, QpSpec::rc());
        let peer = pair.sim.create_qp(pair.alice, QpSpec::rc());
        let (here, there) = (Psn::new(10), Psn::new(20));
        for state in [State::Init, State::ReadyToReceive] {
            let modify = pair.sim.modification(qp, peer, here, there, state, &options);
            pair.sim.modify(qp, &modify).unwrap();
        }
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            let modify = pair.sim.modification(peer, qp, there, here, state, &options);
            pair.sim.modify(peer, &modify).unwrap();
        }
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.async_events(qp), []);
        pair.sim.receive(qp, 1, &[pair.far.sge(0, 100)]).unwrap();
        pair.sim.post(peer, &Work::send().inline(b"early").id(1)).unwrap();
        pair.sim.post(peer, &Work::write(pair.far.remote(200)).inline(b"also").id(2)).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.async_events(qp), [AsyncEvent::CommunicationEstablished], "once");
        assert_eq!(ends(&mut pair.sim, peer, Queue::Send), [(1, FINE), (2, FINE)], "RTR answers");
        assert_eq!(ends(&mut pair.sim, qp, Queue::Receive), [(1, FINE)]);
        assert_eq!(pair.far_bytes(200, 4), b"also");
        let modify = pair.sim.modification(qp, peer, here, there, State::ReadyToSend, &options);
        pair.sim.modify(qp, &modify).unwrap();
        pair.sim.post(peer, &Work::write(pair.far.remote(200)).inline(b"more").id(3)).unwrap();
        pair.sim.run_until_idle();
        assert_eq!(pair.sim.async_events(qp), []);
    }
}

#[test]
fn a_queue_pair_that_failed_works_again_after_reset() {
    for setting in Setting::each_link() {
        let mut pair = Pair::rc(&setting);
        for round in 0..5u64 {
            pair.sim.receive(pair.b, round, &[pair.far.sge(0, 100)]).unwrap();
            pair.sim.post(pair.a, &Work::fetch_add(pair.far.remote(1024), 1).sge(pair.near.sge(0, 8))).unwrap();
            pair.sim.post(pair.a, &Work::send().inline(b"still here")).unwrap();
            pair.sim.run_until_idle();
            assert_eq!(ends(&mut pair.sim, pair.a, Queue::Send), [(0, FINE), (0, FINE)], "round {round}");
            assert_eq!(ends(&mut pair.sim, pair.b, Queue::Receive), [(round, FINE)]);
            assert_eq!(pair.finish(&Work::write(nowhere(&pair)).inline(b"x")).status, Status::RemoteAccess);
            for qp in [pair.a, pair.b] {
                assert_eq!(pair.sim.state(qp), State::Error);
                pair.sim.modify(qp, &to(State::Reset)).unwrap();
                pair.sim.async_events(qp);
            }
            pair.sim.connect(pair.a, pair.b, &pair.options.clone());
        }
        assert_eq!(u64::from_ne_bytes(pair.far_bytes(1024, 8).try_into().unwrap()), 5);
    }
}

/// Packets of the old connection arrive in the new one, behind and ahead of what it expects. (Old packets with the very number that is expected
/// cannot be told from new ones: that is what the connection manager's timewait is for.)
#[test]
fn packets_of_a_former_life_do_not_hurt() {
    for kind in [LinkKind::Datagram, LinkKind::Whole] {
        for shift in [-1_000_000i32, -5, -1, 8, 1000, 1_000_000] {
            let mut setting = Setting::on(kind);
            let old = (Psn::new(5_000_000), Psn::new(5_000_000));
            setting.options.psn = Some(old);
            setting.link = LinkConfig { delay: 300_000, ring: u64::MAX, ..setting.link };
            let mut pair = Pair::rc(&setting);
            pair.sim.bytes_mut(&pair.far).fill(0x11);
            pair.sim.receive(pair.b, 1, &[pair.far.sge(8192, 3000)]).unwrap();
            let stale = [
                Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 3000)),
                Work::send().sge(pair.near.sge(0, 2000)),
                Work::read(pair.far.remote(0)).sge(pair.near.sge(4096, 2000)),
                Work::fetch_add(pair.far.remote(0), 1).sge(pair.near.sge(0, 8)),
            ];
            for work in stale {
                pair.sim.post(pair.a, &work).unwrap();
            }
            pair.sim.run_for(100_000);
            for qp in [pair.a, pair.b] {
                pair.sim.modify(qp, &to(State::Reset)).unwrap();
            }
            let new = Psn::new(5_000_000u32.wrapping_add_signed(shift));
            let options = sim::ConnectOptions { psn: Some((new, new)), ..pair.options };
            pair.sim.connect(pair.a, pair.b, &options);
            // New work is under way while the old packets arrive.
            pair.sim.receive(pair.b, 2, &[pair.far.sge(30_000, 100)]).unwrap();
            let fresh = [
                Work::write(pair.far.remote(20_000)).sge(pair.near.sge(20_000, 3000)),
                Work::fetch_add(pair.far.remote(16_384), 1).sge(pair.near.sge(16_384, 8)),
                Work::send().sge(pair.near.sge(0, 100)),
                Work::read(pair.far.remote(20_000)).sge(pair.near.sge(40_000, 3000)),
            ];
            pair.sim.bytes_mut(&pair.far)[16_384..16_392].fill(0);
            for (id, work) in fresh.into_iter().enumerate() {
                pair.sim.post(pair.a, &work.id(id as u64)).unwrap();
            }
            pair.sim.run_until_idle();
            let context = format!("{kind:?}, {shift}");
            assert_eq!(
                ends(&mut pair.sim, pair.a, Queue::Send),
                [(0, FINE), (1, FINE), (2, FINE), (3, FINE)],
                "{context}"
            );
            assert_eq!(ends(&mut pair.sim, pair.b, Queue::Receive), [(2, FINE)], "{context}: the old receive is gone");
            assert!(pair.far_bytes(0, 16_384).iter().all(|byte| *byte == 0x11), "{context}: no old WRITE or SEND");
            assert_eq!(pair.far_bytes(20_000, 3000), pair.near_bytes(20_000, 3000), "{context}");
            assert_eq!(pair.near_bytes(40_000, 3000), pair.far_bytes(20_000, 3000), "{context}");
            assert_eq!(u64::from_ne_bytes(pair.far_bytes(16_384, 8).try_into().unwrap()), 1, "{context}");
            assert_eq!(pair.sim.async_events(pair.b), [], "{context}");
            assert_eq!(pair.sim.state(pair.b), State::ReadyToSend, "{context}");
        }
    }
}

#[test]
fn acknowledgements_of_a_former_life_complete_nothing() {
    let mut setting = Setting::default();
    setting.options.psn = Some((Psn::new(100), Psn::new(100)));
    let mut pair = Pair::rc(&setting);
    let source = pair.sim.gid(pair.bob, 0);
    pair.sim.partition(pair.alice, pair.bob);
    pair.sim.post(pair.a, &Work::write(pair.far.remote(0)).inline(b"new").id(1)).unwrap();
    let syndromes = [
        Syndrome::ACK,
        Syndrome::Nak(NakCode::SequenceError),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::RnrNak { timer: RnrTimer::new(0) },
    ];
    let log = Log::of(&mut pair.sim);
    for psn in [0, 99, 101, 102, 0x80_0063, 0xff_ffff] {
        for syndrome in syndromes {
            let mut headers = Headers::new(Opcode::RcAcknowledge, pair.a.qpn, Psn::new(psn));
            headers.aeth = Some(Aeth { syndrome, msn: Msn::new(77) });
            pair.sim.inject(pair.alice, source, &headers, &[]).unwrap();
        }
    }
    pair.sim.run_for(100_000);
    assert_eq!(pair.sim.completions(pair.a), []);
    assert_eq!(log.packets(), [], "nor do they make it send anything again");
    pair.sim.heal(pair.alice, pair.bob);
    pair.sim.run_until_idle();
    let completion = pair.sim.completions(pair.a);
    assert_eq!((completion[0].status, completion[0].kind), (FINE, CompletionKind::Write));
}
