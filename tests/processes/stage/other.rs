//! The other process, as the test sees it: started, told things, heard, and never left behind.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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
}

impl Drop for Other {
    fn drop(&mut self) {
        // Perhaps it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
