//! `ubiverbs why`: explains the logs of earlier runs, and lays those of both ends of a connection side by side.

use crate::exit::{Exit, Failure};
use crate::style;
use checks::{Absent, Between, Checker, Finding, Settings, Severity, Subject};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use trace::{Event, JsonReader, Logged, ReadError};

/// Explain what failed in logs of earlier runs
///
/// Reads logs of events as JSON, which `ubiverbs run --log FILE` (UBIVERBS_LOG=FILE) writes, and explains every
/// failed completion, refused call, dropped packet and stalled queue pair in them. With the logs of both ends of a
/// connection, what one side saw is shown beside what the other side knows about it.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Logs of events, one JSON object per line
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Check against the rules of verbs, too
    #[arg(long)]
    check: bool,
    /// Print one JSON object per line instead of text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  ubiverbs why client.log
  ubiverbs why client.log server.log
  ubiverbs why --json client.log | jq .rule";

/// Of one process of one log.
struct Report {
    /// The log, and the process or host in it.
    name: String,
    findings: Vec<Finding>,
    /// How often each rule was broken about each subject.
    counts: BTreeMap<(checks::Number, Subject), u64>,
}

/// Explains.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    let settings = if options.check { Settings::all() } else { Settings::why() };
    let mut reports = Vec::new();
    for path in &options.logs {
        let file = File::open(path).map_err(|source| Failure::Open { path: path.clone(), source })?;
        let failed = |source| Failure::Log { path: path.clone(), source };
        reports.extend(explain(path, &mut JsonReader::new(BufReader::new(file)), &settings).map_err(failed)?);
    }
    let written = if options.json { print_json(&reports, out) } else { print(&reports, out) };
    written.map_err(Failure::Output)?;
    Ok(Exit::Ok)
}

/// How often a checker is told that time has passed, in nanoseconds of the log.
const TICK: u64 = 500_000_000;

/// A checker of one process, and what it has found.
struct Inspector {
    checker: Checker,
    findings: Vec<Finding>,
    ticked: u64,
    last: u64,
}

impl Inspector {
    fn see(&mut self, event: &Event) {
        let Inspector { checker, findings, ticked, last } = self;
        let mut found = |finding| findings.push(finding);
        if event.at.saturating_sub(*ticked) >= TICK {
            checker.tick(event.at, &mut Absent, &mut found);
            *ticked = event.at;
        }
        *last = event.at;
        checker.observe(event, &mut Absent, &mut found);
    }

    fn report(mut self, name: String) -> Report {
        let (checker, findings) = (&mut self.checker, &mut self.findings);
        checker.finish(self.last, &mut Absent, &mut |finding| findings.push(finding));
        let counts = checker.counts().map(|(rule, subject, count)| ((rule, subject), count)).collect();
        Report { name, findings: self.findings, counts }
    }
}

/// Reads a log to its end: one report for each process and host that wrote to it.
fn explain<R: io::BufRead>(
    path: &Path,
    log: &mut JsonReader<R>,
    settings: &Settings,
) -> Result<Vec<Report>, ReadError> {
    let mut inspectors: BTreeMap<(Option<String>, Option<u32>), Inspector> = BTreeMap::new();
    while let Some(Logged { event, source, process, .. }) = log.next_event()? {
        let inspector = inspectors.entry((source, process)).or_insert_with(|| Inspector {
            checker: Checker::new(settings.clone()),
            findings: Vec::new(),
            ticked: event.at,
            last: event.at,
        });
        inspector.see(&event);
    }
    if log.skipped() > 0 {
        let warning = style::WARNING;
        anstream::eprintln!(
            "{warning}ubiverbs:{warning:#} {}: {} lines are no events that this version knows, and were skipped",
            path.display(),
            log.skipped()
        );
    }
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    let several = inspectors.len() > 1;
    let named = |source: Option<String>, process: Option<u32>| match (source, process) {
        (Some(source), _) => format!("{name} ({source})"),
        (None, Some(process)) if several => format!("{name} (process {process})"),
        _ => name.clone(),
    };
    Ok(inspectors.into_iter().map(|((source, process), one)| one.report(named(source, process))).collect())
}

/// A finding of one report, and one of another about the same connection.
struct Sides<'a> {
    connection: Between,
    here: (&'a Report, &'a Finding),
    there: (&'a Report, &'a Finding),
}

/// Lays findings of different reports about one connection side by side: what failed first, what the other end knows
/// second.
fn sides(reports: &[Report]) -> Vec<Sides<'_>> {
    let all = || reports.iter().flat_map(|report| report.findings.iter().map(move |finding| (report, finding)));
    let mut sides: Vec<Sides<'_>> = Vec::new();
    for (report, finding) in all() {
        let Some(connection) = finding.connection else { continue };
        // The side that is told of a failure names the other; the end that refused is its answer.
        if !is_told_by_requester(finding) {
            continue;
        }
        let others = all().filter(|(other, answer)| !std::ptr::eq(*other, report) && answers(answer, connection));
        let best = others.min_by_key(|(_, answer)| {
            let same_packet = answer.connection.and_then(|other| other.psn) == connection.psn;
            (!same_packet, std::cmp::Reverse(answer.severity))
        });
        if let Some(there) = best {
            sides.push(Sides { connection, here: (report, finding), there });
        }
    }
    sides
}

/// Failed work, and work that stands still.
fn is_told_by_requester(finding: &Finding) -> bool {
    matches!(finding.rule.0, 100..200 | 910..913)
}

/// Whether a finding of the other end is about this connection, or about packets that were sent there.
fn answers(finding: &Finding, connection: Between) -> bool {
    match finding.connection {
        Some(other) => other.local == connection.peer && other.peer == connection.local,
        None => finding.subject == Subject::QueuePair(connection.peer),
    }
}

fn print(reports: &[Report], out: &mut impl Write) -> io::Result<()> {
    let title = style::TITLE;
    for report in reports {
        writeln!(out, "{title}{}{title:#}", report.name)?;
        if report.findings.is_empty() {
            writeln!(out, "nothing failed")?;
        }
        for finding in &report.findings {
            let colour = match finding.severity {
                Severity::Error => style::BAD,
                Severity::Warning => style::WARNING,
                _ => style::TITLE,
            };
            let text = finding.to_string();
            let (word, rest) = text.split_once(':').unwrap_or(("", &text));
            writeln!(out, "{colour}{word}:{colour:#}{rest}")?;
            let count = report.counts.get(&(finding.rule, finding.subject)).copied().unwrap_or(1);
            if count > 1 {
                writeln!(out, "  times: {count}")?;
            }
        }
        writeln!(out)?;
    }
    for Sides { connection, here, there } in sides(reports) {
        let psn = connection.psn.map_or_else(String::new, |psn| format!(", PSN {psn}"));
        writeln!(
            out,
            "{title}Both ends{title:#}: QP {} of {} and QP {} of {}{psn}",
            connection.local, here.0.name, connection.peer, there.0.name
        )?;
        for (report, finding) in [here, there] {
            writeln!(out, "  {}: {} [{}]", report.name, finding.what, finding.rule)?;
            for line in finding.cause.iter().chain(&finding.evidence) {
                writeln!(out, "    {line}")?;
            }
        }
        writeln!(out, "  do: {}\n", there.1.advice)?;
    }
    Ok(())
}

fn print_json(reports: &[Report], out: &mut impl Write) -> io::Result<()> {
    let document = |report: &Report, finding: &Finding| {
        let mut value: Value = serde_json::from_str(&finding.json(None)).unwrap_or_default();
        value["log"] = json!(report.name);
        value["count"] = json!(report.counts.get(&(finding.rule, finding.subject)).copied().unwrap_or(1));
        value
    };
    for report in reports {
        for finding in &report.findings {
            writeln!(out, "{}", document(report, finding))?;
        }
    }
    for Sides { here, there, .. } in sides(reports) {
        writeln!(out, "{}", json!({ "both_ends": [document(here.0, here.1), document(there.0, there.1)] }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{Access, Call, DropReason, Failure as Failed, JsonLines, Kind, Queue, RefusalCause, Sink};
    use wire::{Headers, Key, NakCode, Opcode, Psn, Qpn};

    const HERE: Qpn = Qpn::new(0x11);
    const THERE: Qpn = Qpn::new(0x12);

    fn event(qpn: Qpn, kind: Kind) -> Event {
        Event { at: 1, qpn: Some(qpn), kind }
    }

    /// The log of one end, connected to the other.
    fn log(qpn: Qpn, peer: Qpn, more: &[Event]) -> Vec<u8> {
        let connected = Call::ModifyQp {
            state: None,
            pkey_index: None,
            port: None,
            access: None,
            qkey: None,
            path_mtu: None,
            dest_qpn: Some(peer),
            rq_psn: None,
            sq_psn: None,
            max_rd_atomic: None,
            max_dest_rd_atomic: None,
            min_rnr_timer: None,
            timeout: None,
            retry_cnt: None,
            rnr_retry: None,
            dgid: None,
            sgid_index: None,
        };
        let cause = trace::StateCause::Modify;
        let mut lines = JsonLines::new(Vec::new());
        lines.record(&event(qpn, Kind::StateChanged { from: "RESET", to: "RTS", cause }));
        lines.record(&event(qpn, Kind::Called { thread: 1, call: connected }));
        more.iter().for_each(|event| lines.record(event));
        lines.finish().unwrap()
    }

    fn failed(status: &'static str, failure: Failed) -> Event {
        let (queue, opcode) = (Queue::Send, "RDMA_WRITE");
        event(HERE, Kind::Completed { wr_id: 7, queue, status, opcode, bytes: 0, failure: Some(failure) })
    }

    fn told(logs: &[(&str, Vec<u8>)]) -> String {
        let explained = logs.iter().flat_map(|(name, log)| {
            explain(Path::new(name), &mut JsonReader::new(&log[..]), &Settings::why()).unwrap()
        });
        let mut out = Vec::new();
        print(&explained.collect::<Vec<_>>(), &mut out).unwrap();
        anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string()
    }

    #[test]
    fn a_refusal_is_laid_beside_what_the_other_end_knows() {
        let nak = Failed::Nak { code: NakCode::RemoteAccess, psn: Psn::new(100), peer: None };
        let client = log(HERE, THERE, &[failed("IBV_WC_REM_ACCESS_ERR", nak)]);
        let (key, access, cause) = (Key::new(0x77), Access::REMOTE_WRITE, RefusalCause::NotPermitted);
        let refused = Kind::AccessRefused { key, address: 0x1000, length: 64, access, cause };
        let told_program = Kind::AsyncEvent { name: "IBV_EVENT_QP_ACCESS_ERR" };
        let server = log(THERE, HERE, &[event(THERE, refused), event(THERE, told_program)]);
        let text = told(&[("client.log", client), ("server.log", server)]);
        let both = text.split_once("Both ends: ").unwrap_or_else(|| panic!("{text}")).1;
        assert!(both.starts_with("QP 0x11 of client.log and QP 0x12 of server.log, PSN 100\n"), "{both}");
        assert!(
            both.contains("client.log: work request 7 (RDMA_WRITE) on QP 0x11 failed with REM_ACCESS_ERR"),
            "{both}"
        );
        assert!(both.contains("64 bytes at 0x1000 behind key 0x77: the region does not grant this access"), "{both}");
    }

    #[test]
    fn silence_is_laid_beside_the_packets_that_were_dropped() {
        let silence = Failed::NoAnswer { psn: Psn::new(100), tries: 8 };
        let client = log(HERE, THERE, &[failed("IBV_WC_RETRY_EXC_ERR", silence)]);
        let headers = Some(Headers::new(Opcode::RcSendOnly, THERE, Psn::new(100)));
        let kind = Kind::PacketDropped { headers, reason: DropReason::UnknownQp };
        let mut server = JsonLines::new(Vec::new());
        server.record(&Event { at: 1, qpn: None, kind });
        let text = told(&[("client.log", client), ("server.log", server.finish().unwrap())]);
        let both = text.split_once("Both ends: ").unwrap_or_else(|| panic!("{text}")).1;
        assert!(both.contains("server.log: a packet (RC SEND Only, PSN 100) for QP 0x12 was dropped"), "{both}");
    }

    #[test]
    fn processes_of_one_log_are_told_apart_and_an_error_names_its_line() {
        let line = |pid| format!("{{\"at\":1,\"pid\":{pid},\"event\":\"capture_ended\",\"errno\":1}}\n");
        let text = told(&[("both.log", [line(1), line(2)].concat().into_bytes())]);
        assert!(
            text.contains("both.log (process 1)\nnothing failed") && text.contains("both.log (process 2)"),
            "{text}"
        );
        let mut reader = JsonReader::new(&b"{}\nno log\n"[..]);
        let Err(error) = explain(Path::new("a"), &mut reader, &Settings::why()) else { panic!("it is no log") };
        let error = Failure::Log { path: "a".into(), source: error };
        assert!(error.to_string().starts_with("cannot read a: line 2: no JSON object"), "{error}");
    }
}
