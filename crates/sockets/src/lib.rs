//! Sockets over RDMA: the protocol of [`rsocket`] on queue pairs of the software NIC. [`Socket`] is a stream, in the
//! manner of TCP; it knows nothing of descriptors, which are the C library's. Calls here never sleep: what cannot be
//! done yet is [`Error::WOULD_BLOCK`], and a caller that wants to wait does so with [`Socket::begin_wait`].
//!
//! # Who does the work
//!
//! No thread belongs to a socket. A caller takes completions itself; what the connection manager has to say is
//! handled by the thread that hears of it, be it the NIC's engine. A socket that is locked then is left to the lock's
//! holder, who looks again when it lets go: no thread waits for another one's lock in the middle of the NIC.
#![deny(unsafe_code)]

mod accept;
mod connect;
mod datagram;
mod datagram_pair;
mod deferred_tasks;
mod endpoint;
mod error;
mod events;
mod iomap;
mod keep_alive;
mod report;
mod settings;
mod shutdown;
mod socket;
mod transfer;
mod wait;

pub use datagram::{Datagram, MAX_DATAGRAM};
pub use error::Error;
pub use events::nothing_lingers;
pub use iomap::LentMemory;
pub use rsocket::{Shutdown, Sizes};
pub use settings::Settings;
pub use shutdown::Broken;
pub use socket::{Readiness, Socket, SocketOption};
pub use transfer::{Receive, Scatter, Slices};
pub use wait::{Gathering, ShortWaits, Wait, Waitable, Waiter, Waiters};

/// The largest number of I/O mappings that the protocol can say, up to this.
pub fn io_mappings(count: u32) -> u16 {
    rsocket::scale_to_value(rsocket::value_to_scale(count))
}
