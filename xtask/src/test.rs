//! Everything that must pass. The steps are commands anybody could type; this runs them, some side by side where they
//! do not disturb each other, prints what each said when it has ended, and adds up. Each step is a process of its own (this
//! program again, with the step's name), so that its output can be kept apart.

mod executables;
mod outcome;
mod schedule;
mod times;

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{cargo, run as run_command, watch};
use crate::toolchain::Toolchain;
use crate::{
    api, arrows, attack, bench, checks, crates, demo, deny, dist, newest, no_std, prerequisites, process, programs,
    purity, rooms, soak, strangers, wheel,
};
use outcome::{Counts, Failures, Outcome, Timed, result_line, timed};
use schedule::{Load, Plan, Schedule};
use times::Times;

/// How many programs the simulator's model test runs; it reads this variable.
const MODEL_PROGRAMS: &str = "UBIVERBS_MODEL_PROGRAMS";

/// How many peers the tests of killed peers kill; they read this variable.
const KILLS: &str = "UBIVERBS_TEST_KILLS";

/// How many damaged packets the test of them makes; it reads this variable.
const DAMAGED: &str = "UBIVERBS_TEST_DAMAGED";

/// Where the built examples are, and the built C libraries; tests read these variables and then build neither.
pub const EXAMPLES: &str = "UBIVERBS_TEST_EXAMPLES";
const LIBRARY: &str = "UBIVERBS_TEST_LIBRARY";

/// The step that is run by this process, and the file that its outcome goes to.
const STEP_OUTCOME: &str = "XTASK_STEP_OUTCOME";

/// How often a line says what is under way.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(20);

/// So many of the slowest tests are named at the end.
const SLOWEST_TESTS: usize = 5;

/// With less left on disk, a failure is the disk's.
const DISK_FULL_MEGABYTES: u64 = 200;

/// Tests of programs that start the examples of the dev build, too.
const NOTES: &str = "notes:";

/// The real programs of a quick run: one of each kind, all within some seconds.
const QUICK_PROGRAMS: [&str; 10] = [
    "ibv_devinfo -v",
    "ibv_rc_pingpong -c, one host",
    "ibv_ud_pingpong -c, one host",
    "ibv_srq_pingpong -c -n 200, one host",
    "rping -c -V -C 20 -v, loopback",
    "ucmatose, loopback",
    "ib_send_bw -n 50, one host",
    "ib_write_lat -n 50, one host",
    "ib_read_bw -n 50, one host",
    "ib_atomic_lat -n 50, one host",
];

/// What can be chosen.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Run what is wanted before a commit, in minutes: format, lints, rules of imports, unit tests, scenarios, C programs
    /// and ten real programs, all on the dev build.
    #[arg(long, conflicts_with_all = ["long", "only"])]
    quick: bool,
    /// Run more random programs in the model test of the simulator (200000 unless a number is given).
    #[arg(long, value_name = "PROGRAMS", num_args = 0..=1, default_missing_value = "200000")]
    long: Option<u64>,
    /// Run only the steps whose names contain one of these words.
    #[arg(long, value_name = "WORD", num_args = 1..)]
    only: Vec<String>,
    /// The one step that this process is for.
    #[arg(long, hide = true)]
    step: Option<String>,
}

struct Step {
    name: &'static str,
    load: Load,
    needs: &'static [&'static str],
    /// What it needs in a quick run, if that has it.
    quick: Option<&'static [&'static str]>,
    action: fn(&Path, &Options) -> Result<Outcome, String>,
}

const fn step(
    name: &'static str,
    load: Load,
    needs: &'static [&'static str],
    action: fn(&Path, &Options) -> Result<Outcome, String>,
) -> Step {
    Step { name, load, needs, quick: None, action }
}

impl Step {
    const fn quick(self) -> Step {
        Step { quick: Some(self.needs), ..self }
    }

    /// Part of quick runs, where the dev build has what others take from the release.
    const fn quick_on_the_dev_build(self) -> Step {
        Step { quick: Some(&["prerequisites", "downloads", "build"]), ..self }
    }
}

/// In the order in which they start when there is a choice: what others need first, then what takes longest.
const STEPS: &[Step] = &[
    step("prerequisites", Load::Runs, &[], |root, _| prerequisites::check(root).map(Outcome::note)).quick(),
    step("release", Load::Compiles, &[], |root, _| release(root)),
    step("build", Load::CompilesDev, &[], |root, options| build(root, options.quick)).quick(),
    step("downloads", Load::Runs, &["prerequisites"], |root, _| downloads(root)).quick(),
    step("format", Load::Runs, &[], |root, _| format(root)).quick(),
    step("arrows", Load::Runs, &[], |root, _| arrows::check(root).map(Outcome::note)).quick(),
    step("rooms", Load::Runs, &[], |root, _| rooms::check(root).map(Outcome::note)).quick(),
    step("strangers", Load::Runs, &[], |root, _| strangers::check(root).map(Outcome::note)).quick(),
    step("deny", Load::Runs, &[], |root, _| deny::check(root).map(Outcome::note)).quick(),
    step("purity", Load::Runs, &[], |root, _| purity::check(root).map(Outcome::note)).quick(),
    step("clippy", Load::CompilesDev, &[], |root, _| clippy(root)).quick(),
    step("programs", Load::Alone, &["prerequisites", "downloads", "release"], |root, options| {
        counted(&mut real_programs(root, options, &[&format!("!{NOTES}")])?)
    })
    .quick_on_the_dev_build(),
    step("notes", Load::Runs, &["prerequisites", "downloads", "release", "build"], |root, options| {
        counted(&mut real_programs(root, options, &[NOTES])?)
    }),
    step("tests", Load::Alone, &["prerequisites", "downloads", "release", "build"], tests).quick_on_the_dev_build(),
    step("docs", Load::CompilesDev, &[], |root, _| docs(root)),
    step("doc tests", Load::CompilesDev, &["build"], |root, _| {
        counted(cargo(root).args(["test", "--workspace", "--all-features", "--doc", "--no-fail-fast"]))
    }),
    step("crates", Load::Compiles, &[], |root, _| crates::check(root).map(Outcome::note)),
    step("no_std", Load::Compiles, &[], |root, _| no_std::check(root).map(Outcome::note)),
    step("checks", Load::Runs, &["prerequisites", "release"], |root, _| counted(&mut checks::prepare(root, &[])?)),
    step("soak", Load::Runs, &["prerequisites", "release", "build"], |root, _| soak(root)),
    step("attack", Load::Runs, &["prerequisites", "build"], |root, _| attack(root)),
    step("demo", Load::Runs, &["prerequisites", "release"], |root, _| demo::check(root).map(Outcome::note)),
    step("ratios", Load::Alone, &["release"], |root, _| bench::short(root).map(Outcome::note)),
];

/// A step that runs.
struct Running {
    name: &'static str,
    child: Child,
    started: Instant,
    log: Option<PathBuf>,
    outcome: PathBuf,
}

/// A step that has ended.
struct Ended {
    name: &'static str,
    passed: bool,
    took: Duration,
    counts: Option<Counts>,
}

/// Runs the steps.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    if let Some(name) = &options.step {
        return run_step(root, options, name);
    }
    let is_selected = |step: &&Step| match options.quick {
        true => step.quick.is_some(),
        false => options.only.is_empty() || options.only.iter().any(|word| step.name.contains(word.as_str())),
    };
    let selected: Vec<&Step> = STEPS.iter().filter(is_selected).collect();
    if selected.is_empty() {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!("no step is called that; there are: {}", names.join(", ")));
    }
    let times = Times::read()?;
    let place = process::target_directory(root)?.join("test");
    fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
    let _lock = lock(&place)?;
    let scratch = Scratch::new()?;
    let begin = Instant::now();
    let mut schedule = Schedule::new(selected.iter().map(|step| {
        let needs = step.quick.filter(|_| options.quick).unwrap_or(step.needs);
        Plan { name: step.name, load: step.load, needs }
    }));
    let (mut running, mut ended, mut failures, mut slow) = (Vec::<Running>::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut total, mut built, mut told) = (Counts::default(), Vec::<&str>::new(), Instant::now());
    while !schedule.is_done() {
        while let Some(step) = schedule.start().and_then(|name| STEPS.iter().find(|step| step.name == name)) {
            let started = start(step, options, &place, &scratch.path, &built, selected.len() == 1);
            match started {
                Ok(step) => running.push(step),
                Err(error) => {
                    failures.push(format!("{}: {error}", step.name));
                    schedule.end(step.name, false);
                    total.failed += 1;
                    ended.push(Ended { name: step.name, passed: false, took: Duration::ZERO, counts: None });
                }
            }
        }
        thread::sleep(Duration::from_millis(20));
        let Some(at) = running.iter_mut().position(|step| !matches!(step.child.try_wait(), Ok(None))) else {
            if told.elapsed() > PROGRESS_INTERVAL && !running.is_empty() {
                told = Instant::now();
                let under_way: Vec<String> =
                    running.iter().map(|step| format!("{} ({})", step.name, seconds(step.started.elapsed()))).collect();
                eprintln!("... {}: {}", seconds(begin.elapsed()), under_way.join(", "));
            }
            continue;
        };
        let mut step = running.swap_remove(at);
        let took = step.started.elapsed();
        let success = step.child.wait().is_ok_and(|status| status.success());
        let outcome = fs::read(&step.outcome).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mut outcome: Outcome = outcome.unwrap_or_else(|| Outcome {
            failures: vec![format!("{}: its process ended without an outcome{}", step.name, disk_hint(root))],
            ..Outcome::default()
        });
        if success
            && is_ci()
            && let Some(late) = times.judge(step.name, took)
        {
            outcome.failures.push(late);
        }
        let passed = success && outcome.failures.is_empty() && outcome.counts.is_none_or(|counts| counts.failed == 0);
        show(&step, &outcome, passed, took);
        total.add(outcome.counts.unwrap_or_default());
        if !passed && outcome.counts.is_none_or(|counts| counts.failed == 0) {
            total.failed += 1;
        }
        if !passed {
            failures.extend(outcome.failures);
            failures.extend((step.name == "build" || step.name == "release").then(|| disk_hint(root)));
        }
        slow.extend(outcome.slow);
        if passed && matches!(step.name, "release" | "build") {
            built.push(step.name);
        }
        ended.push(Ended { name: step.name, passed, took, counts: outcome.counts });
        for name in schedule.end(step.name, passed) {
            failures.push(format!("{name}: not run, as {} failed", step.name));
            total.failed += 1;
        }
        if !passed && step.name == "prerequisites" {
            running.iter_mut().for_each(Running::stop);
            break;
        }
    }
    drop(scratch);
    summarize(&ended, &failures, slow, total, begin.elapsed());
    if total.failed == 0 { Ok(()) } else { Err("not everything passed".into()) }
}

/// Starts the process of a step.
fn start(
    step: &Step,
    options: &Options,
    place: &Path,
    scratch: &Path,
    built: &[&str],
    is_only: bool,
) -> Result<Running, String> {
    let file = step.name.replace(' ', "-");
    let (log, outcome) = (place.join(format!("{file}.log")), place.join(format!("{file}.json")));
    let _ = fs::remove_file(&outcome);
    // Not by its name: the build step may have replaced the file.
    let mut command = Command::new("/proc/self/exe");
    command.args(["test", "--step", step.name]);
    if options.quick {
        command.arg("--quick");
    }
    if let Some(programs) = options.long {
        command.arg(format!("--long={programs}"));
    }
    command.env(STEP_OUTCOME, &outcome).env(process::BUILT_STEPS_VARIABLE, built.join(",")).env("TMPDIR", scratch);
    command.stdin(Stdio::null());
    println!("==> {}", step.name);
    if !is_only {
        let failed = |e: std::io::Error| format!("cannot write {}: {e}", log.display());
        let out = File::create(&log).map_err(failed)?;
        command.stderr(out.try_clone().map_err(failed)?).stdout(out);
    }
    let child = command.spawn().map_err(|e| format!("its process did not start: {e}"))?;
    Ok(Running { name: step.name, child, started: Instant::now(), log: (!is_only).then_some(log), outcome })
}

impl Running {
    fn stop(&mut self) {
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Prints what a step said.
fn show(step: &Running, outcome: &Outcome, passed: bool, took: Duration) {
    let mut out = std::io::stdout().lock();
    if let Some(log) = &step.log {
        let _ = writeln!(out, "\n--- {}", step.name);
        let _ = out.write_all(&fs::read(log).unwrap_or_default());
    }
    if !outcome.note.is_empty() {
        let _ = writeln!(out, "{}", outcome.note);
    }
    let _ = writeln!(out, "<== {} {} in {}", step.name, if passed { "ok" } else { "FAILED" }, seconds(took));
    let _ = out.flush();
}

/// Prints failures once more, the time of each step, the slowest tests, and the count.
fn summarize(ended: &[Ended], failures: &[String], mut slow: Vec<Timed>, total: Counts, took: Duration) {
    if !failures.is_empty() {
        println!("\nwhat failed, once more:");
        failures.iter().filter(|line| !line.is_empty()).for_each(|line| println!("  {line}"));
    }
    slow.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    slow.retain(|test| !test.name.ends_with(executables::ALL_OF_IT));
    if !slow.is_empty() {
        println!("\nslowest tests:");
        for Timed { name, seconds } in slow.iter().take(SLOWEST_TESTS) {
            println!("  {seconds:>7.1} s  {name}");
        }
    }
    println!("\n{:<16} {:>9} {:>8} {:>7} {:>8}", "step", "time", "passed", "failed", "ignored");
    for Ended { name, passed, took, counts } in ended {
        let verdict = if *passed { "" } else { "  FAILED" };
        match counts {
            Some(c) => {
                println!("{name:<16} {:>9} {:>8} {:>7} {:>8}{verdict}", seconds(*took), c.passed, c.failed, c.ignored)
            }
            None => println!("{name:<16} {:>9}{verdict}", seconds(*took)),
        }
    }
    println!("{:<16} {:>9}  (steps run side by side)", "all", seconds(took));
    println!("{} passed, {} failed", total.passed, total.failed);
}

/// Runs one step in this process, and writes its outcome.
fn run_step(root: &Path, options: &Options, name: &str) -> Result<(), String> {
    let step = STEPS.iter().find(|step| step.name == name).ok_or_else(|| format!("no step is called {name}"))?;
    let (outcome, result) = match (step.action)(root, options) {
        Ok(outcome) => (outcome, Ok(())),
        Err(message) => (Outcome { failures: vec![format!("{name}: {message}")], ..Outcome::default() }, Err(message)),
    };
    if let Some(path) = std::env::var_os(STEP_OUTCOME) {
        let text = serde_json::to_string(&outcome).map_err(|e| e.to_string())?;
        fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    result
}

/// A directory for what tests leave in the temporary directory. It goes with the run, however that ends: a shell that
/// hears no Ctrl-C waits for the end of its input, and removes it. Every user may write to it, as tests become other users.
struct Scratch {
    path: PathBuf,
    remover: Child,
}

impl Scratch {
    fn new() -> Result<Scratch, String> {
        let path = std::env::temp_dir().join(format!("ubiverbs-test-{}", std::process::id()));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
        let made = fs::create_dir_all(&path).and_then(|()| fs::set_permissions(&path, mode));
        made.map_err(|e| format!("cannot make {}: {e}; is the disk full?", path.display()))?;
        let mut remover = Command::new("sh");
        remover.args(["-c", "trap '' INT TERM HUP; cat; exec rm -rf -- \"$1\"", "sh"]).arg(&path);
        let remover = remover.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Scratch { path, remover: remover.map_err(|e| format!("cannot start sh: {e}"))? })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Waiting closes its input.
        let _ = self.remover.wait();
    }
}

/// Only one run at a time in a target directory: two would wait for each other's builds and remove each other's files.
fn lock(place: &Path) -> Result<File, String> {
    let path = place.join("lock");
    let failed = |e: std::io::Error| format!("cannot lock {}: {e}", path.display());
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(failed)?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let process = fs::read_to_string(&path).unwrap_or_default();
            Err(format!(
                "`cargo xtask test` is running in this checkout already (process {}): wait for its end, or use a clone",
                process.trim()
            ))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// A sentence about the disk where it is full, as compilers and tests then say something else.
fn disk_hint(root: &Path) -> String {
    match prerequisites::megabytes_free(root) {
        Ok(free) if free < DISK_FULL_MEGABYTES => format!("the disk is full: {free} MB are free"),
        _ => String::new(),
    }
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
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

/// What is handed to people, and the programs that run other programs on it.
fn release(root: &Path) -> Result<Outcome, String> {
    Toolchain::system(root, None)?.build_everything(root)?;
    let made = dist::build(root, dist::Options::default())?;
    wheel::native(root).map(|wheel| Outcome::note(format!("{made}\n{}", wheel.display())))
}

/// Everything of the dev profile. A quick run has its libraries and the program `ubiverbs` from there, too.
fn build(root: &Path, quick: bool) -> Result<Outcome, String> {
    let count = executables::build(root, quick)?;
    if quick {
        dist::build(root, dist::Options::DEBUG)?;
    }
    Ok(Outcome::note(format!("{count} test executables")))
}

/// The newest rdma-core. Where it cannot be had, the tests that want it fail and say so.
fn downloads(root: &Path) -> Result<Outcome, String> {
    let note = newest::provide(root).map_or_else(|error| error, |place| place.display().to_string());
    Ok(Outcome::note(note))
}

fn tests(root: &Path, options: &Options) -> Result<Outcome, String> {
    if !process::is_built("build") {
        executables::build(root, options.quick)?;
    }
    let target = process::target_directory(root)?;
    let library = if options.quick { "dist-debug/lib" } else { "dist/lib" };
    if !options.quick && !process::is_built("release") {
        dist::unpacked(root)?;
    }
    let mut variables = vec![(EXAMPLES, target.join("debug/examples")), (LIBRARY, target.join(library))];
    variables.extend(newest::provide(root).ok().map(|place| (programs::NEWEST_VARIABLE, place)));
    if let Some(programs) = options.long {
        variables.push((MODEL_PROGRAMS, programs.to_string().into()));
    }
    let mut all = executables::built(root)?;
    if options.quick {
        all.retain(executables::Executable::is_quick);
        all.iter_mut().for_each(executables::Executable::leave_out_slow_tests);
    }
    executables::run(&all, &variables)
}

/// Real programs whose tests have these words in their names; in a quick run those that are quick.
fn real_programs(root: &Path, options: &Options, words: &[&str]) -> Result<Command, String> {
    let (which, words) = match options.quick {
        true => (programs::Which::Quick, &QUICK_PROGRAMS[..]),
        false => (programs::Which::Installed, words),
    };
    programs::prepare(root, which, &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
}

/// Runs the tests of the core crates: what computes, without sockets, clocks or threads.
pub fn core(root: &Path) -> Result<(), String> {
    const CORE: [&str; 9] = ["wire", "trace", "transport", "cm", "mad", "rsocket", "checks", "failures", "profiles"];
    let mut command = cargo(root);
    command.arg("test").args(CORE.iter().map(|name| format!("--package=ubiverbs-{name}")));
    run_command(command.args(["--lib", "--tests"]))
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

/// The documentation without a warning, and the public interface as its list has it: rustdoc tells both at once.
fn docs(root: &Path) -> Result<Outcome, String> {
    api::document_all(root)?;
    api::check(root).map(Outcome::note)
}

/// A minute of rounds, with the seed of the day; each counts as a test.
fn soak(root: &Path) -> Result<Outcome, String> {
    let options = soak::Options { minutes: 1.0, seed: None, only: Vec::new(), round: None, together: 1, dev: true };
    let soak::Counts { passed, failed } = soak::play(root, &options)?;
    if passed + failed == 0 {
        return Err("no round was played".into());
    }
    Ok(Outcome::counted(passed, failed))
}

/// Every attack, and some seconds of mixtures; each counts as a test. Only root can make hosts and become other users.
fn attack(root: &Path) -> Result<Outcome, String> {
    if !prerequisites::is_root() {
        return Ok(Outcome::note("not root: no attack was tried; as root this step takes about a minute".into()));
    }
    let options = attack::Options { minutes: 0.3, seed: None, only: Vec::new(), list: false };
    let attack::Counts { held, failed } = attack::play(root, &options)?;
    Ok(Outcome::counted(held, failed))
}

/// Runs a `cargo test`, or a program that prints as it does, and adds up its results.
fn counted(command: &mut Command) -> Result<Outcome, String> {
    let (mut counts, mut failures, mut slow) = (Counts::default(), Failures::default(), Vec::new());
    let success = watch(command, |line| {
        failures.read(line);
        counts.add(result_line(line).unwrap_or_default());
        slow.extend(timed(line));
    })?;
    if !success && counts.failed == 0 {
        return Err("it failed before it could count: see above".into());
    }
    if counts.passed == 0 {
        return Err("no test ran".into());
    }
    Ok(Outcome { counts: Some(counts), failures: failures.take(), slow, ..Outcome::default() })
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::STEPS;
    use super::times::Times;

    #[test]
    fn every_step_has_a_budget_and_needs_steps_before_it() {
        let times = Times::read().unwrap();
        for (number, step) in STEPS.iter().enumerate() {
            assert!(times.has_step(step.name), "{} has no budget in xtask/times.json", step.name);
            for need in step.needs {
                assert!(STEPS[..number].iter().any(|other| other.name == *need), "{} needs {need}", step.name);
            }
        }
    }
}
