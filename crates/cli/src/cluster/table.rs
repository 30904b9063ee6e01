//! Runs as text: a table with topologies side by side, heat maps of latencies, and bars.

use super::{Measured, Run};
use crate::style::{GOOD_STYLE, TITLE_STYLE};
use clap::builder::styling::{Ansi256Color, AnsiColor, Style};
use std::io::{self, Write};

/// Prints everything.
pub fn show(runs: &[Run], bytes: u64, out: &mut impl Write) -> io::Result<()> {
    let mut sizes: Vec<u32> = runs.iter().map(|run| run.processes).collect();
    sizes.dedup();
    for size in sizes {
        let side_by_side: Vec<&Run> = runs.iter().filter(|run| run.processes == size).collect();
        writeln!(out, "{TITLE_STYLE}{size} processes{TITLE_STYLE:#}")?;
        table(&side_by_side, bytes, out)?;
        for run in &side_by_side {
            if let Some(measured) = &run.measured {
                heat_map(&run.topology, measured, out)?;
            }
        }
        writeln!(out)?;
    }
    bars(runs, bytes, out)
}

type Cell = fn(&Run) -> Option<String>;

fn table(runs: &[&Run], bytes: u64, out: &mut impl Write) -> io::Result<()> {
    let sum = format!("all-reduce of {}", size(bytes));
    let rows: [(&str, Cell); 10] = [
        ("queue pairs in all", |run| Some(run.queue_pairs.to_string())),
        ("of one process, at most", |run| Some(run.most_queue_pairs.to_string())),
        ("memory, planned", |run| Some(size(run.planned_bytes))),
        ("queue pairs made", |run| Some(run.measured.as_ref()?.queue_pairs_made.to_string())),
        ("memory, measured", |run| Some(size(run.measured.as_ref()?.memory_bytes))),
        ("connected after", |run| Some(time(run.measured.as_ref()?.connect_seconds * 1e6))),
        ("barrier", |run| Some(time(run.measured.as_ref()?.barrier_us))),
        ("all-reduce of 8 bytes", |run| Some(time(run.measured.as_ref()?.all_reduce_8_bytes_us))),
        (&sum, |run| Some(time(run.measured.as_ref()?.all_reduce_us))),
        ("  bandwidth", |run| Some(format!("{}/s", size(run.measured.as_ref()?.all_reduce_bytes_per_second as u64)))),
    ];
    write!(out, "  {:<26}", "")?;
    for run in runs {
        write!(out, " {TITLE_STYLE}{:>18}{TITLE_STYLE:#}", run.topology)?;
    }
    writeln!(out)?;
    for (name, cell) in rows {
        let cells: Vec<String> = runs.iter().filter_map(|run| cell(run)).collect();
        if cells.is_empty() {
            continue;
        }
        write!(out, "  {name:<26}")?;
        cells.iter().try_for_each(|cell| write!(out, " {cell:>18}"))?;
        writeln!(out)?;
    }
    Ok(())
}

/// Latencies from row to column: the slower, the warmer.
fn heat_map(topology: &str, measured: &Measured, out: &mut impl Write) -> io::Result<()> {
    let all = || measured.latency_us.iter().flatten().copied().filter(|latency| *latency > 0.0);
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    writeln!(
        out,
        "\n  {TITLE_STYLE}{topology}{TITLE_STYLE:#}: microseconds from row to column, {least:.1} to {most:.1}"
    )?;
    write!(out, "      ")?;
    measured.ranks.iter().try_for_each(|rank| write!(out, "{rank:>6}"))?;
    writeln!(out)?;
    for (rank, row) in measured.ranks.iter().zip(&measured.latency_us) {
        write!(out, "  {rank:>4}")?;
        for latency in row {
            if *latency <= 0.0 {
                write!(out, "{:>6}", "·")?;
                continue;
            }
            let style = warmth(*latency, least, most);
            let digits = if *latency < 99.95 { 1 } else { 0 };
            write!(out, "{style}{latency:>6.digits$}{style:#}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A colour between that of the least and that of the most, on a logarithmic scale.
fn warmth(value: f64, least: f64, most: f64) -> Style {
    const COLOURS: [u8; 7] = [22, 28, 64, 100, 136, 130, 124];
    let place = if most > least { (value / least).ln() / (most / least).ln() } else { 0.0 };
    let step = (place * (COLOURS.len() - 1) as f64).round() as usize;
    let colour = Ansi256Color(COLOURS[step.min(COLOURS.len() - 1)]);
    Style::new().bg_color(Some(colour.into())).fg_color(Some(AnsiColor::BrightWhite.into()))
}

/// All-reduce times of all runs: the shortest of each size is marked.
fn bars(runs: &[Run], bytes: u64, out: &mut impl Write) -> io::Result<()> {
    const WIDTH: f64 = 44.0;
    let time_of = |run: &Run| run.measured.as_ref().map(|measured| measured.all_reduce_us);
    let longest = runs.iter().filter_map(time_of).fold(0.0, f64::max);
    if longest == 0.0 {
        return Ok(());
    }
    writeln!(out, "{TITLE_STYLE}All-reduce of {}{TITLE_STYLE:#}", size(bytes))?;
    for run in runs {
        let Some(took) = time_of(run) else { continue };
        let same = runs.iter().filter(|other| other.processes == run.processes);
        let is_best = same.clone().count() > 1 && same.filter_map(time_of).all(|other| took <= other);
        let style = if is_best { GOOD_STYLE } else { Style::new() };
        let bar = "█".repeat(((took / longest * WIDTH).round() as usize).max(1));
        let mark = if is_best { " best" } else { "" };
        let (processes, topology) = (run.processes, &run.topology);
        writeln!(out, "  {processes:>3} {topology:<18} {style}{bar}{style:#} {}{mark}", time(took))?;
    }
    Ok(())
}

fn time(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.1} µs"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let digits = if value.fract() < 0.05 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}
