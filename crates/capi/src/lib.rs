//! The C entry points of verbs and of the connection manager. Each checks what C cannot promise, asks the NIC, and answers as the manual page
//! says: an errno, a null pointer with errno, or minus one with errno. What is not supported says so; nothing panics across the boundary.
//! `cargo xtask dist` links this into `libibverbs.so.1`, with the symbol versions of `link/`, and `librdmacm.so.1` jumps into that.
//!
//! Every object handed to C is a box whose first field is the structure of the header and whose rest is ours, so a pointer to the one is a
//! pointer to the other. The functions are `unsafe` as their C originals are: pointers must be null or what this library gave out and has
//! not yet taken back, and what they point to must be as the headers declare it.
#![allow(clippy::missing_safety_doc, reason = "the same for all, in the crate's documentation")]
#![allow(unsafe_op_in_unsafe_fn, reason = "entry points are C functions: all they do is follow C's pointers")]

pub mod address_handle;
mod boundary;
pub mod completion_channel;
pub mod completion_queue;
pub mod completion_queue_ex;
pub mod context;
pub mod device;
pub mod device_memory;
pub mod ece;
pub mod errno;
pub mod events;
pub mod fork;
mod log;
pub mod memory_region;
pub mod memory_window;
pub mod multicast;
mod posting;
pub mod protection_domain;
pub mod provider;
pub mod query;
pub mod queue_pair;
pub mod queue_pair_ex;
pub mod queue_pair_state;
pub mod rates;
pub mod rdma;
mod registry;
pub mod shared_receive_queue;
mod signals;
pub mod strings;
pub mod sysfs;
pub mod turns;
pub mod xrc;
