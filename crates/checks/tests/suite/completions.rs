//! Rules of completions: scripts that break each, and scripts that keep it.

use crate::script::{CQ, NewPair, Script, Send};
use trace::{Call, Failure, Kind, Queue, StateCause};
use wire::Psn;

const CHANNEL: u32 = 9;
const WOKEN: u32 = 10;
const QP: u32 = 17;
const FAILED: &str = "IBV_WC_REM_ACCESS_ERR";
const GONE: Failure = Failure::PeerGone { psn: Psn::new(5) };

/// A program with a connected queue pair whose work completes on [`CQ`].
fn connected() -> Script {
    let mut script = Script::new();
    script.qp(QP).connect(QP, 18);
    script
}

/// A program whose receives complete on [`WOKEN`], which reports to [`CHANNEL`].
fn with_channel() -> Script {
    let mut script = Script::new();
    script.channel_and_cq(CHANNEL, WOKEN, 64);
    script.qp_with(QP, NewPair { receive_cq: WOKEN, ..NewPair::default() }).connect(QP, 18);
    for wr_id in 0..8 {
        script.receive(QP, wr_id, &[]);
    }
    script
}

fn arm(script: &mut Script, cq: u32) -> &mut Script {
    script.call(Call::ArmCq { cq, solicited_only: false })
}

fn wait(script: &mut Script) -> &mut Script {
    script.call(Call::WaitCqEvent { channel: CHANNEL })
}

fn get(script: &mut Script, cq: u32) -> &mut Script {
    script.call(Call::GetCqEvent { channel: CHANNEL, cq })
}

fn ack(script: &mut Script, cq: u32, count: u32) -> &mut Script {
    script.call(Call::AckCqEvents { cq, count })
}

fn signaled(wr_id: u64) -> Send {
    Send { wr_id, ..Send::default() }
}

#[test]
fn an_overflow_is_told_with_what_the_queue_was_made_for() {
    let mut script = connected();
    script.send(QP, signaled(1)).sent(QP, 1);
    script.happens(Some(QP), Kind::CqOverflowed { cq: CQ, capacity: 64 });
    script.shows(401, &["CQ 4", "QP 0x11", "64 completions", "32 work requests", "never polled"]);
}

#[test]
fn more_work_than_the_queue_holds_is_told_before_it_completes() {
    let mut script = Script::new();
    script.cq(20, 4).qp_with(QP, NewPair { send_cq: 20, receive_cq: 20, ..NewPair::default() }).connect(QP, 18);
    (0..4).for_each(|wr_id| {
        script.send(QP, signaled(wr_id));
    });
    script.keeps(402);
    script.receive(QP, 9, &[]);
    script.shows(402, &["CQ 20", "5 work requests", "holds 4", "ibv_create_cq(…, 32, …)"]);
}

#[test]
fn unsignaled_work_and_polled_work_needs_no_place() {
    let mut script = Script::new();
    script.cq(20, 4).qp_with(QP, NewPair { send_cq: 20, receive_cq: 20, ..NewPair::default() }).connect(QP, 18);
    (0..12).for_each(|wr_id| {
        script.send(QP, Send { wr_id, signaled: false, ..Send::default() });
    });
    for wr_id in 20..40 {
        script.send(QP, signaled(wr_id)).sent(QP, wr_id).polls(20, wr_id);
    }
    script.keeps(402);
}

#[test]
fn shared_receives_need_places_on_every_queue_they_may_complete_on() {
    let mut script = Script::new();
    script.srq(5, 16).cq(20, 4).cq(21, 64);
    script.qp_with(QP, NewPair { receive_cq: 20, srq: Some(5), ..NewPair::default() });
    script.qp_with(19, NewPair { receive_cq: 21, srq: Some(5), ..NewPair::default() });
    (0..5).for_each(|wr_id| {
        script.receive_shared(5, wr_id, &[]);
    });
    script.shows(402, &["CQ 20", "4 receives"]);
    assert_eq!(script.of(402).len(), 1);
}

#[test]
fn polling_a_queue_on_which_nothing_completes_is_told_after_a_while_and_at_the_end() {
    let mut script = Script::new();
    script.cq(20, 64).qp_with(QP, NewPair { receive_cq: 20, ..NewPair::default() }).connect(QP, 18);
    script.send(QP, signaled(1)).sent(QP, 1).polls_nothing(20).pass_ms(100);
    script.keeps(403);
    script.pass_ms(2_000);
    script.shows(403, &["polls CQ 20", "never CQ 4", "1 completions", "send_cq"]);
}

#[test]
fn a_queue_that_is_polled_late_is_not_told() {
    let mut script = Script::new();
    script.cq(20, 64).qp_with(QP, NewPair { receive_cq: 20, ..NewPair::default() }).connect(QP, 18);
    script.send(QP, signaled(1)).sent(QP, 1).polls_nothing(20).pass_ms(1_000).polls(CQ, 1);
    script.ends();
    script.keeps(403).keeps(410);
}

#[test]
fn arming_beside_completions_and_waiting_is_the_lost_wake_up() {
    let mut script = with_channel();
    script.polls_nothing(WOKEN).received(QP, 0, 8);
    get(arm(&mut script, WOKEN), WOKEN);
    script.shows(404, &["CQ 10", "1 completions", "ibv_req_notify_cq"]);
}

#[test]
fn polling_after_arming_loses_nothing() {
    let mut script = with_channel();
    script.polls_nothing(WOKEN).received(QP, 0, 8);
    arm(&mut script, WOKEN).polls(WOKEN, 0).polls_nothing(WOKEN);
    get(wait(&mut script).received(QP, 1, 8), WOKEN);
    arm(ack(&mut script, WOKEN, 1), WOKEN).polls(WOKEN, 1).polls_nothing(WOKEN);
    wait(&mut script).pass_ms(5_000);
    assert!(script.findings().is_empty(), "{:?}", script.findings());
}

#[test]
fn arming_before_anything_was_posted_needs_no_poll() {
    let mut script = with_channel();
    wait(arm(&mut script, WOKEN)).received(QP, 0, 8);
    get(&mut script, WOKEN).polls(WOKEN, 0);
    script.keeps(404);
}

#[test]
fn an_event_that_waits_already_wakes_in_any_case() {
    let mut script = with_channel();
    arm(&mut script, WOKEN).received(QP, 0, 8);
    get(arm(&mut script, WOKEN), WOKEN);
    script.keeps(404);
}

#[test]
fn sleeping_at_a_queue_that_is_not_armed_is_told_once_completions_wait() {
    let mut script = with_channel();
    wait(&mut script).pass_ms(5_000).keeps(405);
    script.received(QP, 0, 8).pass_ms(500).keeps(405);
    script.pass_ms(1_000);
    script.shows(405, &["channel 9", "CQ 10", "not armed", "ibv_req_notify_cq"]);
}

#[test]
fn a_queue_is_armed_again_after_each_event() {
    let mut script = with_channel();
    wait(arm(&mut script, WOKEN)).received(QP, 0, 8);
    get(&mut script, WOKEN).polls(WOKEN, 0);
    wait(&mut script).received(QP, 1, 8).pass_ms(3_000);
    script.shows(405, &["CQ 10"]);
}

#[test]
fn arming_an_armed_queue_again_and_again_is_told() {
    let mut script = with_channel();
    (0..60).for_each(|_| {
        arm(&mut script, WOKEN).polls_nothing(WOKEN);
    });
    script.keeps(406);
    (0..10).for_each(|_| {
        arm(&mut script, WOKEN);
    });
    script.shows(406, &["CQ 10", "64 times"]);
}

#[test]
fn arming_after_each_event_is_not_arming_again() {
    let mut script = with_channel();
    for round in 0..100 {
        arm(&mut script, WOKEN).received(QP, round % 8, 8).receive(QP, round % 8, &[]);
        ack(get(&mut script, WOKEN), WOKEN, 1).polls(WOKEN, round % 8);
    }
    script.keeps(406);
}

#[test]
fn destroying_before_acknowledging_is_told_at_once_where_nobody_else_can() {
    let mut script = with_channel();
    arm(&mut script, WOKEN).received(QP, 0, 8);
    get(&mut script, WOKEN).polls(WOKEN, 0);
    script.call(Call::WaitForAcks { object: "cq", number: WOKEN.into(), missing: 1 });
    script.shows(407, &["CQ 10", "1 of its events", "got 1 events"]);
}

#[test]
fn destroying_while_another_thread_is_about_to_acknowledge_is_fine() {
    let mut script = with_channel();
    arm(&mut script, WOKEN).received(QP, 0, 8);
    get(script.thread(8), WOKEN).polls(WOKEN, 0).thread(7);
    script.call(Call::WaitForAcks { object: "cq", number: WOKEN.into(), missing: 1 }).pass_ms(200);
    ack(script.thread(8), WOKEN, 1).thread(7).call(Call::DestroyCq { cq: WOKEN }).pass_ms(2_000);
    script.keeps(407);
}

#[test]
fn destroying_while_no_thread_acknowledges_for_a_second_is_told() {
    let mut script = with_channel();
    arm(&mut script, WOKEN).received(QP, 0, 8);
    get(script.thread(8), WOKEN).thread(7);
    script.call(Call::WaitForAcks { object: "cq", number: WOKEN.into(), missing: 1 }).pass_ms(1_100);
    script.shows(407, &["CQ 10"]);
}

#[test]
fn acknowledging_more_than_was_got_is_told() {
    let mut script = with_channel();
    arm(&mut script, WOKEN).received(QP, 0, 8);
    ack(get(&mut script, WOKEN), WOKEN, 1).keeps(408);
    ack(&mut script, WOKEN, 1);
    script.shows(408, &["CQ 10", "1 events", "of which 0", "has acknowledged 2"]);
}

#[test]
fn many_single_acknowledgements_are_told_and_batches_are_not() {
    let events = |batch: u32| {
        let mut script = with_channel();
        for round in 0..300_u32 {
            get(&mut script, WOKEN);
            if round % batch == batch - 1 {
                ack(&mut script, WOKEN, batch);
            }
        }
        script
    };
    events(1).shows(409, &["CQ 10", "256 events"]);
    events(10).keeps(409);
}

#[test]
fn completions_left_in_a_queue_are_noted() {
    let mut script = connected();
    script.send(QP, signaled(1)).sent(QP, 1);
    script.ends();
    script.shows(410, &["1 completions", "1 completion queues"]);
    let mut script = connected();
    script.send(QP, signaled(1)).sent(QP, 1).call(Call::DestroyCq { cq: CQ });
    script.shows(410, &["CQ 4 was destroyed"]);
}

#[test]
fn flushed_receives_may_stay() {
    let mut script = connected();
    script.receive(QP, 1, &[]).fails(QP, Queue::Receive, 1, "IBV_WC_WR_FLUSH_ERR", Failure::Flushed);
    script.destroy_qp(QP);
    script.ends();
    script.keeps(410).keeps(411);
}

#[test]
fn completions_of_a_queue_pair_that_is_destroyed_are_noted() {
    let mut script = connected();
    script.send(QP, signaled(2)).sent(QP, 2).state(QP, "RESET", StateCause::Modify).destroy_qp(QP);
    script.shows(410, &["QP 0x11", "1 of its completions", "CQ 4"]);
    script.ends();
    assert_eq!(script.of(410).len(), 1);
}

#[test]
fn a_failure_that_is_never_polled_is_told_when_its_queue_pair_goes() {
    let mut script = connected();
    script.send(QP, signaled(5)).fails(QP, Queue::Send, 5, FAILED, GONE).keeps(411);
    script.destroy_qp(QP);
    script.shows(411, &["work request 5", "QP 0x11", FAILED, "CQ 4"]);
}

#[test]
fn a_failure_that_is_polled_is_heard() {
    let mut script = connected();
    script.send(QP, signaled(5)).fails(QP, Queue::Send, 5, FAILED, GONE);
    script.polls_status(CQ, 5, FAILED).destroy_qp(QP);
    script.ends();
    script.keeps(411).keeps(412);
}

#[test]
fn posting_on_after_a_polled_failure_is_told() {
    let mut script = connected();
    script.send(QP, signaled(5)).fails(QP, Queue::Send, 5, FAILED, GONE);
    script.state(QP, "ERR", StateCause::SendFailed { wr_id: 5, status: FAILED }).polls_status(CQ, 5, FAILED);
    (6..9).for_each(|wr_id| {
        script.send(QP, signaled(wr_id));
    });
    script.keeps(412);
    script.send(QP, signaled(9));
    script.shows(412, &["work request 5", FAILED, "4 more sends", "9 (SEND)", "to ERR"]);
}

#[test]
fn posting_on_after_the_queue_pair_was_connected_anew_is_fine() {
    let mut script = connected();
    script.send(QP, signaled(5)).fails(QP, Queue::Send, 5, FAILED, GONE);
    script.state(QP, "ERR", StateCause::SendFailed { wr_id: 5, status: FAILED }).polls_status(CQ, 5, FAILED);
    script.state(QP, "RESET", StateCause::Modify).connect(QP, 18);
    (6..16).for_each(|wr_id| {
        script.send(QP, signaled(wr_id));
    });
    script.keeps(412);
}

#[test]
fn arming_a_queue_without_a_channel_is_told() {
    arm(&mut connected(), CQ).shows(413, &["CQ 4", "no channel"]);
    arm(&mut with_channel(), WOKEN).keeps(413);
}

#[test]
fn events_that_nobody_reads_are_noted() {
    let mut script = with_channel();
    for message in 0..3 {
        arm(&mut script, WOKEN).received(QP, message, 8).polls(WOKEN, message);
    }
    script.ends();
    script.shows(414, &["CQ 10", "channel 9", "3 times"]);
    // Arming, and finding what was waited for when the queue is polled once more.
    let mut script = with_channel();
    arm(&mut script, WOKEN).received(QP, 0, 8).polls(WOKEN, 0);
    script.ends();
    script.keeps(414);
    let mut script = with_channel();
    get(arm(&mut script, WOKEN).received(QP, 0, 8), WOKEN).polls(WOKEN, 0);
    script.ends();
    script.keeps(414);
}

#[test]
fn sleeping_for_solicited_completions_beside_others_is_told() {
    let mut script = with_channel();
    script.call(Call::ArmCq { cq: WOKEN, solicited_only: true });
    wait(&mut script).received(QP, 0, 8).pass_ms(1_500);
    script.shows(415, &["CQ 10", "channel 9", "IBV_SEND_SOLICITED"]).keeps(405);
    let mut script = with_channel();
    wait(arm(&mut script, WOKEN)).received(QP, 0, 8).pass_ms(1_500);
    script.keeps(415);
}

#[test]
fn answering_an_event_by_polling_another_queue_is_told() {
    let other = 11;
    let answer = |polled: u32| {
        let mut script = with_channel();
        script.call(Call::CreateCq { cq: other, capacity: 64, wanted: 64, channel: Some(CHANNEL) });
        wait(arm(arm(&mut script, WOKEN), other)).received(QP, 0, 8);
        get(&mut script, WOKEN);
        if polled == WOKEN {
            script.polls(WOKEN, 0);
        }
        script.polls_nothing(polled);
        wait(&mut script);
        script
    };
    answer(other).shows(416, &["event of CQ 10", "polled CQ 11", "1 completions"]);
    answer(WOKEN).keeps(416);
}

#[test]
fn lists_of_signaled_work_are_told_and_lists_with_one_signal_are_not() {
    let lists = |all: bool| {
        let mut script = connected();
        for _ in 0..80 {
            let list: Vec<Send> =
                (0..8).map(|wr_id| Send { wr_id, signaled: all || wr_id == 7, ..Send::default() }).collect();
            script.send_list(QP, &list);
            (0..8).filter(|wr_id| all || *wr_id == 7).for_each(|wr_id| {
                script.sent(QP, wr_id).polls(CQ, wr_id);
            });
        }
        script
    };
    lists(true).shows(417, &["QP 0x11", "64 lists", "IBV_SEND_SIGNALED"]);
    lists(false).keeps(417);
}

#[test]
fn polling_one_at_a_time_is_told_where_many_wait() {
    let bursts = |burst: u64| {
        let mut script = connected();
        for _ in 0..100 {
            (0..burst).for_each(|wr_id| {
                script.receive(QP, wr_id, &[]).received(QP, wr_id, 8);
            });
            (0..burst).for_each(|wr_id| {
                script.polls(CQ, wr_id);
            });
        }
        script
    };
    bursts(16).shows(418, &["CQ 4", "256 times"]);
    bursts(4).keeps(418);
}

#[test]
fn polling_with_room_for_nothing_is_told_while_completions_wait() {
    let mut script = connected();
    script.call(Call::Poll { cq: CQ, room: 0, got: 0 }).keeps(419);
    script.send(QP, signaled(1)).sent(QP, 1).call(Call::Poll { cq: CQ, room: 0, got: 0 });
    script.shows(419, &["CQ 4", "1 wait"]);
}

#[test]
fn what_a_queue_holds_by_rounding_alone_is_told() {
    let receives = |count| {
        let mut script = Script::new();
        script.call(Call::CreateCq { cq: WOKEN, capacity: 8, wanted: 5, channel: None });
        script.qp_with(QP, NewPair { receive_cq: WOKEN, ..NewPair::default() }).connect(QP, 18);
        for wr_id in 0..count {
            script.receive(QP, wr_id, &[]);
        }
        script
    };
    receives(5).keeps(420).keeps(402);
    receives(6).shows(420, &["CQ 10", "6 work requests", "asked for 5 entries, and was granted 8"]).keeps(402);
    receives(9).shows(402, &["holds 8"]);
}

#[test]
fn what_an_extended_queue_was_not_made_for_is_told() {
    let mut script = Script::new();
    script.call(Call::ReadUnasked { cq: CQ, function: "ibv_wc_read_qp_num", flag: "IBV_WC_EX_WITH_QP_NUM" });
    script.shows(421, &["ibv_wc_read_qp_num", "CQ 4", "wc_flags lacks IBV_WC_EX_WITH_QP_NUM"]).keeps(422);
    script.call(Call::PollOutOfOrder { cq: CQ, function: "ibv_start_poll" });
    script.shows(422, &["CQ 4", "was not ended"]).keeps(423);
    script.call(Call::PollOutOfOrder { cq: CQ, function: "ibv_end_poll" });
    script.shows(423, &["CQ 4", "ENOENT"]);
}

#[test]
fn completions_that_are_left_while_the_program_waits_are_told() {
    let polls = |room: u32, times: u32| {
        let mut script = with_channel();
        for wr_id in 0..4 {
            script.received(QP, wr_id, 8);
        }
        arm(&mut script, WOKEN);
        for _ in 0..times {
            script.call(Call::Poll { cq: WOKEN, room, got: room.min(4) });
        }
        wait(&mut script);
        script
    };
    polls(1, 1).shows(424, &["CQ 10", "3 completions are left"]).keeps(404);
    polls(2, 2).keeps(424);
    polls(8, 1).keeps(424);
    // One that came after the queue was armed raises the event.
    let mut script = with_channel();
    script.received(QP, 0, 8).received(QP, 1, 8);
    arm(&mut script, WOKEN).received(QP, 2, 8).polls(WOKEN, 0);
    wait(&mut script).keeps(424);
}
