//! A run for Perfetto, as trace events in JSON: a track for each queue pair, work requests as spans on it, packets as
//! instants with arrows from process to process.

use serde_json::{Map, Value as Json, json};
use std::io::{self, Write};
use web::timeline::{EventId, EventKind, Lane, Name, Queue, Timeline, Value, flags};

/// Tracks of a process that belong to no queue pair.
const PROCESS_TRACK: u32 = 0;

/// Writes all of it.
pub fn write(run: &Timeline, out: &mut dyn Write) -> io::Result<()> {
    let text = |name: Name| run.names.text(name);
    let micros = |time: i64| json!(time as f64 / 1000.0);
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
    let mut separator = "";
    let mut event = |fields: Json| {
        let written = write!(out, "{separator}{fields}");
        separator = ",\n";
        written
    };
    // Numbers of processes are those of the timeline: several hosts, and a host over time, have the same twice.
    let pid = |process: u32| process + 1;
    for (id, process) in run.processes().iter().enumerate() {
        let name = format!("{} {} {}", text(process.name), process.pid, text(process.host));
        let process = pid(id as u32);
        event(json!({"ph": "M", "pid": process, "name": "process_name", "args": {"name": name.trim()}}))?;
        let name = "calls and the engine";
        event(json!({"ph": "M", "pid": process, "tid": PROCESS_TRACK, "name": "thread_name", "args": {"name": name}}))?;
    }
    for (id, Lane { process, qpn, kind, peer_label, .. }) in run.lanes().iter().enumerate() {
        let name = format!("QP {qpn} {} {}", text(*kind), text(*peer_label));
        let (pid, tid) = (pid(process.0), id as u32 + 1);
        event(json!({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name.trim()}}))?;
    }
    for (id, message) in run.messages().iter().enumerate() {
        let Some(lane) = run.lanes().get(message.lane.0 as usize) else { continue };
        let steps = [message.posted, message.sent, message.arrived, message.placed, message.completed, message.polled];
        let (Some(begin), Some(end)) = (steps.iter().flatten().min(), steps.iter().flatten().max()) else { continue };
        let (pid, tid) = (pid(lane.process.0), message.lane.0 + 1);
        let category = if message.queue == Queue::Send { "send" } else { "receive" };
        let name = format!("{} {}", text(message.opcode), message.wr_id);
        let args = json!({"wr_id": message.wr_id, "bytes": message.bytes, "status": text(message.status)});
        for (phase, time) in [("b", begin), ("e", end)] {
            event(json!({"ph": phase, "cat": category, "id": id, "pid": pid, "tid": tid, "ts": micros(*time),
                "name": name, "args": args}))?;
        }
    }
    for (id, what) in run.events().iter().enumerate() {
        let (pid, tid) = (pid(what.process.0), what.lane.map_or(PROCESS_TRACK, |lane| lane.0 + 1));
        let mut args = Map::new();
        for (name, value) in run.fields(EventId(id as u32)) {
            let value = match value {
                Value::Number(number) | Value::Duration(number) => json!(number),
                Value::Hex(number) => json!(format!("{number:#x}")),
                Value::Name(name) => json!(text(name)),
                Value::Flag(flag) => json!(flag),
            };
            args.insert(name.to_owned(), value);
        }
        if what.text != Name::NONE {
            args.insert("text".to_owned(), json!(text(what.text)));
        }
        for (name, flag) in [("sent_again", flags::AGAIN), ("lost", flags::LOST), ("duplicate", flags::DUPLICATE)] {
            if what.flags & flag != 0 {
                args.insert(name.to_owned(), json!(true));
            }
        }
        // Of no length, but arrows begin and end at spans.
        let duration = micros(what.duration.max(1).min(i64::MAX as u64) as i64);
        event(json!({"ph": "X", "cat": format!("{:?}", what.kind), "pid": pid, "tid": tid, "ts": micros(what.time),
            "dur": duration, "name": text(what.name), "args": args}))?;
        let arrives = |partner: EventId| run.events().get(partner.0 as usize);
        if let (EventKind::PacketSent, Some(partner)) = (what.kind, what.partner)
            && let Some(arrival) = arrives(partner)
        {
            let to = (self::track(arrival.lane.map(|lane| lane.0)), arrival.process.0 + 1);
            let flow = json!({"ph": "s", "cat": "packet", "id": id, "pid": pid, "tid": tid, "ts": micros(what.time),
                "name": "packet"});
            event(flow)?;
            event(json!({"ph": "f", "bp": "e", "cat": "packet", "id": id, "pid": to.1, "tid": to.0,
                "ts": micros(arrival.time), "name": "packet"}))?;
        }
    }
    out.write_all(b"\n]}\n")
}

fn track(lane: Option<u32>) -> u32 {
    lane.map_or(PROCESS_TRACK, |lane| lane + 1)
}
