//! What the connection manager refuses, and what a C program sees of it.

use ::cm::IdError;
use ::host::ports::PortError;
use std::io;
use std::net::IpAddr;

/// Why the connection manager could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// An id refuses it, or another id, of this process or of another one, is in its way.
    #[error(transparent)]
    Id(#[from] IdError),
    /// No port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The card that the device is like has no connection manager.
    #[error(transparent)]
    Card(#[from] profiles::Refusal),
    /// The address is this host's, but not a device's.
    #[error("{0} belongs to no device of this host")]
    NoDevice(IpAddr),
    /// The system knows no way.
    #[error("no route to {to}")]
    NoRoute {
        /// Where to.
        to: IpAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No neighbour answers for the address.
    #[error("{0} cannot be reached: no host of the network answers for the address, or for that of its gateway")]
    NoNeighbour(IpAddr),
}

impl CmError {
    /// What a C program sees.
    pub fn errno(&self) -> i32 {
        match self {
            CmError::Id(IdError::InUse { anywhere: false, .. }) => libc::EADDRINUSE,
            CmError::Id(IdError::InUse { .. } | IdError::NotLocal(_)) => libc::EADDRNOTAVAIL,
            CmError::Id(IdError::Exhausted) => libc::ENOMEM,
            CmError::Id(_) => libc::EINVAL,
            CmError::Port(error) => error.errno(),
            CmError::Card(refusal) => refusal.errno,
            CmError::NoDevice(_) => libc::ENODEV,
            CmError::NoRoute { source, .. } => source.raw_os_error().unwrap_or(libc::ENETUNREACH),
            CmError::NoNeighbour(_) => libc::ETIMEDOUT,
        }
    }
}
