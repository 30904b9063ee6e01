//! Seeds of the fuzz target `reports`, in the present version: of a report of another one only the first bytes are read.
//! With `WRITE_CORPUS=1` they are written anew.

use crate::ended::{self, Entry};
use crate::{
    Activity, CompletionQueue, Congestion, ConnectionId, Context, Counters, Domain, Drops, Port, QueuePair, Region,
    Report, SharedReceiveQueue, Socket, Waiting,
};
use std::path::PathBuf;

/// Each kind of object alone, all of them together, a file of ended ones, and a report of another version.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut counters = Counters::default();
    (counters.traffic.sent_octets, counters.incidents.atomic_requests) = (u64::MAX, 7);
    counters.engine_wakes.timeout = 8;
    let of_port = Port { device: "ubi_lo/2".into(), interface: 1, counters };
    let (near, far) = ("127.0.0.1:7".parse().ok(), "[fe80::1]:9".parse().ok());
    let waiting = Waiting { tries_allowed: Some(7), operation: "SEND".into(), wr_id: 3, ..Waiting::default() };
    let congestion = Congestion { window: 64, round_trip_nanos: Some(9), rate: Some(1 << 30), ..Congestion::default() };
    let ready = QueuePair { number: 0x12_3456, interface: 1, kind: 2, state: 3, peer: 7, ..QueuePair::default() };
    let stuck = QueuePair { waiting: Some(waiting), sends: 1, max_sends: 16, ..ready.clone() };
    let congested = QueuePair { link: "UDP".into(), counters, congestion: Some(congestion), ..ready.clone() };
    let failed = QueuePair { state: 6, stop: "the peer is gone".into(), ..ready.clone() };
    let id = ConnectionId { number: 1, space: 0x106, source: near, destination: far, ..ConnectionId::default() };
    let socket = Socket { number: 5, state: "connected".into(), destination: near, ..Socket::default() };
    let drops = vec![Drops { reason: "no_receive".into(), count: 2 }];
    let activity = Activity { version: "1.0.0".into(), age_nanos: 1 << 40, drops, ..Activity::default() };

    let empty = Report::default();
    let port = Report { ports: vec![of_port.clone()], ..Report::default() };
    let queue_pair = Report { queue_pairs: vec![ready.clone()], ..Report::default() };
    let waits = Report { queue_pairs: vec![stuck.clone()], ..Report::default() };
    let region = Region { number: 1, interface: 1, key: 5, length: 4096, ..Region::default() };
    let regions = Report { regions: vec![region.clone()], ..Report::default() };
    let ids = Report { ids: vec![id.clone(), ConnectionId::default()], ..Report::default() };
    let sockets = Report { sockets: vec![socket.clone()], ..Report::default() };
    let acts = Report { activity: activity.clone(), ..Report::default() };
    let others = Report {
        contexts: vec![Context { number: 1, interface: 1 }],
        domains: vec![Domain { number: 1, interface: 1, users: 2 }],
        completion_queues: vec![CompletionQueue { number: 1, entries: 16, users: 1, ..CompletionQueue::default() }],
        shared_queues: vec![SharedReceiveQueue { number: 1, kind: 1, ..SharedReceiveQueue::default() }],
        ..Report::default()
    };
    let many = Report {
        ports: vec![of_port; 2],
        queue_pairs: vec![ready, stuck, congested, failed],
        regions: vec![region; 3],
        ids: vec![id; 2],
        sockets: vec![socket],
        activity,
        ..others.clone()
    };
    let entry = Entry { namespace: 7, device: "ubi_lo".into(), counters };
    let mut other_version = empty.encode();
    other_version[crate::report::VERSION_PLACE] ^= 0x80;
    let reports = [
        ("empty", empty),
        ("port", port),
        ("queue_pair", queue_pair),
        ("waiting", waits),
        ("region", regions),
        ("id", ids),
        ("socket", sockets),
        ("activity", acts),
        ("others", others),
        ("many", many),
    ];
    let mut seeds: Vec<_> = reports.into_iter().map(|(name, report)| (name, report.encode())).collect();
    seeds.extend([("ended", ended::encode(&vec![entry])), ("other_version", other_version)]);
    seeds
}

#[test]
fn the_corpus_has_reports_of_this_version() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/reports");
    for (name, bytes) in seeds() {
        let file = folder.join(name);
        if std::env::var_os("WRITE_CORPUS").is_some() {
            std::fs::write(&file, &bytes).unwrap();
        }
        let is_it = std::fs::read(&file).is_ok_and(|found| found == bytes);
        assert!(is_it, "{}: make it anew with WRITE_CORPUS=1", file.display());
    }
}
