//! What a step came to: counts of tests, what failed, and how long the slowest tests took. Read from the output of
//! libtest and of programs that print as it does.

use serde::{Deserialize, Serialize};

pub use crate::failures::Failures;

/// What a step came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub note: String,
    /// None for steps that run no tests.
    pub counts: Option<Counts>,
    /// What failed, as the tests said it.
    pub failures: Vec<String>,
    /// Tests with their times.
    pub slow: Vec<Timed>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

/// A test and how long it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    pub name: String,
    pub seconds: f64,
}

impl Outcome {
    /// A step that only has something to say.
    pub fn note(note: String) -> Outcome {
        Outcome { note, ..Outcome::default() }
    }

    /// A step of which only passed and failed are counted.
    pub fn counted(passed: u64, failed: u64) -> Outcome {
        Outcome { counts: Some(Counts { passed, failed, ignored: 0 }), ..Outcome::default() }
    }

    pub fn add(&mut self, other: Outcome) {
        let mut counts = self.counts.unwrap_or_default();
        counts.add(other.counts.unwrap_or_default());
        self.counts = Some(counts);
        self.failures.extend(other.failures);
        self.slow.extend(other.slow);
    }
}

impl Counts {
    pub fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// Reads `test result: ok. 12 passed; 0 failed; 1 ignored; …`.
pub fn result_line(line: &str) -> Option<Counts> {
    let (_, numbers) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = Counts::default();
    for part in numbers.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(word)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse() else { continue };
        match word {
            "passed" => counts.passed = number,
            "failed" => counts.failed = number,
            "ignored" => counts.ignored = number,
            _ => {}
        }
    }
    Some(counts)
}

/// Reads `test NAME ... ok <1.234s>`, as libtest reports times, and `test NAME ... ok (1234 ms, …)`, as our own runners do.
pub fn timed(line: &str) -> Option<Timed> {
    let (name, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = match verdict.split_once('<') {
        Some((_, time)) => time.split_once("s>")?.0.parse().ok()?,
        None => verdict.split_once('(')?.1.split_once(" ms")?.0.parse::<f64>().ok()? / 1000.0,
    };
    Some(Timed { name: name.to_owned(), seconds })
}

#[cfg(test)]
mod tests {
    use super::{Counts, Timed, result_line, timed};

    #[test]
    fn results_are_read() {
        let line = "test result: ok. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(result_line(line), Some(Counts { passed: 12, failed: 3, ignored: 1 }));
        let line = "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
        assert_eq!(result_line(line), Some(Counts { passed: 0, failed: 1, ignored: 0 }));
    }

    #[test]
    fn results_are_told_from_other_lines() {
        assert_eq!(result_line("test tests::it_works ... ok"), None);
        assert_eq!(result_line("running 3 tests"), None);
        assert_eq!(result_line(""), None);
    }

    #[test]
    fn times_of_both_kinds_are_read() {
        let test = |name: &str, seconds| Some(Timed { name: name.into(), seconds });
        assert_eq!(timed("test a::b ... ok <1.250s>"), test("a::b", 1.25));
        assert_eq!(timed("test rping, two hosts ... ok (1500 ms, 3 MB)"), test("rping, two hosts", 1.5));
        assert_eq!(timed("test a ... FAILED (20 ms)"), test("a", 0.02));
        assert_eq!(timed("test a ... ok"), None);
        assert_eq!(timed("test a ... ignored, not root"), None);
    }
}
