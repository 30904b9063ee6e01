//! `ubiverbs litmus`: runs small programs that show in which order a NIC may do things, and counts their outcomes.

mod links;

use crate::exit::{Exit, Failure};
use crate::style;
use clap::{Args, ValueHint};
use links::Ground;
use litmus::{Tally, Test, Verdict, library, parse, run_simulated};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use transport::weak::Weakness;

/// Run small programs that show in which order an RDMA NIC may do things
///
/// Each test is a program of a few processes, with the outcomes that the specification allows and forbids, and why. It
/// runs many times on the simulator, each time with another seed; what must not be seen is a failure. With the weakest
/// NIC everything that is allowed is seen; the default NIC shows a part of it.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Options {
    /// Files of tests of your own, in place of those that come with ubiverbs
    #[arg(value_name = "FILES", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Only tests with this in their name; as often as needed
    #[arg(long, value_name = "WORD")]
    test: Vec<String>,
    /// Run each test so many times
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// The first seed; each run has the next
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The NIC: weakest, or default
    #[arg(long, value_name = "NAME", default_value = "weakest")]
    nic: NicChoice,
    /// Where the tests run
    #[arg(long, value_name = "WHERE", default_value = "simulator")]
    on: Ground,
    /// Fail also if an outcome that is allowed was not seen
    #[arg(long)]
    all_seen: bool,
    /// List the tests, with what they are about
    #[arg(long)]
    list: bool,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum NicChoice {
    Weakest,
    Default,
}

impl NicChoice {
    fn name(self) -> &'static str {
        match self {
            NicChoice::Weakest => "weakest",
            NicChoice::Default => "default",
        }
    }
}

const AFTER_HELP: &str = "\
Examples:
  ubiverbs litmus
  ubiverbs litmus --test write-then-send --runs 1000000
  ubiverbs litmus --nic default
  ubiverbs litmus --on shared --runs 200
  ubiverbs litmus --seed 4711 --runs 1 --test torn-write
  ubiverbs litmus mine.litmus --json

Exit codes: 0 nothing was seen that must not be; 1 something was, or a file could not be read; 2 the command line or \
a test was wrong. docs/litmus.md describes files of tests.";

/// Runs the command.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut tests = read(&options.files)?;
    tests.retain(|(_, test)| options.test.is_empty() || options.test.iter().any(|word| test.name.contains(word)));
    if tests.is_empty() {
        return Err(Failure::Script(format!("no test has {} in its name", options.test.join(" or "))));
    }
    if options.list {
        return list(&tests, options.json, out);
    }
    let weakness = (options.nic == NicChoice::Weakest).then(|| Weakness::all(options.seed));
    let (seed, runs) = (options.seed, options.runs);
    let tallies = match options.on {
        Ground::Simulator => run_all(&tests, |test| run_simulated(test, weakness, seed, runs)),
        ground => {
            let run = |(_, test): &(String, Test)| links::run(test, ground, weakness, seed, runs);
            tests.iter().map(run).collect::<Result<_, _>>()?
        }
    };
    let pairs: Vec<_> = tests.iter().zip(&tallies).collect();
    let unseen: usize = pairs.iter().map(|((_, test), tally)| unseen(test, tally)).sum();
    let failed = pairs.iter().filter(|((_, test), tally)| tally.fails(test)).count();
    if options.json {
        let tests: Vec<Value> = pairs.iter().map(|((file, test), tally)| document(file, test, tally)).collect();
        let document = json!({
            "nic": options.nic.name(),
            "seed": options.seed,
            "runs": options.runs,
            "failed": failed,
            "unseen": unseen,
            "tests": tests,
        });
        writeln!(out, "{document:#}").map_err(Failure::Output)?;
    } else {
        for ((file, test), tally) in &pairs {
            table(file, test, tally, options, out).map_err(Failure::Output)?;
        }
        let title = style::TITLE_STYLE;
        writeln!(
            out,
            "{title}{} tests, {} runs each with the NIC {}:{title:#} {failed} failed; {unseen} outcomes that are \
             allowed were not seen",
            pairs.len(),
            options.runs,
            options.nic.name(),
        )
        .map_err(Failure::Output)?;
    }
    Ok(if failed > 0 || options.all_seen && unseen > 0 { Exit::Job } else { Exit::Ok })
}

/// Tests with the name of their file.
fn read(files: &[PathBuf]) -> Result<Vec<(String, Test)>, Failure> {
    if files.is_empty() {
        return Ok(library().into_iter().map(|(file, test)| (file.to_owned(), test)).collect());
    }
    let mut tests = Vec::new();
    for path in files {
        let text = fs::read_to_string(path).map_err(|source| Failure::Read { path: path.clone(), source })?;
        let read = parse(&text).map_err(|error| Failure::Script(format!("{}: {error}", path.display())))?;
        tests.extend(read.into_iter().map(|test| (path.display().to_string(), test)));
    }
    Ok(tests)
}

/// Runs all tests, on all processors.
fn run_all(tests: &[(String, Test)], run: impl Fn(&Test) -> Tally + Sync) -> Vec<Tally> {
    let next = AtomicUsize::new(0);
    let tallies = Mutex::new(vec![Tally::default(); tests.len()]);
    let workers = thread::available_parallelism().map_or(1, NonZero::get).min(tests.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((index, (_, test))) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    tests.get(index).map(|test| (index, test))
                } {
                    let tally = run(test);
                    // A worker that panicked is told by the scope.
                    if let Ok(mut tallies) = tallies.lock() {
                        tallies[index] = tally;
                    }
                }
            });
        }
    });
    tallies.into_inner().unwrap_or_default()
}

fn list(tests: &[(String, Test)], json: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    if json {
        let tests = tests.iter().map(|(file, test)| json!({"file": file, "name": test.name, "about": test.about}));
        let document = Value::Array(tests.collect());
        writeln!(out, "{document:#}").map_err(Failure::Output)?;
        return Ok(Exit::Ok);
    }
    let width = tests.iter().map(|(_, test)| test.name.len()).max().unwrap_or(0);
    for (_, test) in tests {
        writeln!(out, "{:width$}  {}", test.name, test.about).map_err(Failure::Output)?;
    }
    Ok(Exit::Ok)
}

/// How many outcomes that are allowed were not seen.
fn unseen(test: &Test, tally: &Tally) -> usize {
    let outcomes = test.outcomes.iter().zip(&tally.outcomes);
    outcomes.filter(|(outcome, (count, _))| outcome.verdict != Verdict::Forbidden && *count == 0).count()
}

fn table(file: &str, test: &Test, tally: &Tally, options: &Options, out: &mut dyn Write) -> std::io::Result<()> {
    let (title, bad) = (style::TITLE_STYLE, style::BAD_STYLE);
    writeln!(out, "{title}{}{title:#} ({file})  {}", test.name, test.about)?;
    let width = test.outcomes.iter().map(|outcome| outcome.told(test).to_string().len()).max().unwrap_or(0);
    for (outcome, (count, seed)) in test.outcomes.iter().zip(&tally.outcomes) {
        let told = outcome.told(test).to_string();
        let word = outcome.verdict.word();
        let failed = outcome.verdict == Verdict::Forbidden && *count > 0;
        let style = if failed { bad } else { Default::default() };
        write!(out, "  {style}{word:9} {told:width$} {count:>9}{style:#}  {}", outcome.why)?;
        match (failed, seed) {
            (true, Some(seed)) => writeln!(out, "; first seen with --seed {seed}")?,
            _ => writeln!(out)?,
        }
    }
    for (seen, unlisted) in &tally.unlisted {
        let (told, count, seed) = (seen.told(test), unlisted.count, unlisted.seed);
        writeln!(out, "  {bad}not listed{bad:#} {told} {count}; first seen with --seed {seed}")?;
    }
    if let Some((broken, seed)) = &tally.broken {
        writeln!(out, "  {bad}no outcome:{bad:#} {broken}; with --seed {seed} --nic {}", options.nic.name())?;
    }
    Ok(())
}

fn document(file: &str, test: &Test, tally: &Tally) -> Value {
    let outcomes = test.outcomes.iter().zip(&tally.outcomes).map(|(outcome, (count, seed))| {
        json!({
            "verdict": outcome.verdict.word(),
            "conditions": outcome.told(test).to_string(),
            "why": outcome.why,
            "count": count,
            "first_seed": seed,
        })
    });
    let unlisted = tally
        .unlisted
        .iter()
        .map(|(seen, unlisted)| json!({"seen": seen.told(test), "count": unlisted.count, "first_seed": unlisted.seed}));
    json!({
        "file": file,
        "name": test.name,
        "about": test.about,
        "runs": tally.runs,
        "failed": tally.fails(test),
        "outcomes": outcomes.collect::<Vec<_>>(),
        "unlisted": unlisted.collect::<Vec<_>>(),
        "broken": tally.broken.as_ref().map(|(broken, seed)| json!({"what": broken.to_string(), "seed": seed})),
    })
}
