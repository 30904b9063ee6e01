//! The figures as one JSON document.

use super::Outcome;
use crate::measure::{Kind, Measured, machine};
use serde_json::{Map, Value, json};

/// Renders it.
pub fn render(outcome: &Outcome) -> String {
    let rows: Vec<Value> = outcome.rows.iter().map(|row| document(outcome, row)).collect();
    let document = json!({
        "device": outcome.device,
        "link": outcome.link,
        "one_machine": outcome.local,
        "waiting": outcome.waiting,
        "machine": machine::document(),
        "rows": rows,
    });
    format!("{document:#}\n")
}

fn document(outcome: &Outcome, row: &Measured) -> Value {
    let point = row.point;
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    put("measured", json!(point.kind));
    put("carrier", json!(point.carrier));
    put("waiting", json!(point.waiting));
    put("size", json!(row.size()));
    put("messages", json!(row.messages));
    match point.kind {
        Kind::RoundTrip => put("round_trip_ns", json!(row.summary)),
        Kind::Stream => {
            put("messages_per_second", json!(row.messages_per_second));
            put("bytes_per_second", json!(row.bytes_per_second()))
        }
    };
    put("ratio_to_tcp", json!(outcome.ratio(row)));
    Value::Object(fields)
}
