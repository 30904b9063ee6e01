//! `docs/notes.md`, every command of it, as a person would type it: each must end well. What the tables of a section
//! name must be in what its commands print, or in the files that it links to. The Chinese page has the same sections,
//! commands and names.

use crate::Test;
use crate::stage::Stage;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGES: [&str; 2] = ["docs/notes.md", "docs/notes.zh.md"];

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("notes: every command of docs/notes.md runs, and shows what it should", run_commands)
            .takes_seconds(30),
        Test::new("notes: both languages have the same commands and names", |_| same_in_both_languages()),
    ]
}

/// A part of the page, from one heading to the next.
#[derive(Debug, Default)]
struct Section {
    /// The number of the heading, such as `1.4`.
    number: String,
    commands: Vec<String>,
    /// Names in the first column of tables.
    names: Vec<String>,
    /// Files beside the page that it links to.
    links: Vec<PathBuf>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sections(page: &str) -> Result<Vec<Section>, String> {
    let text = fs::read_to_string(root().join(page)).map_err(|e| format!("{page}: {e}"))?;
    let mut sections = vec![Section::default()];
    let mut fence = None;
    for line in text.lines() {
        let section = sections.last_mut().ok_or("no section")?;
        match (fence, line.strip_prefix("```")) {
            (None, Some(language)) => fence = Some(language),
            (Some(_), Some(_)) => fence = None,
            (Some("sh"), None) => section.commands.push(line.to_owned()),
            (Some(_), None) => {}
            (None, None) if line.starts_with('#') => {
                let number = line.trim_start_matches(['#', ' ']).split(' ').next().unwrap_or_default();
                sections.push(Section { number: number.trim_end_matches('.').to_owned(), ..Section::default() });
            }
            (None, None) => {
                if let Some(row) = line.strip_prefix("| ") {
                    let first = row.split(" | ").next().unwrap_or_default();
                    section.names.extend(first.split('`').skip(1).step_by(2).map(str::to_owned));
                }
                let ends = line.match_indices("](").filter_map(|(at, mark)| line[at + mark.len()..].split_once(')'));
                let links = ends.map(|(link, _)| root().join("docs").join(link.split('#').next().unwrap_or_default()));
                section.links.extend(links);
            }
        }
    }
    Ok(sections)
}

fn run_commands(stage: &Stage) -> Result<(), String> {
    let mut printed: BTreeMap<String, String> = BTreeMap::new();
    let mut wrong = Vec::new();
    let sections = sections(PAGES[0])?;
    provide_examples(stage)?;
    for section in &sections {
        let mut shown = String::new();
        for command in &section.commands {
            if !printed.contains_key(command) {
                printed.insert(command.clone(), run(stage, command)?);
            }
            shown += &printed[command];
        }
        for link in &section.links {
            let text = fs::read_to_string(link).map_err(|e| format!("{}: {e}", link.display()))?;
            // Other pages say the same words; only programs show them.
            if link.extension().is_some_and(|ending| ending == "c" || ending == "h" || ending == "rs") {
                shown += &text;
            }
        }
        for name in section.names.iter().filter(|name| !shown.contains(name.as_str())) {
            wrong.push(format!("section {} names {name}, and nothing shows it", section.number));
        }
    }
    let names: usize = sections.iter().map(|section| section.names.len()).sum();
    if printed.len() < 20 || names < 150 {
        wrong.push(format!("{} commands and {names} names were found, which cannot be all", printed.len()));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Runs a line in a shell, where the page says: at the root, with what is handed to people in front.
fn run(stage: &Stage, line: &str) -> Result<String, String> {
    let programs = stage.dist.join("bin");
    let mut command = stage.alone.command(None, Path::new("sh"));
    command.args(["-c", line]).current_dir(root()).env_remove("LD_LIBRARY_PATH");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{}:{path}", cargo_folder(stage).display(), programs.display()));
    // A place of their own: other programs have the same names.
    command.env("OUT", stage.place.join("examples")).env("UBIVERBS", programs.join("ubiverbs"));
    forget_cargo(&mut command);
    let ended = stage.end(&mut command).map_err(|error| format!("{line}: {error}"))?;
    if ended.status.success() { Ok(ended.text) } else { Err(format!("{line}: {}\n{}", ended.status, ended.last())) }
}

/// Where the examples are built already. The notes start them with cargo, which would build them once more with other
/// features; a stand-in for it starts what is there.
const EXAMPLES: &str = "UBIVERBS_TEST_EXAMPLES";

/// Does what the notes ask of cargo: `cargo run --quiet -p ubiverbs --example NAME [-- ARGUMENT…]`.
const CARGO: &str = r#"#!/bin/sh
[ "$1 $2 $3 $4 $5" = "run --quiet -p ubiverbs --example" ] || { echo "the tests know no: cargo $*" >&2; exit 1; }
shift 5; example=$1; shift; [ "$1" = -- ] && shift
exec "$UBIVERBS_TEST_EXAMPLES/$example" "$@"
"#;

/// Sees that the examples are built, which may take longer than a program may run.
fn provide_examples(stage: &Stage) -> Result<(), String> {
    if std::env::var_os(EXAMPLES).is_some() {
        let (folder, mode) = (cargo_folder(stage), std::os::unix::fs::PermissionsExt::from_mode(0o755));
        let written = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("cargo"), CARGO));
        let made = written.and_then(|()| fs::set_permissions(folder.join("cargo"), mode));
        return made.map_err(|e| format!("{}: {e}", folder.display()));
    }
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--package", "ubiverbs", "--examples"]).current_dir(root());
    forget_cargo(&mut command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo build --package ubiverbs --examples: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

/// Where the stand-in for cargo is, if there is one.
fn cargo_folder(stage: &Stage) -> PathBuf {
    stage.place.join("cargo-stand-in")
}

/// What the cargo that runs us says of our package is nothing to the one that a command starts.
fn forget_cargo(command: &mut Command) {
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST"))
    {
        command.env_remove(name);
    }
}

fn same_in_both_languages() -> Result<(), String> {
    let [english, chinese] = PAGES.map(sections);
    let (english, chinese) = (english?, chinese?);
    for (one, other) in english.iter().zip(&chinese) {
        if one.number != other.number && one.number.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(format!("section {} is section {} in Chinese", one.number, other.number));
        }
        if (&one.commands, &one.names, &one.links) != (&other.commands, &other.names, &other.links) {
            // Links to the other language are the only ones that differ, and stand before the first section.
            if one.number.starts_with(|c: char| c.is_ascii_digit()) {
                return Err(format!("section {} differs:\n{one:?}\n{other:?}", one.number));
            }
        }
    }
    match english.len() == chinese.len() {
        true => Ok(()),
        false => Err(format!("{} sections, {} in Chinese", english.len(), chinese.len())),
    }
}
