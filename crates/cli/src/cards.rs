//! The cards that NICs can be like: profiles that come with ubiverbs, and files of the user's own.

use crate::exit::{Exit, Failure};
use crate::style;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use failures::words::nearest;
use hca::environment::read_profiles;
use profiles::library::{NAMES, PROFILES, Shipped};
use profiles::{Profile, Said};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::Write;

/// Prints what there is, if that is what the user wants with the word of `--nic`: `names` are the words behind the options.
pub fn tell(word: &str, names: &[String], out: &mut impl Write) -> Option<Result<Exit, Failure>> {
    Some(match word {
        "list" if names.is_empty() => list(out),
        "show" if !names.is_empty() => names.iter().try_fold(Exit::Ok, |_, name| show(name, out)),
        "show" => Err(wrong("show", "the name of a profile, or a file, comes behind it: --nic show irdma".into())),
        _ => return None,
    })
}

fn wrong(text: &str, reason: String) -> Failure {
    Failure::Argument { option: "--nic", text: text.to_owned(), reason }
}

/// Profiles that can be read, with files where a program finds them that changes its directory.
pub fn placed(text: &str) -> Result<String, Failure> {
    read_profiles(text).map_err(|error| wrong(text, with_near(text, error)))?;
    let place = |word: &str| match Shipped::find(word).is_some() || word.starts_with("seed=") {
        true => Ok(word.to_owned()),
        false => {
            let path = std::path::absolute(word).map_err(|error| wrong(text, error.to_string()))?;
            path.into_os_string().into_string().map_err(|_| wrong(text, "its path is not UTF-8".into()))
        }
    };
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(place).collect::<Result<Vec<_>, _>>().map(|words| words.join(","))
}

/// What is no file may be a name with a mistake in it.
fn with_near(text: &str, error: String) -> String {
    let name = if text.contains(['/', ',']) { "" } else { text };
    match nearest(name, NAMES.iter().copied()) {
        Some(near) => format!("{error}; did you mean {near}?"),
        None => error,
    }
}

/// Those that come with ubiverbs.
pub fn all() -> Vec<Profile> {
    PROFILES.iter().filter_map(|Shipped { name, text }| Profile::parse(name, text).ok()).collect()
}

pub fn list(out: &mut impl Write) -> Result<Exit, Failure> {
    let width = NAMES.iter().map(|name| name.len()).max().unwrap_or(0);
    for profile in all() {
        let about = profile.about.unwrap_or_default();
        writeln!(out, "{:width$}  {about}", profile.name).map_err(Failure::Output)?;
    }
    Ok(Exit::Ok)
}

/// What a profile says, table by table, and where each value comes from.
fn show(name: &str, out: &mut impl Write) -> Result<Exit, Failure> {
    let read = read_profiles(name).map_err(|error| wrong(name, with_near(name, error)))?;
    let title = style::TITLE_STYLE;
    for profile in &read {
        let about = profile.about.as_deref().unwrap_or("a profile of your own");
        writeln!(out, "{title}{}{title:#}: {about}", profile.name).map_err(Failure::Output)?;
        let mut tables: Vec<&str> = Vec::new();
        for said in &profile.said {
            if !tables.contains(&said.table.as_str()) {
                tables.push(&said.table);
            }
        }
        for table in tables {
            let rows: Vec<&Said> = profile.said.iter().filter(|said| said.table == table).collect();
            let usual = usual_source(&rows);
            let source = usual.map(|source| format!("  # {}", trace::printable(source))).unwrap_or_default();
            writeln!(out, "\n{title}[{table}]{title:#}{source}").map_err(Failure::Output)?;
            for said in rows {
                row(profile, said, usual, out).map_err(Failure::Output)?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// The source that most values of a table have.
fn usual_source<'a>(rows: &[&'a Said]) -> Option<&'a str> {
    let sources = || rows.iter().filter_map(|said| said.source.as_deref());
    let usual = sources().max_by_key(|source| sources().filter(|other| other == source).count())?;
    (sources().filter(|source| *source == usual).count() > 1).then_some(usual)
}

fn row(profile: &Profile, said: &Said, usual: Option<&str>, out: &mut impl Write) -> std::io::Result<()> {
    let Said { key, value, source, profile: by, .. } = said;
    let source = source
        .as_deref()
        .filter(|source| Some(*source) != usual)
        .map(|source| format!("  # {source}"))
        .unwrap_or_default();
    let by = if *by == profile.name { String::new() } else { format!("  (of {by})") };
    writeln!(out, "  {key} = {}{by}{}", trace::printable(value), trace::printable(&source))
}

/// A profile, for tools.
pub fn document(profile: &Profile) -> Value {
    let said = profile.said.iter().map(|said| {
        let Said { table, key, value, source, profile } = said;
        json!({ "table": table, "key": key, "value": value, "source": source, "profile": profile })
    });
    json!({ "name": profile.name, "about": profile.about, "says": said.collect::<Vec<_>>() })
}

/// What can stand behind `--nic`, for a shell.
pub fn candidates() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let text = typed.to_string_lossy();
        let (before, last) = text.split_at(text.rfind(',').map_or(0, |at| at + 1));
        let cards = all().into_iter().map(|profile| (profile.name, profile.about.unwrap_or_default()));
        let words = [("list", "print their names"), ("show", "print what one is like")];
        let words = words.map(|(name, help)| (name.to_owned(), help.to_owned()));
        let fits = cards.chain(words).filter(|(name, _)| name.starts_with(last));
        let mut all: Vec<CompletionCandidate> = fits
            .map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into())).add_prefix(before))
            .collect();
        all.extend(PathCompleter::any().complete(typed));
        all
    })
}
