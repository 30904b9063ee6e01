//! The test executables of the workspace: builds them all at once, and runs several at a time. As root each has namespaces
//! of its own, so that ports, addresses, counters and the names of a host's processes are its alone.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::outcome::{Counts, Failures, Outcome, Timed, result_line, timed};
use super::times::Times;
use crate::prerequisites;
use crate::process::{self, cargo};

/// How tests are built. What a quick run chooses has the same features as in the whole, so nothing is built twice.
const TESTS_OF_WORKSPACE: [&str; 3] = ["test", "--workspace", "--all-features"];

/// The tests that a quick run has beside unit tests, by their names, which no other package uses: scenarios, and C
/// programs on the library.
const QUICK_TARGETS: [&str; 3] = ["scenarios", "c_library", "calls"];

/// Packages whose libraries have no unit tests, and of which `--lib` would build test executables. All others are chosen:
/// what they ask for decides which features the crates have that they share.
const WITHOUT_UNIT_TESTS: [&str; 7] = [
    "crates/abi",
    "crates/macros",
    "crates/seam",
    "crates/simulation",
    "tests/book",
    "tests/fuzzing",
    "tests/processes",
];

/// The programs whose unit tests a quick run has: the others, which play tests, have next to none.
const QUICK_UNIT_PROGRAMS: [&str; 2] = ["ubiverbs", "xtask"];

/// The programs that a quick run starts.
const QUICK_STARTED_PROGRAMS: [&str; 2] = ["ubiverbs", "programs"];

/// An executable that has not ended by then hangs. The slowest takes two minutes on two idle processors.
const HANGS_AFTER: Duration = Duration::from_secs(1200);

/// Executables at a time for each processor: most of their tests wait for something.
const EXECUTABLES_PER_PROCESSOR: usize = 2;

/// Tests that start cargo, which must not see the variable that lets libtest report times.
const STARTS_CARGO: &str = "programs";

/// Makes a host of a network and a mount namespace. Counters of ended processes are in /dev/shm, one file for each user:
/// with that shared, executables would count one another's packets.
const OWN_HOST: &str =
    r#"mount -t tmpfs -o mode=1777 ubiverbs /dev/shm 2>/dev/null; ip link set lo up && exec "$0" "$@""#;

/// libtest then says how long each test took.
const LIBTEST_TIMES: [&str; 3] = ["-Z", "unstable-options", "--report-time"];

/// Tests that are too slow for a quick run, by parts of their names: random programs and long transfers, which the whole
/// run has, and C programs over UDP, which are the same as over shared memory.
const NOT_IN_QUICK_RUNS: [&str; 12] = [
    "model::one_mistake",
    "model::reliable_work",
    "model::unreliable_messages",
    "model::shared_receives",
    "tables::",
    "incast::",
    "processes_that_share_a_receiver_converge",
    "trains_arrive_whole_and_in_order_lap_after_lap",
    "programs::udp::",
    "programs::misused_objects",
    "a_capture_that_becomes_too_large",
    "memory_of_a_gpu_moves_between_processes",
];

/// Threads of one executable in a quick run: there are too few executables to fill what their tests wait for.
const QUICK_THREADS: &str = "4";

/// What follows an executable's name where its whole time is meant.
pub const ALL_OF_IT: &str = ", all of it";

/// One executable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Executable {
    /// The package, as its directory is called.
    package: String,
    target: String,
    is_unit: bool,
    /// It has libtest's `main`, not one of its own.
    has_harness: bool,
    path: PathBuf,
    manifest: PathBuf,
    /// What libtest is told.
    #[serde(skip)]
    arguments: Vec<&'static str>,
}

impl Executable {
    /// As times.json and the output name it.
    pub fn name(&self) -> String {
        match self.is_unit {
            true => format!("{} (unit)", self.package),
            false => format!("{}/{}", self.package, self.target),
        }
    }

    /// Part of `cargo xtask test --quick`.
    pub fn is_quick(&self) -> bool {
        self.is_unit || QUICK_TARGETS.contains(&self.target.as_str())
    }

    /// Makes it part of a quick run.
    pub fn leave_out_slow_tests(&mut self) {
        self.arguments = vec!["--test-threads", QUICK_THREADS];
        self.arguments.extend(NOT_IN_QUICK_RUNS.iter().flat_map(|part| ["--skip", part]));
    }
}

/// Builds every executable, or those of a quick run, writes their list, and returns how many there are.
pub fn build(root: &Path, quick: bool) -> Result<usize, String> {
    let mut command = cargo(root);
    command.args(TESTS_OF_WORKSPACE).args(["--no-run", "--message-format", "json-render-diagnostics"]);
    match quick {
        true => command
            .args(WITHOUT_UNIT_TESTS.iter().flat_map(|place| ["--exclude".into(), package(root, place)]))
            .arg("--lib")
            .args(QUICK_UNIT_PROGRAMS.iter().flat_map(|name| ["--bin", name]))
            .args(QUICK_TARGETS.iter().flat_map(|name| ["--test", name])),
        false => command.arg("--tests"),
    };
    let text = process::output(&mut command)?;
    let found: Vec<Executable> = text.lines().filter_map(artifact).collect();
    if found.is_empty() {
        return Err("cargo named no test executable".into());
    }
    // The programs that tests start, and the examples, which a quick run leaves out.
    let mut command = cargo(root);
    command.arg("build").args(process::AS_THE_TESTS);
    match quick {
        true => command.args(QUICK_STARTED_PROGRAMS.iter().flat_map(|name| ["--bin", name])),
        false => command.args(["--bins", "--examples"]),
    };
    process::run(&mut command)?;
    let list = list(root)?;
    let text = serde_json::to_string_pretty(&found).map_err(|e| e.to_string())?;
    let made = list.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&list, text));
    made.map_err(|e| format!("cannot write {}: {e}", list.display()))?;
    Ok(found.len())
}

/// The name of the package in a folder.
fn package(root: &Path, place: &str) -> String {
    process::package_name(&root.join(place).join("Cargo.toml"))
}

/// Where the list of the last build is.
fn list(root: &Path) -> Result<PathBuf, String> {
    Ok(process::target_directory(root)?.join("test/executables.json"))
}

/// The executables of the last build.
pub fn built(root: &Path) -> Result<Vec<Executable>, String> {
    let list = list(root)?;
    let text = fs::read_to_string(&list).map_err(|e| format!("cannot read {}: {e}", list.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", list.display()))
}

/// Reads one line of cargo's messages.
fn artifact(line: &str) -> Option<Executable> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["profile"]["test"].as_bool() == Some(true);
    let (path, manifest) = (message["executable"].as_str()?, PathBuf::from(message["manifest_path"].as_str()?));
    let target = message["target"]["name"].as_str()?.to_owned();
    let is_unit = !message["target"]["kind"].as_array()?.iter().any(|kind| kind == "test");
    let package = manifest.parent()?.file_name()?.to_string_lossy().into_owned();
    let has_harness = is_unit || !without_harness(&manifest).contains(&target);
    is_test.then(|| Executable {
        package,
        target,
        is_unit,
        has_harness,
        path: path.into(),
        manifest,
        arguments: Vec::new(),
    })
}

/// The tests of a package that bring their own `main`.
fn without_harness(manifest: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifest).unwrap_or_default();
    let Ok(manifest) = toml::from_str::<toml::Value>(&text) else { return Vec::new() };
    let tests = manifest.get("test").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let own = |test: &&toml::Value| test.get("harness").and_then(toml::Value::as_bool) == Some(false);
    let name = |test: &toml::Value| Some(test.get("name")?.as_str()?.to_owned());
    tests.iter().filter(own).filter_map(name).collect()
}

/// Runs executables, the slow ones first, and those that measure one at a time at the end. `variables` are for tests.
pub fn run(all: &[Executable], variables: &[(&str, PathBuf)]) -> Result<Outcome, String> {
    let times = Times::read()?;
    let mut order: Vec<&Executable> = all.iter().collect();
    order.sort_by_key(|executable| std::cmp::Reverse(times.executable(&executable.name())));
    let (alone, together): (Vec<&Executable>, Vec<&Executable>) =
        order.into_iter().partition(|executable| times.measures(&executable.name()));
    let workers = thread::available_parallelism().map_or(1, usize::from) * EXECUTABLES_PER_PROCESSOR;
    let workers = if prerequisites::is_root() { workers } else { 1 };
    let outcome = Mutex::new(Outcome::default());
    for (executables, workers) in [(together, workers), (alone, 1)] {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(executable) = executables.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let (text, ended) = executable.run(variables);
                        let mut outcome = outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        outcome.add(judge(executable, &text, ended));
                        let _ = std::io::stdout().write_all(text.as_bytes());
                    }
                });
            }
        });
    }
    let outcome = outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match outcome.counts.is_some_and(|counts| counts.passed > 0) {
        true => Ok(outcome),
        false => Err("no test ran".into()),
    }
}

/// How an executable ended.
struct Ended {
    success: bool,
    /// What is to be said of it beside what it printed.
    why: String,
    took: Duration,
}

impl Executable {
    fn command(&self) -> Command {
        let arguments: &[&str] = if self.has_harness && self.target != STARTS_CARGO { &LIBTEST_TIMES } else { &[] };
        let mut command = match prerequisites::is_root() {
            true => {
                let mut command = Command::new("unshare");
                command.args(["--net", "--mount", "sh", "-c", OWN_HOST]).arg(&self.path);
                command
            }
            false => Command::new(&self.path),
        };
        command.args(arguments).args(&self.arguments);
        if !arguments.is_empty() {
            // libtest of a stable toolchain asks for this before it reports times.
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }

    /// Runs it to its end; returns what it printed.
    fn run(&self, variables: &[(&str, PathBuf)]) -> (String, Ended) {
        let begin = Instant::now();
        let directory = self.manifest.parent().unwrap_or(Path::new("."));
        let mut command = self.command();
        command.current_dir(directory).stdin(Stdio::null()).process_group(0);
        // As cargo sets them.
        command.env("CARGO_MANIFEST_DIR", directory).env("CARGO_MANIFEST_PATH", &self.manifest);
        command.env("CARGO_PKG_NAME", process::package_name(&self.manifest));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let mut text = format!("\n     Running {} ({})\n", self.name(), self.path.display());
        let failed = |why: String| Ended { success: false, why, took: begin.elapsed() };
        let (mut reader, child) = match piped(&mut command) {
            Ok(started) => started,
            Err(error) => return (text, failed(format!("{} did not start: {error}", self.name()))),
        };
        // Its own children may keep the pipe open after it was killed, so the watch ends the whole group.
        let (ended, bytes) = thread::scope(|scope| {
            let watch = scope.spawn(|| watch(child, begin));
            let mut bytes = Vec::new();
            let _ = reader.read_to_end(&mut bytes);
            (watch.join(), bytes)
        });
        text += &String::from_utf8_lossy(&bytes);
        match ended {
            Ok(Ok(success)) => (text, Ended { success, why: String::new(), took: begin.elapsed() }),
            Ok(Err(why)) => (text, failed(format!("{}: {why}", self.name()))),
            Err(_) => (text, failed(format!("{}: nobody watched it", self.name()))),
        }
    }
}

/// Starts a command with both outputs in one pipe.
fn piped(command: &mut Command) -> std::io::Result<(std::io::PipeReader, Child)> {
    let (reader, writer) = std::io::pipe()?;
    let child = command.stdout(writer.try_clone()?).stderr(writer).spawn();
    // The command has the ends for writing until it is told otherwise.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok((reader, child?))
}

/// Waits for the end of an executable, and kills it with all it started when it hangs.
fn watch(mut child: Child, begin: Instant) -> Result<bool, String> {
    let group = Pid::from_child(&child);
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            // What it left running would keep its output open.
            let _ = kill_process_group(group, Signal::KILL);
            return Ok(status.success());
        }
        if begin.elapsed() > HANGS_AFTER {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            return Err(format!("killed: it had not ended after {} s", HANGS_AFTER.as_secs()));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Adds up what an executable printed.
fn judge(executable: &Executable, text: &str, ended: Ended) -> Outcome {
    let (mut counts, mut failures, mut slow) = (Counts::default(), Failures::default(), Vec::new());
    for line in text.lines() {
        failures.read(line);
        counts.add(result_line(line).unwrap_or_default());
        slow.extend(timed(line).map(|test| Timed { name: format!("{}: {}", executable.name(), test.name), ..test }));
    }
    slow.push(Timed { name: format!("{}{ALL_OF_IT}", executable.name()), seconds: ended.took.as_secs_f64() });
    let mut failures = failures.take();
    if !ended.success && counts.failed == 0 {
        counts.failed = 1;
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n    ");
        failures.push(format!("{} failed before it could count. {}\n    {last}", executable.name(), ended.why));
    }
    Outcome { note: String::new(), counts: Some(counts), failures, slow }
}

#[cfg(test)]
mod tests {
    use super::{Ended, Executable, WITHOUT_UNIT_TESTS, judge};
    use std::path::Path;
    use std::time::Duration;

    #[test]
    fn what_quick_runs_do_not_build_has_no_unit_tests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for place in WITHOUT_UNIT_TESTS {
            let text = std::fs::read_to_string(root.join(place).join("Cargo.toml")).unwrap();
            let manifest: toml::Value = toml::from_str(&text).unwrap();
            assert_eq!(manifest["lib"]["test"].as_bool(), Some(false), "{place}");
        }
    }

    fn executable() -> Executable {
        Executable {
            package: "wire".into(),
            target: "suite".into(),
            is_unit: false,
            has_harness: true,
            path: "/x/suite".into(),
            manifest: "/x/Cargo.toml".into(),
            arguments: Vec::new(),
        }
    }

    #[test]
    fn one_that_crashes_is_a_failure_with_its_last_words() {
        let ended = Ended { success: false, why: "killed".into(), took: Duration::from_secs(1) };
        let outcome = judge(&executable(), "running 2 tests\ntest a ... ok <0.500s>\nsegmentation fault", ended);
        assert_eq!(outcome.counts.map(|counts| (counts.passed, counts.failed)), Some((0, 1)));
        assert!(outcome.failures[0].contains("segmentation fault") && outcome.failures[0].contains("killed"));
        assert_eq!(outcome.slow[0].name, "wire/suite: a");
    }
}
