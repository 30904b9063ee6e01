//! JSON lines: the fields are a promise, so they are compared as text.
#![cfg(feature = "std")]

use crate::samples;
use std::io::{self, Write};

use serde_json::Value;
use trace::{Error, Event, JsonLines, Kind, Sink, Stamp};
use wire::{AtomicAckEth, AtomicEth, Deth, Feth, Headers, Key, Opcode, Placement, Psn, Qkey, Qpn, Selectivity, Srqn};

fn written(events: &[Event]) -> String {
    let mut lines = JsonLines::new(Vec::new());
    for event in events {
        lines.record(event);
    }
    String::from_utf8(lines.finish().unwrap()).unwrap()
}

#[test]
fn every_kind_has_its_documented_fields() {
    let expected = r#"{"at":1000,"qpn":17,"event":"work_posted","wr_id":7,"queue":"send","opcode":"RDMA_WRITE","bytes":64}
{"at":1001,"qpn":17,"event":"post_refused","wr_id":8,"queue":"receive","reason":"the queue is full"}
{"at":1002,"qpn":17,"event":"packet_sent","packet":{"opcode":"RC RDMA WRITE Only","dest_qpn":18,"psn":100,"pkey":65535,"ack_req":true,"reth":{"va":4096,"rkey":119,"len":64}},"payload_len":64,"packets":1,"wr_id":7,"retransmit":false}
{"at":1003,"qpn":17,"event":"packet_received","packet":{"opcode":"RC Acknowledge","dest_qpn":17,"psn":100,"pkey":65535,"aeth":{"syndrome":31,"text":"ACK","msn":1}},"payload_len":0,"packets":1}
{"at":1004,"qpn":17,"event":"packet_dropped","packet":{"opcode":"RC Acknowledge","dest_qpn":17,"psn":99,"pkey":65535,"aeth":{"syndrome":31,"text":"ACK","msn":1}},"reason":"stale_ack","text":"the acknowledgement is older than one already seen"}
{"at":1005,"qpn":17,"event":"state_changed","from":"RTS","to":"ERR","cause":"send_failed","wr_id":7,"status":"RETRY_EXC_ERR","text":"send work request 7 failed: RETRY_EXC_ERR"}
{"at":1006,"qpn":17,"event":"completed","wr_id":7,"queue":"send","status":"SUCCESS","opcode":"RDMA_WRITE","bytes":64}
{"at":1007,"qpn":17,"event":"timer_set","timer":"ack","deadline":500}
{"at":1008,"qpn":17,"event":"timer_fired","timer":"ack","deadline":500}
{"at":1009,"qpn":17,"event":"timer_cleared","timer":"rnr"}
{"at":1010,"qpn":17,"event":"retry","cause":"timeout","from":100,"left":6}
{"at":1011,"qpn":17,"event":"access_refused","key":119,"address":4096,"length":64,"access":"LOCAL_WRITE|REMOTE_WRITE","cause":"out_of_bounds","region_start":4096,"region_length":32,"text":"the range reaches outside the region 0x1000..0x1020"}
{"at":1012,"qpn":17,"event":"nak_sent","psn":5,"code":"remote access error"}
{"at":1013,"qpn":17,"event":"nak_received","psn":5,"code":"remote access error"}
{"at":1014,"qpn":17,"event":"window_changed","from":16,"to":8,"cause":"loss"}
{"at":1015,"qpn":17,"event":"rate_changed","from":40000000000,"to":20000000000}
{"at":1016,"qpn":17,"event":"async_event","name":"QP_LAST_WQE_REACHED"}
{"at":1017,"qpn":17,"event":"cm_transition","local_comm_id":4660,"from":"REQ_SENT","to":"ESTABLISHED","message":"REP"}
{"at":1018,"qpn":17,"event":"cm_message_dropped","message":"RTU","local_comm_id":4660,"reason":"cm_unknown","text":"no connection or request is known by what the message names"}
{"at":1019,"qpn":17,"event":"capture_ended","errno":28}
{"at":1020,"qpn":17,"event":"flushed","sends":3,"receives":500}
{"at":1021,"qpn":17,"event":"connection_ended","local_comm_id":4660,"by":"peer_died","text":"the peer's process has ended"}
{"at":1022,"qpn":17,"event":"cq_overflowed","cq":3,"capacity":16}
{"at":1023,"qpn":17,"event":"injected","script":"flap.toml","line":12,"what":"port-down","ends":false,"missed":false}
{"at":1024,"qpn":17,"event":"moved_directly","wr_id":7,"opcode":"RDMA_WRITE","dest_qpn":18,"key":119,"address":4096,"bytes":64,"by":"mapping"}
{"at":1025,"qpn":17,"event":"engine_woke","reason":"doorbell"}
"#;
    assert_eq!(written(&samples::every_kind()), expected);
}

#[test]
fn every_line_is_json_of_its_own() {
    for line in written(&samples::every_kind()).lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        assert!(value["at"].is_u64() && value["event"].is_string(), "{line}");
    }
}

#[test]
fn every_header_appears_under_its_name() {
    let mut headers = Headers::new(Opcode::RcSendOnly, Qpn::new(1), Psn::new(2));
    headers.bth.solicited = true;
    headers.bth.fecn = true;
    headers.bth.becn = true;
    headers.xrc = Some(Srqn::new(3));
    headers.deth = Some(Deth { qkey: Qkey::new(4), src_qpn: Qpn::new(5) });
    headers.feth = Some(Feth { placement: Placement::GLOBAL, selectivity: Selectivity::Region });
    headers.atomic = Some(AtomicEth { va: 6, rkey: Key::new(7), swap_add: u64::MAX, compare: 9 });
    headers.atomic_ack = Some(AtomicAckEth { original: 10 });
    headers.immediate = Some(11);
    headers.invalidate = Some(Key::new(12));
    let kind = Kind::PacketReceived { headers, payload_len: 0, packets: 1 };
    let text = written(&[Event { at: 0, qpn: None, kind }]);
    let line: Value = serde_json::from_str(&text).unwrap();
    let expected = serde_json::json!({
        "opcode": "RC SEND Only", "dest_qpn": 1, "psn": 2, "pkey": 65535,
        "solicited": true, "fecn": true, "becn": true,
        "xrc_srqn": 3,
        "deth": {"qkey": 4, "src_qpn": 5},
        "feth": {"placement": 1, "selectivity": 1},
        "atomic": {"va": 6, "rkey": 7, "swap_add": u64::MAX, "compare": 9},
        "atomic_ack": {"original": 10},
        "immediate": 11,
        "invalidate": 12,
    });
    assert_eq!(line["packet"], expected);
    assert!(line.get("qpn").is_none());
}

#[test]
fn a_source_is_named_where_it_is_given() {
    let mut lines = JsonLines::new(Vec::new());
    let event = Event { at: 5, qpn: None, kind: Kind::AsyncEvent { name: "PORT_ERR" } };
    lines.record_from("host \"a\"", &event);
    let text = String::from_utf8(lines.finish().unwrap()).unwrap();
    assert_eq!(text, "{\"at\":5,\"source\":\"host \\\"a\\\"\",\"event\":\"async_event\",\"name\":\"PORT_ERR\"}\n");
}

#[test]
fn a_line_says_when_and_where_it_was_written() {
    let mut lines = JsonLines::stamped(Vec::new(), || Stamp { wall: 1_700_000_000_000_000_001, process: 7, thread: 8 });
    lines.record(&Event { at: 5, qpn: None, kind: Kind::CaptureEnded { errno: 28 } });
    let text = String::from_utf8(lines.finish().unwrap()).unwrap();
    let stamp = r#""wall":1700000000000000001,"pid":7,"tid":8"#;
    assert_eq!(text, format!("{{\"at\":5,{stamp},\"event\":\"capture_ended\",\"errno\":28}}\n"));
}

/// A disk that fills up after some bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_first_failed_write_is_reported_at_the_end() {
    let mut lines = JsonLines::new(Full(150));
    for event in samples::every_kind() {
        lines.record(&event);
    }
    let Err(error) = lines.finish() else { panic!("the disk was full") };
    assert!(matches!(error, Error::Event { at: 1001, .. }), "{error}");
    assert!(error.to_string().starts_with("the event at 1001 ns could not be written: "), "{error}");
}
