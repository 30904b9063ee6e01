//! A peer that sends requests it should not: none of them corrupts anything, makes a queue pair talk without end, or goes unnoticed. Either the
//! connection works on as if nothing had come, or it is in error and both sides know why. (What a peer can do with its answers is told in
//! `hostile_answers`.)
#![allow(missing_docs)]

mod frames;
mod storms;
pub mod victim;

use scenery::{Log, Pair, Setting};
use sim::{LinkKind, QpSpec, Work};
use trace::DropReason;
use transport::{AsyncEvent, Kind, State, Status};
use victim::*;
use wire::{Headers, NakCode, Opcode, Operation, Pkey, Psn, Qpn, Reth, Syndrome, Transport};

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
