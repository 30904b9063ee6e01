//! The other process, as the test sees it: started, told things, heard, and never left behind.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The other process. It is killed when this is dropped.
#[derive(Debug)]
pub struct Other {
    /// The process.
    pub child: Child,
    /// What it reads.
    pub stdin: ChildStdin,
    /// What it writes.
    pub stdout: BufReader<ChildStdout>,
}

impl Other {
    /// Starts it. `command` is the program `peer`, whose path only the tests know, with a role.
    pub fn start(command: &mut Command) -> Other {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Other { child, stdin, stdout }
    }

    /// What follows `word` on the next line that begins with it.
    pub fn hear_text(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the other process ended without saying {word:?}");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// The numbers that follow `word` on the next line that begins with it.
    pub fn hear(&mut self, word: &str) -> Vec<u64> {
        crate::numbers(&self.hear_text(word))
    }

    /// Stops it, all of its threads: each does so in its own time.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(10);
        let runs = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            !stat.contains(") T ")
        };
        while std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().any(runs) {
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::yield_now();
        }
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Perhaps it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
