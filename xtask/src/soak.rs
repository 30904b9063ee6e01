//! Rounds of random verified work until the time is over: two processes that do everything the library can, over every
//! link, with packets that get lost and processes that are stopped and killed. Each round is drawn from a seed and its
//! number, and can be played again.
//!
//! Traffic goes over loopback, and through namespaces that the round makes.

mod draw;
mod network;
mod play;
mod side;
mod witness;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{dist, prerequisites, process};
use draw::{Program, Round, SidesPlacement};
use play::Programs;
use side::Report;

/// What can be chosen.
#[derive(clap::Args)]
pub struct Options {
    /// How long, to the end of the round that is under way then.
    #[arg(long, default_value_t = 2.0)]
    pub minutes: f64,
    /// Where chance begins; the date if not said, so that it is another one every day.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Play only rounds whose line contains all of these words, such as `shared`, `cm`, `kill=` or `rust-program`.
    #[arg(long, value_name = "WORD", num_args = 1..)]
    pub only: Vec<String>,
    /// Play this round again, and no other.
    #[arg(long, value_name = "NUMBER")]
    pub round: Option<u64>,
    /// Play so many rounds at a time: 15 are 30 processes of one host that come and go, are stopped and killed. Beside
    /// them four processes work that nobody harms, and must not need more and more memory.
    #[arg(long, value_name = "ROUNDS", default_value_t = 1)]
    pub together: usize,
    /// Play with the Rust program of the dev profile: slower, with more checks, and made by the tests.
    #[arg(long)]
    pub dev: bool,
}

/// How many rounds ended well and how many did not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
}

/// A round that was played.
struct Played {
    round: Round,
    outcome: Result<Report, String>,
    took: Duration,
}

/// Plays rounds. Fails if one did, or if none was played.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let Counts { passed, failed } = play(root, options)?;
    println!("{passed} passed, {failed} failed");
    match (passed, failed) {
        (0, 0) => Err("no round was played".into()),
        (_, 0) => Ok(()),
        _ => Err("not every round ended well".into()),
    }
}

/// Plays the rounds and counts those that passed and failed.
pub fn play(root: &Path, options: &Options) -> Result<Counts, String> {
    prerequisites::soak()?;
    let seed = options.seed.map_or_else(date, Ok)?;
    let programs = build(root, options.dev)?;
    let is_root = prerequisites::is_root();
    println!("seed {seed}; logs are in {}", programs.logs.display());
    if !is_root {
        println!("not root: rounds between namespaces and between users are left out");
    }
    if programs.c.is_none() {
        println!("there is no tests/soak/c: rounds of the program in C are left out");
    }
    let end = Instant::now() + Duration::from_secs_f64(options.minutes.clamp(0.0, 1e6) * 60.0);
    let numbers = Mutex::new(options.round.map_or(0..u64::MAX, |number| number..number + 1));
    let all = Mutex::new(Vec::new());
    let next = || {
        // Words that no round has would be looked for without end.
        let mut numbers = numbers.lock().ok()?;
        let late = options.round.is_none() && Instant::now() >= end;
        numbers.by_ref().take(if late { 0 } else { 100_000 }).map(|number| Round::draw(seed, number)).find(|round| {
            let can = (is_root || !round.needs_root()) && (programs.c.is_some() || round.program == Program::Rust);
            let line = round.to_string();
            can && options.only.iter().all(|word| line.contains(word.as_str()))
        })
    };
    let work = || {
        while let Some(round) = next() {
            let number = round.number;
            let dev = if options.dev { " --dev" } else { "" };
            println!("round {number}: {round}; again: cargo xtask soak --seed {seed} --round {number}{dev}");
            let begin = Instant::now();
            let outcome = programs.play(&round);
            let took = begin.elapsed();
            let which = if options.together > 1 { format!("round {number} ") } else { String::new() };
            match &outcome {
                Ok(report) => println!(
                    "  {which}ok{}: {} operations, {} bytes in {:.1} s",
                    if report.verdict.is_empty() { String::new() } else { format!(" ({})", report.verdict) },
                    report.operations,
                    report.bytes,
                    took.as_secs_f64()
                ),
                Err(what) => {
                    println!("  {which}FAILED after {:.1} s: {}", took.as_secs_f64(), what.replace('\n', "\n    "))
                }
            }
            if let Ok(mut all) = all.lock() {
                all.push(Played { round, outcome, took });
            }
        }
    };
    let witnesses = thread::scope(|scope| {
        let witnesses = (options.together > 1).then(|| scope.spawn(|| witness::watch(&programs, seed, end)));
        (0..options.together.max(1)).for_each(|_| drop(scope.spawn(work)));
        witnesses.map(|thread| thread.join().map_err(|_| "the witnesses' thread panicked")).transpose()
    })?;
    let all = all.into_inner().map_err(|_| "a round panicked")?;
    let counts = summarize(&programs, seed, &all)?;
    for line in witnesses.transpose()?.into_iter().flatten() {
        println!("{line}");
    }
    Ok(counts)
}

/// The date as a number: 20260131.
pub fn date() -> Result<u64, String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|e| format!("no date: {e}"))?;
    let text = process::output(Command::new("date").args(["-u", "+%Y%m%d", "-d", &format!("@{}", since.as_secs())]))?;
    text.trim().parse().map_err(|e| format!("date says {text:?}: {e}"))
}

/// Builds what is handed to people and both programs.
fn build(root: &Path, dev: bool) -> Result<Programs, String> {
    dist::unpacked(root)?;
    let target = process::target_directory(root)?;
    let logs = target.join("soak");
    let failed = |e: std::io::Error| format!("cannot make {}: {e}", logs.display());
    if logs.exists() {
        fs::remove_dir_all(&logs).map_err(failed)?;
    }
    fs::create_dir_all(&logs).map_err(failed)?;
    let rust = if dev {
        process::build_dev(root, "soak-rust")?
    } else {
        process::run(process::cargo(root).args(["build", "--release", "--package", "ubiverbs-soak"]))?;
        target.join("release/soak-rust")
    };
    let lib = target.join("dist/lib");
    let c = compile(root, &lib, &logs)?;
    let programs = Programs { rust, c, lib, logs, core: first_core() };
    if prerequisites::is_root() {
        for program in [Some(&programs.rust), programs.c.as_ref()].into_iter().flatten() {
            reachable(program)?;
        }
    }
    Ok(programs)
}

/// Compiles the program in C against our libraries.
fn compile(root: &Path, lib: &Path, place: &Path) -> Result<Option<PathBuf>, String> {
    let directory = root.join("tests/soak/c");
    let Ok(entries) = fs::read_dir(&directory) else { return Ok(None) };
    let mut sources: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    sources.sort();
    if sources.is_empty() {
        return Ok(None);
    }
    for (header, package) in [("infiniband/verbs.h", "libibverbs-dev"), ("rdma/rdma_cma.h", "librdmacm-dev")] {
        if !Path::new("/usr/include").join(header).exists() {
            return Err(format!(
                "{header} is missing, without which the program in C cannot be compiled; install it with: apt-get install {package}"
            ));
        }
    }
    let program = place.join("soak-c");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(&program).args(sources);
    process::run(command.arg("-L").arg(lib).args(["-lrdmacm", "-libverbs", "-lpthread"]))?;
    Ok(Some(program))
}

/// Another user must be able to start it.
pub fn reachable(program: &Path) -> Result<(), String> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "test", "-x"]).arg(program);
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(format!(
            "other users cannot start {}: let them into its directories (chmod o+x), or set CARGO_TARGET_DIR",
            program.display()
        )),
    }
}

/// The first processor that we may use.
fn first_core() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
    let digits: String = list.trim().chars().take_while(char::is_ascii_digit).collect();
    if digits.is_empty() { "0".into() } else { digits }
}

/// A table by kind of round, and everything as JSON.
fn summarize(programs: &Programs, seed: u64, all: &[Played]) -> Result<Counts, String> {
    let mut counts = Counts::default();
    let mut groups: BTreeMap<String, (u64, u64, u64, u64)> = BTreeMap::new();
    for Played { round, outcome, .. } in all {
        let (rounds, failed, operations, bytes) = groups.entry(round.group()).or_default();
        *rounds += 1;
        match outcome {
            Ok(report) => {
                counts.passed += 1;
                *operations += report.operations;
                *bytes += report.bytes;
            }
            Err(_) => {
                counts.failed += 1;
                *failed += 1;
            }
        }
    }
    println!("\n{:<60} {:>6} {:>6} {:>12} {:>10}", "rounds", "played", "failed", "operations", "megabytes");
    let mut total = (0, 0, 0, 0);
    for (group, (rounds, failed, operations, bytes)) in &groups {
        println!("{group:<60} {rounds:>6} {failed:>6} {operations:>12} {:>10.1}", *bytes as f64 / 1e6);
        total = (total.0 + rounds, total.1 + failed, total.2 + operations, total.3 + bytes);
    }
    println!("{:<60} {:>6} {:>6} {:>12} {:>10.1}", "all", total.0, total.1, total.2, total.3 as f64 / 1e6);
    let rounds: Vec<serde_json::Value> = all.iter().map(|played| entry(seed, played)).collect();
    let result = serde_json::json!({
        "seed": seed,
        "passed": counts.passed,
        "failed": counts.failed,
        "operations": total.2,
        "bytes": total.3,
        "rounds": rounds,
    });
    let path = programs.logs.join("result.json");
    fs::write(&path, format!("{result:#}\n")).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    Ok(counts)
}

fn entry(seed: u64, Played { round, outcome, took }: &Played) -> serde_json::Value {
    let report = outcome.clone().unwrap_or_default();
    serde_json::json!({
        "round": round.number,
        "what": round.to_string(),
        "namespaces": matches!(round.place, SidesPlacement::Namespaces { .. }),
        "again": format!("cargo xtask soak --seed {seed} --round {}", round.number),
        "passed": outcome.is_ok(),
        "failure": outcome.as_ref().err(),
        "operations": report.operations,
        "bytes": report.bytes,
        "rounds_of_the_program": report.rounds,
        "verdict": report.verdict,
        "seconds": took.as_secs_f64(),
    })
}
