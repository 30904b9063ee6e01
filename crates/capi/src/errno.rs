//! Which errno says what: the one place where errors of the NIC become the numbers of the manual pages.

use std::ffi::c_int;
use std::io;
use transport::{ModifyError, PostError};

/// An errno, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

impl Errno {
    /// An argument that cannot be.
    pub const INVALID: Errno = Errno(libc::EINVAL);
    /// Something this device does not do.
    pub const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
    /// The object is in use.
    pub const BUSY: Errno = Errno(libc::EBUSY);
    /// No room.
    pub const NO_MEMORY: Errno = Errno(libc::ENOMEM);
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        match error.raw_os_error() {
            Some(code) => Errno(code),
            None if error.kind() == io::ErrorKind::WouldBlock => Errno(libc::EAGAIN),
            None => Errno(libc::EIO),
        }
    }
}

impl From<hca::Error> for Errno {
    fn from(error: hca::Error) -> Errno {
        match error {
            hca::Error::System { source, .. } => source.into(),
            hca::Error::Memory(error) => Errno(error.errno()),
            hca::Error::Exhausted { .. } => Errno::NO_MEMORY,
            hca::Error::Slot(_) | hca::Error::Attach(_) => Errno(libc::EADDRINUSE),
            _ => Errno::INVALID,
        }
    }
}

impl From<memory::Error> for Errno {
    fn from(error: memory::Error) -> Errno {
        Errno(error.errno())
    }
}

impl From<hca::CqError> for Errno {
    fn from(_: hca::CqError) -> Errno {
        Errno::INVALID
    }
}

impl From<ModifyError> for Errno {
    fn from(_: ModifyError) -> Errno {
        Errno::INVALID
    }
}

impl From<transport::SrqError> for Errno {
    fn from(_: transport::SrqError) -> Errno {
        Errno::INVALID
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Errno {
        match error {
            PostError::QueueFull { .. } => Errno::NO_MEMORY,
            _ => Errno::INVALID,
        }
    }
}
