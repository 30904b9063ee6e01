//! What may come of a test: conditions on registers and memory once all is quiet, and what the specification says of
//! them.

use crate::test::Test;
use std::fmt;

/// What is said of an outcome.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// It may be seen.
    Allowed,
    /// The specification allows it; the formal model, of NICs behind PCI Express, does not.
    Weaker,
    /// It must not be seen.
    Forbidden,
}

impl Verdict {
    /// The word in files.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Weaker => "weaker",
            Verdict::Forbidden => "forbidden",
        }
    }
}

/// An outcome, and why it is allowed or not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The line at which it stands.
    pub line: usize,
    /// What is said of it.
    pub verdict: Verdict,
    /// All of these hold.
    pub conditions: Vec<Condition>,
    /// Why.
    pub why: String,
}

/// What is compared with a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// A register.
    Register(usize),
    /// A cell of a process.
    Memory(usize, usize),
}

/// A comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    /// What is compared
    pub left: Left,
    /// with this number;
    pub value: u64,
    /// whether they are to be the same.
    pub equal: bool,
}

/// What was seen when all was quiet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Seen {
    /// By register.
    pub registers: Vec<u64>,
    /// By process and cell.
    pub memory: Vec<Vec<u64>>,
}

impl Seen {
    fn value(&self, left: Left) -> u64 {
        match left {
            Left::Register(register) => self.registers[register],
            Left::Memory(process, cell) => self.memory[process][cell],
        }
    }

    /// Registers and memory, with their names.
    pub fn told(&self, test: &Test) -> String {
        let registers = test.registers.iter().zip(&self.registers).map(|(name, value)| format!("{name}={value}"));
        let memory = test.processes.iter().zip(&self.memory).flat_map(|(process, cells)| {
            let named = process.cells.iter().zip(cells);
            named.map(|((cell, _), value)| format!("{}.{cell}={value}", process.name))
        });
        registers.chain(memory).collect::<Vec<_>>().join(" ")
    }
}

impl Outcome {
    /// Whether this is what was seen.
    pub fn holds(&self, seen: &Seen) -> bool {
        self.conditions.iter().all(|condition| (seen.value(condition.left) == condition.value) == condition.equal)
    }

    /// Its conditions, as they stand in files.
    pub fn told<'a>(&'a self, test: &'a Test) -> impl fmt::Display + 'a {
        ToldConditions { outcome: self, test }
    }
}

struct ToldConditions<'a> {
    outcome: &'a Outcome,
    test: &'a Test,
}

impl fmt::Display for ToldConditions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for condition in &self.outcome.conditions {
            f.write_str(separator)?;
            separator = " ";
            match condition.left {
                Left::Register(register) => f.write_str(&self.test.registers[register])?,
                Left::Memory(process, cell) => {
                    let process = &self.test.processes[process];
                    write!(f, "{}.{}", process.name, process.cells[cell].0)?;
                }
            }
            let sign = if condition.equal { "=" } else { "!=" };
            match condition.value {
                u64::MAX => write!(f, "{sign}-1")?,
                value => write!(f, "{sign}{value}")?,
            }
        }
        Ok(())
    }
}
