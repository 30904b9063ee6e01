//! The goals: what ratios the figures should have, on a quiet machine with a processor for each side, and what they
//! have.

use super::Outcome;
use crate::measure::{Carrier, Kind, Point, WaitMode, machine};
use crate::style;
use serde_json::{Value, json};
use std::fmt::Write;

/// A goal, and how far it is reached.
pub struct Goal {
    /// What scripts call it.
    pub name: &'static str,
    what: &'static str,
    bound: Bound,
    /// None: this run did not measure it.
    measured: Option<f64>,
    /// Of the rounds.
    spread: Option<[f64; 2]>,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

use Bound::{AtLeast, AtMost};

impl Goal {
    pub fn met(&self) -> Option<bool> {
        self.measured.map(|measured| match self.bound {
            AtMost(bound) => measured <= bound,
            AtLeast(bound) => measured >= bound,
        })
    }
}

/// All goals.
pub fn of(outcome: &Outcome) -> Vec<Goal> {
    let trip = |carrier, waiting| Point::new(Kind::RoundTrip, carrier, waiting, 64);
    let stream = |carrier, size| Point::new(Kind::Stream, carrier, WaitMode::Spin, size);
    // Where the engine has no processor of its own it takes turns with the program that looks at nothing but memory.
    let alone = if machine::processors() >= 4 { 0.25 } else { 1.0 };
    let memory = trip(Carrier::Write, WaitMode::Memory);
    // Where all is UDP, the first pair's figures are UDP's.
    let udp = |point: Point| if outcome.link == super::LINK_UDP { point } else { point.over_udp() };
    let beside_tcp = [
        ("send_latency", "64 B SEND round trip / TCP, spinning", AtMost(0.12), trip(Carrier::Send, WaitMode::Spin)),
        ("write_latency", "64 B WRITE round trip, target looks at memory only / TCP, spinning", AtMost(alone), memory),
        (
            "event_latency",
            "64 B SEND round trip, blocking / TCP, blocking",
            AtMost(0.75),
            trip(Carrier::Send, WaitMode::Sleep),
        ),
        (
            "epoll_latency",
            "64 B SEND round trip, epoll / TCP, blocking",
            AtMost(1.3),
            trip(Carrier::Send, WaitMode::Epoll),
        ),
        ("write_bandwidth", "1 MiB WRITE bandwidth / TCP", AtLeast(2.0), stream(Carrier::Write, 1 << 20)),
        ("read_bandwidth", "1 MiB READ bandwidth / TCP", AtLeast(2.0), stream(Carrier::Read, 1 << 20)),
        ("send_bandwidth", "64 KiB SEND bandwidth / TCP", AtLeast(1.8), stream(Carrier::Send, 64 << 10)),
        (
            "udp_latency",
            "UDP: 64 B SEND round trip / TCP, spinning",
            AtMost(0.9),
            udp(trip(Carrier::Send, WaitMode::Spin)),
        ),
        ("udp_bandwidth", "UDP: 1 MiB WRITE bandwidth / TCP", AtLeast(1.0), udp(stream(Carrier::Write, 1 << 20))),
    ];
    let shared_only = |point: &Point| point.udp || outcome.link != super::LINK_UDP;
    let mut goals: Vec<Goal> = beside_tcp
        .into_iter()
        .map(|(name, what, bound, point)| {
            let fits = shared_only(&point) || name.starts_with("udp");
            let row = outcome.find(point).filter(|_| fits);
            let measured = row.and_then(|row| outcome.ratio(row));
            let spread = row.and_then(|row| row.ratios(outcome.tcp(row)?));
            Goal { name, what, bound, measured, spread }
        })
        .collect();
    let batches =
        outcome.find(Point::new(Kind::Batch, Carrier::Write, WaitMode::Spin, 8)).filter(|row| shared_only(&row.point));
    goals.push(Goal {
        name: "write_rate",
        what: "8 B WRITEs in batches, one queue pair, millions per second",
        bound: AtLeast(5.0),
        measured: batches.map(|row| row.messages_per_second / 1e6),
        spread: batches.and_then(|row| row.spread()).map(|spread| spread.map(|rate| rate / 1e6)),
    });
    let crowds = || outcome.crowds().map(|(_, row)| row).filter(|row| shared_only(&row.point));
    let (fewest, most) = (crowds().next(), crowds().last());
    goals.push(Goal {
        name: "queue_pairs",
        what: "64 B WRITE with 10,000 queue pairs in turn / with 10",
        bound: AtMost(1.2),
        measured: fewest.zip(most).map(|(fewest, most)| fewest.ratio(most)),
        spread: fewest.zip(most).and_then(|(fewest, most)| fewest.ratios(most)),
    });
    let worst = outcome.find(memory).filter(|row| shared_only(&row.point));
    goals.push(Goal {
        name: "write_stall",
        what: "the longest 64 B WRITE round trip, target looks at memory only, milliseconds",
        bound: AtMost(5.0),
        measured: worst.map(|row| row.summary.max as f64 / 1e6),
        spread: None,
    });
    goals
}

/// As a table; nothing if none was measured.
pub fn table(outcome: &Outcome, text: &mut String) -> std::fmt::Result {
    let goals = of(outcome);
    if goals.iter().all(|goal| goal.measured.is_none()) {
        return Ok(());
    }
    writeln!(text, "Goals, on a quiet machine (in brackets: the least and the greatest of the rounds)")?;
    for goal in &goals {
        let bound = match goal.bound {
            AtMost(bound) => format!("at most {bound}"),
            AtLeast(bound) => format!("at least {bound}"),
        };
        let measured = goal.measured.map_or("not measured".into(), |measured| format!("{measured:.2}"));
        let spread = goal.spread.map(|[least, greatest]| format!("({least:.2}..{greatest:.2})")).unwrap_or_default();
        let (met, style) = match goal.met() {
            Some(true) => ("met", style::GOOD_STYLE),
            Some(false) => ("missed", style::WARNING_STYLE),
            None => ("", style::TITLE_STYLE),
        };
        writeln!(text, "  {:<78} {bound:<14} {measured:>12} {spread:<18} {style}{met}{style:#}", goal.what)?;
    }
    writeln!(text)
}

/// As JSON.
pub fn document(outcome: &Outcome) -> Vec<Value> {
    let document = |goal: &Goal| {
        let (at_most, at_least) = match goal.bound {
            AtMost(bound) => (Some(bound), None),
            AtLeast(bound) => (None, Some(bound)),
        };
        json!({
            "name": goal.name,
            "what": goal.what,
            "measured": goal.measured,
            "spread": goal.spread,
            "at_most": at_most,
            "at_least": at_least,
            "met": goal.met(),
        })
    };
    of(outcome).iter().map(document).collect()
}
