//! Rules of processes, threads and lives of objects: scripts that break each, and scripts that keep it.

use crate::script::{ALL_ACCESS, CONTEXT, CQ, NewPair, PD, Script, Send};
use trace::{Call, Kind, StateCause, Text};
use wire::{Key, Srqn};

const QP: u32 = 17;
const BUFFER: u64 = 0x7f00_0000_1000;
const EBUSY: i32 = 16;

fn connected() -> Script {
    let mut script = Script::new();
    script.qp(QP).connect(QP, 18);
    script
}

fn signaled(wr_id: u64) -> Send {
    Send { wr_id, ..Send::default() }
}

/// Sends a message and hears that it was sent.
fn message(script: &mut Script, wr_id: u64) -> &mut Script {
    script.send(QP, signaled(wr_id)).sent(QP, wr_id).polls(CQ, wr_id)
}

fn cm(script: &mut Script, function: &'static str, id: u64) {
    script.call(Call::CmCall { function, id, id_qpn: None });
}

fn cm_event(script: &mut Script, event: &'static str, id: u64) {
    script.call(Call::CmEvent { event, id, listen_id: None, status: 0, id_qpn: None });
}

#[test]
fn a_fork_with_registered_memory_is_told_unless_it_was_prepared() {
    let mut script = connected();
    script.call(Call::Fork {}).keeps(601);
    script.mr(1, BUFFER, 4096, ALL_ACCESS).receive(QP, 1, &[]).call(Call::Fork {});
    script.shows(601, &["1 buffers of 4096 bytes", "ibv_fork_init", "1 work requests"]);
    let mut script = connected();
    script.call(Call::ForkInit {}).mr(1, BUFFER, 4096, ALL_ACCESS).call(Call::Fork {}).keeps(601);
}

#[test]
fn a_child_that_uses_its_parents_objects_is_told() {
    let mut script = Script::new();
    let reason = "the object belongs to the process that this one was forked from; open the device again";
    script.refused(None, "ibv_poll_cq", 5, "the device is gone").keeps(602);
    script.refused(None, "ibv_post_send", 5, reason);
    script.shows(602, &["ibv_post_send", "forked child"]);
}

#[test]
fn threads_that_take_turns_at_a_queue_are_told() {
    let mut script = connected();
    for wr_id in 0..70 {
        script.thread(7 + (wr_id as u32 % 2));
        message(&mut script, wr_id);
    }
    script.shows(603, &["CQ 4", "threads 8 and 7", "64 times"]);
    let mut script = connected();
    for wr_id in 0..200 {
        // One thread at a time, a hundred messages each.
        script.thread(7 + (wr_id as u32 / 100));
        message(&mut script, wr_id);
    }
    script.keeps(603);
}

#[test]
fn registering_for_each_message_is_told() {
    let mut script = connected();
    message(&mut script, 0);
    for round in 1..=64 {
        script.mr(round, BUFFER + u64::from(round) * 65536, 8192, ALL_ACCESS);
        message(&mut script, round.into()).dereg(round);
    }
    script.shows(604, &["64 buffers", "ibv_reg_mr"]).keeps(605);
}

#[test]
fn registering_now_and_then_is_fine() {
    let mut script = connected();
    message(&mut script, 0);
    for round in 1..=64 {
        script.mr(round, BUFFER + u64::from(round) * 65536, 8192, ALL_ACCESS);
        (0..20).for_each(|wr_id| {
            message(&mut script, wr_id);
        });
        script.dereg(round);
    }
    script.keeps(604);
}

#[test]
fn registering_the_same_buffer_again_is_told_once() {
    let mut script = connected();
    message(&mut script, 0);
    for round in 1..=100 {
        script.mr(round, BUFFER, 8192, ALL_ACCESS);
        message(&mut script, round.into()).dereg(round);
    }
    script.shows(605, &["[0x7f0000001000, +8192)", "16 times"]).keeps(604);
    assert_eq!(script.of(605).len(), 1);
}

#[test]
fn queue_pairs_for_a_message_each_are_told() {
    let pairs = |messages: u64| {
        let mut script = Script::new();
        for _ in 0..64 {
            script.qp(QP).connect(QP, 18);
            (0..messages).for_each(|wr_id| {
                message(&mut script, wr_id);
            });
            script.destroy_qp(QP);
        }
        script
    };
    pairs(1).shows(606, &["64 queue pairs", "8 work requests"]);
    pairs(20).keeps(606);
}

#[test]
fn an_address_handle_for_each_message_is_told() {
    let handles = |messages: u64| {
        let mut script = connected();
        (0..4).for_each(|wr_id| {
            message(&mut script, wr_id);
        });
        for ah in 0..130 {
            let dgid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
            script.call(Call::CreateAh { ah, pd: PD, dgid });
            (0..messages).for_each(|wr_id| {
                message(&mut script, wr_id);
            });
            script.call(Call::DestroyAh { ah });
        }
        script
    };
    handles(1).shows(607, &["64 address handles", "::ffff:127.0.0.1"]);
    handles(10).keeps(607);
    handles(0).keeps(607);
}

#[test]
fn very_many_small_regions_are_told() {
    let regions = |length: u64| {
        let mut script = Script::new();
        (0..256).for_each(|key| {
            script.mr(key + 1, BUFFER + u64::from(key) * 65536, length, ALL_ACCESS);
        });
        script
    };
    regions(64).shows(608, &["256 buffers", "PD 3"]);
    regions(65536).keeps(608);
}

#[test]
fn a_buffer_in_many_domains_is_told() {
    let mut script = Script::new();
    for pd in 10..13 {
        script.pd(pd).mr_in(pd, pd, BUFFER, 65536, ALL_ACCESS);
    }
    script.keeps(609);
    script.pd(13).mr_in(13, 13, BUFFER, 65536, ALL_ACCESS);
    script.shows(609, &["[0x7f0000001000, +65536)", "10, 11, 12, 13"]);
}

#[test]
fn a_device_that_is_open_many_times_is_told() {
    let mut script = Script::new();
    (2..30).for_each(|context| {
        script.call(Call::OpenDevice { context, device: Text::of("ubi_lo") }).call(Call::CloseDevice { context });
    });
    script.keeps(610);
    (2..17).for_each(|context| {
        script.call(Call::OpenDevice { context, device: Text::of("ubi_lo") });
    });
    script.shows(610, &["ubi_lo", "16 times"]);
}

#[test]
fn what_is_left_at_the_end_is_noted_by_kind() {
    let mut script = connected();
    script.mr(0x55, BUFFER, 4096, ALL_ACCESS).srq(5, 16);
    script.call(Call::AllocWindow { key: Key::new(0x66), pd: PD, type_2: false });
    script.call(Call::CreateChannel { channel: 9 });
    script.call(Call::CreateAh { ah: 3, pd: PD, dgid: [0; 16] });
    cm(&mut script, "rdma_create_event_channel", 0x1000);
    script.ends();
    script.shows(611, &["1 devices", "ubi_lo"]).shows(612, &["PD 3"]).shows(614, &["0x00000066"]);
    script.shows(613, &["[0x7f0000001000, +4096)", "0x00000055", "ibv_dereg_mr"]);
    script.shows(615, &["channel 9"]).shows(616, &["CQ 4"]).shows(617, &["SRQ 5"]).shows(618, &["QP 0x11 (RC, RTS)"]);
    script.shows(619, &["1 address handles"]).shows(621, &["0x1000"]);
}

#[test]
fn what_was_given_back_is_not_noted() {
    let mut script = connected();
    script.mr(0x55, BUFFER, 4096, ALL_ACCESS).srq(5, 16);
    script.call(Call::AllocWindow { key: Key::new(0x66), pd: PD, type_2: false });
    script.call(Call::CreateChannel { channel: 9 });
    script.call(Call::CreateAh { ah: 3, pd: PD, dgid: [0; 16] });
    cm(&mut script, "rdma_create_event_channel", 0x1000);
    cm(&mut script, "rdma_destroy_event_channel", 0x1000);
    script.destroy_qp(QP).dereg(0x55).call(Call::FreeWindow { key: Key::new(0x66) });
    script.call(Call::DestroySrq { srq: Srqn::new(5) }).call(Call::DestroyCq { cq: CQ });
    script.call(Call::DestroyChannel { channel: 9 }).call(Call::DestroyAh { ah: 3 });
    script.call(Call::DeallocPd { pd: PD }).call(Call::CloseDevice { context: CONTEXT });
    script.ends();
    let left: Vec<_> = script.findings().iter().filter(|finding| (600..700).contains(&finding.rule.0)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn many_leaks_are_counted_and_a_few_named() {
    let mut script = Script::new();
    (1..=20).for_each(|key| {
        script.mr(key, BUFFER, 4096, ALL_ACCESS);
    });
    script.ends();
    script.shows(613, &["20 memory regions", "and 12 more"]);
    assert_eq!(script.of(613).len(), 1);
}

#[test]
fn a_destroy_that_was_refused_and_never_done_is_told() {
    let mut script = connected();
    script.mr(1, BUFFER, 4096, ALL_ACCESS).refused(None, "ibv_dealloc_pd", EBUSY, "in use");
    script.ends();
    script.shows(820, &["UV-0820, UV-0622", "ibv_dealloc_pd", "regions 0x1", "queue pairs 0x11"]);
}

#[test]
fn a_destroy_that_was_done_later_is_fine() {
    let mut script = connected();
    script.refused(None, "ibv_dealloc_pd", EBUSY, "in use").destroy_qp(QP).call(Call::DeallocPd { pd: PD });
    script.ends();
    script.keeps(622);
}

#[test]
fn closing_a_device_with_objects_inside_is_told() {
    let mut script = connected();
    script.call(Call::CloseDevice { context: CONTEXT });
    script.shows(623, &["ubi_lo", "1 protection domains", "1 queue pairs"]);
    let mut script = Script::new();
    script.call(Call::DeallocPd { pd: PD }).call(Call::CloseDevice { context: CONTEXT }).keeps(623);
}

#[test]
fn failures_told_by_events_that_nobody_reads_are_told() {
    let event = || Kind::AsyncEvent { name: "IBV_EVENT_QP_ACCESS_ERR" };
    let mut script = connected();
    script.happens(Some(QP), Kind::AsyncEvent { name: "IBV_EVENT_COMM_EST" }).ends();
    script.keeps(624);
    let mut script = connected();
    script.happens(Some(QP), event()).ends();
    script.shows(624, &["IBV_EVENT_QP_ACCESS_ERR of QP 0x11", "ibv_get_async_event"]);
    let mut script = connected();
    script.happens(Some(QP), Kind::CqOverflowed { cq: CQ, capacity: 4 }).ends();
    script.shows(624, &["IBV_EVENT_CQ_ERR of CQ 4"]);
    let mut script = connected();
    script.happens(Some(QP), event());
    script.call(Call::GetAsyncEvent { event: "IBV_EVENT_QP_ACCESS_ERR", about: QP.into() }).ends();
    script.keeps(624);
}

#[test]
fn destroying_before_acknowledging_an_asynchronous_event_is_told() {
    let destroys = |acknowledges: bool| {
        let (event, about) = ("IBV_EVENT_QP_ACCESS_ERR", u64::from(QP));
        let mut script = connected();
        script.call(Call::GetAsyncEvent { event, about });
        if acknowledges {
            script.call(Call::AckAsyncEvent { event, about });
        }
        script.call(Call::WaitForAcks { object: "qp", number: about, missing: 1 });
        script
    };
    destroys(false).shows(625, &["ibv_destroy_qp", "QP 0x11", "IBV_EVENT_QP_ACCESS_ERR"]);
    destroys(true).keeps(625);
}

#[test]
fn another_thread_may_acknowledge_in_a_moment() {
    let (event, about) = ("IBV_EVENT_QP_ACCESS_ERR", u64::from(QP));
    let mut script = connected();
    script.thread(8).call(Call::GetAsyncEvent { event, about }).thread(7);
    script.call(Call::WaitForAcks { object: "qp", number: about, missing: 1 }).pass_ms(100).keeps(625);
    script.pass_ms(1_000).shows(625, &["QP 0x11"]);
}

#[test]
fn ending_or_destroying_with_sends_under_way_is_told() {
    let mut script = connected();
    script.send(QP, signaled(5)).ends();
    script.shows(626, &["1 sends on 1 queue pairs", "work request 5 (SEND"]).keeps(627);
    let mut script = connected();
    script.send(QP, signaled(5)).destroy_qp(QP).ends();
    script.shows(627, &["QP 0x11", "work request 5 (SEND"]).keeps(626);
}

#[test]
fn receives_unsignaled_work_and_queue_pairs_in_error_may_be_left() {
    let mut script = connected();
    script.receive(QP, 1, &[]).send(QP, Send { signaled: false, ..Send::default() });
    script.qp_with(19, NewPair::default()).connect(19, 20).send(19, signaled(5));
    script.state(19, "ERR", StateCause::Disconnected).destroy_qp(QP).ends();
    script.keeps(626).keeps(627);
}

#[test]
fn ending_without_disconnecting_is_noted() {
    let ends = |disconnects: bool| {
        let mut script = Script::new();
        cm(&mut script, "rdma_create_id", 0x2000);
        cm_event(&mut script, "RDMA_CM_EVENT_ESTABLISHED", 0x2000);
        if disconnects {
            cm(&mut script, "rdma_disconnect", 0x2000);
        }
        script.ends();
        script
    };
    ends(false).shows(628, &["1 connections"]);
    ends(true).keeps(628);
}

#[test]
fn destroying_a_channel_under_a_thread_that_waits_is_told() {
    let mut script = Script::new();
    script.call(Call::CreateChannel { channel: 9 });
    script.thread(8).call(Call::WaitCqEvent { channel: 9 }).thread(7).call(Call::DestroyChannel { channel: 9 });
    script.shows(629, &["channel 9", "thread 7", "thread 8"]);
    let mut script = Script::new();
    script.call(Call::CreateChannel { channel: 9 });
    script.thread(8).call(Call::WaitCqEvent { channel: 9 }).call(Call::GetCqEvent { channel: 9, cq: CQ });
    script.thread(7).call(Call::DestroyChannel { channel: 9 }).keeps(629);
    let mut script = Script::new();
    script.call(Call::CreateChannel { channel: 9 });
    script.thread(8).call(Call::WaitCqEvent { channel: 9 }).call(Call::StopWaiting {});
    script.thread(7).call(Call::DestroyChannel { channel: 9 }).keeps(629);
}
