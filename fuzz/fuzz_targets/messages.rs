//! Bytes decide what a process says to another of its host, with which descriptors. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::messages(bytes));
