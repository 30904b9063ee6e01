//! `ubiverbs explain`: what a word of verbs means, and what to look at. Completion statuses, rules, events, reasons of
//! rejection, and the errno of a call.

pub mod entry;
pub mod errno;

use crate::candidates::beginning_with;
use crate::exit::{Exit, Failure};
use crate::style;
use checks::Rule;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use entry::{ExplainedWord, Kind};
use std::ffi::OsStr;
use std::io::Write;

/// Explain a status, an event, a rule, or the errno of a call
///
/// What a program finds in ibv_wc.status or ibv_wc.vendor_err, what ibv_get_async_event and rdma_get_cm_event answer,
/// why a connection was rejected, what a call's errno means, and what the rules of --why and --check say.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    /// A number, a name or a part of it, a call and its errno, or a status in words; without it, statuses are listed
    ///
    /// A bare number below 100 is a completion status, one from 100 on a rule. A word in front asks for another kind:
    /// status, rule, event, cm, reject, errno; alone it lists them.
    #[arg(value_name = "WORD", num_args = 0..=MAX_WORDS, add = explained())]
    words: Vec<String>,
}

/// The most words that a sentence has.
const MAX_WORDS: usize = 12;

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs explain 12
  ubiverbs explain IBV_WC_RETRY_EXC_ERR
  ubiverbs explain transport retry counter exceeded
  ubiverbs explain UV-0201
  ubiverbs explain IBV_EVENT_QP_ACCESS_ERR
  ubiverbs explain reject 28
  ubiverbs explain ibv_modify_qp EINVAL";

/// Explains.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    // A sentence may be one word of the command line, or several.
    let words: Vec<&str> = options.words.iter().flat_map(|word| word.split_whitespace()).collect();
    let (found, listed) = match words[..] {
        [] if !options.words.is_empty() => (Vec::new(), false),
        [] => (entries(Kind::Status), true),
        _ if !find_sentence(&words).is_empty() => (find_sentence(&words), false),
        [one] => match kind(one) {
            Some(kind) => (entries(kind), true),
            None => (find(one), false),
        },
        [first, second, ..] => match kind(first) {
            Some(kind) => (find_among(kind, second), false),
            None => (find_errno(first, second), false),
        },
    };
    // Of more words than a call and its errno all must be known.
    let found = if words.len() > 2 && find_sentence(&words).is_empty() { Vec::new() } else { found };
    if found.is_empty() {
        let bad = style::BAD_STYLE;
        anstream::eprintln!("{bad}ubiverbs:{bad:#} {}", unknown(&words));
        return Ok(Exit::Job);
    }
    let told = if listed { list(&found, out) } else { explain(&found, out) };
    told.map_err(Failure::Output)?;
    Ok(Exit::Ok)
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
            let wanted = kind == Kind::Status || (!text.is_empty() && !number && kind != Kind::Errno);
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

/// The kind that a word asks for.
fn kind(word: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| kind.word().eq_ignore_ascii_case(word))
}

/// Words of a kind by number, by name, or by a part of it.
fn find_among(kind: Kind, asked: &str) -> Vec<ExplainedWord> {
    let wanted = asked.to_ascii_uppercase();
    // A status of the connection manager is negative where it is an errno.
    let digits = wanted.trim_start_matches('-');
    let number = match kind {
        Kind::Rule => digits.trim_start_matches("UV").trim_start_matches('-').parse().ok(),
        Kind::Errno => digits.parse().ok().or_else(|| errno::number(&wanted)),
        _ => digits.parse().ok(),
    };
    let entries = entries(kind);
    let exact: Vec<ExplainedWord> = entries
        .iter()
        .filter(|entry| match number {
            Some(number) => entry.number == Some(number),
            None => entry.name.eq_ignore_ascii_case(&wanted),
        })
        .cloned()
        .collect();
    if !exact.is_empty() || number.is_some() {
        return exact;
    }
    entries.into_iter().filter(|entry| entry.name.to_ascii_uppercase().contains(&wanted)).collect()
}

/// A word of any kind. A number is a status, or a rule.
fn find(asked: &str) -> Vec<ExplainedWord> {
    match asked.parse::<u32>() {
        Ok(0..100) => find_among(Kind::Status, asked),
        Ok(_) => find_among(Kind::Rule, asked),
        Err(_) => {
            let all: Vec<ExplainedWord> = Kind::ALL.into_iter().flat_map(|kind| find_among(kind, asked)).collect();
            let exact: Vec<ExplainedWord> =
                all.iter().filter(|entry| entry.name.eq_ignore_ascii_case(asked)).cloned().collect();
            if exact.is_empty() { all } else { exact }
        }
    }
}

/// What `ibv_wc_status_str` says of each status.
const SENTENCES: [&str; 24] = [
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

/// The status that a program has printed in words.
fn find_sentence(words: &[&str]) -> Vec<ExplainedWord> {
    let asked = words.join(" ");
    let is_asked = |sentence: &&str| sentence.eq_ignore_ascii_case(&asked);
    let Some(code) = SENTENCES.iter().position(is_asked) else { return Vec::new() };
    entries(Kind::Status)
        .into_iter()
        .filter(|entry| entry.number.is_some_and(|number| number as usize == code))
        .collect()
}

/// The errno of a call, by name or number.
fn find_errno(call: &str, asked: &str) -> Vec<ExplainedWord> {
    let number = asked.trim_start_matches('-').parse().ok().or_else(|| errno::number(asked));
    let Some(name) = number.and_then(errno::name) else { return Vec::new() };
    let wanted = format!("{call} {name}");
    entries(Kind::Errno).into_iter().filter(|entry| entry.name.eq_ignore_ascii_case(&wanted)).collect()
}

/// What to say where nothing was found: a general word for an errno, if it is one.
fn unknown(words: &[&str]) -> String {
    let asked = words.join(" ");
    let general = words.last().and_then(|word| {
        let wanted = word.trim_start_matches('-');
        errno::ERRNO_MEANINGS
            .iter()
            .find(|(name, number, _)| name.eq_ignore_ascii_case(wanted) || number.to_string() == wanted)
    });
    match (words, general) {
        ([call, _], Some((name, _, means))) if kind(call).is_none() => format!(
            "nothing special is known of {name} from {call}; in general: {means}. `ubiverbs run --why` says why it fails"
        ),
        _ => format!("nothing is called {asked:?}; `ubiverbs explain` lists statuses, with one of {} others", kinds()),
    }
}

fn kinds() -> String {
    Kind::ALL.map(Kind::word).join(", ")
}

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
