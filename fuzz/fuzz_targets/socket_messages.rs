//! Bytes decide what a peer of a socket over RDMA says. What is done and what must hold is in `tests/fuzzing`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzzing::socket_messages(bytes));
