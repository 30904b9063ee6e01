//! What can stand where a value is asked for: devices, statuses, programs, faults, levels of the log.

use checks::{Family, Rule};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;

/// The devices of this host, with their addresses.
pub fn devices() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let devices = crate::devices::of_host().unwrap_or_default();
        let described = devices.iter().map(|device| {
            let gids: Vec<String> = device.port().gids.iter().flatten().map(|gid| readable(&gid.to_string())).collect();
            (device.name().to_owned(), gids.join(", "))
        });
        beginning_with(typed, described)
    })
}

/// An IPv4 address without what makes it a GID.
fn readable(gid: &str) -> String {
    gid.strip_prefix("::ffff:").unwrap_or(gid).to_owned()
}

/// Words of a fixed list.
pub fn words(known: &'static [&'static str]) -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        beginning_with(typed, known.iter().map(|word| ((*word).to_owned(), String::new())))
    })
}

/// Failure scripts: those that come with ubiverbs, and files.
pub fn scripts() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let names = failures::library::NAMES.iter().map(|name| ((*name).to_owned(), String::new()));
        let mut all = beginning_with(typed, names);
        all.extend(PathCompleter::any().complete(typed));
        all
    })
}

/// Faults that `--faults` knows, behind those that are there already.
pub fn faults() -> ArgValueCompleter {
    const FAULTS: [(&str, &str); 11] = [
        ("drop=", "packets that are lost: drop=1%"),
        ("dup=", "packets that come twice: dup=0.1%"),
        ("reorder=", "packets that others overtake: reorder=1%"),
        ("corrupt=", "packets that are damaged: corrupt=0.01%"),
        ("mark=", "packets that are marked as congested: mark=10%"),
        ("delay=", "how late packets are: delay=1ms..3ms"),
        ("hold=", "how long overtaken packets are held back: hold=1ms"),
        ("from=", "only packets from this address"),
        ("to=", "only packets to this address"),
        ("partition", "nothing passes"),
        ("seed=", "where chance begins: seed=7"),
    ];
    ArgValueCompleter::new(|typed: &OsStr| {
        behind_others(typed, FAULTS.iter().map(|(name, help)| ((*name).to_owned(), (*help).to_owned())))
    })
}

/// Rules and families, to be switched off or on, behind those that are there already.
pub fn rules() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let families = Family::ALL.map(|family| (family.name().to_owned(), "all rules of this family".to_owned()));
        let all = families.into_iter().chain([("all".to_owned(), "every rule".to_owned())]);
        let rules = Rule::all().map(|rule| (rule.number.to_string(), rule.title.to_owned()));
        let named: Vec<(String, String)> = rules.chain(all).collect();
        let signs = ["-", "+", ""].into_iter();
        let words =
            signs.flat_map(|sign| named.iter().map(move |(name, help)| (format!("{sign}{name}"), help.clone())));
        behind_others(typed, words)
    })
}

/// Those that begin with the last of words with commas between them.
fn behind_others(typed: &OsStr, offered: impl Iterator<Item = (String, String)>) -> Vec<CompletionCandidate> {
    let text = typed.to_string_lossy();
    let begun = text.rfind([',', ';']).map_or(0, |at| at + 1);
    let (before, last) = text.split_at(begun);
    beginning_with(OsStr::new(last), offered).into_iter().map(|word| word.add_prefix(before)).collect()
}

/// What `--log` takes: a level, or a file.
pub fn levels_and_files() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let levels = [("errors", "what goes wrong"), ("events", "everything"), ("json", "everything, as JSON lines")];
        let levels = levels.map(|(name, help)| (name.to_owned(), help.to_owned()));
        let mut all = beginning_with(typed, levels.into_iter());
        all.extend(PathCompleter::any().complete(typed));
        all
    })
}

/// A program that can be run; behind it files, as its arguments often are.
pub fn programs() -> ArgValueCompleter {
    ArgValueCompleter::new(Programs)
}

struct Programs;

impl ValueCompleter for Programs {
    fn complete(&self, typed: &OsStr) -> Vec<CompletionCandidate> {
        self.complete_at(0, typed)
    }

    fn complete_at(&self, index: usize, typed: &OsStr) -> Vec<CompletionCandidate> {
        let text = typed.to_string_lossy();
        if index > 0 || text.contains('/') {
            return PathCompleter::any().complete(typed);
        }
        if text.is_empty() {
            // Thousands of names would help no user.
            return PathCompleter::any().complete(typed);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let files = std::env::split_paths(&path).filter_map(|directory| directory.read_dir().ok()).flatten().flatten();
        let runs = |entry: &std::fs::DirEntry| {
            entry.path().metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        };
        let wanted = files.filter(|entry| entry.file_name().to_string_lossy().starts_with(&*text)).filter(runs);
        let mut names: Vec<String> = wanted.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter().map(CompletionCandidate::new).collect()
    }
}

/// Those that begin as the user did.
pub fn beginning_with(typed: &OsStr, all: impl Iterator<Item = (String, String)>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let fitting = all.filter(|(name, _)| name.starts_with(&*typed));
    fitting.map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into()))).collect()
}
