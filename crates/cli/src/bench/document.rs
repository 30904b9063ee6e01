//! The figures as one JSON document.

use super::{LINK_UDP, Outcome, goals};
use crate::measure::{Kind, Measured};
use serde_json::{Map, Value, json};

/// Renders it.
pub fn render(outcome: &Outcome) -> String {
    let alone = |row: &&Measured| !matches!(row.point.kind, Kind::ManyQueuePairs(_) | Kind::Threads(_));
    let rows: Vec<Value> = outcome.rows.iter().filter(alone).map(|row| document(outcome, row)).collect();
    let crowds: Vec<Value> = outcome.crowds().map(|(count, row)| crowd(outcome, count, row)).collect();
    let threads: Vec<Value> = outcome.threads().map(|(count, row)| threads(outcome, count, row)).collect();
    let document = json!({
        "device": outcome.device,
        "link": outcome.link,
        "one_machine": outcome.local,
        "waiting": outcome.waiting,
        "version": env!("CARGO_PKG_VERSION"),
        "machine": outcome.machine.document(),
        "goals": goals::document(outcome),
        "rows": rows,
        "queue_pairs": crowds,
        "threads": threads,
    });
    format!("{document:#}\n")
}

fn crowd(outcome: &Outcome, count: u32, row: &Measured) -> Value {
    json!({
        "queue_pairs": count,
        "size": row.size(),
        "messages": row.messages,
        "nanoseconds_per_write": 1e9 / row.messages_per_second,
        "messages_per_second": row.messages_per_second,
        "messages_per_second_spread": row.spread(),
        "cost_beside_the_fewest": outcome.crowds().next().map(|(_, fewest)| fewest.ratio(row)),
    })
}

fn threads(outcome: &Outcome, count: u32, row: &Measured) -> Value {
    let each = |(count, row): (u32, &Measured)| row.messages_per_second / f64::from(count);
    json!({
        "threads": count,
        "size": row.size(),
        "round_trips": row.messages,
        "round_trips_per_second": row.messages_per_second,
        "round_trips_per_second_spread": row.spread(),
        "round_trips_per_second_and_thread": each((count, row)),
        "thread_beside_the_fewest": outcome.threads().next().map(|fewest| each((count, row)) / each(fewest)),
    })
}

fn document(outcome: &Outcome, row: &Measured) -> Value {
    let point = row.point;
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("measured", json!(point.kind));
    put("carrier", json!(point.carrier));
    put("waiting", json!(point.waiting));
    if point.carrier.is_verb() {
        put("link", json!(if point.udp { LINK_UDP } else { outcome.link }));
    }
    put("size", json!(row.size()));
    put("messages", json!(row.messages));
    match point.kind {
        Kind::RoundTrip => {
            put("round_trip_ns", json!(row.summary));
            put("p50_spread_ns", json!(row.spread()))
        }
        Kind::Connect => {
            put("connections_per_second", json!(row.messages_per_second));
            put("connections_per_second_spread", json!(row.spread()))
        }
        Kind::Stream | Kind::Batch | Kind::ManyQueuePairs(_) | Kind::Threads(_) => {
            put("messages_per_second", json!(row.messages_per_second));
            put("messages_per_second_spread", json!(row.spread()));
            put("bytes_per_second", json!(row.bytes_per_second()))
        }
    };
    put("ratio_to_tcp", json!(outcome.ratio(row)));
    put("ratio_to_tcp_spread", json!(outcome.tcp(row).and_then(|tcp| row.ratios(tcp))));
    Value::Object(fields)
}
