//! Bytes decide what programs do with management agents, and what strangers send to them. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::agents(bytes));
