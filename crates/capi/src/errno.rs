//! Which errno says what: the one place where errors of the NIC become the numbers of the manual pages.

use crate::log;
use std::error::Error;
use std::ffi::c_int;
use std::fmt::Display;
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

    /// An argument that cannot be, and why not.
    pub(crate) fn invalid(why: impl Display) -> Errno {
        log::note_reason(why);
        Errno::INVALID
    }

    /// Something this device does not do.
    pub(crate) fn unsupported(what: &'static str) -> Errno {
        log::note_reason(what);
        Errno::UNSUPPORTED
    }

    /// A limit of the device is reached.
    pub(crate) fn no_memory(why: &'static str) -> Errno {
        log::note_reason(why);
        Errno::NO_MEMORY
    }

    /// An object that others still use, or that still uses others.
    pub(crate) fn busy(why: &'static str) -> Errno {
        log::note_reason(why);
        Errno::BUSY
    }

    /// A descriptor that is none.
    pub(crate) fn bad_descriptor(why: &'static str) -> Errno {
        log::note_reason(why);
        Errno(libc::EBADF)
    }

    /// A null pointer where there must be something.
    pub(crate) fn null() -> Errno {
        Errno::invalid("an argument is a null pointer")
    }

    /// An object of the process that this one was forked from.
    #[cold]
    pub(crate) fn inherited() -> Errno {
        log::note_reason(match latch::generation() {
            // There is no such process.
            0 => "there is no such object; it was destroyed, or the pointer is wrong",
            _ => "the object belongs to the process that this one was forked from; open the device again",
        });
        Errno(libc::EIO)
    }

    /// This errno, for a reason that a person may want to read.
    pub(crate) fn with_reason(self, error: &dyn Error) -> Errno {
        if log::wants_reasons() {
            log::note_reason(with_sources(error));
        }
        self
    }
}

/// What an error says, and what those behind it say.
pub(crate) fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// What the system said, if it is behind an error.
fn system_error(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(Errno(code));
        }
        next = error.source();
    }
    None
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
        let errno = match &error {
            hca::Error::System { source, .. } => source.raw_os_error().map_or(Errno(libc::EIO), Errno),
            hca::Error::Memory(error) => Errno(error.errno()),
            hca::Error::Exhausted { .. } => Errno::NO_MEMORY,
            hca::Error::Slot(_) => system_error(&error).unwrap_or(Errno(libc::EADDRINUSE)),
            // What the system did not refuse, a variable asked for wrongly.
            hca::Error::Attach(_) => system_error(&error).unwrap_or(Errno::INVALID),
            _ => Errno::INVALID,
        };
        errno.with_reason(&error)
    }
}

impl From<memory::Error> for Errno {
    fn from(error: memory::Error) -> Errno {
        Errno(error.errno()).with_reason(&error)
    }
}

impl From<sockets::Error> for Errno {
    fn from(error: sockets::Error) -> Errno {
        Errno(error.0)
    }
}

impl From<hca::CqError> for Errno {
    fn from(error: hca::CqError) -> Errno {
        Errno::INVALID.with_reason(&error)
    }
}

impl From<ModifyError> for Errno {
    fn from(error: ModifyError) -> Errno {
        let errno = match error {
            ModifyError::NoWay { .. } => Errno(libc::ENETUNREACH),
            ModifyError::NoNeighbour { .. } => Errno(libc::ETIMEDOUT),
            _ => Errno::INVALID,
        };
        errno.with_reason(&error)
    }
}

impl From<transport::SrqError> for Errno {
    fn from(error: transport::SrqError) -> Errno {
        Errno::INVALID.with_reason(&error)
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Errno {
        let errno = match error {
            PostError::QueueFull { .. } => Errno::NO_MEMORY,
            _ => Errno::INVALID,
        };
        errno.with_reason(&error)
    }
}
