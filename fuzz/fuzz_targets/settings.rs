//! Bytes decide what the environment sets: a plan of faults, a log, a name. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::settings(bytes));
