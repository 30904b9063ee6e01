//! Bytes decide what a log of events says, and a peer about its refusal. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::logs(bytes));
