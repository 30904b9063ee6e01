//! Why the NIC could not do something.

use crate::objects::completion_queue::CqError;
use std::net::IpAddr;

/// Why the NIC could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something.
    #[error("{what}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
    /// No share of the host's numbers.
    #[error(transparent)]
    Slot(#[from] ::host::slots::SlotError),
    /// No share of the host's UDP port.
    #[error(transparent)]
    Attach(#[from] link::udp::attachment::AttachError),
    /// A completion queue cannot be made so.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// As many as there may be.
    #[error("no more {what}: a process has {limit} at most")]
    Exhausted {
        /// Of what.
        what: &'static str,
        /// How many there are.
        limit: u32,
    },
    /// Memory cannot be registered so, or not be deregistered.
    #[error(transparent)]
    Memory(#[from] memory::Error),
    /// Not a multicast group, or not a queue pair that can be in one.
    #[error("only datagram queue pairs can be in a group, and {address} must be one")]
    NoGroup {
        /// The address.
        address: IpAddr,
    },
    /// A queue pair that leaves a group it is not in.
    #[error("the queue pair is not attached to {group}")]
    NotAttached {
        /// The group.
        group: IpAddr,
    },
    /// A flow for a queue pair that is not a raw one.
    #[error("only raw packet queue pairs have flows")]
    NotRaw,
    /// A flow that cannot be.
    #[error("a flow is refused: {why}")]
    NoFlow {
        /// Why not.
        why: &'static str,
    },
    /// The profile of the NIC refuses it.
    #[error(transparent)]
    Profile(#[from] profiles::Refusal),
    /// A limit of the device.
    #[error("{what} {asked} is more than the device's {max}")]
    TooMany {
        /// What was asked for.
        what: &'static str,
        /// How much.
        asked: u32,
        /// The most.
        max: u32,
    },
}

impl Error {
    /// What C programs would get where the error itself says so: what a profile of the NIC refuses.
    pub fn refusal_errno(&self) -> Option<i32> {
        match self {
            Error::Profile(refusal) => Some(refusal.errno),
            _ => None,
        }
    }
}

pub(crate) fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::System { what, source }
}
