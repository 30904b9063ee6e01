//! Why two programs did not find together, with what a person can do about it.

use cm::IdError;
use cm::id::EventKind;
use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use wire::cm::RejectReason;

/// What went wrong with connecting, listening or joining.
#[non_exhaustive]
pub enum ConnectError {
    /// The peer's host answers, but nobody listens at that port.
    NobodyListens {
        /// Where.
        at: SocketAddr,
    },
    /// The peer does not want to.
    Rejected {
        /// Who.
        by: SocketAddr,
        /// Why.
        reason: RejectReason,
        /// What its program said, filled up with zeros.
        private_data: Vec<u8>,
    },
    /// Nobody answered.
    TimedOut {
        /// Who was asked.
        to: SocketAddr,
    },
    /// The peer went away before the connection stood.
    Gone {
        /// Who.
        peer: SocketAddr,
    },
    /// The host knows no way to the peer.
    NoRoute {
        /// Where to.
        to: IpAddr,
        /// What the system said.
        source: io::Error,
    },
    /// An address of this host that no device has.
    NoDevice {
        /// Which.
        address: IpAddr,
    },
    /// Not an address of this host.
    NotLocal {
        /// Which.
        address: IpAddr,
    },
    /// Another socket or id has the address and port.
    InUse {
        /// What.
        what: String,
    },
    /// A name that means no address.
    Name {
        /// What the system said.
        source: io::Error,
    },
    /// More private data than the message has room for.
    PrivateData {
        /// How much was given.
        length: usize,
        /// How much there is room for.
        room: usize,
    },
    /// The queue pair's Q_Key is not that of the group, so it would hear nothing.
    GroupKey,
    /// Not at this point of an id's life.
    State {
        /// What was refused, and where the id is.
        what: String,
    },
    /// The call makes no sense with these arguments.
    Refused {
        /// What was refused, and why.
        what: String,
    },
    /// Something happened that does not belong here.
    Unexpected {
        /// What.
        event: EventKind,
        /// Its status.
        status: i32,
    },
}

impl From<IdError> for ConnectError {
    fn from(error: IdError) -> ConnectError {
        let what = error.to_string();
        match error {
            IdError::NotLocal(address) => ConnectError::NotLocal { address },
            IdError::PrivateData { length, room } => ConnectError::PrivateData { length, room },
            IdError::State { .. } => ConnectError::State { what },
            IdError::InUse { .. } => ConnectError::InUse { what },
            _ => ConnectError::Refused { what },
        }
    }
}

impl ConnectError {
    /// What a person can do about it; empty if the message says it all.
    pub fn hint(&self) -> &'static str {
        match self {
            ConnectError::NobodyListens { .. } => {
                "is the server running, and is this its port? RDMA ports are not TCP's"
            }
            ConnectError::Rejected { reason: RejectReason::Consumer, .. } => {
                "the peer's program refused; its private data may say why"
            }
            ConnectError::Rejected { reason: RejectReason::StaleConnection, .. } => {
                "the peer still has an old connection of this queue pair; try again with a new one"
            }
            ConnectError::Rejected { reason: RejectReason::InvalidTransport, .. } => {
                "the listener serves another transport: reliable, unreliable and datagrams do not mix"
            }
            ConnectError::Rejected { .. } => "the peer's connection manager refused; its log may say more",
            ConnectError::TimedOut { .. } => {
                "does a program with RDMA run on that host, and is UDP port 4791 open on the way?"
            }
            ConnectError::Gone { .. } => "the peer gave up, or its program ended; ask again",
            ConnectError::NoRoute { .. } => "check the address, and the host's routes",
            ConnectError::NoDevice { .. } => "no device has this address: `ubiverbs devices` lists those there are",
            ConnectError::NotLocal { .. } => "bind to an address of this host, or to 0.0.0.0 or [::] for all of them",
            ConnectError::InUse { .. } => "choose another port, or 0 for any",
            ConnectError::PrivateData { .. } => "send the rest as a message when the connection stands",
            ConnectError::GroupKey => "make the queue pair with `.qkey(cm::QKEY)`",
            _ => "",
        }
    }

    /// Its kind among the errors of sockets.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            ConnectError::NobodyListens { .. } | ConnectError::Rejected { .. } => io::ErrorKind::ConnectionRefused,
            ConnectError::TimedOut { .. } => io::ErrorKind::TimedOut,
            ConnectError::Gone { .. } => io::ErrorKind::ConnectionAborted,
            ConnectError::NoRoute { source, .. } | ConnectError::Name { source } => source.kind(),
            ConnectError::NoDevice { .. } | ConnectError::NotLocal { .. } => io::ErrorKind::AddrNotAvailable,
            ConnectError::InUse { .. } => io::ErrorKind::AddrInUse,
            ConnectError::PrivateData { .. }
            | ConnectError::GroupKey
            | ConnectError::State { .. }
            | ConnectError::Refused { .. } => io::ErrorKind::InvalidInput,
            ConnectError::Unexpected { .. } => io::ErrorKind::Other,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::NobodyListens { at } => write!(f, "connection refused: nobody listens at {at}")?,
            ConnectError::Rejected { by, reason, .. } => write!(f, "connection refused by {by}: {reason}")?,
            ConnectError::TimedOut { to } => write!(f, "no answer from {to}")?,
            ConnectError::Gone { peer } => write!(f, "{peer} went away before the connection stood")?,
            ConnectError::NoRoute { to, source } => write!(f, "no route to {to}: {source}")?,
            ConnectError::NoDevice { address } => write!(f, "{address} belongs to no device of this host")?,
            ConnectError::NotLocal { address } => write!(f, "{address} is not an address of this host")?,
            ConnectError::InUse { what } | ConnectError::State { what } | ConnectError::Refused { what } => {
                f.write_str(what)?
            }
            ConnectError::Name { source } => write!(f, "the name means no address: {source}")?,
            ConnectError::PrivateData { length, room } => {
                write!(f, "{length} bytes of private data; the message has room for {room}")?
            }
            ConnectError::GroupKey => f.write_str("the queue pair's Q_Key is not that of groups")?,
            ConnectError::Unexpected { event, status } => write!(f, "unexpected event {event:?}, status {status}")?,
        }
        match self.hint() {
            "" => Ok(()),
            hint => write!(f, " (hint: {hint})"),
        }
    }
}

/// The sentence and the hint, for a program whose `main` returns it.
impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ConnectError::NoRoute { source, .. } | ConnectError::Name { source } => Some(source),
            _ => None,
        }
    }
}
