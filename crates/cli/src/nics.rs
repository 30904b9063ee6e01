//! `--nics` and `--nic`: so many NICs in place of the host's own devices, and which cards they are like, for this process
//! and those that it starts or becomes.

use crate::exit::{Exit, Failure};
use crate::style;
use clap::Args;
use hca::environment::{NIC_VARIABLE, NICS_VARIABLE, read_profiles};
use hca::interfaces::Nics;
use profiles::library::{NAMES, PROFILES, Shipped};
use profiles::{Profile, Said};
use serde_json::{Value, json};
use std::io::Write;

/// The options.
#[derive(Args, Clone, Debug)]
pub struct NicsOption {
    /// Have so many NICs in place of the host's own devices, each with an address of its own: 1 to 64, or hgx
    ///
    /// ubi_0 has 127.0.0.1, ubi_1 has 127.0.0.2, and so on; they reach this host only. `2x4` is two NICs of four ports
    /// each (up to four), every port with an address: ubi_0 has 127.0.0.1 to 127.0.0.4. `hgx` is a server: eight, each
    /// behind a PCI switch of its own, with a GPU where the machine has as many, spread over its NUMA nodes.
    #[arg(long, value_name = "N[xPORTS]|hgx", value_parser = read)]
    nics: Option<String>,
    /// Be like this card: what it refuses, grants and tells; a name of `--nic list`, or a file of your own
    ///
    /// Several, with commas between them, are for the NICs in their order, as of --nics; the last holds for all that
    /// follow. `--nic show NAME` prints what a card is like and where that is known from; docs/profiles.md has the
    /// language of files.
    #[arg(long, value_name = "NAME|FILE|list|show", add = crate::candidates::profiles())]
    nic: Option<String>,
}

fn read(text: &str) -> Result<String, String> {
    text.parse::<Nics>().map(|_| text.to_owned())
}

impl NicsOption {
    /// What the user said of their number.
    pub fn word(&self) -> Option<&str> {
        self.nics.as_deref()
    }

    /// From here on the environment says so.
    #[allow(unsafe_code, reason = "the environment has no safe form")]
    pub fn apply(&self) -> Result<(), Failure> {
        if let Some(nics) = &self.nics {
            // SAFETY: the command has only begun, and this is its only thread.
            unsafe { std::env::set_var(NICS_VARIABLE, nics) };
        }
        if let Some(text) = &self.nic {
            let places = placed(text)?;
            // SAFETY: as above.
            unsafe { std::env::set_var(NIC_VARIABLE, places) };
        }
        Ok(())
    }

    /// Prints what there is, if that is what the user wants: `names` are the words behind the options.
    pub fn tell(&self, names: &[String], out: &mut impl Write) -> Option<Result<Exit, Failure>> {
        Some(match self.nic.as_deref()? {
            "list" if names.is_empty() => list(out),
            "show" if !names.is_empty() => names.iter().try_fold(Exit::Ok, |_, name| show(name, out)),
            "show" => Err(wrong("show", "the name of a profile, or a file, comes behind it: --nic show irdma".into())),
            _ => return None,
        })
    }
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
    let near = crate::explain::nearest::nearest(name, NAMES.iter().map(|name| (*name).to_owned()));
    if near.is_empty() { error } else { format!("{error}; did you mean {}?", near.join(" or ")) }
}

/// Those that come with ubiverbs.
pub fn all() -> Vec<Profile> {
    PROFILES.iter().filter_map(|Shipped { name, text }| Profile::parse(name, text).ok()).collect()
}

fn list(out: &mut impl Write) -> Result<Exit, Failure> {
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
#[expect(dead_code)]
pub fn document(profile: &Profile) -> Value {
    let said = profile.said.iter().map(|said| {
        let Said { table, key, value, source, profile } = said;
        json!({ "table": table, "key": key, "value": value, "source": source, "profile": profile })
    });
    json!({ "name": profile.name, "about": profile.about, "says": said.collect::<Vec<_>>() })
}
