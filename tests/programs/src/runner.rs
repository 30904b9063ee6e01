//! Runs tests, several at a time, prints how each ended, and what they come to together. Each of those that run at the
//! same time has hosts and files of its own, see [`Stage`]; what needs the machine for itself comes last, one by one.

use crate::findings::Findings;
use crate::scoreboard::Scoreboard;
use crate::stage::{Ground, Stage};
use crate::usage::Usage;
use crate::{Test, findings, is_root, links, scoreboard};
use std::cmp::Reverse;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tests at a time for each processor: most tests wait more than they compute.
const JOBS_PER_PROCESSOR: usize = 2;

/// More at a time have not been tried.
const JOBS_MAX: usize = 16;

/// How many of the slowest tests are named in the end.
const SLOWEST_SHOWN: usize = 5;

/// How tests are run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many at a time.
    pub jobs: usize,
    /// The scoreboard is written.
    pub writes_scoreboard: bool,
    /// Programs are checked against the rules of verbs.
    pub checks: bool,
}

/// How many tests may run at a time: who is not root has one host only, and the ports of that are everybody's.
pub fn usual_jobs() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    if is_root() { (JOBS_PER_PROCESSOR * processors).min(JOBS_MAX) } else { 1 }
}

/// How a test ended.
struct Outcome {
    result: Result<(), String>,
    time: Duration,
    usage: Usage,
    /// What the programs of the test were told, if they were checked.
    findings: String,
}

/// Runs the tests whose names contain one of the words, and none of those that begin with an exclamation mark.
pub fn run(ground: &Ground, tests: &[Test], words: &[String], settings: Settings) -> ExitCode {
    let begin = Instant::now();
    let (without, with): (Vec<&str>, Vec<&str>) =
        words.iter().map(String::as_str).partition(|word| word.starts_with('!'));
    let has = |test: &Test, word: &&str| test.name.contains(word.trim_start_matches('!'));
    let is_wanted = |test: &Test| {
        (with.is_empty() || with.iter().any(|word| has(test, word))) && !without.iter().any(|word| has(test, word))
    };
    let mut ignored = Vec::new();
    let (mut together, mut alone): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    let may_trace = links::may_trace();
    for (index, test) in tests.iter().enumerate().filter(|(_, test)| is_wanted(test)) {
        let reason = match () {
            () if test.needs_root && !is_root() => "not root",
            () if test.needs_ptrace && !may_trace => "this system does not let a process look at another (ptrace)",
            () if test.alone && settings.jobs > 1 => {
                alone.push(index);
                continue;
            }
            () => {
                together.push(index);
                continue;
            }
        };
        println!("test {} ... ignored, {reason}", test.name);
        ignored.push(index);
    }
    // A long test that begins last would keep all others waiting.
    if settings.jobs > 1 {
        together.sort_by_key(|index| Reverse(tests[*index].seconds));
    }
    let outcomes: Vec<Mutex<Option<Outcome>>> = tests.iter().map(|_| Mutex::new(None)).collect();
    let play_and_keep = |stage: &Stage, index: usize| {
        let outcome = play(stage, &tests[index]);
        *outcomes[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    };
    let next = AtomicUsize::new(0);
    let work = |number: usize| -> Result<Stage, String> {
        let stage = Stage::new(ground, number)?;
        while let Some(index) = together.get(next.fetch_add(1, Ordering::Relaxed)) {
            play_and_keep(&stage, *index);
        }
        Ok(stage)
    };
    let stages = std::thread::scope(|scope| {
        // A stage stays with its thread.
        let workers: Vec<_> =
            (1..settings.jobs.min(together.len())).map(|number| scope.spawn(move || work(number).map(drop))).collect();
        let own = work(0);
        let others = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err("a test panicked".into())));
        others.collect::<Result<Vec<()>, String>>().and(own)
    });
    let stage = match stages {
        Ok(stage) => stage,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    alone.iter().for_each(|index| play_and_keep(&stage, *index));
    let outcomes = outcomes.into_iter().map(|outcome| outcome.into_inner().unwrap_or_else(PoisonError::into_inner));
    let report = Report::new(tests, &ignored, outcomes.collect());
    report.print(begin.elapsed());
    report.finish(settings)
}

/// Runs one test, and prints how it ended: in one piece, as others print as well.
fn play(stage: &Stage, test: &Test) -> Outcome {
    let start = Instant::now();
    stage.take_usage();
    stage.take_notes();
    let result = (test.play)(stage);
    let time = start.elapsed();
    let usage = stage.take_usage();
    let findings = stage.findings.as_ref().map_or(Ok(String::new()), |collection| collection.take());
    let (findings, result) = match findings {
        Ok(findings) => (findings, result),
        Err(error) => (String::new(), result.and(Err(error))),
    };
    let (name, milliseconds) = (&test.name, time.as_millis());
    let mut text = match &result {
        Ok(()) => format!("test {name} ... ok ({milliseconds} ms, {usage})"),
        Err(error) => format!("test {name} ... FAILED ({milliseconds} ms)\n{error}\n"),
    };
    stage.take_notes().iter().for_each(|note| text += &format!("\n  {note}"));
    println!("{text}");
    Outcome { result, time, usage, findings }
}

/// What the tests came to, in their own order.
struct Report<'a> {
    scoreboard: Scoreboard,
    findings: Findings,
    passed: usize,
    failed: Vec<&'a str>,
    ignored: usize,
    /// How long tests took, the longest first.
    times: Vec<(Duration, &'a str)>,
}

impl<'a> Report<'a> {
    fn new(tests: &'a [Test], ignored: &[usize], outcomes: Vec<Option<Outcome>>) -> Report<'a> {
        let mut report = Report {
            scoreboard: Scoreboard::default(),
            findings: Findings::default(),
            passed: 0,
            failed: Vec::new(),
            ignored: ignored.len(),
            times: Vec::new(),
        };
        for (index, (test, outcome)) in tests.iter().zip(outcomes).enumerate() {
            if ignored.contains(&index) {
                report.scoreboard.ignored(test);
            }
            let Some(Outcome { result, time, usage, findings }) = outcome else { continue };
            report.scoreboard.ran(test, result.is_ok(), usage);
            report.findings.add(&test.name, &findings);
            report.times.push((time, &test.name));
            match result {
                Ok(()) => report.passed += 1,
                Err(_) => report.failed.push(&test.name),
            }
        }
        report.times.sort_by_key(|(time, _)| Reverse(*time));
        report
    }

    fn print(&self, time: Duration) {
        println!("the slowest:");
        for (time, name) in self.times.iter().take(SLOWEST_SHOWN) {
            println!("  {:.1} s  {name}", time.as_secs_f64());
        }
        self.failed.iter().for_each(|name| println!("failed: {name}"));
        let verdict = if self.failed.is_empty() { "ok" } else { "FAILED" };
        let Report { passed, ignored, .. } = self;
        let failures = self.failed.len();
        println!("test result: {verdict}. {passed} passed; {failures} failed; {ignored} ignored; in {time:?}");
    }

    /// Writes or compares what was asked for; answers how all of it ended.
    fn finish(&self, settings: Settings) -> ExitCode {
        if settings.writes_scoreboard
            && let Err(error) = self.scoreboard.write(&scoreboard::page())
        {
            println!("{error}");
            return ExitCode::FAILURE;
        }
        if settings.checks
            && let Err(error) = findings::page().and_then(|page| self.findings.compare(&page))
        {
            println!("{error}");
            return ExitCode::FAILURE;
        }
        if self.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
