//! The C entry points of verbs, of the connection manager and of management datagrams. Each checks what C cannot
//! promise, asks the NIC, and returns as the manual page says: an errno, a null pointer with errno, or minus one with
//! errno. What is not supported says so; nothing panics across the boundary. `cargo xtask dist` links this into
//! `libibverbs.so.1`, with the symbol versions of `link/`, and `librdmacm.so.1` and `libibumad.so.3` jump into that.
//!
//! # What C promises
//!
//! A pointer from C is null or as the manual page demands. The types of the arguments say so ([`abi::pointer`]), and so
//! most entry points are safe functions that follow their arguments without a further word. An entry point is `unsafe`
//! where the promise takes more than one argument, as for an array and its length; then it says what it relies on.
//!
//! Every object handed to C is a box whose first field is the structure of the header and whose rest is the library's,
//! so a pointer to the one is a pointer to the other: `Object` turns one into the other. An object counts its users and
//! refuses to be destroyed as long as it has any, which is why a queue pair may follow the pointers to its queues and
//! its domain.
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]

pub mod acknowledgements;
pub mod address_handle;
mod allocator;
mod as_card;
mod boundary;
pub mod buffer;
mod cancellation;
pub mod completion_channel;
pub mod completion_counter;
pub mod completion_events;
pub mod completion_queue;
pub mod completion_queue_ex;
pub mod context;
pub mod counters;
pub mod cross_call_lock;
pub mod device;
pub mod device_memory;
pub mod dma_handle;
pub mod ece;
pub mod errno;
pub mod events;
pub mod flow;
pub mod fork;
mod log;
pub mod memory_region;
pub mod memory_region_ex;
pub mod memory_window;
pub mod multicast;
pub mod nccl_profiler;
mod object;
pub mod open;
mod posting;
pub mod preload;
pub mod protection_domain;
pub mod provider;
pub mod query;
pub mod queue_pair;
pub mod queue_pair_create;
pub mod queue_pair_ex;
pub mod queue_pair_state;
pub mod rates;
pub mod rdma;
mod registry;
pub mod rsocket;
pub mod shared_receive_queue;
mod signals;
pub mod spans;
mod stack;
pub mod strings;
pub mod sysfs;
mod tag_matching;
pub mod umad;
mod use_count;
mod wall_clock;
pub mod work_builder;
pub mod work_queue;
pub mod xrc;
