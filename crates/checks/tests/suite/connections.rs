//! Connections: each rule of UV-05xx is broken by one script and kept by another.

use crate::script::{self, ALL_ACCESS, CQ, NewPair, Script, Send};
use trace::{Access, Call, DropReason, Failure, Kind, Queue, RetryCause, StateCause};
use wire::{Deth, Gid, Headers, Opcode, Pkey, Psn, Qkey, Qpn, Srqn};

/// Two queue pairs of one process: their numbers have the same upper bits.
const A: u32 = 0x12_3001;
const B: u32 = 0x12_3002;
const C: u32 = 0x12_3003;

/// A GID of the loopback, of another host, and one that is link-local.
const LOOPBACK: &str = "127.0.0.1";
const HOST: &str = "10.0.0.1";
const OTHER: &str = "10.0.0.2";

fn gid(address: &str) -> [u8; 16] {
    Gid::from_ip(address.parse().unwrap()).octets()
}

trait Connections {
    fn path(&mut self, qpn: u32, from: &str, to: &str, hop_limit: u8) -> &mut Self;
    fn pair_up(&mut self, from: &str, to: &str) -> &mut Self;
    fn both(&mut self) -> &mut Self;
    fn change(&mut self, qpn: u32, change: impl FnOnce(&mut Change)) -> &mut Self;
}

/// What tests change of a connection.
#[derive(Default)]
struct Change {
    path_mtu: Option<u32>,
    rq_psn: Option<u32>,
    sq_psn: Option<u32>,
    dest_qpn: Option<u32>,
    access: Option<Access>,
    max_rd_atomic: Option<u32>,
    timeout: Option<u8>,
    retry_cnt: Option<u8>,
    rnr_retry: Option<u8>,
    min_rnr_timer: Option<u8>,
}

impl Connections for Script {
    fn path(&mut self, qpn: u32, from: &str, to: &str, hop_limit: u8) -> &mut Script {
        self.call_on(qpn, Call::Path { sgid: Some(gid(from)), dgid: gid(to), hop_limit })
    }

    /// A and B, connected to each other as they should be, from one address to another.
    fn pair_up(&mut self, from: &str, to: &str) -> &mut Script {
        self.qp(A).qp(B).path(A, from, to, 64).path(B, to, from, 64);
        self.connect(A, B).connect(B, A)
    }

    /// A and B on the loopback.
    fn both(&mut self) -> &mut Script {
        self.pair_up(LOOPBACK, LOOPBACK)
    }

    /// Changes something once more, in whatever state.
    fn change(&mut self, qpn: u32, change: impl FnOnce(&mut Change)) -> &mut Script {
        let mut wanted = Change::default();
        change(&mut wanted);
        self.modify(qpn, |call| {
            let Call::ModifyQp {
                path_mtu,
                rq_psn,
                sq_psn,
                dest_qpn,
                access,
                max_rd_atomic,
                timeout,
                retry_cnt,
                rnr_retry,
                min_rnr_timer,
                ..
            } = call
            else {
                return;
            };
            (*path_mtu, *rq_psn, *sq_psn) = (wanted.path_mtu, wanted.rq_psn, wanted.sq_psn);
            (*dest_qpn, *access) = (wanted.dest_qpn.map(Qpn::new), wanted.access);
            (*max_rd_atomic, *timeout, *retry_cnt) = (wanted.max_rd_atomic, wanted.timeout, wanted.retry_cnt);
            (*rnr_retry, *min_rnr_timer) = (wanted.rnr_retry, wanted.min_rnr_timer);
        })
    }
}

fn headers(opcode: Opcode, psn: u32) -> Headers {
    Headers::new(opcode, Qpn::new(A), Psn::new(psn))
}

#[test]
fn a_connection_as_it_should_be_breaks_nothing() {
    let mut script = Script::new();
    script.both().receive(B, 1, &[]).send(A, Send::default()).sent(A, 1).received(B, 1, 0);
    script.polls(CQ, 1).polls(CQ, 1).destroy_qp(A).destroy_qp(B).ends();
    let broken: Vec<u16> = script.broken().into_iter().filter(|rule| rule / 100 == 5).collect();
    assert_eq!(broken, [0_u16; 0], "{:#?}", script.findings());
}

#[test]
fn path_mtus_that_differ_are_told_once() {
    let mut script = Script::new();
    script.both().change(A, |change| change.path_mtu = Some(4096)).ends();
    script.shows(501, &["QP 0x123001 has path MTU 4096", "QP 0x123002 has 1024", "active_mtu"]);
    assert_eq!(script.of(501).len(), 1);
}

#[test]
fn a_packet_says_that_the_peer_has_a_larger_mtu() {
    let mut script = Script::new();
    script.pair_up(HOST, OTHER).destroy_qp(B);
    let headers = headers(Opcode::RcSendFirst, 0);
    script.happens(Some(A), Kind::PacketReceived { headers, payload_len: 8192, packets: 2 });
    script.shows(501, &["sends packets of 4096 bytes", "path MTU is 1024"]);
}

#[test]
fn sequence_numbers_that_differ_are_told_for_the_direction() {
    let mut script = Script::new();
    script.both().change(B, |change| change.rq_psn = Some(9)).ends();
    script.shows(502, &["QP 0x123001 sends from sequence number 0", "QP 0x123002 expects 9 (rq_psn)"]);
    assert_eq!(script.of(502).len(), 1);
}

#[test]
fn a_first_packet_says_that_sequence_numbers_differ() {
    let first = |psn: u32| {
        let mut script = Script::new();
        script.pair_up(HOST, OTHER).destroy_qp(B).change(A, |change| change.rq_psn = Some(100));
        let headers = headers(Opcode::RcSendOnly, psn);
        script.happens(Some(A), Kind::PacketReceived { headers, payload_len: 8, packets: 1 });
        script
    };
    first(99).shows(502, &["sends from sequence number 99, but rq_psn is 100"]);
    first(100 + (1 << 20)).shows(502, &[]);
    // Packets before it may have been lost.
    first(103).keeps(502);
    first(100).keeps(502);
}

#[test]
fn unreliable_connections_begin_anywhere() {
    let mut script = Script::new();
    let uc = NewPair { kind: "UC", ..NewPair::default() };
    script.qp_with(A, uc).qp_with(B, uc).path(A, LOOPBACK, LOOPBACK, 64).path(B, LOOPBACK, LOOPBACK, 64);
    script.connect(A, B).connect(B, A).change(B, |change| change.rq_psn = Some(9)).ends();
    script.keeps(502);
}

fn datagrams() -> Script {
    let mut script = Script::new();
    let ud = NewPair { kind: "UD", ..NewPair::default() };
    script.qp_with(A, ud).qp_with(B, ud);
    script.ready_for_datagrams(A, 0x11).ready_for_datagrams(B, 0x22);
    script
}

fn datagram(script: &mut Script, to: u32, key: u32) {
    let call = Call::PostSend {
        wr_id: 5,
        opcode: "SEND",
        index: 0,
        signaled: true,
        inline: false,
        fence: false,
        solicited: false,
        pieces: script::pieces(&[]),
        remote_address: None,
        remote_key: None,
        remote_qpn: Some(Qpn::new(to)),
        remote_qkey: Some(Qkey::new(key)),
        remote_gid: Some(gid(LOOPBACK)),
    };
    script.call_on(A, call);
}

#[test]
fn a_datagram_shows_the_receivers_key() {
    let mut script = datagrams();
    datagram(&mut script, B, 0x22);
    script.keeps(503);
    // The sender's own key.
    datagram(&mut script, B, 0x8000_0000);
    script.shows(503, &["with Q_Key 0x11, but the Q_Key of QP 0x123002 is 0x22", "remote_qkey"]);
}

#[test]
fn a_receiver_says_which_key_it_wanted() {
    let mut script = datagrams();
    let deth = Deth { qkey: Qkey::new(0x33), src_qpn: Qpn::new(7) };
    let headers = Headers { deth: Some(deth), ..headers(Opcode::UdSendOnly, 0) };
    script.happens(Some(A), Kind::PacketDropped { headers: Some(headers), reason: DropReason::QkeyMismatch });
    script.shows(920, &["Q_Key 0x33, and the queue pair has 0x11", "QP 0x7 at the peer", "[UV-0920, UV-0503]"]);
}

#[test]
fn a_packet_of_another_partition_is_told() {
    let mut script = datagrams();
    let mut foreign = headers(Opcode::UdSendOnly, 0);
    foreign.bth.pkey = Pkey::new(0x8001);
    script.happens(Some(A), Kind::PacketDropped { headers: Some(foreign), reason: DropReason::PkeyMismatch });
    script.shows(504, &["shows P_Key 0x8001", "is 0xffff", "pkey_index"]);
    let mut script = datagrams();
    script.happens(Some(A), Kind::PacketDropped { headers: Some(foreign), reason: DropReason::NoReceive });
    script.keeps(504);
}

#[test]
fn a_peer_must_exist() {
    let mut script = Script::new();
    script.qp(A).path(A, LOOPBACK, LOOPBACK, 64).connect(A, C).ends();
    script.shows(505, &["is connected to QP 0x123003, which does not exist", "0x123000 to 0x123fff", "dest_qp_num"]);
    // Another process, or another host, may have it.
    for (to, peer) in [(LOOPBACK, 0x45_6001), (OTHER, C)] {
        let mut script = Script::new();
        script.qp(A).path(A, LOOPBACK, to, 64).connect(A, peer).ends();
        script.keeps(505);
    }
}

#[test]
fn a_destroyed_peer_is_told_as_such() {
    let mut script = Script::new();
    script.qp(A).qp(B).destroy_qp(B).path(A, LOOPBACK, LOOPBACK, 64).connect(A, B).ends();
    script.shows(505, &["this program had QP 0x123002 and destroyed it"]);
    // Taking connections down one by one is no mistake.
    let mut script = Script::new();
    script.both().destroy_qp(B).modify(A, |call| {
        let Call::ModifyQp { state, .. } = call else { return };
        *state = Some("ERR");
    });
    script.destroy_qp(A).ends();
    script.keeps(505);
}

/// What another process says of its queue pair.
fn seen(process: u32, dest: u32) -> Call {
    Call::PeerSeen {
        peer: Qpn::new(0x45_6001),
        process,
        kind: if process == 0 { "" } else { "RC" },
        state: if process == 0 { "" } else { "RTS" },
        dest_qpn: Some(Qpn::new(dest)),
        path_mtu: Some(4096),
        rq_psn: Some(5),
        sq_psn: Some(0),
        qkey: None,
        access: Some(Access::LOCAL_WRITE),
        max_rd_atomic: Some(16),
        max_dest_rd_atomic: Some(1),
        dgid: Some(gid(LOOPBACK)),
    }
}

#[test]
fn another_process_says_what_its_end_is() {
    let with = |call: Call| {
        let mut script = Script::new();
        script.qp(A).path(A, LOOPBACK, LOOPBACK, 64).connect(A, 0x45_6001).call_on(A, call);
        script.send(A, Send { opcode: "RDMA_WRITE", ..Send::default() }).ends();
        script
    };
    with(seen(0, 0)).shows(505, &["no process of this host has QP 0x456001"]);
    with(seen(77, C)).shows(506, &["QP 0x456001 of process 77", "connected to QP 0x123003"]);
    let script = with(seen(77, A));
    script.shows(501, &["QP 0x123001 has path MTU 1024, and its peer QP 0x456001 of process 77 has 4096"]);
    script.shows(502, &["QP 0x123001 sends from sequence number 0", "expects 5"]);
    script.shows(518, &["max_rd_atomic"]).shows(519, &["RDMA_WRITE", "REMOTE_WRITE"]).keeps(505).keeps(506);
}

#[test]
fn two_queue_pairs_cannot_have_the_same_peer() {
    let mut script = Script::new();
    script.both().qp(C).path(C, LOOPBACK, LOOPBACK, 64).connect(C, B).ends();
    script.shows(506, &["QP 0x123003 is connected to QP 0x123002, but that is connected to QP 0x123001"]);
    assert_eq!(script.of(506).len(), 1);
}

#[test]
fn both_ends_are_of_one_type() {
    let mut script = Script::new();
    script.qp(A).qp_with(B, NewPair { kind: "UC", ..NewPair::default() });
    script.path(A, LOOPBACK, LOOPBACK, 64).path(B, LOOPBACK, LOOPBACK, 64).connect(A, B).connect(B, A).ends();
    script.shows(507, &["is of type RC", "is of type UC", "qp_type"]);
    let mut script = Script::new();
    script.qp_with(A, NewPair { kind: "XRC_SEND", ..NewPair::default() });
    script.qp_with(B, NewPair { kind: "XRC_RECV", ..NewPair::default() });
    script.path(A, LOOPBACK, LOOPBACK, 64).path(B, LOOPBACK, LOOPBACK, 64).connect(A, B).connect(B, A).ends();
    script.keeps(507);
}

#[test]
fn packets_come_from_where_the_peer_expects_them() {
    let mut script = Script::new();
    script.qp(A).qp(B).path(A, HOST, OTHER, 64).path(B, OTHER, "10.0.0.3", 64).connect(A, B).connect(B, A).ends();
    script.shows(508, &["sends from 10.0.0.1", "expects it at 10.0.0.3", "sgid_index"]);
    let mut script = Script::new();
    script.pair_up(HOST, OTHER).ends();
    script.keeps(508);
}

#[test]
fn addresses_fit_together() {
    let with = |from: &str, to: &str, hop_limit: u8| {
        let mut script = Script::new();
        script.qp(A).path(A, from, to, hop_limit).ends();
        script
    };
    with(HOST, "fd00::1", 64).shows(509, &["from 10.0.0.1 to fd00::1", "sgid_index"]);
    with(HOST, OTHER, 64).keeps(509).keeps(510).keeps(511);
    with("fe80::1", "fd00::1", 64).shows(510, &["link-local address fe80::1"]).keeps(509);
    with("fe80::1", "fe80::2", 1).keeps(510).keeps(511);
    with(HOST, OTHER, 1).shows(511, &["hop limit 1"]);
    with(LOOPBACK, LOOPBACK, 1).keeps(511);
}

#[test]
fn timers_and_counts_are_looked_at() {
    let with = |change: fn(&mut Change)| {
        let mut script = Script::new();
        script.both().change(A, change).ends();
        script
    };
    with(|change| change.retry_cnt = Some(0)).shows(512, &["retry_cnt 0", "set retry_cnt"]);
    with(|change| change.rnr_retry = Some(0)).shows(513, &["rnr_retry 0"]);
    with(|change| change.timeout = Some(0)).shows(514, &["waits without end", "never"]);
    with(|change| change.timeout = Some(24)).shows(515, &["after 549 s", "sent 8 times"]);
    with(|change| change.timeout = Some(3)).shows(516, &["after 32 us"]);
    with(|change| change.min_rnr_timer = Some(0)).shows(517, &["655.36 ms"]);
    let kept = with(|change| {
        (change.retry_cnt, change.rnr_retry, change.timeout, change.min_rnr_timer) =
            (Some(1), Some(1), Some(22), Some(1));
    });
    (512..=517).for_each(|rule| {
        kept.keeps(rule);
    });
}

#[test]
fn what_the_connection_manager_chooses_is_not_the_programs_fault() {
    let mut script = Script::new();
    script.qp(A).call_on(A, Call::CmMovesQp { id: 1, state: "RTR" });
    script.change(A, |change| (change.min_rnr_timer, change.retry_cnt) = (Some(0), Some(0)));
    script.keeps(517).shows(512, &["retry_count of rdma_conn_param"]);
    // The end that accepts retries as often as the peer's rdma_connect asked for.
    let mut script = Script::new();
    let event = "RDMA_CM_EVENT_CONNECT_REQUEST";
    script.call(Call::CmEvent { event, id: 1, listen_id: Some(2), status: 0, id_qpn: None });
    script.qp(A).call_on(A, Call::CmMovesQp { id: 1, state: "RTS" });
    script.change(A, |change| (change.retry_cnt, change.rnr_retry) = (Some(0), Some(0)));
    script.shows(512, &["at the peer, set retry_count", "rdma_accept cannot change it"]);
    script.shows(513, &["at the peer, set rnr_retry_count"]);
}

#[test]
fn a_number_of_a_queue_pair_has_24_bits() {
    let mut script = Script::new();
    script.qp(A).qp(B).call_on(A, Call::NumberCut { given: B.swap_bytes() });
    script
        .shows(530, &["0x2301200", "with its bytes in reverse it is 0x123002, which is a queue pair of this program"]);
    let mut script = Script::new();
    script.both();
    script.keeps(530);
}

#[test]
fn why_a_queue_pair_failed_is_told_in_words() {
    for (name, words) in [("unknown_key", "no region or window has this key"), ("out_of_bounds", "outside the region")]
    {
        let mut script = Script::new();
        let cause = StateCause::PeerRequest(name);
        script.both().state(A, "ERR", cause).ends();
        script.shows(525, &["it is in ERR because: the peer's request", words]);
    }
}

#[test]
fn a_peer_answers_as_many_reads_as_are_asked() {
    let mut script = Script::new();
    script.both().change(A, |change| change.max_rd_atomic = Some(16)).ends();
    script.shows(518, &["QP 0x123001 may have 16 READs", "QP 0x123002 answers 4 at a time"]);
    let mut script = Script::new();
    script.both().change(A, |change| change.max_rd_atomic = Some(2)).ends();
    script.keeps(518);
}

#[test]
fn the_peers_queue_pair_grants_the_operation() {
    for (opcode, right) in [
        ("RDMA_WRITE", Access::REMOTE_WRITE),
        ("RDMA_READ", Access::REMOTE_READ),
        ("ATOMIC_FETCH_AND_ADD", Access::REMOTE_ATOMIC),
    ] {
        let with = |access: Access| {
            let mut script = Script::new();
            script.both().change(B, |change| change.access = Some(access));
            script.send(A, Send { opcode, ..Send::default() });
            script
        };
        with(ALL_ACCESS.difference(right)).shows(519, &[opcode, &format!("IBV_ACCESS_{right}")]);
        with(right).keeps(519);
    }
}

#[test]
fn a_sender_that_waits_without_end_is_told() {
    let with = |left: Option<u8>, completes: bool| {
        let mut script = Script::new();
        script.both().send(A, Send { wr_id: 3, ..Send::default() });
        script.happens(Some(A), Kind::Retry { cause: RetryCause::RnrNak, from: Psn::new(0), left });
        if completes {
            script.sent(A, 3);
        }
        script.pass_ms(500).keeps(520);
        script.pass_ms(600);
        script
    };
    with(None, false)
        .shows(520, &["work request 3 (SEND) on QP 0x123001 waits", "QP 0x123002, has never had a receive"]);
    with(Some(6), false).keeps(520);
    with(None, true).keeps(520);
}

#[test]
fn work_waits_for_a_peer_that_can_receive() {
    let mut script = Script::new();
    script.qp(A).qp(B).path(A, LOOPBACK, LOOPBACK, 64).init(B).connect(A, B).send(A, Send::default());
    script.shows(521, &["while its peer QP 0x123002 is in INIT"]);
    let mut script = Script::new();
    script.both().send(A, Send::default());
    script.keeps(521);
}

#[test]
fn a_queue_pair_with_work_is_brought_to_where_it_works() {
    let mut script = Script::new();
    script.qp(A).init(A).send_refused(A, &Send { wr_id: 8, ..Send::default() }, "wrong_state").ends();
    script.shows(522, &["stayed in INIT: 1 sends were refused, the first is 8"]);
    let mut script = Script::new();
    script.qp(A).init(A).receive(A, 1, &[]).destroy_qp(A);
    script.shows(522, &["stayed in INIT, with 1 receives"]);
    // A receive that was refused is no send.
    let refused = |script: &mut Script| {
        let kind = Kind::PostRefused { wr_id: 8, queue: Queue::Receive, reason: "wrong_state" };
        _ = script.qp(A).happens(Some(A), kind);
    };
    let mut script = Script::new();
    refused(&mut script);
    script.destroy_qp(A).shows(522, &["stayed in RESET: 1 receives were refused, the first is 8", "ibv_post_recv"]);
    let mut script = Script::new();
    refused(&mut script);
    script.init(A).destroy_qp(A).keeps(522);
    // One that only receives may stay in RTR.
    let mut script = Script::new();
    script.qp(A).qp(B).init(A).receive(A, 1, &[]).rtr(A, B).ends();
    script.keeps(522);
    let mut script = Script::new();
    script.qp(A).qp(B).init(A).send_refused(A, &Send::default(), "wrong_state").rtr(A, B).rts(A).ends();
    script.keeps(522);
}

fn failed(script: &mut Script, to: &'static str) {
    let status = "IBV_WC_RETRY_EXC_ERR";
    script.fails(A, Queue::Send, 1, status, Failure::NoAnswer { psn: Psn::new(0), tries: 8 });
    script.state(A, to, StateCause::SendFailed { wr_id: 1, status });
}

#[test]
fn a_stopped_send_queue_is_started_again_before_work_is_posted() {
    let mut script = datagrams();
    script.send(A, Send::default());
    failed(&mut script, "SQE");
    script.send(A, Send { wr_id: 2, ..Send::default() });
    script.shows(523, &["work request 2 (SEND)", "SQE", "work request 1 failed"]);
    let mut script = datagrams();
    script.send(A, Send::default());
    failed(&mut script, "SQE");
    script.modify(A, |call| {
        let Call::ModifyQp { state, .. } = call else { return };
        *state = Some("RTS");
    });
    script.send(A, Send { wr_id: 2, ..Send::default() });
    script.keeps(523);
}

fn reset() -> Call {
    let mut call = script::no_change();
    if let Call::ModifyQp { state, .. } = &mut call {
        *state = Some("RESET");
    }
    call
}

#[test]
fn a_failure_is_looked_at_and_ends_the_work() {
    let polled = Call::Polled { cq: CQ, wr_id: 1, status: "IBV_WC_RETRY_EXC_ERR" };
    let mut script = Script::new();
    script.both().send(A, Send::default());
    failed(&mut script, "ERR");
    script.call_on(A, polled).receive(A, 9, &[]);
    script.shows(524, &["work request 9 (RECV)", "has polled the failure"]).keeps(525);
    script.ends();
    script.keeps(525);
    // It cannot know yet; and never asks.
    let mut script = Script::new();
    script.both().send(A, Send::default());
    failed(&mut script, "ERR");
    script.receive(A, 9, &[]).keeps(524);
    script.ends();
    script.keeps(525);
    // The peer's fault has no completion here.
    let mut script = Script::new();
    script.both().state(A, "ERR", StateCause::PeerRequest("no")).ends();
    script.shows(525, &["QP 0x123001 failed, and the program never looked", "the peer's request was in error: no"]);
    // The library resets a queue pair before it destroys it; a program that resets one knows.
    for destroys in [true, false] {
        let mut script = Script::new();
        script.both().state(A, "ERR", StateCause::PeerRequest("no")).state(A, "RESET", StateCause::Modify);
        if destroys {
            script.destroy_qp(A).shows(525, &["it is in ERR because"]);
        } else {
            script.call_on(A, reset()).destroy_qp(A).keeps(525);
        }
    }
    // The program moved it itself.
    let mut script = Script::new();
    script.both().state(A, "ERR", StateCause::Modify).receive(A, 9, &[]).ends();
    script.keeps(524).keeps(525);
}

#[test]
fn a_datagram_goes_to_a_queue_pair_for_datagrams() {
    let mut script = datagrams();
    datagram(&mut script, C, 0x22);
    script.shows(526, &["QP 0x123003 at 127.0.0.1, which does not exist"]);
    let mut script = datagrams();
    script.qp(C);
    datagram(&mut script, C, 0x22);
    script.shows(526, &["which is of type RC"]);
    let mut script = datagrams();
    script.state(B, "RESET", StateCause::Modify);
    datagram(&mut script, B, 0x22);
    script.shows(526, &["which is in RESET"]);
    let mut script = datagrams();
    datagram(&mut script, B, 0x22);
    datagram(&mut script, 1, 0x8001_0000);
    script.keeps(526);
}

const NOT_READY: Kind = Kind::NakSent { psn: Psn::new(0), code: "receiver not ready" };

#[test]
fn the_first_receive_is_posted_before_the_peer_sends() {
    let mut script = Script::new();
    script.both().happens(Some(B), NOT_READY);
    script.shows(527, &["QP 0x123002 before the program had posted any receive"]);
    let mut script = Script::new();
    script.both().receive(B, 1, &[]).received(B, 1, 0).happens(Some(B), NOT_READY);
    script.keeps(527);
}

#[test]
fn a_shared_queue_that_runs_empty_is_told() {
    let with = |receives: u64| {
        let mut script = Script::new();
        script.srq(9, 32).qp(A).qp_with(B, NewPair { srq: Some(9), ..NewPair::default() });
        script.path(A, LOOPBACK, LOOPBACK, 64).path(B, LOOPBACK, LOOPBACK, 64).connect(A, B).connect(B, A);
        (0..receives).for_each(|wr_id| {
            script.receive_shared(9, wr_id, &[]);
        });
        script.happens(Some(B), NOT_READY);
        script
    };
    with(0).shows(528, &["SRQ 9 had no receive left", "holds 32"]).keeps(527);
    with(1).keeps(528);
}

#[test]
fn a_limit_is_set_again_after_its_event() {
    let with = |sets_again: bool| {
        let mut script = Script::new();
        script.srq(9, 32).qp_with(B, NewPair { srq: Some(9), ..NewPair::default() }).connect(B, A);
        let limit = Call::ModifySrq { srq: Srqn::new(9), limit: Some(2), max_wr: None };
        script.receive_shared(9, 1, &[]).receive_shared(9, 2, &[]).call(limit);
        script.completes(B, Queue::SharedReceive, 1, "RECV", 0);
        script.call(Call::GetAsyncEvent { event: "IBV_EVENT_SRQ_LIMIT_REACHED", about: 9 });
        script.keeps(529);
        script.receive_shared(9, 3, &[]);
        if sets_again {
            script.call(limit);
        }
        script.completes(B, Queue::SharedReceive, 2, "RECV", 0).ends();
        script
    };
    with(false).shows(529, &["SRQ 9 has 1 receives, fewer than its limit of 2", "ibv_modify_srq"]);
    with(true).keeps(529);
}
