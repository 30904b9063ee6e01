//! Lets bytes decide what is said to a live connection manager. What is done and what must hold is in the scenery that the scenarios use.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    scenery::connection_storm(bytes);
});
