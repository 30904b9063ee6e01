//! Processes, threads, lives of objects: UV-06xx.

use crate::checker::{Examine, Moment, Out};
use crate::rule::rules;

rules! {}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Processes;

impl Examine for Processes {
    fn observe(&mut self, _moment: &mut Moment<'_>, _out: &mut Out<'_>) {}
}
