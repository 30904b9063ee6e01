//! The words themselves: every kind has a name and a sentence of its own, and none of it needs the heap.

use crate::samples;
use std::collections::BTreeSet;

use trace::{ConnectionEnd, DropReason, Event, Kind, Queue, RefusalCause, RetryCause, StateCause, Timer, WindowCause};

#[test]
fn every_kind_reads_as_a_sentence() {
    let lines: Vec<String> = samples::every_kind().iter().map(Event::to_string).collect();
    let expected = "\
0.000001000 QP 0x11 work request 7 posted to the send queue: RDMA_WRITE, 64 bytes
0.000001001 QP 0x11 work request 8 refused by the receive queue: the queue is full
0.000001002 QP 0x11 sent: RC WRITE Only  qp 0x12 psn 100 ack-req va 0x1000 rkey 0x77 len 64 | 64 B, work request 7
0.000001003 QP 0x11 received: RC Acknowledge  qp 0x11 psn 100 ACK msn 1
0.000001004 QP 0x11 dropped: RC Acknowledge  qp 0x11 psn 99 ACK msn 1: the acknowledgement is older than one already seen
0.000001005 QP 0x11 RTS -> ERR: send work request 7 failed: RETRY_EXC_ERR
0.000001006 QP 0x11 work request 7 of the send queue completed: SUCCESS, RDMA_WRITE, 64 bytes
0.000001007 QP 0x11 acknowledgement timer set for 500 ns
0.000001008 QP 0x11 acknowledgement timer fired, due at 500 ns
0.000001009 QP 0x11 receiver not ready timer cleared
0.000001010 QP 0x11 retry from PSN 100: no acknowledgement arrived in time, 6 left
0.000001011 QP 0x11 memory access refused: LOCAL_WRITE|REMOTE_WRITE of 64 bytes at 0x1000 with key 0x77: the range reaches outside the region 0x1000..0x1020
0.000001012 QP 0x11 NAK sent for PSN 5: remote access error
0.000001013 QP 0x11 NAK received for PSN 5: remote access error
0.000001014 QP 0x11 window 16 -> 8 packets: a packet was lost
0.000001015 QP 0x11 rate 40000 -> 20000 Mbit/s: the peer told of congestion
0.000001016 QP 0x11 asynchronous event QP_LAST_WQE_REACHED
0.000001017 QP 0x11 connection 0x00001234 REQ_SENT -> ESTABLISHED on REP
0.000001018 QP 0x11 dropped: RTU for connection 0x00001234: no connection or request is known by what the message names
0.000001019 QP 0x11 the capture ends: its file cannot be written (errno 28)
0.000001020 QP 0x11 flushed: 3 work requests of the send queue, 500 of the receive queue
0.000001021 QP 0x11 connection 0x00001234 ended: the peer's process has ended
0.000001022 QP 0x11 completion queue 3 overflowed: it holds 16 completions and all wait to be polled
0.000001023 QP 0x11 injected by line 12 of flap.toml: port-down
0.000001024 QP 0x11 work request 7 moved its bytes directly: RDMA_WRITE, 64 bytes at 0x1000 with key 0x77 of queue pair 0x12, by mapping
0.000001025 QP 0x11 the engine woke: doorbell";
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn a_train_shows_its_first_and_last_sequence_number_across_the_wrap() {
    let kind = Kind::PacketReceived { headers: samples::write_headers(0xff_fffe), payload_len: 4096, packets: 4 };
    let text = kind.to_string();
    assert!(text.contains(" psn 16777214 "), "{text}");
    assert!(text.ends_with(" | 4096 B in 4 packets to psn 1"), "{text}");
}

#[test]
fn every_kind_has_a_name_of_its_own() {
    let events = samples::every_kind();
    let names: BTreeSet<_> = events.iter().map(|event| event.kind.name()).collect();
    assert_eq!(names.len(), events.len());
}

/// Names are what counters and JSON say: distinct, and in a form that needs no quoting anywhere.
#[test]
fn the_words_of_a_set_have_distinct_names_and_sentences() {
    fn check<T: Copy + ToString>(all: &[T], name: impl Fn(T) -> &'static str) {
        let names: BTreeSet<_> = all.iter().map(|word| name(*word)).collect();
        let sentences: BTreeSet<_> = all.iter().map(T::to_string).collect();
        assert_eq!(names.len(), all.len(), "{names:?}");
        assert_eq!(sentences.len(), all.len(), "{sentences:?}");
        assert!(names.iter().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')), "{names:?}");
    }
    check(DropReason::ALL, DropReason::name);
    check(RetryCause::ALL, RetryCause::name);
    check(Timer::ALL, Timer::name);
    check(WindowCause::ALL, WindowCause::name);
    check(Queue::ALL, Queue::name);
    check(ConnectionEnd::ALL, ConnectionEnd::name);
    check(
        &[
            RefusalCause::UnknownKey,
            RefusalCause::WrongProtectionDomain,
            RefusalCause::WrongQueuePair,
            RefusalCause::NotPermitted,
            RefusalCause::QueuePairForbids,
            RefusalCause::OutOfBounds { start: 0, length: 1 },
            RefusalCause::Misaligned,
            RefusalCause::Invalidated,
            RefusalCause::WindowUnbound,
            RefusalCause::WindowsBound,
            RefusalCause::WrongKind,
            RefusalCause::Faulted,
            RefusalCause::TooManyGuards,
            RefusalCause::GpuFailed { error: 1 },
            RefusalCause::LocalKey,
        ],
        RefusalCause::name,
    );
    check(
        &[
            StateCause::Modify,
            StateCause::SendFailed { wr_id: 1, status: "x" },
            StateCause::ReceiveFailed { wr_id: 1, status: "x" },
            StateCause::PeerRequest("x"),
            StateCause::Disconnected,
            StateCause::Drained,
            StateCause::Local("x"),
        ],
        StateCause::name,
    );
}

/// An event is passed by reference and copied into the ring: it may be a few cache lines, not a page.
#[test]
fn an_event_is_plain_data_of_moderate_size() {
    fn plain<T: Copy + Send + Sync + 'static>() {}
    plain::<Event>();
    assert!(size_of::<Event>() <= 256, "{} bytes", size_of::<Event>());
}
