//! Rules of memory: a script that breaks each, and one that keeps it.

use crate::script::{ALL_ACCESS, CQ, NewPair, PD, Script, Send};
use trace::{Access, Call, Kind, Queue};
use wire::{AtomicEth, Headers, Key, Opcode, Psn, Qpn, Reth};

const BUFFER: u64 = 0x7f00_0000_1000;
const KEY: u32 = 0x100;

/// A program with 64 KiB of registered memory and a connected queue pair 17.
fn connected() -> Script {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 65_536, ALL_ACCESS).qp(17).connect(17, 18);
    script
}

/// A SEND of 64 bytes at the start of the memory.
fn send(wr_id: u64) -> Send {
    Send { wr_id, pieces: vec![(BUFFER, 64, KEY)], ..Send::default() }
}

fn read(wr_id: u64, offset: u64) -> Send {
    Send { opcode: "RDMA_READ", remote: Some((0x1000, 7)), pieces: vec![(BUFFER + offset, 64, KEY)], ..send(wr_id) }
}

fn atomic(remote: u64, length: u32) -> Send {
    let pieces = vec![(BUFFER, length, KEY)];
    Send { opcode: "ATOMIC_FETCH_AND_ADD", remote: Some((remote, 7)), pieces, ..send(1) }
}

#[test]
fn a_buffer_changed_while_its_send_is_under_way_is_told() {
    let mut script = connected();
    script.send(17, send(1)).stores(BUFFER + 8, 1).sent(17, 1).polls(CQ, 1);
    script.shows(201, &["SEND with wr_id 1", "QP 0x11", "64 bytes"]);
}

#[test]
fn a_buffer_changed_after_its_completion_was_polled_is_not_told() {
    let mut script = connected();
    script.send(17, send(1)).sent(17, 1).polls_of(CQ, 17, 1).stores(BUFFER + 8, 1);
    script.send(17, send(2)).sent(17, 2).polls_of(CQ, 17, 2).keeps(201);
    // The poll may be told before the completion.
    for _ in 0..2 {
        script.send(17, send(1)).polls_of(CQ, 17, 1).sent(17, 1).stores(BUFFER + 9, 1);
    }
    script.send(17, send(1)).sent(17, 1).polls_of(CQ, 17, 1).keeps(201);
}

#[test]
fn a_buffer_changed_before_its_completion_was_polled_is_told() {
    let mut script = connected();
    script.send(17, send(1)).sent(17, 1).stores(BUFFER + 8, 1).send(17, send(2)).sent(17, 2).keeps(201);
    script.polls_of(CQ, 17, 1).shows(201, &["SEND with wr_id 1", "before its completion was polled"]);
}

#[test]
fn a_buffer_changed_after_an_answer_of_the_peer_is_not_told() {
    let mut script = connected();
    let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(17), Psn::new(0));
    script.send(17, send(1)).sent(17, 1);
    script.happens(Some(17), Kind::PacketReceived { headers, payload_len: 0, packets: 1 });
    script.stores(BUFFER + 8, 1).polls_of(CQ, 17, 1).keeps(201);
    // Nor one that the peer may have written to.
    let mut script = connected();
    let reth = Some(Reth { va: BUFFER, rkey: Key::new(KEY), len: 8 });
    let headers = Headers { reth, ..Headers::new(Opcode::RcWriteOnly, Qpn::new(19), Psn::new(0)) };
    script.happens(Some(19), Kind::PacketReceived { headers, payload_len: 8, packets: 1 });
    script.send(17, send(1)).sent(17, 1).stores(BUFFER + 8, 1).polls_of(CQ, 17, 1).keeps(201);
}

#[test]
fn an_inline_buffer_may_be_changed_at_once() {
    let mut script = connected();
    script.send(17, Send { inline: true, ..send(1) }).stores(BUFFER, 1).sent(17, 1);
    script.keeps(201);
}

#[test]
fn an_unsignaled_buffer_reused_before_the_peer_was_heard_is_told() {
    let mut script = connected();
    script.send(17, Send { signaled: false, ..send(1) }).stores(BUFFER, 1).send(17, send(2));
    script.shows(201, &["wr_id 1"]);
}

#[test]
fn an_unsignaled_buffer_reused_after_an_answer_is_not_told() {
    let mut script = connected();
    script.send(17, Send { signaled: false, ..send(1) });
    let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(17), Psn::new(0));
    script.happens(Some(17), Kind::PacketReceived { headers, payload_len: 0, packets: 1 });
    script.stores(BUFFER, 1).send(17, send(2)).sent(17, 2);
    script.keeps(201);
}

#[test]
fn receives_that_share_part_of_their_memory_are_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER + 32, 64, KEY)]);
    script.shows(202, &["receive with wr_id 2", "receive with wr_id 1", "[0x7f0000001020, +64)"]).keeps(203);
}

#[test]
fn a_receive_buffer_that_is_posted_twice_is_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER, 64, KEY)]).keeps(203);
    script.received(17, 1, 64).shows(203, &["same buffer"]).keeps(202);
}

#[test]
fn a_receive_buffer_that_nothing_is_put_into_may_be_posted_twice() {
    let mut script = connected();
    (0..8).for_each(|wr_id| _ = script.receive(17, wr_id, &[(BUFFER, 64, KEY)]));
    (0..8).for_each(|wr_id| _ = script.completes(17, Queue::Receive, wr_id, "RECV_RDMA_WITH_IMM", 64));
    script.keeps(202).keeps(203);
    // A message finds the last of them alone.
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).received(17, 1, 64).keeps(203);
}

#[test]
fn receives_beside_each_other_or_one_after_the_other_are_not_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER + 64, 64, KEY)]);
    script.received(17, 1, 64).receive(17, 3, &[(BUFFER, 64, KEY)]);
    script.keeps(202).keeps(203);
}

#[test]
fn shared_receives_that_overlap_are_told_until_they_complete() {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 65_536, ALL_ACCESS).srq(9, 16);
    script.qp_with(17, NewPair { srq: Some(9), ..NewPair::default() }).connect(17, 18);
    script.receive_shared(9, 1, &[(BUFFER, 64, KEY)]).receive_shared(9, 2, &[(BUFFER + 64, 64, KEY)]);
    script.completes(17, Queue::SharedReceive, 1, "RECV", 64).receive_shared(9, 3, &[(BUFFER, 64, KEY)]).keeps(203);
    script.receive_shared(9, 4, &[(BUFFER + 64, 64, KEY)]).completes(17, Queue::SharedReceive, 2, "RECV", 64);
    script.shows(203, &["SRQ 0x9", "wr_id 4", "wr_id 2"]);
}

#[test]
fn memory_of_a_queue_pair_that_is_gone_or_reset_is_free() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).destroy_qp(17).qp(19).connect(19, 20);
    script.receive(19, 1, &[(BUFFER, 64, KEY)]).state(19, "RESET", trace::StateCause::Modify).connect(19, 20);
    script.receive(19, 1, &[(BUFFER, 64, KEY)]);
    script.keeps(203);
}

#[test]
fn a_read_into_memory_under_way_is_told() {
    for other in [read(2, 32), Send { opcode: "RDMA_WRITE", remote: Some((0x2000, 7)), ..send(2) }] {
        let mut script = connected();
        script.send(17, other).send(17, read(1, 0));
        script.shows(204, &["RDMA_READ with wr_id 1", "wr_id 2"]);
    }
    let mut script = connected();
    script.receive(17, 2, &[(BUFFER, 64, KEY)]).send(17, read(1, 0));
    script.shows(204, &["receive with wr_id 2"]);
}

#[test]
fn reads_into_memory_of_their_own_and_atomics_without_interest_are_not_told() {
    let mut script = connected();
    script.send(17, read(1, 0)).send(17, read(2, 64)).sent(17, 1).send(17, read(3, 0)).sent(17, 2).sent(17, 3);
    script.send(17, atomic(0x1000, 8)).send(17, atomic(0x1000, 8));
    script.keeps(204);
}

#[test]
fn a_buffer_sent_while_a_receive_is_posted_into_it_is_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).send(17, send(2));
    script.shows(205, &["SEND with wr_id 2", "receive with wr_id 1"]);
    let mut script = connected();
    script.send(17, send(2)).receive(17, 1, &[(BUFFER, 64, KEY)]);
    script.shows(205, &["SEND with wr_id 2", "receive with wr_id 1"]);
}

#[test]
fn buffers_for_each_direction_are_not_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER + 64, 64, KEY)]).send(17, send(2)).sent(17, 2).receive(17, 3, &[(BUFFER, 64, KEY)]);
    script.keeps(205);
}

#[test]
fn a_receive_buffer_changed_while_posted_is_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER + 64, 64, KEY)]);
    script.stores(BUFFER + 64, 1).received(17, 1, 64).keeps(206);
    script.ends();
    script.shows(206, &["receive with wr_id 2"]);
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER + 64, 64, KEY)]);
    script.stores(BUFFER + 64, 1).received(17, 1, 64).destroy_qp(17);
    script.shows(206, &["receive with wr_id 2"]);
}

#[test]
fn messages_that_arrive_together_fill_their_receives_before_the_first_completes() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER + 64, 64, KEY)]);
    script.stores(BUFFER, 1).stores(BUFFER + 64, 1).received(17, 1, 64).received(17, 2, 64);
    script.ends();
    script.keeps(206);
}

#[test]
fn a_receive_buffer_changed_by_the_message_or_the_peer_is_not_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER + 64, 64, KEY)]);
    script.stores(BUFFER, 1).received(17, 1, 64).stores(BUFFER + 64, 1).received(17, 2, 64);
    script.receive(17, 3, &[(BUFFER, 64, KEY)]).receive(17, 4, &[(BUFFER + 64, 64, KEY)]);
    writes(&mut script, KEY).stores(BUFFER + 64, 2).received(17, 3, 64);
    script.keeps(206);
}

#[test]
fn receives_that_share_a_buffer_are_changed_by_messages() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER + 64, 64, KEY)]);
    script.receive(17, 3, &[(BUFFER, 64, KEY)]);
    // The first message has changed the memory of the third receive; the second says that this one is next.
    script.stores(BUFFER, 1).received(17, 1, 64).stores(BUFFER + 64, 1).received(17, 2, 64);
    script.keeps(206);
}

#[test]
fn receives_in_a_region_of_the_whole_address_space_are_not_compared() {
    let mut script = connected();
    script.mr(KEY + 1, 0, u64::MAX, ALL_ACCESS);
    script.receive(17, 1, &[(BUFFER, 64, KEY + 1)]).receive(17, 2, &[(BUFFER, 64, KEY + 1)]);
    script.stores(BUFFER, 1).received(17, 1, 64);
    script.send(17, Send { pieces: vec![(BUFFER, 64, KEY + 1)], ..send(3) }).stores(BUFFER, 2).received(17, 2, 64);
    script.sent(17, 3).polls(CQ, 1);
    script.keeps(206).keeps(201);
}

/// A peer writes with this key.
fn writes(script: &mut Script, key: u32) -> &mut Script {
    let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(17), Psn::new(0));
    headers.reth = Some(Reth { va: BUFFER, rkey: Key::new(key), len: 64 });
    script.happens(Some(17), Kind::PacketReceived { headers, payload_len: 64, packets: 1 })
}

#[test]
fn memory_deregistered_while_a_send_is_under_way_is_told() {
    let mut script = connected();
    script.send(17, send(5)).dereg(KEY);
    script.shows(207, &["wr_id 5", "0x100"]);
    let mut script = connected();
    script.send(17, send(5)).sent(17, 5).dereg(KEY).keeps(207);
    let mut script = connected();
    script.send(17, send(5)).destroy_qp(17).dereg(KEY).keeps(207);
}

#[test]
fn memory_deregistered_while_receives_are_posted_is_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).receive(17, 2, &[(BUFFER + 64, 64, KEY)]).dereg(KEY);
    script.shows(208, &["2 receives", "wr_id 1"]).keeps(207);
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, KEY)]).destroy_qp(17).dereg(KEY).keeps(208);
}

#[test]
fn memory_unmapped_while_registered_is_told_when_time_passes_and_when_it_is_deregistered() {
    let mut script = connected();
    script.unmaps(BUFFER + 4096, 4096).pass_ms(100);
    script.shows(209, &["0x100", "65536"]).keeps(210);
    let mut script = connected();
    script.unmaps(BUFFER + 4096, 4096).dereg(KEY);
    script.shows(209, &["0x100"]);
    let mut script = connected();
    script.dereg(KEY).unmaps(BUFFER, 65_536).pass_ms(100).ends();
    script.keeps(209);
}

#[test]
fn on_demand_memory_may_be_unmapped() {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 4096, Access::LOCAL_WRITE | Access::ON_DEMAND).unmaps(BUFFER, 4096).pass_ms(100).ends();
    script.keeps(209);
}

#[test]
fn work_on_memory_that_is_not_mapped_is_told() {
    let mut script = connected();
    script.unmaps(BUFFER, 4096).send(17, send(1));
    script.shows(210, &["SEND with wr_id 1"]);
    let mut script = connected();
    script.send(17, send(1)).pass_ms(20).keeps(210);
    script.unmaps(BUFFER, 4096).pass_ms(20);
    script.shows(210, &["while the SEND with wr_id 1"]);
}

#[test]
fn a_key_of_another_domain_is_told_when_it_is_posted() {
    let mut script = Script::new();
    script.pd(8).mr_in(8, KEY, BUFFER, 4096, ALL_ACCESS).qp(17).init(17).receive(17, 1, &[(BUFFER, 64, KEY)]);
    script.shows(211, &["PD 8", &format!("PD {PD}"), "wr_id 1"]);
    // What fails anyhow lends nothing.
    script.mr(0x200, BUFFER, 4096, ALL_ACCESS).receive(17, 2, &[(BUFFER, 64, 0x200)]).keeps(203);
    connected().send(17, send(1)).keeps(211);
}

#[test]
fn a_piece_outside_its_region_is_told_when_it_is_posted() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER + 65_536 - 32, 96, KEY)]);
    script.shows(212, &["ends 64 bytes past", "[0x7f0000001000, +65536)"]);
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER - 8, 16, KEY)]).shows(212, &["begins 8 bytes before"]);
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER + 65_536 - 32, 32, KEY)]).keeps(212);
}

#[test]
fn addresses_that_count_from_zero_are_understood() {
    let mut script = Script::new();
    let access = ALL_ACCESS | Access::ZERO_BASED;
    script.call(Call::RegisterMemory { key: Key::new(KEY), pd: PD, address: BUFFER, length: 64, iova: 0, access });
    script.qp(17).connect(17, 18).receive(17, 1, &[(0, 64, KEY)]).keeps(212);
    script.mr(0x200, BUFFER, 64, ALL_ACCESS).receive(17, 2, &[(BUFFER, 64, 0x200)]).received(17, 1, 64);
    script.shows(203, &["same buffer"]);
}

#[test]
fn the_region_that_is_nowhere_holds_every_address() {
    let mut script = connected();
    script.mr(0x200, 0, 0, Access::LOCAL_WRITE).receive(17, 1, &[(0, 64, 0x200), (32, 64, 0x200)]);
    script.receive(17, 2, &[(0, 64, 0x200)]).pass_ms(100).ends();
    script.keeps(203).keeps(209).keeps(212).keeps(227);
}

#[test]
fn a_key_of_deregistered_memory_is_told_when_it_is_posted() {
    let mut script = connected();
    script.dereg(KEY).receive(17, 1, &[(BUFFER, 64, KEY)]);
    script.shows(213, &["lkey 0x100", "[0x7f0000001000, +65536)"]);
    connected().receive(17, 1, &[(BUFFER, 64, 0x999)]).keeps(213);
}

#[test]
fn a_receive_into_memory_without_local_write_is_told() {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 4096, Access::empty()).qp(17).connect(17, 18).receive(17, 1, &[(BUFFER, 64, KEY)]);
    script.shows(214, &["IBV_ACCESS_LOCAL_WRITE", "LOCAL_READ"]);
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 4096, Access::empty()).qp(17).connect(17, 18).send(17, send(1)).keeps(214);
}

#[test]
fn a_stack_that_is_open_to_peers_is_told() {
    let mut script = Script::new();
    script.memory.stack = (BUFFER, 8 << 20);
    script.mr(KEY, BUFFER + 64, 64, ALL_ACCESS);
    script.shows(215, &["64 bytes of a thread's stack", "REMOTE_WRITE"]);
    let mut script = Script::new();
    script.memory.stack = (BUFFER, 8 << 20);
    script.mr(KEY, BUFFER + 64, 64, Access::LOCAL_WRITE).mr(KEY + 1, BUFFER - 64, 64, ALL_ACCESS).keeps(215);
}

#[test]
fn the_same_memory_registered_many_times_is_told() {
    let mut script = Script::new();
    for key in 0..4 {
        script.mr(KEY + key, BUFFER, 4096, ALL_ACCESS);
    }
    script.shows(216, &["registered 4 times", "4096 bytes"]);
    let mut script = Script::new();
    for key in 0..8 {
        script.mr(KEY + key, BUFFER, 4096, ALL_ACCESS).dereg(KEY + key);
    }
    script.keeps(216);
}

#[test]
fn rights_never_used_are_told_at_the_end() {
    let mut script = connected();
    writes(&mut script, KEY).ends();
    script.shows(217, &["REMOTE_READ|REMOTE_ATOMIC", "peers used REMOTE_WRITE"]);
}

#[test]
fn rights_that_were_used_are_not_told() {
    let mut script = connected();
    writes(&mut script, KEY);
    let mut headers = Headers::new(Opcode::RcReadRequest, Qpn::new(17), Psn::new(1));
    headers.reth = Some(Reth { va: BUFFER, rkey: Key::new(KEY), len: 64 });
    script.happens(Some(17), Kind::PacketReceived { headers, payload_len: 0, packets: 1 });
    let mut headers = Headers::new(Opcode::RcFetchAdd, Qpn::new(17), Psn::new(2));
    headers.atomic = Some(AtomicEth { va: BUFFER, rkey: Key::new(KEY), swap_add: 1, compare: 0 });
    script.happens(Some(17), Kind::PacketReceived { headers, payload_len: 0, packets: 1 }).dereg(KEY);
    script.keeps(217);
}

fn bind(new_key: u32) -> Call {
    let access = Access::REMOTE_READ;
    let (window, region) = (Key::new(0x7700), Key::new(KEY));
    Call::BindWindow { window, new_key: Key::new(new_key), region, address: BUFFER, length: 64, access }
}

#[test]
fn a_region_for_windows_without_one_is_told() {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 4096, Access::LOCAL_WRITE | Access::MW_BIND).dereg(KEY);
    script.shows(218, &["MW_BIND"]);
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 4096, Access::LOCAL_WRITE | Access::MW_BIND);
    script.call(Call::AllocWindow { key: Key::new(0x7700), pd: PD, type_2: true }).call(bind(0x7701)).dereg(KEY);
    script.keeps(218);
}

#[test]
fn a_registration_changed_while_work_is_under_way_is_told() {
    let key = Key::new(KEY);
    let change = Call::ReregisterMemory {
        old_key: key,
        key,
        pd: PD,
        address: BUFFER,
        length: 64,
        iova: BUFFER,
        access: ALL_ACCESS,
    };
    let mut script = connected();
    script.send(17, send(5)).call(change).shows(219, &["wr_id 5"]);
    let mut script = connected();
    script.send(17, send(5)).sent(17, 5).call(change).keeps(219);
}

#[test]
fn atomics_that_are_not_aligned_or_have_no_room_are_told() {
    let mut script = connected();
    script.send(17, atomic(0x1004, 8)).shows(220, &["0x1004", "4 past"]).keeps(221);
    let mut script = connected();
    script.send(17, atomic(0x1000, 4)).shows(221, &["4 bytes"]).keeps(220);
    connected().send(17, atomic(0x1000, 8)).keeps(220).keeps(221);
}

#[test]
fn many_small_regions_are_told() {
    let near = BUFFER >> 21 << 21;
    let mut script = Script::new();
    for key in 0..64 {
        script.mr(KEY + key, near + u64::from(key) * 128, 128, ALL_ACCESS);
    }
    script.shows(222, &["64 regions"]);
    let mut script = Script::new();
    for key in 0..200 {
        script.mr(KEY + key, near + u64::from(key) * 4096, 4096, ALL_ACCESS);
        script.mr(KEY + 500 + key, near + u64::from(key) * 128, 128, ALL_ACCESS).dereg(KEY + 500 + key);
    }
    script.keeps(222);
}

#[test]
fn a_window_bound_again_under_its_key_is_told() {
    let mut script = Script::new();
    script.call(Call::AllocWindow { key: Key::new(0x7700), pd: PD, type_2: true });
    script.call(bind(0x7701)).call(bind(0x7702)).keeps(223);
    script.call(bind(0x7702)).shows(223, &["0x7702"]);
}

#[test]
fn a_window_that_was_never_bound_is_told() {
    let mut script = Script::new();
    script.call(Call::AllocWindow { key: Key::new(0x7700), pd: PD, type_2: true });
    script.call(Call::FreeWindow { key: Key::new(0x7700) }).shows(224, &["0x7700"]);
    let mut script = Script::new();
    script.call(Call::AllocWindow { key: Key::new(0x7700), pd: PD, type_2: true }).call(bind(0x7701));
    script.call(Call::FreeWindow { key: Key::new(0x7701) }).ends();
    script.keeps(224);
}

#[test]
fn pieces_that_follow_each_other_are_told_when_they_are_a_habit() {
    let split = Send { pieces: vec![(BUFFER, 64, KEY), (BUFFER + 64, 64, KEY)], ..send(1) };
    let mut script = connected();
    for _ in 0..7 {
        script.send(17, split.clone()).sent(17, 1);
    }
    script.keeps(225);
    script.send(17, split).shows(225, &["2 pieces"]);
}

#[test]
fn an_empty_piece_beside_others_is_told() {
    let mut script = connected();
    script.send(17, Send { pieces: vec![(BUFFER, 64, KEY), (BUFFER, 0, KEY)], ..send(1) });
    script.shows(226, &["piece 1 of the 2 pieces"]);
    connected().send(17, Send { pieces: vec![(BUFFER, 0, KEY)], ..send(1) }).keeps(226);
}

#[test]
fn pieces_of_a_receive_that_overlap_are_told() {
    let pieces = [(BUFFER, 64, KEY), (BUFFER + 32, 64, KEY)];
    let mut script = connected();
    script.receive(17, 1, &pieces).shows(227, &["[0x7f0000001020, +64)"]);
    connected().send(17, Send { pieces: pieces.to_vec(), ..send(1) }).keeps(227);
}

#[test]
fn the_whole_address_space_open_to_peers_is_told() {
    let mut script = Script::new();
    script.mr(KEY, 0, u64::MAX, ALL_ACCESS | Access::ON_DEMAND).shows(228, &["whole address space"]);
    let mut script = Script::new();
    script.mr(KEY, 0, u64::MAX, Access::LOCAL_WRITE | Access::ON_DEMAND).keeps(228);
}

#[test]
fn a_piece_with_key_0_is_told() {
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, 0)]).shows(229, &["lkey 0"]);
    connected().send(17, Send { inline: true, pieces: vec![(BUFFER, 64, 0)], ..send(1) }).keeps(229);
}

#[test]
fn a_log_without_a_process_says_nothing_of_contents() {
    let mut script = connected();
    script.memory.silent = true;
    script.send(17, send(1)).stores(BUFFER, 1).unmaps(BUFFER, 64).sent(17, 1).pass_ms(50).ends();
    script.keeps(201).keeps(209).keeps(210);
}

#[test]
fn a_piece_names_a_region_by_its_lkey() {
    let local = Key::new(KEY).local().value();
    assert_ne!(local, KEY);
    let mut script = connected();
    script.receive(17, 1, &[(BUFFER, 64, local)]).receive(17, 2, &[(BUFFER + 32, 64, local)]);
    script.shows(202, &["receive with wr_id 2", "receive with wr_id 1"]).keeps(213);
    script.dereg(KEY).receive(17, 3, &[(BUFFER, 64, local)]).shows(213, &["receive with wr_id 3"]);
}

/// A WRITE of the peer comes, and the program posts one back; `between` happens in between.
fn write_comes(script: &mut Script, opcode: Opcode, wr_id: u64, between: impl FnOnce(&mut Script)) {
    let mut headers = Headers::new(opcode, Qpn::new(17), Psn::new(wr_id as u32));
    headers.reth = Some(Reth { va: BUFFER, rkey: Key::new(KEY), len: 8 });
    script.happens(Some(17), Kind::PacketReceived { headers, payload_len: 8, packets: 1 });
    between(script);
    script.send(17, Send { opcode: "RDMA_WRITE", remote: Some((0x1000, 7)), ..send(wr_id) }).sent(17, wr_id);
    script.polls_of(CQ, 17, wr_id);
}

#[test]
fn answers_to_writes_that_nothing_has_told_of_are_told() {
    let mut script = connected();
    for wr_id in 0..40 {
        write_comes(&mut script, Opcode::RcWriteOnly, wr_id, |_| {});
    }
    script.shows(230, &["32 times", "QP 0x11", "looks at memory"]);
}

#[test]
fn posts_that_something_else_may_have_caused_are_no_answers() {
    // A completion is polled after each WRITE has come: that may be what the program waits for.
    let mut script = connected();
    for wr_id in 0..100 {
        script.send(17, send(1000 + wr_id)).sent(17, 1000 + wr_id);
        write_comes(&mut script, Opcode::RcWriteOnly, wr_id, |script| {
            script.polls_of(CQ, 17, 1000 + wr_id);
        });
    }
    script.keeps(230);
    // It comes with immediate data.
    let mut script = connected();
    for wr_id in 0..100 {
        write_comes(&mut script, Opcode::RcWriteOnlyImmediate, wr_id, |_| {});
    }
    script.keeps(230);
    // Now and then the program posts without any WRITE before it.
    let mut script = connected();
    for wr_id in 0..100 {
        write_comes(&mut script, Opcode::RcWriteOnly, wr_id, |_| {});
        if wr_id % 30 == 29 {
            script.send(17, send(1000 + wr_id)).sent(17, 1000 + wr_id).polls_of(CQ, 17, 1000 + wr_id);
        }
    }
    script.keeps(230);
}
