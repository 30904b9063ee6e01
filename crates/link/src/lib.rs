//! How packets move. This crate knows sockets, addresses and bytes; it does not know queue pairs: who sends gives it headers and payload, who
//! receives gets them back. System calls, and the `unsafe` they need, live in small functions with plain signatures.

pub mod local;
pub mod udp;
