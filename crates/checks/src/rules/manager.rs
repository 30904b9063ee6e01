//! The connection manager: UV-07xx. Ids and what becomes of them are in `ids`; what is done with their queue pairs is in
//! `pairs`.

mod ids;
mod pairs;

use crate::examine::{Examine, Moment, Out, Sort};
use crate::model::Model;
use crate::rule::catalogue::manager::*;
use crate::witness::Witness;

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Manager {
    ids: ids::Ids,
    pairs: pairs::Pairs,
}

impl Examine for Manager {
    fn sees(&self) -> Sort {
        Sort::POST | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        self.pairs.observe(moment, &self.ids, out);
        self.ids.observe(moment, out);
    }

    fn tick(&mut self, now: u64, _model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.ids.tick(now, out);
    }

    fn finish(&mut self, _now: u64, _model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.ids.finish(out);
    }
}
