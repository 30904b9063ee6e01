//! Why a call of the manager was refused. Nothing was sent and nothing changed.

use wire::cm::CommId;

use crate::State;

/// Why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The connection ended, or never was.
    #[error("no connection has the communication id {0}")]
    UnknownId(CommId),
    /// The specification does not allow this in the state the connection is in.
    #[error("cannot {call} connection {id}: it is in state {state}")]
    WrongState {
        /// The connection.
        id: CommId,
        /// What was asked.
        call: &'static str,
        /// What it is in.
        state: State,
    },
    /// The message has no room for so much.
    #[error("{have} bytes of {what} do not fit the {room} of the message")]
    DataTooLong {
        /// Which field.
        what: &'static str,
        /// How much there is.
        have: usize,
        /// How much fits.
        room: usize,
    },
    /// A value that its field cannot hold.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
    /// Every communication id of the range is taken.
    #[error("no communication id is free")]
    NoId,
}

/// Why a listener was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another listener has this service at this address, or at all of them.
    #[error("this service and address have a listener already")]
    InUse,
}
