//! Gives any bytes to every parser of the wire crate. The work is in the harness that the crate's own tests use.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)] // the other target's half
#[path = "../../crates/wire/tests/harness/mod.rs"]
mod harness;

fuzz_target!(|bytes: &[u8]| harness::parse(bytes));
