//! Queue pairs without a network. Most of what they do is told in the scenarios of `tests`; apart from these is
//! `allocations`, which has an allocator that counts.
//!
//! - `express`: the short way of a message, and what needs no packets
//! - `frames`: raw packet queue pairs
//! - `longest_message`: half of all sequence numbers in one message
//! - `patience`: timeouts that are shorter than a wait for a processor
//! - `question`: a queue pair asks whether its peer is there
//! - `tag_matching`: shared receive queues that match tags
//! - `waiting`: work that waits for its link
//! - `dcqcn`: the rate of congestion beside its paper
//! - `direct`: two queue pairs back to back

mod dcqcn;
#[path = "../direct/mod.rs"]
mod direct;
mod express;
mod frames;
mod longest_message;
mod patience;
mod probe;
mod tag_matching;
mod waiting;
