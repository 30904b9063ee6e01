//! The connection manager: connect by IP address and port.
//!
//! Two levels. The **easy** one has connections and listeners, in the manner of sockets. Each call returns a
//! [`Pending`]: await it with any executor, or `wait` for it. It goes on whether or not anybody polls it, and dropping
//! it gives the attempt up and leaves nothing behind.
//!
//! ```
//! use ubiverbs::cm;
//!
//! let listener = cm::Listener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr();
//! let server = std::thread::spawn(move || {
//!     let connection = listener.accept().wait()?;
//!     let message = connection.recv(connection.pd().allocate(64)?)?.wait()?;
//!     connection.closed().wait()?;
//!     Ok::<_, ubiverbs::Error>(message.payload().to_vec())
//! });
//!
//! let connection = cm::connect(address).wait()?;
//! connection.send_inline(b"hello")?.wait()?;
//! connection.disconnect().wait()?;
//! assert_eq!(server.join().unwrap()?, b"hello");
//! # Ok::<(), ubiverbs::Error>(())
//! ```
//!
//! | to | call |
//! |---|---|
//! | connect, with a queue pair of the usual kind | [`connect`] |
//! | connect with one's own, or with private data | [`resolve`], then [`Route::connect`] |
//! | listen | [`Listener::bind`], then [`accept`](Listener::accept), or [`next`](Listener::next) and decide |
//! | find a service of datagrams, or be one | [`resolve_as`] and [`Route::find_service`]; a `Listener<Datagram>` |
//! | send to a group | [`join`] |
//!
//! Ports are those of RDMA (`RDMA_PS_TCP`, `RDMA_PS_UDP`), and have nothing to do with the sockets of the system: a
//! program may listen at the same number with both.
//!
//! The **full** level is what the other is made of: an [`Id`] for each endpoint, an [`EventChannel`] with a descriptor,
//! an [`Event`] for everything that happens, and queue pairs that the program moves itself. It has the calls of
//! librdmacm in their order; the search of this documentation finds them by their C names.

mod channel;
mod connection;
mod datagram;
mod deferred;
mod handshake;
mod hub;
mod id;
mod listener;
mod pending;
mod route;

pub use channel::{Event, EventChannel, NextEvent};
pub use connection::Connection;
pub use datagram::{Membership, Service, join};
pub use handshake::Handshake;
pub use id::Id;
pub use listener::{Listener, Request};
pub use pending::Pending;
pub use route::{Route, connect, resolve, resolve_as, resolve_from};
#[doc(inline)]
pub use seam::ConnectError;

/// The key of datagrams between queue pairs that the connection manager introduced, and of groups.
pub use hca::cm::UDP_QKEY as QKEY;
/// The vocabulary of the connection manager, shared with the layers below.
pub use hca::cm::{Body, ConnectParameters, ConnectionBody, DatagramBody, EventKind, IdOption};
pub use wire::cm::{PortSpace, RejectReason};
