//! Why a call on a socket failed: the errno of the manual page.

use hca::cm::{CmError, IdError};
use rsocket::ProtocolError;
use std::fmt;

/// An errno.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(pub i32);

impl Error {
    /// It cannot be done yet.
    pub const WOULD_BLOCK: Error = Error(libc::EAGAIN);
    /// It was begun, and is not done.
    pub const IN_PROGRESS: Error = Error(libc::EINPROGRESS);
    /// An argument, or the state of the socket, does not allow it.
    pub const INVALID: Error = Error(libc::EINVAL);
    /// There is no connection.
    pub const NOT_CONNECTED: Error = Error(libc::ENOTCONN);
    /// Not in this library.
    pub const NOT_SUPPORTED: Error = Error(libc::ENOTSUP);
    /// No memory, or no more queue pairs.
    pub const NO_MEMORY: Error = Error(libc::ENOMEM);
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Error {}

impl From<CmError> for Error {
    fn from(error: CmError) -> Error {
        match error {
            // Kernels answer otherwise for some addresses of the connection manager, but socket programs know this.
            CmError::Id(IdError::InUse { .. }) => Error(libc::EADDRINUSE),
            _ => Error(error.errno()),
        }
    }
}

impl From<hca::Error> for Error {
    fn from(error: hca::Error) -> Error {
        match error {
            hca::Error::System { source, .. } => source.into(),
            hca::Error::TooMany { .. } => Error::INVALID,
            _ => Error::NO_MEMORY,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<transport::ModifyError> for Error {
    fn from(_: transport::ModifyError) -> Error {
        Error::INVALID
    }
}

impl From<ProtocolError> for Error {
    fn from(error: ProtocolError) -> Error {
        match error {
            ProtocolError::Version { .. } => Error::NOT_SUPPORTED,
            _ => Error(libc::EPROTO),
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        std::io::Error::from_raw_os_error(error.0)
    }
}
