//! How packets move, and how the processes of one host share one NIC without a daemon. This crate knows sockets, addresses, names and bytes; it
//! does not know queue pairs: who sends gives it headers and payload, who receives gets them back. System calls, and the `unsafe` they need,
//! live in small functions with plain signatures.
//!
//! | module | what |
//! |---|---|
//! | [`udp`] | between hosts: trains as GSO and GRO datagrams with exact ICRCs |
//! | [`local`] | inside the process: a queue of whole trains |
//! | [`shared`] | between processes of a host: trains in shared memory |
//! | [`faults`] | packets lost, doubled, late or damaged on purpose, around any link |
//! | [`slots`], [`ports`] | who has which queue pair numbers and which ports of the connection manager: abstract socket names |
//! | [`forward`] | packets that came to the wrong process of the host go on to the right one |
//! | [`steering`] | and seldom come to the wrong one |
//! | [`attachment`] | all of that together: one process's share of the host's UDP port |
//! | [`lives`], [`wills`] | whose process has ended, and what it would have said |
//! | [`descriptor`] | what a forked child must not keep |

pub mod attachment;
pub mod descriptor;
pub mod faults;
pub mod forward;
pub mod holders;
pub mod lives;
pub mod local;
// Beside it, not in it: a model checker compiles the module for itself.
#[cfg(test)]
#[path = "local/tests.rs"]
mod local_tests;
pub mod names;
pub mod ports;
mod prefetch;
pub mod shared;
pub mod slots;
pub mod steering;
mod sync;
pub mod udp;
pub mod wills;

pub use prefetch::prefetch;
pub use slots::random;
