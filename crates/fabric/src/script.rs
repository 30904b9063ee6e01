//! Scenarios as people write them: one statement a line, words with spaces between them, `#` before what is not meant.
//! What is wrong is told with its line, or the option it came from, and with what was expected instead.
//!
//! ```
//! let scenario = fabric::Script::parse("hosts 8\nworkload incast senders 4 bytes 64K\n", |_| unreachable!())?;
//! assert_eq!(scenario.hosts, 8);
//! let error = fabric::Script::parse("hosts 8\nrate fast\n", |_| unreachable!()).unwrap_err();
//! assert_eq!(error.to_string(), "line 2: \"fast\" is no rate; expected one of 1K to 10T, like 100G");
//! # Ok::<(), fabric::ScriptError>(())
//! ```

mod words;

use crate::Error;
use crate::network::Network;
use crate::scenario::{Congestion, Failure, FailureKind, FailurePlace, Scenario, TraceMessage, Workload, red_for_rate};
use crate::topology::Shape;
use sim::Red;
use std::collections::HashMap;
use transport::MAX_MESSAGE;
use wire::Mtu;
use words::{Words, bytes, number, one_of, part, rate, span};

/// What is wrong with a script.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{origin}: {what}")]
pub struct ScriptError {
    /// Where: `line 3`, or the option.
    pub origin: String,
    /// What was found, and what was expected.
    pub what: String,
}

/// A scenario that is put together from statements.
pub struct Script<F> {
    scenario: Scenario,
    /// Reads a file of messages.
    read: F,
    /// Where the last statement of each kind is.
    origins: HashMap<&'static str, String>,
    /// Where each failure and each message of a trace is.
    failures: Vec<String>,
    messages: Vec<(String, TraceMessage)>,
    ecn_is_set: bool,
}

/// Workloads that scripts know.
pub const WORKLOADS: [&str; 6] = ["incast", "permutation", "all-reduce-ring", "all-reduce-tree", "all-to-all", "trace"];

/// The most hosts: twice as many as anybody has asked for, and then some.
const MAX_HOSTS: u64 = 100_000;
const STATEMENT_NAMES: [&str; 25] = [
    "seed",
    "hosts",
    "topology",
    "rate",
    "delay",
    "mtu",
    "buffer",
    "pfc",
    "alpha",
    "ecn",
    "congestion",
    "window",
    "timeout",
    "retries",
    "reroute",
    "until",
    "workload",
    "message",
    "fail",
    "flap",
    "lossy",
    "slow",
    "capture",
    "switch-rate",
    "host-rate",
];

impl<F: Fn(&str) -> Result<String, String>> Script<F> {
    /// Reads a whole script. `read` reads the files it names.
    pub fn parse(text: &str, read: F) -> Result<Scenario, ScriptError> {
        let mut script = Script::new(read);
        script.add_all(text)?;
        script.finish()
    }

    /// One without a statement: the scenario is [`Scenario::default`].
    pub fn new(read: F) -> Script<F> {
        Script {
            scenario: Scenario::default(),
            read,
            origins: HashMap::new(),
            failures: Vec::new(),
            messages: Vec::new(),
            ecn_is_set: false,
        }
    }

    /// Adds all lines of a script.
    pub fn add_all(&mut self, text: &str) -> Result<(), ScriptError> {
        for (nth, line) in text.lines().enumerate() {
            self.add(&format!("line {}", nth + 1), line)?;
        }
        Ok(())
    }

    /// Adds a statement; `origin` says where it is from.
    pub fn add(&mut self, origin: &str, line: &str) -> Result<(), ScriptError> {
        let line = line.split('#').next().unwrap_or("");
        let mut words = Words::new(line);
        let Some(statement) = words.take() else { return Ok(()) };
        let told = |what| ScriptError { origin: origin.to_owned(), what };
        let Some(name) = STATEMENT_NAMES.iter().find(|name| **name == statement) else {
            return Err(told(one_of(statement, "a statement", &STATEMENT_NAMES)));
        };
        self.origins.insert(name, origin.to_owned());
        self.statement(name, &mut words, origin).and_then(|()| words.end()).map_err(told)
    }

    fn statement(&mut self, name: &str, words: &mut Words<'_>, origin: &str) -> Result<(), String> {
        let scenario = &mut self.scenario;
        match name {
            "seed" => scenario.seed = number(words.next("a seed")?, 0..=u64::MAX)?,
            "hosts" => scenario.hosts = number(words.next("how many hosts")?, 2..=MAX_HOSTS)? as u32,
            "topology" => scenario.shape = shape(words)?,
            "rate" => {
                let rate = rate(words.next("a rate")?)?;
                (scenario.cables.host_rate, scenario.cables.switch_rate) = (rate, rate);
            }
            "host-rate" => scenario.cables.host_rate = rate(words.next("a rate")?)?,
            "switch-rate" => scenario.cables.switch_rate = rate(words.next("a rate")?)?,
            "delay" => scenario.cables.delay = span(words.next("a delay")?, 100_000_000)?,
            "mtu" => {
                let sizes = Mtu::ALL.map(|mtu| (mtu.bytes().to_string(), mtu));
                let word = words.next("an MTU")?;
                let found = sizes.iter().find(|(size, _)| size == word).map(|(_, mtu)| *mtu);
                let names: Vec<&str> = sizes.iter().map(|(size, _)| size.as_str()).collect();
                scenario.mtu = found.ok_or_else(|| one_of(word, "an MTU", &names))?;
            }
            "buffer" => scenario.switch.buffer = bytes(words.next("a size")?, 10_000..=1 << 30)?,
            "pfc" => scenario.switch.pfc = words.on_or_off()?,
            "alpha" => {
                let word = words.next("a number")?;
                let value: Option<f64> = word.parse().ok().filter(|alpha| (0.001..=64.0).contains(alpha));
                let wrong = || format!("{word:?} is no threshold; expected a number of 0.001 to 64");
                scenario.switch.alpha = value.ok_or_else(wrong)?;
            }
            "ecn" => {
                self.ecn_is_set = true;
                scenario.switch.ecn = ecn(words)?;
            }
            "congestion" => {
                let word = words.next("a kind of congestion control")?;
                let found = Congestion::NAMES.iter().find(|(name, _)| *name == word).map(|(_, kind)| *kind);
                let names = Congestion::NAMES.map(|(name, _)| name);
                scenario.congestion = found.ok_or_else(|| one_of(word, "congestion control", &names))?;
            }
            "window" => scenario.window = bytes(words.next("a size")?, 10_000..=1 << 40)?,
            "timeout" => scenario.timeout = number(words.next("a timeout")?, 1..=31)? as u8,
            "retries" => scenario.retries = number(words.next("how many")?, 0..=7)? as u8,
            "reroute" => scenario.reroute = span(words.next("a time")?, u64::MAX)?,
            "until" => scenario.until = Some(span(words.next("a time")?, u64::MAX)?),
            "workload" => self.workload(words)?,
            "message" => {
                let message = trace_message(words)?;
                self.messages.push((origin.to_owned(), message));
            }
            "capture" => {
                let host = number(words.next("a host")?, 0..=MAX_HOSTS - 1)? as u32;
                if !scenario.capture.contains(&host) {
                    scenario.capture.push(host);
                }
            }
            _ => {
                let failure = failure(name, words)?;
                scenario.failures.push(failure);
                self.failures.push(origin.to_owned());
            }
        }
        Ok(())
    }

    fn workload(&mut self, words: &mut Words<'_>) -> Result<(), String> {
        let name = words.next("a workload")?;
        if name == "trace" {
            // Without a file the statements `message` are meant.
            if let Some(file) = words.take() {
                let text = (self.read)(file)?;
                for (nth, line) in text.lines().enumerate() {
                    let line = line.split('#').next().unwrap_or("");
                    let mut words = Words::new(line);
                    if words.is_empty() {
                        continue;
                    }
                    let origin = format!("{file}, line {}", nth + 1);
                    let message = trace_message(&mut words).and_then(|message| words.end().map(|()| message));
                    self.messages.push((origin.clone(), message.map_err(|what| format!("{origin}: {what}"))?));
                }
            }
            self.scenario.workload = Workload::Trace { messages: Vec::new() };
            return Ok(());
        }
        if !WORKLOADS.contains(&name) {
            return Err(one_of(name, "a workload", &WORKLOADS));
        }
        let keys: &[&str] = match name {
            "incast" => &["senders", "bytes", "messages"],
            "permutation" => &["bytes", "messages"],
            "all-reduce-tree" => &["bytes", "chunk"],
            "all-to-all" => &["bytes", "parallel"],
            _ => &["bytes"],
        };
        let (mut senders, mut messages, mut parallel, mut chunk) = (0, 1, 8, 64 << 10);
        let mut length = if name == "all-to-all" { 64 << 10 } else { 1 << 20 };
        while let Some(key) = words.key(keys)? {
            let word = words.next(key)?;
            match key {
                "bytes" => length = bytes(word, 1..=MAX_MESSAGE)? as u32,
                "chunk" => chunk = bytes(word, 1..=MAX_MESSAGE)? as u32,
                "senders" => senders = number(word, 1..=MAX_HOSTS)? as u32,
                "parallel" => parallel = number(word, 1..=MAX_HOSTS)? as u32,
                _ => messages = number(word, 1..=1 << 24)? as u32,
            }
        }
        self.scenario.workload = match name {
            "incast" => Workload::Incast { senders, bytes: length, messages },
            "permutation" => Workload::Permutation { bytes: length, messages },
            "all-reduce-ring" => Workload::AllReduceRing { bytes: length },
            "all-reduce-tree" => Workload::AllReduceTree { bytes: length, chunk },
            _ => Workload::AllToAll { bytes: length, parallel },
        };
        Ok(())
    }

    /// What has been said so far; whether it fits together is seen at the end.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// The scenario, if its parts fit each other.
    pub fn finish(mut self) -> Result<Scenario, ScriptError> {
        let scenario = &mut self.scenario;
        if !self.ecn_is_set {
            scenario.switch.ecn = Some(red_for_rate(scenario.cables.switch_rate.max(scenario.cables.host_rate)));
        }
        if let Workload::Trace { messages } = &mut scenario.workload {
            *messages = self.messages.iter().map(|(_, message)| *message).collect();
        } else if let Some((origin, _)) = self.messages.first() {
            let what = "a message is part of a trace; expected the statement \"workload trace\", too".to_owned();
            return Err(ScriptError { origin: origin.clone(), what });
        }
        let hosts = scenario.hosts;
        for (origin, message) in &self.messages {
            let (from, to) = (message.from, message.to);
            if from == to || from >= hosts || to >= hosts {
                let what = format!("from host {from} to host {to}; expected two different hosts of 0 to {}", hosts - 1);
                return Err(ScriptError { origin: origin.clone(), what });
            }
        }
        // Each failure alone, to find the one that is meant.
        for (origin, failure) in self.failures.iter().zip(&scenario.failures) {
            if let Err(what) = Network::check_failure(scenario, failure) {
                return Err(ScriptError { origin: origin.clone(), what: what.to_string() });
            }
        }
        match Network::check(scenario) {
            Ok(()) => Ok(self.scenario),
            Err(error) => {
                let statements: &[&str] = match error {
                    Error::Topology(_) => &["topology", "hosts"],
                    _ => &["capture", "workload", "hosts"],
                };
                let origin = statements.iter().find_map(|name| self.origins.get(name)).cloned();
                let what = error.to_string();
                Err(ScriptError { origin: origin.unwrap_or_else(|| "the scenario".into()), what })
            }
        }
    }
}

fn shape(words: &mut Words<'_>) -> Result<Shape, String> {
    let name = words.next("a topology")?;
    let mut shape = Shape::of_name(name).ok_or_else(|| one_of(name, "a topology", &Shape::NAMES))?;
    let keys: &[&str] = match shape {
        Shape::Star | Shape::Ring => &[],
        Shape::FatTree2 { .. } => &["per-leaf", "spines"],
        Shape::FatTree3 { .. } => &["radix"],
        Shape::Rails { .. } => &["rails", "per-leaf"],
        Shape::Dragonfly { .. } => &["per-router"],
    };
    while let Some(key) = words.key(keys)? {
        let value = number(words.next(key)?, 1..=10_000)? as u32;
        match &mut shape {
            Shape::FatTree2 { per_leaf, spines } => *(if key == "spines" { spines } else { per_leaf }) = value,
            Shape::FatTree3 { radix } => *radix = value,
            Shape::Rails { rails, per_leaf } => *(if key == "rails" { rails } else { per_leaf }) = value,
            Shape::Dragonfly { per_router } => *per_router = value,
            Shape::Star | Shape::Ring => {}
        }
    }
    Ok(shape)
}

/// `off`, or where marking begins, where it ends, and with which probability.
fn ecn(words: &mut Words<'_>) -> Result<Option<Red>, String> {
    let word = words.next("off, or from how many bytes on packets are marked")?;
    if word == "off" {
        return Ok(None);
    }
    let from = bytes(word, 0..=1 << 40)?;
    let all = bytes(words.next("from how many bytes on all are marked")?, 1..=1 << 40)?;
    let most = part(words.next("a probability")?)?;
    if all <= from {
        return Err(format!("marks from {from} to {all} bytes; expected the second to be more than the first"));
    }
    Ok(Some(Red { from, all, most }))
}

fn trace_message(words: &mut Words<'_>) -> Result<TraceMessage, String> {
    let at = span(words.next("when it is posted")?, u64::MAX)?;
    let from = number(words.next("the host that sends")?, 0..=MAX_HOSTS - 1)? as u32;
    let to = number(words.next("the host that receives")?, 0..=MAX_HOSTS - 1)? as u32;
    let bytes = bytes(words.next("how many bytes")?, 1..=MAX_MESSAGE)? as u32;
    Ok(TraceMessage { at, from, to, bytes })
}

/// `fail`, `flap`, `lossy` or `slow`, the place, and its options.
fn failure(name: &str, words: &mut Words<'_>) -> Result<Failure, String> {
    const FAILURE_PLACES: [&str; 4] = ["link", "host", "links", "hosts"];
    let word = words.next("where: link A B, host N, links N or hosts N")?;
    let place = match word {
        "link" => {
            FailurePlace::Link(words.next("a host or switch")?.to_owned(), words.next("the other end")?.to_owned())
        }
        "host" => FailurePlace::Host(number(words.next("a host")?, 0..=MAX_HOSTS - 1)? as u32),
        "links" => FailurePlace::RandomLinks(number(words.next("how many")?, 1..=MAX_HOSTS * 100)? as u32),
        "hosts" => FailurePlace::RandomHosts(number(words.next("how many")?, 1..=MAX_HOSTS)? as u32),
        _ => return Err(one_of(word, "a place", &FAILURE_PLACES)),
    };
    let (own, kind): (Option<&str>, _) = match name {
        "fail" => (None, FailureKind::LinkDown),
        "flap" => (Some("period"), FailureKind::Flapping { period: 1_000_000 }),
        "lossy" => (Some("loss"), FailureKind::Lossy { probability: 0.01 }),
        _ => (Some("rate"), FailureKind::SlowHost { rate: 10_000_000_000 }),
    };
    let mut failure = Failure { kind, place, at: 0, within: 0, lasts: None };
    let keys: Vec<&str> = ["at", "within", "for"].into_iter().chain(own).collect();
    while let Some(key) = words.key(&keys)? {
        let word = words.next(key)?;
        match (key, &mut failure.kind) {
            ("at", _) => failure.at = span(word, u64::MAX)?,
            ("within", _) => failure.within = span(word, u64::MAX)?,
            ("for", _) => failure.lasts = Some(span(word, u64::MAX)?),
            (_, FailureKind::Flapping { period }) => {
                *period = span(word, u64::MAX)?;
                if *period < 1_000 {
                    return Err(format!("a period of {word}; expected 1us or more"));
                }
            }
            (_, FailureKind::Lossy { probability }) => *probability = part(word)?,
            (_, FailureKind::SlowHost { rate: slow }) => *slow = rate(word)?,
            _ => {}
        }
    }
    Ok(failure)
}

/// Statements with their arguments, for help texts.
pub const STATEMENT_HELP: &str = "\
seed N                     where chance begins
hosts N                    2 to 100000
topology star | ring | fat-tree-2 [per-leaf N] [spines N] | fat-tree-3 [radix N]
       | rails [rails N] [per-leaf N] | dragonfly [per-router N]
rate R                     of all cables, like 100G; or host-rate R, switch-rate R
delay T                    of a cable with the switch behind it, like 600ns
mtu N                      256 to 4096
buffer N                   of a switch, like 16M
pfc on | off               pauses instead of drops
alpha X                    a queue takes up to X times what is free
ecn off | FROM ALL PART    marks, like: ecn 5K 200K 1%
congestion dcqcn | window | both | none
window N                   the limit of a window, as sockets count
timeout N                  of acknowledgements: 4.096 us * 2^N
retries N                  0 to 7
workload incast [senders N] [bytes N] [messages N]
       | permutation [bytes N] [messages N] | all-reduce-ring [bytes N]
       | all-reduce-tree [bytes N] [chunk N] | all-to-all [bytes N] [parallel N]
       | trace [FILE]      lines of: TIME FROM TO BYTES
message TIME FROM TO BYTES one of a trace
fail PLACE ...             a cable is cut
flap PLACE period T ...    it goes and comes
lossy PLACE loss P ...     it loses packets
slow PLACE rate R ...      a host takes no more than that
       PLACE: link A B (host3, switch0), host N, links N or hosts N (by chance)
       ...:   [at T] [within T] [for T]
reroute T                  when flows take other ways after a cable went
until T                    ends the run
capture N                  the packets of a host";
