//! How connections end, through shared memory.
#![allow(missing_docs)]

#[macro_use]
#[path = "../endings/mod.rs"]
mod endings;

/// Whether everything goes over UDP.
pub const OVER_UDP: bool = false;

fn prepare() {}

tests!();
