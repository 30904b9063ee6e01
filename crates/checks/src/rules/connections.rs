//! Queue pairs and how they are connected: UV-05xx.

use crate::checker::{Examine, Moment, Out};
use crate::rule::rules;

rules! {}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Connections;

impl Examine for Connections {
    fn observe(&mut self, _moment: &mut Moment<'_>, _out: &mut Out<'_>) {}
}
