//! What the processes of a run have found: the file that they append to, and what it says in the end.

use crate::exit::Failure;
use crate::run::files::fresh_directory;
use crate::run::staying::Ended;
use checks::{Settings, Severity};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of this run's own with the file in it; it goes with this.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    path: PathBuf,
}

impl Spool {
    pub fn make() -> Result<Spool, Failure> {
        let directory = fresh_directory(&std::env::temp_dir())?;
        let path = directory.join("findings.jsonl");
        hca::create_private(&path).map_err(|source| Failure::Open { path: path.clone(), source })?;
        Ok(Spool { directory, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where processes record what they do, if the user has named no place.
    pub fn recordings(&self) -> PathBuf {
        self.directory.join("recordings")
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A finding, as a process wrote it.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct WrittenFinding {
    pub rule: String,
    /// Other rules that find the same mistake.
    #[serde(default)]
    pub also: Vec<String>,
    pub title: String,
    pub severity: String,
    /// Nanoseconds since the process's NIC was opened.
    pub at: u64,
    /// Nanoseconds since the Unix epoch.
    pub wall: u64,
    pub pid: u32,
    pub tid: u32,
    pub subject: String,
    pub what: String,
    /// Both queue pairs, and the packet.
    pub connection: Option<Value>,
    pub cause: Option<String>,
    pub evidence: Vec<String>,
    pub advice: String,
    /// How often it was found; told at the end of the process.
    #[serde(default = "once")]
    pub count: u64,
}

fn once() -> u64 {
    1
}

impl WrittenFinding {
    pub fn severity(&self) -> Severity {
        let known = Severity::ALL.into_iter().find(|severity| severity.name() == self.severity);
        known.unwrap_or(Severity::Error)
    }
}

/// A line of the file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Finding(Box<WrittenFinding>),
    Process { process: u32, program: String },
    Summary { summary: Vec<Count>, events: u64, pid: u32 },
}

#[derive(Deserialize)]
struct Count {
    rule: String,
    subject: String,
    count: u64,
}

/// A process of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: u32,
    pub program: String,
    /// How many calls and events it had; none if it was killed before it could say.
    pub events: Option<u64>,
}

/// Everything that was found in a run.
#[derive(Debug)]
pub struct Run {
    /// The program and its arguments.
    pub line: Vec<String>,
    pub ended: Ended,
    /// Which rules were on.
    pub settings: Settings,
    pub processes: Vec<Process>,
    /// In the order in which they happened.
    pub findings: Vec<WrittenFinding>,
}

impl Run {
    /// Reads what the processes have written. Half a line, of a process that was killed in the middle of it, is left
    /// out.
    pub fn read(spool: &Spool, line: &[String], ended: Ended, settings: Settings) -> Run {
        let text = fs::read(spool.path()).unwrap_or_default();
        Run::of(&String::from_utf8_lossy(&text), line, ended, settings)
    }

    fn of(text: &str, line: &[String], ended: Ended, settings: Settings) -> Run {
        let mut run = Run { line: line.to_vec(), ended, settings, processes: Vec::new(), findings: Vec::new() };
        for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
            match line {
                Line::Finding(told) => run.findings.push(*told),
                Line::Process { process, program } => {
                    run.processes.push(Process { pid: process, program, events: None });
                }
                Line::Summary { summary, events, pid } => {
                    // A number may have been two processes'; the last is meant.
                    if let Some(process) = run.processes.iter_mut().rev().find(|process| process.pid == pid) {
                        process.events = Some(events);
                    }
                    for Count { rule, subject, count } in summary {
                        let is_it = |told: &&mut WrittenFinding| {
                            told.pid == pid && told.rule == rule && told.subject == subject
                        };
                        if let Some(told) = run.findings.iter_mut().rev().find(is_it) {
                            told.count = count;
                        }
                    }
                }
            }
        }
        run.findings.sort_by_key(|told| told.wall);
        run
    }

    /// Adds a finding that was made after the processes had ended.
    pub fn add(&mut self, json: &str) {
        if let Ok(told) = serde_json::from_str(json) {
            self.findings.push(told);
            self.findings.sort_by_key(|told: &WrittenFinding| told.wall);
        }
    }

    /// Adds a process, unless it has said by itself that it was there.
    pub fn add_process(&mut self, pid: u32, program: &str) {
        if self.processes.iter().all(|process| process.pid != pid) {
            self.processes.push(Process { pid, program: program.to_owned(), events: None });
        }
    }

    /// The worst there is.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(WrittenFinding::severity).max()
    }

    /// Rules that were broken, and their findings.
    pub fn by_rule(&self) -> BTreeMap<&str, Vec<&WrittenFinding>> {
        let mut by_rule: BTreeMap<&str, Vec<&WrittenFinding>> = BTreeMap::new();
        self.findings.iter().for_each(|told| by_rule.entry(&told.rule).or_default().push(told));
        by_rule
    }

    /// The program that a process ran.
    pub fn program(&self, pid: u32) -> &str {
        let known = self.processes.iter().rev().find(|process| process.pid == pid);
        known.map_or("", |process| process.program.as_str())
    }

    /// One line over all processes; none if there is nothing to add to what the one process said.
    pub fn summary(&self) -> Option<String> {
        let many = |count: usize, what: &str, more: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}{more}"),
        };
        if self.processes.is_empty() {
            return Some("no process of this run used RDMA: nothing was checked".into());
        }
        if self.processes.len() == 1 {
            return None;
        }
        let of = |severity: Severity| self.findings.iter().filter(|told| told.severity() == severity).count();
        let words = [
            (Severity::Error, "error", "s"),
            (Severity::Warning, "warning", "s"),
            (Severity::Performance, "remark about performance", ""),
            (Severity::Note, "note", "s"),
        ];
        let counts: Vec<String> = words
            .into_iter()
            .filter(|(severity, ..)| of(*severity) > 0)
            .map(|(severity, word, more)| many(of(severity), word, more))
            .collect();
        let processes = many(self.processes.len(), "process", "es");
        let broken: BTreeSet<u32> = self.findings.iter().map(|told| told.pid).collect();
        Some(match counts.is_empty() {
            true => format!("{processes} checked: nothing was found"),
            false => format!("{processes} checked: {} in {} of them", counts.join(", "), broken.len()),
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    const LINES: &str = r#"
{"process":7,"program":"client"}
{"rule":"UV-0201","title":"t","severity":"error","at":5,"wall":20,"pid":7,"tid":8,"subject":"QP 0x11","what":"w <1>","cause":"c","evidence":["e"],"advice":"a"}
{"process":9,"program":"server"}
{"rule":"UV-0101","title":"t","severity":"note","at":6,"wall":10,"pid":9,"tid":9,"subject":"the process","what":"v","evidence":[],"advice":"a"}
{"summary":[{"rule":"UV-0201","severity":"error","subject":"QP 0x11","count":16774}],"events":30,"wall":3,"pid":7}
{"rule":"UV-02"#;

    /// A run of two processes.
    pub fn run() -> Run {
        Run::of(LINES, &["mpirun".into()], Ended::Code(0), Settings::all())
    }

    #[test]
    fn findings_of_all_processes_are_put_together() {
        let run = run();
        assert_eq!(run.findings.iter().map(|told| told.pid).collect::<Vec<_>>(), [9, 7]);
        assert_eq!((run.findings[1].count, run.findings[0].count), (16774, 1));
        assert_eq!((run.processes[0].events, run.processes[1].events), (Some(30), None));
        assert_eq!(run.worst(), Some(Severity::Error));
        assert_eq!(run.program(9), "server");
        assert_eq!(run.summary().unwrap(), "2 processes checked: 1 error, 1 note in 2 of them");
    }

    #[test]
    fn a_run_without_rdma_says_so() {
        let run = Run::of("", &[], Ended::Code(0), Settings::all());
        assert!(run.summary().unwrap().contains("nothing was checked") && run.worst().is_none());
    }
}
