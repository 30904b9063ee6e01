//! Waiting for what cannot come: scripts that do, and the nearest that do not.

use crate::script::{CQ, NewPair, Script, Send};
use trace::{Call, Failure, Kind, Queue};
use wire::{Headers, Opcode, Psn, Qpn};

const QP: u32 = 17;
const CHANNEL: u32 = 9;
const WOKEN: u32 = 10;

fn connected() -> Script {
    let mut script = Script::new();
    script.qp(QP).connect(QP, 18);
    script
}

fn unsignaled(wr_id: u64, opcode: &'static str) -> Send {
    Send { wr_id, opcode, signaled: false, ..Send::default() }
}

/// A packet of the peer arrives.
fn arrives(script: &mut Script, opcode: Opcode) -> &mut Script {
    let headers = Headers::new(opcode, Qpn::new(QP), Psn::new(1));
    script.happens(Some(QP), Kind::PacketReceived { headers, payload_len: 0, packets: 1 })
}

/// The program polls and finds nothing, for so many seconds.
fn polls_for(script: &mut Script, cq: u32, seconds: u64) -> &mut Script {
    for _ in 0..seconds * 2 {
        script.polls_nothing(cq).pass_ms(500);
    }
    script
}

#[test]
fn a_poll_for_a_send_that_is_not_signaled_is_told_while_it_hangs() {
    let mut script = connected();
    script.send(QP, unsignaled(7, "RDMA_WRITE"));
    arrives(&mut script, Opcode::RcAcknowledge);
    polls_for(&mut script, CQ, 1).keeps(916);
    polls_for(&mut script, CQ, 2).shows(916, &["CQ 4", "work request 7 (RDMA_WRITE)", "for ever", "IBV_SEND_SIGNALED"]);
}

#[test]
fn a_send_that_completes_or_may_fail_is_waited_for_in_silence() {
    // Signaled, behind one that is not.
    let mut script = connected();
    script.send(QP, unsignaled(7, "SEND")).send(QP, Send { wr_id: 8, ..Send::default() });
    arrives(&mut script, Opcode::RcAcknowledge);
    polls_for(&mut script, CQ, 9).keeps(916).keeps(917);
    // The peer has acknowledged nothing: the work may fail, and that completes.
    let mut script = connected();
    script.send(QP, unsignaled(7, "SEND"));
    polls_for(&mut script, CQ, 9).keeps(916).keeps(917);
    // The program polled before and does other things now.
    let mut script = connected();
    script.send(QP, unsignaled(7, "SEND"));
    arrives(&mut script, Opcode::RcAcknowledge);
    script.polls_nothing(CQ);
    for _ in 0..20 {
        script.pass_ms(500);
    }
    script.keeps(916).keeps(917);
    // Another thread polls: a program that is written so knows what it does.
    let mut script = connected();
    script.send(QP, unsignaled(7, "SEND"));
    arrives(&mut script, Opcode::RcAcknowledge);
    script.thread(8);
    polls_for(&mut script, CQ, 9).keeps(916).keeps(917);
}

#[test]
fn where_the_peer_may_still_send_that_is_said_later_and_as_a_note() {
    let mut script = connected();
    script.receive(QP, 1, &[]).send(QP, unsignaled(7, "SEND"));
    arrives(&mut script, Opcode::RcAcknowledge);
    polls_for(&mut script, CQ, 4).keeps(916).keeps(917);
    polls_for(&mut script, CQ, 2).keeps(916).shows(917, &["work request 7 (SEND)", "1 receives are posted"]);
    // A message came before: the program lives by the peer's.
    let mut script = connected();
    script.receive(QP, 1, &[]).receive(QP, 2, &[]).send(QP, unsignaled(7, "SEND"));
    arrives(&mut script, Opcode::RcSendOnly);
    script.received(QP, 1, 8).polls(CQ, 1);
    polls_for(&mut script, CQ, 9).keeps(916).keeps(917);
}

#[test]
fn a_thread_that_sleeps_beside_its_own_unsignaled_send_is_told_of() {
    let sleeps = |signaled: bool| {
        let mut script = Script::new();
        script.channel_and_cq(CHANNEL, WOKEN, 64);
        script.qp_with(QP, NewPair { send_cq: WOKEN, ..NewPair::default() }).connect(QP, 18);
        // Receives complete elsewhere.
        script.receive(QP, 1, &[]).send(QP, Send { signaled, ..unsignaled(7, "SEND") });
        arrives(&mut script, Opcode::RcAcknowledge);
        script.call(Call::ArmCq { cq: WOKEN, solicited_only: false });
        script.call(Call::WaitCqEvent { channel: CHANNEL });
        for _ in 0..6 {
            script.pass_ms(500);
        }
        script
    };
    sleeps(false).shows(916, &["ibv_get_cq_event", "channel 9", "CQ 10"]);
    sleeps(true).keeps(916);
}

#[test]
fn a_receive_that_waits_for_a_write_is_told() {
    let waits = |opcode: Opcode, answers: bool| {
        let mut script = connected();
        script.receive(QP, 1, &[]);
        arrives(&mut script, opcode);
        if answers {
            script.send(QP, Send::default()).sent(QP, 1).polls(CQ, 1);
        }
        polls_for(&mut script, CQ, 4).keeps(918);
        polls_for(&mut script, CQ, 4);
        script
    };
    waits(Opcode::RcWriteOnly, false).shows(918, &["CQ 4", "1 WRITEs", "use up no receive", "WRITE_WITH_IMM"]);
    // This would have used one up, or the program has acted on what was written.
    waits(Opcode::RcWriteOnlyImmediate, false).keeps(918);
    waits(Opcode::RcWriteOnly, true).keeps(918);
}

/// A connection of the connection manager moves.
fn moves(script: &mut Script, local_comm_id: u32, to: &'static str) {
    script.happens(Some(QP), Kind::CmTransition { local_comm_id, from: "idle", to, message: None });
}

#[test]
fn a_request_that_nobody_answers_is_told_while_it_waits() {
    let offer = Call::CmOffer {
        function: "rdma_connect",
        id: 3,
        id_qpn: None,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        private_data_len: 0,
        offered_qpn: Some(Qpn::new(QP)),
    };
    let address = wire::Gid::from_ip([10, 0, 0, 99].into()).octets();
    let asks = || {
        let mut script = connected();
        let (function, space, port) = ("rdma_resolve_addr", "RDMA_PS_TCP", 7471);
        script.call(Call::CmPlace { function, id: 3, space, address, port });
        script.call(offer);
        moves(&mut script, 5, "REQ sent");
        script
    };
    asks().pass_ms(9_000).keeps(948);
    asks().pass_ms(11_000).shows(948, &["10.0.0.99, port 7471", "for 11 s", "4791"]);
    // The peer's program takes its time.
    let mut script = asks();
    moves(&mut script, 5, "MRA(REQ) received");
    script.pass_ms(60_000).keeps(948);
}

#[test]
fn a_disconnect_that_waits_for_a_peer_in_a_ring_is_told() {
    let mut script = connected();
    moves(&mut script, 5, "DREQ sent");
    moves(&mut script, 6, "DREQ received");
    script.pass_ms(9_000).keeps(949);
    script.pass_ms(2_000).shows(949, &["11 s ago", "has not answered either: 1 of its peers"]);
    let mut script = connected();
    moves(&mut script, 5, "DREQ sent");
    moves(&mut script, 5, "timewait");
    script.pass_ms(60_000).keeps(949);
}

#[test]
fn closed_is_waited_for_in_a_ring() {
    let ring = || {
        let mut script = connected();
        script.qp(19).connect(19, 20).call_on(QP, Call::AwaitClose {});
        script
    };
    ring().pass_ms(9_000).keeps(951);
    ring().pass_ms(11_000).shows(951, &["in closed()", "11 s", "is connected"]);
    // What the program waits for is all it has, or it waits for messages, too.
    let mut script = connected();
    script.call_on(QP, Call::AwaitClose {}).pass_ms(60_000).keeps(951);
    let mut script = ring();
    script.receive(19, 1, &[]).pass_ms(60_000).keeps(951);
}

/// What a script did in this line.
fn strike(what: &'static str) -> Kind {
    let (script, what) = (trace::Text::of("flap.toml"), trace::Text::of(what));
    Kind::Injected { script, line: 12, what, ends: false, missed: false }
}

#[test]
fn what_a_script_did_is_told_and_named_by_what_follows() {
    let mut script = connected();
    script.happens(None, strike("port-down"));
    script.shows(950, &["port-down", "injected by line 12 of flap.toml", "nothing:"]);
    // What follows says so, too; what comes much later does not.
    let failed = |after_ms: u64| {
        let mut script = connected();
        script.happens(None, strike("port-down")).pass_ms(after_ms);
        script.send(QP, send()).fails(QP, Queue::Send, 1, "IBV_WC_RETRY_EXC_ERR", no_answer());
        script
    };
    failed(500).shows(140, &["injected by line 12 of flap.toml: port-down", "before"]);
    let late = failed(120_000);
    assert!(late.of(140).iter().all(|finding| !finding.to_string().contains("injected")));
    // Of a strike on one queue pair the findings about others say nothing.
    let mut script = connected();
    script.qp(19).connect(19, 20).happens(Some(19), strike("qp-error"));
    script.send(QP, send()).fails(QP, Queue::Send, 1, "IBV_WC_RETRY_EXC_ERR", no_answer());
    assert!(script.of(140).iter().all(|finding| !finding.to_string().contains("injected")));
    // Work that the script itself let fail.
    let injected = Failure::Injected { line: 12, vendor: 129 };
    let mut script = connected();
    script.send(QP, send()).fails(QP, Queue::Send, 1, "IBV_WC_RETRY_EXC_ERR", injected);
    script.shows(950, &["RETRY_EXC_ERR", "injected by line 12"]);
    connected().pass_ms(60_000).keeps(950);
}

fn no_answer() -> Failure {
    Failure::NoAnswer { psn: Psn::new(100), tries: 8 }
}

fn send() -> Send {
    Send { wr_id: 1, ..Send::default() }
}
