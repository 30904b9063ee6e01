//! The checker: shows every event to every family of rules that is on, and keeps the model true.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use trace::{Call, Event, Kind};

use crate::examine::{Examine, Moment, Out, SORT_COUNT, Sort, Told, Wanted};
use crate::finding::{Finding, Subject};
use crate::model::Model;
use crate::posted_work::Posting;
use crate::rule::{Family, Number, Severity};
use crate::settings::Settings;
use crate::witness::Witness;
use crate::{explain, rules};

/// Takes events, makes findings.
pub struct Checker {
    settings: Settings,
    model: Model,
    families: Vec<Box<dyn Examine>>,
    /// For each sort of events, by its bit: which families see it.
    seen_by: [Vec<u8>; SORT_COUNT],
    told: Told,
}

impl Checker {
    /// A checker that has seen nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Checker {
        let mut families = Vec::new();
        if settings.wants_some(Family::Work) {
            families.extend(explain::families());
        }
        if settings.wants_some(Family::Memory) {
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
        out.told.injected.note(event);
        let posting = sort.intersects(Sort::POST | Sort::POSTED).then(|| Posting::of(event, model)).flatten();
        let mut moment = Moment { event, model, posting: posting.as_ref(), witness: &mut *witness };
        for &family in seen_by {
            families[usize::from(family)].observe(&mut moment, &mut out);
        }
        match event.kind {
            Kind::Completed { wr_id, queue, .. } => told.mistakes.completed(model, event, queue, wr_id),
            Kind::StateChanged { to: "RESET", .. } | Kind::Called { call: Call::DestroyQp { .. }, .. } => {
                event.qpn.into_iter().for_each(|qpn| told.mistakes.forget(qpn));
            }
            _ => {}
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
        let mut counts: Vec<(Number, Subject, u64)> = Vec::new();
        // The variants of one finding lie side by side.
        for ((rule, subject, _), count) in &self.told.counts {
            match counts.last_mut() {
                Some((last_rule, last_subject, sum)) if (*last_rule, *last_subject) == (*rule, *subject) => {
                    *sum += count
                }
                _ => counts.push((*rule, *subject, *count)),
            }
        }
        counts.into_iter()
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
