//! The checker: shows every event to every family of rules that is on, and keeps the model true. A finding of the same
//! rule about the same subject is told once and counted; of calls that were refused, each reason is told once.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;

use trace::{Call, Event, Kind};

use crate::finding::{Finding, Subject};
use crate::model::Model;
use crate::rule::{Number, Rule, Severity};
use crate::rules::memory::Posting;
use crate::settings::Settings;
use crate::witness::Witness;
use crate::{explain, rules};

/// What a family of rules sees of an event: the model is as it was before the event.
pub(crate) struct Moment<'a> {
    pub event: &'a Event,
    pub model: &'a Model,
    /// The work that a queue takes with this event, if its call was told.
    pub posting: Option<&'a Posting<'a>>,
    pub witness: &'a mut dyn Witness,
}

bitflags::bitflags! {
    /// Sorts of events, by how often they come.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Sort: u8 {
        /// A packet was received.
        const PACKET = 1;
        /// The program posts work: the call.
        const POST = 1 << 1;
        /// A queue took work.
        const POSTED = 1 << 2;
        /// Work completed.
        const COMPLETED = 1 << 3;
        /// The program polls.
        const POLL = 1 << 4;
        /// All others that say something.
        const RARE = 1 << 5;
        /// A packet was sent.
        const SENT = 1 << 6;
    }
}

/// How many sorts there are.
const SORTS: usize = Sort::all().bits().count_ones() as usize;

/// Whether an event says something about a program. Deadlines and windows come with every message, and say nothing.
#[must_use]
pub fn is_of_use(event: &Event) -> bool {
    !Sort::of(&event.kind).is_empty()
}

impl Sort {
    fn of(kind: &Kind) -> Sort {
        match kind {
            Kind::PacketReceived { .. } => Sort::PACKET,
            Kind::PacketSent { .. } => Sort::SENT,
            Kind::TimerSet { .. } | Kind::TimerCleared { .. } | Kind::WindowChanged { .. } => Sort::empty(),
            Kind::WorkPosted { .. } => Sort::POSTED,
            Kind::Completed { .. } => Sort::COMPLETED,
            Kind::Called { call: Call::PostSend { .. } | Call::PostReceive { .. }, .. } => Sort::POST,
            Kind::Called { call: Call::Poll { .. } | Call::Polled { .. }, .. } => Sort::POLL,
            _ => Sort::RARE,
        }
    }
}

/// A family of rules, or a part of one.
pub(crate) trait Examine: Send {
    /// Something happened.
    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>);

    /// Which events it wants to see: some come with every message.
    fn sees(&self) -> Sort {
        Sort::all() - Sort::PACKET - Sort::SENT
    }

    /// Time has passed: now and then, also while nothing happens.
    fn tick(&mut self, _now: u64, _model: &Model, _witness: &mut dyn Witness, _out: &mut Out<'_>) {}

    /// The program ends. What is still there is in the model.
    fn finish(&mut self, _now: u64, _model: &Model, _witness: &mut dyn Witness, _out: &mut Out<'_>) {}
}

/// Where findings go.
pub(crate) struct Out<'a> {
    at: u64,
    thread: u32,
    settings: &'a Settings,
    told: &'a mut Told,
    found: &'a mut dyn FnMut(Finding),
}

impl Out<'_> {
    /// Tells a finding, unless its rule is off or it was told of the same subject before.
    pub fn tell(&mut self, finding: Finding) {
        if self.told.wanted.has(finding.rule) && self.told.is_new(&finding) {
            let severity = self.settings.severity(finding.rule);
            let thread = if finding.thread == 0 { self.thread } else { finding.thread };
            (self.found)(Finding { at: self.at, thread, severity, ..finding });
        }
    }

    /// Whether this was told before, or need not be: then it is counted, and no sentence has to be made.
    pub fn is_old(&mut self, rule: Number, subject: Subject) -> bool {
        !self.told.wanted.has(rule) || self.told.again(rule, subject)
    }

    /// Whether this rule is on: for families that would have to do something costly first.
    pub fn wants(&self, rule: Number) -> bool {
        self.told.wanted.has(rule)
    }
}

/// Which rules are on, one bit each: it is asked with every message.
#[derive(Default, Debug)]
struct Wanted([u64; 16]);

impl Wanted {
    fn of(settings: &Settings) -> Wanted {
        let mut wanted = Wanted::default();
        for rule in Rule::all().filter(|rule| settings.wants(rule.number)) {
            let number = usize::from(rule.number.0);
            if let Some(word) = wanted.0.get_mut(number / 64) {
                *word |= 1 << (number % 64);
            }
        }
        wanted
    }

    fn has(&self, rule: Number) -> bool {
        let number = usize::from(rule.0);
        self.0.get(number / 64).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }
}

/// How often each finding was made. Bounded: a program with very many objects may be told of the same rule again.
#[derive(Default, Debug)]
struct Told {
    wanted: Wanted,
    /// By rule, subject and variant.
    counts: BTreeMap<(Number, Subject, u64), u64>,
    total: BTreeMap<Number, u64>,
}

/// How many findings are known apart.
const MAX_TOLD: usize = 4096;

/// How many variants of a finding are told of one rule and subject: a reason may have a number in it that changes.
const MAX_VARIANTS: usize = 8;

impl Told {
    /// Counts a finding that was made before; `false` if it was not.
    fn again(&mut self, rule: Number, subject: Subject) -> bool {
        let Some(count) = self.counts.get_mut(&(rule, subject, 0)) else { return false };
        *count += 1;
        *self.total.entry(rule).or_default() += 1;
        true
    }

    fn is_new(&mut self, finding: &Finding) -> bool {
        let (rule, subject) = (finding.rule, finding.subject);
        *self.total.entry(rule).or_default() += 1;
        if let Some(count) = self.counts.get_mut(&(rule, subject, finding.variant)) {
            *count += 1;
            return false;
        }
        let all = (rule, subject, 0)..=(rule, subject, u64::MAX);
        if self.counts.range(all.clone()).count() >= MAX_VARIANTS {
            self.counts.range_mut(all).next().into_iter().for_each(|(_, count)| *count += 1);
            return false;
        }
        let has_room = self.counts.len() < MAX_TOLD;
        if has_room {
            self.counts.insert((rule, subject, finding.variant), 1);
        }
        has_room
    }
}

/// Takes events, makes findings.
pub struct Checker {
    settings: Settings,
    model: Model,
    families: Vec<Box<dyn Examine>>,
    /// For each sort of events, by its bit: which families see it.
    seen_by: [Vec<u8>; SORTS],
    told: Told,
}

impl Checker {
    /// A checker that has seen nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Checker {
        let mut families = Vec::new();
        if settings.wants_some(true) {
            families.extend(explain::families());
        }
        if settings.wants_some(false) {
            families.extend(rules::families());
        }
        let seen_by = core::array::from_fn(|bit| {
            let sort = Sort::from_bits_retain(1 << bit);
            let numbered = families.iter().zip(0..);
            numbered.filter(|(family, _)| family.sees().intersects(sort)).map(|(_, number)| number).collect()
        });
        let told = Told { wanted: Wanted::of(&settings), ..Told::default() };
        Checker { settings, model: Model::default(), families, seen_by, told }
    }

    /// Takes one event. Events come in the order in which they happened.
    pub fn observe(&mut self, event: &Event, witness: &mut dyn Witness, found: &mut dyn FnMut(Finding)) {
        let thread = if let Kind::Called { thread, .. } = event.kind { thread } else { 0 };
        let sort = Sort::of(&event.kind);
        let Checker { settings, model, families, seen_by, told } = self;
        let Some(seen_by) = seen_by.get(sort.bits().trailing_zeros() as usize) else { return };
        let mut out = Out { at: event.at, thread, settings, told, found };
        let posting = sort.intersects(Sort::POST | Sort::POSTED).then(|| Posting::of(event, model)).flatten();
        let mut moment = Moment { event, model, posting: posting.as_ref(), witness: &mut *witness };
        for &family in seen_by {
            families[usize::from(family)].observe(&mut moment, &mut out);
        }
        model.apply(event, witness);
    }

    /// Time has passed. To be called a few times a second, so that what does not happen is noticed.
    pub fn tick(&mut self, now: u64, witness: &mut dyn Witness, found: &mut dyn FnMut(Finding)) {
        let Checker { settings, model, families, told, .. } = self;
        let mut out = Out { at: now, thread: 0, settings, told, found };
        families.iter_mut().for_each(|family| family.tick(now, model, witness, &mut out));
    }

    /// The program ends.
    pub fn finish(&mut self, now: u64, witness: &mut dyn Witness, found: &mut dyn FnMut(Finding)) {
        let Checker { settings, model, families, told, .. } = self;
        let mut out = Out { at: now, thread: 0, settings, told, found };
        families.iter_mut().for_each(|family| family.finish(now, model, witness, &mut out));
    }

    /// How often each rule was broken, and how often about each subject.
    pub fn counts(&self) -> impl Iterator<Item = (Number, Subject, u64)> {
        let mut counts: BTreeMap<(Number, Subject), u64> = BTreeMap::new();
        for ((rule, subject, _), count) in &self.told.counts {
            *counts.entry((*rule, *subject)).or_default() += count;
        }
        counts.into_iter().map(|((rule, subject), count)| (rule, subject, count))
    }

    /// How often each rule was broken.
    pub fn totals(&self) -> impl Iterator<Item = (Number, u64)> {
        self.told.total.iter().map(|(rule, count)| (*rule, *count))
    }

    /// Whether this rule is on.
    #[must_use]
    pub fn wants(&self, rule: Number) -> bool {
        self.settings.wants(rule)
    }

    /// How bad it is to break a rule, as this checker was told.
    #[must_use]
    pub fn severity(&self, rule: Number) -> Severity {
        self.settings.severity(rule)
    }

    /// What the program has.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker").field("settings", &self.settings).finish_non_exhaustive()
    }
}
