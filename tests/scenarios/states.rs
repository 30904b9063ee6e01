//! The life of a queue pair: which moves it makes, and what works in each state. The transition table has its own tests; here a live queue pair
//! is walked through it.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Log};
use sim::script::times;
use sim::{ConnectOptions, Fate, HostConfig, HostId, QpId, QpSpec, Region, Sim, SrqId, SrqSpec, Work};
use trace::DropReason;
use transport::{
    Access, AsyncEvent, AttributeMask, Attributes, Completion, Kind, Modify, ModifyError, PostError, Sge, State, Status,
};
use wire::{Aeth, Deth, Headers, Key, Msn, Opcode, Operation, Position, Psn, RnrTimer, Syndrome, Tail};

use State::{
    Error, Init, ReadyToReceive as Rtr, ReadyToSend as Rts, Reset, SendQueueDrained as Sqd, SendQueueError as Sqe,
};

/// The first sequence number of the queue pair under test, and of its peer.
const OWN: Psn = Psn::new(100);
const OTHER: Psn = Psn::new(200);

/// A queue pair under test on Alice's host, and a peer on Bob's that is ready for it.
struct Rig {
    sim: Sim,
    log: Log,
    kind: Kind,
    alice: HostId,
    bob: HostId,
    qp: QpId,
    peer: QpId,
    near: Region,
    far: Region,
    /// What an XRC target draws from.
    queue: SrqId,
    options: ConnectOptions,
}

fn spec(kind: Kind) -> QpSpec {
    QpSpec::new(kind)
}

fn other_end(kind: Kind) -> Kind {
    match kind {
        Kind::XrcInitiator => Kind::XrcTarget,
        Kind::XrcTarget => Kind::XrcInitiator,
        kind => kind,
    }
}

/// The states a queue pair of this kind can be in.
fn states(kind: Kind) -> Vec<State> {
    State::ALL.into_iter().filter(|state| *state != Sqe || !kind.is_reliable()).collect()
}

/// The moves of IBA 10.3.1, figure 124.
fn is_legal(kind: Kind, from: State, to: State) -> bool {
    match (from, to) {
        (_, Reset | Error) => true,
        (Reset | Init, Init) | (Init, Rtr) | (Rtr, Rts) | (Rts | Sqd, Rts | Sqd) => true,
        (Sqe, Rts) => !kind.is_reliable(),
        _ => false,
    }
}

impl Rig {
    fn new(kind: Kind) -> Rig {
        let mut sim = Sim::new(1);
        let log = Log::of(&mut sim);
        let alice = sim.add_host(HostConfig::named("alice"));
        let bob = sim.add_host(HostConfig::named("bob"));
        let qp = sim.create_qp(alice, spec(kind));
        let peer = sim.create_qp(bob, spec(other_end(kind)));
        let queue = sim.create_srq(alice, SrqSpec { xrc_domain: Some(1), ..SrqSpec::default() });
        let bobs = sim.create_srq(bob, SrqSpec { xrc_domain: Some(1), ..SrqSpec::default() });
        let near = sim.register(alice, QpSpec::PD, 10_000, ALL_ACCESS);
        let far = sim.register(bob, QpSpec::PD, 10_000, ALL_ACCESS);
        let options = ConnectOptions { psn: Some((OWN, OTHER)), ..ConnectOptions::default() };
        for state in [Init, Rtr, Rts] {
            let modify = sim.modification(peer, qp, OTHER, OWN, state, &options);
            sim.modify(peer, &modify).unwrap();
        }
        if other_end(kind) == Kind::XrcTarget {
            for _ in 0..50 {
                sim.receive_shared(bobs, 0, &[far.sge(0, 100)]).unwrap();
            }
        } else if other_end(kind).has_receive_queue() {
            for _ in 0..50 {
                sim.receive(peer, 0, &[far.sge(0, 200)]).unwrap();
            }
        }
        log.clear();
        Rig { sim, log, kind, alice, bob, qp, peer, near, far, queue, options }
    }

    fn at(kind: Kind, state: State) -> Rig {
        let mut rig = Rig::new(kind);
        rig.walk(state);
        rig.log.clear();
        rig
    }

    /// From RESET to `state` by the shortest way.
    fn walk(&mut self, state: State) {
        let way: &[State] = match state {
            Reset => &[],
            Init => &[Init],
            Rtr => &[Init, Rtr],
            Rts | Sqe => &[Init, Rtr, Rts],
            Sqd => &[Init, Rtr, Rts, Sqd],
            Error => &[Error],
        };
        for step in way {
            self.go(*step).unwrap();
        }
        if state == Sqe {
            let bad = Sge { address: 0, length: 1, key: Key::new(0xdead_0000) };
            let work = self.address(Work::send()).sge(bad);
            self.sim.post(self.qp, &work).unwrap();
            assert_eq!(self.completions().len(), 1);
        }
        assert_eq!(self.state(), state);
    }

    /// What the move to `state` requires, and nothing else.
    fn move_to(&self, state: State) -> Modify {
        self.sim.modification(self.qp, self.peer, OWN, OTHER, state, &self.options)
    }

    fn go(&mut self, state: State) -> Result<(), ModifyError> {
        let modify = self.move_to(state);
        self.sim.modify(self.qp, &modify)
    }

    fn state(&self) -> State {
        self.sim.state(self.qp)
    }

    fn attributes(&self) -> Attributes {
        self.sim.attributes(self.qp)
    }

    fn completions(&mut self) -> Vec<Completion> {
        self.sim.completions(self.qp)
    }

    fn ends(&mut self) -> Vec<(u64, Status)> {
        self.completions().iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }

    fn events(&mut self) -> Vec<AsyncEvent> {
        self.sim.async_events(self.qp)
    }

    /// Adds what work of this kind of queue pair needs to find its way.
    fn address(&self, work: Work) -> Work {
        match self.kind {
            Kind::UnreliableDatagram => work.to(self.sim.datagram_target(self.peer, &self.options)),
            // Bob's queue is the second that was made.
            Kind::XrcInitiator => work.to_srq(wire::Srqn::new(2)),
            _ => work,
        }
    }

    /// A SEND of the peer's that it never sent, with the `nth` sequence number.
    fn request(&self, nth: u32) -> Headers {
        let transport = other_end(self.kind).transport();
        let opcode = Opcode::of(transport, Operation::Send, Position::Only, Tail::Plain).unwrap();
        let mut headers = Headers::new(opcode, self.qp.qpn, OTHER.add(nth));
        headers.bth.ack_req = self.kind.is_reliable();
        headers.xrc = (self.kind == Kind::XrcTarget).then_some(self.queue.srqn);
        if self.kind == Kind::UnreliableDatagram {
            headers.deth = Some(Deth { qkey: self.options.qkey, src_qpn: self.peer.qpn });
        }
        headers
    }

    fn inject(&mut self, headers: &Headers, payload: &[u8]) -> Vec<DropReason> {
        self.log.clear();
        let source = self.sim.gid(self.bob, 0);
        self.sim.inject(self.alice, source, headers, payload).unwrap();
        self.sim.run_until_idle();
        self.log.drops(self.alice)
    }

    fn post_receive(&mut self, wr_id: u64) -> Result<(), PostError> {
        if self.kind == Kind::XrcTarget {
            return self.sim.receive_shared(self.queue, wr_id, &[self.near.sge(0, 200)]);
        }
        self.sim.receive(self.qp, wr_id, &[self.near.sge(0, 200)])
    }

    fn takes_receives(&self) -> bool {
        self.kind.has_receive_queue()
    }
}

#[test]
fn every_legal_move_is_made_and_every_other_leaves_everything_as_it_was() {
    for kind in Kind::ALL {
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
    for kind in Kind::ALL {
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
            let timer = Modify { rate_limit: Some(5), ..complete };
            let excess = AttributeMask::RATE_LIMIT;
            assert_eq!(rig.sim.modify(rig.qp, &timer), Err(ModifyError::NotAllowed { kind, from, to, excess }));
            assert_eq!(rig.attributes(), before);
            assert_eq!(rig.sim.modify(rig.qp, &complete), Ok(()));
            assert_eq!(rig.state(), to);
        }
    }
}

#[test]
fn a_program_that_is_wrong_about_the_state_is_told_so() {
    for kind in Kind::ALL {
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
    for kind in Kind::ALL {
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
    for kind in Kind::ALL {
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
    for kind in Kind::ALL {
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
    for kind in Kind::ALL.into_iter().filter(|kind| kind.has_send_queue()) {
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
fn draining_lets_what_has_begun_end_and_begins_nothing_new() {
    for kind in [Kind::ReliableConnected, Kind::XrcInitiator] {
        for lost in [0, 3] {
            let mut rig = Rig::at(kind, Rts);
            for id in 0..2 {
                let work = rig.address(Work::send().id(id));
                rig.sim.post(rig.qp, &work).unwrap();
            }
            let alice = rig.alice;
            // What was under way is lost; only what is sent again arrives.
            if lost > 0 {
                rig.sim.partition(rig.alice, rig.bob);
                rig.sim.run_for(1_000);
            }
            rig.sim.script(times(lost, move |sighting| sighting.from == alice, Fate::Drop));
            let drain = Modify { sqd_async_notify: Some(true), ..rig.move_to(Sqd) };
            rig.sim.modify(rig.qp, &drain).unwrap();
            assert_eq!(rig.state(), Sqd);
            assert_eq!(rig.events(), [], "not yet");
            for id in 2..4 {
                let work = rig.address(Work::send().id(id));
                rig.sim.post(rig.qp, &work).unwrap();
            }
            rig.sim.heal(rig.alice, rig.bob);
            rig.sim.run_until_idle();
            assert_eq!(rig.ends(), [(0, Status::Success), (1, Status::Success)], "{kind}");
            assert_eq!(rig.events(), [AsyncEvent::SendQueueDrained], "{kind}");
            assert_eq!(rig.sim.attributes(rig.qp).sq_psn, OWN.add(2));
            rig.go(Rts).unwrap();
            rig.sim.run_until_idle();
            assert_eq!(rig.ends(), [(2, Status::Success), (3, Status::Success)], "{kind}");
            assert_eq!(rig.events(), [], "once");
        }
    }
}

#[test]
fn a_drained_queue_says_so_at_once_and_only_if_it_was_asked() {
    for kind in Kind::ALL {
        for (asked, expected) in
            [(Some(true), vec![AsyncEvent::SendQueueDrained]), (Some(false), vec![]), (None, vec![])]
        {
            let mut rig = Rig::at(kind, Rts);
            let drain = Modify { sqd_async_notify: asked, ..rig.move_to(Sqd) };
            rig.sim.modify(rig.qp, &drain).unwrap();
            rig.sim.run_until_idle();
            assert_eq!(rig.events(), expected, "{kind} {asked:?}");
            // Moving within SQD owes nothing new.
            rig.go(Sqd).unwrap();
            assert_eq!(rig.events(), [], "{kind}");
        }
    }
}

#[test]
fn a_read_under_way_is_drained_when_its_answer_is_there() {
    let mut rig = Rig::at(Kind::ReliableConnected, Rts);
    rig.sim.post(rig.qp, &Work::read(rig.far.remote(0)).sge(rig.near.sge(0, 5000)).id(1)).unwrap();
    rig.sim.post(rig.qp, &Work::fetch_add(rig.far.remote(0), 1).sge(rig.near.sge(8000, 8)).id(2)).unwrap();
    let bob = rig.bob;
    rig.sim.script(times(2, move |sighting| sighting.from == bob, Fate::Drop));
    let drain = Modify { sqd_async_notify: Some(true), ..rig.move_to(Sqd) };
    rig.sim.modify(rig.qp, &drain).unwrap();
    let (qp, mut done) = (rig.qp, 0);
    rig.sim.run_until(1_000_000_000, |sim| {
        let events = sim.async_events(qp);
        if events.is_empty() {
            return false;
        }
        done = sim.completion_count(qp);
        assert_eq!(events, [AsyncEvent::SendQueueDrained]);
        true
    });
    assert_eq!(done, 2, "both were complete when it was told");
    assert_eq!(rig.ends(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_peer_is_served_while_the_send_queue_drains() {
    let mut rig = Rig::at(Kind::ReliableConnected, Sqd);
    rig.post_receive(5).unwrap();
    let peer = rig.peer;
    rig.sim.post(peer, &Work::send()).unwrap();
    rig.sim.post(peer, &Work::read(rig.near.remote(0)).sge(rig.far.sge(0, 3000))).unwrap();
    rig.sim.run_until_idle();
    assert!(rig.sim.completions(peer).iter().all(|end| end.status == Status::Success));
    assert_eq!((rig.ends(), rig.state()), (vec![(5, Status::Success)], Sqd));
}

#[test]
fn attributes_changed_while_drained_count_afterwards() {
    let mut rig = Rig::at(Kind::ReliableConnected, Sqd);
    let change = Modify { timeout: Some(10), retry_cnt: Some(2), ..rig.move_to(Sqd) };
    rig.sim.modify(rig.qp, &change).unwrap();
    let attributes = rig.attributes();
    assert_eq!((attributes.timeout, attributes.retry_cnt, attributes.sq_psn), (10, 2, OWN));
    rig.go(Rts).unwrap();
    rig.sim.partition(rig.alice, rig.bob);
    let start = rig.sim.now();
    rig.sim.post(rig.qp, &Work::send()).unwrap();
    rig.sim.run_until_idle();
    assert_eq!(rig.ends(), [(0, Status::RetryExceeded)]);
    assert_eq!(rig.log.packets().len(), 3);
    assert_eq!(rig.sim.now().since(start), 3 * (4096 << 10));
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
