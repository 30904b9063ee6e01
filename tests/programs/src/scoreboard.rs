//! The scoreboard: which programs run, in which version, what was done with them, and how it went. Each test names its
//! row, so the table has what is tested and nothing else. `docs/programs.md` has the table of the last complete run; a
//! test compares its rows with those of the tests.

use crate::Test;
use crate::usage::Usage;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A row of the table. Several tests share one.
#[derive(Debug)]
pub struct Row {
    /// The programs, as the page shows them: Markdown.
    pub program: &'static str,
    pub version: Version,
    /// What is run, and what is looked at.
    pub what: &'static str,
}

/// How a version is found out.
#[derive(Clone, Copy, Debug)]
pub enum Version {
    /// That of a Debian package.
    Package(&'static str),
    /// That which is downloaded.
    Named(&'static str),
    /// That of the newest rdma-core.
    Newest,
    /// A program of this repository.
    Ours,
}

/// What is not run, and why: rows without tests.
const NOT_RUN: &[(&str, &str)] = &[
    (
        "`ibv_rc_pingpong -t -e`",
        "the program takes it for a failure to be woken for a completion that it has already seen",
    ),
    (
        "`qperf`: `uc_*`, `ud_*`, `xrc_*`",
        "the program addresses them by LID, which Ethernet does not have; with `-cm1` it knows RC only",
    ),
    (
        "`mooncake-transfer-engine` (PyPI)",
        "the package with CUDA needs CUDA's libraries to be loaded at all; the one without is above",
    ),
    ("Open MPI, `btl openib`", "it does not take the device; Open MPI itself calls it obsolete, and uses UCX"),
];

/// Around the table.
const BEGIN: &str = "<!-- The table: `cargo xtask programs --scoreboard` writes it. -->";
const END: &str = "<!-- The end of the table. -->";

const HEADING: &str = "| program | version | what was run | passed | memory, MB | descriptors |";

/// How the tests of a row went.
#[derive(Clone, Copy, Default, Debug)]
struct Score {
    runs: u32,
    passed: u32,
    ignored: u32,
    usage: Usage,
}

/// The scores, in the order in which the rows were met first.
#[derive(Default, Debug)]
pub struct Scoreboard {
    scores: Vec<(&'static Row, Score)>,
}

impl Scoreboard {
    fn score(&mut self, row: &'static Row) -> &mut Score {
        let known = self.scores.iter().position(|(known, _)| known.key() == row.key());
        let at = known.unwrap_or_else(|| {
            self.scores.push((row, Score::default()));
            self.scores.len() - 1
        });
        &mut self.scores[at].1
    }

    /// A test has been run. Those without a row test our own tools.
    pub fn ran(&mut self, test: &Test, passed: bool, usage: Usage) {
        let Some(row) = test.row else { return };
        let score = self.score(row);
        score.runs += 1;
        score.passed += u32::from(passed);
        score.usage.join(usage);
    }

    /// A test was left out.
    pub fn ignored(&mut self, test: &Test) {
        if let Some(row) = test.row {
            self.score(row).ignored += 1;
        }
    }

    /// Writes the table into the page.
    pub fn write(&self, page: &Path) -> Result<(), String> {
        let text = fs::read_to_string(page).map_err(|e| format!("cannot read {}: {e}", page.display()))?;
        let Some(((before, _), after)) = text.split_once(BEGIN).zip(text.split_once(END).map(|(_, after)| after))
        else {
            return Err(format!("{} has no place for the table: {BEGIN} and {END}", page.display()));
        };
        let mut table = format!("{}\n\n{HEADING}\n|---|---|---|---|---|---|\n", machine());
        for (row, score) in &self.scores {
            let Score { runs, passed, ignored, usage } = score;
            let left_out = if *ignored > 0 { format!(", {ignored} not run without root") } else { String::new() };
            let _ = writeln!(
                table,
                "| {} | {} | {} | {passed} of {runs}{left_out} | {} | {} |",
                row.program,
                row.version.text()?,
                row.what,
                usage.megabytes(),
                usage.descriptors,
            );
        }
        for (what, why) in NOT_RUN {
            let _ = writeln!(table, "| {what} | | not run: {why} | | | |");
        }
        let page_text = format!("{before}{BEGIN}\n\n{table}\n{END}{after}");
        fs::write(page, page_text).map_err(|e| format!("cannot write {}: {e}", page.display()))
    }
}

impl Row {
    /// What tells it from others.
    fn key(&self) -> (&'static str, &'static str) {
        (self.program, self.what)
    }
}

impl Version {
    fn text(self) -> Result<String, String> {
        match self {
            Version::Ours => Ok("ours".into()),
            Version::Named(version) => Ok(version.into()),
            Version::Newest => {
                let file = crate::pyverbs::newest()?.join("version");
                let version = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
                Ok(format!("python3-pyverbs {}", version.trim()))
            }
            Version::Package(name) => {
                let asked = Command::new("dpkg-query").args(["--show", "--showformat=${Version}", name]).output();
                let asked = asked.map_err(|e| format!("dpkg-query did not start: {e}"))?;
                match asked.status.success() {
                    true => Ok(format!("{name} {}", String::from_utf8_lossy(&asked.stdout).trim())),
                    false => Err(format!("dpkg-query does not know {name}")),
                }
            }
        }
    }
}

/// All of these tests have this row.
pub fn all_of(row: &'static Row, tests: impl IntoIterator<Item = Test>) -> Vec<Test> {
    tests.into_iter().map(|test| test.of(row)).collect()
}

/// When and where the tests were run.
fn machine() -> String {
    let first = |path: &str, start: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_default();
        line.trim_matches(|it: char| it.is_whitespace() || it == ':' || it == '"').to_owned()
    };
    let date = Command::new("date").args(["--utc", "+%Y-%m-%d"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "Run on {date}: {}, Linux {}, {processors} processors ({}).",
        first("/etc/os-release", "PRETTY_NAME="),
        kernel.split('.').take(2).collect::<Vec<_>>().join("."),
        first("/proc/cpuinfo", "model name"),
    )
}

/// The page in the repository.
pub fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/programs.md")
}

/// A test that fails if the page has a row that no test has, or lacks one.
pub fn test<'a>(rows: impl IntoIterator<Item = &'a Test>) -> Test {
    let tested: BTreeSet<(String, String)> =
        rows.into_iter().filter_map(|test| test.row).map(|row| (row.program.into(), row.what.into())).collect();
    Test::new("scoreboard: docs/programs.md has a row for each program that is tested, and no other", move |_| {
        let page = page();
        let text = fs::read_to_string(&page).map_err(|e| format!("cannot read {}: {e}", page.display()))?;
        let shown = rows_of(&text);
        let name = |(program, what): &(String, String)| format!("{program}: {what}");
        let missing: Vec<String> = tested.difference(&shown).map(name).collect();
        let untested: Vec<String> = shown.difference(&tested).map(name).collect();
        match missing.is_empty() && untested.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "not on the page: {missing:#?}\non the page, and not tested: {untested:#?}\n\
                 `cargo xtask programs --scoreboard` writes the table"
            )),
        }
    })
}

/// Program and what was run of each row of a page that tells of runs.
fn rows_of(page: &str) -> BTreeSet<(String, String)> {
    let rows = page.lines().skip_while(|line| *line != HEADING).skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    let runs = cells.filter(|cells| cells.len() == 6 && !cells[3].is_empty());
    runs.map(|cells| (cells[0].to_owned(), cells[2].to_owned())).collect()
}
