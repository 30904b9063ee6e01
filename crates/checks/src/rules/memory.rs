//! Memory: UV-02xx. What the program registers, names in work requests, and lends to the NIC.

mod claims;
mod contents;
mod pieces;
mod registration;
mod sharing;
mod untold;
mod windows;

pub(super) use untold::Untold;

use alloc::format;
use alloc::string::String;

use trace::{Call, Kind};

use crate::examine::{Examine, Moment, Out, Sort};
use crate::model::Model;
use crate::rule::catalogue::memory::*;
use crate::witness::Witness;

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Memory {
    claims: claims::Claims,
    contents: contents::Contents,
    pieces: pieces::Pieces,
    registration: registration::Registration,
    sharing: sharing::Sharing,
}

impl Examine for Memory {
    fn sees(&self) -> Sort {
        Sort::POST | Sort::POSTED | Sort::COMPLETED | Sort::POLL | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        match moment.event.kind {
            Kind::Called { call: Call::Poll { .. }, .. } => return,
            Kind::Called { call: Call::Polled { wr_id, .. }, .. } => {
                return self.contents.polled(wr_id, moment, &self.claims, out);
            }
            _ => {}
        }
        if let Some(posting) = moment.posting {
            let usable = self.pieces.posted(posting, moment.model, out);
            self.registration.posted(posting, moment, out);
            if usable {
                self.sharing.posted(posting, moment.model, &self.claims, out);
                self.claims.add(posting, moment.model);
            }
        }
        self.contents.observe(moment, &self.claims, out);
        self.sharing.observe(moment, &self.claims, out);
        self.claims.observe(moment);
        if let Kind::Called { call, .. } = &moment.event.kind {
            self.registration.called(call, moment, out);
            windows::called(call, moment.model, out);
        }
    }

    fn tick(&mut self, now: u64, model: &Model, witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.contents.tick(now, model, out);
        self.registration.tick(now, model, witness, out);
    }

    fn finish(&mut self, _now: u64, model: &Model, witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.contents.finish(model, out);
        registration::finish(model, witness, out);
        windows::finish(model, out);
    }
}

/// Memory, for a sentence.
fn range(start: u64, length: u64) -> String {
    format!("[{start:#x}, +{length})")
}
