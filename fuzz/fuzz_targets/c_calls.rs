//! Bytes decide what a C program calls, in which order and with which numbers. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::c_calls(bytes));
