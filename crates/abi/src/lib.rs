//! Mirrors of `verbs.h`, `rdma_cma.h` and `umad.h`: layouts and numbers, no behaviour. A C program and this library
//! must agree on every offset, so the tests compile a C program against the installed headers and compare. Names are
//! the header's own, so that one finds here what one knows from there; what a field means is in the man pages. Fields
//! of enumerated type are plain integers: C may store anything in them. What C promises about the pointers it passes is
//! in [`mod@pointer`].
#![allow(non_camel_case_types, non_snake_case)]
#![allow(missing_docs, reason = "the names are those of the headers, and their manual pages document them")]

#[macro_use]
mod mirror;
#[macro_use]
pub mod constants;

pub mod address;
pub mod completion;
pub mod connection;
pub mod context;
pub mod device;
pub mod flow;
pub mod later;
pub mod management;
pub mod memory;
pub mod pointer;
pub mod queue_pair;
pub mod shared_receive_queue;
pub mod work;

pub use address::*;
pub use completion::*;
pub use connection::*;
pub use constants::*;
pub use context::*;
pub use device::*;
pub use flow::*;
pub use later::*;
pub use management::*;
pub use memory::*;
pub use mirror::{Field, Layout};
pub use pointer::*;
pub use queue_pair::*;
pub use shared_receive_queue::*;
pub use work::*;

/// Every layout, for the comparison with the header.
pub const LAYOUTS: &[&[Layout]] = &[
    address::LAYOUTS,
    completion::LAYOUTS,
    connection::LAYOUTS,
    context::LAYOUTS,
    device::LAYOUTS,
    flow::LAYOUTS,
    management::LAYOUTS,
    memory::LAYOUTS,
    queue_pair::LAYOUTS,
    shared_receive_queue::LAYOUTS,
    work::LAYOUTS,
];
