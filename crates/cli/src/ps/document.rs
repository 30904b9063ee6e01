//! Processes as one JSON document, for programs.

use super::Selection;
use super::text::{id_state, space};
use crate::snapshot::{ProcessSnapshot, Snapshot, destination, has_peer, is_stuck, kind_name, state_name};
use inventory::{ConnectionId, QueuePair, Report, names};
use serde_json::{Map, Value, json};
use transport::WaitReason;

/// Raised when a field goes or means something else.
const DOCUMENT_VERSION: u32 = 1;

pub fn of(selection: &Selection<'_>) -> Value {
    let processes: Vec<Value> = selection.processes().map(|process| of_process(selection, process)).collect();
    json!({ "version": DOCUMENT_VERSION, "processes": processes })
}

fn of_process(selection: &Selection<'_>, process: &ProcessSnapshot) -> Value {
    let ProcessSnapshot { pid, uid, user, command, .. } = process;
    let mut document = json!({
        "pid": pid,
        "uid": uid,
        "user": user,
        "command": command,
        "stopped": process.is_stopped(),
        "answered": process.report.is_ok(),
    });
    if let Some(reason) = process.silence() {
        document["reason"] = reason.into();
    }
    if let Ok(report) = &process.report {
        let pairs = selection.queue_pairs(process);
        document["queue_pairs"] = pairs.map(|pair| of_pair(selection.snapshot, process, pair)).collect();
        of_report(process, report, &mut document);
    }
    document
}

fn of_report(process: &ProcessSnapshot, report: &Report, document: &mut Value) {
    let activity = &report.activity;
    document["ubiverbs"] = activity.version.as_str().into();
    document["age_nanos"] = activity.age_nanos.into();
    document["engine_nanos"] = process.engine_nanos.into();
    document["empty_polls"] = activity.empty_polls.into();
    document["driven_by_program"] = (activity.driven_by_program > 0).into();
    document["blocked_callers"] = activity.blocked_callers.into();
    document["drops"] = map(activity.drops.iter().map(|drops| (drops.reason.as_str(), drops.count)));
    let devices = report.contexts.iter().map(|context| process.device(context.interface, 1));
    document["devices"] = devices.collect();
    let counted = report.ports.iter().map(|port| {
        let counters = [names::port(&port.counters), names::hardware(&port.counters)].concat();
        json!({ "device": port.device, "counters": map(counters.into_iter()) })
    });
    document["ports"] = counted.collect();
    let regions = report.regions.iter().map(|region| {
        json!({
            "lkey": region.local_key(),
            "rkey": region.key,
            "address": region.address,
            "length": region.length,
            "domain": region.domain,
        })
    });
    document["memory_regions"] = regions.collect();
    let queues = report.completion_queues.iter().map(|queue| {
        json!({
            "number": queue.number,
            "entries": queue.entries,
            "not_polled": queue.waiting,
            "overflowed": queue.overflowed > 0,
            "queue_pairs": queue.users,
        })
    });
    document["completion_queues"] = queues.collect();
    let domains = report.domains.iter().map(|domain| json!({ "number": domain.number, "users": domain.users }));
    document["protection_domains"] = domains.collect();
    let shared = report.shared_queues.iter().map(|queue| json!({ "number": queue.number, "domain": queue.domain }));
    document["shared_receive_queues"] = shared.collect();
    document["cm_ids"] = report.ids.iter().map(of_id).collect();
    let sockets = report.sockets.iter().map(|socket| {
        json!({
            "number": socket.number,
            "state": socket.state,
            "queue_pair": socket.queue_pair,
            "unread_bytes": socket.unread,
            "unacknowledged_bytes": socket.unacknowledged,
            "completions": socket.completions,
            "source": socket.source,
            "destination": socket.destination,
        })
    });
    document["sockets"] = sockets.collect();
}

fn of_id(id: &ConnectionId) -> Value {
    json!({
        "number": id.number,
        "state": id_state(id),
        "space": space(id),
        "queue_pair": id.queue_pair,
        "source": id.source,
        "destination": id.destination,
    })
}

fn of_pair(snapshot: &Snapshot, process: &ProcessSnapshot, pair: &QueuePair) -> Value {
    let mut document = json!({
        "number": pair.number,
        "device": process.device(pair.interface, pair.port),
        "type": kind_name(pair),
        "state": state_name(pair),
        "sends": pair.sends,
        "max_sends": pair.max_sends,
        "receives": pair.receives,
        "max_receives": pair.max_receives,
        "send_psn": pair.send_psn,
        "receive_psn": pair.receive_psn,
        "path_mtu": pair.path_mtu,
        "send_cq": pair.send_queue,
        "receive_cq": pair.receive_queue,
        "srq": pair.shared_queue,
        "counters": map(names::queue_pair(&pair.counters).into_iter()),
        "sent_bytes": pair.counters.traffic.sent_octets,
        "received_bytes": pair.counters.traffic.received_octets,
    });
    if has_peer(pair) {
        let found = snapshot.peer_of(pair).map(|(process, _)| process.pid);
        document["peer"] = json!({ "number": pair.peer, "address": destination(pair), "pid": found });
        document["link"] = pair.link.as_str().into();
    }
    if let Some(waiting) = &pair.waiting {
        document["waiting"] = json!({
            "for": WaitReason::from_code(waiting.reason).map_or("unknown", WaitReason::name),
            "nanos": waiting.nanos,
            "stuck": is_stuck(pair),
            "psn": waiting.psn,
            "tries": waiting.tries,
            "tries_allowed": waiting.tries_allowed,
            "wr_id": waiting.wr_id,
            "operation": waiting.operation,
        });
    }
    if let Some(reason) = snapshot.reason(pair) {
        document["reason"] = reason.into();
    }
    if let Some(way) = &pair.congestion {
        document["congestion"] = json!({
            "window": way.window,
            "in_flight": way.in_flight,
            "round_trip_nanos": way.round_trip_nanos,
            "rate": way.rate,
        });
    }
    document
}

fn map<'a>(counters: impl Iterator<Item = (&'a str, u64)>) -> Value {
    Value::Object(counters.map(|(name, value)| (name.to_owned(), value.into())).collect::<Map<_, _>>())
}
