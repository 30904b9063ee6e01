//! The connection manager: each rule of UV-07xx is broken by one script and kept by another.

use crate::script::{NewPair, Script, Send};
use trace::{Call, Kind};
use wire::{Psn, Qkey, Qpn};

const ID: u64 = 0x7f00_1000;
const LISTENER: u64 = 0x7f00_2000;
const CHANNEL: u64 = 0x7f00_3000;
const A: u32 = 0x12_3001;

trait Manager {
    fn cm(&mut self, function: &'static str) -> &mut Self;
    fn event(&mut self, event: &'static str) -> &mut Self;
    fn ack(&mut self, event: &'static str) -> &mut Self;
    fn offer(&mut self, function: &'static str, initiator_depth: u8, retries: u8) -> &mut Self;
    fn makes_pair(&mut self, kind: &'static str) -> &mut Self;
    fn requested(&mut self) -> &mut Self;
    fn accepted(&mut self) -> &mut Self;
    fn connected(&mut self) -> &mut Self;
    fn taken_down(&mut self) -> &mut Self;
}

impl Manager for Script {
    /// A call for [`ID`].
    fn cm(&mut self, function: &'static str) -> &mut Script {
        self.call(Call::CmCall { function, id: ID, id_qpn: None })
    }

    /// Takes an event of [`ID`] and keeps it.
    fn event(&mut self, event: &'static str) -> &mut Script {
        let listen_id = event.ends_with("REQUEST").then_some(LISTENER);
        self.call(Call::CmEvent { event, id: ID, listen_id, status: 0, id_qpn: None })
    }

    /// Takes an event and acknowledges it.
    fn ack(&mut self, event: &'static str) -> &mut Script {
        self.event(event).call(Call::CmAck { event, id: ID })
    }

    fn offer(&mut self, function: &'static str, initiator_depth: u8, retries: u8) -> &mut Script {
        self.call(Call::CmOffer {
            function,
            id: ID,
            id_qpn: Some(Qpn::new(A)),
            responder_resources: 1,
            initiator_depth,
            retry_count: retries,
            rnr_retry_count: 7,
            private_data_len: 0,
            offered_qpn: Some(Qpn::new(A)),
        })
    }

    fn makes_pair(&mut self, kind: &'static str) -> &mut Script {
        self.qp_with(A, NewPair { kind, ..NewPair::default() });
        self.call_on(A, Call::CmMovesQp { id: ID, state: "INIT" }).init(A)
    }

    /// A peer asks for a connection that may have four READs under way.
    fn requested(&mut self) -> &mut Script {
        let event = "RDMA_CM_EVENT_CONNECT_REQUEST";
        self.ack(event).call(Call::CmPeer {
            event,
            id: ID,
            responder_resources: Some(4),
            initiator_depth: Some(4),
            peer_qpn: None,
            peer_qkey: None,
        })
    }

    fn accepted(&mut self) -> &mut Script {
        self.requested().makes_pair("RC").offer("rdma_accept", 4, 7)
    }

    fn connected(&mut self) -> &mut Script {
        self.accepted().ack("RDMA_CM_EVENT_ESTABLISHED")
    }

    fn taken_down(&mut self) -> &mut Script {
        self.cm("rdma_disconnect").ack("RDMA_CM_EVENT_DISCONNECTED").destroy_qp(A);
        self.cm("rdma_destroy_qp").cm("rdma_destroy_id")
    }
}

#[test]
fn a_connection_as_it_should_be_breaks_nothing() {
    let mut script = Script::new();
    script.call(Call::CmChannel { id: ID, channel: CHANNEL, synchronous: false }).cm("rdma_create_id");
    script.cm("rdma_resolve_addr").ack("RDMA_CM_EVENT_ADDR_RESOLVED");
    script.cm("rdma_resolve_route").ack("RDMA_CM_EVENT_ROUTE_RESOLVED").makes_pair("RC").receive(A, 1, &[]);
    script.offer("rdma_connect", 4, 7).ack("RDMA_CM_EVENT_ESTABLISHED").send(A, Send::default()).sent(A, 1);
    script.taken_down();
    script.call(Call::CmCall { function: "rdma_destroy_event_channel", id: CHANNEL, id_qpn: None }).ends();
    let broken: Vec<u16> = script.broken().into_iter().filter(|rule| rule / 100 == 7).collect();
    assert_eq!(broken, [0_u16; 0], "{:#?}", script.findings());
}

#[test]
fn calls_wait_for_the_event_of_the_call_before() {
    let mut script = Script::new();
    script.cm("rdma_create_id").cm("rdma_resolve_addr").cm("rdma_resolve_route");
    script.shows(701, &["0x7f001000", "before RDMA_CM_EVENT_ADDR_RESOLVED was taken", "EINVAL"]);
    script.ack("RDMA_CM_EVENT_ADDR_RESOLVED").makes_pair("RC").offer("rdma_connect", 1, 7);
    script.shows(702, &["rdma_connect", "before RDMA_CM_EVENT_ROUTE_RESOLVED was taken"]);
}

#[test]
fn an_id_that_waits_by_itself_needs_no_events() {
    let mut script = Script::new();
    script.call(Call::CmChannel { id: ID, channel: CHANNEL, synchronous: true });
    script.cm("rdma_resolve_addr").cm("rdma_resolve_route").offer("rdma_connect", 1, 7);
    script.keeps(701).keeps(702);
}

#[test]
fn events_are_acknowledged() {
    let mut script = Script::new();
    script.cm("rdma_resolve_addr").event("RDMA_CM_EVENT_ADDR_RESOLVED");
    script.call(Call::WaitForAcks { object: "id", number: ID, missing: 1 });
    script.shows(703, &["1 of its events", "1 RDMA_CM_EVENT_ADDR_RESOLVED of id 0x7f001000", "rdma_ack_cm_event"]);
    script.ends();
    script.shows(705, &["1 events", "RDMA_CM_EVENT_ADDR_RESOLVED"]);
    let mut script = Script::new();
    script.cm("rdma_resolve_addr").ack("RDMA_CM_EVENT_ADDR_RESOLVED");
    script.call(Call::WaitForAcks { object: "id", number: ID, missing: 0 }).ends();
    script.keeps(703).keeps(705);
}

#[test]
fn another_thread_may_acknowledge_in_a_moment() {
    let mut script = Script::new();
    script.thread(2).cm("rdma_resolve_addr").event("RDMA_CM_EVENT_ADDR_RESOLVED");
    script.thread(1).call(Call::WaitForAcks { object: "id", number: ID, missing: 1 }).keeps(703);
    script.thread(2).ack("RDMA_CM_EVENT_ADDR_RESOLVED").thread(1).cm("rdma_destroy_id").pass_ms(2_000);
    script.keeps(703);
    let mut script = Script::new();
    script.thread(2).cm("rdma_resolve_addr").event("RDMA_CM_EVENT_ADDR_RESOLVED");
    script.thread(1).call(Call::WaitForAcks { object: "id", number: ID, missing: 1 }).pass_ms(2_000);
    script.shows(703, &["1 of its events"]);
}

#[test]
fn an_event_is_acknowledged_once() {
    let mut script = Script::new();
    script.refused(None, "rdma_ack_cm_event", 22, "the program does not have this event");
    script.shows(704, &["the program does not have this event", "once"]);
    let mut script = Script::new();
    script.refused(None, "rdma_connect", 22, "no");
    script.keeps(704);
}

#[test]
fn a_request_is_answered() {
    let mut script = Script::new();
    script.requested().pass_ms(9_000).keeps(706);
    script.pass_ms(2_000).shows(706, &["neither accepted nor rejected", "event->id"]);
    // The peer has given up.
    let mut script = Script::new();
    script.requested().refused(None, "rdma_reject", 22, "rejecting is not possible for an id that is at its end");
    script.pass_ms(12_000).keeps(706);
    for answer in ["rdma_reject", "rdma_accept", "rdma_destroy_id"] {
        let mut script = Script::new();
        script.requested();
        match answer {
            "rdma_accept" => script.offer(answer, 1, 7),
            _ => script.cm(answer),
        };
        script.ends();
        script.keeps(706);
    }
}

#[test]
fn a_disconnect_is_answered() {
    let mut script = Script::new();
    script.connected().ack("RDMA_CM_EVENT_DISCONNECTED").ends();
    script.shows(707, &["got RDMA_CM_EVENT_DISCONNECTED", "rdma_disconnect"]);
    let mut script = Script::new();
    script.connected().ack("RDMA_CM_EVENT_DISCONNECTED").cm("rdma_disconnect").ends();
    script.keeps(707);
    // The peer did not end it.
    let mut script = Script::new();
    script.connected().taken_down().ends();
    script.keeps(707).keeps(708);
}

#[test]
fn a_connection_is_ended_before_its_id() {
    let mut script = Script::new();
    script.connected().destroy_qp(A).cm("rdma_destroy_qp").cm("rdma_destroy_id");
    script.shows(708, &["0x7f001000 is destroyed while its connection stands"]).keeps(712);
    let mut script = Script::new();
    script.connected().ack("RDMA_CM_EVENT_DISCONNECTED").destroy_qp(A).cm("rdma_destroy_id");
    script.keeps(708);
    // The peer died, and the program did not wait for the event.
    let mut script = Script::new();
    let by = trace::ConnectionEnd::PeerDied;
    script.connected().happens(Some(A), Kind::ConnectionEnded { local_comm_id: 1, by });
    script.destroy_qp(A).cm("rdma_destroy_qp").cm("rdma_destroy_id");
    script.keeps(708);
}

const NOT_READY: Kind = Kind::NakSent { psn: Psn::new(0), code: "receiver not ready" };

#[test]
fn receives_are_posted_before_the_peer_is_accepted() {
    let mut script = Script::new();
    script.connected().happens(Some(A), NOT_READY);
    script.shows(709, &["QP 0x123001 (id 0x7f001000)", "before rdma_accept"]).keeps(527);
    let mut script = Script::new();
    script.requested().makes_pair("RC").receive(A, 1, &[]).offer("rdma_accept", 1, 7).received(A, 1, 0);
    script.happens(Some(A), NOT_READY);
    script.keeps(709);
}

#[test]
fn an_acceptor_takes_no_more_reads_than_the_peer_offers() {
    let with = |depth: u8| {
        let mut script = Script::new();
        script.requested().makes_pair("RC").offer("rdma_accept", depth, 7);
        script
    };
    with(5).shows(710, &["initiator_depth 5, but the peer answers 4"]);
    with(4).keeps(710);
    with(0xff).keeps(710);
}

#[test]
fn retry_counts_have_three_bits() {
    let mut script = Script::new();
    script.requested().offer("rdma_accept", 1, 8);
    script.shows(711, &["retry_count 8", "which are 0"]);
    let mut script = Script::new();
    script.requested().offer("rdma_accept", 1, 7);
    script.keeps(711);
}

#[test]
fn a_queue_pair_goes_before_its_id() {
    let mut script = Script::new();
    script.connected().cm("rdma_disconnect").cm("rdma_destroy_id");
    script.shows(712, &["QP 0x123001, still exists", "rdma_destroy_qp"]);
    let mut script = Script::new();
    script.connected().taken_down();
    script.keeps(712);
}

#[test]
fn the_connection_manager_moves_its_queue_pairs_alone() {
    let mut script = Script::new();
    script.connected().rtr(A, 7);
    script.shows(714, &["moves QP 0x123001 to RTR itself", "rdma_init_qp_attr"]);
    let mut script = Script::new();
    script.connected().call_on(A, Call::CmMovesQp { id: ID, state: "RTR" }).rtr(A, 7);
    // An end by hand is as good as any.
    script.modify(A, |call| {
        let Call::ModifyQp { state, .. } = call else { return };
        *state = Some("ERR");
    });
    script.keeps(714);
}

#[test]
fn a_datagram_shows_the_key_of_the_event() {
    let with = |key: u32| {
        let mut script = Script::new();
        let event = "RDMA_CM_EVENT_ESTABLISHED";
        script.makes_pair("UD").ack(event).call(Call::CmPeer {
            event,
            id: ID,
            responder_resources: None,
            initiator_depth: None,
            peer_qpn: Some(Qpn::new(9)),
            peer_qkey: Some(Qkey::new(0x0123_4567)),
        });
        script.send(A, Send { remote_qpn: Some(9), remote_qkey: Some(key), ..Send::default() });
        script
    };
    with(0x1111).shows(715, &["Q_Key 0x1111", "told Q_Key 0x1234567 for QP 0x9", "param.ud.qkey"]);
    with(0x0123_4567).keeps(715).keeps(718);
}

#[test]
fn a_group_is_left() {
    let mut script = Script::new();
    script.ack("RDMA_CM_EVENT_MULTICAST_JOIN").cm("rdma_destroy_id");
    script.shows(716, &["in 1 multicast groups"]);
    let mut script = Script::new();
    script.ack("RDMA_CM_EVENT_MULTICAST_JOIN").cm("rdma_leave_multicast").cm("rdma_destroy_id");
    script.keeps(716);
}

#[test]
fn nothing_is_posted_for_a_connection_that_has_ended() {
    for event in ["RDMA_CM_EVENT_DISCONNECTED", "RDMA_CM_EVENT_REJECTED"] {
        let mut script = Script::new();
        script.connected().ack(event).send(A, Send::default());
        script.shows(717, &["work request 1 (SEND)", event]);
    }
    let mut script = Script::new();
    script.connected().send(A, Send::default());
    script.keeps(717).keeps(718);
}

#[test]
fn an_acceptor_sends_after_the_peer_is_ready() {
    let mut script = Script::new();
    script.accepted().send(A, Send::default());
    script.shows(718, &["before RDMA_CM_EVENT_ESTABLISHED was taken"]);
    // A message of the peer says the same.
    let mut script = Script::new();
    script.accepted().receive(A, 1, &[]).received(A, 1, 0).send(A, Send::default());
    script.keeps(718);
}

#[test]
fn a_connection_has_a_queue_pair() {
    let offer = |function, offered_qpn| {
        let mut script = Script::new();
        script.call(Call::CmOffer {
            function,
            id: ID,
            id_qpn: None,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data_len: 0,
            offered_qpn,
        });
        script
    };
    for function in ["rdma_connect", "rdma_accept"] {
        offer(function, Some(Qpn::SMI)).shows(720, &[function, "QP 0", "rdma_create_qp"]);
        // A queue pair of the program's own, and a request for one of datagrams.
        offer(function, Some(Qpn::new(A))).keeps(720);
        offer(function, None).keeps(720);
    }
}

#[test]
fn a_channel_goes_after_its_ids() {
    let with = |first: &'static str| {
        let mut script = Script::new();
        script.call(Call::CmChannel { id: ID, channel: CHANNEL, synchronous: false }).cm(first);
        script.call(Call::CmCall { function: "rdma_destroy_event_channel", id: CHANNEL, id_qpn: None });
        script
    };
    with("rdma_create_id").shows(719, &["1 ids report to the channel", "rdma_migrate_id"]);
    with("rdma_destroy_id").keeps(719);
}

#[test]
fn what_an_acknowledged_event_pointed_to_is_recognized() {
    let post = |acknowledges: bool, remote| {
        let mut script = Script::new();
        script.qp(17).connect(17, 18);
        if acknowledges {
            let (event, id) = ("RDMA_CM_EVENT_ESTABLISHED", 3);
            script.call(Call::CmEvent { event, id, listen_id: None, status: 0, id_qpn: None });
            script.call(Call::CmAck { event, id });
        }
        script.send(17, Send { opcode: "RDMA_WRITE", remote: Some(remote), ..Send::default() });
        script
    };
    post(true, (0x1000, 0xdbdb_dbdb)).shows(721, &["rkey 0xdbdbdbdb", "rdma_ack_cm_event"]);
    post(true, (0xdbdb_dbdb_dbdb_dbdb, 7)).shows(721, &["remote_addr 0xdbdbdbdbdbdbdbdb"]);
    post(true, (0xdbdb_dbdb, 0xdbdb)).keeps(721);
    post(false, (0x1000, 0xdbdb_dbdb)).keeps(721);
}

#[test]
fn private_data_of_no_length_is_told() {
    let mut script = Script::new();
    script.call(Call::CmEmptyData { function: "rdma_connect", id: 3 });
    script.shows(722, &["rdma_connect of id 0x3", "private_data_len is 0"]);
}
