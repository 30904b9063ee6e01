//! The sinks that keep events in memory, and the tracer that leads to them.

use crate::samples;
use std::cell::Cell;

use trace::{Counters, DropReason, Event, Kind, Queue, RetryCause, Ring, Sink, Tee, Tracer};

fn posted(wr_id: u64) -> Event {
    Event { at: wr_id, qpn: None, kind: Kind::WorkPosted { wr_id, queue: Queue::Send, opcode: "SEND", bytes: 0 } }
}

#[test]
fn a_ring_keeps_the_newest_and_counts_the_rest() {
    let mut ring = Ring::new(3);
    assert!(ring.is_empty());
    for wr_id in 0..3 {
        ring.record(&posted(wr_id));
    }
    assert_eq!((ring.len(), ring.overwritten()), (3, 0));
    for wr_id in 3..5 {
        ring.record(&posted(wr_id));
    }
    let kept: Vec<u64> = ring.iter().map(|event| event.at).collect();
    assert_eq!(kept, [2, 3, 4]);
    assert_eq!((ring.len(), ring.capacity(), ring.overwritten()), (3, 3, 2));
    ring.clear();
    assert_eq!((ring.len(), ring.overwritten()), (0, 0));
}

#[test]
fn a_ring_without_room_only_counts() {
    let mut ring = Ring::new(0);
    ring.record(&posted(1));
    ring.record(&posted(2));
    assert_eq!((ring.len(), ring.overwritten()), (0, 2));
}

#[test]
fn counters_count_kinds_reasons_packets_and_bytes() {
    let mut counters = Counters::new();
    for event in samples::every_kind() {
        counters.record(&event);
    }
    let train = Kind::PacketSent {
        headers: samples::write_headers(1),
        payload_len: 4000,
        packets: 4,
        wr_id: None,
        retransmit: true,
    };
    counters.record(&Event { at: 0, qpn: None, kind: train });

    assert_eq!(counters.kind("packet_sent"), 2);
    assert_eq!(counters.kind("work_posted"), 1);
    assert_eq!(counters.kind("never_heard_of"), 0);
    assert_eq!(counters.detail("packet_sent", "retransmit"), 1);
    assert_eq!(counters.dropped(DropReason::StaleAck), 1);
    assert_eq!(counters.dropped(DropReason::BadIcrc), 0);
    assert_eq!(counters.retries(RetryCause::Timeout), 1);
    assert_eq!(counters.retries(RetryCause::RnrNak), 0);
    assert_eq!((counters.packets_sent(), counters.payload_sent()), (5, 4064));
    assert_eq!((counters.packets_received(), counters.payload_received()), (1, 0));
    assert_eq!(counters.kinds().map(|(_, count)| count).sum::<u64>(), samples::every_kind().len() as u64 + 1);
    assert!(counters.details().any(|entry| entry == ("access_refused", "out_of_bounds", 1)));
    let text = counters.to_string();
    assert!(text.contains("packet_dropped") && text.contains("  stale_ack"), "{text}");
}

#[test]
fn a_tee_feeds_both() {
    let mut tee = Tee(Ring::new(8), Tee(Counters::new(), Vec::new()));
    tee.record(&posted(1));
    tee.record(&posted(2));
    let Tee(ring, Tee(counters, all)) = tee;
    assert_eq!(ring.len(), 2);
    assert_eq!(counters.kind("work_posted"), 2);
    assert_eq!(all, [posted(1), posted(2)]);
}

#[test]
fn a_tracer_that_is_off_builds_no_event() {
    let built = Cell::new(0);
    let kind = || {
        built.set(built.get() + 1);
        posted(1).kind
    };
    let mut tracer = Tracer::off();
    assert!(!tracer.enabled());
    tracer.emit(0, None, kind);
    tracer.reborrow().emit(0, None, kind);
    assert_eq!(built.get(), 0);

    let mut ring = Ring::new(4);
    let mut tracer = Tracer::to(&mut ring);
    assert!(tracer.enabled());
    tracer.emit(0, None, kind);
    tracer.reborrow().emit(0, None, kind);
    assert_eq!((built.get(), ring.len()), (2, 2));
}

#[test]
fn sinks_can_be_chosen_at_run_time() {
    let mut all = Vec::new();
    let mut ring = Ring::new(1);
    for to_ring in [false, true] {
        let mut sink: Box<dyn Sink + '_> = if to_ring { Box::new(&mut ring) } else { Box::new(&mut all) };
        Tracer::to(&mut sink).emit(1, None, || posted(1).kind);
    }
    assert_eq!((all.len(), ring.len()), (1, 1));
}
