//! The built program, run as a user runs it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Where the two halves of a demo have their secret.
pub const SECRET: &str = "UBIVERBS_SECRET";

pub fn ubiverbs(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program runs")
}

/// With variables in its environment.
pub fn ubiverbs_with(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    command(arguments).envs(variables.iter().copied()).output().expect("the program runs")
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubiverbs"));
    command.args(arguments).env(SECRET, "of the tests");
    command
}

pub fn code(output: &Output) -> i32 {
    output.status.code().expect("it was not killed")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

pub fn document(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {} {}", stdout(output), stderr(output)))
}

/// A file of this test's own.
pub fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The program while it runs.
pub struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(arguments: &[&str]) -> Running {
        Running::start_with(arguments, "of the tests")
    }

    /// With another secret, or none.
    pub fn start_with(arguments: &[&str], secret: &str) -> Running {
        let piped = command(arguments).env(SECRET, secret).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = piped.expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Running { child, lines }
    }

    /// Reads until a line that contains `part`, and returns it.
    pub fn line_with(&mut self, part: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("text") > 0 {
            if line.contains(part) {
                return line;
            }
            line.clear();
        }
        panic!("it ended without {part:?}");
    }

    /// Waits for its end, but not longer than `limit`. Its exit code and its errors.
    pub fn end_within(mut self, limit: Duration) -> (Option<i32>, String) {
        let deadline = Instant::now() + limit;
        while self.child.try_wait().expect("a child").is_none() {
            assert!(Instant::now() < deadline, "it has not ended after {limit:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut self.lines, &mut rest).expect("readable");
        let mut output = self.child.wait_with_output().expect("a child");
        output.stdout = rest;
        (output.status.code(), stderr(&output))
    }

    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child");
    }
}

/// Whether a process exists and is more than an entry that nobody has collected.
pub fn is_alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !stat.is_empty() && !rest.starts_with(['Z', 'X']))
}

pub fn kill(process: u32) {
    // No shell for this: until it runs, there may be nobody left to kill.
    let process = rustix::process::Pid::from_raw(process as i32).expect("a number");
    rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it lives");
}

/// Waits until a process is no more.
pub fn await_death(process: u32) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_alive(process) {
        assert!(Instant::now() < deadline, "process {process} still lives");
        std::thread::sleep(Duration::from_millis(10));
    }
}
