//! Sockets over RDMA, without a network.
//!
//! - `captures`: what rdma-core's library puts on the wire
//! - `stream`: both sides of a connection
//! - `frames`: the frames of the captures

mod captures;
#[path = "../../../wire/tests/frames/mod.rs"]
mod frames;
mod stream;
