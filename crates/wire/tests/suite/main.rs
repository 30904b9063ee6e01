//! Packets as bytes.
//!
//! - `cm_messages`, `flow`, `headers`: what is written and read, byte by byte
//! - `captures`: what kernel Soft-RoCE put on the wire
//! - `tshark`: what we write, as Wireshark reads it
//! - `properties`: what holds for any bytes and any values
//! - `corpus`: the corpus of the fuzz targets
//! - `frames`: the frames of the captures
//! - `harness`: what a fuzzer may throw at the crate

mod captures;
mod cm_messages;
mod corpus;
mod flow;
#[path = "../frames/mod.rs"]
mod frames;
#[path = "../harness/mod.rs"]
mod harness;
mod headers;
mod properties;
mod tshark;
