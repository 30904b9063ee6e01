//! `ubiverbs explain`: what a word of verbs means, and what to look at. Completion statuses, rules, events, reasons of
//! rejection, the errno of a call; lines that programs print, and whole logs of them.

pub mod entry;
pub mod errno;
mod line;
mod log;
pub mod nearest;
mod search;

use crate::candidates::beginning_with;
use crate::exit::{Exit, Failure};
use crate::style;
use checks::Rule;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use entry::{ExplainedWord, Kind};
use line::{Recognised, recognise};
use log::Log;
use search::{find, find_among, find_errno, find_sentence, kind, near};
use serde_json::json;
use std::ffi::OsStr;
use std::io::Write;

/// Explain a status, an event, a rule, the errno of a call, a line that a program has printed, or a whole log
///
/// What a program finds in ibv_wc.status or ibv_wc.vendor_err, what ibv_get_async_event and rdma_get_cm_event answer,
/// why a connection was rejected, what a call's errno means, and what the rules of --why and --check say. Lines of NCCL,
/// UCX, libfabric, perftest, Open MPI, the pingpong programs and the kernel are understood. A log comes from standard
/// input: which of its lines matter is said first.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    /// A number, a name or a part of it, a call and its errno, a line that was printed, or `-` for a log; without it,
    /// statuses are listed
    ///
    /// A bare number below 100 is a completion status, one from 100 on a rule. A word in front asks for another kind:
    /// status, rule, event, cm, reject, message, errno; alone it lists them. A call and its errno may come in any order.
    #[arg(value_name = "WORD", num_args = 0.., allow_negative_numbers = true, add = explained())]
    words: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs explain 12
  ubiverbs explain IBV_WC_RETRY_EXC_ERR
  ubiverbs explain transport retry counter exceeded
  ubiverbs explain UV-0201
  ubiverbs explain IBV_EVENT_QP_ACCESS_ERR
  ubiverbs explain reject 28
  ubiverbs explain ibv_modify_qp EINVAL
  ubiverbs explain rdma_connect 111
  ubiverbs explain 'NET/IB : Got completion from peer 10.0.0.2<41042> with status=12 opcode=0 len=0 vendor err 129'
  ubiverbs explain - < nccl.log";

/// What was found for the words of a command line.
enum Found {
    /// A kind was asked for.
    List(Vec<ExplainedWord>),
    /// Words that are known.
    Entries(Vec<ExplainedWord>),
    /// A line that something has printed.
    Line(Recognised),
    /// Nothing; these words are near.
    Nothing(Vec<String>),
}

/// Explains.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    // A sentence may be one word of the command line, or several.
    let words: Vec<&str> = options.words.iter().flat_map(|word| word.split_whitespace()).collect();
    if words == ["-"] || options.words.is_empty() && has_log() {
        let log = Log::read(std::io::stdin().lock())
            .map_err(|source| Failure::System { what: "cannot read standard input", source })?;
        if words == ["-"] || !log.is_empty() {
            return explain_log(options, &log, out);
        }
    }
    let found = if options.words.is_empty() { Found::List(entries(Kind::Status)) } else { look_for(&words) };
    if options.json {
        let document = match &found {
            Found::List(entries) | Found::Entries(entries) => json!({ "entries": all_json(entries) }),
            Found::Line(line) => json!({ "entries": all_json(&line.entries), "notes": line.notes }),
            Found::Nothing(near) => json!({ "entries": [], "did_you_mean": near }),
        };
        writeln!(out, "{document:#}").map_err(Failure::Output)?;
    }
    let told = match &found {
        Found::Nothing(near) => {
            let bad = style::BAD_STYLE;
            anstream::eprintln!("{bad}ubiverbs:{bad:#} {}", unknown(&words, near));
            return Ok(Exit::Job);
        }
        _ if options.json => Ok(()),
        Found::List(entries) => list(entries, out),
        Found::Entries(entries) => explain(entries, out),
        Found::Line(line) => {
            line.notes.iter().try_for_each(|note| writeln!(out, "{note}\n")).and_then(|()| explain(&line.entries, out))
        }
    };
    told.map_err(Failure::Output)?;
    Ok(Exit::Ok)
}

/// What the words mean.
fn look_for(words: &[&str]) -> Found {
    let found = match words {
        [] => Vec::new(),
        _ if !find_sentence(words).is_empty() => find_sentence(words),
        [one] => match kind(one) {
            Some(kind) => return Found::List(entries(kind)),
            None => find(one),
        },
        [first, second] => match (kind(first), kind(second)) {
            (Some(kind), _) => find_among(kind, second),
            (None, Some(kind)) => find_among(kind, first),
            (None, None) => match (find_errno(first, second), near(words)) {
                (found, near) if found.is_empty() && !near.is_empty() => return Found::Nothing(near),
                (found, _) => found,
            },
        },
        _ => Vec::new(),
    };
    if !found.is_empty() {
        return Found::Entries(found);
    }
    let line = recognise(&words.join(" "));
    if line.entries.is_empty() { Found::Nothing(near(words)) } else { Found::Line(line) }
}

fn all_json(entries: &[ExplainedWord]) -> Vec<serde_json::Value> {
    entries.iter().map(ExplainedWord::json).collect()
}

/// Whether standard input has a log: it is a pipe or a file. A terminal or `/dev/null` has none.
fn has_log() -> bool {
    use rustix::fs::{FileType, fstat};
    fstat(std::io::stdin())
        .is_ok_and(|stat| matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::RegularFile))
}

fn explain_log(options: &Options, log: &Log, out: &mut impl Write) -> Result<Exit, Failure> {
    if options.json {
        writeln!(out, "{:#}", log.json()).map_err(Failure::Output)?;
    } else if !log.is_silent() {
        log.print(out).map_err(Failure::Output)?;
    }
    if log.is_silent() {
        let bad = style::BAD_STYLE;
        anstream::eprintln!(
            "{bad}ubiverbs:{bad:#} no line of standard input tells of a failure of RDMA that is known here"
        );
        return Ok(Exit::Job);
    }
    Ok(Exit::Ok)
}

/// What to say where nothing was found.
fn unknown(words: &[&str], near: &[String]) -> String {
    let asked = words.join(" ");
    match near {
        [] => {
            format!("nothing is called {asked:?}; `ubiverbs explain` lists statuses, with one of {} others", kinds())
        }
        near => format!("nothing is called {asked:?}; did you mean {}?", near.join(", or ")),
    }
}

fn kinds() -> String {
    Kind::ALL.map(Kind::word).join(", ")
}

/// What can be explained: by the name a program prints, by that name without its beginning, by number, or the word for
/// a kind; as the user began.
fn explained() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let text = typed.to_string_lossy();
        let number = text.starts_with(|c: char| c.is_ascii_digit());
        let lower = !text.is_empty() && text.chars().all(|c| !c.is_ascii_uppercase());
        let mut offered: Vec<(String, String)> = Vec::new();
        for kind in Kind::ALL {
            // Nothing typed: what is asked for most, and the words for the rest.
            let wanted =
                kind == Kind::Status || (!text.is_empty() && !number && !matches!(kind, Kind::Errno | Kind::Message));
            for entry in entries(kind).into_iter().filter(|_| wanted) {
                let short = entry.short.clone();
                match entry.number {
                    Some(code) if number => offered.push((code.to_string(), short)),
                    _ => {
                        let bare = entry.name.trim_start_matches("IBV_WC_").to_owned();
                        let full = bare == entry.name || entry.name.starts_with(&text.to_ascii_uppercase());
                        offered.push((if full { entry.name } else { bare }, short));
                    }
                }
            }
            if !number {
                offered.push((kind.word().to_owned(), kind.title().to_owned()));
            }
        }
        if !text.is_empty() && !number {
            let calls = entries(Kind::Errno).into_iter();
            let mut calls: Vec<_> = calls.filter_map(|e| e.name.split(' ').next().map(str::to_owned)).collect();
            calls.dedup();
            offered.extend(calls.into_iter().map(|call| (call, "what its errno means".to_owned())));
        }
        let named =
            offered.into_iter().map(|(name, short)| (if lower { name.to_ascii_lowercase() } else { name }, short));
        beginning_with(typed, named)
    })
}

/// Every word of a kind.
pub fn entries(kind: Kind) -> Vec<ExplainedWord> {
    match kind {
        Kind::Status => ExplainedWord::read(kind, include_str!("explain/statuses.txt")),
        Kind::AsyncEvent => ExplainedWord::read(kind, include_str!("explain/async_events.txt")),
        Kind::CmEvent => ExplainedWord::read(kind, include_str!("explain/cm_events.txt")),
        Kind::Reject => ExplainedWord::read(kind, include_str!("explain/rejects.txt")),
        Kind::Errno => ExplainedWord::read(kind, include_str!("explain/calls.txt")),
        Kind::Message => ExplainedWord::read(kind, include_str!("explain/phrases.txt")),
        Kind::Rule => Rule::all().map(rule).collect(),
    }
}

fn rule(rule: &Rule) -> ExplainedWord {
    // The page begins with the number and the title, which are shown in any case.
    let text = rule.page.split_once('\n').map_or("", |(_, rest)| rest).trim();
    ExplainedWord {
        kind: Kind::Rule,
        name: rule.number.to_string(),
        number: Some(rule.number.0.into()),
        short: format!("{}: {}", rule.severity, rule.title),
        text: format!("{text}\n"),
    }
}

/// What `ibv_wc_status_str` says of each status.
const WC_STATUS_SENTENCES: [&str; 24] = [
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
    "TM error",
    "TM software rendezvous",
];

fn list(entries: &[ExplainedWord], out: &mut impl Write) -> std::io::Result<()> {
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or_default();
    for entry in entries {
        match entry.number.filter(|_| !matches!(entry.kind, Kind::Rule | Kind::Errno)) {
            Some(number) => writeln!(out, "{number:>3}  {:<width$} {}", entry.name, entry.short)?,
            None => writeln!(out, "{:<width$}  {}", entry.name, entry.short)?,
        }
    }
    Ok(())
}

fn explain(entries: &[ExplainedWord], out: &mut impl Write) -> std::io::Result<()> {
    let title = style::TITLE_STYLE;
    for entry in entries {
        writeln!(out, "{title}{}{title:#}: {}\n", entry.heading(), entry.short)?;
        if !entry.text.is_empty() {
            writeln!(out, "{}", entry.text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
