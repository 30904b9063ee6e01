//! What failure scripts did: findings that follow from it say so.

use alloc::format;
use alloc::string::String;

use trace::{Event, Kind, Text};
use wire::Qpn;

use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::naming::span;

/// How long after a strike a finding may follow from it, in nanoseconds: retries of the longest timeouts take as long.
const MAX_CONSEQUENCE_NS: u64 = 60_000_000_000;

/// How many queue pairs are known apart.
const MAX_STRUCK_PAIRS: usize = 1024;

/// The last strikes: on each queue pair, and on anything else.
#[derive(Default, Debug)]
pub(crate) struct Injected {
    pairs: Map<Qpn, Strike>,
    others: Option<Strike>,
}

#[derive(Clone, Copy, Debug)]
struct Strike {
    at: u64,
    script: Text<48>,
    line: u32,
    what: Text<80>,
}

impl Injected {
    /// A script did something.
    pub fn note(&mut self, event: &Event) {
        let Kind::Injected { script, line, what, missed: false, .. } = event.kind else { return };
        let strike = Strike { at: event.at, script, line, what };
        match event.qpn {
            Some(qpn) if self.pairs.len() < MAX_STRUCK_PAIRS || self.pairs.contains_key(&qpn) => {
                self.pairs.insert(qpn, strike);
            }
            _ => self.others = Some(strike),
        }
    }

    /// What a finding of this time may follow from, in one sentence.
    pub fn cause_of(&self, finding: &Finding, at: u64) -> Option<String> {
        let subject = if let Subject::QueuePair(qpn) = finding.subject { Some(qpn) } else { None };
        let ends = finding.connection.map(|between| [between.local, between.peer]);
        let pairs = subject.into_iter().chain(ends.into_iter().flatten());
        let strikes = pairs.filter_map(|qpn| self.pairs.get(&qpn)).chain(&self.others);
        let strike =
            strikes.filter(|strike| at.saturating_sub(strike.at) <= MAX_CONSEQUENCE_NS).max_by_key(|it| it.at)?;
        let Strike { script, line, what, .. } = strike;
        Some(format!("injected by line {line} of {script}: {what}, {} before", span(at.saturating_sub(strike.at))))
    }
}
