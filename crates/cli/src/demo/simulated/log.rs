//! The packet log: one line per packet as it enters the wire, and one for everything the queue pairs have to say about
//! it. Kept as values, so that text and JSON tell the same story.

use serde_json::{Value, json};
use sim::{Outcome, Passing, QpId, Shared, Sim};
use std::io::{self, Write};
use trace::{Event, Kind};
use wire::Packet;

/// Collects what happens.
#[derive(Clone)]
pub struct Log {
    lines: Shared<Lines>,
    counters: Shared<trace::Counters>,
}

#[derive(Default)]
struct Lines {
    lines: Vec<Line>,
    printed: usize,
}

struct Line {
    at: u64,
    /// Names of sender and receiver, or of the host that speaks.
    who: (String, Option<String>),
    text: String,
    what: What,
}

enum What {
    Packet { lost: bool, damaged: bool, again: bool, payload: usize, opcode: &'static str, psn: u32 },
    Note(&'static str),
}

impl Log {
    /// A log of a simulation with these two queue pairs, from now on.
    pub fn attach(sim: &mut Sim, ends: [QpId; 2]) -> Log {
        let log = Log { lines: Shared::new(Lines::default()), counters: Shared::new(trace::Counters::new()) };
        sim.trace(log.counters.clone());
        let names: Vec<String> = ends.iter().map(|end| sim.host_name(end.host).to_string()).collect();
        let (lines, of) = (log.lines.clone(), names.clone());
        sim.watch(move |passing| {
            let who = (of[passing.sighting.from.index()].clone(), Some(of[passing.sighting.to.index()].clone()));
            lines.borrow_mut().lines.push(packet_line(passing, who));
        });
        let lines = log.lines.clone();
        sim.observe(move |host, event| {
            if worth_a_line(event) {
                let who = (names[host.index()].clone(), None);
                let what = What::Note(event.kind.name());
                let text = text_of(event);
                lines.borrow_mut().lines.push(Line { at: event.at, who, text, what });
            }
        });
        log
    }

    /// Prints the lines that were not printed yet.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let mut lines = self.lines.borrow_mut();
        for line in &lines.lines[lines.printed..] {
            line.print(out)?;
        }
        lines.printed = lines.lines.len();
        Ok(())
    }

    /// How often each thing happened.
    pub fn counters(&self) -> Shared<trace::Counters> {
        self.counters.clone()
    }

    /// Packets that had been sent before.
    pub fn retransmitted(&self) -> u64 {
        let again = |line: &&Line| matches!(line.what, What::Packet { again: true, .. });
        self.lines.borrow().lines.iter().filter(again).count() as u64
    }

    /// All of it.
    pub fn json(&self) -> Vec<Value> {
        self.lines.borrow().lines.iter().map(Line::json).collect()
    }
}

/// A packet speaks for itself when it is sent, timers are noise to a reader, and the demo's own calls are in its
/// headings.
fn worth_a_line(event: &Event) -> bool {
    match event.kind {
        Kind::Retry { .. } | Kind::Completed { .. } | Kind::AccessRefused { .. } => true,
        // Losses on the wire are marked at their packet; these are the receiver's.
        Kind::PacketDropped { reason, .. } => {
            !matches!(reason, trace::DropReason::RandomLoss | trace::DropReason::Partitioned)
        }
        Kind::StateChanged { .. } | Kind::AsyncEvent { .. } => true,
        _ => false,
    }
}

/// The event in its own words, except where the line above has just said half of them.
fn text_of(event: &Event) -> String {
    match event.kind {
        Kind::PacketDropped { headers: Some(headers), reason } => format!("ignores psn {}: {reason}", headers.bth.psn),
        kind => kind.to_string(),
    }
}

fn packet_line(passing: &Passing<'_>, who: (String, Option<String>)) -> Line {
    let sighting = &passing.sighting;
    let packet = Packet { headers: *sighting.headers, payload: sighting.payload };
    let lost = matches!(passing.outcome, Outcome::Lost(_));
    let damaged = matches!(passing.outcome, Outcome::Arrives { corrupt: true, .. });
    let mut text = packet.to_string();
    if sighting.retransmission {
        text.push_str("  (again)");
    }
    if lost {
        text.push_str("  LOST");
    }
    let bth = &sighting.headers.bth;
    let what = What::Packet {
        lost,
        damaged,
        again: sighting.retransmission,
        payload: sighting.payload.len(),
        opcode: bth.opcode.name(),
        psn: bth.psn.value(),
    };
    Line { at: sighting.at.as_nanos(), who, text, what }
}

impl Line {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let time = format!("{}.{:03}", self.at / 1000, self.at % 1000);
        match (&self.what, &self.who) {
            (What::Packet { lost, .. }, (from, Some(to))) => {
                // One direction points right, the other left, so that the eye can follow.
                let arrow = match (from < to, lost) {
                    (true, false) => "-->",
                    (true, true) => "--X",
                    (false, false) => "<--",
                    (false, true) => "X--",
                };
                let (left, right) = if from < to { (from, to) } else { (to, from) };
                writeln!(out, "{time:>12} us  {left} {arrow} {right}  {}", self.text)
            }
            (_, (host, _)) => writeln!(out, "{time:>12} us  {:15}* {host}: {}", "", self.text),
        }
    }

    fn json(&self) -> Value {
        match &self.what {
            What::Packet { lost, damaged, again, payload, opcode, psn } => json!({
                "at_ns": self.at,
                "kind": "packet",
                "from": self.who.0,
                "to": self.who.1,
                "opcode": opcode,
                "psn": psn,
                "payload_bytes": payload,
                "retransmission": again,
                "lost": lost,
                "damaged": damaged,
                "text": self.text,
            }),
            What::Note(kind) => json!({ "at_ns": self.at, "kind": kind, "host": self.who.0, "text": self.text }),
        }
    }
}
