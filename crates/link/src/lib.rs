//! How packets move. This crate knows sockets, rings and bytes; it does not know queue pairs: the sender gives it
//! headers and payload, the receiver gets them back. Which processes share the host, and what they may believe of each
//! other, is the crate `host`'s. System calls, and the `unsafe` they need, live in small functions with plain
//! signatures.
//!
//! | module | what |
//! |---|---|
//! | [`Link`] | the interface of all of them |
//! | [`udp`] | between hosts: trains as GSO and GRO datagrams with exact ICRCs |
//! | [`process`], [`local`] | inside the process: a queue of whole trains |
//! | [`shared`] | between processes of a host: trains in shared memory |
//! | [`packet`] | raw Ethernet frames of a network interface, which is no such link |
//! | [`faults`] | packets lost, doubled, late or damaged on purpose, around any link |

mod carrier;
mod dropped;
pub mod faults;
pub mod local;
// Beside it, not in it: a model checker compiles the module for itself.
#[cfg(test)]
#[path = "local/tests.rs"]
mod local_tests;
pub mod packet;
mod prefetch;
pub mod process;
pub mod shared;
mod sync;
pub mod udp;

pub use carrier::{Arrived, Destination, Handling, Link, NoPayload, SendError, Train};
pub use dropped::Dropped;
pub use prefetch::prefetch;
