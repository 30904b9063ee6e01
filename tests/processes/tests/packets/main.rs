//! Packets that go no further, each counted. A program of its own, with one test at a time: the process has no NIC but those
//! whose drops are counted.
//!
//! - `drops`: every reason there is
//! - `strangers`: packets of another user of the host
//! - `strangers_to_connections`: messages of connection management from strangers
//! - `crafted`: packets that no queue pair of ours would send

mod crafted;
mod drops;
mod strangers;
mod strangers_to_connections;
