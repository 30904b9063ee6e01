//! The connection manager: UV-07xx.

use crate::checker::{Examine, Moment, Out};
use crate::rule::rules;

rules! {}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Manager;

impl Examine for Manager {
    fn observe(&mut self, _moment: &mut Moment<'_>, _out: &mut Out<'_>) {}
}
