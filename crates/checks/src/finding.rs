//! What is reported: which rule, what happened with the program's own values, why, how that is known, what to do.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use wire::{Psn, Qpn};

use crate::rule::{Number, Rule, Severity};

/// Something that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: Number,
    /// Another rule that is on and finds the same mistake. It is silent about this one.
    pub also: Option<Number>,
    /// How bad it is: as the rule says, or as the settings do.
    pub severity: Severity,
    /// When, in nanoseconds of the clock of the events.
    pub at: u64,
    /// The thread whose call showed it; 0 where there is none.
    pub thread: u32,
    /// What it is about. Findings of one rule about one subject are reported once and counted.
    pub subject: Subject,
    /// Tells findings of one rule about one subject apart, where more than one mistake can break it: each is reported.
    pub variant: u64,
    /// The connection, where there is one: by this two reports can be laid side by side.
    pub connection: Option<Between>,
    /// One sentence: what happened, with the program's own values.
    pub what: String,
    /// The cause, if one was found.
    pub cause: Option<String>,
    /// How that is known.
    pub evidence: Vec<String>,
    /// What to do.
    pub advice: String,
}

/// A connection as a finding names it: both queue pairs, and the packet it is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// The queue pair of this side.
    pub local: Qpn,
    /// That of the peer.
    pub peer: Qpn,
    /// The packet, where there is one.
    pub psn: Option<Psn>,
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {} here, QP {} at the peer", self.local, self.peer)?;
        match self.psn {
            Some(psn) => write!(f, ", PSN {psn}"),
            None => Ok(()),
        }
    }
}

/// What a finding is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Subject {
    /// The whole process.
    Process,
    /// A queue pair.
    QueuePair(Qpn),
    /// A completion queue.
    CompletionQueue(u32),
    /// A shared receive queue.
    SharedQueue(u32),
    /// Registered memory, by key.
    Memory(u32),
    /// A protection domain.
    Domain(u32),
    /// An id of the connection manager.
    Id(u64),
    /// A function of the interface, by name.
    Function(&'static str),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Process => f.write_str("the process"),
            Subject::QueuePair(qpn) => write!(f, "QP {qpn}"),
            Subject::CompletionQueue(cq) => write!(f, "CQ {cq}"),
            Subject::SharedQueue(srq) => write!(f, "SRQ {srq}"),
            Subject::Memory(key) => write!(f, "MR {key:#010x}"),
            Subject::Domain(pd) => write!(f, "PD {pd}"),
            Subject::Id(id) => write!(f, "id {id:#x}"),
            Subject::Function(name) => f.write_str(name),
        }
    }
}

impl Finding {
    /// A finding; cause and evidence are added by [`because`](Finding::because) and [`evidence`](Finding::shown_by).
    #[must_use]
    pub fn new(rule: Number, subject: Subject, what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding {
            rule,
            also: None,
            severity: Rule::of(rule).map_or(Severity::Error, |rule| rule.severity),
            at: 0,
            thread: 0,
            subject,
            variant: 0,
            connection: None,
            what: what.into(),
            cause: None,
            evidence: Vec::new(),
            advice: advice.into(),
        }
    }

    /// This finding, reported also if another one of its rule and subject was: one with other `words`.
    #[must_use]
    pub fn apart_by(mut self, words: &[&str]) -> Finding {
        // FNV-1a, with a mark behind each word.
        let bytes = words.iter().flat_map(|word| word.bytes().chain([0xff]));
        self.variant =
            bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        self
    }

    /// This finding with its cause.
    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Finding {
        self.cause = Some(cause.into());
        self
    }

    /// This finding with one more sentence of evidence.
    #[must_use]
    pub fn shown_by(mut self, evidence: impl Into<String>) -> Finding {
        self.evidence.push(evidence.into());
        self
    }

    /// This finding with the connection it is about.
    #[must_use]
    pub fn between(mut self, local: Qpn, peer: Qpn, psn: Option<Psn>) -> Finding {
        self.connection = Some(Between { local, peer, psn });
        self
    }
}

/// As it is shown on a terminal, several lines without a newline at the end.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} [{}", self.severity, self.what, self.rule)?;
        match self.also {
            Some(also) => write!(f, ", {also}]")?,
            None => f.write_str("]")?,
        }
        if let Some(cause) = &self.cause {
            write!(f, "\n  cause: {cause}")?;
        }
        for line in &self.evidence {
            write!(f, "\n  seen: {line}")?;
        }
        if let Some(connection) = &self.connection {
            write!(f, "\n  connection: {connection}")?;
        }
        write!(f, "\n  do: {}", self.advice)
    }
}
