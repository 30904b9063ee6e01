//! What refused calls are reported as.

use alloc::string::ToString;
use alloc::vec::Vec;

use trace::{Event, Piece, Pieces, Text};
use wire::Key;

use super::*;
use crate::{Absent, Checker, Number, Settings};

const PAIR: Qpn = Qpn::new(17);

fn call(call: Call) -> Event {
    Event { at: 1, qpn: Some(PAIR), kind: Kind::Called { thread: 1, call } }
}

fn told(events: &[Event]) -> Vec<Finding> {
    let mut checker = Checker::new(Settings::why());
    let mut findings = Vec::new();
    for event in events {
        checker.observe(event, &mut Absent, &mut |finding| findings.push(finding));
    }
    findings
}

fn pair() -> Event {
    call(Call::CreateQp {
        kind: "RC",
        context: 1,
        pd: 1,
        send_cq: Some(1),
        receive_cq: Some(1),
        srq: None,
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 32,
        signals_all: false,
    })
}

fn posting() -> Event {
    call(Call::PostSend {
        wr_id: 9,
        opcode: "SEND",
        index: 0,
        signaled: false,
        inline: true,
        fence: false,
        solicited: false,
        pieces: Pieces::from_iter([Piece { address: 0x1000, length: 100, key: Key::new(1) }]),
        remote_address: None,
        remote_key: None,
        remote_qpn: None,
        remote_qkey: None,
        remote_gid: None,
    })
}

fn not_posted(reason: &'static str) -> Event {
    Event { at: 2, qpn: Some(PAIR), kind: Kind::PostRefused { wr_id: 9, queue: Queue::Send, reason } }
}

#[test]
fn a_request_that_was_not_posted_is_told_once_with_its_values() {
    let refused =
        Call::Refused { function: "ibv_post_send", errno: 12, reason: Text::of("100 bytes of inline data …") };
    let findings = told(&[pair(), posting(), not_posted("inline_too_long"), call(refused)]);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].rule, INLINE_TOO_LONG);
    let text = "work request 9 (SEND, 100 bytes inline from 0x1000) on QP 0x11 was not posted: it has 100 bytes \
                inline, and the queue was created for 32 (max_inline_data)";
    assert_eq!(findings[0].what, text);
}

#[test]
fn a_call_that_waited_for_an_event_says_nothing_that_the_event_does_not() {
    let refused = |function, errno, reason: &str| call(Call::Refused { function, errno, reason: Text::of(reason) });
    let rejected = "RDMA_CM_EVENT_REJECTED (status 8): nobody listens at 127.0.0.1:7471";
    assert!(told(&[refused("rdma_connect", 111, rejected)]).is_empty());
    let silent = "RDMA_CM_EVENT_DISCONNECTED (status -110): 127.0.0.1:7471 did not answer the disconnect request";
    let findings = told(&[refused("rdma_disconnect", 110, silent)]);
    assert_eq!(findings[0].rule, REFUSED);
    assert!(findings[0].what.contains("did not answer the disconnect request"), "{}", findings[0]);
    assert!(findings[0].advice.contains("the connection is over"), "{}", findings[0]);
    // With the rules of events off, the call is all there is.
    let mut settings = Settings::why();
    settings.obey("events=off").unwrap();
    let mut findings = Vec::new();
    let event = refused("rdma_connect", 111, rejected);
    Checker::new(settings).observe(&event, &mut Absent, &mut |finding| findings.push(finding));
    assert!(findings[0].what.contains("nobody listens at 127.0.0.1:7471"), "{findings:?}");
}

#[test]
fn a_missing_right_is_not_taken_for_one_that_was_given() {
    let reason = "a region of device memory counts its addresses from 0, and ZERO_BASED is not among its rights";
    let findings = told(&[call(Call::Refused { function: "ibv_reg_dm_mr", errno: 22, reason: Text::of(reason) })]);
    assert_eq!(findings[0].rule, ACCESS_FLAGS);
    assert!(findings[0].advice.starts_with("add IBV_ACCESS_ZERO_BASED"), "{}", findings[0]);
}

#[test]
fn every_reason_of_a_queue_has_a_rule_of_its_own() {
    let names = [
        ("wrong_state", WRONG_STATE),
        ("queue_full", SEND_QUEUE_FULL),
        ("too_many_sges", TOO_MANY_PIECES),
        ("inline_too_long", INLINE_TOO_LONG),
        ("inline_not_allowed", NOT_SUPPORTED),
        ("frame_too_short", MESSAGE_LENGTH),
        ("message_too_long", MESSAGE_LENGTH),
        ("not_supported", NOT_SUPPORTED),
        ("target", TARGET_MISSING),
        ("xrc_target", TARGET_MISSING),
        ("uses_srq", NO_RECEIVE_QUEUE),
        ("no_receive_queue", NO_RECEIVE_QUEUE),
        ("no_tags", REFUSED),
        ("refused_by_device", CARD_REFUSES),
    ];
    for (name, rule) in names {
        let findings = told(&[pair(), posting(), not_posted(name)]);
        assert_eq!(findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), [rule], "{name}");
    }
}

#[test]
fn the_words_of_a_refusal_make_its_rule() {
    let cases = [
        ("ibv_modify_qp", 22, "RESET -> RTS is not a transition of an RC queue pair; from RESET …", 801),
        ("ibv_modify_qp", 22, "INIT -> RTR of an RC queue pair needs DEST_QPN|RQ_PSN", 802),
        ("ibv_modify_qp", 22, "INIT -> RTR of an RC queue pair does not take SQ_PSN", 803),
        ("ibv_modify_qp", 22, "TIMEOUT is 32; it may be 0 to 31", 804),
        ("ibv_modify_qp", 22, "the queue pair is in INIT, not in RTR as CUR_STATE says", 805),
        (
            "ibv_modify_qp",
            22,
            "AV has no global route (is_global is 0); on RoCE the peer is found by its GID alone",
            806,
        ),
        ("ibv_modify_qp", 101, "no way to 10.0.0.1: no route", 806),
        ("ibv_modify_qp", 22, "path_mtu is 1024, a number of bytes and no code; it may be IBV_MTU_256 (1) …", 804),
        ("ibv_modify_qp", 22, "grh.sgid_index is 3, an empty entry of the GID table of ubi_lo; …", 806),
        ("ibv_create_cq", 22, "comp_vector is 99; it may be 0 to 1 (num_comp_vectors - 1)", 804),
        ("ibv_create_qp", 22, "send_cq is of another context than the protection domain", 804),
        ("rdma_create_qp", 22, "the id is for datagrams (RDMA_PS_UDP, RDMA_PS_IPOIB), and the queue pair …", 804),
        ("rdma_accept", 22, "the id listens; the one to accept is that of RDMA_CM_EVENT_CONNECT_REQUEST", 830),
        ("ibv_destroy_qp", 2, "there is no object at 0x1000 any more; the program destroyed it before", 827),
        ("ibv_destroy_cq", 2, "the object at 0x1000 is of another kind", 804),
        ("ibv_post_recv", 22, "num_sge is 300, and the device takes 32 at most", 813),
        ("ibv_post_recv", 22, "num_sge is -1, and a list has no fewer than 0 pieces", 813),
        ("ibv_post_recv", 22, "sg_list is null, and num_sge is 1, so it must have pieces", 823),
        ("ibv_dealloc_pd", 16, "", 820),
        ("ibv_create_qp", 22, "max_send_wr 100000 is more than the device's 16384", 821),
        ("ibv_reg_mr", 12, "", 821),
        ("ibv_reg_mr", 22, "remote write and remote atomic rights need local write", 822),
        ("ibv_create_cq", 22, "an argument is a null pointer", 823),
        ("ibv_reg_mr", 14, "nothing is mapped at 0x1000", 824),
        ("ibv_create_qp_ex", 22, "comp_mask has bits that are not known", 825),
        ("ibv_create_flow", 95, "flows of what is sent are not offered", 826),
        ("rdma_connect", 22, "rdma_connect is not possible for an id that is idle", 830),
        ("rdma_bind_addr", 99, "127.0.0.1:7471 is in use", 831),
        ("rdma_bind_addr", 99, "10.1.1.1 is not an address of this host", 831),
        ("rdma_connect", 22, "57 bytes of private data; the message has room for 56", 832),
        ("ibv_create_qp", 22, "the NIC's profile irdma has max-inline 101, and 128 is asked for", 833),
        ("ibv_create_qp", 16, "the NIC's profile apple has max-qp 10, and 11 is asked for", 833),
        ("ibv_create_srq", 95, "the NIC's profile efa refuses ibv_create_srq", 833),
        ("ibv_attach_mcast", 22, "only datagram queue pairs can be in a group", 899),
    ];
    for (function, errno, reason, number) in cases {
        let findings = told(&[pair(), call(Call::Refused { function, errno, reason: Text::of(reason) })]);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].rule, Number(number), "{function}: {reason}");
        assert!(findings[0].what.contains(function) && findings[0].what.contains(reason), "{}", findings[0]);
    }
}

#[test]
fn what_still_uses_a_domain_is_listed() {
    let register = Call::RegisterMemory {
        key: Key::new(0x55),
        pd: 3,
        address: 0,
        length: 1,
        iova: 0,
        access: wire::access::Access::empty(),
    };
    let busy = Call::Refused { function: "ibv_dealloc_pd", errno: 16, reason: Text::of("") };
    let text = told(&[pair(), call(register), call(busy)])[0].to_string();
    assert!(text.contains("still there: regions 0x55 (PD 3)") && text.contains("queue pairs 0x11 (PD 1)"), "{text}");
}

#[test]
fn a_program_that_asks_for_dma_bufs_is_not_told_of_the_answer() {
    let bad = |reason| Call::Refused { function: "ibv_reg_dmabuf_mr", errno: 9, reason: Text::of(reason) };
    assert_eq!(told(&[call(bad("no descriptor; programs ask so whether there is such a call"))]), []);
    assert_eq!(told(&[call(bad("the descriptor is not open"))]).len(), 1);
}

#[test]
fn a_list_that_has_one_request_again_and_again_is_told() {
    let list = |wr_id: &dyn Fn(u32) -> u64| {
        let mut events = Vec::from([pair()]);
        for index in 0..5 {
            let mut event = posting();
            let Kind::Called { call: Call::PostSend { wr_id: name, index: place, signaled, .. }, .. } = &mut event.kind
            else {
                unreachable!()
            };
            (*name, *place, *signaled) = (wr_id(index), index, true);
            events.push(event);
            let (wr_id, queue) = (wr_id(index), Queue::Send);
            events.push(Event {
                at: 2,
                qpn: Some(PAIR),
                kind: match index {
                    4 => Kind::PostRefused { wr_id, queue, reason: "queue_full" },
                    _ => Kind::WorkPosted { wr_id, queue, opcode: "SEND", bytes: 100 },
                },
            });
        }
        told(&events).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let text = list(&|_| 9);
    assert!(text.contains("the 4 work requests before it in the list are the same"), "{text}");
    let text = list(&u64::from);
    assert!(text.contains("UV-0811") && !text.contains("are the same"), "{text}");
}

#[test]
fn each_reason_of_a_call_is_told_once() {
    let modify = |reason: &str| call(Call::Refused { function: "ibv_modify_qp", errno: 22, reason: Text::of(reason) });
    let findings = told(&[pair(), modify("no port 0"), modify("no such path MTU"), modify("no port 0")]);
    let texts: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("no port 0") && texts[1].contains("no such path MTU"), "{texts:?}");
    // A number that changes with each call does not fill the screen.
    let many: Vec<_> = (0..100).map(|number| modify(&alloc::format!("value {number}"))).collect();
    assert_eq!(told(&many).len(), 8);
}

#[test]
fn a_receive_that_was_refused_is_told_after_a_send_that_was() {
    let refused = |queue| {
        let kind = Kind::PostRefused { wr_id: 9, queue, reason: "too_many_sges" };
        Event { at: 2, qpn: Some(PAIR), kind }
    };
    let (sent, received) = (refused(Queue::Send), refused(Queue::Receive));
    let findings = told(&[pair(), sent, received, sent]);
    let texts: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("max_send_sge") && texts[1].contains("max_recv_sge"), "{texts:?}");
}

#[test]
fn advice_is_about_the_reason_and_not_about_the_rule_alone() {
    let cases = [
        ("rdma_accept", "the id listens; the one to accept is that of …", "event->id of RDMA_CM_EVENT_CONNECT_REQUEST"),
        (
            "rdma_accept",
            "accepting is not possible for an id that is idle",
            "event->id of RDMA_CM_EVENT_CONNECT_REQUEST",
        ),
        ("rdma_connect", "connecting is not possible for an id that is idle", "ADDR_RESOLVED"),
        ("ibv_modify_qp", "path_mtu is 1024, a number of bytes and no code; it may be …", "IBV_MTU_1024"),
        ("ibv_create_qp", "recv_cq is of another context than the protection domain", "one ibv_context"),
        ("rdma_bind_addr", "127.0.0.1:7471 is in use", "choose another port"),
        (
            "ibv_destroy_qp",
            "there is no object at 0x1000 any more; the program destroyed it before",
            "destroy an object once",
        ),
    ];
    for (function, reason, advice) in cases {
        let findings = told(&[pair(), call(Call::Refused { function, errno: 22, reason: Text::of(reason) })]);
        assert!(findings[0].advice.contains(advice), "{}", findings[0]);
    }
}

#[test]
fn refusals_that_say_more_than_their_rule_have_advice_of_their_own() {
    for (function, errno, reason, rule, advice) in [
        ("ibv_create_comp_channel", 24, "", LIMIT, "raise the limit of open files"),
        (
            "ibv_post_send",
            22,
            "inline data is read by the processor, which cannot read a GPU's memory",
            NOT_SUPPORTED,
            "without IBV_SEND_INLINE",
        ),
        (
            "rdma_connect",
            22,
            "more READs and atomics at a time than the device allows",
            VALUE_OUT_OF_RANGE,
            "max_qp_init_rd_atom",
        ),
        ("rdma_create_qp", 22, "the id has a queue pair already", CM_STATE, "id->qp"),
        ("rdma_get_request", 22, "the id has an event channel, where its requests are", CM_STATE, "rdma_get_cm_event"),
        ("rdma_resolve_addr", 101, "no route to 10.9.9.9", CM_ADDRESS, "`ip route get ADDRESS`"),
        (
            "rdma_getaddrinfo",
            16,
            "a name is being looked up, or its answer was not fetched",
            BUSY,
            "rdma_query_addrinfo",
        ),
        ("ibv_dereg_mr", 16, "2 windows are bound to the region 0x00000100", BUSY, "ibv_dealloc_mw"),
        ("ibv_reg_mr", 22, "a region of 9 bytes is longer than 8", LIMIT, "max_mr_size"),
        (
            "ibv_reg_dm_mr",
            22,
            "8 bytes at 64 reach past the end of 64 bytes of device memory",
            VALUE_OUT_OF_RANGE,
            "ibv_alloc_dm",
        ),
        (
            "rdma_connect",
            22,
            "57 bytes of private data; the message has room for 56",
            PRIVATE_DATA,
            "as large as the message has room",
        ),
    ] {
        let findings = told(&[call(Call::Refused { function, errno, reason: Text::of(reason) })]);
        assert_eq!(findings[0].rule, rule, "{}", findings[0]);
        assert!(findings[0].advice.contains(advice), "{}", findings[0]);
    }
}

#[test]
fn an_event_that_is_acknowledged_twice_is_told_by_one_rule() {
    let again = Call::Refused {
        function: "rdma_ack_cm_event",
        errno: 2,
        reason: Text::of("there is no object at 0x10 any more; …"),
    };
    let rules = |settings| {
        let mut rules = Vec::new();
        Checker::new(settings).observe(&call(again), &mut Absent, &mut |finding| rules.push(finding.rule.0));
        rules
    };
    assert_eq!(rules(Settings::all()), [704]);
    assert_eq!(rules(Settings::why()), [827]);
}

#[test]
fn an_answer_that_programs_ask_for_is_no_failure() {
    let refused = |function, errno| told(&[call(Call::Refused { function, errno, reason: Text::of("") })]);
    assert!(refused("rconnect", 106).is_empty() && refused("rgetpeername", 107).is_empty());
    assert!(refused("rdma_get_cm_event", 11).is_empty());
    assert_eq!((refused("rsend", 107).len(), refused("rgetpeername", 9).len()), (1, 1));
}
