//! A run as JSON lines: processes, queue pairs, regions, work requests, events. Numbers refer to those before: a line's
//! `id` is its place among those of its `type`.

use serde_json::{Map, Value as Json, json};
use std::io::{self, Write};
use web::timeline::{EventId, Name, Timeline, Value, flags};

/// Writes all of it.
pub fn write(run: &Timeline, out: &mut impl Write) -> io::Result<()> {
    let text = |name: Name| run.names.text(name);
    let mut line = |kind: &str, id: usize, fields: Json| {
        let mut object = Map::new();
        object.insert("type".to_owned(), json!(kind));
        object.insert("id".to_owned(), json!(id));
        if let Json::Object(fields) = fields {
            object.extend(fields.into_iter().filter(|(_, value)| !value.is_null() && value != ""));
        }
        writeln!(out, "{}", Json::Object(object))
    };
    let about = json!({"title": run.title, "origin": run.origin, "clock": run.clock, "clock_error": run.clock_error,
        "notes": run.notes});
    line("run", 0, about)?;
    for (id, process) in run.processes().iter().enumerate() {
        let fields = json!({"name": text(process.name), "pid": process.pid, "host": text(process.host),
            "began": process.began, "ended": process.ended, "outcome": text(process.outcome)});
        line("process", id, fields)?;
    }
    for (id, lane) in run.lanes().iter().enumerate() {
        let fields = json!({"process": lane.process.0, "qpn": lane.qpn, "kind": text(lane.kind),
            "peer": lane.peer.map(|peer| peer.0), "peer_label": text(lane.peer_label)});
        line("queue_pair", id, fields)?;
    }
    for (id, region) in run.regions().iter().enumerate() {
        let fields = json!({"process": region.process.0, "address": region.address, "length": region.length,
            "lkey": region.lkey, "rkey": region.rkey, "rights": text(region.rights),
            "registered": region.registered, "deregistered": region.deregistered});
        line("region", id, fields)?;
    }
    for (id, message) in run.messages().iter().enumerate() {
        let queue = if message.queue == web::timeline::Queue::Send { "send" } else { "receive" };
        let fields = json!({"queue_pair": message.lane.0, "wr_id": message.wr_id, "queue": queue,
            "opcode": text(message.opcode), "bytes": message.bytes, "status": text(message.status),
            "posted": message.posted, "sent": message.sent, "arrived": message.arrived, "placed": message.placed,
            "completed": message.completed, "polled": message.polled,
            "partner": message.partner.map(|partner| partner.0)});
        line("work_request", id, fields)?;
    }
    let mut order: Vec<u32> = (0..run.events().len() as u32).collect();
    order.sort_by_key(|id| run.events()[*id as usize].time);
    for id in order {
        let event = &run.events()[id as usize];
        let mut fields = json!({"time": event.time, "process": event.process.0,
            "queue_pair": event.lane.map(|lane| lane.0), "kind": format!("{:?}", event.kind),
            "name": text(event.name), "text": text(event.text),
            "work_request": event.message.map(|message| message.0),
            "partner": event.partner.map(|partner| partner.0)});
        if event.duration > 0 {
            fields["duration"] = json!(event.duration);
        }
        for (name, flag) in [
            ("again", flags::AGAIN),
            ("lost", flags::LOST),
            ("duplicate", flags::DUPLICATE),
            ("nak", flags::NAK),
            ("error", flags::ERROR),
        ] {
            if event.flags & flag != 0 {
                fields[name] = json!(true);
            }
        }
        let values: Map<String, Json> = run
            .fields(EventId(id))
            .map(|(name, value)| {
                let value = match value {
                    Value::Number(number) | Value::Hex(number) | Value::Duration(number) => json!(number),
                    Value::Name(name) => json!(text(name)),
                    Value::Flag(flag) => json!(flag),
                };
                (name.to_owned(), value)
            })
            .collect();
        if !values.is_empty() {
            fields["fields"] = Json::Object(values);
        }
        line("event", id as usize, fields)?;
    }
    Ok(())
}
