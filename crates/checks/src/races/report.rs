//! What is said of a race: both accesses, and which order is missing.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use super::clock::Way;
use super::shadow::{Access, Doing, Side, Work};
use super::world::Process;
use crate::finding::{Finding, Subject};
use crate::map::{Map, Set};
use crate::rule::Number;
use crate::rule::catalogue::races::{ATOMIC_AND_OTHER, OWN_WORK, PEER_AND_OWN, WRITE_AND_READ, WRITES};
use crate::settings::Settings;

/// How many pairs of places are known apart.
const MAX_FOUND: usize = 1024;

/// How many failed work requests are known.
const MAX_FAILED: usize = 1 << 14;

/// What a pair of places is known by.
type PlaceKey = (u64, u64, u32, u32);

#[derive(Debug)]
struct Race {
    first: Arc<Access>,
    second: Arc<Access>,
    start: u64,
    end: u64,
    /// The first was known to be over by the program that posted it.
    is_polled: bool,
    count: u64,
}

/// The races that were found.
#[derive(Default, Debug)]
pub(super) struct Found {
    races: Map<PlaceKey, Race>,
    /// Work that failed: what it would have accessed, it may not have. By queue pair and index.
    failed: Set<(u64, u64)>,
}

impl Found {
    /// Work failed.
    pub fn failed(&mut self, pair: u32, index: u64) {
        if self.failed.len() >= MAX_FAILED {
            self.failed.pop_first();
        }
        self.failed.insert((pair.into(), index));
    }

    fn has_failed(&self, work: &Work) -> bool {
        self.failed.contains(&(work.pair.into(), work.index))
    }

    /// Two accesses race.
    pub fn note(
        &mut self,
        places: [u64; 2],
        first: &Arc<Access>,
        second: &Arc<Access>,
        (start, end): (u64, u64),
        is_polled: bool,
    ) {
        let (low, high) = (places[0].min(places[1]), places[0].max(places[1]));
        let key = (low, high, u32::from(rule(first, second).0), 0);
        let (first, second) = (Arc::clone(first), Arc::clone(second));
        let count = match self.races.get(&key) {
            None if self.races.len() >= MAX_FOUND => return,
            None => 1,
            // The bytes of one access may be in several pieces.
            Some(known) if Arc::ptr_eq(&known.second, &second) && Arc::ptr_eq(&known.first, &first) => {
                if let Some(known) = self.races.get_mut(&key) {
                    (known.start, known.end) = (known.start.min(start), known.end.max(end));
                }
                return;
            }
            Some(known) if !self.has_failed(&known.first.work) && !self.has_failed(&known.second.work) => {
                if let Some(known) = self.races.get_mut(&key) {
                    known.count += 1;
                }
                return;
            }
            Some(known) => known.count,
        };
        self.races.insert(key, Race { first, second, start, end, is_polled, count });
    }

    /// Tells of each that did not fail.
    pub fn tell(
        &self,
        settings: &Settings,
        processes: &[Process],
        stacks: &Map<u64, String>,
        began: u64,
        found: &mut dyn FnMut(u32, u64, Finding),
    ) {
        for race in self.races.values() {
            let Race { first, second, .. } = race;
            let number = rule(first, second);
            if !settings.wants(number) || self.has_failed(&first.work) || self.has_failed(&second.work) {
                continue;
            }
            let finding = race.finding(number, processes, stacks, began);
            found(second.work.process, race.count, Finding { severity: settings.severity(number), ..finding });
        }
    }
}

/// The rule that two accesses break.
fn rule(first: &Access, second: &Access) -> Number {
    let is_any = |is: fn(&Access) -> bool| is(first) || is(second);
    match () {
        () if is_any(|access| access.doing == Doing::Atomic) => ATOMIC_AND_OTHER,
        () if first.side == Side::Local && second.side == Side::Local => OWN_WORK,
        () if is_any(|access| access.side == Side::Local) => PEER_AND_OWN,
        () if is_any(|access| access.doing == Doing::Reading) => WRITE_AND_READ,
        () => WRITES,
    }
}

impl Race {
    fn finding(&self, number: Number, processes: &[Process], stacks: &Map<u64, String>, began: u64) -> Finding {
        let Race { first, second, start, end, .. } = self;
        let name = |process: u32| match processes.get(process as usize) {
            Some(process) => format!("process {} ({})", process.facts.pid, process.facts.program),
            None => String::from("a process"),
        };
        let bytes = end - start;
        let what = format!(
            "{} and {} are in no order, and both use {bytes} bytes at {start:#x} of {}",
            told(first, &name),
            told(second, &name),
            name(first.target),
        );
        let seen = |which: &str, access: &Access| {
            let Work { thread, stack, at, .. } = *access.work;
            let after = at.saturating_sub(began);
            let place = match stacks.get(&stack) {
                Some(stack) => format!(", from {stack}"),
                None => String::new(),
            };
            format!(
                "the {which} {} [{:#x}, +{}) with key {:#010x}; thread {thread} posted it after {}.{:09} s{place}",
                match access.doing {
                    Doing::Reading => "reads",
                    Doing::Writing => "writes",
                    Doing::Atomic => "changes atomically",
                },
                access.start,
                access.end - access.start,
                access.key,
                after / 1_000_000_000,
                after % 1_000_000_000,
            )
        };
        let (cause, advice) = self.missing();
        Finding {
            at: second.work.at,
            thread: second.work.thread,
            ..Finding::new(number, Subject::Process, what, advice)
                .because(cause)
                .shown_by(seen("first", first))
                .shown_by(seen("second", second))
                .apart_by(&[&format!("{:?} {:?}", first.work.index, second.work.index)])
        }
    }

    /// Which order is missing, and what would make it.
    fn missing(&self) -> (String, String) {
        let (first, second) = (&self.first, &self.second);
        let (one, other) = match (first.work.opcode, second.work.opcode) {
            (one, other) if one == other => (format!("first {one}"), format!("second {other}")),
            (one, other) => (String::from(one), String::from(other)),
        };
        let base = format!("nothing orders this {} before that {}", first.work.opcode, second.work.opcode);
        if first.work.pair == second.work.pair {
            let cause = format!("{base}: the {other} may overtake it on its own queue pair");
            let advice = format!("post the {other} with IBV_SEND_FENCE, or poll the completion of the {one} first");
            return (cause, advice);
        }
        let is_own = first.work.process == second.work.process;
        // That a datagram left does not say that it arrived.
        let tells = first.over.way == Way::Sent || first.receive.is_none();
        match (is_own, self.is_polled) {
            (true, _) => (
                format!("{base}: they are on two queue pairs, which are not ordered among each other"),
                format!("poll the completion of the {one} before the {other} is posted, or use one queue pair"),
            ),
            (false, true) => (
                format!("{base}: its completion was polled, but no message told the other process of it in time"),
                format!("a SEND after the completion of the {one}, received before the {other} is posted, would"),
            ),
            (false, false) if tells => (
                format!("{base}: its completion had not been polled when the {other} was posted"),
                format!(
                    "poll the completion of the {one}, and tell the other process by a SEND that it receives before it \
                     posts the {other}; or send on the same queue pair behind the {one}"
                ),
            ),
            (false, false) => (
                format!("{base}: nobody had learned that it was over when the {other} was posted"),
                format!("let the process that received the {one} tell by a message that the buffer is free again"),
            ),
        }
    }
}

/// A work request, for a sentence.
fn told(access: &Access, name: &dyn Fn(u32) -> String) -> String {
    let Work { wr_id, opcode, process, qpn, .. } = *access.work;
    let article = if opcode.starts_with(['A', 'R']) { "an" } else { "a" };
    let at_home = match access.side {
        Side::Local => " on its own memory",
        Side::Remote => "",
    };
    let receive = match access.receive {
        Some((_, wr_id)) => format!(" into receive {wr_id}"),
        None => String::new(),
    };
    format!("{article} {opcode} (work request {wr_id} of QP {qpn}) of {}{receive}{at_home}", name(process))
}
