//! A deterministic network with a virtual clock, for testing the transport and for planning at scale.
//!
//! Hosts, queue pairs and wires live in one [`Sim`]; a seed decides every accident. Each packet is a real RoCEv2 frame
//! that is encoded, carried, lost, delayed or damaged, parsed and checked, unless a link is told to carry trains whole,
//! as shared memory does. Time jumps to the next thing that happens, so a second of retries costs microseconds. Not a
//! model of any particular switch or NIC.
#![forbid(unsafe_code)]

mod agenda;
mod capture;
mod frame;
mod host;
mod link;
mod memory;
mod network;
mod parcel;
mod rng;
pub mod script;
mod sim;
mod work;

pub use host::{HostConfig, HostId, QpId, QpSpec, ReceiveBuffer, SrqId, SrqSpec};
pub use link::{LinkConfig, LinkKind, Red};
pub use memory::{HostMemory, Region, RegionSpec, WindowKind, WindowSpec, pattern};
pub use network::{Counters, Outcome, Passing};
pub use rng::Rng;
pub use script::{Fate, Sighting};
pub use sim::Management;
pub use sim::{ConnectOptions, Family, SEED_VARIABLE, Shared, Sim};
pub use work::Work;
