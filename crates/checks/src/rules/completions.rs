//! Completions: UV-04xx.

use crate::checker::{Examine, Moment, Out};
use crate::rule::rules;

rules! {}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Completions;

impl Examine for Completions {
    fn observe(&mut self, _moment: &mut Moment<'_>, _out: &mut Out<'_>) {}
}
