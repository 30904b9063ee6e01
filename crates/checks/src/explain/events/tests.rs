//! What events, drops and stalls are reported as.

use alloc::string::ToString;
use alloc::vec::Vec;

use trace::{StateCause, Text};
use wire::access::{Access, RefusalCause};
use wire::{Deth, Key, Opcode, Qkey};

use super::*;
use crate::{Absent, Checker, Number, Rule, Settings};

const PAIR: Qpn = Qpn::new(17);
const PEER: Qpn = Qpn::new(18);
const SECOND: u64 = 1_000_000_000;

fn event(at: u64, kind: Kind) -> Event {
    Event { at, qpn: Some(PAIR), kind }
}

fn called(call: Call) -> Event {
    event(1, Kind::Called { thread: 1, call })
}

/// A queue pair of that kind in that state, connected.
fn scene(kind: &'static str, state: &'static str) -> Vec<Event> {
    let create = Call::CreateQp {
        kind,
        context: 1,
        pd: 1,
        send_cq: Some(1),
        receive_cq: Some(1),
        srq: None,
        max_send_wr: 2,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 32,
        signals_all: false,
    };
    let modify = Call::ModifyQp {
        state: Some(state),
        pkey_index: None,
        port: None,
        access: None,
        qkey: Some(Qkey::new(0x1111)),
        path_mtu: None,
        dest_qpn: Some(PEER),
        rq_psn: Some(100),
        sq_psn: Some(200),
        max_rd_atomic: None,
        max_dest_rd_atomic: None,
        min_rnr_timer: None,
        timeout: Some(0),
        retry_cnt: None,
        rnr_retry: Some(7),
        dgid: None,
        sgid_index: None,
    };
    Vec::from([
        called(Call::OpenDevice { context: 1, device: Text::of("ubi_lo") }),
        called(create),
        called(modify),
        event(2, Kind::StateChanged { from: "RESET", to: state, cause: StateCause::Modify }),
    ])
}

fn posted(wr_id: u64, signaled: bool) -> [Event; 2] {
    let post = Call::PostSend {
        wr_id,
        opcode: "SEND",
        index: 0,
        signaled,
        inline: false,
        fence: false,
        solicited: false,
        pieces: trace::Pieces::default(),
        remote_address: None,
        remote_key: None,
        remote_qpn: None,
        remote_qkey: None,
        remote_gid: None,
    };
    [called(post), event(3, Kind::WorkPosted { wr_id, queue: Queue::Send, opcode: "SEND", bytes: 0 })]
}

/// What is told by the time `now`.
fn told(events: &[Event], now: u64) -> Vec<Finding> {
    let mut checker = Checker::new(Settings::why());
    let mut findings = Vec::new();
    for event in events {
        checker.observe(event, &mut Absent, &mut |finding| findings.push(finding));
    }
    checker.tick(now, &mut Absent, &mut |finding| findings.push(finding));
    findings
}

fn rules(events: &[Event], now: u64) -> Vec<Number> {
    told(events, now).iter().map(|finding| finding.rule).collect()
}

fn packet(psn: u32) -> Headers {
    Headers::new(Opcode::RcSendOnly, PAIR, Psn::new(psn))
}

fn dropped(headers: Headers, reason: DropReason) -> Event {
    event(5, Kind::PacketDropped { headers: Some(headers), reason })
}

fn received(headers: Headers) -> Event {
    event(4, Kind::PacketReceived { headers, payload_len: 0, packets: 1 })
}

fn sent(at: u64) -> Event {
    event(at, Kind::PacketSent { headers: packet(1), payload_len: 0, packets: 1, wr_id: None, retransmit: false })
}

#[test]
fn work_that_the_peer_does_not_acknowledge_is_told_after_a_while() {
    let mut events = scene("RC", "RTS");
    events.extend(posted(1, true));
    events.push(sent(10));
    assert_eq!(rules(&events, SECOND), []);
    let findings = told(&events, 3 * SECOND);
    assert_eq!(findings[0].rule, NOT_ACKNOWLEDGED);
    let text = findings[0].to_string();
    assert!(text.contains("the peer never answered on this connection"), "{text}");
    assert!(text.contains("timeout is 0: this side waits for ever"), "{text}");
    assert!(text.contains("connection: QP 0x11 here, QP 0x12 at the peer"), "{text}");
    // It does answer.
    events.push(event(2 * SECOND, Kind::NakReceived { psn: Psn::new(1), code: "PSN sequence error" }));
    assert_eq!(rules(&events, 3 * SECOND), []);
}

#[test]
fn work_that_is_never_sent_and_work_in_sqd_are_told() {
    let mut events = scene("RC", "RTS");
    events.extend(posted(1, true));
    assert_eq!(rules(&events, 3 * SECOND), [NEVER_SENT]);
    let mut events = scene("RC", "SQD");
    events.extend(posted(1, true));
    assert_eq!(rules(&events, 3 * SECOND), [NEVER_SENT]);
}

#[test]
fn a_peer_without_receives_is_told_on_both_sides() {
    let mut events = scene("RC", "RTS");
    events.extend(posted(1, true));
    events.push(sent(10));
    for at in 11..20 {
        events.push(event(at, Kind::Retry { cause: RetryCause::RnrNak, from: Psn::new(1), left: None }));
    }
    let findings = told(&events, 3 * SECOND);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].rule, PEER_NOT_READY);
    assert!(findings[0].to_string().contains("rnr_retry is 7: this side asks again for ever"));
    // The side that has none.
    let mut events = scene("RC", "RTS");
    events.push(event(10, Kind::NakSent { psn: Psn::new(1), code: "receiver not ready" }));
    assert_eq!(rules(&events, 3 * SECOND), [RECEIVE_QUEUE_EMPTY]);
    events.push(event(11, Kind::WorkPosted { wr_id: 1, queue: Queue::Receive, opcode: "RECV", bytes: 0 }));
    assert_eq!(rules(&events, 3 * SECOND), []);
}

#[test]
fn a_queue_that_is_full_of_unsignaled_work_is_full_for_good() {
    let full = event(6, Kind::PostRefused { wr_id: 3, queue: Queue::Send, reason: "queue_full" });
    let mut events = scene("RC", "RTS");
    events.extend(posted(1, false));
    events.extend(posted(2, false));
    events.push(full);
    assert_eq!(rules(&events, 7), [NOTHING_SIGNALED]);
    let mut events = scene("RC", "RTS");
    events.extend(posted(1, false));
    events.extend(posted(2, true));
    events.push(full);
    assert_eq!(rules(&events, 7), [Number(811)]);
}

#[test]
fn sequence_numbers_that_do_not_meet_are_told_and_losses_are_not() {
    let arrives = |psn| [received(packet(psn)), dropped(packet(psn), DropReason::OutOfOrder)];
    let mut events = scene("RC", "RTS");
    events.extend(arrives(500_000));
    let findings = told(&events, 7);
    assert_eq!(findings[0].rule, PSN_MISMATCH);
    let text = findings[0].to_string();
    assert!(text.contains("expects PSN 100 (rq_psn), and the peer begins with 500000"), "{text}");
    // The first packet was lost.
    let mut events = scene("RC", "RTS");
    events.extend(arrives(101));
    events.extend(arrives(102));
    assert_eq!(rules(&events, 7), []);
    // It never comes.
    events.extend(arrives(103));
    assert_eq!(rules(&events, 7), [PSN_MISMATCH]);
}

#[test]
fn the_keys_of_a_datagram_are_shown() {
    let mut headers = Headers::new(Opcode::UdSendOnly, PAIR, Psn::new(1));
    headers.deth = Some(Deth { qkey: Qkey::new(0x2222), src_qpn: PEER });
    let mut events = scene("UD", "RTS");
    events.push(dropped(headers, DropReason::QkeyMismatch));
    let findings = told(&events, 7);
    assert_eq!(findings[0].rule, KEY_MISMATCH);
    let text = findings[0].to_string();
    assert!(text.contains("the sender shows Q_Key 0x2222, and the queue pair has 0x1111"), "{text}");
}

#[test]
fn every_reason_to_drop_a_packet_has_a_rule() {
    for reason in DropReason::ALL {
        let mut events = scene("UD", "INIT");
        for _ in 0..20 {
            events.push(dropped(packet(1), *reason));
        }
        let findings = told(&events, 7);
        assert_eq!(findings.len(), 1, "{reason:?}: {findings:?}");
        assert!(Rule::of(findings[0].rule).is_some_and(|rule| rule.family() == crate::Family::Events));
    }
}

#[test]
fn packets_of_a_queue_pair_that_is_gone_are_no_news() {
    let mut events = scene("RC", "ERR");
    events.push(dropped(packet(1), DropReason::WrongState));
    events.push(called(Call::DestroyQp { sends: 0, receives: 0 }));
    events.push(Event { qpn: None, ..dropped(packet(1), DropReason::UnknownQp) });
    assert_eq!(rules(&events, 7), []);
}

#[test]
fn an_answer_that_comes_after_its_queue_pair_is_no_news() {
    // To a queue pair that was destroyed, and to one that was reset.
    assert_eq!(rules(&[dropped(packet(1), DropReason::WrongState)], 7), []);
    let answer = Headers::new(wire::Opcode::RcAcknowledge, PAIR, Psn::new(1));
    let mut events = scene("RC", "RESET");
    events.push(dropped(answer, DropReason::WrongState));
    assert_eq!(rules(&events, 7), []);
    let mut events = scene("RC", "INIT");
    events.push(dropped(packet(1), DropReason::WrongState));
    assert_eq!(rules(&events, 7), [WRONG_STATE]);
}

#[test]
fn a_program_that_waits_for_nothing_is_told() {
    let cq = || called(Call::CreateCq { cq: 1, capacity: 4, wanted: 4, channel: None });
    let poll = |at| event(at, Kind::Called { thread: 1, call: Call::Poll { cq: 1, room: 1, got: 0 } });
    // It polls still.
    let polls = || [poll(3), poll(6 * SECOND)];
    let mut events = Vec::from([cq()]);
    events.extend(scene("RC", "RTS"));
    events.extend(polls());
    assert_eq!(rules(&events, 7 * SECOND), [NOTHING_TO_WAIT_FOR]);
    // A peer has begun, or the queue pair is not connected yet.
    let mut begun = events.clone();
    let (headers, at) = (packet(1), events.len() - 2);
    begun.insert(at, event(3, Kind::PacketReceived { headers, payload_len: 0, packets: 1 }));
    assert_eq!(rules(&begun, 7 * SECOND), []);
    let mut early = Vec::from([cq()]);
    early.extend(scene("RC", "INIT"));
    early.extend(polls());
    assert_eq!(rules(&early, 7 * SECOND), []);
    // It has polled once and does something else.
    assert_eq!(rules(&events[..events.len() - 1], 7 * SECOND), []);
}

#[test]
fn the_last_receive_is_told_when_the_program_takes_the_event() {
    let name = "IBV_EVENT_QP_LAST_WQE_REACHED";
    let mut events = scene("RC", "ERR");
    events.push(event(6, Kind::AsyncEvent { name }));
    assert_eq!(rules(&events, 7), []);
    events.push(called(Call::GetAsyncEvent { event: name, about: PAIR.value().into() }));
    assert_eq!(rules(&events, 7), [ROUTINE_EVENT]);
}

#[test]
fn a_request_that_was_refused_without_memory_has_the_cause_of_the_state() {
    let mut events = scene("RC", "RTS");
    let cause = trace::StateCause::PeerRequest("too many READs at a time");
    events.push(event(5, Kind::StateChanged { from: "RTS", to: "ERR", cause }));
    events.push(event(6, Kind::AsyncEvent { name: "IBV_EVENT_QP_REQ_ERR" }));
    let text = told(&events, 7)[0].to_string();
    assert!(text.contains("too many READs at a time"), "{text}");
}

#[test]
fn a_refused_request_of_the_peer_names_the_memory() {
    let mut events = scene("RC", "RTS");
    events.push(event(
        5,
        Kind::AccessRefused {
            key: Key::new(0x77),
            address: 0x1000,
            length: 64,
            access: Access::REMOTE_WRITE,
            cause: RefusalCause::NotPermitted,
        },
    ));
    events.push(event(6, Kind::AsyncEvent { name: "IBV_EVENT_QP_ACCESS_ERR" }));
    let findings = told(&events, 7);
    assert_eq!(findings[0].rule, PEER_REFUSED);
    let text = findings[0].to_string();
    assert!(text.contains("64 bytes at 0x1000 behind key 0x77: the region does not grant this access"), "{text}");
    assert!(text.contains("which needs REMOTE_WRITE"), "{text}");
    for name in ["COMM_EST", "SQ_DRAINED", "QP_LAST_WQE_REACHED", "SRQ_LIMIT_REACHED", "PORT_ACTIVE", "GID_CHANGE"] {
        assert_eq!(asynchronous(&Model::default(), None, name, None).rule, ROUTINE_EVENT);
    }
    for name in ["IBV_EVENT_CQ_ERR", "IBV_EVENT_QP_FATAL", "IBV_EVENT_PORT_ERR", "IBV_EVENT_DEVICE_FATAL"] {
        assert_eq!(asynchronous(&Model::default(), None, name, None).rule, ASYNC_ERROR);
    }
}

#[test]
fn a_null_region_that_the_peer_reached_for_is_named() {
    let null = Call::RegisterMemory {
        key: Key::new(0x77),
        pd: 3,
        address: 0,
        length: 0,
        iova: 0,
        access: Access::LOCAL_WRITE,
    };
    // Its lkey, and the rkey that programs find in it.
    for (key, cause) in [(0x77, RefusalCause::NotPermitted), (0, RefusalCause::UnknownKey)] {
        let mut events = scene("RC", "RTS");
        events.push(called(null));
        let (key, access) = (Key::new(key), Access::REMOTE_WRITE);
        events.push(event(5, Kind::AccessRefused { key, address: 0x1000, length: 64, access, cause }));
        events.push(event(6, Kind::AsyncEvent { name: "IBV_EVENT_QP_ACCESS_ERR" }));
        let findings = told(&events, 7);
        let seen = "the region of ibv_alloc_null_mr in PD 3, which no peer may reach";
        assert!(findings[0].evidence[0].contains(seen), "{}", findings[0]);
        assert!(findings[0].advice.contains("has an lkey only"), "{}", findings[0]);
    }
}

#[test]
fn a_key_whose_bytes_are_in_reverse_is_told_first_and_with_what_to_do() {
    let mut events = scene("RC", "RTS");
    let (pd, access, key) = (1, Access::REMOTE_WRITE, Key::new(0x7700_0000));
    events.push(called(Call::RegisterMemory { key, pd, address: 0x1000, length: 64, iova: 0x1000, access }));
    let (key, cause) = (Key::new(0x77), RefusalCause::UnknownKey);
    events.push(event(5, Kind::AccessRefused { key, address: 0x1000, length: 64, access, cause }));
    events.push(event(6, Kind::AsyncEvent { name: "IBV_EVENT_QP_ACCESS_ERR" }));
    let findings = told(&events, 7);
    assert!(findings[0].evidence[0].contains("bytes in reverse"), "{}", findings[0]);
    assert!(findings[0].advice.contains("htonl(mr->rkey)"), "{}", findings[0]);
}

#[test]
fn who_ended_a_connection_and_who_refused_one_is_told() {
    use trace::ConnectionEnd;
    let cases = [
        (ConnectionEnd::Peer, Some(DISCONNECTED)),
        (ConnectionEnd::PeerDied, Some(CONNECTION_LOST)),
        (ConnectionEnd::PeerLost, Some(CONNECTION_LOST)),
        (ConnectionEnd::DeviceGone, Some(CONNECTION_LOST)),
        (ConnectionEnd::Local, None),
    ];
    for (by, rule) in cases {
        let mut events = scene("RC", "RTS");
        events.push(event(5, Kind::ConnectionEnded { local_comm_id: 7, by }));
        assert_eq!(rules(&events, 7), Vec::from_iter(rule), "{by:?}");
    }
    let cases = [
        ("RDMA_CM_EVENT_REJECTED", 8, Some(NOBODY_LISTENS)),
        ("RDMA_CM_EVENT_REJECTED", 28, Some(REJECTED_BY_PROGRAM)),
        ("RDMA_CM_EVENT_REJECTED", 10, Some(NOT_CONNECTED)),
        ("RDMA_CM_EVENT_UNREACHABLE", -110, Some(NOT_CONNECTED)),
        // Answers to who asks for a queue pair of datagrams.
        ("RDMA_CM_EVENT_UNREACHABLE", 1, Some(NOBODY_LISTENS)),
        ("RDMA_CM_EVENT_UNREACHABLE", 2, Some(REJECTED_BY_PROGRAM)),
        ("RDMA_CM_EVENT_UNREACHABLE", 3, Some(NOT_CONNECTED)),
        ("RDMA_CM_EVENT_ADDR_ERROR", -19, Some(NOT_CONNECTED)),
        ("RDMA_CM_EVENT_ESTABLISHED", 0, None),
    ];
    for (name, status, rule) in cases {
        let call = Call::CmEvent { event: name, id: 1, listen_id: None, status, id_qpn: Some(PAIR) };
        assert_eq!(rules(&[called(call)], 7), Vec::from_iter(rule), "{name} {status}");
    }
}

#[test]
fn where_nobody_listens_is_told_with_what_may_be_wrong() {
    let place = |function, id, space, port| {
        let address = wire::Gid::from_ip([127, 0, 0, 1].into()).octets();
        called(Call::CmPlace { function, id, space, address, port })
    };
    let rejected = |status| {
        let event = if status == 8 { "RDMA_CM_EVENT_REJECTED" } else { "RDMA_CM_EVENT_UNREACHABLE" };
        called(Call::CmEvent { event, id: 2, listen_id: None, status, id_qpn: None })
    };
    let told = |events: &[Event]| {
        let mut checker = Checker::new(Settings::why());
        let mut text = alloc::string::String::new();
        for event in events {
            checker.observe(event, &mut Absent, &mut |finding| text += &finding.to_string());
        }
        text
    };
    let listens = place("rdma_listen", 1, "RDMA_PS_TCP", 7471);
    let text = told(&[listens, place("rdma_resolve_addr", 2, "RDMA_PS_TCP", 12061), rejected(8)]);
    assert!(text.contains("nobody listens at 127.0.0.1, port 12061 (RDMA_PS_TCP)"), "{text}");
    assert!(text.contains("port 12061 is 7471 with its bytes in reverse") && text.contains("id 0x1 of this"), "{text}");
    let text = told(&[listens, place("rdma_resolve_addr", 2, "RDMA_PS_UDP", 7471), rejected(1)]);
    assert!(text.contains("id 0x1 of this process listens at 127.0.0.1, port 7471 (RDMA_PS_TCP)"), "{text}");
    let text = told(&[place("rdma_resolve_addr", 2, "RDMA_PS_TCP", 7471), rejected(8)]);
    assert!(text.contains("port 7471 (RDMA_PS_TCP)") && !text.contains("reverse"), "{text}");
}

#[test]
fn a_datagram_for_a_group_that_names_a_queue_pair_is_not_a_strangers() {
    let mut headers = Headers::new(Opcode::UdSendOnly, PAIR, Psn::new(1));
    headers.deth = Some(Deth { qkey: Qkey::new(0x1111), src_qpn: PEER });
    let dropped = Event { qpn: None, ..dropped(headers, DropReason::WrongDestination) };
    let findings = told(&[scene("UD", "RTS"), Vec::from([dropped])].concat(), 6);
    assert_eq!(findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), [UNKNOWN_PAIR]);
    let text = findings[0].to_string();
    assert!(
        text.contains("went to a multicast group") && text.contains("remote_qpn of the sender to 0xffffff"),
        "{text}"
    );
}
