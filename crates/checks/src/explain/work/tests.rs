//! What failed work is reported as.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use trace::{Call, Event, Failure, Kind, PeerReason, Piece, Pieces, Queue, StateCause, Text};
use wire::access::{Access, Range, Refusal, RefusalCause};
use wire::{Key, NakCode, Psn, Qpn};

use super::*;
use crate::{Absent, Checker, Settings};

const PAIR: Qpn = Qpn::new(17);
const PEER: Qpn = Qpn::new(18);

fn event(at: u64, qpn: Qpn, kind: Kind) -> Event {
    Event { at, qpn: Some(qpn), kind }
}

fn called(at: u64, call: Call) -> Event {
    event(at, PAIR, Kind::Called { thread: 1, call })
}

fn created(at: u64, qpn: Qpn, pd: u32) -> Event {
    let call = Call::CreateQp {
        kind: "RC",
        context: 1,
        pd,
        send_cq: Some(1),
        receive_cq: Some(1),
        srq: None,
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
        signals_all: true,
    };
    event(at, qpn, Kind::Called { thread: 1, call })
}

fn connected(at: u64, qpn: Qpn, to: Qpn, rq_psn: u32, sq_psn: u32) -> Event {
    let call = Call::ModifyQp {
        state: Some("RTS"),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::LOCAL_WRITE),
        qkey: None,
        path_mtu: Some(1024),
        dest_qpn: Some(to),
        rq_psn: Some(rq_psn),
        sq_psn: Some(sq_psn),
        max_rd_atomic: Some(1),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(2),
        dgid: Some([0xff; 16]),
        sgid_index: Some(0),
    };
    event(at, qpn, Kind::Called { thread: 1, call })
}

fn moved(at: u64, qpn: Qpn, to: &'static str) -> Event {
    event(at, qpn, Kind::StateChanged { from: "RESET", to, cause: StateCause::Modify })
}

/// Two queue pairs of one process, connected, with a region of 4096 bytes each; a WRITE of 64 bytes is posted.
fn scene(peer_state: &'static str) -> Vec<Event> {
    let register = |key, pd, address| Call::RegisterMemory {
        key: Key::new(key),
        pd,
        address,
        length: 4096,
        iova: address,
        access: Access::LOCAL_WRITE,
    };
    let piece = Piece { address: 0x1000, length: 64, key: Key::new(0x11) };
    let post = Call::PostSend {
        wr_id: 7,
        opcode: "RDMA_WRITE",
        index: 0,
        signaled: true,
        inline: false,
        fence: false,
        solicited: false,
        pieces: Pieces::from_iter([piece]),
        remote_address: Some(0x9000 + 4096 - 32),
        remote_key: Some(Key::new(0x22)),
        remote_qpn: None,
        remote_qkey: None,
        remote_gid: None,
    };
    Vec::from([
        called(1, Call::OpenDevice { context: 1, device: Text::of("ubi_lo") }),
        called(2, register(0x11, 3, 0x1000)),
        called(3, register(0x22, 4, 0x9000)),
        created(4, PAIR, 3),
        created(5, PEER, 4),
        connected(6, PAIR, PEER, 200, 100),
        connected(7, PEER, PAIR, 100, 200),
        moved(8, PAIR, "RTS"),
        moved(9, PEER, peer_state),
        called(10, post),
        event(11, PAIR, Kind::WorkPosted { wr_id: 7, queue: Queue::Send, opcode: "RDMA_WRITE", bytes: 64 }),
    ])
}

fn completed(status: &'static str, failure: Failure) -> Event {
    let kind = Kind::Completed {
        wr_id: 7,
        queue: Queue::Send,
        status,
        opcode: "RDMA_WRITE",
        bytes: 0,
        failure: Some(failure),
    };
    event(5_000_000, PAIR, kind)
}

fn told(events: &[Event]) -> Vec<Finding> {
    let mut checker = Checker::new(Settings::why());
    let mut findings = Vec::new();
    for event in events {
        checker.observe(event, &mut Absent, &mut |finding| findings.push(finding));
    }
    findings.retain(|finding| finding.rule.0 < 200);
    findings
}

fn only(events: &[Event]) -> (Number, String) {
    let findings = told(events);
    assert_eq!(findings.len(), 1, "{findings:#?}");
    (findings[0].rule, findings[0].to_string())
}

fn refusal(key: u32, address: u64, cause: RefusalCause) -> Refusal {
    Refusal { range: Range { key: Key::new(key), address, length: 64 }, access: Access::LOCAL_WRITE, cause }
}

#[test]
fn memory_past_the_end_of_its_region_is_measured() {
    let mut events = scene("RTS");
    let cause = RefusalCause::OutOfBounds { start: 0x1000, length: 4096 };
    events.push(completed("IBV_WC_LOC_PROT_ERR", Failure::Refused(refusal(0x11, 0x1fe0, cause))));
    let (rule, text) = only(&events);
    assert_eq!(rule, LOCAL_OUT_OF_BOUNDS);
    let expected = "error: work request 7 (RDMA_WRITE, 64 bytes at 0x1000 with lkey 0x11, to 0x9fe0 at the peer with \
                    rkey 0x22) on QP 0x11 of ubi_lo failed with LOC_PROT_ERR: the NIC may not use the 64 bytes at \
                    0x1fe0 with lkey 0x11 [UV-0102]\n  cause: the region of key 0x11 is [0x1000, +4096), and the piece \
                    reaches 32 bytes past its end\n  seen: key 0x11 belongs to [0x1000, +4096) in PD 3, registered \
                    with LOCAL_WRITE; the request for [0x1fe0, +64) reaches 32 bytes past its end\n";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_key_that_was_deregistered_is_known_by_its_time() {
    let mut events = scene("RTS");
    events.push(called(4_000_000, Call::DeregisterMemory { key: Key::new(0x11) }));
    events.push(completed("IBV_WC_LOC_PROT_ERR", Failure::Refused(refusal(0x11, 0x1000, RefusalCause::UnknownKey))));
    let (rule, text) = only(&events);
    assert_eq!(rule, LOCAL_KEY_UNKNOWN);
    assert!(text.contains("was deregistered before the work was done"), "{text}");
    assert!(text.contains("the program deregistered it 1000 us before"), "{text}");
}

#[test]
fn a_key_in_the_other_byte_order_is_recognized_and_so_is_the_region_that_holds_the_address() {
    let mut events = scene("RTS");
    let cause = RefusalCause::UnknownKey;
    events.push(completed("IBV_WC_LOC_PROT_ERR", Failure::Refused(refusal(0x1100_0000, 0x9000, cause))));
    let (_, text) = only(&events);
    assert!(text.contains("was it sent without ntohl and htonl?"), "{text}");
    assert!(text.contains(
        "the address lies in [0x9000, +4096) in PD 4, registered with LOCAL_WRITE, whose lkey is 0xa2 and \
                       whose rkey is 0x22"
    ));
}

#[test]
fn the_peers_reason_makes_the_rule_and_the_cause() {
    let nak = |peer| Failure::Nak { code: NakCode::RemoteAccess, psn: Psn::new(100), peer };
    let cause = RefusalCause::OutOfBounds { start: 0x9000, length: 4096 };
    let peer = PeerReason::Refused { key: Key::new(0x22), access: Access::REMOTE_WRITE, cause };
    let mut events = scene("RTS");
    events.push(completed("IBV_WC_REM_ACCESS_ERR", nak(Some(peer))));
    let (rule, text) = only(&events);
    assert_eq!(rule, REMOTE_OUT_OF_BOUNDS);
    assert!(text.contains("the request reaches 32 bytes past its end"), "{text}");
    assert!(text.contains("connection: QP 0x11 here, QP 0x12 at the peer, PSN 100"), "{text}");
    // Without it the rule is the code's, and a peer in the same process is evidence.
    let mut events = scene("RTS");
    events.push(completed("IBV_WC_REM_ACCESS_ERR", nak(None)));
    let (rule, text) = only(&events);
    assert_eq!(rule, REMOTE_ACCESS);
    assert!(text.contains("the peer is QP 0x12 of this process, in PD 4, and grants LOCAL_WRITE"), "{text}");
}

#[test]
fn silence_is_explained_by_the_state_of_a_peer_in_the_same_process() {
    let silence = Failure::NoAnswer { psn: Psn::new(100), tries: 8 };
    let mut events = scene("INIT");
    events.push(completed("IBV_WC_RETRY_EXC_ERR", silence));
    let (rule, text) = only(&events);
    assert_eq!(rule, NO_ANSWER);
    assert!(
        text.contains("cause: QP 0x12 of this process is in INIT, and a queue pair receives from RTR on"),
        "{text}"
    );
    // The wrong PSN.
    let mut events = scene("RTS");
    events.push(connected(12, PEER, PAIR, 101, 200));
    events.push(completed("IBV_WC_RETRY_EXC_ERR", silence));
    let (_, text) = only(&events);
    assert!(text.contains("begins with PSN 100 (sq_psn), and QP 0x12 expects 101 (rq_psn)"), "{text}");
    // Connected to another one.
    let mut events = scene("RTS");
    events.push(connected(12, PEER, Qpn::new(99), 100, 200));
    events.push(completed("IBV_WC_RETRY_EXC_ERR", silence));
    let (_, text) = only(&events);
    assert!(text.contains("is connected to QP 0x63, not to QP 0x11"), "{text}");
}

#[test]
fn what_another_process_of_the_host_answered_explains_silence() {
    let seen = |process, state, dest_qpn, rq_psn| Call::PeerSeen {
        peer: Qpn::new(0x99),
        process,
        kind: "RC",
        state,
        dest_qpn,
        path_mtu: None,
        rq_psn,
        sq_psn: None,
        qkey: None,
        access: None,
        max_rd_atomic: None,
        max_dest_rd_atomic: None,
        dgid: None,
    };
    let cases = [
        (seen(0, "", None, None), "no process of this host has a queue pair 0x99"),
        (seen(5, "INIT", None, None), "QP 0x99 of process 5 is in INIT"),
        (seen(5, "RTS", Some(Qpn::new(0x77)), None), "is connected to QP 0x77, not to QP 0x11"),
        (seen(5, "RTS", Some(PAIR), Some(3)), "begins with PSN 100 (sq_psn), and QP 0x99 of process 5 expects 3"),
    ];
    for (answer, expected) in cases {
        let mut events = scene("RTS");
        events.push(connected(12, PAIR, Qpn::new(0x99), 200, 100));
        events.push(called(13, answer));
        events.push(completed("IBV_WC_RETRY_EXC_ERR", Failure::NoAnswer { psn: Psn::new(100), tries: 8 }));
        let (_, text) = only(&events);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_flush_names_the_first_failure_and_is_told_once() {
    let mut events = scene("RTS");
    events.push(completed("IBV_WC_RNR_RETRY_EXC_ERR", Failure::NotReady { psn: Psn::new(100), tries: 3 }));
    for _ in 0..3 {
        events.push(completed("IBV_WC_WR_FLUSH_ERR", Failure::Flushed));
    }
    let findings = told(&events);
    let rules: Vec<_> = findings.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, [NO_RECEIVE, FLUSHED]);
    let text = findings[1].to_string();
    assert!(text.contains("work request 7 failed first, with RNR_RETRY_EXC_ERR (UV-0142)"), "{text}");
}

/// What the connection manager moves, the program has not moved.
#[test]
fn a_flush_after_a_rejection_is_not_blamed_on_the_program() {
    let cm_event = |event, status| {
        let id_qpn = Some(PAIR);
        called(20, Call::CmEvent { event, id: 1, listen_id: None, status, id_qpn })
    };
    let offer = called(
        15,
        Call::CmOffer {
            function: "rdma_connect",
            id: 1,
            id_qpn: Some(PAIR),
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data_len: 0,
            offered_qpn: Some(PAIR),
        },
    );
    let disconnect = called(20, Call::CmCall { function: "rdma_disconnect", id: 1, id_qpn: Some(PAIR) });
    let cause = |before: &[Event], by_manager: bool| {
        let mut events = scene("RTS");
        events.extend(before);
        if by_manager {
            events.push(called(21, Call::CmMovesQp { id: 1, state: "ERR" }));
        }
        let Kind::Called { thread, mut call } = connected(1, PAIR, PEER, 1, 1).kind else { unreachable!() };
        if let Call::ModifyQp { state, .. } = &mut call {
            *state = Some("ERR");
        }
        events.push(event(22, PAIR, Kind::Called { thread, call }));
        events.push(moved(23, PAIR, "ERR"));
        events.push(completed("IBV_WC_WR_FLUSH_ERR", Failure::Flushed));
        let findings = told(&events);
        findings.into_iter().find(|finding| finding.rule == FLUSHED).and_then(|finding| finding.cause).unwrap()
    };
    let rejected = cause(&[offer, cm_event("RDMA_CM_EVENT_REJECTED", 8)], true);
    assert!(rejected.contains("never made: nobody listens") && rejected.contains("UV-0941"), "{rejected}");
    let rejected = cause(&[offer, cm_event("RDMA_CM_EVENT_REJECTED", 28)], true);
    assert!(rejected.contains("the peer's program rejected it, see UV-0940"), "{rejected}");
    assert!(cause(&[offer, disconnect], true).contains("the program called rdma_disconnect"));
    assert!(cause(&[offer], true).contains("rdma_connect could not set the connection up"));
    // The program itself did, afterwards.
    let own = cause(&[offer, cm_event("RDMA_CM_EVENT_REJECTED", 8)], false);
    assert!(own.contains("the program itself moved"), "{own}");
}

#[test]
fn every_failure_has_a_rule_and_every_rule_a_page() {
    let psn = Psn::new(1);
    let mut failures: Vec<_> = RefusalCause::ALL.iter().map(|cause| Failure::Refused(refusal(1, 2, *cause))).collect();
    for code in [NakCode::RemoteAccess, NakCode::InvalidRequest, NakCode::RemoteOperational, NakCode::Reserved(9)] {
        failures.push(Failure::Nak { code, psn, peer: None });
        for cause in RefusalCause::ALL {
            let peer = PeerReason::Refused { key: Key::new(1), access: Access::REMOTE_READ, cause: *cause };
            failures.push(Failure::Nak { code, psn, peer: Some(peer) });
        }
        for fault in trace::RequestFault::ALL {
            failures.push(Failure::Nak { code, psn, peer: Some(PeerReason::Fault(*fault)) });
        }
    }
    failures.extend([
        Failure::PeerGone { psn },
        Failure::TooLong { length: 2, space: 1 },
        Failure::OverMtu { length: 2, mtu: 1 },
        Failure::AtomicTooShort { length: 4 },
        Failure::BadAnswer { what: "no", psn },
        Failure::PeerFault { what: "no", psn },
        Failure::NotCarried { transport: "UD" },
        Failure::Unsuitable { what: "no" },
        Failure::Flushed,
    ]);
    for failure in failures {
        for status in ["IBV_WC_LOC_PROT_ERR", "IBV_WC_MW_BIND_ERR", "IBV_WC_REM_INV_REQ_ERR"] {
            let rule = rule_of_failure(&failure, status);
            assert!(crate::Rule::of(rule).is_some_and(|rule| rule.family() == crate::Family::Work), "{failure:?}");
            let mut events = scene("RTS");
            events.push(completed(status, failure));
            assert_eq!(only(&events).0, rule, "{failure:?}");
        }
    }
}

#[test]
fn an_address_that_was_mangled_is_told_how() {
    let (start, size) = (0x563a_b28b_b000, 4096);
    let hint = |address| naming::mangled(address, start, size);
    assert_eq!(hint(start + 64), None);
    assert_eq!(hint(0x1000), None);
    assert!(hint((start + 64_u64).swap_bytes()).is_some_and(|hint| hint.contains("0x563ab28bb040")));
    assert!(hint((start + 64) & 0xffff_ffff).is_some_and(|hint| hint.contains("32 bits")));
    // Kept in an int, whose sign was spread.
    assert!(hint(0xffff_ffff_b28b_b040).is_some_and(|hint| hint.contains("32 bits")));
}

#[test]
fn an_lkey_that_a_peer_is_shown_is_named() {
    let local = Key::new(0x22).local();
    let mut model = Model::default();
    let call = Call::RegisterMemory {
        key: Key::new(0x22),
        pd: 4,
        address: 0x9000,
        length: 4096,
        iova: 0x9000,
        access: Access::LOCAL_WRITE,
    };
    model.apply(&called(1, call), &mut Absent);
    let seen = crate::naming::memory_of_peer(&model, local, 0x9000, 64, 7);
    assert!(seen[0].contains("0xa2 is the lkey of [0x9000, +4096)"), "{seen:?}");
    assert!(seen[0].contains("the rkey of that region is 0x22"), "{seen:?}");
    assert_eq!(crate::naming::advice_on_rkey(&model, local), Some(crate::naming::ADVICE_ON_LOCAL_KEY));
    // The owner may name it so.
    let seen = crate::naming::memory(&model, local, 0x9000, 64, 7);
    assert!(seen[0].contains("key 0xa2 belongs to"), "{seen:?}");
    assert_eq!(crate::naming::advice_on_rkey(&model, Key::new(0x22)), None);
}
