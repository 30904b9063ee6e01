//! Rules of posting: a script that breaks each, and one that keeps it.

use crate::script::{self, ALL_ACCESS, CQ, NewPair, Script, Send};
use trace::{Call, Failure, Queue, StateCause};
use wire::Psn;

const BUFFER: u64 = 0x7f00_0000_1000;
const KEY: u32 = 0x100;

/// A program with 64 KiB of registered memory and a connected queue pair 17.
fn connected_as(new: NewPair) -> Script {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 65_536, ALL_ACCESS).qp_with(17, new).connect(17, 18);
    script
}

fn connected() -> Script {
    connected_as(NewPair::default())
}

/// One for datagrams.
fn datagrams() -> Script {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 65_536, ALL_ACCESS).qp_with(17, NewPair { kind: "UD", ..NewPair::default() });
    script.ready_for_datagrams(17, 0x1111);
    script
}

fn send(wr_id: u64) -> Send {
    Send { wr_id, pieces: vec![(BUFFER, 64, KEY)], ..Send::default() }
}

fn unsignaled(wr_id: u64) -> Send {
    Send { signaled: false, ..send(wr_id) }
}

fn write(wr_id: u64, offset: u64, length: u32) -> Send {
    let pieces = vec![(BUFFER + offset, length, KEY)];
    Send { opcode: "RDMA_WRITE", remote: Some((0x5000 + offset, 0x77)), pieces, ..send(wr_id) }
}

fn read(wr_id: u64, offset: u64) -> Send {
    Send { opcode: "RDMA_READ", ..write(wr_id, offset, 64) }
}

/// Does something that is a call of its own, so that no row of posts goes on.
fn pause(script: &mut Script) {
    script.polls_nothing(CQ);
}

#[test]
fn a_queue_full_of_unsignaled_work_is_told() {
    let mut script = connected();
    (0..15).for_each(|wr_id| _ = script.send(17, unsignaled(wr_id)));
    script.keeps(301);
    script.send(17, unsignaled(15));
    script.shows(301, &["16 work requests", "max_send_wr 16", "IBV_SEND_SIGNALED"]);
}

#[test]
fn a_queue_with_one_signaled_among_many_is_not_told() {
    let mut script = connected();
    for _ in 0..4 {
        (0..15).for_each(|wr_id| _ = script.send(17, unsignaled(wr_id)));
        script.send(17, send(15)).sent(17, 15).polls(CQ, 15);
    }
    script.ends();
    script.keeps(301).keeps(302);
}

#[test]
fn more_than_the_queue_holds_is_told_until_completions_are_polled() {
    let mut script = connected();
    (0..16).for_each(|wr_id| _ = script.send(17, send(wr_id)).sent(17, wr_id));
    script.keeps(326);
    script.send(17, send(16));
    script.shows(326, &["SEND with wr_id 16", "16 work requests before it", "max_send_wr 16", "ENOMEM"]);
    // One that is polled frees the places of those before it.
    let mut script = connected();
    for round in 0..4 {
        (0..15).for_each(|wr_id| _ = script.send(17, unsignaled(wr_id)));
        script.send(17, send(100 + round)).sent(17, 100 + round).polls(CQ, 100 + round);
    }
    script.keeps(326);
    // A poll may be told before the completion.
    let mut script = connected();
    (0..64).for_each(|wr_id| _ = script.send(17, send(wr_id)).polls(CQ, wr_id).sent(17, wr_id));
    script.keeps(326);
    // In RESET the queue is empty.
    let mut script = connected();
    (0..16).for_each(|wr_id| _ = script.send(17, send(wr_id)).sent(17, wr_id));
    script.state(17, "RESET", StateCause::Modify).connect(17, 18);
    script.send(17, send(16)).keeps(326);
}

#[test]
fn a_queue_that_signals_everything_is_not_told() {
    let mut script = connected_as(NewPair { signals_all: true, ..NewPair::default() });
    (0..16).for_each(|wr_id| _ = script.send(17, unsignaled(wr_id)));
    script.keeps(301);
}

#[test]
fn work_that_was_never_signaled_is_told_when_the_queue_pair_ends() {
    let mut script = connected();
    (0..5).for_each(|wr_id| _ = script.send(17, unsignaled(wr_id)));
    script.state(17, "RESET", StateCause::Modify).destroy_qp(17);
    script.shows(302, &["5 work requests", "QP 0x11"]);
    let mut script = connected();
    (0..5).for_each(|wr_id| _ = script.send(17, unsignaled(wr_id)));
    script.ends();
    script.shows(302, &["5 work requests"]);
}

#[test]
fn small_messages_that_could_be_inline_are_told_when_they_are_a_habit() {
    let new = NewPair { max_inline_data: 64, ..NewPair::default() };
    let small = |script: &mut Script, inline: bool| {
        for wr_id in 0..32 {
            script.send(17, Send { inline, ..send(wr_id) }).sent(17, wr_id).polls(CQ, wr_id);
        }
    };
    let mut script = connected_as(new);
    small(&mut script, false);
    script.shows(303, &["16 messages", "IBV_SEND_INLINE"]);
    let mut script = connected_as(new);
    small(&mut script, true);
    script.keeps(303);
    let mut script = connected_as(NewPair { max_inline_data: 63, ..new });
    small(&mut script, false);
    script.keeps(303);
}

#[test]
fn more_inline_data_than_granted_is_told() {
    let mut script = connected_as(NewPair { max_inline_data: 60, ..NewPair::default() });
    script.send_refused(17, &Send { inline: true, ..send(1) }, "inline_too_long");
    script.shows(304, &["64 bytes of inline data", "takes 60"]);
    let mut script = connected_as(NewPair { max_inline_data: 64, ..NewPair::default() });
    script.send(17, Send { inline: true, ..send(1) }).keeps(304);
}

/// Takes queue pair 17 to RTS with this `max_rd_atomic`.
fn with_reads(max: u32) -> Script {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 65_536, ALL_ACCESS).qp(17).init(17).rtr(17, 18).modify(17, |call| {
        let Call::ModifyQp { state, max_rd_atomic, .. } = call else { return };
        (*state, *max_rd_atomic) = (Some("RTS"), Some(max));
    });
    script
}

#[test]
fn a_read_where_none_may_be_under_way_is_told() {
    let mut script = with_reads(0);
    script.send(17, send(1)).keeps(305);
    script.send(17, read(2, 0)).shows(305, &["RDMA_READ with wr_id 2", "max_rd_atomic"]);
    with_reads(1).send(17, read(2, 0)).keeps(305);
}

#[test]
fn reads_that_wait_for_each_other_are_told() {
    let mut script = with_reads(1);
    (0..3).for_each(|wr_id| _ = script.send(17, read(wr_id, wr_id * 64)));
    script.keeps(306);
    script.send(17, read(3, 192)).shows(306, &["4 READs"]);
    let mut script = with_reads(4);
    (0..8).for_each(|wr_id| _ = script.send(17, read(wr_id, wr_id * 64)));
    script.keeps(306);
}

#[test]
fn sends_posted_one_by_one_are_told() {
    let mut script = connected();
    (0..16).for_each(|wr_id| _ = script.send(17, send(wr_id)));
    script.shows(307, &["16 work requests", "one by one"]);
}

#[test]
fn lists_and_sends_with_something_between_are_not_told() {
    let mut script = connected();
    for _ in 0..4 {
        let list: Vec<Send> = (0..8).map(send).collect();
        script.send_list(17, &list).sent(17, 7);
    }
    for wr_id in 0..32 {
        script.send(17, send(wr_id)).sent(17, wr_id);
        pause(&mut script);
    }
    for wr_id in 0..32 {
        script.send(17, send(wr_id)).sent(17, wr_id).pass_ms(1);
    }
    for wr_id in 0..32 {
        script.send(17, Send { pieces: vec![(BUFFER, 65_536, KEY)], ..send(wr_id) }).sent(17, wr_id);
    }
    script.keeps(307);
}

#[test]
fn receives_posted_one_by_one_are_told_once_the_queue_is_in_use() {
    let mut script = connected();
    (0..16).for_each(|wr_id| _ = script.receive(17, wr_id, &[(BUFFER + wr_id * 64, 64, KEY)]));
    script.keeps(308);
    (0..16).for_each(|wr_id| _ = script.received(17, wr_id, 64));
    pause(&mut script);
    (0..16).for_each(|wr_id| _ = script.receive(17, wr_id, &[(BUFFER + wr_id * 64, 64, KEY)]));
    script.shows(308, &["16 receives", "QP 0x11"]);
}

#[test]
fn a_receive_without_room_for_the_header_is_told() {
    datagrams().receive(17, 1, &[(BUFFER, 39, KEY)]).shows(311, &["39 bytes", "40 bytes longer"]);
    datagrams().receive(17, 1, &[(BUFFER, 104, KEY)]).keeps(311);
    connected().receive(17, 1, &[(BUFFER, 8, KEY)]).keeps(311);
}

#[test]
fn a_datagram_longer_than_any_packet_is_told() {
    let long = |length| Send { pieces: vec![(BUFFER, length, KEY)], remote_qpn: Some(18), ..send(1) };
    datagrams().send(17, long(4097)).shows(312, &["4097 bytes"]);
    datagrams().send(17, long(4096)).keeps(312);
    connected().send(17, Send { remote_qpn: None, ..long(8192) }).keeps(312);
}

#[test]
fn a_solicited_write_is_told() {
    connected().send(17, Send { solicited: true, ..write(1, 0, 64) }).shows(313, &["RDMA_WRITE with wr_id 1"]);
    let mut script = connected();
    script.send(17, Send { solicited: true, ..send(1) });
    script.send(17, Send { solicited: true, opcode: "RDMA_WRITE_WITH_IMM", ..write(2, 64, 64) }).keeps(313);
}

#[test]
fn data_of_a_read_that_is_sent_without_a_fence_is_told() {
    let mut script = connected();
    script.send(17, read(1, 0)).send(17, send(2)).shows(314, &["SEND with wr_id 2", "RDMA_READ with wr_id 1", "FENCE"]);
    let mut script = connected();
    script.qp(19).connect(19, 20).send(17, read(1, 0)).send(19, Send { fence: true, ..send(2) });
    script.shows(314, &["another queue pair"]);
    let mut script = connected();
    script.send(17, read(1, 0)).send(17, Send { fence: true, ..send(2) }).keeps(314);
    let mut script = connected();
    script.send(17, read(1, 0)).sent(17, 1).send(17, send(2)).keeps(314);
}

#[test]
fn a_failure_that_cannot_be_told_apart_is_told() {
    let failure = Failure::NoAnswer { psn: Psn::new(1), tries: 7 };
    let mut script = connected();
    script.send(17, send(0)).send(17, write(0, 64, 64));
    script.fails(17, Queue::Send, 0, "IBV_WC_RETRY_EXC_ERR", failure);
    script.shows(315, &["wr_id 0", "1 other", "RDMA_WRITE"]);
    let mut script = connected();
    script.send(17, send(0)).send(17, send(0)).fails(17, Queue::Send, 0, "IBV_WC_RETRY_EXC_ERR", failure).keeps(315);
    let mut script = connected();
    script.send(17, send(0)).send(17, write(1, 64, 64));
    script.fails(17, Queue::Send, 0, "IBV_WC_RETRY_EXC_ERR", failure).keeps(315);
}

#[test]
fn remote_key_0_is_told() {
    connected().send(17, Send { remote: Some((0x5000, 0)), ..write(1, 0, 64) }).shows(316, &["0x5000", "rkey"]);
    let mut script = connected();
    script.send(17, write(1, 0, 64)).send(17, Send { remote: Some((0, 0)), pieces: vec![], ..write(2, 0, 64) });
    script.keeps(316);
}

#[test]
fn threads_that_post_in_turn_are_told() {
    let mut script = connected();
    for wr_id in 0..17 {
        script.thread(7 + (wr_id % 2) as u32).send(17, send(wr_id)).sent(17, wr_id);
    }
    script.shows(317, &["threads 8 and 7", "16 times"]);
    let mut script = connected();
    script.qp(19).connect(19, 20);
    for wr_id in 0..32 {
        let thread = (wr_id % 2) as u32;
        let qpn = [17, 19][thread as usize];
        script.thread(7 + thread).send(qpn, send(wr_id)).sent(qpn, wr_id);
    }
    script.keeps(317);
}

#[test]
fn a_deep_queue_where_everything_is_signaled_is_told() {
    let fill = |script: &mut Script, every: u64| {
        for _ in 0..5 {
            (0..16).for_each(|wr_id| _ = script.send(17, Send { signaled: wr_id % every == every - 1, ..send(wr_id) }));
            (0..16).filter(|wr_id| wr_id % every == every - 1).for_each(|wr_id| _ = script.sent(17, wr_id));
        }
    };
    let mut script = connected();
    fill(&mut script, 1);
    script.shows(318, &["16 of them under way"]);
    let mut script = connected();
    fill(&mut script, 4);
    script.keeps(318);
    let mut script = connected();
    (0..200).for_each(|wr_id| _ = script.send(17, send(wr_id)).sent(17, wr_id));
    script.keeps(318);
}

#[test]
fn fences_without_reads_are_told() {
    let fenced = |script: &mut Script| {
        (0..20).for_each(|wr_id| _ = script.send(17, Send { fence: true, ..send(wr_id) }).sent(17, wr_id));
    };
    let mut script = connected();
    fenced(&mut script);
    script.shows(319, &["as 15 before it"]);
    let mut script = connected();
    script.send(17, read(1, 64)).sent(17, 1);
    fenced(&mut script);
    script.keeps(319);
}

#[test]
fn small_writes_that_go_on_where_the_one_before_ended_are_told() {
    let mut script = connected();
    (0..16).for_each(|wr_id| _ = script.send(17, write(wr_id, wr_id * 32, 32)).sent(17, wr_id));
    script.shows(320, &["16 WRITEs"]);
    let mut script = connected();
    (0..32).for_each(|wr_id| _ = script.send(17, write(wr_id, wr_id * 64, 32)).sent(17, wr_id));
    (0..32).for_each(|wr_id| _ = script.send(17, write(wr_id, wr_id * 1024, 1024)).sent(17, wr_id));
    script.keeps(320);
}

#[test]
fn work_posted_to_a_stopped_send_queue_is_told() {
    let mut script = connected();
    script.state(17, "SQD", StateCause::Modify).send(17, send(1)).shows(321, &["SQD"]);
    let mut script = connected();
    script.state(17, "SQD", StateCause::Modify).state(17, "RTS", StateCause::Modify).send(17, send(1)).keeps(321);
}

#[test]
fn a_datagram_to_a_group_with_the_number_of_a_queue_pair_is_told() {
    let to = |qpn: u32, gid: [u8; 16]| Call::PostSend {
        wr_id: 1,
        opcode: "SEND",
        index: 0,
        signaled: true,
        inline: false,
        fence: false,
        solicited: false,
        pieces: script::pieces(&[(BUFFER, 64, KEY)]),
        remote_address: None,
        remote_key: None,
        remote_qpn: Some(wire::Qpn::new(qpn)),
        remote_qkey: None,
        remote_gid: Some(gid),
    };
    let group = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let group_v4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1, 1];
    let host = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    datagrams().call_on(17, to(18, group)).shows(322, &["QP 0x12", "0xffffff"]);
    datagrams().call_on(17, to(18, group_v4)).shows(322, &["QP 0x12"]);
    datagrams().call_on(17, to(18, host)).call_on(17, to(0xff_ffff, group)).keeps(322);
}

#[test]
fn a_write_over_what_is_being_read_is_told() {
    let over = Send { remote: Some((0x5020, 0x77)), ..write(2, 1024, 64) };
    connected()
        .send(17, read(1, 0))
        .send(17, over.clone())
        .shows(323, &["wr_id 2", "RDMA_READ with wr_id 1", "0x5020"]);
    connected().send(17, read(1, 0)).send(17, Send { fence: true, ..over.clone() }).keeps(323);
    connected().send(17, read(1, 0)).sent(17, 1).send(17, over.clone()).keeps(323);
    connected().send(17, read(1, 0)).send(17, write(2, 64, 64)).keeps(323);
}

#[test]
fn writes_with_a_small_send_after_each_are_told() {
    let notes = |script: &mut Script, bytes| {
        for wr_id in 0..16 {
            let note = Send { pieces: vec![(BUFFER + 4096, bytes, KEY)], ..send(100) };
            script.send_list(17, &[write(wr_id, 0, 512), note]).sent(17, 100);
        }
    };
    let mut script = connected();
    notes(&mut script, 4);
    script.shows(324, &["16 WRITEs", "RDMA_WRITE_WITH_IMM"]);
    let mut script = connected();
    notes(&mut script, 16);
    script.keeps(324);
}

#[test]
fn a_fence_on_a_datagram_is_told() {
    let fenced = Send { fence: true, remote_qpn: Some(18), ..send(1) };
    datagrams().send(17, fenced).shows(325, &["type UD"]);
    connected().send(17, Send { fence: true, ..send(1) }).keeps(325);
}

#[test]
fn work_for_a_queue_that_was_asked_for_with_none_is_told() {
    let asks = |max_send_wr, max_recv_wr, max_send_sge| {
        let mut script = Script::new();
        script.qp(17);
        script.call_on(17, Call::AskedForNone { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge: 1 });
        script.connect(17, 18);
        script
    };
    asks(0, 1, 1).send(17, Send::default()).shows(327, &["the SEND with wr_id 1", "cap.max_send_wr 0"]);
    asks(1, 0, 1).receive(17, 5, &[]).shows(327, &["cap.max_recv_wr 0"]);
    asks(1, 1, 0).send(17, Send { pieces: vec![(0x1000, 8, 7)], ..Send::default() }).shows(327, &["max_send_sge 0"]);
    // Only what is used counts, and a message of no pieces needs none.
    asks(1, 0, 0).send(17, Send::default()).keeps(327);
    asks(0, 1, 1).receive(17, 5, &[]).keeps(327);
}

#[test]
fn a_list_that_leads_to_no_memory_is_told() {
    let mut script = Script::new();
    script.qp(17).connect(17, 18);
    script.refused(
        Some(17),
        "ibv_post_send",
        22,
        "next of the work request with wr_id 0x7 is 0x4141, which leads to no memory",
    );
    script.shows(828, &["UV-0828, UV-0328", "ibv_post_send", "wr_id 0x7", "0x4141", "NULL", "memset"]);
}
