//! Lets bytes decide what happens to live queue pairs of every kind. What is done and what must hold is in the scenery that the scenarios use.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    scenery::storm(bytes);
});
