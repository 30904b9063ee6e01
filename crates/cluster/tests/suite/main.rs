//! Groups, whose members are threads, processes or parties of a simulation.
//!
//! - `collectives`: every collective on every topology, beside what one process computes
//! - `failures`: what goes wrong, and who is told
//! - `killing`: members whose processes are killed
//! - `simulated`: groups on simulated NICs
//! - `members`: members that are threads

mod collectives;
mod failures;
mod killing;
#[path = "../members/mod.rs"]
mod members;
mod simulated;
