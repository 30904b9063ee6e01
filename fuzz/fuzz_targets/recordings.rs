//! Bytes are a recording, or its records. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::recordings(bytes));
