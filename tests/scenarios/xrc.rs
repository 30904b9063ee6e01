//! Extended reliable connections: one connection between two processes, and any shared receive queue of the other's domain at its end.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Log, Setting};
use sim::script::{nth, times};
use sim::{ConnectOptions, Fate, HostConfig, HostId, QpId, QpSpec, Region, Rng, Sim, SrqId, SrqSpec, Work};
use trace::DropReason;
use transport::{
    Access, AsyncEvent, Completion, CompletionKind, Failure, Kind, Modify, PostError, ProtectionDomain, Queue,
    SrqEvent, State, Status,
};
use wire::{Headers, Key, Mtu, NakCode, Opcode, Placement, Psn, RnrTimer, Srqn, Syndrome};

/// Three processes share the target's host: the one that owns the connection, and two that own a shared receive queue each.
const FIRST: ProtectionDomain = ProtectionDomain(21);
const SECOND: ProtectionDomain = ProtectionDomain(22);

fn initiator() -> QpSpec {
    QpSpec::new(Kind::XrcInitiator)
}

fn target() -> QpSpec {
    QpSpec::new(Kind::XrcTarget)
}

struct Stage {
    sim: Sim,
    alice: HostId,
    bob: HostId,
    a: QpId,
    b: QpId,
    near: Region,
    /// The shared receive queues and memory of their owners.
    queues: [SrqId; 2],
    memory: [Region; 2],
    options: ConnectOptions,
    log: Log,
}

impl Stage {
    fn new(setting: &Setting) -> Stage {
        let mut sim = Sim::new(setting.seed);
        sim.set_default_link(setting.link);
        let log = Log::of(&mut sim);
        let alice = sim.add_host(HostConfig::named("alice"));
        let bob = sim.add_host(HostConfig::named("bob"));
        let a = sim.create_qp(alice, initiator());
        let b = sim.create_qp(bob, target());
        sim.connect(a, b, &setting.options);
        let mut bytes = vec![0; 100_000];
        Rng::new(8).fill(&mut bytes);
        let near = sim.register_bytes(alice, QpSpec::PD, bytes, ALL_ACCESS);
        let queues =
            [FIRST, SECOND].map(|pd| sim.create_srq(bob, SrqSpec { pd, xrc_domain: Some(1), ..SrqSpec::default() }));
        let memory = [FIRST, SECOND].map(|pd| sim.register(bob, pd, 100_000, ALL_ACCESS));
        log.clear();
        Stage { sim, alice, bob, a, b, near, queues, memory, options: setting.options, log }
    }

    /// Posts a receive of `length` bytes at `offset` of its owner's memory.
    fn receive(&mut self, queue: usize, wr_id: u64, offset: u64, length: u32) {
        self.sim.receive_shared(self.queues[queue], wr_id, &[self.memory[queue].sge(offset, length)]).unwrap();
    }

    #[track_caller]
    fn finish(&mut self, work: &Work) -> Completion {
        self.sim.post(self.a, work).expect("the work is taken");
        self.sim.run_until_idle();
        self.one(self.a)
    }

    #[track_caller]
    fn succeed(&mut self, work: &Work) -> Completion {
        let completion = self.finish(work);
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        completion
    }

    #[track_caller]
    fn one(&mut self, qp: QpId) -> Completion {
        let completions = self.sim.completions(qp);
        let [completion] = completions.as_slice() else { panic!("one completion expected: {completions:?}") };
        *completion
    }

    fn near_bytes(&self, offset: usize, length: usize) -> &[u8] {
        &self.sim.bytes(&self.near)[offset..offset + length]
    }

    fn memory_bytes(&self, queue: usize, offset: usize, length: usize) -> &[u8] {
        &self.sim.bytes(&self.memory[queue])[offset..offset + length]
    }

    fn number(&self, queue: usize) -> Srqn {
        self.queues[queue].srqn
    }
}

#[test]
fn one_connection_reaches_every_shared_queue_of_the_domain() {
    for setting in Setting::all() {
        let mut stage = Stage::new(&setting);
        let length = 2 * setting.options.mtu.bytes() + 5;
        let size = length as usize;
        for (nth, queue) in [0, 1, 1, 0, 1].into_iter().enumerate() {
            let offset = nth as u64;
            stage.receive(queue, 100 + nth as u64, offset, length);
            let immediate = (nth % 2 == 1).then_some(nth as u32);
            let work = Work::send().sge(stage.near.sge(offset, length)).to_srq(stage.number(queue)).solicited();
            let work = if let Some(value) = immediate { work.immediate(value) } else { work };
            assert_eq!(stage.succeed(&work).kind, CompletionKind::Send);
            let got = stage.one(stage.b);
            assert_eq!((got.wr_id, got.status, got.bytes), (100 + nth as u64, Status::Success, length));
            assert_eq!((got.kind, got.immediate), (CompletionKind::Receive, immediate));
            assert_eq!((got.queue, got.qpn), (Queue::Shared(stage.number(queue)), stage.b.qpn));
            assert!(got.solicited && !got.grh);
            assert_eq!(stage.memory_bytes(queue, nth, size), stage.near_bytes(nth, size), "{setting:?}");
        }
    }
}

#[test]
fn every_operation_acts_in_the_domain_of_the_shared_queue_it_names() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting);
        for queue in [0, 1] {
            let srqn = stage.number(queue);
            let remote = stage.memory[queue].remote(1000);
            let put = |work: Work, stage: &Stage| work.sge(stage.near.sge(0, 3000)).to_srq(srqn);
            assert_eq!(stage.succeed(&put(Work::write(remote), &stage)).kind, CompletionKind::Write);
            assert_eq!(stage.memory_bytes(queue, 1000, 3000), stage.near_bytes(0, 3000));

            stage.sim.receive_shared(stage.queues[queue], 50, &[]).unwrap();
            stage.succeed(&put(Work::write(remote).immediate(9), &stage));
            let got = stage.one(stage.b);
            assert_eq!((got.wr_id, got.immediate, got.bytes), (50, Some(9), 3000));
            assert_eq!((got.kind, got.queue), (CompletionKind::ReceiveWriteImmediate, Queue::Shared(srqn)));

            let into = stage.near.sge(50_000, 3000);
            assert_eq!(stage.succeed(&Work::read(remote).sge(into).to_srq(srqn)).bytes, 3000);
            assert_eq!(stage.near_bytes(50_000, 3000), stage.near_bytes(0, 3000));

            let cell = stage.memory[queue].remote(8000);
            let result = stage.near.sge(60_000, 8);
            let value = |stage: &Stage| u64::from_ne_bytes(stage.memory_bytes(queue, 8000, 8).try_into().unwrap());
            let before = |stage: &Stage| u64::from_ne_bytes(stage.near_bytes(60_000, 8).try_into().unwrap());
            stage.succeed(&Work::fetch_add(cell, 5).sge(result).to_srq(srqn));
            assert_eq!((before(&stage), value(&stage)), (0, 5));
            stage.succeed(&Work::compare_swap(cell, 5, 70).sge(result).to_srq(srqn));
            assert_eq!((before(&stage), value(&stage)), (5, 70));
            stage.succeed(&Work::atomic_write(cell).sge(stage.near.sge(16, 8)).to_srq(srqn));
            assert_eq!(stage.memory_bytes(queue, 8000, 8), stage.near_bytes(16, 8));
            let kind = stage.succeed(&Work::flush(cell, 8, Placement::GLOBAL).to_srq(srqn)).kind;
            assert_eq!((kind, stage.sim.completions(stage.b)), (CompletionKind::Flush, vec![]));
        }
    }
}

#[test]
fn memory_of_another_domain_is_refused_even_if_it_is_the_connections_own() {
    for setting in Setting::each_link() {
        // What the first queue's owner has, seen through the second; and what the connection's owner has, seen through either.
        for (queue, other) in [(0, SECOND), (1, FIRST), (0, QpSpec::PD), (1, QpSpec::PD)] {
            for operation in 0..3 {
                let mut stage = Stage::new(&setting);
                let region = stage.sim.register(stage.bob, other, 64, ALL_ACCESS);
                let sge = stage.near.sge(0, 8);
                let work = match operation {
                    0 => Work::write(region.remote(0)).sge(sge),
                    1 => Work::read(region.remote(0)).sge(sge),
                    _ => Work::fetch_add(region.remote(0), 1).sge(sge),
                };
                let before = stage.near_bytes(0, 8).to_vec();
                let end = stage.finish(&work.to_srq(stage.number(queue)));
                assert_eq!(end.status, Status::RemoteAccess, "queue {queue}, {other:?}, operation {operation}");
                assert_eq!((stage.sim.state(stage.a), stage.sim.state(stage.b)), (State::Error, State::Error));
                assert_eq!(stage.sim.async_events(stage.b), [AsyncEvent::QpAccessError]);
                assert!(stage.sim.bytes(&region).iter().all(|byte| *byte == 0));
                assert_eq!(stage.near_bytes(0, 8), before);
            }
        }
    }
}

#[test]
fn a_receive_names_memory_of_its_own_queues_domain() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting);
        // The second owner's memory in the first owner's queue.
        let foreign = stage.memory[1].sge(0, 100);
        stage.sim.receive_shared(stage.queues[0], 1, &[foreign]).unwrap();
        stage.receive(0, 2, 0, 100);
        let end = stage.finish(&Work::send().sge(stage.near.sge(0, 50)).to_srq(stage.number(0)));
        assert_eq!(end.status, Status::RemoteOperation);
        let got = stage.one(stage.b);
        assert_eq!((got.wr_id, got.status), (1, Status::LocalProtection));
        assert_eq!(got.queue, Queue::Shared(stage.number(0)));
        assert!(stage.memory_bytes(1, 0, 100).iter().all(|byte| *byte == 0));
        assert_eq!(stage.sim.srq(stage.queues[0]).len(), 1, "the queue itself is unharmed");
    }
}

#[test]
fn a_number_that_is_no_shared_queue_of_the_domain_breaks_the_connection() {
    for setting in Setting::each_link() {
        for (what, number) in [("nobody's", 0), ("another domain's", 1), ("no domain's", 2), ("a destroyed one's", 3)] {
            for operation in 0..4 {
                let mut stage = Stage::new(&setting);
                let other = stage.sim.create_srq(stage.bob, SrqSpec { xrc_domain: Some(2), ..SrqSpec::default() });
                let plain = stage.sim.create_srq(stage.bob, SrqSpec::default());
                let srqn = match number {
                    0 => Srqn::new(0xabcdef),
                    1 => other.srqn,
                    2 => plain.srqn,
                    _ => {
                        assert!(stage.sim.destroy_srq(stage.queues[0]));
                        stage.number(0)
                    }
                };
                for queue in [other, plain] {
                    stage.sim.receive_shared(queue, 9, &[stage.memory[0].sge(0, 100)]).unwrap();
                }
                let (remote, sge) = (stage.memory[0].remote(0), stage.near.sge(0, 8));
                let work = match operation {
                    0 => Work::send().sge(sge),
                    1 => Work::write(remote).sge(sge),
                    2 => Work::read(remote).sge(sge),
                    _ => Work::fetch_add(remote, 1).sge(sge),
                };
                let end = stage.finish(&work.to_srq(srqn).id(4));
                assert_eq!((end.wr_id, end.status), (4, Status::RemoteInvalidRequest), "{what}, operation {operation}");
                let code = NakCode::InvalidRequest;
                assert!(matches!(end.failure(), Some(Failure::Nak { code: given, .. }) if given == code), "{end:?}");
                assert_eq!((stage.sim.state(stage.a), stage.sim.state(stage.b)), (State::Error, State::Error));
                assert_eq!(stage.sim.async_events(stage.b), [AsyncEvent::QpRequestError]);
                assert_eq!(stage.sim.completions(stage.b), []);
                assert!(stage.sim.bytes(&stage.memory[0]).iter().all(|byte| *byte == 0));
                assert_eq!((stage.sim.srq(other).len(), stage.sim.srq(plain).len()), (1, 1), "nothing was taken");
            }
        }
    }
}

#[test]
fn an_empty_queue_is_asked_again_as_often_as_agreed() {
    for setting in Setting::each_link() {
        for (rnr_retry, posted_at_try, succeeds) in
            [(0, 1, false), (1, 2, true), (1, 3, false), (3, 4, true), (3, 5, false), (7, 12, true)]
        {
            let mut setting = setting;
            setting.options.rnr_retry = rnr_retry;
            let mut stage = Stage::new(&setting);
            // The other queue is full of receives, which help nobody.
            stage.receive(1, 77, 0, 100);
            stage.sim.post(stage.a, &Work::send().sge(stage.near.sge(0, 100)).to_srq(stage.number(0)).id(1)).unwrap();
            stage.sim.post(stage.a, &Work::send().to_srq(stage.number(1)).id(2)).unwrap();
            let mut seen = 0;
            let log = stage.log.clone();
            let refusal = Some(Syndrome::RnrNak { timer: RnrTimer::new(1) });
            let refusals = || log.packets().iter().filter(|seen| seen.syndrome() == refusal).count();
            stage.sim.run_until(1_000_000_000, |_| {
                seen += refusals();
                seen + 1 >= posted_at_try
            });
            if seen + 1 >= posted_at_try && posted_at_try > 1 {
                stage.receive(0, 1, 0, 100);
            }
            stage.sim.run_until_idle();
            let ends: Vec<_> = stage.sim.completions(stage.a).iter().map(|c| (c.wr_id, c.status)).collect();
            let got: Vec<_> = stage.sim.completions(stage.b).iter().map(|c| (c.wr_id, c.queue)).collect();
            if succeeds {
                assert_eq!(
                    ends,
                    [(1, Status::Success), (2, Status::Success)],
                    "{rnr_retry} retries, try {posted_at_try}"
                );
                let (first, second) = (Queue::Shared(stage.number(0)), Queue::Shared(stage.number(1)));
                assert_eq!(got, [(1, first), (77, second)], "in the order they were sent");
            } else {
                assert_eq!(ends, [(1, Status::RnrRetryExceeded), (2, Status::WorkRequestFlushed)]);
                assert_eq!(got, []);
                assert_eq!(seen + refusals(), usize::from(rnr_retry) + 1);
                assert_eq!((stage.sim.state(stage.a), stage.sim.state(stage.b)), (State::Error, State::ReadyToSend));
            }
        }
    }
}

#[test]
fn an_initiator_only_asks_and_a_target_only_answers() {
    let mut stage = Stage::new(&Setting::default());
    let sge = [stage.near.sge(0, 8)];
    assert_eq!(stage.sim.receive(stage.a, 1, &sge), Err(PostError::NoReceiveQueue));
    assert_eq!(stage.sim.receive(stage.b, 1, &sge), Err(PostError::NoReceiveQueue));
    let work = Work::send().to_srq(stage.number(0));
    let refused = PostError::NotSupported { transport: "XRC_RECV", operation: "SEND" };
    assert_eq!(stage.sim.post(stage.b, &work), Err(refused));

    // Requests to an initiator and answers to a target are nobody's, however well they fit.
    let (here, there) = (stage.sim.gid(stage.alice, 0), stage.sim.gid(stage.bob, 0));
    let mut request = Headers::new(Opcode::XrcSendOnly, stage.a.qpn, stage.sim.attributes(stage.a).rq_psn);
    request.xrc = Some(stage.number(0));
    stage.sim.inject(stage.alice, there, &request, b"unasked").unwrap();
    let mut answer = Headers::new(Opcode::XrcAcknowledge, stage.b.qpn, stage.sim.attributes(stage.b).sq_psn);
    answer.aeth = Some(wire::Aeth { syndrome: Syndrome::ACK, msn: wire::Msn::new(1) });
    stage.sim.inject(stage.bob, here, &answer, b"").unwrap();
    // And packets of plain reliable connections are of another transport.
    let plain = Headers::new(Opcode::RcSendOnly, stage.b.qpn, stage.sim.attributes(stage.b).rq_psn);
    stage.sim.inject(stage.bob, here, &plain, b"plain").unwrap();
    stage.sim.run_until_idle();
    let drops: Vec<_> = stage
        .log
        .events()
        .into_iter()
        .filter_map(|(host, event)| match event.kind {
            trace::Kind::PacketDropped { reason, .. } => Some((host, reason)),
            _ => None,
        })
        .collect();
    let bad = DropReason::BadOpcodeForTransport;
    assert_eq!(drops, [(stage.alice, bad), (stage.bob, bad), (stage.bob, bad)]);
    assert!(stage.log.packets().is_empty());
    stage.receive(0, 5, 0, 100);
    stage.succeed(&Work::send().to_srq(stage.number(0)));
    assert_eq!(stage.one(stage.b).wr_id, 5);
}

#[test]
fn work_for_an_extended_connection_names_a_shared_queue_and_no_other_does() {
    let mut stage = Stage::new(&Setting::default());
    let (remote, sge) = (stage.memory[0].remote(0), stage.near.sge(0, 8));
    for work in
        [Work::send(), Work::write(remote).sge(sge), Work::read(remote).sge(sge), Work::fetch_add(remote, 1).sge(sge)]
    {
        assert_eq!(stage.sim.post(stage.a, &work), Err(PostError::XrcTarget));
    }
    assert_eq!(
        stage.sim.post(stage.a, &Work::local_invalidate(Key::new(1)).to_srq(stage.number(0))),
        Err(PostError::XrcTarget)
    );
    let plain = stage.sim.create_qp(stage.alice, QpSpec::rc());
    let peer = stage.sim.create_qp(stage.bob, QpSpec::rc());
    stage.sim.connect(plain, peer, &stage.options);
    assert_eq!(stage.sim.post(plain, &Work::send().to_srq(stage.number(0))), Err(PostError::XrcTarget));
}

#[test]
fn every_request_packet_carries_the_number_of_the_shared_queue() {
    let mut setting = Setting::default();
    setting.options.psn = Some((Psn::new(0xff_ffff), Psn::new(9)));
    let mut stage = Stage::new(&setting);
    stage.receive(1, 1, 0, 3000);
    stage.receive(1, 2, 0, 0);
    let number = stage.number(1);
    stage.succeed(&Work::send().sge(stage.near.sge(0, 2500)).to_srq(number));
    stage.succeed(&Work::write(stage.memory[1].remote(0)).sge(stage.near.sge(0, 1025)).immediate(1).to_srq(number));
    stage.succeed(&Work::read(stage.memory[1].remote(0)).sge(stage.near.sge(0, 1025)).to_srq(number));
    stage.succeed(&Work::compare_swap(stage.memory[1].remote(0), 0, 0).sge(stage.near.sge(0, 8)).to_srq(number));
    let packets = stage.log.packets();
    let lines: Vec<_> =
        packets.iter().map(|seen| (seen.from == stage.alice, seen.opcode(), seen.psn().value())).collect();
    let expected = [
        (true, Opcode::XrcSendFirst, 0xff_ffff),
        (true, Opcode::XrcSendMiddle, 0),
        (true, Opcode::XrcSendLast, 1),
        (false, Opcode::XrcAcknowledge, 1),
        (true, Opcode::XrcWriteFirst, 2),
        (true, Opcode::XrcWriteLastImmediate, 3),
        (false, Opcode::XrcAcknowledge, 3),
        (true, Opcode::XrcReadRequest, 4),
        (false, Opcode::XrcReadResponseFirst, 4),
        (false, Opcode::XrcReadResponseLast, 5),
        (true, Opcode::XrcCompareSwap, 6),
        (false, Opcode::XrcAtomicAcknowledge, 6),
    ];
    assert_eq!(lines, expected);
    for seen in packets {
        let srqn = (seen.from == stage.alice).then_some(number);
        assert_eq!(seen.headers.xrc, srqn, "{}", seen.opcode());
    }
}

/// Sends, writes with immediate and atomics to both queues in turn; everything must come out as if nothing had happened.
fn run_program(stage: &mut Stage, rounds: u64) {
    let length = 2 * stage.options.mtu.bytes() + 100;
    let (a, b) = (stage.a, stage.b);
    let mut received = Vec::new();
    for round in 0..rounds {
        let queue = (round % 2) as usize;
        let number = stage.number(queue);
        let memory = stage.memory[queue];
        stage.receive(queue, 1000 + round, 40_000, length);
        received.push((1000 + round, Queue::Shared(number)));
        stage.sim.post(a, &Work::send().sge(stage.near.sge(round, length)).to_srq(number).id(4 * round)).unwrap();
        let write = Work::write(memory.remote(0)).sge(stage.near.sge(round, length)).to_srq(number).id(4 * round + 1);
        stage.sim.post(a, &write).unwrap();
        let add = Work::fetch_add(memory.remote(80_000), 1).sge(stage.near.sge(90_000, 8)).to_srq(number);
        stage.sim.post(a, &add.id(4 * round + 2)).unwrap();
        let read = Work::read(memory.remote(0)).sge(stage.near.sge(70_000, length)).to_srq(number).id(4 * round + 3);
        stage.sim.post(a, &read).unwrap();
    }
    stage.sim.run_until_idle();
    let ends = stage.sim.completions(a);
    assert!(ends.iter().all(|end| end.status == Status::Success), "{ends:?} seed {}", stage.sim.seed());
    assert_eq!(ends.iter().map(|end| end.wr_id).collect::<Vec<_>>(), (0..4 * rounds).collect::<Vec<_>>());
    let got: Vec<_> = stage.sim.completions(b).iter().map(|c| (c.wr_id, c.queue)).collect();
    assert_eq!(got, received);
    let size = length as usize;
    for queue in [0, 1] {
        let last = (rounds - 2) as usize + queue;
        assert_eq!(stage.memory_bytes(queue, 0, size), stage.near_bytes(last, size));
        assert_eq!(stage.memory_bytes(queue, 40_000, size), stage.near_bytes(last, size));
        let count = u64::from_ne_bytes(stage.memory_bytes(queue, 80_000, 8).try_into().unwrap());
        assert_eq!(count, rounds / 2, "each addition once, seed {}", stage.sim.seed());
    }
    assert_eq!(stage.near_bytes(70_000, size), stage.near_bytes((rounds - 1) as usize, size));
    assert_eq!((stage.sim.state(a), stage.sim.state(b)), (State::ReadyToSend, State::ReadyToSend));
}

#[test]
fn losing_any_single_packet_changes_nothing_but_the_time() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting);
        run_program(&mut stage, 2);
        let packets = stage.log.packets().len() as u64;
        assert!(packets > 10);
        for k in 0..packets {
            let mut stage = Stage::new(&setting);
            stage.sim.script(nth(k, |_| true, Fate::Drop));
            run_program(&mut stage, 2);
        }
    }
}

#[test]
fn random_faults_change_nothing_but_the_time() {
    for setting in Setting::each_link() {
        for seed in 0..15 {
            let mut setting = setting.seed(seed).loss(0.05).mtu(Mtu::B256);
            setting.link.duplication = 0.05;
            setting.link.reordering = 0.05;
            run_program(&mut Stage::new(&setting), 12);
        }
    }
}

#[test]
fn a_silent_peer_is_asked_as_often_as_agreed() {
    for (retry_cnt, lost, status) in
        [(0, 0, Status::Success), (0, 1, Status::RetryExceeded), (3, 3, Status::Success), (3, 4, Status::RetryExceeded)]
    {
        let mut setting = Setting::default();
        setting.options.retry_cnt = retry_cnt;
        let mut stage = Stage::new(&setting);
        stage.receive(0, 1, 0, 100);
        let alice = stage.alice;
        stage.sim.script(times(lost, move |sighting| sighting.from == alice, Fate::Drop));
        let end = stage.finish(&Work::send().to_srq(stage.number(0)));
        assert_eq!(end.status, status, "{lost} lost of {retry_cnt} retries");
        assert_eq!(stage.log.opcodes(alice).len() as u32, lost.min(u32::from(retry_cnt)) + 1);
    }
}

#[test]
fn several_connections_share_the_queues_and_completions_name_the_connection() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting);
        let carol = stage.sim.add_host(HostConfig::named("carol"));
        let c = stage.sim.create_qp(carol, initiator());
        let d = stage.sim.create_qp(stage.bob, target());
        stage.sim.connect(c, d, &stage.options);
        for wr_id in 0..4 {
            stage.receive(0, wr_id, wr_id * 100, 100);
        }
        for (nth, (qp, at)) in [(stage.a, stage.b), (c, d), (stage.a, stage.b), (c, d)].into_iter().enumerate() {
            stage.sim.post(qp, &Work::send().inline(&[nth as u8 + 1; 10]).to_srq(stage.number(0))).unwrap();
            stage.sim.run_until_idle();
            let got = stage.one(at);
            assert_eq!((got.wr_id, got.qpn, got.status), (nth as u64, at.qpn, Status::Success));
            assert_eq!(stage.memory_bytes(0, nth * 100, 10), [nth as u8 + 1; 10]);
        }
    }
}

#[test]
fn a_message_too_long_breaks_its_connection_and_spares_the_queue() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting);
        let c = stage.sim.create_qp(stage.alice, initiator());
        let d = stage.sim.create_qp(stage.bob, target());
        stage.sim.connect(c, d, &stage.options);
        stage.receive(0, 1, 0, 99);
        stage.receive(0, 2, 200, 100);
        let end = stage.finish(&Work::send().sge(stage.near.sge(0, 100)).to_srq(stage.number(0)));
        assert_eq!(end.status, Status::RemoteInvalidRequest);
        let got = stage.one(stage.b);
        assert_eq!((got.wr_id, got.status, got.queue), (1, Status::LocalLength, Queue::Shared(stage.number(0))));
        assert_eq!(stage.sim.async_events(stage.b), [], "the completion has told it");
        stage.sim.post(c, &Work::send().sge(stage.near.sge(0, 100)).to_srq(stage.number(0))).unwrap();
        stage.sim.run_until_idle();
        let got = stage.one(d);
        assert_eq!((got.wr_id, got.status), (2, Status::Success));
        assert_eq!(stage.memory_bytes(0, 200, 100), stage.near_bytes(0, 100));
    }
}

#[test]
fn a_target_that_stops_in_the_middle_of_a_message_gives_back_the_receive_in_hand() {
    let mut setting = Setting::default();
    setting.link.bandwidth = Some(1_000_000_000);
    let mut stage = Stage::new(&setting);
    stage.receive(0, 1, 0, 10_000);
    stage.receive(0, 2, 0, 10_000);
    stage.sim.post(stage.a, &Work::send().sge(stage.near.sge(0, 9000)).to_srq(stage.number(0))).unwrap();
    let queue = stage.queues[0];
    stage.sim.run_until(1_000_000, |sim| sim.srq(queue).len() == 1);
    stage.sim.modify(stage.b, &Modify { state: Some(State::Error), ..Modify::default() }).unwrap();
    let got = stage.one(stage.b);
    assert_eq!((got.wr_id, got.status), (1, Status::WorkRequestFlushed));
    assert_eq!(got.queue, Queue::Shared(stage.number(0)));
    stage.sim.run_until_idle();
    assert_eq!(stage.one(stage.a).status, Status::RetryExceeded);
    assert_eq!((stage.sim.completions(stage.b), stage.sim.srq(queue).len()), (vec![], 1));
}

#[test]
fn a_target_answers_as_soon_as_it_is_ready_to_receive() {
    let mut stage = Stage::new(&Setting::default());
    let a = stage.sim.create_qp(stage.alice, initiator());
    let b = stage.sim.create_qp(stage.bob, target());
    let (psn, options) = (Psn::new(77), stage.options);
    let ready = [State::Init, State::ReadyToReceive, State::ReadyToSend];
    for (qp, peer, states) in [(b, a, &ready[..2]), (a, b, &ready[..])] {
        for state in states {
            let modify = stage.sim.modification(qp, peer, psn, psn, *state, &options);
            stage.sim.modify(qp, &modify).unwrap();
        }
    }
    stage.receive(0, 1, 0, 100);
    stage.sim.post(a, &Work::send().to_srq(stage.number(0))).unwrap();
    stage
        .sim
        .post(a, &Work::fetch_add(stage.memory[0].remote(0), 1).sge(stage.near.sge(0, 8)).to_srq(stage.number(0)))
        .unwrap();
    stage.sim.run_until_idle();
    assert!(stage.sim.completions(a).iter().all(|end| end.status == Status::Success));
    assert_eq!(stage.one(b).wr_id, 1);
    assert_eq!(stage.sim.async_events(b), [AsyncEvent::CommunicationEstablished]);
    assert_eq!(stage.sim.state(b), State::ReadyToReceive);
}

#[test]
fn the_limit_of_a_shared_queue_counts_what_comes_through_a_connection() {
    let mut stage = Stage::new(&Setting::default());
    for wr_id in 0..4 {
        stage.receive(0, wr_id, 0, 100);
    }
    stage.sim.srq(stage.queues[0]).set_limit(3).unwrap();
    for expected in [vec![], vec![(stage.queues[0], SrqEvent::LimitReached)], vec![]] {
        stage.succeed(&Work::send().to_srq(stage.number(0)));
        assert_eq!(stage.sim.srq_events(), expected);
    }
}

#[test]
fn the_queue_pairs_access_rights_count_beside_those_of_memory() {
    for (missing, operation) in
        [(Access::REMOTE_WRITE, 0), (Access::REMOTE_READ, 1), (Access::REMOTE_ATOMIC, 2), (Access::FLUSH_GLOBAL, 3)]
    {
        let mut setting = Setting::default();
        setting.options.access -= missing;
        let mut stage = Stage::new(&setting);
        let (remote, sge) = (stage.memory[0].remote(0), stage.near.sge(0, 8));
        let work = match operation {
            0 => Work::write(remote).sge(sge),
            1 => Work::read(remote).sge(sge),
            2 => Work::fetch_add(remote, 1).sge(sge),
            _ => Work::flush(remote, 8, Placement::GLOBAL),
        };
        let end = stage.finish(&work.to_srq(stage.number(0)));
        assert_eq!(end.status, Status::RemoteInvalidRequest, "{missing:?}");
        assert!(stage.memory_bytes(0, 0, 8).iter().all(|byte| *byte == 0));
    }
}
