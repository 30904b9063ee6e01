//! A peer that sends requests it should not: none of them corrupts anything, makes a queue pair talk without end, or goes unnoticed. Either the
//! connection works on as if nothing had come, or it is in error and both sides know why. (What a peer can do with its answers is told in
//! `hostile_answers`.)
#![allow(missing_docs)]

use scenery::{Log, Pair, Seen, Setting};
use sim::script::always;
use sim::{Fate, LinkKind, QpSpec, Rng, Work};
use trace::DropReason;
use transport::{AsyncEvent, CompletionKind, Kind, Modify, State, Status};
use wire::{
    Aeth, AtomicEth, Deth, Feth, HeaderSet, Headers, Key, Msn, NakCode, Opcode, Operation, Pkey, Placement, Psn, Qkey,
    Qpn, Reth, RnrTimer, Selectivity, Srqn, Syndrome, Transport,
};

/// Bytes of Bob's memory the forged requests may touch; everything behind is checked to stay as it is.
const OPEN: usize = 8192;

/// Bob is the victim; forged packets come as from Alice.
struct Victim {
    pair: Pair,
    log: Log,
}

impl Victim {
    fn new() -> Victim {
        Victim::under(&Setting::default())
    }

    fn under(setting: &Setting) -> Victim {
        let mut pair = Pair::rc(setting);
        let log = Log::of(&mut pair.sim);
        pair.sim.bytes_mut(&pair.far).fill(0xee);
        Victim { pair, log }
    }

    fn expected(&self) -> Psn {
        self.pair.sim.attributes(self.pair.b).rq_psn
    }

    /// A request in the form its opcode demands, aimed at the start of Bob's memory.
    fn forge(&self, opcode: Opcode, psn: Psn) -> Headers {
        let far = &self.pair.far;
        forge(opcode, self.pair.b.qpn, psn, far.address, far.key)
    }

    /// A packet arrives; answers why Bob dropped it and what Bob sent.
    fn hit(&mut self, headers: &Headers, payload: &[u8]) -> (Vec<DropReason>, Vec<Seen>) {
        self.log.clear();
        let source = self.pair.sim.gid(self.pair.alice, 0);
        self.pair.sim.inject(self.pair.bob, source, headers, payload).unwrap();
        self.settle()
    }

    fn hit_with_train(&mut self, headers: &Headers, count: u32, payload: &[u8]) -> (Vec<DropReason>, Vec<Seen>) {
        self.log.clear();
        let source = self.pair.sim.gid(self.pair.alice, 0);
        self.pair.sim.inject_train(self.pair.bob, source, headers, count, payload);
        self.settle()
    }

    fn settle(&mut self) -> (Vec<DropReason>, Vec<Seen>) {
        self.pair.sim.run_for(1);
        let bob = self.pair.bob;
        let sent = self.log.packets().into_iter().filter(|seen| seen.from == bob).collect();
        let drops = self.log.drops(bob);
        self.pair.sim.run_until_idle();
        (drops, sent)
    }

    fn state(&self) -> State {
        self.pair.sim.state(self.pair.b)
    }

    /// Nothing of Bob's memory has changed.
    #[track_caller]
    fn assert_untouched(&self) {
        assert!(self.pair.sim.bytes(&self.pair.far).iter().all(|byte| *byte == 0xee));
    }

    /// The connection carries honest traffic in both directions.
    #[track_caller]
    fn assert_works(&mut self) {
        let pair = &mut self.pair;
        for qp in [pair.a, pair.b] {
            assert_eq!(pair.sim.completions(qp), []);
            assert_eq!(pair.sim.async_events(qp), []);
        }
        work_both_ways(pair);
        self.pair.sim.bytes_mut(&self.pair.far).fill(0xee);
    }

    /// Bob refused with this code and is in error; nothing came of the request.
    #[track_caller]
    fn assert_refused(&mut self, sent: &[Seen], code: NakCode, event: AsyncEvent, what: &str) {
        let refusals: Vec<_> = sent.iter().map(|seen| (seen.opcode(), seen.syndrome())).collect();
        assert_eq!(refusals.last(), Some(&(Opcode::RcAcknowledge, Some(Syndrome::Nak(code)))), "{what}");
        assert_eq!(self.state(), State::Error, "{what}");
        assert_eq!(self.pair.sim.async_events(self.pair.b), [event], "{what}");
        assert_eq!(self.pair.sim.completions(self.pair.b), [], "{what}");
        assert_eq!(self.pair.sim.state(self.pair.a), State::ReadyToSend, "{what}: Alice asked for nothing");
    }

    /// Both ends begin a new life, in which everything works.
    #[track_caller]
    fn assert_recovers(&mut self) {
        let pair = &mut self.pair;
        for qp in [pair.a, pair.b] {
            pair.sim.modify(qp, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap();
            pair.sim.async_events(qp);
            pair.sim.completions(qp);
        }
        pair.sim.connect(pair.a, pair.b, &pair.options);
        work_both_ways(pair);
    }
}

/// A request with the headers its opcode demands, as a parser would give them.
fn forge(opcode: Opcode, to: Qpn, psn: Psn, va: u64, rkey: Key) -> Headers {
    let demanded = opcode.headers();
    let has = |header| demanded.contains(header);
    let mut headers = Headers::new(opcode, to, psn);
    headers.bth.ack_req = true;
    headers.reth = has(HeaderSet::RETH).then_some(Reth { va, rkey, len: 8 });
    headers.atomic = has(HeaderSet::ATOMIC_ETH).then_some(AtomicEth { va, rkey, swap_add: 1, compare: 0 });
    let flush = Feth { placement: Placement::GLOBAL, selectivity: Selectivity::Range };
    headers.feth = has(HeaderSet::FETH).then_some(flush);
    headers.aeth = has(HeaderSet::AETH).then_some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
    headers.atomic_ack = has(HeaderSet::ATOMIC_ACK_ETH).then_some(wire::AtomicAckEth { original: 0 });
    headers.immediate = has(HeaderSet::IMMEDIATE).then_some(5);
    headers.invalidate = has(HeaderSet::IETH).then_some(rkey);
    headers.xrc = has(HeaderSet::XRCETH).then_some(Srqn::new(1));
    let datagram = Deth { qkey: Qkey::new(0x1111_1111), src_qpn: Qpn::new(0x11) };
    headers.deth = has(HeaderSet::DETH).then_some(datagram);
    headers
}

/// A SEND, a WRITE, a READ and an atomic from each side.
#[track_caller]
fn work_both_ways(pair: &mut Pair) {
    for (here, there, near, far) in [(pair.a, pair.b, pair.near, pair.far), (pair.b, pair.a, pair.far, pair.near)] {
        let mut bytes = vec![0; 3000];
        Rng::new(99).fill(&mut bytes);
        pair.sim.bytes_mut(&near)[..3000].copy_from_slice(&bytes);
        pair.sim.receive(there, 1, &[far.sge(10_000, 4000)]).unwrap();
        pair.sim.post(here, &Work::send().sge(near.sge(0, 3000)).id(1)).unwrap();
        pair.sim.post(here, &Work::write(far.remote(20_000)).sge(near.sge(0, 3000)).id(2)).unwrap();
        pair.sim.post(here, &Work::read(far.remote(20_000)).sge(near.sge(30_000, 3000)).id(3)).unwrap();
        pair.sim.bytes_mut(&far)[24_000..24_008].fill(0);
        pair.sim.post(here, &Work::fetch_add(far.remote(24_000), 7).sge(near.sge(40_000, 8)).id(4)).unwrap();
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(here).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(ends, [1, 2, 3, 4].map(|id| (id, Status::Success)));
        let got: Vec<_> = pair.sim.completions(there).iter().map(|c| (c.wr_id, c.status, c.bytes)).collect();
        assert_eq!(got, [(1, Status::Success, 3000)]);
        assert_eq!(pair.sim.bytes(&far)[10_000..13_000], bytes);
        assert_eq!(pair.sim.bytes(&far)[20_000..23_000], bytes);
        assert_eq!(pair.sim.bytes(&near)[30_000..33_000], bytes);
        assert_eq!(pair.sim.bytes(&far)[24_000..24_008], 7u64.to_ne_bytes());
        assert_eq!(pair.sim.bytes(&near)[40_000..40_008], [0; 8]);
    }
    assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::ReadyToSend, State::ReadyToSend));
}

/// Every request of a reliable connection that is one packet, and a payload that suits it.
fn single_requests() -> Vec<(Opcode, usize)> {
    use Opcode::*;
    vec![
        (RcSendOnly, 8),
        (RcSendOnlyImmediate, 8),
        (RcSendOnlyInvalidate, 8),
        (RcWriteOnly, 8),
        (RcWriteOnlyImmediate, 8),
        (RcReadRequest, 0),
        (RcCompareSwap, 0),
        (RcFetchAdd, 0),
        (RcAtomicWrite, 8),
        (RcFlush, 0),
    ]
}

#[test]
fn a_request_ahead_of_its_time_is_refused_once_and_then_passed_over() {
    for (opcode, length) in single_requests() {
        for ahead in [1, 2, 1000, Psn::COUNT / 2 - 1] {
            let mut victim = Victim::new();
            let expected = victim.expected();
            let headers = victim.forge(opcode, expected.add(ahead));
            let (drops, sent) = victim.hit(&headers, &vec![0; length]);
            assert_eq!(drops, [DropReason::OutOfOrder], "{opcode} +{ahead}");
            let [nak] = sent.as_slice() else { panic!("{sent:?}") };
            let sequence = Some(Syndrome::Nak(NakCode::SequenceError));
            assert_eq!((nak.opcode(), nak.psn(), nak.syndrome()), (Opcode::RcAcknowledge, expected, sequence));
            for _ in 0..100 {
                let (drops, sent) = victim.hit(&headers, &vec![0; length]);
                assert_eq!((drops, sent), (vec![DropReason::AfterNak], vec![]), "{opcode} +{ahead}");
            }
            victim.assert_untouched();
            victim.assert_works();
        }
    }
}

#[test]
fn a_request_that_claims_to_be_old_is_never_carried_out() {
    for (opcode, length) in single_requests() {
        for behind in [1, 2, 1000, Psn::COUNT / 2 - 1, Psn::COUNT / 2] {
            let mut victim = Victim::new();
            victim.pair.sim.receive(victim.pair.b, 1, &[victim.pair.far.sge(0, 100)]).unwrap();
            let expected = victim.expected();
            let headers = victim.forge(opcode, expected.sub(behind));
            let (drops, sent) = victim.hit(&headers, &vec![0; length]);
            match opcode.operation() {
                // Acknowledged as far as we are, as a true repetition would be.
                Operation::Send | Operation::Write => {
                    assert_eq!(drops, [DropReason::Duplicate], "{opcode} -{behind}");
                    let [ack] = sent.as_slice() else { panic!("{sent:?}") };
                    assert_eq!((ack.psn(), ack.syndrome()), (expected.sub(1), Some(Syndrome::ACK)));
                }
                // There is no answer to repeat.
                _ => assert_eq!((drops, sent), (vec![DropReason::NoReplaySlot], vec![]), "{opcode} -{behind}"),
            }
            victim.assert_untouched();
            assert_eq!(victim.expected(), expected);
            assert_eq!(victim.pair.sim.completions(victim.pair.b), [], "the receive is untouched too");
            victim.pair.succeed(&Work::send());
            assert_eq!(victim.pair.received().wr_id, 1);
            victim.assert_works();
        }
    }
}

#[test]
fn packets_in_an_impossible_order_end_the_connection_with_a_reason() {
    use Opcode::*;
    let full = 1024;
    let cases: &[(&str, &[(Opcode, usize)])] = &[
        ("a middle without a first", &[(RcSendMiddle, full)]),
        ("a last without a first", &[(RcSendLast, 10)]),
        ("a last with immediate without a first", &[(RcWriteLastImmediate, 10)]),
        ("a write's middle without a first", &[(RcWriteMiddle, full)]),
        ("a first inside a message", &[(RcWriteFirst, full), (RcWriteFirst, full)]),
        ("an only inside a message", &[(RcWriteFirst, full), (RcWriteOnly, 8)]),
        ("a write that goes on as a send", &[(RcWriteFirst, full), (RcSendMiddle, full)]),
        ("a write that ends as a send", &[(RcWriteFirst, full), (RcSendLast, 8)]),
        ("a read inside a message", &[(RcWriteFirst, full), (RcReadRequest, 0)]),
        ("an atomic inside a message", &[(RcWriteFirst, full), (RcFetchAdd, 0)]),
        ("a flush inside a message", &[(RcWriteFirst, full), (RcFlush, 0)]),
        ("an atomic write inside a message", &[(RcWriteFirst, full), (RcAtomicWrite, 8)]),
    ];
    for (what, packets) in cases {
        let mut victim = Victim::new();
        let first = victim.expected();
        for (nth, (opcode, length)) in packets.iter().enumerate() {
            let mut headers = victim.forge(*opcode, first.add(nth as u32));
            headers.reth = headers.reth.map(|reth| Reth { len: 4096, ..reth });
            let (drops, sent) = victim.hit(&headers, &vec![0x11; *length]);
            assert_eq!(drops, [], "{what}: a refusal is an event of its own");
            if nth + 1 == packets.len() {
                victim.assert_refused(&sent, NakCode::InvalidRequest, AsyncEvent::QpRequestError, what);
                assert_eq!(sent.last().unwrap().psn(), first.add(nth as u32), "{what}");
            }
        }
        assert!(victim.pair.far_bytes(full, 1000).iter().all(|byte| *byte == 0xee), "{what}");
        // In error nothing more is taken, and nothing is said.
        let headers = victim.forge(RcSendOnly, victim.expected());
        assert_eq!(victim.hit(&headers, b""), (vec![DropReason::WrongState], vec![]), "{what}");
        victim.assert_recovers();
    }
}

#[test]
fn a_send_that_breaks_off_takes_its_receive_with_it() {
    let mut victim = Victim::new();
    for wr_id in [1, 2] {
        victim.pair.sim.receive(victim.pair.b, wr_id, &[victim.pair.far.sge(0, 5000)]).unwrap();
    }
    let first = victim.expected();
    victim.hit(&victim.forge(Opcode::RcSendFirst, first), &[1; 1024]);
    let (_, sent) = victim.hit(&victim.forge(Opcode::RcSendOnly, first.add(1)), &[2; 8]);
    assert_eq!(sent[0].syndrome(), Some(Syndrome::Nak(NakCode::InvalidRequest)));
    let ends: Vec<_> = victim.pair.sim.completions(victim.pair.b).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(ends, [(1, Status::RemoteInvalidRequest), (2, Status::WorkRequestFlushed)]);
    victim.assert_recovers();
}

#[test]
fn payload_that_does_not_fit_its_place_ends_the_connection() {
    use Opcode::*;
    let cases: &[(&str, &[(Opcode, usize)])] = &[
        ("a long only", &[(RcWriteOnly, 1025)]),
        ("a very long only", &[(RcWriteOnly, 4096)]),
        ("a long first", &[(RcWriteFirst, 1028)]),
        ("a short first", &[(RcWriteFirst, 1020)]),
        ("an empty first", &[(RcWriteFirst, 0)]),
        ("a short middle", &[(RcWriteFirst, 1024), (RcWriteMiddle, 1023)]),
        ("a long middle", &[(RcWriteFirst, 1024), (RcWriteMiddle, 1025)]),
        ("an empty last", &[(RcWriteFirst, 1024), (RcWriteLast, 0)]),
        ("a long last", &[(RcWriteFirst, 1024), (RcWriteLast, 1025)]),
        ("an atomic write of seven", &[(RcAtomicWrite, 7)]),
        ("an atomic write of nine", &[(RcAtomicWrite, 9)]),
        ("an atomic write of nothing", &[(RcAtomicWrite, 0)]),
    ];
    for (what, packets) in cases {
        let mut victim = Victim::new();
        let first = victim.expected();
        for (nth, (opcode, length)) in packets.iter().enumerate() {
            let mut headers = victim.forge(*opcode, first.add(nth as u32));
            if *opcode != RcAtomicWrite {
                headers.reth = headers.reth.map(|reth| Reth { len: 2048, ..reth });
            }
            let (_, sent) = victim.hit(&headers, &vec![0x11; *length]);
            if nth + 1 == packets.len() {
                victim.assert_refused(&sent, NakCode::InvalidRequest, AsyncEvent::QpAccessError, what);
            }
        }
        let intact = if packets.len() > 1 { 1024 } else { 0 };
        assert!(victim.pair.far_bytes(intact, OPEN).iter().all(|byte| *byte == 0xee), "{what}");
        victim.assert_recovers();
    }
}

#[test]
fn a_write_that_lies_about_its_length_ends_the_connection_and_stays_inside() {
    use Opcode::*;
    // What RETH says, and the packets with what they carry.
    let cases: &[(&str, u32, &[(Opcode, usize)])] = &[
        ("larger, one packet", 1024, &[(RcWriteOnly, 1023)]),
        ("smaller, one packet", 7, &[(RcWriteOnly, 8)]),
        ("nothing, but something comes", 0, &[(RcWriteOnly, 1)]),
        ("something, but nothing comes", 1, &[(RcWriteOnly, 0)]),
        ("larger, two packets", 1027, &[(RcWriteFirst, 1024), (RcWriteLast, 2)]),
        ("smaller, two packets", 1025, &[(RcWriteFirst, 1024), (RcWriteLast, 2)]),
        ("two packets where one was said", 1024, &[(RcWriteFirst, 1024)]),
        ("less than the first packet", 100, &[(RcWriteFirst, 1024)]),
        ("a middle that is the end", 2048, &[(RcWriteFirst, 1024), (RcWriteMiddle, 1024)]),
        ("a middle past the end", 1025, &[(RcWriteFirst, 1024), (RcWriteMiddle, 1024)]),
    ];
    for (what, said, packets) in cases {
        let mut victim = Victim::new();
        victim.pair.sim.bytes_mut(&victim.pair.far).fill(0xee);
        let first = victim.expected();
        for (nth, (opcode, length)) in packets.iter().enumerate() {
            let mut headers = victim.forge(*opcode, first.add(nth as u32));
            headers.reth = headers.reth.map(|reth| Reth { len: *said, ..reth });
            let (_, sent) = victim.hit(&headers, &vec![0x11; *length]);
            if nth + 1 == packets.len() {
                victim.assert_refused(&sent, NakCode::InvalidRequest, AsyncEvent::QpAccessError, what);
            }
        }
        let said = (*said as usize).min(1024);
        assert!(victim.pair.far_bytes(said, OPEN).iter().all(|byte| *byte == 0xee), "{what}");
        victim.assert_recovers();
    }
}

#[test]
fn ranges_that_reach_too_far_are_refused_whatever_the_arithmetic() {
    let mut cases = Vec::new();
    for opcode in [Opcode::RcWriteOnly, Opcode::RcReadRequest] {
        for len in [9, 1 << 30, 1 << 31] {
            cases.push((opcode, None, len, NakCode::RemoteAccess));
        }
        // Around the end of the address space, and far away.
        for (va, len) in [(u64::MAX - 3, 8), (u64::MAX, 1), (u64::MAX - 7, 8), (0, 8), (1 << 63, 8)] {
            cases.push((opcode, Some(va), len, NakCode::RemoteAccess));
        }
        for len in [(1 << 31) + 1, u32::MAX] {
            cases.push((opcode, None, len, NakCode::InvalidRequest));
        }
    }
    for (opcode, va, len, code) in cases {
        let mut victim = Victim::new();
        let mut headers = victim.forge(opcode, victim.expected());
        let last_eight = victim.pair.far.address + Pair::SIZE as u64 - 8;
        headers.reth = headers.reth.map(|reth| Reth { va: va.unwrap_or(last_eight), len, ..reth });
        if opcode == Opcode::RcWriteOnly && len > 1024 {
            headers.bth.opcode = Opcode::RcWriteFirst;
        }
        let payload = match headers.bth.opcode {
            Opcode::RcWriteOnly => vec![0x11; len as usize],
            Opcode::RcWriteFirst => vec![0x11; 1024],
            _ => vec![],
        };
        let what = format!("{opcode} of {len} bytes at {va:x?}");
        let (_, sent) = victim.hit(&headers, &payload);
        assert_eq!(sent.len(), 1, "{what}");
        victim.assert_refused(&sent, code, AsyncEvent::QpAccessError, &what);
        victim.assert_untouched();
    }
}

#[test]
fn more_reads_at_once_than_agreed_end_the_connection() {
    // A host that looks at nothing it should send cannot answer; here the answers wait because the ring is full.
    let mut setting = Setting::on(LinkKind::Whole);
    setting.link.ring = 1;
    setting.options.max_dest_rd_atomic = 3;
    let mut victim = Victim::under(&setting);
    let source = victim.pair.sim.gid(victim.pair.alice, 0);
    // Fill the ring back to Alice.
    victim.pair.sim.pause(victim.pair.alice);
    victim
        .pair
        .sim
        .post(victim.pair.b, &Work::write(victim.pair.near.remote(0)).sge(victim.pair.far.sge(0, 8)))
        .unwrap();
    victim.pair.sim.run_for(10_000);
    let first = victim.expected();
    for nth in 0..4 {
        assert_eq!(victim.state(), State::ReadyToSend, "{nth}");
        let headers = victim.forge(Opcode::RcReadRequest, first.add(nth));
        victim.pair.sim.inject_train(victim.pair.bob, source, &headers, 1, &[]);
        victim.pair.sim.run_for(10);
    }
    assert_eq!(victim.state(), State::Error);
    assert_eq!(victim.pair.sim.async_events(victim.pair.b), [AsyncEvent::QpAccessError]);
    victim.pair.sim.resume(victim.pair.alice);
    victim.pair.sim.run_until_idle();
    victim.assert_recovers();
}

#[test]
fn packets_for_somebody_else_are_dropped_for_the_reason_that_is_true() {
    let mut victim = Victim::new();
    let (alice, bob) = (victim.pair.alice, victim.pair.bob);
    let good = victim.forge(Opcode::RcWriteOnly, victim.expected());
    let change = |f: fn(&mut Headers)| {
        let mut headers = good;
        f(&mut headers);
        headers
    };
    let cases = [
        (change(|headers| headers.bth.pkey = Pkey::new(0x8001)), DropReason::PkeyMismatch),
        (change(|headers| headers.bth.pkey = Pkey::new(0x0001)), DropReason::PkeyMismatch),
        (change(|headers| headers.bth.dest_qpn = Qpn::new(0xabcdef)), DropReason::UnknownQp),
        (change(|headers| headers.bth.dest_qpn = Qpn::GSI), DropReason::UnknownQp),
        (change(|headers| headers.bth.dest_qpn = Qpn::MULTICAST), DropReason::UnknownQp),
    ];
    for (headers, reason) in cases {
        assert_eq!(victim.hit(&headers, &[1; 8]), (vec![reason], vec![]));
    }
    // From an address that is not the peer's: another host's, nobody's, and the peer's other one.
    let stranger = wire::Gid::from_ipv4([192, 0, 2, 7].into());
    let other = victim.pair.sim.gid(alice, 1);
    for source in [stranger, other, victim.pair.sim.gid(bob, 0)] {
        victim.log.clear();
        victim.pair.sim.inject(bob, source, &good, &[1; 8]).unwrap();
        assert_eq!(victim.settle(), (vec![DropReason::WrongSource], vec![]), "{source}");
    }
    // To an address that is not this host's.
    let here = victim.pair.sim.gid(alice, 0);
    let frame = victim.pair.sim.frame(here, stranger, &good, &[1; 8]).unwrap();
    victim.log.clear();
    victim.pair.sim.inject_bytes(bob, frame);
    assert_eq!(victim.settle(), (vec![DropReason::WrongDestination], vec![]));
    victim.assert_untouched();
    victim.assert_works();
}

#[test]
fn opcodes_of_other_transports_are_nobodys() {
    let mut victim = Victim::new();
    let ours = |opcode: &Opcode| matches!(opcode.transport(), Transport::Rc | Transport::Cnp);
    let foreign: Vec<Opcode> = Opcode::ALL.iter().copied().filter(|opcode| !ours(opcode)).collect();
    assert!(foreign.len() > 30);
    for opcode in foreign {
        let headers = victim.forge(opcode, victim.expected());
        let payload: &[u8] = if opcode.has_payload() { &[1; 8] } else { &[] };
        assert_eq!(victim.hit(&headers, payload), (vec![DropReason::BadOpcodeForTransport], vec![]), "{opcode}");
    }
    victim.assert_untouched();
    victim.assert_works();
    // And requests of ours at queue pairs of other kinds.
    for kind in [Kind::UnreliableConnected, Kind::UnreliableDatagram] {
        let mut pair = Pair::rc(&Setting::default());
        let log = Log::of(&mut pair.sim);
        let other = pair.sim.create_qp(pair.bob, QpSpec::new(kind));
        match kind {
            Kind::UnreliableDatagram => pair.sim.activate(other, &pair.options),
            _ => {
                let end = pair.sim.create_qp(pair.alice, QpSpec::new(kind));
                pair.sim.connect(end, other, &pair.options);
            }
        }
        log.clear();
        let psn = pair.sim.attributes(other).rq_psn;
        let source = pair.sim.gid(pair.alice, 0);
        for &opcode in Opcode::ALL.iter().filter(|opcode| opcode.transport() == Transport::Rc) {
            let headers = forge(opcode, other.qpn, psn, pair.far.address, pair.far.key);
            let payload: &[u8] = if opcode.has_payload() { &[1; 8] } else { &[] };
            pair.sim.inject(pair.bob, source, &headers, payload).unwrap();
            pair.sim.run_until_idle();
            assert_eq!(log.drops(pair.bob), [DropReason::BadOpcodeForTransport], "{opcode} at {kind}");
        }
        assert!(log.packets().is_empty());
    }
}

#[test]
fn frames_cut_short_anywhere_are_malformed() {
    let mut victim = Victim::new();
    let (here, there) = (victim.pair.sim.gid(victim.pair.alice, 0), victim.pair.sim.gid(victim.pair.bob, 0));
    let mut cut = 0;
    for &opcode in Opcode::ALL {
        let headers = victim.forge(opcode, victim.expected());
        let payload: &[u8] = if opcode.has_payload() { &[1; 9] } else { &[] };
        let frame = victim.pair.sim.frame(here, there, &headers, payload).unwrap();
        for length in 0..frame.len() {
            victim.pair.sim.inject_bytes(victim.pair.bob, frame[..length].to_vec());
            cut += 1;
        }
    }
    victim.pair.sim.run_until_idle();
    assert_eq!(victim.pair.sim.counters().dropped_for(DropReason::Malformed), cut);
    assert_eq!(victim.pair.sim.counters().delivered, 0);
    assert!(victim.log.packets().is_empty());
    victim.assert_untouched();
    victim.assert_works();
}

#[test]
fn a_flipped_bit_is_found_or_changes_nothing() {
    // Every bit of a WRITE's frame, and then thousands of frames with several bits flipped.
    let mut victim = Victim::new();
    let (here, there) = (victim.pair.sim.gid(victim.pair.alice, 0), victim.pair.sim.gid(victim.pair.bob, 0));
    let headers = victim.forge(Opcode::RcWriteOnly, victim.expected());
    let frame = victim.pair.sim.frame(here, there, &headers, b"eight by").unwrap();
    let mut rng = Rng::new(5);
    let mut taken = 0;
    for round in 0..frame.len() * 8 + 5000 {
        let mut bytes = frame.clone();
        let flips = if round < frame.len() * 8 { 1 } else { 1 + rng.below(6) };
        for nth in 0..flips {
            let single = round < frame.len() * 8 && nth == 0;
            let bit = if single { round } else { rng.below(frame.len() as u64 * 8) as usize };
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let before = victim.pair.sim.counters().clone();
        victim.pair.sim.inject_bytes(victim.pair.bob, bytes);
        victim.pair.sim.run_until_idle();
        let after = victim.pair.sim.counters();
        let dropped = after.dropped.values().sum::<u64>() - before.dropped.values().sum::<u64>();
        let delivered = after.delivered - before.delivered;
        // Delivered packets are acknowledged, which is one delivery more.
        assert!(dropped == 1 && delivered == 0 || dropped == 0 && delivered <= 2, "round {round}");
        taken += delivered.min(1);
    }
    // What the ICRC leaves out (Ethernet, hop limit, traffic class, UDP checksum) may change under way.
    assert!(taken > 50 && taken < 500, "{taken}");
    assert_eq!(victim.pair.far_bytes(0, 8), b"eight by", "and what was written is what was sent");
    assert!(victim.pair.far_bytes(8, OPEN).iter().all(|byte| *byte == 0xee));
    victim.assert_recovers();
}

#[test]
fn noise_is_not_a_frame() {
    let mut victim = Victim::new();
    let mut rng = Rng::new(77);
    for _ in 0..2000 {
        let mut bytes = vec![0; rng.below(200) as usize];
        rng.fill(&mut bytes);
        victim.pair.sim.inject_bytes(victim.pair.bob, bytes);
    }
    victim.pair.sim.run_until_idle();
    assert_eq!(victim.pair.sim.counters().dropped_for(DropReason::Malformed), 2000);
    victim.assert_works();
}

#[test]
fn a_train_that_lies_about_its_count_is_dropped_or_refused() {
    for (opcode, length) in single_requests() {
        let many = matches!(opcode.operation(), Operation::Send | Operation::Write);
        for count in [0, 2, 1000, Psn::COUNT / 2 - 1, Psn::COUNT / 2, Psn::COUNT, u32::MAX] {
            let mut victim = Victim::under(&Setting::on(LinkKind::Whole));
            victim.pair.sim.receive(victim.pair.b, 1, &[victim.pair.far.sge(0, 100)]).unwrap();
            let expected = victim.expected();
            let headers = victim.forge(opcode, expected);
            let (drops, sent) = victim.hit_with_train(&headers, count, &vec![0; length]);
            let what = format!("{opcode}, {count} packets");
            if many && (1..Psn::COUNT / 2).contains(&count) {
                // Several packets cannot carry so little.
                assert_eq!(drops, [], "{what}");
                assert_eq!(sent[0].syndrome(), Some(Syndrome::Nak(NakCode::InvalidRequest)), "{what}");
                assert_eq!(victim.state(), State::Error);
                let ends: Vec<_> = victim.pair.sim.completions(victim.pair.b).iter().map(|c| c.status).collect();
                assert_eq!(ends, [Status::WorkRequestFlushed], "{what}");
            } else {
                assert_eq!((drops, sent), (vec![DropReason::BadLength], vec![]), "{what}");
                assert_eq!((victim.state(), victim.expected()), (State::ReadyToSend, expected), "{what}");
                victim.pair.succeed(&Work::send());
                assert_eq!(victim.pair.received().wr_id, 1);
                victim.assert_works();
                continue;
            }
            victim.assert_untouched();
            victim.assert_recovers();
        }
    }
}

#[test]
fn a_train_that_overlaps_what_was_received_gives_only_what_is_new() {
    let setting = Setting::on(LinkKind::Whole);
    // Two packets were received; a train of four begins one, two or three packets before their end.
    for back in [1, 2, 3u32] {
        let mut victim = Victim::under(&setting);
        let first = victim.expected();
        let mut head = victim.forge(Opcode::RcWriteFirst, first);
        head.reth = head.reth.map(|reth| Reth { len: 4096, ..reth });
        victim.hit_with_train(&head, 2, &[1; 2048]);
        assert_eq!(victim.expected(), first.add(2));
        let tail = victim.forge(Opcode::RcWriteMiddle, first.add(2).sub(back));
        // Longer than the message: refused, whatever the overlap, unless it ends where the message must.
        let count = back + 1;
        let (_, sent) = victim.hit_with_train(&tail, count, &vec![2; 1024 * count as usize]);
        assert_eq!(victim.expected(), first.add(3), "{back}: {sent:?}");
        let mut expected = vec![1; 2048];
        expected.extend([2; 1024]);
        expected.extend([0xee; 1024]);
        assert_eq!(victim.pair.far_bytes(0, 4096), expected, "what was there is not written again");
        // One whose payload is too short for the overlap it claims says nothing.
        let short = victim.forge(Opcode::RcWriteMiddle, first.add(2));
        let (drops, _) = victim.hit_with_train(&short, 2, &[3; 1000]);
        assert_eq!(drops, [DropReason::BadLength]);
        assert_eq!(victim.expected(), first.add(3));
    }
}

#[test]
fn a_flood_of_congestion_notifications_slows_and_does_not_stop() {
    let mut victim = Victim::new();
    let headers = Headers::new(Opcode::Cnp, victim.pair.b.qpn, Psn::new(0));
    let source = victim.pair.sim.gid(victim.pair.alice, 0);
    for _ in 0..5000 {
        victim.pair.sim.inject(victim.pair.bob, source, &headers, &[0; 16]).unwrap();
        victim.pair.sim.run_for(100_000);
    }
    assert!(victim.log.packets().is_empty(), "nobody answers a notification");
    assert_eq!(victim.log.drops(victim.pair.bob), []);
    let window = victim.pair.sim.window(victim.pair.bob, source).unwrap();
    assert!(window.size() >= 2 * transport::congestion::FULL_PACKET, "{}", window.size());
    victim.assert_works();
    // From a stranger, or to a queue pair that has no peer, it is nothing.
    let stranger = wire::Gid::from_ipv4([192, 0, 2, 7].into());
    victim.log.clear();
    victim.pair.sim.inject(victim.pair.bob, stranger, &headers, &[0; 16]).unwrap();
    assert_eq!(victim.settle(), (vec![DropReason::WrongSource], vec![]));
    let ud = victim.pair.sim.create_qp(victim.pair.bob, QpSpec::ud());
    victim.pair.sim.activate(ud, &victim.pair.options);
    let headers = Headers::new(Opcode::Cnp, ud.qpn, Psn::new(0));
    assert_eq!(victim.hit(&headers, &[0; 16]), (vec![DropReason::WrongState], vec![]));
}

#[test]
fn marked_notifications_do_not_call_for_notifications() {
    // Everything is marked, and the way is so long that each side would be ready for the next by the time one arrives.
    let mut setting = Setting::default();
    setting.link.delay = 100_000;
    let mut victim = Victim::under(&setting);
    victim.pair.sim.script(always(|_| true, Fate::Mark));
    victim.pair.succeed(&Work::write(victim.pair.far.remote(0)).sge(victim.pair.near.sge(0, 8)));
    let packets = victim.log.packets();
    let notifications = packets.iter().filter(|seen| seen.opcode() == Opcode::Cnp).count();
    assert!(
        (1..=2).contains(&notifications),
        "one for the request, at most one for its acknowledgement: {notifications}"
    );
}

/// All requests and answers of some honest work, as they went over the wire.
fn record(victim: &mut Victim) -> Vec<(bool, Headers, Vec<u8>)> {
    let seen = sim::Shared::new(Vec::new());
    let (into, alice) = (seen.clone(), victim.pair.alice);
    victim.pair.sim.watch(move |passing| {
        let sighting = &passing.sighting;
        into.borrow_mut().push((sighting.from == alice, *sighting.headers, sighting.payload.to_vec()));
    });
    work_both_ways(&mut victim.pair);
    let packets = seen.borrow().clone();
    assert!(packets.len() > 20, "{}", packets.len());
    packets
}

#[test]
fn packets_of_a_former_life_change_nothing_in_the_new_one() {
    // New numbers that lie before, behind, and far from the old ones.
    for shift in [0x1000, 0xff_f000, 0x40_0000, 0x7f_0000] {
        let mut setting = Setting::default();
        let (old_a, old_b) = (Psn::new(5000), Psn::new(900_000));
        setting.options.psn = Some((old_a, old_b));
        let mut victim = Victim::under(&setting);
        let packets = record(&mut victim);
        let pair = &mut victim.pair;
        for qp in [pair.a, pair.b] {
            pair.sim.modify(qp, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap();
        }
        let options = sim::ConnectOptions { psn: Some((old_a.add(shift), old_b.add(shift))), ..pair.options };
        pair.sim.connect(pair.a, pair.b, &options);
        for (region, byte) in [(pair.near, 0x77), (pair.far, 0xee)] {
            pair.sim.bytes_mut(&region).fill(byte);
        }
        for (qp, memory) in [(pair.a, pair.near), (pair.b, pair.far)] {
            pair.sim.receive(qp, 5, &[memory.sge(0, 5000)]).unwrap();
        }
        victim.log.clear();
        let before = victim.pair.sim.counters().sent;
        let old = packets.len() as u64;
        for (from_alice, headers, payload) in packets {
            let pair = &mut victim.pair;
            let (from, to) = if from_alice { (pair.alice, pair.bob) } else { (pair.bob, pair.alice) };
            let source = pair.sim.gid(from, 0);
            pair.sim.inject(to, source, &headers, &payload).unwrap();
            pair.sim.run_until_idle();
        }
        let said = victim.pair.sim.counters().sent - before;
        assert!(said <= old, "at most an answer to each: {said} to {old}");
        assert!(victim.pair.sim.bytes(&victim.pair.near).iter().all(|byte| *byte == 0x77), "{shift:#x}");
        victim.assert_untouched();
        for qp in [victim.pair.a, victim.pair.b] {
            assert_eq!(victim.pair.sim.completions(qp), [], "{shift:#x}");
            // The receive has waited for honest work.
            let other = if qp == victim.pair.a { victim.pair.b } else { victim.pair.a };
            victim.pair.sim.post(other, &Work::send()).unwrap();
            victim.pair.sim.run_until_idle();
            assert_eq!(victim.pair.sim.completions(other)[0].status, Status::Success);
            assert_eq!(victim.pair.sim.completions(qp)[0].wr_id, 5);
        }
        victim.assert_works();
    }
}

#[test]
fn a_storm_of_duplicates_is_answered_and_carried_out_once() {
    let mut victim = Victim::new();
    let packets = record(&mut victim);
    let value = victim.pair.far_bytes(24_000, 8).to_vec();
    victim.log.clear();
    let pair = &mut victim.pair;
    for (from_alice, headers, payload) in &packets {
        let (from, to) = if *from_alice { (pair.alice, pair.bob) } else { (pair.bob, pair.alice) };
        let source = pair.sim.gid(from, 0);
        let expected_answers = match headers.bth.opcode.operation() {
            // Three packets of READ response.
            Operation::ReadRequest => 3,
            operation if operation.is_request() => 1,
            _ => 0,
        };
        for _ in 0..100 {
            let before = pair.sim.counters().sent;
            pair.sim.inject(to, source, headers, payload).unwrap();
            pair.sim.run_for(1);
            let answers = pair.sim.counters().sent - before;
            assert!(answers <= expected_answers, "{}: {answers}", headers.bth.opcode);
        }
        pair.sim.run_until_idle();
    }
    assert_eq!(pair.far_bytes(24_000, 8), value, "atomics ran once");
    assert!(pair.sim.completions(pair.a).is_empty() && pair.sim.completions(pair.b).is_empty());
    let reasons = victim.log.drops(victim.pair.bob);
    let known = [DropReason::Duplicate, DropReason::StaleAck, DropReason::GhostAck];
    assert!(reasons.iter().all(|reason| known.contains(reason)), "{reasons:?}");
    victim.assert_works();
}

#[test]
fn a_flood_of_sends_without_receives_gets_one_refusal_each_and_no_more() {
    let mut victim = Victim::new();
    let headers = victim.forge(Opcode::RcSendOnly, victim.expected());
    for _ in 0..1000 {
        let (drops, sent) = victim.hit(&headers, b"hello");
        assert_eq!(drops, [DropReason::NoReceive]);
        let refusal = Syndrome::RnrNak { timer: RnrTimer::new(1) };
        assert_eq!(sent.iter().map(Seen::syndrome).collect::<Vec<_>>(), [Some(refusal)]);
    }
    assert_eq!(victim.expected(), headers.bth.psn);
    victim.assert_works();
}

#[test]
fn a_queue_pair_that_cannot_send_its_answers_owes_only_so_many_and_recovers() {
    // Bob's ring towards Alice is full, so that everything Bob owes waits.
    let mut setting = Setting::on(LinkKind::Whole);
    setting.link.ring = 1;
    let mut victim = Victim::under(&setting);
    victim.pair.sim.pause(victim.pair.alice);
    victim
        .pair
        .sim
        .post(victim.pair.b, &Work::write(victim.pair.near.remote(0)).sge(victim.pair.far.sge(0, 8)))
        .unwrap();
    victim.pair.sim.run_for(1_000);
    // Alternating, so that nothing merges: an old request to acknowledge and one without a receive.
    let source = victim.pair.sim.gid(victim.pair.alice, 0);
    let expected = victim.expected();
    for _ in 0..500 {
        for headers in [victim.forge(Opcode::RcWriteOnly, expected.sub(1)), victim.forge(Opcode::RcSendOnly, expected)]
        {
            victim.pair.sim.inject_train(victim.pair.bob, source, &headers, 1, &[0; 8]);
        }
    }
    victim.pair.sim.run_for(1_000);
    victim.log.clear();
    // A READ that arrives on top of it is not forgotten for ever.
    let question = victim.forge(Opcode::RcReadRequest, expected);
    victim.pair.sim.inject_train(victim.pair.bob, source, &question, 1, &[]);
    victim.pair.sim.run_for(1_000);
    victim.pair.sim.resume(victim.pair.alice);
    victim.pair.sim.run_until_idle();
    let said = victim.log.packets().iter().filter(|seen| seen.from == victim.pair.bob).count();
    assert!(said <= 100, "{said}");
    victim.log.clear();
    victim.pair.sim.inject_train(victim.pair.bob, source, &question, 1, &[]);
    victim.pair.sim.run_until_idle();
    let answers = victim.log.packets().iter().filter(|seen| seen.opcode() == Opcode::RcReadResponseOnly).count();
    assert_eq!(answers, 1, "asked again, it is answered");
    assert_eq!(victim.pair.sim.completions(victim.pair.b)[0].kind, CompletionKind::Write);
}
