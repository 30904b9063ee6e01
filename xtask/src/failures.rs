//! What failed, kept from a test's output to be said once more at its end: a reader of ten thousand lines has the last
//! ones on the screen, and some systems show no others.

use std::mem;

/// Lines kept of each failure.
const LINES: usize = 16;

/// Reads the output of tests, line by line.
#[derive(Debug, Default)]
pub struct Failures {
    kept: Vec<String>,
    /// Lines that the failure under way may still have.
    left: usize,
}

impl Failures {
    /// The next line of the output.
    pub fn read(&mut self, line: &str) {
        let is_test = line.starts_with("test ");
        if is_test && line.contains(" ... FAILED") || line.starts_with("---- ") {
            self.left = LINES;
        } else if is_test || line == "failures:" || line.starts_with("     Running ") {
            self.left = 0;
        }
        if self.left > 0 && !line.is_empty() {
            self.left -= 1;
            self.kept.push(line.to_owned());
        }
    }

    /// What was kept, and forgets it.
    pub fn take(&mut self) -> Vec<String> {
        self.left = 0;
        mem::take(&mut self.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::{Failures, LINES};

    fn kept(output: &str) -> Vec<String> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read(line));
        failures.take()
    }

    #[test]
    fn a_failed_program_is_kept_with_its_reason() {
        let output =
            "test a ... ok (1 ms)\ntest b, two hosts ... FAILED (82 ms)\nit said:\nno\n\ntest c ... ok (1 ms)\nend";
        assert_eq!(kept(output), ["test b, two hosts ... FAILED (82 ms)", "it said:", "no"]);
    }

    #[test]
    fn a_failed_test_of_cargo_is_kept_with_its_panic() {
        let output = "running 2 tests\ntest a ... FAILED\ntest b ... ok\n\nfailures:\n\n---- a stdout ----\n\
                      thread 'a' panicked at x.rs:1:\nno\n\nfailures:\n    a\n\ntest result: FAILED. 1 passed; 1 failed";
        assert_eq!(kept(output), ["test a ... FAILED", "---- a stdout ----", "thread 'a' panicked at x.rs:1:", "no"]);
    }

    #[test]
    fn a_long_reason_is_cut_and_a_passing_test_is_not_kept() {
        let long = format!("test a ... FAILED\n{}", "more\n".repeat(100));
        assert_eq!(kept(&long).len(), LINES);
        assert!(kept("test a ... ok\ntest result: ok. 1 passed; 0 failed\n").is_empty());
    }
}
