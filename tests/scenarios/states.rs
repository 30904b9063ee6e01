//! The life of a queue pair: which moves it makes, and what works in each state. The transition table has its own tests; here a live queue pair
//! is walked through it.
#![allow(missing_docs)]

mod draining;
pub mod rig;

use rig::*;
use sim::Work;
use trace::DropReason;
use transport::{Access, AsyncEvent, AttributeMask, Kind, Modify, ModifyError, PostError, Sge, State, Status};
use wire::{Aeth, Headers, Key, Msn, Opcode, Operation, Position, Psn, RnrTimer, Syndrome, Tail};

#[test]
fn every_legal_move_is_made_and_every_other_leaves_everything_as_it_was() {
    for kind in kinds() {
        for from in states(kind) {
            for to in State::ALL {
                let mut rig = Rig::at(kind, from);
                let before = rig.attributes();
                let result = rig.go(to);
                if is_legal(kind, from, to) {
                    assert_eq!(result, Ok(()), "{kind} {from} -> {to}");
                    assert_eq!(rig.state(), to, "{kind} {from} -> {to}");
                    let moved = if from == to { vec![] } else { vec![to] };
                    assert_eq!(rig.log.states(rig.qp.qpn), moved, "{kind} {from} -> {to}");
                } else {
                    assert_eq!(result, Err(ModifyError::NotATransition { kind, from, to }));
                    assert_eq!(rig.attributes(), before);
                    assert!(rig.log.events().is_empty(), "{kind} {from} -> {to}");
                }
                rig.sim.run_until_idle();
                assert!(rig.log.packets().is_empty(), "no move sends anything by itself");
            }
        }
    }
}

/// Takes one attribute out of what is asked for.
fn without(modify: &Modify, name: AttributeMask) -> Modify {
    use AttributeMask as A;
    let mut modify = *modify;
    match name {
        A::ACCESS_FLAGS => modify.access = None,
        A::PKEY_INDEX => modify.pkey_index = None,
        A::PORT => modify.port = None,
        A::QKEY => modify.qkey = None,
        A::AV => modify.av = None,
        A::PATH_MTU => modify.path_mtu = None,
        A::TIMEOUT => modify.timeout = None,
        A::RETRY_CNT => modify.retry_cnt = None,
        A::RNR_RETRY => modify.rnr_retry = None,
        A::RQ_PSN => modify.rq_psn = None,
        A::MAX_QP_RD_ATOMIC => modify.max_rd_atomic = None,
        A::MIN_RNR_TIMER => modify.min_rnr_timer = None,
        A::SQ_PSN => modify.sq_psn = None,
        A::MAX_DEST_RD_ATOMIC => modify.max_dest_rd_atomic = None,
        A::DEST_QPN => modify.dest_qpn = None,
        other => panic!("{other} is required by no move"),
    }
    modify
}

/// What each move needs, from the table of the ibv_modify_qp manual page.
fn needs(kind: Kind, to: State) -> Vec<AttributeMask> {
    use AttributeMask as A;
    let connected = kind != Kind::UnreliableDatagram;
    let (asks, answers) = match kind {
        Kind::ReliableConnected => (true, true),
        Kind::XrcInitiator => (true, false),
        Kind::XrcTarget => (false, true),
        _ => (false, false),
    };
    let mut needs = match to {
        Init => vec![A::PKEY_INDEX, A::PORT, if connected { A::ACCESS_FLAGS } else { A::QKEY }],
        Rtr if connected => vec![A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN],
        Rts => vec![A::SQ_PSN],
        _ => vec![],
    };
    if to == Rtr && answers {
        needs.extend([A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]);
    }
    if to == Rts && (asks || answers) {
        needs.push(A::TIMEOUT);
    }
    if to == Rts && asks {
        needs.extend([A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC]);
    }
    needs
}

#[test]
fn a_move_without_one_of_its_attributes_is_refused_by_name_and_changes_nothing() {
    for kind in kinds() {
        for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts)] {
            let mut rig = Rig::at(kind, from);
            let complete = rig.move_to(to);
            let required = complete.mask().difference(AttributeMask::STATE);
            assert_eq!(required, needs(kind, to).into_iter().collect(), "{kind} {from} -> {to}");
            let before = rig.attributes();
            for missing in required.iter() {
                let refused = Err(ModifyError::Missing { kind, from, to, missing });
                assert_eq!(rig.sim.modify(rig.qp, &without(&complete, missing)), refused);
                assert_eq!(rig.attributes(), before, "{kind} {from} -> {to} without {missing}");
            }
            let timer = Modify { sqd_async_notify: Some(true), ..complete };
            let excess = AttributeMask::EN_SQD_ASYNC_NOTIFY;
            assert_eq!(rig.sim.modify(rig.qp, &timer), Err(ModifyError::NotAllowed { kind, from, to, excess }));
            assert_eq!(rig.attributes(), before);
            assert_eq!(rig.sim.modify(rig.qp, &complete), Ok(()));
            assert_eq!(rig.state(), to);
        }
    }
}

#[test]
fn a_program_that_is_wrong_about_the_state_is_told_so() {
    for kind in kinds() {
        for (state, right) in [(Rtr, true), (Rts, true), (Sqd, true), (Rtr, false), (Rts, false), (Sqd, false)] {
            let mut rig = Rig::at(kind, state);
            let believed = if right { state } else { Init };
            let modify = Modify { current_state: Some(believed), ..rig.move_to(Rts) };
            let before = rig.attributes();
            if right {
                assert_eq!(rig.sim.modify(rig.qp, &modify), Ok(()), "{kind} {state}");
                assert_eq!(rig.state(), Rts);
            } else {
                let refused = ModifyError::NotInState { believed, actual: state };
                assert_eq!(rig.sim.modify(rig.qp, &modify), Err(refused));
                assert_eq!(rig.attributes(), before);
            }
        }
    }
}

#[test]
fn a_refused_move_does_not_disturb_work_under_way() {
    let mut rig = Rig::at(Kind::ReliableConnected, Rts);
    rig.post_receive(50).unwrap();
    rig.sim.partition(rig.alice, rig.bob);
    for id in 0..3 {
        rig.sim.post(rig.qp, &Work::send().id(id)).unwrap();
    }
    rig.sim.run_for(100_000);
    let refused = [
        Modify { state: Some(Init), ..Modify::default() },
        Modify { state: Some(Sqd), retry_cnt: Some(1), ..Modify::default() },
        Modify { state: Some(Reset), timeout: Some(1), ..Modify::default() },
        Modify { state: Some(Error), qkey: Some(wire::Qkey::new(1)), ..Modify::default() },
        Modify { timeout: Some(1), ..Modify::default() },
        Modify { min_rnr_timer: Some(32), ..Modify::default() },
    ];
    let before = rig.attributes();
    for modify in refused {
        assert!(rig.sim.modify(rig.qp, &modify).is_err(), "{modify:?}");
        assert_eq!(rig.attributes(), before);
    }
    assert!(rig.completions().is_empty() && rig.events().is_empty());
    rig.sim.heal(rig.alice, rig.bob);
    rig.sim.run_until_idle();
    assert_eq!(rig.ends(), [(0, Status::Success), (1, Status::Success), (2, Status::Success)]);
    rig.sim.post(rig.peer, &Work::send()).unwrap();
    rig.sim.run_until_idle();
    assert_eq!(rig.ends(), [(50, Status::Success)], "the receive is still there");
}

#[test]
fn each_state_takes_the_work_it_should() {
    for kind in kinds() {
        for state in states(kind) {
            let mut rig = Rig::at(kind, state);
            let work = rig.address(Work::send().id(7));
            let posted = rig.sim.post(rig.qp, &work);
            rig.sim.run_until_idle();
            let ends = rig.ends();
            if kind == Kind::XrcTarget {
                let refused = PostError::NotSupported { transport: "XRC_RECV", operation: "SEND" };
                assert_eq!((posted, ends), (Err(refused), vec![]), "{state}");
            } else {
                match state {
                    Reset | Init | Rtr => {
                        assert_eq!(posted, Err(PostError::WrongState { state, queue: "send" }), "{kind}");
                        assert_eq!(ends, []);
                    }
                    Rts => assert_eq!((posted, ends), (Ok(()), vec![(7, Status::Success)]), "{kind}"),
                    // Taken, to be done when sending goes on.
                    Sqd => {
                        assert_eq!((posted, ends), (Ok(()), vec![]), "{kind}");
                        assert!(rig.log.packets().is_empty());
                        rig.go(Rts).unwrap();
                        rig.sim.run_until_idle();
                        assert_eq!(rig.ends(), [(7, Status::Success)], "{kind}");
                    }
                    Sqe | Error => {
                        assert_eq!((posted, ends), (Ok(()), vec![(7, Status::WorkRequestFlushed)]), "{kind} {state}");
                        assert!(rig.log.packets().is_empty());
                    }
                }
            }

            let mut rig = Rig::at(kind, state);
            let posted = rig.sim.receive(rig.qp, 8, &[]);
            let ends = rig.ends();
            match state {
                Reset => assert_eq!(posted, Err(PostError::WrongState { state, queue: "receive" }), "{kind}"),
                _ if !rig.takes_receives() => assert_eq!(posted, Err(PostError::NoReceiveQueue), "{kind} {state}"),
                Error => assert_eq!((posted, ends), (Ok(()), vec![(8, Status::WorkRequestFlushed)]), "{kind}"),
                _ => assert_eq!((posted, ends), (Ok(()), vec![]), "{kind} {state}"),
            }
        }
    }
}

#[test]
fn each_state_takes_the_requests_it_should_and_says_why_it_drops_others() {
    for kind in [Kind::ReliableConnected, Kind::UnreliableConnected, Kind::UnreliableDatagram, Kind::XrcTarget] {
        for state in states(kind) {
            let mut rig = Rig::at(kind, state);
            let posted = rig.post_receive(5).is_ok();
            rig.completions();
            let drops = rig.inject(&rig.request(0), b"hello");
            let ends = rig.ends();
            let receives = matches!(state, Rtr | Rts | Sqd | Sqe);
            if receives {
                assert!(posted);
                assert_eq!((drops, ends), (vec![], vec![(5, Status::Success)]), "{kind} {state}");
                let answers = if kind.is_reliable() { 1 } else { 0 };
                assert_eq!(rig.log.packets().len(), answers, "{kind} {state}");
            } else {
                assert_eq!((drops, ends), (vec![DropReason::WrongState], vec![]), "{kind} {state}");
                assert!(rig.log.packets().is_empty());
            }
        }
    }
}

#[test]
fn answers_count_only_where_requests_are_sent() {
    for kind in [Kind::ReliableConnected, Kind::XrcInitiator] {
        for state in states(kind) {
            let mut rig = Rig::at(kind, state);
            let transport = kind.transport();
            let opcodes = [
                Opcode::of(transport, Operation::Acknowledge, Position::Only, Tail::Plain).unwrap(),
                Opcode::of(transport, Operation::ReadResponse, Position::Only, Tail::Plain).unwrap(),
                Opcode::of(transport, Operation::AtomicAcknowledge, Position::Only, Tail::Plain).unwrap(),
            ];
            for opcode in opcodes {
                let mut headers = Headers::new(opcode, rig.qp.qpn, OWN);
                headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
                headers.atomic_ack = Some(wire::AtomicAckEth { original: 1 });
                let expected = match state {
                    Rts | Sqd => DropReason::GhostAck,
                    _ => DropReason::WrongState,
                };
                assert_eq!(rig.inject(&headers, b""), [expected], "{kind} {state} {opcode}");
            }
            let notification = Headers::new(Opcode::Cnp, rig.qp.qpn, Psn::new(0));
            let taken = matches!(state, Rtr | Rts | Sqd);
            let expected = if taken { vec![] } else { vec![DropReason::WrongState] };
            assert_eq!(rig.inject(&notification, &[0; 16]), expected, "{kind} {state}");
        }
    }
}

#[test]
fn a_queue_pair_that_is_ready_to_receive_answers_everything() {
    let mut rig = Rig::at(Kind::ReliableConnected, Rtr);
    rig.post_receive(5).unwrap();
    let peer = rig.peer;
    rig.sim.bytes_mut(&rig.far)[..3000].fill(7);
    for work in [
        Work::send().sge(rig.far.sge(0, 10)),
        Work::write(rig.near.remote(1000)).sge(rig.far.sge(0, 3000)),
        Work::read(rig.near.remote(1000)).sge(rig.far.sge(5000, 3000)),
        Work::fetch_add(rig.near.remote(0), 1).sge(rig.far.sge(9000, 8)),
        Work::flush(rig.near.remote(0), 8, wire::Placement::GLOBAL),
    ] {
        rig.sim.post(peer, &work).unwrap();
    }
    rig.sim.run_until_idle();
    let ends = rig.sim.completions(peer);
    assert!(ends.len() == 5 && ends.iter().all(|end| end.status == Status::Success), "{ends:?}");
    assert_eq!(rig.ends(), [(5, Status::Success)]);
    assert_eq!(rig.sim.bytes(&rig.far)[5000..8000], [7; 3000]);
    assert_eq!((rig.state(), rig.events()), (Rtr, vec![AsyncEvent::CommunicationEstablished]));
}

#[test]
fn the_first_packet_in_rtr_is_told_once_per_life() {
    for kind in [Kind::ReliableConnected, Kind::UnreliableConnected, Kind::XrcTarget] {
        let mut rig = Rig::at(kind, Rtr);
        for nth in 0..3 {
            rig.post_receive(nth).unwrap();
        }
        for nth in 0..2 {
            rig.inject(&rig.request(nth), b"");
        }
        assert_eq!(rig.events(), [AsyncEvent::CommunicationEstablished], "{kind}");
        rig.go(Rts).unwrap();
        rig.inject(&rig.request(2), b"");
        assert_eq!(rig.events(), [], "{kind}");
        // Another life, another first packet.
        rig.go(Reset).unwrap();
        rig.walk(Rtr);
        rig.post_receive(9).unwrap();
        rig.inject(&rig.request(0), b"");
        assert_eq!(rig.events(), [AsyncEvent::CommunicationEstablished], "{kind}");
        // A packet that is dropped unread is no communication.
        let mut rig = Rig::at(kind, Rtr);
        let mut stray = rig.request(0);
        stray.bth.pkey = wire::Pkey::new(0x8001);
        assert_eq!(rig.inject(&stray, b""), [DropReason::PkeyMismatch]);
        assert_eq!(rig.events(), [], "{kind}");
        // Who was ready to send first needs no telling.
        let mut rig = Rig::at(kind, Rts);
        rig.post_receive(0).unwrap();
        rig.inject(&rig.request(0), b"");
        assert_eq!(rig.events(), [], "{kind}");
    }
}

#[test]
fn from_every_state_error_flushes_all_that_was_posted_in_order() {
    for kind in kinds() {
        for state in states(kind) {
            let mut rig = Rig::at(kind, state);
            let mut expected = Vec::new();
            rig.sim.partition(rig.alice, rig.bob);
            let flushed = Status::WorkRequestFlushed;
            if rig.kind.has_send_queue() {
                for id in 0..3 {
                    let work = rig.address(Work::send().id(id).unsignaled());
                    if rig.sim.post(rig.qp, &work).is_ok() && kind.is_reliable() && state != Error || state == Sqd {
                        expected.push((id, flushed));
                    }
                }
            }
            if rig.takes_receives() {
                for id in 10..13 {
                    if rig.sim.receive(rig.qp, id, &[]).is_ok() && state != Error {
                        expected.push((id, flushed));
                    }
                }
            }
            rig.sim.run_for(5_000);
            rig.completions();
            rig.go(Error).unwrap();
            assert_eq!(rig.ends(), expected, "{kind} {state}");
            let packets = rig.log.packets().len();
            rig.sim.run_until_idle();
            assert_eq!(rig.log.packets().len(), 0, "{kind} {state}: silent after {packets}");
            assert!(rig.ends().is_empty() && rig.events().is_empty());
            assert_eq!(rig.state(), Error);
        }
    }
}

#[test]
fn from_every_state_reset_forgets_everything_and_life_begins_anew() {
    for kind in kinds() {
        for state in states(kind) {
            let mut rig = Rig::at(kind, state);
            let fresh = Rig::new(kind).attributes();
            rig.sim.partition(rig.alice, rig.bob);
            for id in 0..3 {
                if kind.has_send_queue() {
                    let work = rig.address(Work::send().id(id));
                    let _ = rig.sim.post(rig.qp, &work);
                }
                if rig.takes_receives() {
                    let _ = rig.sim.receive(rig.qp, 10 + id, &[]);
                }
            }
            rig.sim.run_for(5_000);
            rig.completions();
            rig.events();
            rig.go(Reset).unwrap();
            let at = rig.sim.now();
            rig.sim.run_until_idle();
            assert_eq!(rig.sim.now(), at, "{kind} {state}: no timer is left");
            assert!(rig.ends().is_empty() && rig.events().is_empty(), "{kind} {state}");
            assert_eq!(rig.attributes(), fresh, "{kind} {state}");
            rig.sim.heal(rig.alice, rig.bob);
            rig.log.clear();

            // A new life: nothing of the old work is sent, none of the old receives is there.
            rig.sim.modify(rig.peer, &Modify { state: Some(Reset), ..Modify::default() }).unwrap();
            let (qp, peer, options) = (rig.qp, rig.peer, rig.options);
            if kind == Kind::UnreliableDatagram {
                rig.sim.activate(qp, &options);
                rig.sim.activate(peer, &options);
            } else {
                rig.sim.connect(qp, peer, &options);
            }
            rig.sim.run_until_idle();
            assert!(rig.log.packets().is_empty());
            if rig.takes_receives() {
                rig.sim.receive(qp, 77, &[rig.near.sge(0, 100)]).unwrap();
                rig.inject(&rig.request(0), b"");
                assert_eq!(rig.ends(), [(77, Status::Success)], "{kind} {state}");
            }
            if kind.has_send_queue() {
                if rig.sim.state(peer) == Rts && other_end(kind).has_receive_queue() {
                    rig.sim.receive(peer, 1, &[rig.far.sge(0, 100)]).unwrap();
                }
                let work = rig.address(Work::send().id(78));
                rig.sim.post(qp, &work).unwrap();
                rig.sim.run_until_idle();
                assert_eq!(rig.ends(), [(78, Status::Success)], "{kind} {state}");
            }
        }
    }
}

#[test]
fn a_local_fault_breaks_reliable_queue_pairs_and_stops_unreliable_ones() {
    for kind in kinds().filter(|kind| kind.has_send_queue()) {
        let mut rig = Rig::at(kind, Rts);
        let bad = Sge { address: 0, length: 1, key: Key::new(0xdead_0000) };
        let work = rig.address(Work::send().id(1)).sge(bad);
        rig.sim.post(rig.qp, &work).unwrap();
        let work = rig.address(Work::send().id(2));
        rig.sim.post(rig.qp, &work).unwrap();
        rig.sim.run_until_idle();
        assert_eq!(rig.ends(), [(1, Status::LocalProtection), (2, Status::WorkRequestFlushed)], "{kind}");
        assert_eq!(rig.state(), if kind.is_reliable() { Error } else { Sqe }, "{kind}");
        assert!(rig.log.packets().is_empty(), "{kind}");
    }
}

#[test]
fn rights_and_timers_may_change_while_the_queue_pair_works() {
    let mut rig = Rig::at(Kind::ReliableConnected, Rts);
    let peer = rig.peer;
    rig.sim.modify(rig.qp, &Modify { min_rnr_timer: Some(9), ..Modify::default() }).unwrap();
    rig.sim.post(peer, &Work::send()).unwrap();
    rig.sim.run_for(20_000);
    let refusals: Vec<_> = rig.log.packets().iter().filter_map(|seen| seen.syndrome()).collect();
    assert_eq!(refusals, [Syndrome::RnrNak { timer: RnrTimer::new(9) }]);
    rig.post_receive(1).unwrap();
    rig.sim.run_until_idle();
    assert_eq!(rig.sim.completions(peer).len(), 1);

    rig.sim.post(peer, &Work::write(rig.near.remote(0)).sge(rig.far.sge(0, 8))).unwrap();
    rig.sim.run_until_idle();
    assert_eq!(rig.sim.completions(peer)[0].status, Status::Success);
    rig.sim.modify(rig.qp, &Modify { access: Some(Access::REMOTE_READ), ..Modify::default() }).unwrap();
    rig.sim.post(peer, &Work::read(rig.near.remote(0)).sge(rig.far.sge(0, 8))).unwrap();
    rig.sim.run_until_idle();
    assert_eq!(rig.sim.completions(peer)[0].status, Status::Success);
    rig.sim.post(peer, &Work::write(rig.near.remote(0)).sge(rig.far.sge(0, 8))).unwrap();
    rig.sim.run_until_idle();
    assert_eq!(rig.sim.completions(peer)[0].status, Status::RemoteInvalidRequest);
    assert_eq!((rig.state(), rig.events()), (Error, vec![AsyncEvent::QpRequestError]));
}

#[test]
fn numbers_asked_for_are_the_next_to_send_and_the_next_expected() {
    for kind in [Kind::ReliableConnected, Kind::UnreliableConnected] {
        let mut rig = Rig::at(kind, Rtr);
        assert_eq!(rig.attributes().rq_psn, OTHER);
        rig.post_receive(0).unwrap();
        rig.inject(&rig.request(0), b"");
        assert_eq!(rig.attributes().rq_psn, OTHER.add(1), "{kind}");
        rig.go(Rts).unwrap();
        assert_eq!((rig.attributes().sq_psn, rig.attributes().rq_psn), (OWN, OTHER.add(1)));
        rig.sim.post(rig.qp, &Work::write(rig.far.remote(0)).sge(rig.near.sge(0, 3000))).unwrap();
        assert_eq!(rig.attributes().sq_psn, OWN.add(3), "{kind}");
    }
}

#[test]
fn old_packets_find_a_queue_pair_in_reset_or_gone() {
    let mut rig = Rig::at(Kind::ReliableConnected, Rts);
    let peer = rig.peer;
    rig.sim.post(rig.qp, &Work::send()).unwrap();
    rig.sim.post(peer, &Work::write(rig.near.remote(0)).sge(rig.far.sge(0, 3000))).unwrap();
    rig.go(Reset).unwrap();
    rig.sim.run_for(7_000);
    assert_eq!(rig.log.drops(rig.alice), [DropReason::WrongState; 3], "the write finds nobody");
    rig.sim.run_for(7_000);
    assert_eq!(rig.log.drops(rig.alice), [DropReason::WrongState], "nor does the acknowledgement of the send");
    rig.sim.destroy_qp(rig.qp);
    rig.sim.run_until_idle();
    let drops = rig.log.drops(rig.alice);
    assert!(!drops.is_empty() && drops.iter().all(|reason| *reason == DropReason::UnknownQp), "{drops:?}");
    let ends = rig.sim.completions(peer);
    let write = ends.iter().find(|end| end.kind == transport::CompletionKind::Write).unwrap();
    assert_eq!(write.status, Status::RetryExceeded);
}
