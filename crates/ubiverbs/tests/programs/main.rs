//! What programs of others are like: those that compile, and those that do not. A program of its own, since Cargo and the
//! compiler take all processors meanwhile, and since the process has the driver of a GPU.
//!
//! - `examples`: every example runs
//! - `gpu`: memory of a GPU, on a stand-in for its driver
//! - `promises`: what must not compile does not
//! - `example`: the examples as commands

mod example;
mod examples;
mod gpu;
mod promises;
