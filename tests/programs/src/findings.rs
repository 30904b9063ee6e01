//! What programs are told when they are checked against the rules of verbs: `programs DIST --check [WORD…]` runs them
//! with every rule on, and fails if one is told something that the table of `docs/checks.md` does not have with its
//! proof. What is told where packets are lost on purpose is about the network, so those tests are left out.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the table begins.
const HEADING: &str = "| program | rule | proof |";

/// The file to which the programs of a test append their findings.
#[derive(Debug)]
pub struct Collection {
    path: PathBuf,
}

/// A program and the rule it broke.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Told {
    pub program: String,
    pub rule: String,
    pub severity: String,
}

/// How often, and one example.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    pub tests: Vec<String>,
    pub example: String,
}

/// What all tests of a run showed.
#[derive(Default, Debug)]
pub struct Findings {
    found: BTreeMap<Told, Seen>,
}

impl Collection {
    /// An empty file that every user may append to.
    pub fn begin(place: &Path) -> Result<Collection, String> {
        let path = place.join("findings.jsonl");
        let made = fs::write(&path, "").and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o666)));
        made.map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        Ok(Collection { path })
    }

    /// The program started by this command is checked.
    pub fn watch(&self, command: &mut Command) {
        command.env("UBIVERBS_WHY", "silent").env("UBIVERBS_CHECK", "silent").env("UBIVERBS_FINDINGS", &self.path);
    }

    /// What was found since this was asked last.
    pub fn take(&self) -> Result<String, String> {
        let text = fs::read_to_string(&self.path);
        text.and_then(|text| fs::write(&self.path, "").map(|()| text))
            .map_err(|e| format!("cannot read {}: {e}", self.path.display()))
    }
}

impl Findings {
    /// Adds what the programs of this test were told.
    pub fn add(&mut self, test: &str, text: &str) {
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut programs = BTreeMap::new();
        for line in &lines {
            if let (Some(process), Some(program)) = (line["process"].as_u64(), line["program"].as_str()) {
                programs.insert(process, program);
            }
        }
        for line in &lines {
            let Some(rule) = line["rule"].as_str() else { continue };
            let program = line["pid"].as_u64().and_then(|pid| programs.get(&pid)).copied().unwrap_or("?");
            let severity = line["severity"].as_str().unwrap_or_default();
            let told = Told { program: program.to_owned(), rule: rule.to_owned(), severity: severity.to_owned() };
            let seen = self.found.entry(told).or_default();
            if !seen.tests.iter().any(|known| known == test) {
                seen.tests.push(test.to_owned());
            }
            if seen.example.is_empty() {
                seen.example = sentence(line);
            }
        }
    }

    /// Prints all of them, and fails if the page does not have one.
    pub fn compare(&self, page: &str) -> Result<(), String> {
        let rows = rows_of(page);
        let mut unknown = 0;
        for (told, seen) in &self.found {
            let is_known = seen.tests.iter().all(|test| rows.iter().any(|row| row.covers(told, test)));
            let Told { program, rule, severity } = told;
            let tests = seen.tests.len();
            if is_known {
                println!("told: {program}: {severity} {rule}, in {tests} tests");
            } else {
                unknown += 1;
                println!("told, not on the page: {program}: {severity} {rule}, in {tests} tests: {}", seen.example);
                seen.tests.iter().take(3).for_each(|test| println!("  in: {test}"));
            }
        }
        match unknown {
            0 => Ok(()),
            _ => Err(format!("{unknown} findings are not in the table of docs/checks.md")),
        }
    }
}

/// A finding in one line.
fn sentence(line: &Value) -> String {
    let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    let evidence = line["evidence"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let parts = [text("subject"), text("what"), text("cause")].into_iter().chain(evidence.map(str::to_owned));
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" / ")
}

/// A row of the table: programs, by name or by how their tests are called, and rules, or `all`.
#[derive(Debug)]
struct Row {
    programs: Vec<String>,
    rules: String,
}

impl Row {
    fn covers(&self, told: &Told, test: &str) -> bool {
        let named = |pattern: &String| matches(pattern, &told.program) || matches(&format!("{pattern}*"), test);
        (self.rules == "all" || self.rules.contains(&told.rule)) && self.programs.iter().any(named)
    }
}

/// The rows of the page: what stands between backticks names programs.
fn rows_of(page: &str) -> Vec<Row> {
    let rows = page.lines().skip_while(|line| *line != HEADING).skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    let row = |cells: Vec<&str>| {
        let [programs, rules, ..] = cells[..] else { return None };
        let programs = programs.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Some(Row { programs, rules: rules.to_owned() })
    };
    cells.filter_map(row).collect()
}

/// Whether a text is as a pattern says, in which `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text
            .strip_prefix(start)
            .is_some_and(|text| (0..=text.len()).any(|at| text.get(at..).is_some_and(|text| matches(rest, text)))),
    }
}

/// The page in the repository.
pub fn page() -> Result<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/checks.md");
    fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}
