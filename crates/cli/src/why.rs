//! `ubiverbs why`: explains the logs of earlier runs, and lays those of both ends of a connection side by side.

use crate::exit::{Exit, Failure};
use crate::races;
use crate::style;
use crate::view::source::{self, Source};
use checks::{Absent, Between, Checker, Finding, Settings, Severity, Subject};
use clap::Args;
use recording::Entry;
use recording::header::FILE_MAGIC;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use trace::{Call, Event, JsonReader, Kind, Logged};

/// Explain what failed in logs of earlier runs
///
/// Reads logs of events as JSON, which `ubiverbs run --log FILE` (UBIVERBS_LOG=FILE) writes, and explains every
/// failed completion, refused call, dropped packet and stalled queue pair in them. With the logs of both ends of a
/// connection, what one side saw is shown beside what the other side knows about it.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    /// Logs of events, one JSON object per line; `-` is standard input. Or recordings (`--record DIR`), or their directory
    ///
    /// Lines that are no events are skipped and counted: a log on standard error has those of the program in between.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Check against the rules of verbs, too
    #[arg(long)]
    check: bool,
    /// Look for races between the processes whose recordings these are, instead of what failed in each
    #[arg(long, conflicts_with = "check")]
    races: bool,
    /// Print one JSON object per line instead of text
    #[arg(long)]
    json: bool,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs why client.log
  ubiverbs why client.log server.log
  ubiverbs why --races recordings/
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
    if options.races {
        return races(options, out);
    }
    let mut reports = Vec::new();
    for path in &options.logs {
        if is_recording(path) {
            for file in source::files(std::slice::from_ref(path))? {
                reports.push(explain_recording(&file, &settings)?);
            }
            continue;
        }
        let log: Box<dyn io::BufRead> = match path.as_os_str().as_encoded_bytes() {
            b"-" => Box::new(io::stdin().lock()),
            _ => {
                let file = File::open(path).map_err(|source| Failure::Read { path: path.clone(), source })?;
                Box::new(BufReader::new(file))
            }
        };
        reports.extend(explain(path, &mut JsonReader::new(log), &settings)?);
    }
    let written = if options.json { print_json(&reports, out) } else { print(&reports, out) };
    written.map_err(Failure::Output)?;
    Ok(Exit::Ok)
}

/// Reads the recordings of all processes together.
fn races(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    if let Some(log) = options.logs.iter().find(|path| !is_recording(path)) {
        let reason = "races are found in recordings (`ubiverbs run --record DIR`), and this is none".to_owned();
        return Err(Failure::Argument { option: "--races", text: log.display().to_string(), reason });
    }
    let files = source::files(&options.logs)?;
    let outcome = races::look(&files, &Settings { races: true, ..Settings::default() })?;
    let warning = style::WARNING_STYLE;
    for note in &outcome.notes {
        anstream::eprintln!("{warning}ubiverbs:{warning:#} {}", trace::printable(note));
    }
    let mut write = || -> io::Result<()> {
        for race in &outcome.races {
            if options.json {
                writeln!(out, "{}", race.json())?;
            } else {
                writeln!(out, "{} {}", race.stamp, race.text())?;
            }
        }
        if !options.json {
            writeln!(out, "{}", outcome.summary())?;
        }
        Ok(())
    };
    write().map_err(Failure::Output)?;
    Ok(Exit::Ok)
}

/// How often a checker is shown that time has passed, in nanoseconds of the log.
const TICK_NANOS: u64 = 500_000_000;

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
        if event.at.saturating_sub(*ticked) >= TICK_NANOS {
            checker.tick(event.at, &mut Absent, &mut found);
            *ticked = event.at;
        }
        *last = event.at;
        checker.observe(event, &mut Absent, &mut found);
    }

    /// What was found. What is left when a program ends is known only if the log goes so far.
    fn report(mut self, name: String, is_whole: bool) -> Report {
        let (checker, findings) = (&mut self.checker, &mut self.findings);
        if is_whole {
            checker.finish(self.last, &mut Absent, &mut |finding| findings.push(finding));
        }
        let counts = checker.counts().map(|(rule, subject, count)| ((rule, subject), count)).collect();
        Report { name, findings: self.findings, counts }
    }
}

/// Whether it is a recording, or a directory of them.
fn is_recording(path: &Path) -> bool {
    let mut begins = [0; FILE_MAGIC.len()];
    path.is_dir() || File::open(path).and_then(|mut file| file.read_exact(&mut begins)).is_ok() && begins == FILE_MAGIC
}

/// Reads the recording of a process to its end.
fn explain_recording(path: &Path, settings: &Settings) -> Result<Report, Failure> {
    let mut source = Source::open(path)?;
    let mut inspector = Inspector { checker: Checker::new(settings.clone()), findings: Vec::new(), ticked: 0, last: 0 };
    let mut is_whole = false;
    while let Some(entry) = source.next_entry()? {
        if let Entry::Event(event) = entry {
            is_whole |= matches!(event.kind, Kind::Called { call: Call::Exit {}, .. });
            inspector.see(&event);
        }
    }
    let warning = style::WARNING_STYLE;
    for note in source.notes() {
        anstream::eprintln!("{warning}ubiverbs:{warning:#} {}", trace::printable(&note));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(inspector.report(name, is_whole))
}

/// Reads a log to its end: one report for each process and host that wrote to it.
fn explain<R: io::BufRead>(path: &Path, log: &mut JsonReader<R>, settings: &Settings) -> Result<Vec<Report>, Failure> {
    let failed = |source| Failure::Log { path: path.to_owned(), source };
    let mut inspectors: BTreeMap<(Option<String>, Option<u32>), Inspector> = BTreeMap::new();
    while let Some(Logged { event, source, process, .. }) = log.next_event().map_err(failed)? {
        let inspector = inspectors.entry((source, process)).or_insert_with(|| Inspector {
            checker: Checker::new(settings.clone()),
            findings: Vec::new(),
            ticked: event.at,
            last: event.at,
        });
        inspector.see(&event);
    }
    if inspectors.is_empty() {
        let what = match (log.skipped(), log.foreign(), log.cut_in()) {
            (0, 0, None) => "it is empty",
            (0, _, None) => "its lines are no JSON objects",
            (0, 0, Some(_)) => "it is cut off in its first line",
            _ => "its objects are no events that this version knows",
        };
        return Err(Failure::NoLog { path: path.to_owned(), what });
    }
    let warning = style::WARNING_STYLE;
    let warn = |text: String| anstream::eprintln!("{warning}ubiverbs:{warning:#} {}: {text}", path.display());
    for (count, what) in [(log.skipped(), "no events that this version knows"), (log.foreign(), "no JSON objects")] {
        match count {
            0 => {}
            1 => warn(format!("1 line is {what}, and was skipped")),
            count => warn(format!("{count} lines are {what}, and were skipped")),
        }
    }
    if let Some(line) = log.cut_in() {
        warn(format!("the log is cut off in line {line}: what happened afterwards, and what was left, is not known"));
    }
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    let several = inspectors.len() > 1;
    let named = |source: Option<String>, process: Option<u32>| match (source, process) {
        (Some(source), _) => format!("{name} ({})", trace::printable(&source)),
        (None, Some(process)) if several => format!("{name} (process {process})"),
        _ => name.clone(),
    };
    Ok(inspectors
        .into_iter()
        .map(|((source, process), one)| one.report(named(source, process), log.cut_in().is_none()))
        .collect())
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
    let title = style::TITLE_STYLE;
    for report in reports {
        writeln!(out, "{title}{}{title:#}", report.name)?;
        if report.findings.is_empty() {
            writeln!(out, "nothing failed")?;
        }
        for finding in &report.findings {
            let colour = match finding.severity {
                Severity::Error => style::BAD_STYLE,
                Severity::Warning => style::WARNING_STYLE,
                _ => style::TITLE_STYLE,
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
        let long = vec![b'x'; 1 << 17];
        let Err(error) = explain(Path::new("a"), &mut JsonReader::new(&long[..]), &Settings::why()) else {
            panic!("it is no log")
        };
        assert!(error.to_string().starts_with("cannot read a: line 1: longer than"), "{error}");
    }

    #[test]
    fn what_is_no_log_is_an_error_that_says_what_it_is() {
        let cases = [
            ("", "it is empty"),
            ("\n\n", "it is empty"),
            ("0123456789", "its lines are no JSON objects"),
            ("[[[[", "its lines are no JSON objects"),
            ("{\"at\":1,\"ev", "it is cut off in its first line"),
            ("{\"a\":1}", "its objects are no events"),
            ("hello\n{\"a\":1}\n", "its objects are no events"),
        ];
        for (text, what) in cases {
            let mut reader = JsonReader::new(text.as_bytes());
            let Err(error) = explain(Path::new("a"), &mut reader, &Settings::why()) else { panic!("{text:?}") };
            assert!(error.to_string().starts_with(&format!("a is no log of events: {what}")), "{error}");
        }
    }

    #[test]
    fn of_a_log_that_is_cut_off_nothing_is_said_about_the_end() {
        let open = "{\"at\":1,\"event\":\"called\",\"thread\":1,\"call\":\"open_device\",\"context\":1,\"device\":\"ubi_lo\"}\n";
        let count = |text: &str| {
            let reports = explain(Path::new("a"), &mut JsonReader::new(text.as_bytes()), &Settings::all()).unwrap();
            reports.iter().map(|report| report.findings.len()).sum::<usize>()
        };
        assert_eq!(count(open), 1, "the device is open at the end");
        assert_eq!(count(&format!("a line of the program\n{open}")), 1);
        assert_eq!(count(&format!("{open}{{\"at\":2,\"ev")), 0);
    }
}
