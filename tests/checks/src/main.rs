//! For each rule of `checks` a C program that breaks it and one that does not: `c/FAMILY.c`, run on our library with
//! everything switched on. `check-programs LIBRARIES [WORD…]` runs those whose rule or family contains one of the words;
//! `LIBRARIES` is the directory with `libibverbs.so.1`. `mistakes` compares the page of mistakes with what programs are told.
//!
//! A program that breaks a rule must be told of it, the other must not. A rule without both fails. Then what
//! `ubiverbs run` does with findings is tested with one of these programs: words that tests are called by, such as `run:`,
//! select those.
#![forbid(unsafe_code)]

mod mistakes;
mod parallel;
mod programs;
mod running;

use checks::{Number, Rule};
use programs::{Ended, Kind, Programs};
use running::Stage;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(libraries) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: check-programs LIBRARIES [WORD…]");
        return ExitCode::from(2);
    };
    let words: Vec<String> = arguments.collect();
    let libraries = libraries.canonicalize().map_err(|e| format!("{}: {e}", libraries.display()));
    match libraries.and_then(|libraries| run(&libraries, &words)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A program to be run: its family, its rule, and whether it breaks it.
type Job = (String, Number, Kind);

/// Runs what the words select; answers whether all is well.
fn run(libraries: &Path, words: &[String]) -> Result<bool, String> {
    let started = Instant::now();
    let told = if words.is_empty() || words.iter().any(|word| word == "mistakes") {
        let told = mistakes::check(libraries);
        println!("test docs/mistakes.md ... {}", if told.is_ok() { "ok" } else { "FAILED" });
        told
    } else {
        Ok(())
    };
    if words == ["mistakes"] {
        return told.map(|()| true);
    }
    let is_wanted = |rule: &Rule| {
        let texts = [rule.number.to_string(), rule.family().name().to_owned()];
        words.is_empty() || words.iter().any(|word| texts.iter().any(|text| text.contains(word.as_str())))
    };
    let wanted: Vec<&Rule> = Rule::all().filter(|rule| is_wanted(rule)).collect();
    let is_wanted = |test: &&running::Test| words.is_empty() || words.iter().any(|word| test.0.contains(word.as_str()));
    let running: Vec<&running::Test> = running::TESTS.iter().filter(is_wanted).collect();
    if wanted.is_empty() && running.is_empty() {
        return Err(format!("no rule and no test is called {}", words.join(" or ")));
    }
    let mut families: BTreeSet<&str> = wanted.iter().map(|rule| rule.family().name()).collect();
    if !running.is_empty() {
        families.extend(["events", "work"]);
    }
    let programs = Programs::compile(libraries, &families)?;
    let cases = programs.cases()?;
    let mut failed = missing(&wanted, &cases);
    failed.extend(told.err());
    failed.extend(strange(&cases));
    let numbers: BTreeSet<Number> = wanted.iter().map(|rule| rule.number).collect();
    let jobs: Vec<Job> = cases.into_iter().filter(|(_, rule, _)| numbers.contains(rule)).collect();
    let judged = parallel::each(&jobs, |(family, rule, kind)| {
        let verdict = judge(*rule, *kind, programs.run(family, *rule, *kind));
        print_verdict(&format!("{rule} {}", kind.name()), verdict)
    });
    let played = parallel::each(&running, |(name, play)| {
        print_verdict(name, Stage::new(&programs, name).and_then(|stage| play(&stage)))
    });
    failed.extend(judged.into_iter().chain(played).filter_map(Result::err));
    failed.iter().for_each(|said| println!("\n---- {said}"));
    let passed = (jobs.len() + running.len()).saturating_sub(failed.len());
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    let time = started.elapsed().as_secs_f64();
    println!("\ntest result: {word}. {passed} passed; {} failed; 0 ignored; finished in {time:.1}s", failed.len());
    Ok(failed.is_empty())
}

/// Prints how a test ended, in one piece, as others print as well; answers what is to be said of it in the end.
fn print_verdict(name: &str, verdict: Result<(), String>) -> Result<(), String> {
    println!("test {name} ... {}", if verdict.is_ok() { "ok" } else { "FAILED" });
    verdict.map_err(|said| format!("{name}: {said}"))
}

/// Rules that no C program can break: about calls that C does not have, and about what a failure script did. Their tests
/// are scripts of events alone.
const WITHOUT_PROGRAMS: &[&str] = &["UV-0950", "UV-0951"];

/// Rules that lack a program.
fn missing(wanted: &[&Rule], cases: &[Job]) -> Vec<String> {
    let lacks = |rule: &Rule, kind: Kind| !cases.iter().any(|(_, number, it)| *number == rule.number && *it == kind);
    let mut missing = Vec::new();
    for rule in wanted.iter().filter(|rule| !WITHOUT_PROGRAMS.contains(&rule.number.to_string().as_str())) {
        for kind in [Kind::Break, Kind::Keep] {
            if lacks(rule, kind) {
                let family = rule.family().name();
                missing.push(format!(
                    "{}: tests/checks/c/{family}.c has no program to {} it",
                    rule.number,
                    kind.name()
                ));
            }
        }
    }
    missing
}

/// Programs of no rule, of a rule of another family, or of one that has programs already.
fn strange(cases: &[Job]) -> Vec<String> {
    let mut seen: BTreeMap<(Number, Kind), u32> = BTreeMap::new();
    let mut strange = Vec::new();
    for (family, number, kind) in cases {
        match Rule::of(*number) {
            None => strange.push(format!("{family}.c has a program for {number}, which is no rule")),
            Some(rule) if rule.family().name() != family => {
                strange.push(format!("{number} belongs into {}.c, not into {family}.c", rule.family().name()));
            }
            Some(_) => {}
        }
        let count = seen.entry((*number, *kind)).or_default();
        *count += 1;
        if *count > 1 {
            strange.push(format!("{family}.c has more than one program to {} {number}", kind.name()));
        }
    }
    strange
}

/// Whether a program was told what it should be told.
fn judge(rule: Number, kind: Kind, ended: Result<Ended, String>) -> Result<(), String> {
    let Ended { succeeded, how, said, findings, told_twice } = ended?;
    if !succeeded {
        return Err(format!("the program {how}\n{said}"));
    }
    if let Some(twice) = told_twice {
        return Err(format!("the program was told of one mistake twice: {twice}\n{said}"));
    }
    let is_told = findings.contains(&rule);
    match (kind, is_told) {
        (Kind::Break, true) | (Kind::Keep, false) => Ok(()),
        (Kind::Break, false) => {
            let others: Vec<String> = findings.iter().map(Number::to_string).collect();
            Err(format!("the rule is broken and not told; told is: {}\n{said}", others.join(", ")))
        }
        (Kind::Keep, true) => Err(format!("the rule is kept and told all the same\n{said}")),
    }
}
