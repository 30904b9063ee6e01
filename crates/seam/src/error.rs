//! What can go wrong, as one enum; and what went wrong with a piece of work, with a class a program can switch on and a
//! hint a person can act on.

use super::{CloseReason, ConnectError};
use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use transport::{CompletionKind, Failure, ModifyError, PostError, SrqError, State, Status};
use wire::Qpn;

/// Why something was not done.
///
/// Its `Debug` is for people: a program whose `main` returns it ends with a sentence and a hint.
///
/// ```
/// let error = ubiverbs::device("ubi_nonsense").unwrap_err();
/// assert!(format!("{error:?}").starts_with("no device \"ubi_nonsense\"; this host has "));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// There is no such device.
    #[error("no device {name:?}; this host has {}", List(available))]
    NoDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        available: Vec<String>,
    },
    /// The device has no such address.
    #[error("device {device} has no address {what}")]
    NoAddress {
        /// The device.
        device: String,
        /// What was asked for.
        what: String,
    },
    /// The NIC could not create something.
    #[error("cannot create {what}: {source}")]
    Create {
        /// What.
        what: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Memory could not be registered.
    #[error("cannot register {length} bytes: {source}")]
    Register {
        /// How many bytes.
        length: usize,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Bytes could not be copied into or out of device memory.
    #[error("cannot copy to or from device memory: {source}")]
    DeviceMemory {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A number that a call was given and that makes no sense there.
    #[error("{0}")]
    Argument(Argument),
    /// These rights cannot be given to peers.
    #[error("rights {bits:#x} cannot be given over a region; REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC and FLUSH_* can")]
    Rights {
        /// The bits in question.
        bits: u32,
    },
    /// A queue pair without room for any work.
    #[error("a queue pair with max_sends(0) and max_receives(0) can do nothing; one of them must be more")]
    NoWork,
    /// A region that is shared with nobody.
    #[error(
        "a region to share needs a right: REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC or FLUSH_* for peers, or LOCAL_WRITE for this \
         program's own work; a buffer with one owner is made with `allocate`"
    )]
    NoRights,
    /// Two objects of different devices, or of different NICs.
    #[error("the {what} belongs to another device")]
    OtherDevice {
        /// What does not fit.
        what: &'static str,
    },
    /// A buffer, or a shared receive queue, of another protection domain than the queue's.
    #[error("the {what} belongs to another protection domain than the queue it was given to")]
    OtherProtectionDomain {
        /// What does not fit.
        what: &'static str,
    },
    /// More bytes than there is room for.
    #[error("{needed} bytes do not fit into {available}")]
    TooSmall {
        /// What was asked for.
        needed: u64,
        /// What there is.
        available: u64,
    },
    /// A range that reaches beyond its end.
    #[error("{length} bytes at {offset} reach beyond the {size} there are")]
    OutOfBounds {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u64,
        /// How many bytes there are.
        size: u64,
    },
    /// Atomic operations work on eight aligned bytes.
    #[error("{offset:#x} is not a multiple of 8, as an atomic operation needs it")]
    Misaligned {
        /// The offset or address.
        offset: u64,
    },
    /// Memory that may only be read was to be written.
    #[error("this memory may only be read: its file was opened for that alone")]
    ReadOnly,
    /// The peers' access was revoked, and with it the key.
    #[error("the region has been revoked")]
    Revoked,
    /// The queue pair cannot change so.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The work was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The shared receive queue cannot change so.
    #[error(transparent)]
    SharedReceiveQueue(#[from] SrqError),
    /// Two ends that do not go together.
    #[error("a queue pair of kind {ours} cannot connect to one of kind {theirs}")]
    OtherTransport {
        /// Our kind.
        ours: transport::Kind,
        /// The peer's.
        theirs: transport::Kind,
    },
    /// The addresses are of different families.
    #[error(
        "no way from {from} to {to}: one is IPv4, the other IPv6; choose the source address when preparing the queue pair"
    )]
    AddressFamily {
        /// Ours.
        from: wire::Gid,
        /// The peer's.
        to: wire::Gid,
    },
    /// The queue pair is not where it should be in its life.
    #[error("the queue pair is in {actual}; {wanted}")]
    State {
        /// Where it is.
        actual: State,
        /// What is needed.
        wanted: &'static str,
    },
    /// Other handles of the object exist.
    #[error("other handles of this {what} exist; drop them first")]
    Shared {
        /// Of what.
        what: &'static str,
    },
    /// Bytes or text that are no endpoint or remote slice.
    #[error("not {what}: {why}")]
    Encoding {
        /// What they should have been.
        what: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// The connection manager could not connect, listen or join.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The work ended badly.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// The connection ended.
    #[error("the connection ended: {0} (hint: {hint})", hint = .0.hint())]
    Closed(CloseReason),
    /// The queue pair was destroyed or reset before the work was done.
    #[error("the queue was destroyed or reset before this work was done")]
    Destroyed,
    /// A batch was dropped without being posted, or refused before it came to this work.
    #[error("this work was never posted: its batch was dropped, or refused before it")]
    NotPosted,
    /// More completions than the queue holds: some are lost, and the queue is of no use any more.
    #[error("the completion queue has overflowed: completions were lost; poll more often or create a larger one")]
    Overflowed,
}

impl Error {
    /// Why something could not be created.
    #[doc(hidden)] // for NICs
    pub fn create<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Create { what, source: Box::new(source) }
    }

    /// Why memory could not be registered.
    #[doc(hidden)] // for NICs
    pub fn register<E: std::error::Error + Send + Sync + 'static>(length: usize) -> impl FnOnce(E) -> Error {
        move |source| Error::Register { length, source: Box::new(source) }
    }

    /// Whether it only says that there is nothing yet, and the descriptor was made non-blocking.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Error::System { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
    }
}

/// An argument that makes no sense, and where it was given.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Argument {
    /// The call.
    pub call: &'static str,
    /// What it was given; of a time, the microseconds.
    pub given: u128,
    /// What it may be given.
    pub allowed: &'static str,
    /// Where the program calls it.
    pub at: &'static Location<'static>,
}

impl Argument {
    /// Refuses an argument of the caller's caller.
    #[doc(hidden)] // for NICs
    #[track_caller]
    pub fn refuse(call: &'static str, given: impl Into<u128>, allowed: &'static str) -> Argument {
        Argument { call, given: given.into(), allowed, at: Location::caller() }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Argument { call, given, allowed, at } = self;
        write!(f, "{call}({given}) makes no sense: {allowed} (called at {at})")
    }
}

impl fmt::Debug for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Argument> for Error {
    fn from(argument: Argument) -> Error {
        Error::Argument(argument)
    }
}

impl From<CloseReason> for Error {
    fn from(reason: CloseReason) -> Error {
        Error::Closed(reason)
    }
}

/// The sentence with its hint, and what it comes from where it does not say that itself: a program whose `main`
/// returns an error prints this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.to_string();
        f.write_str(&said)?;
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            let text = cause.to_string();
            if !said.contains(&text) {
                write!(f, "\n  caused by: {text}")?;
                said.push_str(&text);
            }
            source = cause.source();
        }
        Ok(())
    }
}

struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("none") } else { f.write_str(&self.0.join(", ")) }
    }
}

/// Work that was not done, with what had been given for it.
///
/// `?` turns it into an [`Error`] and drops the buffer; a program that wants to try again takes it out first.
pub struct Failed<B> {
    /// Why.
    pub error: Error,
    /// What the NIC gives back.
    pub buffer: B,
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Error {
        failed.error
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

/// How a piece of work ended badly: its status, why, and what to do about it.
#[derive(Clone, PartialEq, Eq)]
#[doc(alias = "ibv_wc_status")]
#[doc(alias = "ibv_wc_status_str")]
#[non_exhaustive]
pub struct CompletionError {
    /// The status C programs know.
    pub status: Status,
    /// What kind of work it was.
    pub work: CompletionKind,
    /// The local queue pair.
    pub qpn: Qpn,
    /// Why, in more detail than the status; always present on our own NIC.
    pub cause: Option<Failure>,
    /// Of work that was flushed: why the queue pair ended.
    reason: Option<Arc<CloseReason>>,
}

/// Whose fault it is, and so what a program can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Class {
    /// This program's work or buffers were wrong. Trying again will not help.
    Local,
    /// The peer refused the request. The two programs disagree about memory or messages.
    Remote,
    /// The peer did not answer. It may be gone, or the network in between.
    Unreachable,
    /// The peer answers but posts no receives.
    NotReady,
    /// The queue pair had ended before; [`CompletionError::reason`] says why.
    Flushed,
    /// The peer, or the NIC, broke the protocol.
    Protocol,
}

impl CompletionError {
    /// How a piece of work ended; `reason` is for work that was flushed.
    #[doc(hidden)] // for NICs
    pub fn new(
        status: Status,
        work: CompletionKind,
        qpn: Qpn,
        cause: Option<Failure>,
        reason: Option<CloseReason>,
    ) -> CompletionError {
        CompletionError { status, work, qpn, cause, reason: reason.map(Arc::new) }
    }

    /// Of work that was flushed: why the queue pair had ended, or its connection.
    pub fn reason(&self) -> Option<&CloseReason> {
        self.reason.as_deref()
    }

    /// Whose fault it is.
    pub fn class(&self) -> Class {
        match self.status {
            Status::LocalLength
            | Status::LocalQpOperation
            | Status::LocalProtection
            | Status::LocalAccess
            | Status::MemoryWindowBind
            | Status::TagOperation
            | Status::RendezvousIncomplete => Class::Local,
            Status::RemoteInvalidRequest | Status::RemoteAccess | Status::RemoteOperation | Status::RemoteAborted => {
                Class::Remote
            }
            Status::RetryExceeded => Class::Unreachable,
            Status::RnrRetryExceeded => Class::NotReady,
            Status::WorkRequestFlushed => Class::Flushed,
            Status::Success | Status::BadResponse | Status::General => Class::Protocol,
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        match self.status {
            Status::Success => "nothing is wrong",
            Status::LocalLength => {
                "post a larger receive buffer, or send less; a datagram needs 40 bytes more for its header"
            }
            Status::LocalQpOperation => "look at the queue pair's attributes: it was not set up for this kind of work",
            Status::LocalProtection => {
                "the buffer was deregistered, or lies in another protection domain than the queue pair"
            }
            Status::WorkRequestFlushed => match self.reason() {
                Some(reason) => reason.hint(),
                None => "the queue pair had ended; its `close_reason` says why",
            },
            Status::MemoryWindowBind => "the region behind the window must grant what the window does",
            Status::BadResponse => "the peer's NIC answered nonsense; record the packets and look at the answer",
            Status::LocalAccess => "a peer's message could not be placed into the receive that was posted for it",
            Status::RemoteInvalidRequest => {
                "the peer found the message too long for its receive buffer, or it allows no such operation"
            }
            Status::RemoteAccess => {
                "check the remote slice: is the region still shared, long enough, with this right, and in the queue pair's protection domain?"
            }
            Status::RemoteOperation => "the peer failed while it carried out the request; its own completions say why",
            Status::RetryExceeded => {
                "is the peer's program still running, its queue pair connected to ours, and UDP port 4791 open on the way?"
            }
            Status::RnrRetryExceeded => "the peer must post more receives, or earlier; or raise the retry count",
            Status::RemoteAborted => "the peer has no such shared receive queue any more",
            Status::General => "this should not happen; please report it with a trace",
            Status::TagOperation => "a message took the tagged buffer before it was deleted",
            Status::RendezvousIncomplete => "read the data of the message and tell its sender when that is done",
        }
    }
}

impl CompletionError {
    /// What happened, without the hint.
    pub(super) fn sentence(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on queue pair {} ended with {}", self.work.name(), self.qpn, self.status)?;
        match (self.reason(), self.cause) {
            (Some(reason), _) => write!(f, ": {reason}"),
            (None, Some(cause)) => write!(f, ": {cause}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sentence(f)?;
        write!(f, " (hint: {})", self.hint())
    }
}

impl fmt::Debug for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for CompletionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.reason().map(|reason| reason as &(dyn std::error::Error + 'static))
    }
}
