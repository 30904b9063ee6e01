//! Explanations: what failed by itself, and why.

mod calls;
mod events;
pub(crate) mod work;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::examine::Examine;

/// Every family that explains.
pub(crate) fn families() -> Vec<Box<dyn Examine>> {
    Vec::from([
        Box::<work::FailedWork>::default() as Box<dyn Examine>,
        Box::<calls::RefusedCalls>::default(),
        Box::<events::Events>::default(),
    ])
}
