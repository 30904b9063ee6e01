//! What must never happen, whatever the program: an observer of every event of a run. It keeps the first violation and says it in a sentence. Which
//! work should complete how is not its business.

use super::program::*;
use sim::{Fate, LinkKind, Rng, Sighting};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use trace::{DropReason, Event, Kind, RetryCause};
use wire::{Operation, Psn, Qpn};

/// The observer, as the simulation, its script and the run all hold it.
pub type Shared = Rc<RefCell<Watch>>;

/// See the module.
pub struct Watch {
    /// The number of the first end's queue pair; the others follow.
    base: u32,
    ends: Vec<Seen>,
    rules: Rules,
    pub violation: Option<String>,
    /// Something completed, or an event was raised, since this was last cleared.
    pub news: bool,
    /// A retry budget is about to run out somewhere: the run must calm its links.
    pub relief: bool,
    /// Everything is over; queue pairs are being moved to ERR.
    pub closing: bool,
    pub tally: Tally,
    pub partitions: BTreeSet<(usize, usize)>,
    /// Channels on which nothing passes any more.
    pub silenced: BTreeSet<usize>,
    adversary: Adversary,
    /// Directions between two hosts that are rings.
    rings: BTreeSet<(usize, usize)>,
    rng: Rng,
}

/// A packet that is held back in a ring keeps its place: no queue pair can send while it fills the ring. So it is held
/// no longer than the shortest ACK timeout, or other queue pairs would use up their retries for nothing.
const RING_DELAY_MAX: u64 = 1_000_000;

/// What a run cost.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub packets: u64,
    pub retries: BTreeMap<&'static str, u64>,
    /// Packets the network or a host did away with, kept back, or doubled.
    pub accidents: u64,
    pub drops: BTreeMap<DropReason, u64>,
}

#[derive(Clone, Copy)]
struct Rules {
    late: bool,
    corrupting: bool,
    /// Links let packets overtake each other, which leaves no trace of its own.
    reordering: bool,
    destroying: bool,
    /// The channel that a fault may do anything to.
    faulty: Option<usize>,
}

/// What is known of one queue pair.
struct Seen {
    service: Service,
    mtu: u32,
    max_rd_atomic: usize,
    /// The first number never sent.
    high: Option<Psn>,
    /// READs and atomics without an answer: first number, and first after.
    questions: Vec<(Psn, Psn)>,
    in_error: bool,
    drained: bool,
    /// Since when the network spares it.
    merciful: Option<u64>,
    /// How few retries must be left before the network relents.
    threshold: u8,
}

impl Watch {
    pub fn new(program: &Program, base: Qpn) -> Watch {
        let seen = |channel: &Channel| {
            let seen = || Seen {
                service: channel.service,
                mtu: channel.options.mtu.bytes(),
                max_rd_atomic: usize::from(channel.options.max_rd_atomic),
                high: None,
                questions: Vec::new(),
                in_error: false,
                drained: false,
                merciful: None,
                threshold: if channel.options.retry_cnt == 7 { 2 } else { 0 },
            };
            [seen(), seen()]
        };
        let changes = program.disturbances.iter().filter_map(|(_, what)| match what {
            Disturbance::Link(_, _, link) => Some(link),
            _ => None,
        });
        let links: Vec<_> = program.links.iter().map(|(_, _, link)| link).chain(changes).collect();
        let corrupting = program.adversary.corruption > 0.0 || links.iter().any(|link| link.corruption > 0.0);
        let reordering = links.iter().any(|link| link.reordering + link.duplication > 0.0);
        Watch {
            base: base.value(),
            ends: program.channels.iter().flat_map(seen).collect(),
            rules: Rules {
                late: !program.is_prompt(),
                corrupting,
                reordering,
                destroying: program.fault.is_some_and(|fault| fault.kind.is_destruction()),
                faulty: program.fault.map(|fault| fault.end / 2),
            },
            violation: None,
            news: false,
            relief: false,
            closing: false,
            tally: Tally::default(),
            partitions: BTreeSet::new(),
            silenced: BTreeSet::new(),
            adversary: program.adversary,
            rings: program
                .links
                .iter()
                .filter(|(_, _, link)| link.kind == LinkKind::Whole)
                .map(|(from, to, _)| (*from, *to))
                .collect(),
            rng: Rng::new(program.seed ^ 0xad5e),
        }
    }

    /// Queue pairs begin a new life.
    pub fn begin_again(&mut self) {
        self.closing = false;
        self.silenced.clear();
        for seen in &mut self.ends {
            (seen.high, seen.merciful, seen.drained) = (None, None, false);
            seen.questions.clear();
        }
    }

    /// The end with this queue pair.
    pub fn end_of(&self, qpn: Qpn) -> Option<usize> {
        let index = qpn.value().checked_sub(self.base)? as usize;
        (index < self.ends.len()).then_some(index)
    }

    fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// What becomes of a packet by the adversary's hand.
    pub fn fate(&mut self, sighting: &Sighting<'_>) -> Fate {
        self.tally.packets += u64::from(sighting.count);
        let Some(end) = self.end_of(sighting.headers.bth.dest_qpn) else { return Fate::Pass };
        if self.silenced.contains(&(end / 2)) {
            return Fate::Drop;
        }
        let merciful = self.ends[end].merciful.or(self.ends[end ^ 1].merciful).is_some();
        if self.adversary.is_idle() && self.partitions.is_empty() || merciful {
            return Fate::Pass;
        }
        let (from, to) = (sighting.from.index(), sighting.to.index());
        let fate = if self.partitions.contains(&(from.min(to), from.max(to))) || self.rng.chance(self.adversary.loss) {
            Fate::Drop
        } else if self.rng.chance(self.adversary.duplication) {
            Fate::Duplicate
        } else if self.rng.chance(self.adversary.delay) {
            let delay = self.rng.below(self.adversary.delay_by);
            Fate::Delay(if self.rings.contains(&(from, to)) { delay.min(RING_DELAY_MAX) } else { delay })
        } else if self.rng.chance(self.adversary.corruption) {
            Fate::Corrupt
        } else if self.rng.chance(self.adversary.marking) {
            // No accident: a mark excuses nothing.
            return Fate::Mark;
        } else {
            return Fate::Pass;
        };
        self.tally.accidents += 1;
        fate
    }

    /// Takes one event.
    pub fn observe(&mut self, event: &Event) {
        let end = event.qpn.and_then(|qpn| self.end_of(qpn));
        match event.kind {
            Kind::Completed { queue, .. } => {
                self.news = true;
                if let (Some(end), trace::Queue::Send) = (end, queue) {
                    // What completes with the retry itself says nothing about the rest.
                    let seen = &mut self.ends[end];
                    seen.merciful = seen.merciful.filter(|since| *since >= event.at);
                }
            }
            Kind::PacketDropped { reason, .. } => self.dropped(end, reason),
            Kind::StateChanged { from, to, .. } => self.moved(end, from, to),
            Kind::PacketSent { headers, packets, retransmit, .. } if headers.bth.opcode.is_request() => {
                let operation = headers.bth.opcode.operation();
                let length = headers.reth.map_or(0, |reth| reth.len);
                if let Some(end) = end {
                    self.sent(end, operation, headers.bth.psn, packets, length, retransmit);
                }
            }
            Kind::PacketReceived { headers, packets, .. } if !headers.bth.opcode.is_request() => {
                // Perhaps it is not believed; then this forgets questions too early, and only ever counts too few.
                let past = headers.bth.psn.add(packets);
                if let Some(end) = end {
                    self.ends[end].questions.retain(|(_, after)| after.is_after(past));
                }
            }
            Kind::Retry { cause, left, from } => {
                *self.tally.retries.entry(cause.name()).or_default() += 1;
                let Some(end) = end else { return };
                let seen = &mut self.ends[end];
                seen.questions.clear();
                if seen.high.is_some_and(|high| from.is_after(high)) {
                    self.violated(format!("end {end} goes back to {from}, which it never sent"));
                } else if cause != RetryCause::RnrNak && left.is_some_and(|left| left <= seen.threshold) {
                    seen.merciful = Some(event.at);
                    self.relief = true;
                }
            }
            Kind::NakSent { code, psn } => {
                let Some(end) = end.filter(|end| Some(end / 2) != self.rules.faulty) else { return };
                let lawful = match code {
                    "receiver not ready" => self.rules.late,
                    "PSN sequence error" => self.is_rough(),
                    _ => false,
                };
                if !lawful {
                    self.violated(format!("end {end} refused a lawful request: {code} for PSN {psn}"));
                }
            }
            Kind::AccessRefused { key, address, length, .. } if end.map(|end| end / 2) != self.rules.faulty => {
                let what = format!("{length} bytes at {address:#x} behind {key}");
                self.violated(format!("a lawful access was refused to end {end:?}: {what}"));
            }
            Kind::AsyncEvent { name } => {
                self.news = true;
                let Some(end) = end else { return };
                if name == "IBV_EVENT_SQ_DRAINED" {
                    self.ends[end].drained = true;
                } else if !(self.closing && name == "IBV_EVENT_QP_LAST_WQE_REACHED")
                    && Some(end / 2) != self.rules.faulty
                {
                    self.violated(format!("end {end} was told {name} for nothing"));
                }
            }
            _ => {}
        }
    }

    /// Whether anything has happened that may be answered by sending again.
    pub fn is_rough(&self) -> bool {
        self.rules.reordering || self.tally.accidents > 0
    }

    fn dropped(&mut self, end: Option<usize>, reason: DropReason) {
        *self.tally.drops.entry(reason).or_default() += 1;
        let lawful = match reason {
            DropReason::RandomLoss | DropReason::Partitioned | DropReason::Overflow => {
                self.tally.accidents += 1;
                true
            }
            DropReason::Malformed | DropReason::BadIcrc => {
                self.tally.accidents += 1;
                self.rules.corrupting
            }
            DropReason::NoReceive => {
                // A datagram that arrives twice may use a receive too many.
                self.rules.late || end.is_some_and(|end| !self.ends[end].service.is_reliable() && self.is_rough())
            }
            DropReason::OutOfOrder
            | DropReason::Duplicate
            | DropReason::AfterNak
            | DropReason::AfterRetry
            | DropReason::StaleAck
            | DropReason::MessageAbandoned
            | DropReason::NoReplaySlot
            // Sent in time, and brought closer together by the network.
            | DropReason::CnpTooSoon => true,
            DropReason::UnknownQp => self.rules.destroying,
            _ => false,
        };
        let excused = end.is_some_and(|end| Some(end / 2) == self.rules.faulty) || self.closing;
        if !lawful && !excused {
            self.violated(format!("a packet for end {end:?} was dropped: {reason}"));
        }
    }

    fn moved(&mut self, end: Option<usize>, from: &str, to: &str) {
        let Some(end) = end else { return };
        self.news = true;
        let seen = &mut self.ends[end];
        seen.in_error = to == "ERR";
        if to == "RTS" {
            seen.drained = false;
        }
        if from == "ERR" && to != "RESET" {
            self.violated(format!("end {end} left ERR for {to}"));
        } else if matches!(to, "ERR" | "SQE") && !self.closing && Some(end / 2) != self.rules.faulty {
            self.violated(format!("end {end} fell from {from} to {to} although nothing was wrong"));
        }
    }

    /// A request train leaves.
    fn sent(&mut self, end: usize, operation: Operation, psn: Psn, packets: u32, length: u32, again: bool) {
        let seen = &mut self.ends[end];
        let psns = if operation == Operation::ReadRequest { length.div_ceil(seen.mtu).max(1) } else { packets };
        let past = psn.add(psns);
        let high = *seen.high.get_or_insert(psn);
        if past.is_after(high) {
            seen.high = Some(past);
        }
        let mut wrong = None;
        if !again && psn != high {
            wrong = Some(format!("sends {psn} as new, but {high} is next"));
        }
        if again && past.is_after(high) {
            wrong = Some(format!("sends {psn} to {past} again, but only those before {high} were sent"));
        }
        if seen.in_error {
            wrong = Some(format!("sends request {psn} in ERR"));
        }
        if seen.drained && !again {
            wrong = Some(format!("begins {psn} although it has drained"));
        }
        let is_question = matches!(
            operation,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::AtomicWrite
                | Operation::Flush
        );
        if is_question {
            if again {
                // A request that is asked again is the same request.
                seen.questions.retain(|(_, end)| !end.is_after(psn) || end.is_after(past));
            }
            seen.questions.push((psn, past));
            if seen.questions.len() > seen.max_rd_atomic {
                wrong = Some(format!("has {} READs and atomics under way", seen.questions.len()));
            }
        }
        if let Some(wrong) = wrong {
            self.violated(format!("end {end} {wrong}"));
        }
    }
}
