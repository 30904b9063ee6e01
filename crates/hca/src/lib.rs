//! The software NIC: devices, objects, progress, and their attachment to the host.

mod answering;
mod aside;
mod bell;
mod capture;
pub mod channel;
mod clock;
pub mod cm;
mod completion_queue;
mod context;
mod debt;
pub mod device;
mod device_memory;
mod engine;
pub mod environment;
mod host;
pub mod interfaces;
mod lease;
mod log;
mod manners;
pub mod multicast;
mod nic;
mod numbers;
mod path;
mod process;
mod queue_pair;
mod reach;
mod registration;
mod shared;
mod shared_queue;
mod sleep;
mod sync;
mod table;
mod timers;
mod tracing;
mod udp;
mod watch;

pub use completion_queue::{
    Added, CompletionChannel, CompletionQueue, CqError, Entry, MAX_ENTRIES, Moderation, Notify,
};
pub use context::{AsyncEvent, Context};
pub use device::Device;
pub use device_memory::DeviceMemory;
pub use nic::{Error, Nic, Options, limits};
pub use queue_pair::{Joins, Qp};
pub use shared_queue::{SharedQueue, Xrc};
pub use tracing::Tracing;
