//! The figures as tables to read.

use super::Outcome;
use crate::measure::{Carrier, Kind, Measured, Size, Waiting, machine};
use std::fmt::Write;

/// Renders them.
pub fn render(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = round_trips(outcome, &mut text);
    let _ = streams(outcome, &mut text, "Bandwidth, megabytes per second", |row| row.bytes_per_second() / 1e6);
    let _ = streams(outcome, &mut text, "Message rate, thousands per second", |row| row.messages_per_second / 1e3);
    if let Some(why) = machine::crowded() {
        let _ = writeln!(text, "Note: {why}");
    }
    text
}

fn round_trips(outcome: &Outcome, text: &mut String) -> std::fmt::Result {
    if outcome.of(Kind::RoundTrip).next().is_none() {
        return Ok(());
    }
    let how = match outcome.waiting {
        Waiting::Spin => "both sides spin",
        Waiting::Sleep => "both sides sleep until woken",
    };
    writeln!(text, "Round trip, microseconds ({how}; x TCP: median beside TCP's, less is better)")?;
    writeln!(
        text,
        "{:>8}  {:<14}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>8}",
        "size", "carrier", "p50", "p90", "p99", "p99.9", "mean", "max", "x TCP"
    )?;
    let mut last = None;
    for row in outcome.of(Kind::RoundTrip) {
        let point = row.point;
        let size = row.size();
        let shown = if last == Some(size) { String::new() } else { Size(size).to_string() };
        last = Some(size);
        let summary = &row.summary;
        write!(text, "{shown:>8}  {:<14}", point.label())?;
        for nanos in [summary.p50, summary.p90, summary.p99, summary.p99_9, summary.mean as u64] {
            write!(text, "{:>9.1}", nanos as f64 / 1e3)?;
        }
        write!(text, "{:>10.1}", summary.max as f64 / 1e3)?;
        writeln!(text, "{:>8}", ratio(outcome, row))?;
    }
    writeln!(
        text,
        "SEND, WRITE and sockets carry the bytes there and back; READ and ATOMIC bring them once, for one request.\n"
    )
}

fn ratio(outcome: &Outcome, row: &Measured) -> String {
    outcome.ratio(row).map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
}

fn streams(outcome: &Outcome, text: &mut String, title: &str, value: fn(&Measured) -> f64) -> std::fmt::Result {
    let mut carriers: Vec<Carrier> = outcome.of(Kind::Stream).map(|row| row.point.carrier).collect();
    carriers.sort_unstable();
    carriers.dedup();
    if carriers.is_empty() {
        return Ok(());
    }
    writeln!(text, "{title} (sockets block; in brackets: beside TCP, more is better)")?;
    write!(text, "{:>8}", "size")?;
    for carrier in &carriers {
        write!(text, "{:>18}", carrier.name())?;
    }
    writeln!(text)?;
    let mut sizes: Vec<usize> = outcome.of(Kind::Stream).map(|row| row.point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        write!(text, "{:>8}", Size(size).to_string())?;
        for carrier in &carriers {
            let found = outcome.of(Kind::Stream).find(|row| row.point.size == size && row.point.carrier == *carrier);
            let cell = match found {
                Some(row) if *carrier == Carrier::Tcp => format!("{:.1}        ", value(row)),
                Some(row) => format!("{:.1} ({:>5})", value(row), ratio(outcome, row)),
                None => String::new(),
            };
            write!(text, "{cell:>18}")?;
        }
        writeln!(text)?;
    }
    writeln!(text)
}
