//! Everything that must pass, step by step, with the time of each and a count at the end. The steps are commands
//! anybody could type; this only runs them in order and adds up.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::failures::Failures;
use crate::process::{cargo, run as run_command, watch};
use crate::{
    api, arrows, attack, checks, crates, demo, deny, dist, no_std, prerequisites, programs, purity, rooms, soak,
};

/// How many programs the simulator's model test runs; it reads this variable.
const MODEL_PROGRAMS: &str = "UBIVERBS_MODEL_PROGRAMS";

/// How many peers the tests of killed peers kill; they read this variable.
const KILLS: &str = "UBIVERBS_TEST_KILLS";

/// How many damaged packets the test of them makes; it reads this variable.
const DAMAGED: &str = "UBIVERBS_TEST_DAMAGED";

struct Step {
    name: &'static str,
    action: fn(&Path, Option<u64>) -> Result<Outcome, String>,
}

const STEPS: &[Step] = &[
    Step { name: "prerequisites", action: |root, _| prerequisites::check(root).map(note) },
    Step { name: "format", action: |root, _| format(root) },
    Step { name: "arrows", action: |root, _| arrows::check(root).map(note) },
    Step { name: "rooms", action: |root, _| rooms::check(root).map(note) },
    Step { name: "deny", action: |root, _| deny::check(root).map(note) },
    Step { name: "purity", action: |root, _| purity::check(root).map(note) },
    Step { name: "no_std", action: |root, _| no_std::check(root).map(note) },
    Step { name: "crates", action: |root, _| crates::check(root).map(note) },
    Step { name: "clippy", action: |root, _| clippy(root) },
    Step { name: "tests", action: tests },
    Step { name: "checks", action: |root, _| counted(&mut checks::prepare(root, &[])?) },
    Step {
        name: "doc tests",
        action: |root, _| {
            counted(cargo(root).args(["test", "--workspace", "--all-features", "--doc", "--no-fail-fast"]))
        },
    },
    Step { name: "docs", action: |root, _| docs(root) },
    Step { name: "api", action: |root, _| api::check(root).map(note) },
    Step {
        name: "programs",
        action: |root, _| counted(&mut programs::prepare(root, programs::Which::Installed, &[])?),
    },
    Step { name: "demo", action: |root, _| demo::check(root).map(note) },
    Step { name: "soak", action: |root, _| soak(root) },
    Step { name: "attack", action: |root, _| attack(root) },
];

#[derive(Default)]
struct Outcome {
    note: String,
    counts: Option<Counts>,
    /// What failed, as the tests said it.
    failures: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs the steps; `long` is the number of programs of the model test, `only` the words that select steps.
pub fn run(root: &Path, long: Option<u64>, only: &[String]) -> Result<(), String> {
    let selected: Vec<&Step> = STEPS
        .iter()
        .filter(|step| only.is_empty() || only.iter().any(|word| step.name.contains(word.as_str())))
        .collect();
    if selected.is_empty() {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!("no step is called that; there are: {}", names.join(", ")));
    }
    let begin = Instant::now();
    let mut summary = Vec::new();
    let mut failures = Vec::new();
    let mut total = Counts::default();
    let mut ok = true;
    for step in &selected {
        println!("\n==> {}", step.name);
        let started = Instant::now();
        let result = (step.action)(root, long);
        let time = started.elapsed();
        let (note, counts, step_ok) = match result {
            Ok(Outcome { note, counts, failures: more }) => {
                failures.extend(more);
                let step_ok = counts.is_none_or(|counts| counts.failed == 0);
                (note, counts, step_ok)
            }
            Err(message) => {
                failures.push(format!("{}: {message}", step.name));
                (message, None, false)
            }
        };
        if !note.is_empty() {
            println!("{note}");
        }
        println!("<== {} {} in {}", step.name, if step_ok { "ok" } else { "FAILED" }, seconds(time));
        let _ = std::io::stdout().flush();
        ok &= step_ok;
        total.add(counts.unwrap_or(Counts { failed: u64::from(!step_ok), ..Counts::default() }));
        summary.push((step.name, step_ok, time, counts));
        if !step_ok && step.name == "prerequisites" {
            break;
        }
    }

    if !failures.is_empty() {
        println!("\nwhat failed, once more:");
        failures.iter().for_each(|line| println!("  {line}"));
    }
    println!("\n{:<16} {:>9} {:>8} {:>7} {:>8}", "step", "time", "passed", "failed", "ignored");
    for (name, step_ok, time, counts) in &summary {
        let verdict = if *step_ok { "" } else { "  FAILED" };
        match counts {
            Some(c) => {
                println!("{name:<16} {:>9} {:>8} {:>7} {:>8}{verdict}", seconds(*time), c.passed, c.failed, c.ignored)
            }
            None => println!("{name:<16} {:>9}{verdict}", seconds(*time)),
        }
    }
    println!("{:<16} {:>9}", "all", seconds(begin.elapsed()));
    println!("{} passed, {} failed", total.passed, total.failed);
    if ok { Ok(()) } else { Err("not everything passed".into()) }
}

fn format(root: &Path) -> Result<Outcome, String> {
    run_command(cargo(root).args(["fmt", "--all", "--", "--check"]))?;
    // Packages outside the workspace.
    for manifest in ["tests/no_std/Cargo.toml", "fuzz/Cargo.toml"] {
        if root.join(manifest).exists() {
            run_command(cargo(root).args(["fmt", "--manifest-path", manifest, "--", "--check"]))?;
        }
    }
    Ok(Outcome::default())
}

fn clippy(root: &Path) -> Result<Outcome, String> {
    run_command(cargo(root).args([
        "clippy",
        "--workspace",
        "--all-features",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    Ok(Outcome::default())
}

fn tests(root: &Path, long: Option<u64>) -> Result<Outcome, String> {
    const WHICH: [&str; 6] = ["test", "--workspace", "--all-features", "--lib", "--bins", "--tests"];
    // The release, which some tests need, is linked by one processor at a time: it is built beside the tests.
    thread::scope(|scope| {
        let release = scope.spawn(|| dist::unpacked(root));
        let tests = run_command(cargo(root).args(WHICH).arg("--no-run"));
        release.join().map_err(|_| "the release was not built")?.and(tests)
    })?;
    let mut command = cargo(root);
    command.args(WHICH).arg("--no-fail-fast");
    if let Some(programs) = long {
        command.env(MODEL_PROGRAMS, programs.to_string());
    }
    counted(&mut command)
}

/// Runs the tests of killed peers, with so many kills.
pub fn kills(root: &Path, count: u32) -> Result<(), String> {
    let mut shared = cargo(root);
    shared.args(["test", "--package", "ubiverbs-processes", "--test", "killed", "--", "--nocapture"]);
    run_command(shared.env(KILLS, count.to_string()))?;
    let mut hosts = cargo(root);
    hosts.args(["test", "--package", "ubiverbs", "--test", "hosts", "--", "kills"]);
    run_command(hosts.env(KILLS, (count / 10).to_string()))
}

/// Runs the test of damaged packets, with so many packets.
pub fn damage(root: &Path, packets: u64) -> Result<(), String> {
    let mut command = cargo(root);
    command.args(["test", "--release", "--package", "ubiverbs-link", "--lib", "--", "--nocapture", "damage::"]);
    run_command(command.env(DAMAGED, packets.to_string()))
}

fn docs(root: &Path) -> Result<Outcome, String> {
    run_command(cargo(root).env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--workspace",
        "--all-features",
        "--no-deps",
    ]))?;
    Ok(Outcome::default())
}

/// A minute of rounds, with the seed of the day; each counts as a test.
fn soak(root: &Path) -> Result<Outcome, String> {
    let options = soak::Options { minutes: 1.0, seed: None, only: Vec::new(), round: None, together: 1, dev: true };
    let soak::Counts { passed, failed } = soak::play(root, &options)?;
    if passed + failed == 0 {
        return Err("no round was played".into());
    }
    Ok(Outcome { counts: Some(Counts { passed, failed, ignored: 0 }), ..Outcome::default() })
}

/// Every attack, and some seconds of mixtures; each counts as a test. Only root can make hosts and become other users.
fn attack(root: &Path) -> Result<Outcome, String> {
    if !prerequisites::is_root() {
        return Ok(note("not root: no attack was tried; as root this step takes about a minute".into()));
    }
    let options = attack::Options { minutes: 0.3, seed: None, only: Vec::new(), list: false };
    let attack::Counts { held, failed } = attack::play(root, &options)?;
    Ok(Outcome { counts: Some(Counts { passed: held, failed, ignored: 0 }), ..Outcome::default() })
}

/// Runs a `cargo test` and adds up its results.
fn counted(command: &mut Command) -> Result<Outcome, String> {
    let (mut counts, mut failures) = (Counts::default(), Failures::default());
    let success = watch(command, |line| {
        failures.read(line);
        if let Some(more) = result_line(line) {
            counts.add(more);
        }
    })?;
    if !success && counts.failed == 0 {
        return Err("cargo test failed before it could count: see above".into());
    }
    if counts.passed == 0 {
        return Err("no test ran".into());
    }
    Ok(Outcome { counts: Some(counts), failures: failures.take(), ..Outcome::default() })
}

/// Reads `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
fn result_line(line: &str) -> Option<Counts> {
    let (_, numbers) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(word)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse() else { continue };
        match word {
            "passed" => counts.passed = number,
            "failed" => counts.failed = number,
            "ignored" => counts.ignored = number,
            _ => {}
        }
    }
    Some(counts)
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

fn note(note: String) -> Outcome {
    Outcome { note, ..Outcome::default() }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod result_lines {
    use super::{Counts, result_line};

    #[test]
    fn are_read() {
        let line = "test result: ok. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(result_line(line), Some(Counts { passed: 12, failed: 3, ignored: 1 }));
        let line = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
        assert_eq!(result_line(line), Some(Counts { passed: 0, failed: 1, ignored: 0 }));
    }

    #[test]
    fn are_told_from_other_lines() {
        assert_eq!(result_line("test tests::it_works ... ok"), None);
        assert_eq!(result_line("running 3 tests"), None);
        assert_eq!(result_line(""), None);
    }
}
