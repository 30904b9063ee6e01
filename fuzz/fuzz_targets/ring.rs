//! Bytes decide what is written to a ring of shared memory, and how it is read. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::ring(bytes));
