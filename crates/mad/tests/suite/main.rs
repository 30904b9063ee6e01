//! Management datagrams, in virtual time.
//!
//! - `agents`: agents and what they send and hear
//! - `segments`: segmented messages between two managers

mod agents;
mod segments;
