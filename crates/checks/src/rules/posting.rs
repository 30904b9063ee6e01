//! Posting: UV-03xx. What the program puts into work requests, and how it puts them into queues.

mod habits;
mod queues;
mod requests;

use trace::{Call, Kind};

use crate::examine::{Examine, Moment, Out};
use crate::model::Model;
use crate::rule::catalogue::posting::*;
use crate::witness::Witness;

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Posting {
    habits: habits::Habits,
}

impl Examine for Posting {
    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        if let Kind::Called { thread, call } = &moment.event.kind {
            requests::called(call, moment, out);
            self.habits.called(*thread, call, moment, out);
        }
        let posted = moment.posting;
        if let Some(posted) = posted {
            requests::posted(posted, moment.model, out);
            self.habits.posted(posted, moment.model, out);
        }
        if let Some(pair) = moment.model.pair_of(moment.event) {
            queues::observe(pair, posted, out);
            requests::failed(pair, moment, out);
            // Destroying begins with a reset, too.
            let is_over = match &moment.event.kind {
                Kind::Called { call: Call::DestroyQp { .. }, .. } => true,
                Kind::StateChanged { to, .. } => *to == "RESET",
                _ => false,
            };
            if is_over {
                queues::never_signaled(pair, out);
                self.habits.forget(pair.qpn);
            }
        }
    }

    fn finish(&mut self, _now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        model.pairs.values().for_each(|pair| queues::never_signaled(pair, out));
    }
}
