//! What a family of rules is to the checker: which events it sees, what it sees of one, and where its findings go. A finding
//! of the same rule about the same subject is reported once and counted; of refused calls, each reason is reported
//! once.

use trace::{Call, Event, Kind};

use crate::finding::{Finding, Subject};
use crate::injected::Injected;
use crate::map::{self, Key, Map, Wide};
use crate::mistakes::{Mistake, Mistakes};
use crate::model::Model;
use crate::posted_work::Posting;
use crate::rule::catalogue::events::INJECTED;
use crate::rule::{Number, Rule};
use crate::settings::Settings;
use crate::witness::Witness;

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
pub(crate) const SORT_COUNT: usize = Sort::all().bits().count_ones() as usize;

/// Whether an event says something about a program. Deadlines and windows come with every message, and say nothing.
#[must_use]
pub fn is_of_use(event: &Event) -> bool {
    !Sort::of(&event.kind).is_empty()
}

impl Sort {
    pub fn of(kind: &Kind) -> Sort {
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
    pub at: u64,
    pub thread: u32,
    pub settings: &'a Settings,
    pub told: &'a mut Told,
    pub found: &'a mut dyn FnMut(Finding),
}

impl Out<'_> {
    /// Tells a finding, unless its rule is off or it was told of the same subject before.
    pub fn tell(&mut self, finding: Finding) {
        if self.told.wanted.has(finding.rule) && self.told.is_new(&finding) {
            let injected = self.told.injected.cause_of(&finding, self.at).filter(|_| finding.rule != INJECTED);
            let finding = injected.into_iter().fold(finding, Finding::shown_by);
            let severity = self.settings.severity(finding.rule);
            let thread = if finding.thread == 0 { self.thread } else { finding.thread };
            (self.found)(Finding { at: self.at, thread, severity, ..finding });
        }
    }

    /// Tells a finding about a mistake that another rule may find as well: whichever is first names both.
    pub fn tell_mistake(&mut self, finding: Finding, mistake: Mistake) {
        let Told { wanted, mistakes, .. } = &mut *self.told;
        if wanted.has(finding.rule) && !mistakes.is_known(&finding, mistake) {
            let also = mistakes.tell(&finding, mistake, |rule| wanted.has(rule));
            self.tell(Finding { also, ..finding });
        }
    }

    /// Whether this was told before, or need not be: then it is counted, and no sentence has to be made.
    pub fn is_old(&mut self, rule: Number, subject: Subject) -> bool {
        !self.told.wanted.has(rule) || self.told.again(rule, subject)
    }

    /// Whether this was told of this subject.
    pub fn was_told(&self, rule: Number, subject: Subject) -> bool {
        self.told.counts.contains_key(&(rule, subject, 0))
    }

    /// Whether one of these rules is on.
    pub fn wants_any_of(&self, rules: &[Number]) -> bool {
        rules.iter().any(|rule| self.told.wanted.has(*rule))
    }

    /// Whether this rule is on: for families that would have to do something costly first.
    pub fn wants(&self, rule: Number) -> bool {
        self.told.wanted.has(rule)
    }
}

/// Which rules are on, one bit each: it is asked with every message.
#[derive(Default, Debug)]
pub(crate) struct Wanted([u64; 16]);

impl Wanted {
    pub fn of(settings: &Settings) -> Wanted {
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

impl Key for (Number, Subject, u64) {
    type Order = Wide;

    fn order(self) -> Wide {
        let (rule, subject, variant) = self;
        let (kind, number, name) = match subject {
            Subject::Process => (0, 0, None),
            Subject::QueuePair(qpn) => (1, qpn.order(), None),
            Subject::CompletionQueue(cq) => (2, cq.order(), None),
            Subject::SharedQueue(srq) => (3, srq.order(), None),
            Subject::Memory(key) => (4, key.order(), None),
            Subject::Domain(pd) => (5, pd.order(), None),
            Subject::Id(id) => (6, id, None),
            Subject::Function(name) => (7, 0, Some(name)),
        };
        (map::tagged(rule.order(), kind), number, name, variant)
    }
}

/// How often each finding was made. Bounded: a program with very many objects may be told of the same rule again.
#[derive(Default, Debug)]
pub(crate) struct Told {
    pub wanted: Wanted,
    /// By rule, subject and variant.
    pub counts: Map<(Number, Subject, u64), u64>,
    pub total: Map<Number, u64>,
    pub mistakes: Mistakes,
    /// What failure scripts did.
    pub injected: Injected,
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
        let variants = || self.counts.range((rule, subject, 0)..=(rule, subject, u64::MAX)).map(|(key, _)| *key);
        if variants().count() >= MAX_VARIANTS {
            let first = variants().next();
            first.and_then(|first| self.counts.get_mut(&first)).into_iter().for_each(|count| *count += 1);
            return false;
        }
        let has_room = self.counts.len() < MAX_TOLD;
        if has_room {
            self.counts.insert((rule, subject, finding.variant), 1);
        }
        has_room
    }
}
