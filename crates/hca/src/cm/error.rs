//! What the connection manager refuses, and what a C program sees of it.

use ::cm::IdError;
use ::host::ports::PortError;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Why the connection manager could not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// Not now.
    #[error("{what} is not possible for an id that is {state}")]
    State {
        /// What was asked for.
        what: &'static str,
        /// What the id is.
        state: &'static str,
    },
    /// Another id, of this process or of another one, has the address and port.
    #[error("{address} is in use")]
    InUse {
        /// What was asked for.
        address: SocketAddr,
        /// One of the two is a wildcard or a loopback address, which kernels answer otherwise.
        anywhere: bool,
    },
    /// No port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The address is none of this host's.
    #[error("{0} is not an address of this host")]
    NotLocal(IpAddr),
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
    /// More private data than the message has room for.
    #[error("{length} bytes of private data; the message has room for {room}")]
    PrivateData {
        /// How much was given.
        length: usize,
        /// How much there is room for.
        room: usize,
    },
    /// An argument that makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// No more communication ids.
    #[error("too many connections")]
    Exhausted,
}

impl CmError {
    /// What a C program sees.
    pub fn errno(&self) -> i32 {
        match self {
            CmError::State { .. } | CmError::PrivateData { .. } | CmError::Invalid(_) => libc::EINVAL,
            CmError::InUse { anywhere: false, .. } => libc::EADDRINUSE,
            CmError::InUse { anywhere: true, .. } => libc::EADDRNOTAVAIL,
            CmError::Port(error) => error.errno(),
            CmError::NotLocal(_) => libc::EADDRNOTAVAIL,
            CmError::NoDevice(_) => libc::ENODEV,
            CmError::NoRoute { source, .. } => source.raw_os_error().unwrap_or(libc::ENETUNREACH),
            CmError::NoNeighbour(_) => libc::ETIMEDOUT,
            CmError::Exhausted => libc::ENOMEM,
        }
    }
}

impl From<IdError> for CmError {
    fn from(error: IdError) -> CmError {
        match error {
            IdError::State { what, state } => CmError::State { what, state },
            IdError::InUse { address, anywhere } => CmError::InUse { address, anywhere },
            IdError::NotLocal(address) => CmError::NotLocal(address),
            IdError::PrivateData { length, room } => CmError::PrivateData { length, room },
            IdError::Invalid(what) => CmError::Invalid(what),
            _ => CmError::Exhausted,
        }
    }
}
