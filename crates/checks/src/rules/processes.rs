//! Processes, threads and lives of objects: UV-06xx.

mod data_path;
mod endings;
mod events;
mod forks;
mod leaks;
mod order;
mod threads;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::examine::Examine;
use crate::rule::catalogue::processes::*;

/// The parts of the family: each has the rules of one subject.
pub(crate) fn parts() -> Vec<Box<dyn Examine>> {
    Vec::from([
        Box::<forks::Forks>::default() as Box<dyn Examine>,
        Box::<threads::Threads>::default(),
        Box::<data_path::DataPath>::default(),
        Box::<order::Order>::default(),
        Box::<events::Events>::default(),
        Box::<endings::Endings>::default(),
        Box::<leaks::Leaks>::default(),
    ])
}
