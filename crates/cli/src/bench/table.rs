//! The figures as tables to read.

use super::{Outcome, goals};
use crate::measure::{Carrier, Kind, Measured, Size, machine};
use std::fmt::Write;

/// Renders them.
pub fn render(outcome: &Outcome) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = round_trips(outcome, &mut text);
    let _ = streams(outcome, &mut text, "Bandwidth, megabytes per second", |row| row.bytes_per_second() / 1e6);
    let _ = streams(outcome, &mut text, "Message rate, thousands per second", |row| row.messages_per_second / 1e3);
    let _ = connections(outcome, &mut text);
    let _ = crowds(outcome, &mut text);
    let _ = threads(outcome, &mut text);
    let _ = goals::table(outcome, &mut text);
    if let Some(why) = machine::crowded() {
        let _ = writeln!(text, "Note: {why}");
    }
    text
}

fn round_trips(outcome: &Outcome, text: &mut String) -> std::fmt::Result {
    if outcome.of(Kind::RoundTrip).next().is_none() {
        return Ok(());
    }
    writeln!(
        text,
        "Round trip, microseconds (middle of the rounds; both sides spin unless it says otherwise; x TCP: median compared with TCP's, less is better)"
    )?;
    writeln!(
        text,
        "{:>8}  {:<20}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>8}  of the rounds",
        "size", "carrier", "p50", "p90", "p99", "p99.9", "mean", "max", "x TCP"
    )?;
    let mut last = None;
    for row in outcome.of(Kind::RoundTrip) {
        let point = row.point;
        let size = row.size();
        let shown = if last == Some(size) { String::new() } else { Size(size).to_string() };
        last = Some(size);
        let summary = &row.summary;
        write!(text, "{shown:>8}  {:<20}", point.label())?;
        for nanos in [summary.p50, summary.p90, summary.p99, summary.p99_9, summary.mean as u64] {
            write!(text, "{:>9.1}", nanos as f64 / 1e3)?;
        }
        write!(text, "{:>10.1}", summary.max as f64 / 1e3)?;
        let spread = outcome.tcp(row).and_then(|tcp| row.ratios(tcp));
        let spread = spread.map(|[least, greatest]| format!("{least:.2}..{greatest:.2}")).unwrap_or_default();
        writeln!(text, "{:>8}  {spread}", ratio(outcome, row))?;
    }
    writeln!(
        text,
        "SEND, WRITE and sockets carry the bytes there and back; READ and ATOMIC bring them once, for one request.\n"
    )
}

fn ratio(outcome: &Outcome, row: &Measured) -> String {
    outcome.ratio(row).map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
}

fn connections(outcome: &Outcome, text: &mut String) -> std::fmt::Result {
    if outcome.of(Kind::Connect).next().is_none() {
        return Ok(());
    }
    writeln!(
        text,
        "Connections per second, made and ended one after the other (in brackets: compared with TCP, more is better)"
    )?;
    for row in outcome.of(Kind::Connect) {
        writeln!(text, "{:<20}{:>10.1} ({:>5})", row.point.label(), row.messages_per_second, ratio(outcome, row))?;
    }
    writeln!(text)
}

fn crowds(outcome: &Outcome, text: &mut String) -> std::fmt::Result {
    let Some((_, fewest)) = outcome.crowds().next() else { return Ok(()) };
    let size = Size(fewest.size());
    writeln!(
        text,
        "Nanoseconds of a {size} WRITE, by how many queue pairs have their turns (in brackets: compared with the fewest)"
    )?;
    for (count, row) in outcome.crowds() {
        writeln!(text, "{count:>12}{:>18.0} ({:>5.2})", 1e9 / row.messages_per_second, fewest.ratio(row))?;
    }
    writeln!(text)
}

fn threads(outcome: &Outcome, text: &mut String) -> std::fmt::Result {
    let Some((few, fewest)) = outcome.threads().next() else { return Ok(()) };
    let size = Size(fewest.size());
    writeln!(
        text,
        "Thousands of {size} SEND round trips per second, by how many threads of each side (in brackets: a thread's compared with one alone)"
    )?;
    let each = |count: u32, row: &Measured| row.messages_per_second / f64::from(count);
    for (count, row) in outcome.threads() {
        let beside = each(count, row) / each(few, fewest);
        writeln!(text, "{count:>12}{:>18.0} ({beside:>5.2})", row.messages_per_second / 1e3)?;
    }
    writeln!(text)
}

fn streams(outcome: &Outcome, text: &mut String, title: &str, value: fn(&Measured) -> f64) -> std::fmt::Result {
    let rows: Vec<&Measured> =
        outcome.rows.iter().filter(|row| matches!(row.point.kind, Kind::Stream | Kind::Batch)).collect();
    let mut sizes: Vec<usize> = rows.iter().map(|row| row.point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut labels: Vec<String> = Vec::new();
    for label in rows.iter().map(|row| row.point.label()) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    if labels.is_empty() {
        return Ok(());
    }
    writeln!(text, "{title} (sockets block; in brackets: compared with TCP, more is better)")?;
    write!(text, "{:<20}", "")?;
    for size in &sizes {
        write!(text, "{:>18}", Size(*size).to_string())?;
    }
    writeln!(text)?;
    for label in labels {
        write!(text, "{label:<20}")?;
        for size in &sizes {
            let cell = match rows.iter().find(|row| row.point.size == *size && row.point.label() == label) {
                Some(row) if row.point.carrier == Carrier::Tcp => format!("{:.1}        ", value(row)),
                Some(row) => format!("{:.1} ({:>5})", value(row), ratio(outcome, row)),
                None => String::new(),
            };
            write!(text, "{cell:>18}")?;
        }
        writeln!(text)?;
    }
    writeln!(text)
}
