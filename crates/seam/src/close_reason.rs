//! Why a connection, or a queue pair, came to its end.

use super::CompletionError;
use std::fmt;
use std::io;
use transport::{Failure, Status, Stop};
use wire::Qpn;

/// Why a connection ended: what `closed` of a connection returns, and what work that was flushed says
/// ([`CompletionError::reason`]). A queue pair that no connection manager connected has one too:
/// `QueuePair::close_reason`.
///
/// ```
/// use ubiverbs::{CloseReason, Error, cm};
///
/// let listener = cm::Listener::bind("127.0.0.1:0")?;
/// let client = cm::connect(listener.local_addr());
/// let server = listener.accept().wait()?;
/// let client = client.wait()?;
/// let receiving = server.recv(server.pd().allocate(64)?)?;
///
/// client.disconnect_with(b"that is all").wait()?;
/// assert_eq!(client.closed().wait()?, CloseReason::LocalClose);
/// let CloseReason::PeerDisconnected { private_data } = server.closed().wait()? else { panic!() };
/// assert!(private_data.starts_with(b"that is all"));
///
/// // What was not done says the same.
/// let Error::Completion(error) = receiving.wait().unwrap_err().error else { panic!() };
/// assert!(matches!(error.reason(), Some(CloseReason::PeerDisconnected { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer's program ended the connection, or dropped it.
    PeerDisconnected {
        /// What it had to say, filled up with zeros; empty if that is nothing.
        private_data: Vec<u8>,
    },
    /// The peer's process has ended without disconnecting: it returned, crashed or was killed. Or it does not have the
    /// connection any more, as after a restart of its host. Where nobody is left who could tell, work that is not
    /// answered says so: [`Failed`](CloseReason::Failed).
    PeerDied,
    /// This program ended it.
    LocalClose,
    /// Work of this program failed, with this as the first of its errors.
    Failed(CompletionError),
    /// The peer asked for memory that it may not touch, or for what makes no sense. It was told so, and no work of
    /// this program failed.
    PeerFault {
        /// What was wrong.
        cause: Failure,
    },
    /// The device is gone: its network interface was removed.
    DeviceGone,
}

impl CloseReason {
    /// Its kind among the errors of sockets.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            CloseReason::PeerDisconnected { .. } | CloseReason::PeerDied => io::ErrorKind::ConnectionReset,
            CloseReason::LocalClose => io::ErrorKind::NotConnected,
            CloseReason::Failed(error) if error.status == Status::RetryExceeded => io::ErrorKind::TimedOut,
            CloseReason::Failed(_) | CloseReason::PeerFault { .. } => io::ErrorKind::ConnectionAborted,
            CloseReason::DeviceGone => io::ErrorKind::NetworkDown,
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            CloseReason::PeerDisconnected { .. } => {
                "the peer was done, or wanted no more; connect again if you are not"
            }
            CloseReason::PeerDied => "see what became of the peer's program; connect again when it runs",
            CloseReason::LocalClose => "wait for the work before the connection is closed",
            CloseReason::Failed(error) => error.hint(),
            CloseReason::PeerFault { .. } => {
                "the peer has an old or a wrong remote slice, or was given fewer rights than it uses"
            }
            CloseReason::DeviceGone => "the network interface was removed; connect again over another",
        }
    }

    /// The reason that the NIC gives.
    #[doc(hidden)] // for NICs
    pub fn of(stop: Stop, qpn: Qpn) -> CloseReason {
        match stop {
            Stop::Work { cause: Failure::PeerGone { .. }, .. } => CloseReason::PeerDied,
            Stop::Work { kind, status, cause } => {
                CloseReason::Failed(CompletionError::new(status, kind, qpn, Some(cause), None))
            }
            Stop::PeerRequest { cause } => CloseReason::PeerFault { cause },
            _ => CloseReason::LocalClose,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::PeerDisconnected { .. } => f.write_str("the peer disconnected"),
            CloseReason::PeerDied => f.write_str("the peer's process has ended"),
            CloseReason::LocalClose => f.write_str("this program closed the connection"),
            CloseReason::Failed(error) => error.sentence(f),
            CloseReason::PeerFault { cause } => write!(f, "the peer asked for what it cannot have: {cause}"),
            CloseReason::DeviceGone => f.write_str("the device is gone"),
        }
    }
}

/// The sentence, for a program whose `main` returns it.
impl fmt::Debug for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} (hint: {})", self.hint())
    }
}

impl std::error::Error for CloseReason {}
