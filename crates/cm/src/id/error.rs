//! Why a call on an id was refused. Nothing was sent and nothing changed.

use core::net::{IpAddr, SocketAddr};

use crate::CmError;

/// Why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// Not at this point of the id's life.
    #[error("{what} is not possible for an id that is {state}")]
    State {
        /// What was asked for.
        what: &'static str,
        /// What the id is.
        state: &'static str,
    },
    /// Another id has the address and port.
    #[error("{address} is in use")]
    InUse {
        /// What was asked for.
        address: SocketAddr,
        /// One of the two is a wildcard or a loopback address: kernels return another errno then.
        anywhere: bool,
    },
    /// The address is none of this host's, or not one of a group that the id is in.
    #[error("{0} is not an address of this host")]
    NotLocal(IpAddr),
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

impl From<CmError> for IdError {
    fn from(error: CmError) -> IdError {
        match error {
            CmError::DataTooLong { have, room, .. } => IdError::PrivateData { length: have, room },
            CmError::NoId => IdError::Exhausted,
            CmError::OutOfRange(what) => IdError::Invalid(what),
            // The manager has forgotten the communication, or is further than the id: the event is on its way.
            CmError::UnknownId(_) | CmError::WrongState { .. } => IdError::State { what: "this", state: "at its end" },
        }
    }
}
