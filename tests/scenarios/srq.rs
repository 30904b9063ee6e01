//! Shared receive queues: receives that many queue pairs take from, in order, with a warning when few are left.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Log, Setting};
use sim::script::times;
use sim::{ConnectOptions, Fate, HostConfig, HostId, QpId, QpSpec, Region, Rng, Sim, SrqId, SrqSpec, Work};
use trace::DropReason;
use transport::{
    AsyncEvent, Completion, CompletionKind, Kind, Modify, PostError, ProtectionDomain, Queue, SrqAttributes, SrqError,
    SrqEvent, State, Status,
};
use wire::{Opcode, RnrTimer, Syndrome};

/// One server with a shared receive queue, and clients with a connection each.
struct Stage {
    sim: Sim,
    server: HostId,
    queue: SrqId,
    memory: Region,
    client: HostId,
    near: Region,
    /// Client and server end of each connection.
    pairs: Vec<(QpId, QpId)>,
    options: ConnectOptions,
    log: Log,
}

impl Stage {
    fn new(setting: &Setting, kind: Kind, connections: usize) -> Stage {
        let mut sim = Sim::new(setting.seed);
        sim.set_default_link(setting.link);
        let log = Log::of(&mut sim);
        let server = sim.add_host(HostConfig::named("server"));
        let client = sim.add_host(HostConfig::named("client"));
        let queue = sim.create_srq(server, SrqSpec::default());
        let pairs = (0..connections)
            .map(|_| {
                let here = sim.create_qp(client, QpSpec::new(kind));
                let there = sim.create_qp(server, QpSpec::new(kind).with_srq(queue));
                if kind == Kind::UnreliableDatagram {
                    sim.activate(here, &setting.options);
                    sim.activate(there, &setting.options);
                } else {
                    sim.connect(here, there, &setting.options);
                }
                (here, there)
            })
            .collect();
        let memory = sim.register(server, QpSpec::PD, 100_000, ALL_ACCESS);
        let mut bytes = vec![0; 100_000];
        Rng::new(6).fill(&mut bytes);
        let near = sim.register_bytes(client, QpSpec::PD, bytes, ALL_ACCESS);
        log.clear();
        Stage { sim, server, queue, memory, client, near, pairs, options: setting.options, log }
    }

    /// Posts receives of 1000 bytes each, numbered from `first`, each at its own place.
    fn fill(&mut self, first: u64, count: u64) {
        for wr_id in first..first + count {
            let place = self.memory.sge(wr_id % 100 * 1000, 1000);
            self.sim.receive_shared(self.queue, wr_id, &[place]).unwrap();
        }
    }

    /// Posts a SEND of `length` bytes on connection `nth`.
    fn send(&mut self, nth: usize, length: u32) {
        let (here, there) = self.pairs[nth];
        let mut work = Work::send().sge(self.near.sge(0, length));
        if self.sim.attributes(here).dest_qpn != there.qpn {
            work = work.to(self.sim.datagram_target(there, &self.options));
        }
        self.sim.post(here, &work).unwrap();
    }

    /// The receives each server end completed since the last time.
    #[track_caller]
    fn received(&mut self, nth: usize) -> Vec<u64> {
        let there = self.pairs[nth].1;
        let shared = Queue::Shared(self.queue.srqn);
        let check = |c: Completion| {
            assert_eq!((c.status, c.kind, c.queue), (Status::Success, CompletionKind::Receive, shared), "{c:?}");
            assert_eq!(c.qpn, there.qpn);
            c.wr_id
        };
        self.sim.completions(there).into_iter().map(check).collect()
    }

    fn ends(&mut self, qp: QpId) -> Vec<(u64, Status)> {
        self.sim.completions(qp).iter().map(|c| (c.wr_id, c.status)).collect()
    }

    fn break_off(&mut self, qp: QpId) {
        self.sim.modify(qp, &Modify { state: Some(State::Error), ..Modify::default() }).unwrap();
    }
}

#[test]
fn many_queue_pairs_take_from_one_queue_in_the_order_their_messages_arrive() {
    for setting in Setting::each_link() {
        for kind in [Kind::ReliableConnected, Kind::UnreliableConnected, Kind::UnreliableDatagram] {
            let mut stage = Stage::new(&setting, kind, 10);
            stage.fill(0, 60);
            let mut rng = Rng::new(3);
            for wr_id in 0..60 {
                let nth = rng.below(10) as usize;
                stage.send(nth, 100);
                stage.sim.run_until_idle();
                assert_eq!(stage.received(nth), [wr_id], "{kind}");
                let grh = if kind == Kind::UnreliableDatagram { 40 } else { 0 };
                let at = wr_id as usize * 1000 + grh;
                assert_eq!(stage.sim.bytes(&stage.memory)[at..at + 100], stage.sim.bytes(&stage.near)[..100]);
            }
            assert!(stage.sim.srq(stage.queue).is_empty());
            assert_eq!(stage.log.drops(stage.server), []);
            assert_eq!(stage.sim.srq_events(), [], "no limit was set");
        }
    }
}

#[test]
fn each_connection_keeps_its_own_order_under_load_and_no_receive_is_used_twice() {
    for setting in Setting::each_link() {
        for loss in [0.0, 0.05] {
            let setting = setting.loss(loss);
            let mut stage = Stage::new(&setting, Kind::ReliableConnected, 8);
            stage.fill(0, 200);
            for round in 0..20u32 {
                for nth in 0..8 {
                    let (here, _) = stage.pairs[nth];
                    stage
                        .sim
                        .post(here, &Work::send().inline(&[nth as u8; 30]).immediate(round).id(round.into()))
                        .unwrap();
                }
            }
            stage.sim.run_until_idle();
            let mut used = Vec::new();
            for nth in 0..8 {
                let (here, there) = stage.pairs[nth];
                let ends = stage.ends(here);
                assert_eq!(ends, (0..20).map(|id| (id, Status::Success)).collect::<Vec<_>>());
                let got = stage.sim.completions(there);
                let order: Vec<_> = got.iter().map(|completion| completion.immediate.unwrap()).collect();
                assert_eq!(order, (0..20).collect::<Vec<_>>());
                used.extend(got.iter().map(|completion| completion.wr_id));
            }
            used.sort_unstable();
            assert_eq!(used, (0..160).collect::<Vec<_>>(), "the oldest receives, each once");
            assert_eq!(stage.sim.srq(stage.queue).len(), 40);
        }
    }
}

#[test]
fn an_empty_queue_makes_reliable_senders_wait_and_unreliable_ones_lose() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting, Kind::ReliableConnected, 2);
        stage.send(0, 100);
        stage.send(1, 100);
        stage.sim.run_for(100_000);
        let refusal = Some(Syndrome::RnrNak { timer: RnrTimer::new(1) });
        let packets = stage.log.packets();
        assert!(packets.iter().filter(|seen| seen.from == stage.server).all(|seen| seen.syndrome() == refusal));
        assert!(packets.len() > 4, "they ask again");
        stage.fill(0, 1);
        stage.sim.run_for(100_000);
        assert_eq!([stage.received(0), stage.received(1)].concat(), [0], "one of them was served");
        stage.fill(1, 1);
        stage.sim.run_until_idle();
        assert_eq!([stage.received(0), stage.received(1)].concat(), [1], "then the other");
        for nth in 0..2 {
            assert_eq!(stage.ends(stage.pairs[nth].0), [(0, Status::Success)]);
        }

        for kind in [Kind::UnreliableConnected, Kind::UnreliableDatagram] {
            let mut stage = Stage::new(&setting, kind, 1);
            stage.send(0, 100);
            stage.sim.run_until_idle();
            assert_eq!(stage.log.drops(stage.server), [DropReason::NoReceive]);
            stage.fill(0, 1);
            stage.sim.run_until_idle();
            assert!(stage.received(0).is_empty());
            stage.send(0, 100);
            stage.sim.run_until_idle();
            assert_eq!(stage.received(0), [0]);
        }
    }
}

#[test]
fn a_sender_gives_up_on_an_empty_queue_after_as_many_tries_as_agreed() {
    for (rnr_retry, tries) in [(0, 1), (2, 3), (6, 7)] {
        let mut setting = Setting::default();
        setting.options.rnr_retry = rnr_retry;
        let mut stage = Stage::new(&setting, Kind::ReliableConnected, 2);
        stage.send(0, 100);
        stage.sim.run_until_idle();
        let (here, there) = stage.pairs[0];
        assert_eq!(stage.ends(here), [(0, Status::RnrRetryExceeded)]);
        assert_eq!(stage.log.opcodes(stage.client), vec![Opcode::RcSendOnly; tries]);
        assert_eq!((stage.sim.state(here), stage.sim.state(there)), (State::Error, State::ReadyToSend));
        // The neighbour is not involved.
        stage.fill(5, 1);
        stage.send(1, 100);
        stage.sim.run_until_idle();
        assert_eq!(stage.received(1), [5]);
    }
}

#[test]
fn writes_with_immediate_take_receives_too_and_plain_writes_do_not() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting, Kind::ReliableConnected, 2);
        stage.fill(0, 2);
        let (here, there) = stage.pairs[0];
        let write = Work::write(stage.memory.remote(50_000)).sge(stage.near.sge(0, 5000));
        stage.sim.post(here, &write).unwrap();
        stage.sim.run_until_idle();
        assert_eq!((stage.sim.srq(stage.queue).len(), stage.sim.completions(there)), (2, vec![]));
        stage.sim.post(here, &write.immediate(77)).unwrap();
        stage.sim.run_until_idle();
        let got = stage.sim.completions(there);
        assert_eq!((got.len(), got[0].wr_id, got[0].immediate), (1, 0, Some(77)));
        assert_eq!((got[0].kind, got[0].bytes), (CompletionKind::ReceiveWriteImmediate, 5000));
        assert_eq!(got[0].queue, Queue::Shared(stage.queue.srqn));
        assert_eq!(stage.sim.srq(stage.queue).len(), 1);
    }
}

#[test]
fn the_limit_is_told_once_and_can_be_armed_again() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting, Kind::ReliableConnected, 3);
        stage.fill(0, 10);
        stage.sim.srq(stage.queue).set_limit(5).unwrap();
        let told = (stage.queue, SrqEvent::LimitReached);
        // Ten receives: after the fifth message five are left, which is not fewer than five.
        for nth in 0..5 {
            stage.send(nth % 3, 100);
            stage.sim.run_until_idle();
            assert_eq!(stage.sim.srq_events(), [], "{nth}");
        }
        assert_eq!(stage.sim.srq(stage.queue).query().limit, 5);
        stage.send(0, 100);
        stage.sim.run_until_idle();
        assert_eq!(stage.sim.srq_events(), [told]);
        assert_eq!(stage.sim.srq(stage.queue).query().limit, 0, "disarmed by firing");
        stage.send(1, 100);
        stage.sim.run_until_idle();
        assert_eq!(stage.sim.srq_events(), [], "once");
        // Three left. Armed again, filled again, it tells again.
        stage.fill(10, 5);
        stage.sim.srq(stage.queue).set_limit(8).unwrap();
        assert_eq!(stage.sim.srq_events(), []);
        stage.send(2, 100);
        stage.sim.run_until_idle();
        assert_eq!(stage.sim.srq_events(), [told]);
        // Disarmed by the program it stays silent.
        stage.sim.srq(stage.queue).set_limit(7).unwrap();
        stage.sim.srq(stage.queue).set_limit(0).unwrap();
        stage.send(2, 100);
        stage.sim.run_until_idle();
        assert_eq!(stage.sim.srq_events(), []);
        assert_eq!(stage.sim.async_events(stage.pairs[0].1), [], "it is no event of a queue pair");
    }
}

#[test]
fn a_queue_can_grow_while_it_is_used_and_shrinks_to_what_it_holds() {
    let mut stage = Stage::new(&Setting::default(), Kind::ReliableConnected, 2);
    let queue = stage.sim.create_srq(stage.server, SrqSpec { max_wr: 3, max_sge: 2, ..SrqSpec::default() });
    let here = stage.sim.create_qp(stage.client, QpSpec::rc());
    let there = stage.sim.create_qp(stage.server, QpSpec::rc().with_srq(queue));
    stage.sim.connect(here, there, &stage.options);
    (stage.queue, stage.pairs) = (queue, vec![(here, there)]);
    stage.fill(0, 3);
    let place = stage.memory.sge(0, 1000);
    let full = PostError::QueueFull { queue: "shared receive", capacity: 3 };
    assert_eq!(stage.sim.receive_shared(queue, 3, &[place]), Err(full));
    let too_many = PostError::TooManySges { given: 3, max: 2 };
    assert_eq!(stage.sim.receive_shared(queue, 3, &[place; 3]), Err(too_many));
    stage.sim.srq(queue).resize(5).unwrap();
    stage.fill(3, 2);
    assert_eq!(stage.sim.srq(queue).query(), SrqAttributes { max_wr: 5, max_sge: 2, limit: 0 });
    let small = SrqError::TooSmall { max_wr: 4, outstanding: 5 };
    assert_eq!(stage.sim.srq(queue).resize(4), Err(small));
    for _ in 0..3 {
        stage.send(0, 100);
    }
    stage.sim.run_until_idle();
    assert_eq!(stage.received(0), [0, 1, 2]);
    assert_eq!(stage.sim.srq(queue).set_limit(6), Err(SrqError::LimitTooHigh { limit: 6, max_wr: 5 }));
    stage.sim.srq(queue).resize(2).unwrap();
    let full = PostError::QueueFull { queue: "shared receive", capacity: 2 };
    assert_eq!(stage.sim.receive_shared(queue, 9, &[place]), Err(full));
    stage.send(0, 100);
    stage.send(0, 100);
    stage.sim.run_until_idle();
    assert_eq!(stage.received(0), [3, 4], "order survives both");
}

#[test]
fn a_queue_pair_that_shares_its_receives_takes_none_of_its_own() {
    for kind in [Kind::ReliableConnected, Kind::UnreliableConnected, Kind::UnreliableDatagram] {
        let mut stage = Stage::new(&Setting::default(), kind, 1);
        let (_, there) = stage.pairs[0];
        let place = [stage.memory.sge(0, 100)];
        assert_eq!(stage.sim.receive(there, 1, &place), Err(PostError::UsesSrq));
        stage.break_off(there);
        assert_eq!(stage.sim.receive(there, 1, &place), Err(PostError::UsesSrq));
        assert_eq!(stage.sim.completions(there), []);
    }
}

#[test]
fn an_error_of_one_queue_pair_leaves_the_queue_to_the_others() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting, Kind::ReliableConnected, 3);
        stage.fill(0, 5);
        let (_, broken) = stage.pairs[0];
        stage.break_off(broken);
        assert_eq!(stage.sim.async_events(broken), [AsyncEvent::LastWqeReached]);
        assert_eq!(stage.sim.completions(broken), [], "it held none of the receives");
        assert_eq!(stage.sim.srq(stage.queue).len(), 5);
        stage.send(1, 100);
        stage.send(2, 100);
        stage.sim.run_until_idle();
        let mut used = [stage.received(1), stage.received(2)].concat();
        used.sort_unstable();
        assert_eq!(used, [0, 1]);
        for nth in [1, 2] {
            assert_eq!(stage.sim.async_events(stage.pairs[nth].1), []);
        }
        // Told once, however often it is moved there.
        stage.break_off(broken);
        assert_eq!(stage.sim.async_events(broken), []);
    }
}

#[test]
fn only_the_receive_in_hand_is_flushed() {
    for kind in [Kind::ReliableConnected, Kind::UnreliableConnected] {
        let mut setting = Setting::default();
        setting.link.bandwidth = Some(1_000_000_000); // 8 us for a packet
        let mut stage = Stage::new(&setting, kind, 2);
        let (here, there) = stage.pairs[0];
        for wr_id in 0..3 {
            stage.sim.receive_shared(stage.queue, wr_id, &[stage.memory.sge(wr_id * 10_000, 10_000)]).unwrap();
        }
        stage.sim.post(here, &Work::send().sge(stage.near.sge(0, 9000))).unwrap();
        let queue = stage.queue;
        assert!(stage.sim.run_until(1_000_000, |sim| sim.srq(queue).len() == 2));
        stage.break_off(there);
        let got = stage.sim.completions(there);
        assert_eq!(got.len(), 1, "{kind}");
        assert_eq!((got[0].wr_id, got[0].status), (0, Status::WorkRequestFlushed));
        assert_eq!(got[0].queue, Queue::Shared(queue.srqn));
        assert_eq!(stage.sim.async_events(there), [AsyncEvent::LastWqeReached]);
        stage.send(1, 100);
        stage.sim.run_until_idle();
        assert_eq!(stage.received(1), [1]);
        assert_eq!(stage.sim.completions(there), [], "nothing more of the broken one");
    }
}

#[test]
fn a_fault_in_a_message_takes_its_receive_and_no_other() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting, Kind::ReliableConnected, 2);
        let (here, there) = stage.pairs[0];
        stage.fill(0, 3);
        stage.send(0, 1001);
        stage.sim.run_until_idle();
        assert_eq!(stage.ends(here), [(0, Status::RemoteInvalidRequest)]);
        let got = stage.sim.completions(there);
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].wr_id, got[0].status), (0, Status::LocalLength));
        assert_eq!(got[0].queue, Queue::Shared(stage.queue.srqn));
        assert_eq!(stage.sim.async_events(there), [AsyncEvent::LastWqeReached]);
        assert_eq!((stage.sim.state(here), stage.sim.state(there)), (State::Error, State::Error));
        stage.send(1, 1000);
        stage.sim.run_until_idle();
        assert_eq!(stage.received(1), [1]);
    }
}

/// The specification has the receive fail here (class E); as with datagrams it waits for the next message instead.
#[test]
fn an_unreliable_message_too_long_for_its_receive_is_dropped() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting, Kind::UnreliableConnected, 2);
        let there = stage.pairs[0].1;
        stage.fill(0, 3);
        stage.send(0, 1001);
        stage.sim.run_until_idle();
        assert_eq!(stage.sim.completions(there), []);
        assert_eq!(stage.sim.state(there), State::ReadyToSend);
        stage.send(1, 1000);
        stage.send(0, 1000);
        stage.sim.run_until_idle();
        assert_eq!((stage.received(0), stage.received(1)), (vec![0], vec![1]), "the first queue pair kept its receive");
    }
}

#[test]
fn receives_act_in_the_domain_of_the_shared_queue() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting, Kind::ReliableConnected, 0);
        let other = ProtectionDomain(55);
        let queue = stage.sim.create_srq(stage.server, SrqSpec { pd: other, ..SrqSpec::default() });
        let memory = stage.sim.register(stage.server, other, 1000, ALL_ACCESS);
        let here = stage.sim.create_qp(stage.client, QpSpec::rc());
        let there = stage.sim.create_qp(stage.server, QpSpec::rc().with_srq(queue));
        stage.sim.connect(here, there, &stage.options);
        stage.sim.receive_shared(queue, 1, &[memory.whole()]).unwrap();
        stage.sim.post(here, &Work::send().sge(stage.near.sge(0, 100))).unwrap();
        stage.sim.run_until_idle();
        assert_eq!(stage.ends(there), [(1, Status::Success)]);
        assert_eq!(stage.sim.bytes(&memory)[..100], stage.sim.bytes(&stage.near)[..100]);
        // A WRITE acts in the queue pair's own domain all the same.
        stage.sim.post(here, &Work::write(stage.memory.remote(0)).sge(stage.near.sge(0, 100))).unwrap();
        stage.sim.run_until_idle();
        assert_eq!(stage.ends(here), [(0, Status::Success), (0, Status::Success)]);
        // The queue pair's own memory is nothing to the queue.
        stage.sim.receive_shared(queue, 2, &[stage.memory.sge(500, 100)]).unwrap();
        stage.sim.post(here, &Work::send().sge(stage.near.sge(0, 100))).unwrap();
        stage.sim.run_until_idle();
        assert_eq!(stage.ends(there), [(2, Status::LocalProtection)]);
        assert_eq!(stage.ends(here), [(0, Status::RemoteOperation)]);
        assert!(stage.sim.bytes(&stage.memory)[500..600].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_reset_queue_pair_comes_back_to_the_same_queue() {
    let mut stage = Stage::new(&Setting::default(), Kind::ReliableConnected, 2);
    stage.fill(0, 4);
    let (here, there) = stage.pairs[0];
    for qp in [here, there] {
        stage.break_off(qp);
        stage.sim.modify(qp, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap();
    }
    assert_eq!(stage.sim.srq(stage.queue).len(), 4);
    stage.sim.async_events(there);
    stage.sim.connect(here, there, &stage.options);
    stage.send(0, 100);
    stage.send(1, 100);
    stage.sim.run_until_idle();
    let mut used = [stage.received(0), stage.received(1)].concat();
    used.sort_unstable();
    assert_eq!(used, [0, 1]);
    assert_eq!(stage.sim.async_events(there), []);
}

#[test]
fn an_unreliable_message_that_was_lost_leaves_its_receive_to_the_next_of_the_same_queue_pair() {
    let mut stage = Stage::new(&Setting::default(), Kind::UnreliableConnected, 2);
    for wr_id in 0..3 {
        stage.sim.receive_shared(stage.queue, wr_id, &[stage.memory.sge(wr_id * 10_000, 10_000)]).unwrap();
    }
    stage.sim.script(times(1, |sighting| sighting.headers.bth.opcode == Opcode::UcSendLast, Fate::Drop));
    stage.send(0, 5000);
    stage.sim.run_until_idle();
    assert_eq!(stage.sim.srq(stage.queue).len(), 2, "the receive is in hand");
    stage.send(1, 5000);
    stage.sim.run_until_idle();
    stage.send(0, 5000);
    stage.sim.run_until_idle();
    assert_eq!((stage.received(0), stage.received(1)), (vec![0], vec![1]));
    assert_eq!(stage.sim.bytes(&stage.memory)[..5000], stage.sim.bytes(&stage.near)[..5000]);
}

#[test]
fn a_datagram_too_long_for_its_receive_leaves_it_to_the_next_of_the_same_queue_pair() {
    let mut stage = Stage::new(&Setting::default(), Kind::UnreliableDatagram, 1);
    stage.fill(0, 2);
    for length in [961, 960, 960] {
        stage.send(0, length);
        stage.sim.run_until_idle();
    }
    assert_eq!(stage.log.drops(stage.server), [DropReason::TooLong]);
    assert_eq!(stage.received(0), [0, 1]);
    assert_eq!(stage.sim.state(stage.pairs[0].1), State::ReadyToSend);
}

#[test]
fn a_message_repeated_after_a_lost_acknowledgement_takes_no_second_receive() {
    for setting in Setting::each_link() {
        let mut stage = Stage::new(&setting, Kind::ReliableConnected, 1);
        stage.fill(0, 3);
        let server = stage.server;
        stage.sim.script(times(2, move |sighting| sighting.from == server, Fate::Drop));
        stage.send(0, 100);
        stage.sim.run_until_idle();
        assert_eq!(stage.received(0), [0]);
        assert_eq!(stage.ends(stage.pairs[0].0), [(0, Status::Success)]);
        assert_eq!(stage.sim.srq(stage.queue).len(), 2);
        assert_eq!(stage.log.opcodes(stage.client).len(), 3);
    }
}
