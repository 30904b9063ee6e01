//! What the demo says, as text while it runs or as one JSON document at its end.

use super::alice::{Alice, Step};
use crate::acts::{Act, known};
use crate::exit::Failure;
use crate::measure::Figures;
use crate::meeting::{Hello, Meeting};
use crate::style;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Keeps what was seen, and tells it.
pub struct Report {
    json: bool,
    sides: [Hello; 2],
    connection: Value,
    steps: Vec<Step>,
    figures: Option<Figures>,
    wanted: bool,
    failure: Option<String>,
}

impl Report {
    pub fn new(meeting: &Meeting, json: bool) -> Report {
        let alice = Hello {
            process: std::process::id(),
            device: meeting.station.context.name().into(),
            address: meeting.station.address,
            ..meeting.peer.clone()
        };
        let sides = [alice, meeting.peer.clone()];
        Report { json, sides, connection: Value::Null, steps: Vec::new(), figures: None, wanted: false, failure: None }
    }

    /// Whether everything went well.
    pub fn good(&self) -> bool {
        let measured = !self.wanted || self.figures.is_some();
        self.failure.is_none()
            && measured
            && self.steps.len() == Act::ALL.len()
            && self.steps.iter().all(|step| step.right)
    }

    pub fn failed(&mut self, failure: &Failure) {
        self.failure = Some(failure.told());
    }

    pub fn open(&mut self, meeting: &Meeting, alice: &Alice, out: &mut impl Write) -> io::Result<()> {
        let qpns = [alice.qp.qpn().to_string(), alice.bob.qpn().to_string()];
        self.connection =
            json!({ "mtu": alice.mtu, "link": alice.qp.link(), "queue_pairs": qpns, "one_machine": meeting.local });
        if self.json {
            return Ok(());
        }
        writeln!(out, "ubiverbs demo: RDMA between two processes\n")?;
        for ((name, side), qpn) in ["alice", "bob"].iter().zip(&self.sides).zip(&qpns) {
            let Hello { process, device, address, .. } = side;
            writeln!(out, "  {name:<5}  process {process:<8}  {device}  {address}  queue pair {qpn}")?;
        }
        writeln!(out)?;
        writeln!(
            out,
            "Each process has a NIC of its own making, in user space: no kernel module, no root, no hardware."
        )?;
        match alice.qp.link() {
            "shared memory" => {
                writeln!(out, "They are of one host and one user, so their messages go through shared memory; with")?;
                writeln!(out, "UBIVERBS_LINK=udp packets go over UDP, as between hosts. Path MTU {}.\n", alice.mtu)?;
            }
            _ => writeln!(out, "Packets between them are RoCEv2 on UDP port 4791, path MTU {}.\n", alice.mtu)?,
        }
        writeln!(
            out,
            "0. Both made a queue pair, told each other its number and first sequence number, and walked it"
        )?;
        writeln!(out, "   from RESET over INIT and RTR (ready to receive) to RTS (ready to send).")?;
        writeln!(out, "   Bob shares memory: {}.", alice.there)?;
        out.flush()
    }

    pub fn heading(&self, act: Act, out: &mut impl Write) -> io::Result<()> {
        if self.json {
            return Ok(());
        }
        let mtu = self.connection["mtu"].as_u64().unwrap_or(1).max(1) as usize;
        let bold = style::TITLE_STYLE;
        writeln!(out, "\n{bold}{}. {}{bold:#}", act as usize + 1, title(act))?;
        for line in mechanism(act, mtu) {
            writeln!(out, "   {line}")?;
        }
        out.flush()
    }

    pub fn step(&mut self, step: Step, out: &mut impl Write) -> io::Result<()> {
        if !self.json {
            let (verdict, style) = match (step.right, step.act) {
                (true, Act::WrongKey) => ("ok, it failed as it should", style::GOOD_STYLE),
                (true, _) => ("ok", style::GOOD_STYLE),
                (false, _) => ("FAILED", style::BAD_STYLE),
            };
            let (alice, bob) = (style::ALICE_STYLE, style::BOB_STYLE);
            writeln!(out, "   {alice}alice:{alice:#} {}", step.alice.replace(" (hint: ", "\n          (hint: "))?;
            writeln!(out, "   {bob}bob:{bob:#}   {}", step.bob)?;
            writeln!(out, "   {style}{verdict}:{style:#} {}, {:.1} us", step.status, step.took.as_secs_f64() * 1e6)?;
            out.flush()?;
        }
        self.steps.push(step);
        Ok(())
    }

    pub fn measuring(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.wanted = true;
        if self.json {
            return Ok(());
        }
        writeln!(out, "\nNow the same two processes measure, RDMA and TCP in alternating runs ...")?;
        out.flush()
    }

    pub fn figures(&mut self, figures: Figures, out: &mut impl Write) -> io::Result<()> {
        if !self.json {
            write!(out, "\n{figures}")?;
        }
        self.figures = Some(figures);
        Ok(())
    }

    /// There is nothing to compare with.
    pub fn unmeasured(&mut self, why: &Failure, out: &mut impl Write) -> io::Result<()> {
        self.wanted = false;
        if self.json { Ok(()) } else { writeln!(out, "   not measured: {}", why.told()) }
    }

    /// The last words.
    pub fn close(&self, out: &mut impl Write) -> io::Result<()> {
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &self.document())?;
            return writeln!(out);
        }
        let (good, bad, command) = (style::GOOD_STYLE, style::BAD_STYLE, style::COMMAND_STYLE);
        match (&self.failure, self.steps.iter().find(|step| !step.right)) {
            (Some(_), _) => writeln!(out, "\n{bad}The demo could not go on after {} steps.{bad:#}", self.steps.len()),
            (None, Some(step)) => writeln!(out, "\n{bad}The demo failed:{bad:#} {}", title(step.act)),
            (None, None) => {
                writeln!(
                    out,
                    "\n{good}All {} steps went as they should, and every byte was verified.{good:#}",
                    self.steps.len()
                )?;
                let more = "ubiverbs bench; ubiverbs explain REM_ACCESS; ubiverbs demo --simulated";
                writeln!(out, "More: {command}{more}{command:#}")
            }
        }
    }

    fn document(&self) -> Value {
        let side = |side: &Hello| json!({ "process": side.process, "device": side.device, "address": side.address });
        let steps: Vec<Value> = self.steps.iter().map(step_document).collect();
        json!({
            "ok": self.good(),
            "simulated": false,
            "error": self.failure,
            "alice": side(&self.sides[0]),
            "bob": side(&self.sides[1]),
            "connection": self.connection,
            "steps": steps,
            "figures": self.figures.as_ref().map(Figures::document),
        })
    }
}

fn step_document(step: &Step) -> Value {
    json!({
        "step": step.act,
        "title": title(step.act),
        "ok": step.right,
        "status": step.status.name(),
        "bytes": step.bytes,
        "nanoseconds": step.took.as_nanos() as u64,
        "alice": step.alice,
        "bob": step.bob,
    })
}

fn title(act: Act) -> String {
    let (size, short, datagram) = (known::SIZE, known::SHORT, known::DATAGRAM);
    match act {
        Act::Send => "SEND: alice sends a message, bob has posted a receive for it; bob answers.".into(),
        Act::Write => format!("WRITE: alice writes {size} bytes into bob's memory. Bob's program does nothing."),
        Act::WriteImmediate => {
            format!("WRITE with immediate: alice writes {short} bytes, and this time bob is told, with a number.")
        }
        Act::Read => format!("READ: alice fetches {size} bytes of bob's memory. Bob's program does nothing."),
        Act::FetchAdd => {
            format!("FETCH_ADD: alice adds {} to a counter of bob's that stands at {}.", known::ADDED, known::COUNTER)
        }
        Act::CompareSwap => {
            let expected = known::COUNTER + known::ADDED;
            format!("COMPARE_SWAP: alice swaps {expected} for {} if it is {expected}. Twice.", known::SWAPPED)
        }
        Act::Datagram => {
            format!("Datagrams: alice sends {datagram} bytes to a queue pair that is not connected to hers.")
        }
        Act::WrongKey => "A failure, on purpose: alice writes with a wrong key.".into(),
    }
}

/// What the NICs do for it.
fn mechanism(act: Act, mtu: usize) -> Vec<String> {
    let packets = |bytes: usize| match bytes.div_ceil(mtu) {
        1 => "one packet".to_owned(),
        count => format!("{count} packets"),
    };
    let lines: &[&str] = match act {
        Act::Send => &[
            "Her NIC sends it from her memory; bob's takes the oldest receive, puts the bytes there, completes it",
            "and acknowledges. The acknowledgement completes her SEND.",
        ],
        Act::Write => &[
            "Each packet says where its bytes go: an address and a key of bob's. His NIC checks the key, the range",
            "and the right to write, and puts the bytes there. His program sleeps meanwhile.",
        ],
        Act::WriteImmediate => {
            &["The last packet carries the number; it uses up a receive of bob's, which completes with it."]
        }
        Act::Read => &["One request goes out; bob's NIC answers it from his memory, as many packets as it takes."],
        Act::FetchAdd => &["Bob's NIC does it with an atomic instruction of his processor and returns the old value."],
        Act::CompareSwap => &["The answer is what was there before: that is how she knows whether it was swapped."],
        Act::Datagram => &[
            "One packet, no connection, no acknowledgement: it may be lost. Bob's receive gets 40 bytes of network",
            "header before the message; from them he knows whom to answer.",
        ],
        Act::WrongKey => &[
            "Bob's NIC knows no memory by that key, writes nothing, and answers with a NAK (remote access error).",
            "The queue pair goes to ERR on alice's side; only another one, or a reset, can go on from there.",
        ],
    };
    let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    match act {
        Act::Write => lines.insert(0, format!("Her NIC cuts it into {} of up to {mtu} bytes.", packets(known::SIZE))),
        Act::WriteImmediate => lines.insert(0, format!("That makes {} of up to {mtu} bytes.", packets(known::SHORT))),
        _ => {}
    }
    lines
}
