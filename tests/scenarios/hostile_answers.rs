//! A peer that answers what it should not: acknowledgements of the future, answers nobody asked for, the wrong kind, the wrong length, storms of
//! refusals. The requester believes nothing that cannot be true, sends again no more than once for each reason, and otherwise works on.
#![allow(missing_docs)]

use scenery::{Log, Pair, Seen, Setting};
use sim::{LinkKind, QpSpec, Work};
use trace::{DropReason, RetryCause};
use transport::{CompletionKind, Failure, Modify, State, Status};
use wire::{Aeth, AtomicAckEth, Headers, Msn, NakCode, Opcode, Psn, RnrTimer, Syndrome};

/// Alice asks; her packets are lost until [`Asker::heal`], and forged answers come as from Bob.
struct Asker {
    pair: Pair,
    log: Log,
    first: Psn,
}

impl Asker {
    fn new() -> Asker {
        Asker::under(&Setting::default())
    }

    fn under(setting: &Setting) -> Asker {
        let mut pair = Pair::rc(setting);
        let log = Log::of(&mut pair.sim);
        let first = pair.sim.attributes(pair.a).sq_psn;
        for (nth, byte) in pair.sim.bytes_mut(&pair.far).iter_mut().enumerate() {
            *byte = (nth % 251) as u8;
        }
        pair.sim.partition_direction(pair.alice, pair.bob);
        Asker { pair, log, first }
    }

    fn post(&mut self, work: Work) {
        self.pair.sim.post(self.pair.a, &work).unwrap();
        self.log.clear();
    }

    /// A READ of `length` bytes from the start of Bob's memory to byte 1000 of Alice's, in its own pattern.
    fn read(&mut self, length: u32) {
        self.pair.sim.bytes_mut(&self.pair.near).fill(0xaa);
        self.post(Work::read(self.pair.far.remote(0)).sge(self.pair.near.sge(1000, length)).id(1));
    }

    fn write(&mut self, length: u32) {
        self.post(Work::write(self.pair.far.remote(0)).sge(self.pair.near.sge(0, length)).id(1));
    }

    /// An answer with number `nth`, counted from the first request.
    fn forge(&self, opcode: Opcode, nth: u32) -> Headers {
        let mut headers = Headers::new(opcode, self.pair.a.qpn, self.first.add(nth));
        let ack = Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) };
        headers.aeth = opcode.headers().contains(wire::HeaderSet::AETH).then_some(ack);
        let value = AtomicAckEth { original: 0x0101_0101_0101_0101 };
        headers.atomic_ack = opcode.headers().contains(wire::HeaderSet::ATOMIC_ACK_ETH).then_some(value);
        headers
    }

    fn refusal(&self, syndrome: Syndrome, nth: u32) -> Headers {
        let mut headers = self.forge(Opcode::RcAcknowledge, nth);
        headers.aeth = Some(Aeth { syndrome, msn: Msn::new(0) });
        headers
    }

    /// An answer arrives: why Alice dropped it, and what she sent because of it.
    fn hit(&mut self, headers: &Headers, payload: &[u8]) -> (Vec<DropReason>, Vec<Seen>) {
        let source = self.pair.sim.gid(self.pair.bob, 0);
        self.hit_from(source, headers, payload)
    }

    fn hit_from(&mut self, source: wire::Gid, headers: &Headers, payload: &[u8]) -> (Vec<DropReason>, Vec<Seen>) {
        self.log.clear();
        self.pair.sim.inject(self.pair.alice, source, headers, payload).unwrap();
        self.settle()
    }

    fn hit_with_train(&mut self, headers: &Headers, count: u32, payload: &[u8]) -> (Vec<DropReason>, Vec<Seen>) {
        self.log.clear();
        let source = self.pair.sim.gid(self.pair.bob, 0);
        self.pair.sim.inject_train(self.pair.alice, source, headers, count, payload);
        self.settle()
    }

    fn settle(&mut self) -> (Vec<DropReason>, Vec<Seen>) {
        self.pair.sim.run_for(1);
        let alice = self.pair.alice;
        let sent: Vec<Seen> = self.log.packets().into_iter().filter(|seen| seen.from == alice).collect();
        // Her own packets are lost on the wire, which is noted as hers.
        let drops = self.log.drops(alice).into_iter().filter(|reason| *reason != DropReason::Partitioned).collect();
        (drops, sent)
    }

    fn heal(&mut self) {
        self.pair.sim.heal(self.pair.alice, self.pair.bob);
        self.pair.sim.run_until_idle();
    }

    fn ends(&mut self) -> Vec<(u64, Status)> {
        self.pair.sim.completions(self.pair.a).iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// The READ that was posted comes to a good end after all.
    #[track_caller]
    fn assert_read_succeeds(&mut self, length: usize) {
        assert_eq!(self.ends(), [], "nothing yet");
        self.heal();
        assert_eq!(self.ends(), [(1, Status::Success)]);
        assert_eq!(self.pair.near_bytes(1000, length), self.pair.far_bytes(0, length));
        assert!(self.pair.near_bytes(0, 1000).iter().all(|byte| *byte == 0xaa), "nothing before it");
        assert!(self.pair.near_bytes(1000 + length, 1000).iter().all(|byte| *byte == 0xaa), "nothing behind it");
        self.assert_works();
    }

    #[track_caller]
    fn assert_write_succeeds(&mut self, length: usize) {
        assert_eq!(self.ends(), [], "nothing yet");
        self.heal();
        assert_eq!(self.ends(), [(1, Status::Success)]);
        assert_eq!(self.pair.far_bytes(0, length), self.pair.near_bytes(0, length));
        self.assert_works();
    }

    /// Honest work of all kinds.
    #[track_caller]
    fn assert_works(&mut self) {
        self.pair.sim.heal(self.pair.alice, self.pair.bob);
        let pair = &mut self.pair;
        pair.succeed(&Work::write(pair.far.remote(20_000)).sge(pair.near.sge(5, 3000)));
        assert_eq!(pair.far_bytes(20_000, 3000), pair.near_bytes(5, 3000));
        pair.succeed(&Work::read(pair.far.remote(0)).sge(pair.near.sge(30_000, 3000)));
        assert_eq!(pair.near_bytes(30_000, 3000), pair.far_bytes(0, 3000));
        pair.sim.bytes_mut(&pair.far)[24_000..24_008].fill(0);
        pair.succeed(&Work::fetch_add(pair.far.remote(24_000), 1).sge(pair.near.sge(40_000, 8)));
        assert_eq!(pair.far_bytes(24_000, 8), 1u64.to_ne_bytes());
        assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::ReadyToSend, State::ReadyToSend));
        assert_eq!(pair.sim.async_events(pair.a), []);
    }

    /// The answer was so wrong that the connection ends: the work says so, nothing else was written, and a new life works.
    #[track_caller]
    fn assert_ended(&mut self, status: Status, what: &str) {
        let ends = self.pair.sim.completions(self.pair.a);
        assert_eq!(ends.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), [(1, status)], "{what}");
        assert_eq!(self.pair.sim.state(self.pair.a), State::Error, "{what}");
        self.heal();
        let pair = &mut self.pair;
        for qp in [pair.a, pair.b] {
            pair.sim.modify(qp, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap();
        }
        pair.sim.connect(pair.a, pair.b, &pair.options);
        self.assert_works();
    }
}

/// Every syndrome an acknowledgement can carry.
fn syndromes() -> Vec<Syndrome> {
    let mut all: Vec<Syndrome> = [0, 1, 2, 3, 4].map(|code| Syndrome::Nak(NakCode::from_code(code))).to_vec();
    all.extend([Syndrome::ACK, Syndrome::Ack { credits: 3 }, Syndrome::RnrNak { timer: RnrTimer::new(0) }]);
    all.extend([Syndrome::RnrNak { timer: RnrTimer::new(31) }, Syndrome::from_byte(0x45), Syndrome::from_byte(0x9f)]);
    all
}

#[test]
fn acknowledgements_of_what_was_never_sent_are_nothing() {
    for (sent, what) in [(0, "nothing outstanding"), (3, "three packets outstanding")] {
        for syndrome in syndromes() {
            let mut asker = Asker::new();
            if sent > 0 {
                asker.write(sent * 1024);
            }
            for ahead in [0, 1, 2, 1000, Psn::COUNT / 2 - 10] {
                let headers = asker.refusal(syndrome, sent + ahead);
                assert_eq!(
                    asker.hit(&headers, b""),
                    (vec![DropReason::GhostAck], vec![]),
                    "{what}, +{ahead}, {syndrome:?}"
                );
            }
            for behind in [1, 2, 1000, Psn::COUNT / 2] {
                let headers = asker.refusal(syndrome, Psn::COUNT - behind);
                assert_eq!(
                    asker.hit(&headers, b""),
                    (vec![DropReason::StaleAck], vec![]),
                    "{what}, -{behind}, {syndrome:?}"
                );
            }
            if sent > 0 {
                asker.assert_write_succeeds(sent as usize * 1024);
            } else {
                asker.assert_works();
            }
        }
    }
}

#[test]
fn a_syndrome_that_means_nothing_is_malformed() {
    for byte in [0x40, 0x5f, 0x80] {
        let syndrome = Syndrome::from_byte(byte);
        let mut asker = Asker::new();
        asker.write(3000);
        let headers = asker.refusal(syndrome, 1);
        let (drops, sent) = asker.hit(&headers, b"");
        assert_eq!((drops, sent), (vec![DropReason::Malformed], vec![]), "{syndrome:?}");
        asker.assert_write_succeeds(3000);
    }
}

#[test]
fn a_refusal_with_a_reserved_code_ends_the_connection_as_a_bad_response() {
    for code in [5, 17, 31] {
        let mut asker = Asker::new();
        asker.write(3000);
        let code = NakCode::from_code(code);
        let headers = asker.refusal(Syndrome::Nak(code), 0);
        asker.hit(&headers, b"");
        asker.assert_ended(Status::BadResponse, &format!("{code:?}"));
    }
}

#[test]
fn answers_from_another_address_or_for_another_queue_pair_change_nothing() {
    let mut asker = Asker::new();
    asker.read(3000);
    let stranger = wire::Gid::from_ipv4([192, 0, 2, 7].into());
    let second = asker.pair.sim.gid(asker.pair.bob, 1);
    for opcode in [Opcode::RcAcknowledge, Opcode::RcReadResponseFirst, Opcode::RcAtomicAcknowledge] {
        let payload: &[u8] = if opcode.has_payload() { &[1; 1024] } else { &[] };
        for source in [stranger, second, asker.pair.sim.gid(asker.pair.alice, 0)] {
            let headers = asker.forge(opcode, 0);
            let (drops, sent) = asker.hit_from(source, &headers, payload);
            assert_eq!((drops, sent), (vec![DropReason::WrongSource], vec![]), "{opcode} from {source}");
        }
    }
    // A neighbour's answers with a number of ours, and the other way round.
    let (c, d) = (
        asker.pair.sim.create_qp(asker.pair.alice, QpSpec::rc()),
        asker.pair.sim.create_qp(asker.pair.bob, QpSpec::rc()),
    );
    asker.pair.sim.connect(c, d, &asker.pair.options);
    let mut headers = asker.forge(Opcode::RcAcknowledge, 0);
    headers.bth.dest_qpn = c.qpn;
    let (drops, _) = asker.hit(&headers, b"");
    assert!(matches!(drops[..], [DropReason::GhostAck | DropReason::StaleAck]), "{drops:?}");
    asker.assert_read_succeeds(3000);
}

#[test]
fn an_acknowledgement_of_a_read_is_no_answer_and_makes_it_be_asked_again_once() {
    for storm in [1, 1000] {
        for nth in 0..3 {
            let mut asker = Asker::new();
            asker.read(3000);
            let headers = asker.forge(Opcode::RcAcknowledge, nth);
            let (mut again, copies) = (0, 2);
            for _ in 0..storm {
                let (drops, sent) = asker.hit(&headers, b"");
                if again == 0 {
                    assert_eq!(drops, [], "the first says that the answer was lost");
                    assert!(sent.iter().all(|seen| seen.opcode() == Opcode::RcReadRequest && seen.again));
                    assert_eq!(sent[0].psn(), asker.first);
                } else {
                    assert_eq!((drops, sent.len()), (vec![DropReason::AfterRetry], 0));
                }
                again += sent.len();
            }
            assert_eq!(again, copies, "{storm} acknowledgements of packet {nth}");
            asker.assert_read_succeeds(3000);
        }
    }
}

#[test]
fn an_acknowledgement_behind_a_read_acknowledges_only_what_is_before_it() {
    let mut asker = Asker::new();
    asker.pair.sim.bytes_mut(&asker.pair.near).fill(0xaa);
    asker.post(Work::write(asker.pair.far.remote(50_000)).sge(asker.pair.near.sge(0, 1024)).id(7));
    asker.post(Work::read(asker.pair.far.remote(0)).sge(asker.pair.near.sge(1000, 2048)).id(1));
    asker.post(Work::write(asker.pair.far.remote(60_000)).sge(asker.pair.near.sge(0, 1024)).id(9));
    // 0: write; 1 and 2: read; 3: write.
    asker.hit(&asker.forge(Opcode::RcAcknowledge, 3), b"");
    assert_eq!(asker.ends(), [(7, Status::Success)], "the peer says it has the first; the READ must be answered");
    asker.heal();
    // Bob never had it. Who acknowledges what he has not seen will never be in step again, and the rest says so.
    assert_eq!(asker.ends(), [(1, Status::RetryExceeded), (9, Status::WorkRequestFlushed)]);
}

#[test]
fn read_responses_nobody_asked_for_are_nothing() {
    let opcodes = [
        Opcode::RcReadResponseOnly,
        Opcode::RcReadResponseFirst,
        Opcode::RcReadResponseMiddle,
        Opcode::RcReadResponseLast,
        Opcode::RcAtomicAcknowledge,
    ];
    for opcode in opcodes {
        let payload: &[u8] = if opcode.has_payload() { &[1; 1024] } else { &[] };
        let mut asker = Asker::new();
        let near = asker.pair.near_bytes(0, Pair::SIZE).to_vec();
        for ahead in [0, 1, 100] {
            let (drops, sent) = asker.hit(&asker.forge(opcode, ahead), payload);
            assert_eq!((drops, sent), (vec![DropReason::GhostAck], vec![]), "{opcode}");
        }
        for behind in [1, 100] {
            let (drops, sent) = asker.hit(&asker.forge(opcode, Psn::COUNT - behind), payload);
            assert_eq!((drops, sent), (vec![DropReason::StaleAck], vec![]), "{opcode}");
        }
        // A WRITE is outstanding: the answer has its number, but a WRITE has none of this kind.
        asker.write(3000);
        for _ in 0..3 {
            let (drops, sent) = asker.hit(&asker.forge(opcode, 0), payload);
            assert_eq!((drops, sent), (vec![DropReason::UnexpectedResponse], vec![]), "{opcode}");
        }
        assert_eq!(asker.pair.near_bytes(0, Pair::SIZE), near);
        asker.assert_write_succeeds(3000);
    }
}

#[test]
fn a_read_response_of_the_wrong_length_ends_the_connection_and_is_not_placed() {
    use Opcode::*;
    // 2500 bytes are packets of 1024, 1024 and 452.
    let cases: [(&str, Opcode, u32, usize); 8] = [
        ("short first", RcReadResponseFirst, 0, 1023),
        ("empty first", RcReadResponseFirst, 0, 0),
        ("long first", RcReadResponseFirst, 0, 1025),
        ("very long first", RcReadResponseFirst, 0, 4096),
        ("short only for a long read", RcReadResponseOnly, 0, 8),
        ("short last", RcReadResponseLast, 2, 451),
        ("long last", RcReadResponseLast, 2, 453),
        ("full last", RcReadResponseLast, 2, 1024),
    ];
    for (what, opcode, nth, length) in cases {
        let mut asker = Asker::new();
        asker.read(2500);
        for before in 0..nth {
            let opcode = if before == 0 { RcReadResponseFirst } else { RcReadResponseMiddle };
            assert_eq!(asker.hit(&asker.forge(opcode, before), &[5; 1024]), (vec![], vec![]));
        }
        asker.hit(&asker.forge(opcode, nth), &vec![6; length]);
        let placed = nth as usize * 1024;
        assert!(asker.pair.near_bytes(1000, placed).iter().all(|byte| *byte == 5), "{what}");
        assert!(asker.pair.near_bytes(1000 + placed, 5000).iter().all(|byte| *byte == 0xaa), "{what}");
        asker.assert_ended(Status::BadResponse, what);
    }
}

#[test]
fn read_responses_out_of_order_are_asked_for_again() {
    use Opcode::*;
    for (what, opcode, nth) in
        [("middle before first", RcReadResponseMiddle, 1), ("last before first", RcReadResponseLast, 2)]
    {
        let mut asker = Asker::new();
        asker.read(2500);
        let length = if nth == 2 { 452 } else { 1024 };
        let (drops, sent) = asker.hit(&asker.forge(opcode, nth), &vec![6; length]);
        assert_eq!((drops, sent.len()), (vec![], 2), "{what}");
        assert_eq!((sent[0].opcode(), sent[0].psn(), sent[0].again), (RcReadRequest, asker.first, true), "{what}");
        for _ in 0..100 {
            let (drops, sent) = asker.hit(&asker.forge(opcode, nth), &vec![6; length]);
            assert_eq!((drops, sent), (vec![DropReason::AfterRetry], vec![]), "{what}");
        }
        assert!(asker.pair.near_bytes(1000, 2500).iter().all(|byte| *byte == 0xaa), "{what}");
        asker.assert_read_succeeds(2500);
    }
    // A response that comes twice is old the second time.
    let mut asker = Asker::new();
    asker.read(2500);
    let bytes = asker.pair.far_bytes(0, 1024).to_vec();
    assert_eq!(asker.hit(&asker.forge(RcReadResponseFirst, 0), &bytes), (vec![], vec![]));
    let (drops, sent) = asker.hit(&asker.forge(RcReadResponseFirst, 0), &[9; 1024]);
    assert_eq!((drops, sent), (vec![DropReason::StaleAck], vec![]));
    assert_eq!(asker.pair.near_bytes(1000, 1024), bytes);
}

#[test]
fn the_number_of_a_read_response_decides_its_place_not_its_name() {
    use Opcode::*;
    // Kernel Soft-RoCE goes on with a middle where a first would be due; lengths and numbers are what counts.
    for names in [
        [RcReadResponseFirst, RcReadResponseMiddle, RcReadResponseLast],
        [RcReadResponseMiddle, RcReadResponseMiddle, RcReadResponseLast],
        [RcReadResponseOnly, RcReadResponseOnly, RcReadResponseOnly],
        [RcReadResponseLast, RcReadResponseFirst, RcReadResponseMiddle],
    ] {
        let mut asker = Asker::new();
        asker.read(2500);
        for (nth, opcode) in names.into_iter().enumerate() {
            let (from, to) = (nth * 1024, ((nth + 1) * 1024).min(2500));
            let bytes = asker.pair.far_bytes(from, to - from).to_vec();
            assert_eq!(asker.hit(&asker.forge(opcode, nth as u32), &bytes), (vec![], vec![]), "{names:?}");
        }
        assert_eq!(asker.ends(), [(1, Status::Success)], "{names:?}");
        assert_eq!(asker.pair.near_bytes(1000, 2500), asker.pair.far_bytes(0, 2500));
        assert!(asker.pair.near_bytes(3500, 1000).iter().all(|byte| *byte == 0xaa));
    }
}

#[test]
fn an_answer_of_the_wrong_kind_ends_the_connection() {
    use Opcode::*;
    let cases: [(&str, fn(&Pair) -> Work, Opcode, usize); 6] = [
        (
            "a READ answered as an atomic",
            |p| Work::read(p.far.remote(0)).sge(p.near.sge(1000, 8)),
            RcAtomicAcknowledge,
            0,
        ),
        (
            "an atomic answered as a READ",
            |p| Work::fetch_add(p.far.remote(0), 1).sge(p.near.sge(1000, 8)),
            RcReadResponseOnly,
            8,
        ),
        (
            "a swap answered as a READ",
            |p| Work::compare_swap(p.far.remote(0), 0, 1).sge(p.near.sge(1000, 8)),
            RcReadResponseOnly,
            0,
        ),
        (
            "an atomic write answered as an atomic",
            |p| Work::atomic_write(p.far.remote(0)).sge(p.near.sge(1000, 8)),
            RcAtomicAcknowledge,
            0,
        ),
        (
            "an atomic write answered with data",
            |p| Work::atomic_write(p.far.remote(0)).sge(p.near.sge(1000, 8)),
            RcReadResponseOnly,
            8,
        ),
        (
            "a flush answered with data",
            |p| Work::flush(p.far.remote(0), 8, wire::Placement::GLOBAL),
            RcReadResponseOnly,
            1,
        ),
    ];
    for (what, work, opcode, length) in cases {
        let mut asker = Asker::new();
        asker.pair.sim.bytes_mut(&asker.pair.near).fill(0xaa);
        asker.post(work(&asker.pair).id(1));
        asker.hit(&asker.forge(opcode, 0), &vec![6; length]);
        assert!(asker.pair.near_bytes(0, 5000).iter().all(|byte| *byte == 0xaa), "{what}");
        asker.assert_ended(Status::BadResponse, what);
    }
}

#[test]
fn an_answer_that_carries_a_refusal_is_no_answer() {
    for opcode in [Opcode::RcReadResponseOnly, Opcode::RcReadResponseFirst, Opcode::RcAtomicAcknowledge] {
        for syndrome in syndromes().into_iter().filter(|syndrome| !matches!(syndrome, Syndrome::Ack { .. })) {
            let mut asker = Asker::new();
            let length = if opcode == Opcode::RcReadResponseFirst { 2500 } else { 8 };
            asker.read(length);
            if opcode == Opcode::RcAtomicAcknowledge {
                asker = Asker::new();
                asker.pair.sim.bytes_mut(&asker.pair.near).fill(0xaa);
                asker.post(Work::fetch_add(asker.pair.far.remote(0), 1).sge(asker.pair.near.sge(1000, 8)).id(1));
            }
            let mut headers = asker.forge(opcode, 0);
            headers.aeth = Some(Aeth { syndrome, msn: Msn::new(1) });
            let payload = if opcode.has_payload() { vec![6; length.min(1024) as usize] } else { vec![] };
            asker.hit(&headers, &payload);
            assert!(asker.pair.near_bytes(1000, 3000).iter().all(|byte| *byte == 0xaa), "{opcode} {syndrome:?}");
            asker.assert_ended(Status::BadResponse, &format!("{opcode} {syndrome:?}"));
        }
    }
}

#[test]
fn a_train_of_answers_that_lies_about_its_count_is_dropped() {
    let whole = Setting::on(LinkKind::Whole);
    for (opcode, nth, count, payload, reason) in [
        (Opcode::RcReadResponseOnly, 0, 0, 0, DropReason::BadLength),
        (Opcode::RcReadResponseOnly, 0, 4, 4096, DropReason::GhostAck),
        (Opcode::RcReadResponseOnly, 0, Psn::COUNT / 2 - 1, 1024, DropReason::GhostAck),
        (Opcode::RcReadResponseOnly, 0, Psn::COUNT / 2, 1024, DropReason::BadLength),
        (Opcode::RcReadResponseOnly, 0, u32::MAX, 1024, DropReason::BadLength),
        // So far ahead and so long that its end comes around to what was sent.
        (Opcode::RcReadResponseOnly, 1000, Psn::COUNT / 2 - 1, 1024, DropReason::GhostAck),
        (Opcode::RcReadResponseOnly, Psn::COUNT / 2 - 1, Psn::COUNT / 2 - 1, 1024, DropReason::GhostAck),
        (Opcode::RcAcknowledge, 0, 0, 0, DropReason::BadLength),
        (Opcode::RcAcknowledge, 0, 2, 0, DropReason::BadLength),
        (Opcode::RcAtomicAcknowledge, 0, 2, 0, DropReason::BadLength),
    ] {
        let mut asker = Asker::under(&whole);
        asker.read(2500);
        let headers = asker.forge(opcode, nth);
        let (drops, sent) = asker.hit_with_train(&headers, count, &vec![6; payload]);
        assert_eq!((drops, sent), (vec![reason], vec![]), "{opcode} {nth} {count}");
        asker.assert_read_succeeds(2500);
        // With a WRITE outstanding, none of it may pass for an acknowledgement.
        let mut asker = Asker::under(&whole);
        asker.write(2500);
        let (drops, _) = asker.hit_with_train(&asker.forge(opcode, nth), count, &vec![6; payload]);
        assert_eq!(drops, [reason], "{opcode} {nth} {count}");
        asker.assert_write_succeeds(2500);
    }
}

#[test]
fn a_storm_of_sequence_refusals_makes_one_retry() {
    let mut asker = Asker::new();
    asker.write(3000);
    let headers = asker.refusal(Syndrome::Nak(NakCode::SequenceError), 0);
    let (drops, sent) = asker.hit(&headers, b"");
    assert_eq!((drops, sent.len()), (vec![], 2), "the first is believed");
    assert!(sent.iter().all(|seen| seen.again));
    for _ in 0..1000 {
        assert_eq!(asker.hit(&headers, b""), (vec![DropReason::AfterRetry], vec![]));
    }
    // One that acknowledges more is news.
    let (drops, sent) = asker.hit(&asker.refusal(Syndrome::Nak(NakCode::SequenceError), 2), b"");
    assert_eq!((drops, sent.iter().map(Seen::psn).collect::<Vec<_>>()), (vec![], vec![asker.first.add(2); 2]));
    asker.pair.sim.heal(asker.pair.alice, asker.pair.bob);
    // Bob has never seen the first packets that he acknowledged: he refuses the last, and what he refuses is beyond recall.
    asker.pair.sim.run_until_idle();
    assert_eq!(asker.ends(), [(1, Status::RetryExceeded)]);
    assert_eq!(asker.pair.sim.state(asker.pair.a), State::Error);
}

#[test]
fn a_storm_of_refusals_cannot_use_up_more_than_one_retry_at_a_time() {
    let mut setting = Setting::default();
    (setting.options.retry_cnt, setting.options.rnr_retry) = (2, 2);
    for syndrome in [Syndrome::Nak(NakCode::SequenceError), Syndrome::RnrNak { timer: RnrTimer::new(20) }] {
        let mut asker = Asker::under(&setting);
        asker.write(100);
        for _ in 0..1000 {
            asker.hit(&asker.refusal(syndrome, 0), b"");
        }
        assert_eq!(asker.pair.sim.state(asker.pair.a), State::ReadyToSend, "{syndrome:?}");
        asker.assert_write_succeeds(100);
    }
}

#[test]
fn a_storm_of_not_ready_makes_one_wait() {
    let mut asker = Asker::new();
    asker.write(3000);
    let timer = RnrTimer::new(20); // 10.24 ms, ten times the ACK timeout
    let headers = asker.refusal(Syndrome::RnrNak { timer }, 0);
    assert_eq!(asker.hit(&headers, b""), (vec![], vec![]), "nothing is sent until the wait is over");
    let start = asker.pair.sim.now();
    for _ in 0..1000 {
        assert_eq!(asker.hit(&headers, b""), (vec![DropReason::Duplicate], vec![]));
    }
    // Sequence refusals while waiting are the same story told again (kernel Soft-RoCE sends one with each RNR NAK).
    let (drops, sent) = asker.hit(&asker.refusal(Syndrome::Nak(NakCode::SequenceError), 0), b"");
    assert_eq!((drops, sent), (vec![DropReason::AfterRetry], vec![]));
    asker.log.clear();
    asker.pair.sim.heal(asker.pair.alice, asker.pair.bob);
    asker.pair.sim.run_until_idle();
    assert!(asker.pair.sim.now().since(start) >= timer.duration_ns(), "the storm did not shorten it");
    assert_eq!(asker.log.packets().iter().filter(|seen| seen.from == asker.pair.alice).count(), 3);
    assert_eq!(asker.ends(), [(1, Status::Success)]);
}

#[test]
fn a_peer_that_is_never_ready_is_believed_as_often_as_agreed() {
    for rnr_retry in [0, 3] {
        let mut setting = Setting::default();
        setting.options.rnr_retry = rnr_retry;
        let mut asker = Asker::under(&setting);
        asker.write(100);
        let mut refused = 0;
        while asker.pair.sim.state(asker.pair.a) == State::ReadyToSend {
            asker.hit(&asker.refusal(Syndrome::RnrNak { timer: RnrTimer::new(1) }, 0), b"");
            refused += 1;
            asker.pair.sim.run_for(20_000);
            assert!(refused < 100);
        }
        assert_eq!(refused, u32::from(rnr_retry) + 1);
        asker.assert_ended(Status::RnrRetryExceeded, "never ready");
    }
}

#[test]
fn a_refusal_of_the_future_part_of_a_message_acknowledges_what_came_before() {
    for (code, status) in [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess),
        (NakCode::RemoteOperational, Status::RemoteOperation),
    ] {
        let mut asker = Asker::new();
        asker.post(Work::write(asker.pair.far.remote(0)).sge(asker.pair.near.sge(0, 1024)).id(0));
        asker.post(Work::write(asker.pair.far.remote(0)).sge(asker.pair.near.sge(0, 3000)).id(1));
        asker.post(Work::write(asker.pair.far.remote(0)).sge(asker.pair.near.sge(0, 8)).id(2));
        asker.hit(&asker.refusal(Syndrome::Nak(code), 2), b"");
        let ends = asker.pair.sim.completions(asker.pair.a);
        let statuses: Vec<_> = ends.iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(statuses, [(0, Status::Success), (1, status), (2, Status::WorkRequestFlushed)]);
        assert_eq!(ends[1].failure(), Some(Failure::Nak { code, psn: asker.first.add(2), peer: None }));
        assert_eq!(ends[1].kind, CompletionKind::Write);
    }
}

#[test]
fn retries_caused_by_lies_show_in_the_trace_with_their_cause() {
    let mut asker = Asker::new();
    asker.read(3000);
    asker.log.clear();
    let source = asker.pair.sim.gid(asker.pair.bob, 0);
    let headers = asker.forge(Opcode::RcAcknowledge, 0);
    asker.pair.sim.inject(asker.pair.alice, source, &headers, b"").unwrap();
    asker.pair.sim.run_for(1);
    let retries: Vec<_> = asker
        .log
        .events()
        .into_iter()
        .filter_map(|(_, event)| match event.kind {
            trace::Kind::Retry { cause, from, .. } => Some((cause, from)),
            _ => None,
        })
        .collect();
    assert_eq!(retries, [(RetryCause::ImpliedNak, asker.first)]);
}
