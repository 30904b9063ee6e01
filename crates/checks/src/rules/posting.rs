//! Posting: UV-03xx.

use crate::checker::{Examine, Moment, Out};
use crate::rule::rules;

rules! {
    UNFENCED = 314 Error "data of a READ is sent on without a fence";
}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Posting;

impl Examine for Posting {
    fn observe(&mut self, _moment: &mut Moment<'_>, _out: &mut Out<'_>) {}
}
