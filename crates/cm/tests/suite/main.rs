//! The connection manager.
//!
//! - `handshake`: the plain course of things
//! - `captures`: its messages beside those of the kernel's
//! - `frames`: the captures of the wire crate

mod captures;
#[path = "../../../wire/tests/frames/mod.rs"]
mod frames;
mod handshake;
