//! A log that was written is read back as it was; one that was not is refused, or skipped.
#![cfg(feature = "std")]

use crate::samples;
use serde_json::{Map, Value, json};
use trace::{
    Access, Call, Event, Failure, JsonLines, JsonReader, Kind, Logged, PeerReason, Queue, ReadError, RefusalCause,
    RequestFault, Sink, Stamp, StateCause,
};
use wire::access::{Range, Refusal};
use wire::{Key, NakCode, Psn};

fn written(events: &[Event]) -> Vec<u8> {
    let mut lines = JsonLines::new(Vec::new());
    events.iter().for_each(|event| lines.record(event));
    lines.finish().unwrap()
}

fn read(log: &[u8]) -> (Vec<Logged>, u64) {
    let mut reader = JsonReader::new(log);
    let mut all = Vec::new();
    while let Some(logged) = reader.next_event().unwrap() {
        all.push(logged);
    }
    (all, reader.skipped())
}

#[track_caller]
fn comes_back(events: &[Event]) {
    let (back, skipped) = read(&written(events));
    let back: Vec<Event> = back.into_iter().map(|logged| logged.event).collect();
    assert_eq!((back.as_slice(), skipped), (events, 0));
}

#[test]
fn every_kind_comes_back() {
    comes_back(&samples::every_kind());
    let changed = |cause| Event { at: 1, qpn: None, kind: Kind::StateChanged { from: "RTS", to: "ERR", cause } };
    comes_back(
        &[
            StateCause::Modify,
            StateCause::ReceiveFailed { wr_id: 3, status: "IBV_WC_LOC_PROT_ERR" },
            StateCause::PeerRequest("nonsense"),
            StateCause::Disconnected,
            StateCause::Drained,
            StateCause::Local("nonsense"),
        ]
        .map(changed),
    );
}

#[test]
fn every_failure_comes_back() {
    let psn = Psn::new(0xff_fffe);
    let (key, access) = (Key::new(0x77), Access::REMOTE_WRITE | Access::from_bits_retain(1 << 30));
    let causes = RefusalCause::ALL.iter().map(|cause| match cause {
        RefusalCause::OutOfBounds { .. } => RefusalCause::OutOfBounds { start: u64::MAX, length: 7 },
        cause => *cause,
    });
    let range = Range { key, address: u64::MAX, length: 64 };
    let mut failures: Vec<Failure> =
        causes.clone().map(|cause| Failure::Refused(Refusal { range, access, cause })).collect();
    let mut reasons: Vec<PeerReason> = causes.map(|cause| PeerReason::Refused { key, access, cause }).collect();
    reasons.extend(RequestFault::ALL.iter().map(|fault| PeerReason::Fault(*fault)));
    reasons.extend([
        PeerReason::RegionForbids { key, access, granted: Access::empty() },
        PeerReason::OtherDomain { key, region: 1, pair: 2 },
        PeerReason::PairForbids { access, granted: Access::REMOTE_READ },
        PeerReason::TooLong { length: 2, space: 1 },
        PeerReason::TooManyReads { max: 4 },
    ]);
    failures.extend(reasons.into_iter().map(|reason| Failure::Nak {
        code: NakCode::InvalidRequest,
        psn,
        peer: Some(reason),
    }));
    failures.extend([
        Failure::Nak { code: NakCode::RemoteAccess, psn, peer: None },
        Failure::NoAnswer { psn, tries: 8 },
        Failure::PeerGone { psn },
        Failure::NotReady { psn, tries: 3 },
        Failure::TooLong { length: 2, space: 1 },
        Failure::OverMtu { length: 2, mtu: 1 },
        Failure::AtomicTooShort { length: 4 },
        Failure::BadAnswer { what: "why", psn },
        Failure::NotCarried { transport: "UD" },
        Failure::Unsuitable { what: "why" },
        Failure::PeerFault { what: "why", psn },
        Failure::Flushed,
        Failure::Injected { line: 12, vendor: 129 },
    ]);
    let events: Vec<Event> = failures
        .into_iter()
        .map(|failure| {
            let (queue, status, opcode) = (Queue::SharedReceive, "IBV_WC_GENERAL_ERR", "RECV");
            let kind = Kind::Completed { wr_id: u64::MAX, queue, status, opcode, bytes: 1, failure: Some(failure) };
            Event { at: 1, qpn: None, kind }
        })
        .collect();
    comes_back(&events);
}

/// Fields that are words, rights, addresses, lists and flags; all others are numbers.
fn value(call: &str, field: &str) -> Value {
    match field {
        "status" if call == "cm_event" => json!(-110),
        "errno" => json!(22),
        "address" if call == "cm_place" => json!("0123456789abcdef0123456789abcdef"),
        "space" | "device" | "kind" | "state" | "opcode" | "status" | "object" | "event_name" | "function" | "flag"
        | "reason" | "caller" => {
            json!(field)
        }
        "access" => json!("LOCAL_WRITE|REMOTE_READ"),
        "sgid" | "dgid" | "remote_gid" => json!("0123456789abcdef0123456789abcdef"),
        "pieces" => json!({"count": 9, "bytes": 900, "list": [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]}),
        "type_2" | "signals_all" | "signaled" | "inline" | "fence" | "solicited" | "solicited_only" | "synchronous" => {
            json!(true)
        }
        _ => json!(7),
    }
}

#[test]
fn every_call_comes_back_with_all_its_fields() {
    // Each is given every field there is, and takes its own.
    for name in Call::NAMES {
        let mut line = Map::from_iter([
            ("at".to_owned(), json!(1)),
            ("event".to_owned(), json!("called")),
            ("thread".to_owned(), json!(3)),
            ("call".to_owned(), json!(name)),
        ]);
        for field in FIELDS {
            line.insert((*field).to_owned(), value(name, field));
        }
        let text = format!("{}\n", Value::Object(line));
        let (calls, skipped) = read(text.as_bytes());
        assert_eq!((calls.len(), skipped), (1, 0), "{name}");
        let Kind::Called { call, .. } = calls[0].event.kind else { panic!("{name}") };
        call.each_field(|field, _| {
            let field = if field == "event" { "event_name" } else { field };
            assert!(FIELDS.contains(&field), "{field} of {name} is not in the list of this test");
        });
        assert_eq!(call.name(), *name);
        comes_back(&[calls[0].event]);
    }
}

/// Every field that a call has.
const FIELDS: &[&str] = &[
    "given",
    "flag",
    "space",
    "offered_qpn",
    "about",
    "access",
    "address",
    "ah",
    "bytes",
    "caller",
    "capacity",
    "channel",
    "context",
    "count",
    "cq",
    "dest_qpn",
    "device",
    "dgid",
    "errno",
    "event_name",
    "fence",
    "function",
    "got",
    "hop_limit",
    "id",
    "id_qpn",
    "index",
    "initiator_depth",
    "inline",
    "iova",
    "key",
    "kind",
    "length",
    "limit",
    "listen_id",
    "max_dest_rd_atomic",
    "max_inline_data",
    "max_rd_atomic",
    "max_recv_sge",
    "max_recv_wr",
    "max_send_sge",
    "max_send_wr",
    "max_sge",
    "max_wr",
    "min_rnr_timer",
    "missing",
    "new_key",
    "number",
    "object",
    "old_key",
    "opcode",
    "path_mtu",
    "pd",
    "peer",
    "peer_qkey",
    "peer_qpn",
    "pieces",
    "pkey_index",
    "place",
    "port",
    "private_data_len",
    "process",
    "qkey",
    "reason",
    "receive_cq",
    "receives",
    "region",
    "remote_address",
    "remote_gid",
    "remote_key",
    "remote_qkey",
    "remote_qpn",
    "responder_resources",
    "retry_cnt",
    "retry_count",
    "rnr_retry",
    "rnr_retry_count",
    "room",
    "rq_psn",
    "send_cq",
    "sends",
    "sgid",
    "sgid_index",
    "signaled",
    "signals_all",
    "solicited",
    "solicited_only",
    "sq_psn",
    "srq",
    "state",
    "status",
    "synchronous",
    "timeout",
    "type_2",
    "wanted",
    "window",
    "wr_id",
];

#[test]
fn where_and_when_a_line_was_written_comes_back() {
    let stamp = || Stamp { wall: 99, process: 7, thread: 8 };
    let mut lines = JsonLines::stamped(Vec::new(), stamp);
    lines.record_from("host a", &Event { at: 5, qpn: None, kind: Kind::CaptureEnded { errno: 28 } });
    let (all, _) = read(&lines.finish().unwrap());
    assert_eq!((all[0].line, all[0].wall, all[0].process), (1, Some(99), Some(7)));
    assert_eq!(all[0].source.as_deref(), Some("host a"));
}

#[test]
fn what_is_not_known_is_skipped_and_what_is_no_log_is_an_error() {
    let (all, skipped) =
        read(b"{\"at\":1,\"event\":\"from the future\"}\n\n{\"at\":\"x\",\"event\":\"flushed\"}\n{}\n");
    assert_eq!((all.len(), skipped), (0, 3));
    // The program was killed in the middle of a line.
    let (all, skipped) = read(b"{\"at\":1,\"event\":\"capture_ended\",\"errno\":1}\n{\"at\":2,\"ev");
    assert_eq!((all.len(), skipped), (1, 0));
    let mut reader = JsonReader::new(&b"{}\n{\"at\":2,\"ev"[..]);
    assert!(matches!(reader.next_event(), Ok(None)));
    assert_eq!((reader.skipped(), reader.foreign(), reader.cut_in()), (1, 0, Some(2)));
    // The program has written to standard error, too.
    let mut reader = JsonReader::new(&b"hello\n{\"at\":1,\"event\":\"capture_ended\",\"errno\":1}\nbye"[..]);
    assert!(matches!(reader.next_event(), Ok(Some(Logged { line: 2, .. }))));
    assert!(matches!(reader.next_event(), Ok(None)));
    assert_eq!((reader.skipped(), reader.foreign(), reader.cut_in()), (0, 2, None));
    let long = vec![b'x'; 1 << 17];
    assert!(matches!(JsonReader::new(&long[..]).next_event(), Err(ReadError::TooLong { line: 1 })));
    let deep = ["[".repeat(5000), "]".repeat(5000), "\n".to_owned()].concat();
    let mut reader = JsonReader::new(deep.as_bytes());
    assert!(matches!(reader.next_event(), Ok(None)));
    assert_eq!(reader.foreign(), 1);
}
