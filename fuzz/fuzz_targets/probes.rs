//! Bytes decide a datagram that may be a probe, or the answer to one. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::probes(bytes));
