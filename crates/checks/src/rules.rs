//! The rules of verbs that a program can break unnoticed.

pub(crate) mod completions;
pub(crate) mod connections;
pub(crate) mod manager;
pub(crate) mod memory;
pub(crate) mod posting;
pub(crate) mod processes;
mod waiting_destroyers;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::checker::Examine;

/// Every family that checks.
pub(crate) fn families() -> Vec<Box<dyn Examine>> {
    let mut families = Vec::from([
        Box::<memory::Memory>::default() as Box<dyn Examine>,
        Box::<posting::Posting>::default(),
        Box::<connections::Connections>::default(),
        Box::<manager::Manager>::default(),
    ]);
    families.extend(completions::parts());
    families.extend(processes::parts());
    families
}
