//! Faults on purpose: packets are lost, doubled, delayed, overtaken, damaged and marked, by chance or by number, always
//! the same for the same seed. [`Faults`] decides, and holds packets that are late; it reads no clock, and knows
//! nothing of what packets mean. [`Faulty`] puts it around any link; inside the UDP receiver it stands below the check
//! of the ICRC.
//!
//! A [`Plan`] says what goes wrong; it is written as text, for example in the environment variable `UBIVERBS_FAULTS`:
//!
//! ```text
//! plan   = rule *( ";" rule )              the first rule whose filters fit a packet decides
//! rule   = item *( "," item )
//! item   = kind "=" chance                 kind: drop, dup, reorder, corrupt, mark; chance: 1%, 0.05%, 0.01
//!        | kind "@" number [ ".." number ] the packets with these numbers, from 1, among those that the rule fits
//!        | "delay=" time [ ".." time ]     every packet is late by this much; order is kept
//!        | "hold=" time                    how long a packet that is to be overtaken is held back, 1ms if not said
//!        | "from=" address | "to=" address filters: only packets from or to this address; with neither, every packet
//!        | "partition"                     nothing passes
//!        | "seed=" number                  of the whole plan, 1 if not said
//! time   = number unit                     unit: ns, us, ms, s
//! ```
//!
//! `drop=1%,dup=0.1%,reorder=1%,delay=1ms..3ms,corrupt=0.01%,seed=7,to=10.0.0.2`
//!
//! `mark` is what a congested switch does instead of dropping: it sets "congestion experienced" (CE) in the IP header,
//! if the sender said that it takes marks (ECT). Shared memory has no such header, and its packets count as marked.
//!
//! Raw frames are marked if they have an IP header that says so, and lost if they are damaged, as Ethernet's checksum
//! would have it.
//!
//! Faults happen where packets arrive, so `to` is an address of this host.

mod faulty;
mod plan;
#[cfg(test)]
mod tests;

pub use faulty::Faulty;
pub use plan::{Chance, Plan, PlanError, Rule, Span};

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trace::DropReason;

/// What faults have done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Injected {
    /// Packets that came.
    pub packets: u64,
    /// Lost by chance or number.
    pub dropped: u64,
    /// Lost because of a partition.
    pub partitioned: u64,
    /// Passed twice.
    pub duplicated: u64,
    /// Held back so that others overtook them.
    pub reordered: u64,
    /// Delayed.
    pub delayed: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Marked.
    pub marked: u64,
}

/// What becomes of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// When it passes; not at all if it is lost.
    pub first: Option<Instant>,
    /// When it passes again.
    pub again: Option<Instant>,
    /// A number that says which bit is flipped: the remainder by the number of bits.
    pub flip: Option<u64>,
    /// It is marked "congestion experienced".
    pub mark: bool,
    /// Why it does not pass, if it does not.
    pub lost: Option<DropReason>,
}

/// A packet that has passed.
#[derive(Debug)]
pub struct Passed<'a, M> {
    /// What came with it.
    pub meta: &'a M,
    /// Its bytes, perhaps damaged.
    pub bytes: &'a mut [u8],
    /// Whether they are damaged. A link without a checksum drops such a packet, as a checksum would have.
    pub corrupted: bool,
    /// Whether it is to be marked, if its sender takes marks.
    pub marked: bool,
}

/// The layer. `M` is what a link knows of a packet beside its bytes.
#[derive(Debug)]
pub struct Faults<M> {
    plan: Plan,
    dice: Dice,
    /// What is kept of each of the plan's `rules`, then of each of `added`.
    states: Vec<RuleState>,
    /// When the last packet that keeps its place passes.
    last: Option<Instant>,
    late: BinaryHeap<Late<M>>,
    serial: u64,
    buffers: Vec<Vec<u8>>,
    injected: Injected,
}

/// What is kept of a rule.
#[derive(Clone, Copy, Debug, Default)]
struct RuleState {
    /// How many packets it has seen.
    seen: u64,
    /// Until when what has passed takes, at the rule's rate.
    busy: Option<Instant>,
    /// When the first packet came: shares of the time are counted from there.
    start: Option<Instant>,
}

/// What a packet has beside its payload, where rates are counted: Ethernet, IP, UDP, BTH, ICRC.
const HEADER_BYTES: u64 = 66;

/// What waits longer for a limited rate is lost, as in a switch with no more room.
const RATE_WAIT_MAX: Duration = Duration::from_millis(100);

/// A NIC that gets a share of the time gets it once in so long.
const SHARE_PERIOD: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Late<M> {
    at: Instant,
    serial: u64,
    meta: M,
    bytes: Vec<u8>,
    corrupted: bool,
    marked: bool,
}

impl<M> PartialEq for Late<M> {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl<M> Eq for Late<M> {}

impl<M> PartialOrd for Late<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap gives the greatest first: that is the earliest.
impl<M> Ord for Late<M> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at).then(other.serial.cmp(&self.serial))
    }
}

impl<M: Clone> Faults<M> {
    /// The faults of this plan.
    pub fn new(plan: Plan) -> Faults<M> {
        Faults {
            dice: Dice(plan.seed),
            states: vec![RuleState::default(); plan.rules.len() + plan.added.len()],
            plan,
            last: None,
            late: BinaryHeap::new(),
            serial: 0,
            buffers: Vec::new(),
            injected: Injected::default(),
        }
    }

    /// The faults that the environment asks for: those of `UBIVERBS_FAULTS`, none if it is not set or empty.
    pub fn from_environment() -> Result<Option<Faults<M>>, PlanError> {
        Ok(Plan::from_environment()?.map(Faults::new))
    }

    /// Changes the plan. Packets that are late stay so; the dice are thrown on, unless nothing went wrong so far.
    pub fn change(&mut self, plan: Plan) {
        if self.plan.is_empty() {
            self.dice = Dice(plan.seed);
        }
        let old = &self.plan.added;
        let before = |rule: &Rule| {
            let place = old.iter().position(|other| other == rule)?;
            self.states.get(self.plan.rules.len() + place).copied()
        };
        let of_added = plan.added.iter().map(|rule| before(rule).unwrap_or_default());
        self.states = plan.rules.iter().map(|_| RuleState::default()).chain(of_added).collect();
        self.plan = plan;
    }

    /// Whether nothing goes wrong, and no packet is late.
    pub fn is_spent(&self) -> bool {
        self.plan.is_empty() && self.late.is_empty()
    }

    /// Lets no packet be late any more: all pass with the next [`release`](Faults::release).
    pub fn hasten(&mut self, now: Instant) {
        self.late = self.late.drain().map(|late| Late { at: late.at.min(now), ..late }).collect();
        self.last = None;
    }

    /// What was done.
    pub fn injected(&self) -> Injected {
        self.injected
    }

    /// Decides what becomes of a packet with so much payload, for a link that does it itself.
    pub fn decide(&mut self, now: Instant, from: IpAddr, to: IpAddr, length: usize) -> Fate {
        self.injected.packets += 1;
        let Faults { plan, states, dice, injected, last, .. } = self;
        let (of_rules, of_added) = states.split_at_mut(plan.rules.len());
        let first = plan.rules.iter().zip(of_rules).find(|(rule, _)| rule.fits(from, to));
        let added = plan.added.iter().zip(of_added).filter(|(rule, _)| rule.fits(from, to));
        let mut fate = Fate { first: Some(now), ..Fate::default() };
        let (mut at, mut hold, mut again) = (now, Duration::ZERO, None);
        let mut any = false;
        for (rule, state) in added.chain(first) {
            any = true;
            state.seen += 1;
            if let Some(reason) = rule.loses(state.seen, dice, injected) {
                return Fate { lost: Some(reason), ..Fate::default() };
            }
            if rule.corrupt.strikes(state.seen, dice) {
                injected.corrupted += 1;
                fate.flip = Some(dice.next());
            }
            if rule.delay.1 > Duration::ZERO {
                injected.delayed += 1;
                at += rule.delay.0 + (rule.delay.1.saturating_sub(rule.delay.0)).mul_f64(dice.unit());
            }
            if let Some(rate) = rule.rate.filter(|rate| *rate > 0) {
                let begins = state.busy.map_or(at, |busy| busy.max(at));
                if begins - at > RATE_WAIT_MAX {
                    injected.dropped += 1;
                    return Fate { lost: Some(DropReason::Overflow), ..Fate::default() };
                }
                let nanos = (length as u64 + HEADER_BYTES).saturating_mul(8_000_000_000) / rate;
                at = begins + Duration::from_nanos(nanos);
                state.busy = Some(at);
            }
            if let Some(share) = rule.share {
                let start = *state.start.get_or_insert(at);
                at = next_turn(start, share, at);
            }
            if rule.reorder.strikes(state.seen, dice) {
                injected.reordered += 1;
                hold += rule.hold;
            }
            if rule.dup.strikes(state.seen, dice) {
                injected.duplicated += 1;
                again = Some(rule.hold.mul_f64(dice.unit()));
            }
            if rule.mark.strikes(state.seen, dice) {
                injected.marked += 1;
                fate.mark = true;
            }
        }
        if any {
            if hold > Duration::ZERO {
                at += hold;
            } else {
                at = last.map_or(at, |last| last.max(at));
                *last = Some(at);
            }
            (fate.first, fate.again) = (Some(at), again.map(|later| at + later));
        }
        fate
    }

    /// A packet arrives. What passes now, or was due, is given to `pass`. Answers why it is lost, if it is.
    pub fn arrive(
        &mut self,
        now: Instant,
        (from, to): (IpAddr, IpAddr),
        meta: M,
        bytes: &[u8],
        mut pass: impl FnMut(Passed<'_, M>),
    ) -> Option<DropReason> {
        let fate = self.decide(now, from, to, bytes.len());
        for at in [fate.first, fate.again].into_iter().flatten() {
            let mut copy = self.buffers.pop().unwrap_or_default();
            copy.extend_from_slice(bytes);
            let bits = copy.len() as u64 * 8;
            if let Some(flip) = fate.flip.and_then(|flip| flip.checked_rem(bits))
                && let Some(byte) = copy.get_mut((flip / 8) as usize)
            {
                *byte ^= 1 << (flip % 8);
            }
            self.serial += 1;
            let (serial, meta) = (self.serial, meta.clone());
            let late = Late { at, serial, meta, bytes: copy, corrupted: fate.flip.is_some(), marked: fate.mark };
            self.late.push(late);
        }
        self.release(now, &mut pass);
        fate.lost
    }

    /// Gives what is due to `pass`.
    pub fn release(&mut self, now: Instant, mut pass: impl FnMut(Passed<'_, M>)) {
        while self.late.peek().is_some_and(|late| late.at <= now) {
            let Some(mut late) = self.late.pop() else { return };
            let Late { meta, bytes, corrupted, marked, .. } = &mut late;
            pass(Passed { meta, bytes, corrupted: *corrupted, marked: *marked });
            late.bytes.clear();
            self.buffers.push(late.bytes);
        }
    }

    /// When the next packet is due.
    pub fn due(&self) -> Option<Instant> {
        self.late.peek().map(|late| late.at)
    }
}

/// When a packet is taken that comes at this moment, where packets are taken for a share of each period.
fn next_turn(start: Instant, share: f64, at: Instant) -> Instant {
    let since = at.saturating_duration_since(start).as_nanos();
    let into = Duration::from_nanos((since % SHARE_PERIOD.as_nanos()) as u64);
    if into <= SHARE_PERIOD.mul_f64(share) { at } else { at + (SHARE_PERIOD - into) }
}

/// SplitMix64 (Steele, Lea and Flood, 2014), written out because the same seed must do the same in every version.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0, less than 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
