//! One run of the command: started on `ubiverbs run`, with a failure script or without, watched until it has ended or
//! its time is over, and nothing of it left behind.

use super::processes::{End, Family, Process};
use crate::exit::Failure;
use hca::environment::{SCRIPT_REPORT, SCRIPT_RUN, SCRIPT_SEED, SCRIPT_VARIABLE};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the processes are looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A server is taken for ready when it has used no processor time for so long.
const SERVER_IDLE_TIME: Duration = Duration::from_millis(200);

/// A client is started so late at most.
const SERVER_WAIT_MAX: Duration = Duration::from_secs(5);

/// A server that has not ended so long after its client gets another client, which no script strikes.
const ASK_AGAIN_TIME: Duration = Duration::from_secs(2);

/// What SIGTERM does not end in this time, SIGKILL does.
const TERMINATION_TIME: Duration = Duration::from_secs(2);

/// Of what the command writes, so much is kept; the rest is read and forgotten.
const MAX_OUTPUT_BYTES: usize = 16 << 20;

/// Of a report of a script, so much is read.
const MAX_REPORT_BYTES: u64 = 4 << 20;

/// What is run, each time.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command, or the client.
    pub command: Vec<OsString>,
    /// A line of the shell, which is started first.
    pub server: Option<OsString>,
    /// Further options of `ubiverbs run`.
    pub options: Vec<OsString>,
    /// Looks at what a run has written, and fails if it is wrong: a line of the shell.
    pub check: Option<OsString>,
    /// Variables for the command and the server.
    pub environment: Vec<(&'static str, OsString)>,
}

/// A script, and where chance begins.
#[derive(Clone, Copy, Debug)]
pub struct Injected<'a> {
    pub script: &'a str,
    pub seed: u64,
}

/// How long a run may take, and what is usual.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub deadline: Duration,
    /// How long other processes may outlive the command; until the deadline, if this says nothing.
    pub outlive: Option<Duration>,
}

/// A process that was still there when the time was over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    pub name: String,
    pub doing: &'static str,
}

/// What a script did.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Strike {
    /// The word of the script.
    pub action: String,
    /// The word with its values, and what was struck.
    pub what: String,
    /// Why nothing was struck.
    pub missed: Option<String>,
    /// A line of the script.
    pub line: u64,
    pub process: u32,
    /// Nanoseconds since the Unix epoch, where it was told.
    pub wall: Option<u64>,
}

/// What happened in a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How the command ended; nothing if its time was over.
    pub end: Option<End>,
    /// How the server ended by itself, before it was told to.
    pub server_end: Option<End>,
    /// Whether there was a server, and it lived on.
    pub server_stayed: bool,
    pub took: Duration,
    /// From the first strike to the end of the command.
    pub knew_after: Option<Duration>,
    /// What was there when the time was over.
    pub stuck: Vec<Stuck>,
    /// What the command left behind and did not end later: names of processes.
    pub left: Vec<String>,
    /// Processes that a signal ended before we sent any: number, name, signal.
    pub signalled: Vec<(u32, String, i32)>,
    /// New files of this user in /dev/shm.
    pub shared_files: Vec<String>,
    /// The most descriptors that one process had at once.
    pub peak_descriptors: usize,
    /// Those that the server had when the client had ended.
    pub server_descriptors: Option<usize>,
    /// What the check said, where it failed.
    pub check_failed: Option<String>,
    pub strikes: Vec<Strike>,
    /// Standard output of the command, and its standard error and the server's.
    pub output: Vec<u8>,
    pub errors: Vec<u8>,
}

impl Outcome {
    /// What was struck indeed.
    pub fn struck(&self) -> impl Iterator<Item = &Strike> {
        self.strikes.iter().filter(|strike| strike.missed.is_none())
    }
}

/// What processes write, while they do.
struct Listener {
    kept: Arc<Mutex<Vec<u8>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Listener {
    fn new() -> Listener {
        Listener { kept: Arc::default(), threads: Vec::new() }
    }

    fn listen(&mut self, stream: Option<impl Read + Send + 'static>) {
        let Some(mut stream) = stream else { return };
        let kept = Arc::clone(&self.kept);
        self.threads.push(thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_OUTPUT_BYTES.saturating_sub(kept.len()).min(count);
                kept.extend_from_slice(&buffer[..room]);
            }
        }));
    }

    /// All of it. A process that got away keeps its end of a pipe open, and is not waited for.
    fn finish(self) -> Vec<u8> {
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts runs.
#[derive(Debug)]
pub struct Runner<'a> {
    pub plan: &'a Plan,
    /// A directory of its own, for scripts and reports.
    pub place: &'a Path,
}

impl Runner<'_> {
    /// One run. It only fails if the command cannot be started at all.
    pub fn run(&self, injected: Option<Injected<'_>>, limits: &Limits) -> Result<Outcome, Failure> {
        let files_before = shared_files();
        let mut watched = Watched { family: Family::adopting(), peak_descriptors: 0 };
        let (mut output, mut errors) = (Listener::new(), Listener::new());
        let reports = [self.place.join("server.report"), self.place.join("command.report")];
        for report in &reports {
            let _ = fs::remove_file(report);
        }
        let run_name = format!("{}-{}", std::process::id(), wall_clock());
        let mut server = match &self.plan.server {
            None => None,
            Some(line) => {
                let words = [OsString::from("sh"), "-c".into(), line.clone()];
                let mut server = self.start(&words, injected, &reports[0], &run_name)?;
                watched.family.expect(server.id());
                errors.listen(server.stdout.take());
                errors.listen(server.stderr.take());
                watched.await_idle(&mut server);
                Some(server)
            }
        };
        // A server may take its time until it waits.
        let begun = Instant::now();
        let mut command = self.start(&self.plan.command, injected, &reports[1], &run_name)?;
        watched.family.expect(command.id());
        output.listen(command.stdout.take());
        errors.listen(command.stderr.take());
        let mut outcome = Outcome::default();
        let deadline = begun + limits.deadline;
        let mut last = Vec::new();
        loop {
            last = watched.look(last);
            if let Some(status) = ended(&mut command)? {
                outcome.end = Some(status.into());
                break;
            }
            if Instant::now() >= deadline {
                break;
            }
            thread::sleep(LOOK_INTERVAL);
        }
        outcome.took = begun.elapsed();
        let ended_at = wall_clock();
        match outcome.end {
            None => outcome.stuck = watched.stuck(),
            Some(_) => self.await_others(&mut watched, &mut server, limits, deadline, &mut outcome)?,
        }
        outcome.signalled = watched.family.ended_by_signal();
        watched.end_all([Some(&mut command), server.as_mut()])?;
        outcome.peak_descriptors = watched.peak_descriptors;
        outcome.shared_files = shared_files().difference(&files_before).cloned().collect();
        outcome.strikes = reports.iter().flat_map(read_report).collect();
        let first = outcome.struck().filter_map(|strike| strike.wall).min();
        outcome.knew_after = first.map(|first| Duration::from_nanos(ended_at.saturating_sub(first)));
        outcome.output = output.finish();
        outcome.errors = errors.finish();
        if outcome.end == Some(End::Code(0)) {
            outcome.check_failed = self.check(&outcome.output)?;
        }
        Ok(outcome)
    }

    /// Starts a part of the command on ubiverbs.
    fn start(
        &self,
        words: &[OsString],
        injected: Option<Injected<'_>>,
        report: &Path,
        run_name: &str,
    ) -> Result<Child, Failure> {
        let program = std::env::current_exe();
        let program = program.map_err(|source| Failure::System { what: "cannot find this program", source })?;
        let mut command = Command::new(program);
        command.arg("run").args(&self.plan.options);
        // The server and the client are processes of one run: scripts number them.
        command.env(SCRIPT_RUN, run_name);
        // The last line is the program's.
        command.env(hca::environment::NOTE_FAILURES, "0");
        command.envs(self.plan.environment.iter().map(|(name, value)| (name, value)));
        // By the environment, so that a command which is `ubiverbs run` itself obeys, too.
        for variable in [SCRIPT_VARIABLE, SCRIPT_SEED, SCRIPT_REPORT] {
            command.env_remove(variable);
        }
        if let Some(injected) = injected {
            let script = self.place.join("script.toml");
            write(&script, injected.script.as_bytes())?;
            command.env(SCRIPT_VARIABLE, script).env(SCRIPT_SEED, injected.seed.to_string()).env(SCRIPT_REPORT, report);
        }
        command.arg("--").args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|source| Failure::System { what: "cannot start `ubiverbs run`", source })
    }

    /// After the end of the command: what else there is should end, too, within its time.
    fn await_others(
        &self,
        watched: &mut Watched,
        server: &mut Option<Child>,
        limits: &Limits,
        deadline: Instant,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let patience = limits.outlive.map_or(deadline, |outlive| Instant::now() + outlive);
        let ask_again = Instant::now() + ASK_AGAIN_TIME;
        let mut next: Option<Child> = None;
        loop {
            if let Some(client) = &mut next {
                if ended(client)?.is_none() && outcome.server_end.is_some() {
                    let _ = client.kill();
                }
            } else if server.is_some() && limits.outlive.is_none() && Instant::now() >= ask_again {
                // The client may have failed before the server heard of it: then it waits for one as before.
                let mut client = self.start(&self.plan.command, None, Path::new(""), "")?;
                watched.family.expect(client.id());
                let mut unheard = Listener::new();
                unheard.listen(client.stdout.take());
                unheard.listen(client.stderr.take());
                next = Some(client);
            }
            let living = watched.family.look();
            // Asked after the look: of a server that does not live any more, it is known how it ended.
            if let Some(server) = server
                && let Some(status) = ended(server)?
            {
                outcome.server_end.get_or_insert(status.into());
            }
            if living.is_empty() || Instant::now() >= patience {
                outcome.left = leaves(&living).map(|process| process.name.clone()).collect();
                let tree = living.iter().map(Process::descriptors).max();
                outcome.server_descriptors = tree.filter(|_| server.is_some());
                outcome.server_stayed = server.is_some() && outcome.server_end.is_none();
                return Ok(());
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// What the check says, if it fails.
    fn check(&self, output: &[u8]) -> Result<Option<String>, Failure> {
        let Some(check) = &self.plan.check else { return Ok(None) };
        let path = self.place.join("output");
        write(&path, output)?;
        let file = fs::File::open(&path).map_err(|source| Failure::Read { path, source })?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(check).stdin(file);
        let done = command.output().map_err(|source| Failure::System { what: "cannot start the check", source })?;
        if done.status.success() {
            return Ok(None);
        }
        let said = [done.stderr, done.stdout].concat();
        Ok(Some(last_line(&said).unwrap_or_else(|| done.status.to_string())))
    }
}

/// The processes of a run, and the most that one of them had.
struct Watched {
    family: Family,
    peak_descriptors: usize,
}

impl Watched {
    /// Looks again. Descriptors are counted where something has run since the last look.
    fn look(&mut self, last: Vec<Process>) -> Vec<Process> {
        let living = self.family.look();
        for process in living.iter().filter(|process| !last.contains(process)) {
            self.peak_descriptors = self.peak_descriptors.max(process.descriptors());
        }
        living
    }

    /// Waits until the server waits for a client.
    fn await_idle(&mut self, server: &mut Child) {
        let (begun, mut used, mut idle_since) = (Instant::now(), 0, Instant::now());
        while begun.elapsed() < SERVER_WAIT_MAX && matches!(server.try_wait(), Ok(None)) {
            let living = self.look(Vec::new());
            let ticks: u64 = living.iter().map(|process| process.ticks).sum();
            let count = living.len() as u64;
            if used != ticks + count {
                (used, idle_since) = (ticks + count, Instant::now());
            } else if idle_since.elapsed() >= SERVER_IDLE_TIME {
                return;
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// What those that live do.
    fn stuck(&mut self) -> Vec<Stuck> {
        let before = self.family.look();
        thread::sleep(Duration::from_millis(100));
        let now = self.family.look();
        let doing = |process: &Process| {
            let used = before.iter().find(|other| other.number == process.number).map_or(0, |other| other.ticks);
            match process.ticks > used {
                _ if process.is_stopped() => "is stopped",
                true => "spins",
                false => "sleeps",
            }
        };
        leaves(&now).map(|process| Stuck { name: process.name.clone(), doing: doing(process) }).collect()
    }

    /// Ends all that live: they are asked first.
    fn end_all(&mut self, children: [Option<&mut Child>; 2]) -> Result<(), Failure> {
        let mut children: Vec<&mut Child> = children.into_iter().flatten().collect();
        let begun = Instant::now();
        self.family.signal(Signal::TERM);
        // One that is stopped hears nothing.
        self.family.signal(Signal::CONT);
        loop {
            let mut all_ended = true;
            for child in &mut children {
                all_ended &= ended(child)?.is_some();
            }
            if self.family.look().is_empty() && all_ended {
                return Ok(());
            }
            if begun.elapsed() > TERMINATION_TIME {
                self.family.signal(Signal::KILL);
            }
            // What the kernel cannot end either is left to it.
            if begun.elapsed() > 2 * TERMINATION_TIME {
                return Ok(());
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// Those without children: the shells above them wait for them.
fn leaves(processes: &[Process]) -> impl Iterator<Item = &Process> {
    let parents: BTreeSet<u32> = processes.iter().map(Process::parent).collect();
    processes.iter().filter(move |process| !parents.contains(&process.number))
}

fn ended(child: &mut Child) -> Result<Option<std::process::ExitStatus>, Failure> {
    child.try_wait().map_err(|source| Failure::System { what: "cannot wait for the command", source })
}

fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A file for its owner alone.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let written = hca::create_private(path).and_then(|mut file| io::Write::write_all(&mut file, bytes));
    written.map_err(|source| Failure::Open { path: path.to_owned(), source })
}

/// Names in /dev/shm that belong to this user. Ours for counters stays.
fn shared_files() -> BTreeSet<String> {
    let user = rustix::process::getuid().as_raw();
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.metadata().is_ok_and(|file| file.uid() == user));
    let names = ours.map(|entry| trace::printable(&entry.file_name().to_string_lossy()).to_string());
    names.filter(|name| !name.starts_with("ubiverbs-counters-")).collect()
}

/// What a script did, as the processes wrote it: JSON lines. What is no strike is passed over.
fn read_report(path: &PathBuf) -> Vec<Strike> {
    let mut text = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        let _ = file.take(MAX_REPORT_BYTES).read_to_end(&mut text);
    }
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    lines.filter_map(|line| strike(&line)).collect()
}

fn strike(line: &Value) -> Option<Strike> {
    let number = |name: &str| line.get(name).and_then(Value::as_u64);
    let text = |name: &str| line.get(name).and_then(Value::as_str).map(|text| trace::printable(text).to_string());
    let action = text("do")?;
    if text("phase").is_some_and(|phase| phase == "end") {
        return None;
    }
    let what = text("what").unwrap_or_else(|| action.clone());
    Some(Strike {
        what: text("struck").map_or_else(|| what.clone(), |struck| format!("{what}: {struck}")),
        action,
        missed: text("missed"),
        line: number("line").unwrap_or(0),
        process: number("pid").and_then(|number| u32::try_from(number).ok()).unwrap_or(0),
        wall: number("wall"),
    })
}

/// The last line with something on it.
pub fn last_line(text: &[u8]) -> Option<String> {
    /// More would break the table.
    const MAX_CHARACTERS: usize = 200;
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    Some(trace::printable(&line.chars().take(MAX_CHARACTERS).collect::<String>()).to_string())
}
