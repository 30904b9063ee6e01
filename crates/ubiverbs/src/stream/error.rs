//! Errors of streams, of the kinds that a user of TCP expects.

use seam::{ConnectError, environment};
use sockets::{Broken, Error};
use std::io;
use std::net::SocketAddr;

/// The connection is gone; [`broken`] says why. Never seen by a program.
pub(super) const BROKEN_CONNECTION: Error = Error::NOT_CONNECTED;

/// Why a connection is gone that nobody has closed.
pub(super) fn broken(why: Broken) -> io::Error {
    let (kind, words) = match why {
        Broken::Reset => {
            (io::ErrorKind::ConnectionReset, "the peer went away without closing the stream, or broke its rules")
        }
        Broken::NoAnswer => (io::ErrorKind::TimedOut, "the peer does not answer any more"),
        Broken::DeviceGone => (io::ErrorKind::NetworkDown, "the device of the stream is gone"),
    };
    io::Error::new(kind, words)
}

/// Why there is no connection to a peer.
pub(super) fn connecting(to: SocketAddr, error: Error) -> io::Error {
    let plain = io::Error::from(error);
    let why = match plain.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::NobodyListens { at: to },
        io::ErrorKind::TimedOut => ConnectError::TimedOut { to },
        _ => return plain,
    };
    io::Error::new(why.kind(), why)
}

/// A call that took longer than its program wanted to wait for a connection.
pub(super) fn too_late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the connection did not stand in the time that was given for it")
}

/// Streams reach the NIC of the process by their own way: a party of a simulation has none.
pub(super) fn not_simulated() -> io::Result<()> {
    match environment::current() {
        None => Ok(()),
        Some(_) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "a party of a simulation cannot use streams; use `cm`"))
        }
    }
}
