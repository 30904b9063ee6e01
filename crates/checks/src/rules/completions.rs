//! Completions: UV-04xx.

mod acknowledgements;
mod capacity;
mod cost;
mod extended;
mod reaping;
mod waking;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::examine::Examine;
use crate::rule::catalogue::completions::*;

/// The parts of the family: each has the rules of one subject.
pub(crate) fn parts() -> Vec<Box<dyn Examine>> {
    Vec::from([
        Box::<capacity::Capacity>::default() as Box<dyn Examine>,
        Box::<waking::Waking>::default(),
        Box::<acknowledgements::Acknowledgements>::default(),
        Box::<reaping::Reaping>::default(),
        Box::<cost::Cost>::default(),
        Box::<extended::Extended>::default(),
    ])
}
