//! Which errno says what: the one place where errors of the NIC become the numbers of the manual pages.

use crate::log::{self, Reason};
use std::error::Error;
use std::ffi::c_int;
use std::fmt::Display;
use std::io;
use transport::{ModifyError, PostError};
pub(crate) use wire::refuse_if;

/// An errno, positive, and why. The reason goes where the errno goes: that of a failure which was dealt with, as by
/// another try or a fallback, is never told of a later one.
#[derive(Clone, Copy, Debug)]
pub struct Errno {
    code: c_int,
    reason: Reason,
}

/// Whatever the reason is.
impl PartialEq for Errno {
    fn eq(&self, other: &Errno) -> bool {
        self.code == other.code
    }
}

impl Eq for Errno {}

impl Errno {
    /// An argument that cannot be.
    pub const INVALID: Errno = Errno::of(libc::EINVAL);
    /// Something this device does not do.
    pub const UNSUPPORTED: Errno = Errno::of(libc::EOPNOTSUPP);
    /// The object is in use.
    pub const BUSY: Errno = Errno::of(libc::EBUSY);
    /// No room.
    pub const NO_MEMORY: Errno = Errno::of(libc::ENOMEM);

    /// An errno that says all there is to say.
    pub const fn of(code: c_int) -> Errno {
        Errno { code, reason: Reason::NONE }
    }

    /// The number.
    pub const fn code(self) -> c_int {
        self.code
    }

    /// This errno with a reason that a person may want to read. It takes the place of an earlier one.
    pub(crate) fn because(self, why: impl Display) -> Errno {
        Errno { reason: Reason::of(why), ..self }
    }

    /// The reason, if it has one and the program's user asked for reasons.
    pub(crate) fn reason(self) -> Option<String> {
        self.reason.text()
    }

    /// An argument that cannot be, and why not.
    pub(crate) fn invalid(why: impl Display) -> Errno {
        Errno::INVALID.because(why)
    }

    /// Something this device does not do.
    pub(crate) fn unsupported(what: &'static str) -> Errno {
        Errno::UNSUPPORTED.because(what)
    }

    /// A limit of the device is reached.
    pub(crate) fn no_memory(why: &'static str) -> Errno {
        Errno::NO_MEMORY.because(why)
    }

    /// An object that others still use, or that still uses others.
    pub(crate) fn busy(why: &'static str) -> Errno {
        Errno::BUSY.because(why)
    }

    /// A descriptor that is none.
    pub(crate) fn bad_descriptor(why: &'static str) -> Errno {
        Errno::of(libc::EBADF).because(why)
    }

    /// A null pointer where there must be something.
    pub(crate) fn null() -> Errno {
        Errno::invalid("an argument is a null pointer")
    }

    /// An object of the process that this one was forked from.
    #[cold]
    pub(crate) fn inherited() -> Errno {
        Errno::of(libc::EIO).because(match latch::generation() {
            // There is no such process.
            0 => "there is no such object; it was destroyed, or the pointer is wrong",
            _ => "the object belongs to the process that this one was forked from; open the device again",
        })
    }

    /// The device of an object has failed or was unplugged.
    #[cold]
    pub(crate) fn device_failed() -> Errno {
        Errno::of(libc::EIO)
            .because("the device has failed or was removed; close it, and open it again when it is back")
    }

    /// This errno, for a reason that a person may want to read.
    pub(crate) fn with_reason(self, error: &dyn Error) -> Errno {
        if log::wants_reasons() { self.because(with_sources(error)) } else { self }
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
            return Some(Errno::of(code));
        }
        next = error.source();
    }
    None
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        match error.raw_os_error() {
            Some(code) => Errno::of(code),
            None if error.kind() == io::ErrorKind::WouldBlock => Errno::of(libc::EAGAIN),
            None => Errno::of(libc::EIO),
        }
    }
}

impl From<hca::Error> for Errno {
    fn from(error: hca::Error) -> Errno {
        let errno = match &error {
            hca::Error::System { source, .. } => source.raw_os_error().map_or(Errno::of(libc::EIO), Errno::of),
            hca::Error::Memory(error) => Errno::of(error.errno()),
            hca::Error::Profile(refusal) => Errno::of(refusal.errno),
            hca::Error::Exhausted { .. } => Errno::NO_MEMORY,
            hca::Error::Slot(_) => system_error(&error).unwrap_or(Errno::of(libc::EADDRINUSE)),
            // What the system did not refuse, a variable asked for wrongly.
            hca::Error::Attach(_) => system_error(&error).unwrap_or(Errno::INVALID),
            _ => Errno::INVALID,
        };
        errno.with_reason(&error)
    }
}

impl From<profiles::Refusal> for Errno {
    fn from(error: profiles::Refusal) -> Errno {
        Errno::of(error.errno).with_reason(&error)
    }
}

impl From<memory::Error> for Errno {
    fn from(error: memory::Error) -> Errno {
        Errno::of(error.errno()).with_reason(&error)
    }
}

impl From<sockets::Error> for Errno {
    fn from(error: sockets::Error) -> Errno {
        Errno::of(error.0)
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
            ModifyError::Device(refusal) => Errno::of(refusal.errno),
            ModifyError::NoWay { .. } => Errno::of(libc::ENETUNREACH),
            ModifyError::NoNeighbour { .. } => Errno::of(libc::ETIMEDOUT),
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
            PostError::Device(refusal) => Errno::of(refusal.errno),
            PostError::QueueFull { .. } => Errno::NO_MEMORY,
            _ => Errno::INVALID,
        };
        errno.with_reason(&error)
    }
}
