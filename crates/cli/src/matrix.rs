//! `ubiverbs matrix`: runs a command once for each card that a NIC can be like, and tells on which it works, and what each
//! of the others refuses first.

use crate::cards;
use crate::exit::{Exit, Failure};
use crate::report::junit::{self, Complaint, Suite};
use crate::run::findings::{Spool, WrittenFinding};
use crate::style;
use crate::torture::attempt::{self, Limits, Outcome, Plan, Runner, last_line};
use crate::torture::processes::End;
use crate::torture::verdict::{seconds, signal_name};
use clap::{Args, ValueHint};
use hca::environment::{FINDINGS_VARIABLE, WHY_VARIABLE};
use profiles::library::NAMES;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Run a command on every card that the NIC can be like, and see on which it works
///
/// The command runs on ubiverbs once as it is, and then once for each profile (`ubiverbs run --nic`). It works if it ends
/// with 0 in time, and --check finds nothing wrong. For a card on which it does not, the first call that the card refused
/// is printed.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Options {
    /// Only these profiles, with commas between them: names of --list, or files; all that come along if none is named
    #[arg(long, value_name = "NAMES|FILES", value_delimiter = ',', add = cards::candidates())]
    nic: Vec<String>,
    /// What is a hang; the default is half a minute more than four times the run as it is
    #[arg(long, value_name = "TIME", value_parser = crate::torture::time)]
    timeout: Option<Duration>,
    /// A command that fails if the output, on its standard input, is wrong; asked when the exit code is 0
    #[arg(long, value_name = "CMD")]
    check: Option<OsString>,
    /// A command that is started first, and the other one when this waits; it may end by itself or stay
    #[arg(long, value_name = "CMD")]
    server: Option<OsString>,
    /// More options of `ubiverbs run`, in one word: --run='--nics 2'
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    run: Option<String>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
    /// Print a row of a table in Markdown instead
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Write a report as JUnit, one test case for each profile
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    junit: Option<PathBuf>,
    /// List the profiles that come with ubiverbs; with --json, all they say, and where each value comes from
    #[arg(long)]
    list: bool,
    /// The command and its arguments; a server and its client in one is a shell script of yours, or see --server
    #[arg(required_unless_present = "list", trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND",
        add = crate::candidates::programs())]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Examples:
  ubiverbs matrix -- ./test.sh
  ubiverbs matrix --nic irdma,efa,./mycard.toml --junit matrix.xml -- ./test.sh
  ubiverbs matrix --server 'ib_send_bw -n 100' -- ib_send_bw -n 100 127.0.0.1
  ubiverbs matrix --list --json

Exit codes: 0 it works on all of them; 1 on some it does not; 2 the command line was wrong.";

/// What the deadline is unless the user says it: so many times the run as it is, and so much more.
const DEADLINE_FACTOR: u32 = 4;
const DEADLINE_SPARE: Duration = Duration::from_secs(30);

/// A run as it is that takes longer has hung.
const PLAIN_RUN_MAX: Duration = Duration::from_secs(600);

/// So long other processes may outlive the command.
const OUTLIVE_MAX: Duration = Duration::from_secs(2);

/// The rule of what cards refuse.
const CARD_REFUSES: &str = "UV-0833";

/// Of the output of a failing case so many lines are in reports.
const MAX_LINES: usize = 40;

/// A run on a card.
#[derive(Debug)]
struct Case {
    nic: String,
    outcome: Outcome,
    /// Why it did not work.
    failed: Option<String>,
    /// What the card refused, in order.
    refusals: Vec<String>,
    /// The first explanation of any other failure.
    explained: Option<String>,
}

/// Runs the command.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    if options.list {
        if options.json {
            let all: Vec<Value> = cards::all().iter().map(cards::document).collect();
            writeln!(out, "{:#}", json!({ "version": 1, "profiles": all })).map_err(Failure::Output)?;
            return Ok(Exit::Ok);
        }
        return cards::list(out);
    }
    let nics: Vec<String> = match options.nic.is_empty() {
        true => NAMES.iter().map(|name| (*name).to_owned()).collect(),
        false => options.nic.iter().map(|nic| cards::placed(nic)).collect::<Result<_, _>>()?,
    };
    if let Some(path) = &options.junit {
        crate::run::path_of_file("--junit", path)?;
    }
    let plain = attempt(options, None, options.timeout.unwrap_or(PLAIN_RUN_MAX))?;
    if let Some(why) = plain.failed {
        return Err(Failure::PlainFails(why));
    }
    let deadline = options.timeout.unwrap_or(plain.outcome.took * DEADLINE_FACTOR + DEADLINE_SPARE);
    let mut cases = Vec::new();
    let is_table = !options.json && !options.markdown;
    if is_table {
        let title = style::TITLE_STYLE;
        writeln!(out, "{title}{:16} {:8} {:>8}  what{title:#}", "profile", "result", "time")
            .map_err(Failure::Output)?;
    }
    for nic in &nics {
        let case = attempt(options, Some(nic), deadline)?;
        if is_table {
            case.row(out).and_then(|()| out.flush()).map_err(Failure::Output)?;
        }
        cases.push(case);
    }
    if let Some(path) = &options.junit {
        attempt::write(path, as_junit(options, &cases).as_bytes())?;
    }
    let passed = cases.iter().filter(|case| case.failed.is_none()).count();
    let line = words(options);
    match (options.json, options.markdown) {
        (true, _) => {
            let cases: Vec<Value> = cases.iter().map(Case::document).collect();
            let document = json!({ "version": 1, "command": line, "passed": passed, "cases": cases });
            writeln!(out, "{document:#}")
        }
        (_, true) => {
            let marks: Vec<&str> = cases.iter().map(|case| if case.failed.is_none() { "yes" } else { "no" }).collect();
            writeln!(out, "| `{}` | {} |", line.join(" "), marks.join(" | "))
        }
        _ => writeln!(out, "\nworks on {passed} of {}", cases.len()),
    }
    .map_err(Failure::Output)?;
    Ok(if passed == cases.len() { Exit::Ok } else { Exit::Job })
}

fn words(options: &Options) -> Vec<String> {
    options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// One run, on a card or as it is.
fn attempt(options: &Options, nic: Option<&String>, deadline: Duration) -> Result<Case, Failure> {
    let spool = Spool::make()?;
    let more = options.run.iter().flat_map(|words| words.split_whitespace()).map(OsString::from);
    let card = nic.into_iter().flat_map(|nic| [OsString::from("--nic"), nic.into()]);
    let plan = Plan {
        command: options.command.clone(),
        server: options.server.clone(),
        options: more.chain(card).collect(),
        check: options.check.clone(),
        environment: vec![(WHY_VARIABLE, "silent".into()), (FINDINGS_VARIABLE, spool.path().into())],
    };
    let place = spool.path().parent().map(PathBuf::from).unwrap_or_default();
    let outcome = Runner { plan: &plan, place: &place }.run(None, &Limits { deadline, outlive: Some(OUTLIVE_MAX) })?;
    let text = std::fs::read_to_string(spool.path()).unwrap_or_default();
    let findings = || text.lines().filter_map(|line| serde_json::from_str::<WrittenFinding>(line).ok());
    let told = |finding: &WrittenFinding| format!("{} [{}]", finding.what, finding.rule);
    let mut refusals: Vec<String> = Vec::new();
    for finding in findings().filter(|finding| finding.rule == CARD_REFUSES) {
        let told = told(&finding);
        if !refusals.contains(&told) {
            refusals.push(told);
        }
    }
    let explained = findings().find(|it| it.rule != CARD_REFUSES && it.severity == "error").as_ref().map(told);
    let failed = failure(&outcome);
    Ok(Case { nic: shown(nic), outcome, failed, refusals, explained })
}

/// The names in a list of profiles: of files the last part.
fn shown(nic: Option<&String>) -> String {
    let name = |word: &str| word.rsplit('/').next().unwrap_or(word).trim_end_matches(".toml").to_owned();
    nic.map(|nic| nic.split(',').map(name).collect::<Vec<_>>().join(",")).unwrap_or_default()
}

/// Why a run did not work, if it did not.
fn failure(outcome: &Outcome) -> Option<String> {
    let said = last_line(&outcome.errors).or_else(|| last_line(&outcome.output));
    let said = said.map(|line| format!(": {line}")).unwrap_or_default();
    match outcome.end {
        None => Some("it had not ended when its time was over".into()),
        Some(End::Signal(signal)) => Some(format!("it died of {}", signal_name(signal))),
        Some(End::Code(0)) => outcome.check_failed.as_ref().map(|check| format!("its output is wrong: {check}")),
        Some(End::Code(code)) => Some(format!("it ended with {code}{said}")),
    }
}

impl Case {
    fn result(&self) -> &'static str {
        if self.failed.is_some() { "fails" } else { "works" }
    }

    /// The first thing that the card refused, or else why it failed.
    fn what(&self) -> String {
        let more = match self.refusals.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        match (&self.failed, self.refusals.first()) {
            (None, Some(refusal)) => format!("though {refusal}{more}"),
            (None, None) => String::new(),
            (Some(_), Some(refusal)) => format!("{refusal}{more}"),
            (Some(failed), None) => self.explained.clone().unwrap_or_else(|| failed.clone()),
        }
    }

    fn row(&self, out: &mut impl Write) -> std::io::Result<()> {
        let colour = if self.failed.is_some() { style::BAD_STYLE } else { style::GOOD_STYLE };
        let what = self.what();
        let (nic, what) = (trace::printable(&self.nic).to_string(), trace::printable(&what));
        let (result, took) = (self.result(), seconds(self.outcome.took));
        writeln!(out, "{nic:16} {colour}{result:8}{colour:#} {took:>8}  {what}")
    }

    fn document(&self) -> Value {
        json!({
            "nic": self.nic,
            "works": self.failed.is_none(),
            "failed": self.failed,
            "refusals": self.refusals,
            "explained": self.explained,
            "seconds": self.outcome.took.as_secs_f64(),
        })
    }
}

fn as_junit(options: &Options, cases: &[Case]) -> String {
    let cases = cases.iter().map(|case| {
        let lines = |text: &[u8]| -> Vec<String> {
            let text = String::from_utf8_lossy(text).into_owned();
            let all: Vec<&str> = text.lines().collect();
            let last = all.iter().skip(all.len().saturating_sub(MAX_LINES));
            last.map(|line| trace::printable(line).to_string()).collect()
        };
        let complaint = |failed: &String| Complaint {
            kind: "refused".into(),
            message: case.what(),
            lines: [vec![failed.clone()], case.refusals.clone(), lines(&case.outcome.errors)].concat(),
        };
        junit::Case {
            class: "matrix".into(),
            name: case.nic.clone(),
            seconds: Some(case.outcome.took.as_secs_f64()),
            failure: case.failed.as_ref().map(complaint),
            output: case.refusals.clone(),
            ..junit::Case::default()
        }
    });
    junit::write(&Suite { name: words(options).join(" "), cases: cases.collect() })
}
