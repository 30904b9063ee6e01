//! Bytes are what a member of a group hears from others. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::groups(bytes));
