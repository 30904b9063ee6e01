//! What happens without a call, and what does not happen: UV-09xx.

use crate::checker::{Examine, Moment, Out};
use crate::rule::rules;

rules! {}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Events;

impl Examine for Events {
    fn observe(&mut self, _moment: &mut Moment<'_>, _out: &mut Out<'_>) {}
}
