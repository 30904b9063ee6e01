//! The rules of verbs that a program can break unnoticed.

mod completions;
mod connections;
mod manager;
mod memory;
mod posting;
mod processes;
mod waiting_destroyers;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::examine::Examine;

/// Every family that checks.
pub(crate) fn families() -> Vec<Box<dyn Examine>> {
    let mut families = Vec::from([
        Box::<memory::Memory>::default() as Box<dyn Examine>,
        Box::<memory::Untold>::default(),
        Box::<posting::Posting>::default(),
        Box::<connections::Connections>::default(),
        Box::<manager::Manager>::default(),
    ]);
    families.extend(completions::parts());
    families.extend(processes::parts());
    families
}
