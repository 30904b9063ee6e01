//! The software NIC: devices, objects, progress, and their attachment to the host.

mod call_trace;
pub mod cm;
mod drive;
pub mod environment;
mod error;
mod ground;
pub mod gsi;
pub mod interfaces;
mod links;
mod nic;
mod objects;
mod open;
#[cfg(feature = "checks")]
mod orphan;
mod progress;
mod queue_pair;
mod record;
mod scripts;
mod tuning;

pub use ::host::descriptor::Descriptor;
pub use ::host::descriptor::observe as observe_descriptors;
pub use ::host::stamp::Stamp;
pub use ::host::thread::{Shield, number as thread_number, spawn};
pub use ::inventory::Socket as SocketReport;
pub use ::link::shared::direct::check_support as check_direct_support;
pub use call_trace::OwnCalls;
pub use drive::blocked_call::{BlockedCall, Look};
pub use drive::connection_wait::ConnectionWait;
pub use error::Error;
pub use ground::Options;
pub use ground::nic_links::BlackHole;
pub use links::packets::FlowCounters;
pub use links::udp::Reach;
pub use links::windows::Congestion;
pub use memory::Mapping;
pub use nic::buffer::{Buffer, ReservedBuffer};
pub use nic::device_memory::DeviceMemory;
pub use nic::inject;
pub use nic::management::ManagementPort;
pub use nic::multicast;
pub use nic::packets::{Flow, RawOptions};
pub use nic::port_files::port_files;
pub use nic::process::{fork_init, report_sockets, wait_before_exit};
pub use nic::reserved::ReservedNumber;
pub use nic::scripts::{CallFailure, CallFault};
#[cfg(feature = "checks")]
pub use nic::witness::LiveWitness;
pub use nic::{Nic, limits};
pub use objects::completion_queue::{
    Added, CompletionChannel, CompletionQueue, CqError, MAX_ENTRIES, Moderation, Notify,
};
pub use objects::context::{AsyncEvent, Context};
pub use objects::device::{Device, LinkRate};
pub use objects::landing::Landing;
pub use objects::shared_queue::{SharedQueue, SharedQueueKind, TagMatching, Xrc};
pub use objects::{channel, device};
#[cfg(feature = "checks")]
pub use orphan::told_without_nic;
pub use progress::sleep::Sleep;
pub use queue_pair::counters::{AttachError, CompletionCounter, CountedWork};
pub use queue_pair::frames::Spread;
pub use queue_pair::{Joins, Qp};
pub use record::drops::KernelDrops;
pub use record::file::create_private;
#[cfg(feature = "capture")]
pub use record::recording::{Span, monotonic};
pub use record::tracing::{Tracing, is_traced, is_watched};
