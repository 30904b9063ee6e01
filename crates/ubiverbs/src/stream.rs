//! Streams of bytes over RDMA, in the manner of TCP: [`RdmaListener`], [`RdmaStream`], and [`blocking`] ones.
//!
//! ```
//! use ubiverbs::stream::{RdmaListener, RdmaStream};
//!
//! # ubiverbs::block_on(async {
//! let listener = RdmaListener::bind("127.0.0.1:0").await?;
//! let client = RdmaStream::connect(listener.local_addr()?).await?;
//! let (server, _) = listener.accept().await?;
//!
//! client.write_all(b"hello").await?;
//! client.shutdown().await?;
//! let mut buffer = [0; 64];
//! let length = server.read(&mut buffer).await?;
//! assert_eq!(&buffer[..length], b"hello");
//! assert_eq!(server.read(&mut buffer).await?, 0, "the client sends no more");
//! # Ok::<(), std::io::Error>(()) }).unwrap();
//! ```
//!
//! # With whom it talks
//!
//! The protocol is that of rdma-core's `rsocket(7)`, and the implementation is the one that the C library's `rsocket`
//! has. So the peer may be another Rust program, a C program with `rsocket` on any implementation, or an ordinary
//! program of sockets under `ubiverbs run --sockets`. The sender writes into the receiver's buffer by RDMA WRITE, and
//! never more than the receiver has lent: no message ever finds its receiver not ready (RNR). A reader that is slow
//! stops the writer, as with TCP. Ports are those of the connection manager (`RDMA_PS_TCP`), not the kernel's.
//!
//! # With which runtime
//!
//! With any, or with none: [`block_on`](crate::block_on). Tasks are woken by the NIC's own thread. The methods here
//! take `&self`, so a stream in an [`Arc`] may be read and written by several tasks.
//!
//! | feature | [`RdmaStream`] and its halves are | [`RdmaListener::incoming`] and others are |
//! |---|---|---|
//! | `tokio` | `tokio::io::AsyncRead`, `AsyncWrite` | |
//! | `futures` | `futures_io::AsyncRead`, `AsyncWrite` | `futures_core::Stream` |
//!
//! # Cancelling
//!
//! Reads and single writes are cancel-safe: a future that is dropped before it is ready has taken nothing from the
//! stream and has put nothing into it. `read_exact` and `write_all` are not, as everywhere: they may have done a part.
//! `connect` that is dropped gives up the attempt, and `accept` that is dropped loses no connection.
//!
//! # How a stream ends
//!
//! | what happens | reader | writer |
//! |---|---|---|
//! | the peer shuts down, or drops its stream | what was sent, then 0 | after a drop: [`ConnectionReset`] |
//! | the peer is killed, exits without closing, or breaks the rules | what has come, then [`ConnectionReset`] each time | [`ConnectionReset`] |
//! | the peer's host does not answer any more | what has come, then [`TimedOut`] | [`TimedOut`] |
//! | this program has shut down | as before | [`BrokenPipe`] |
//! | `read_exact` meets the end | [`UnexpectedEof`] | |
//! | nobody listens there | `connect`: [`ConnectionRefused`] | |
//! | nobody answers | `connect`: [`TimedOut`] | |
//!
//! Where TCP would show the end of a stream to the reader though its writer was killed, this is an error: bytes that
//! were still in the dead program's buffers are gone, and half a message is not mistaken for a whole one.
//!
//! [`shutdown`](RdmaStream::shutdown) waits until everything has arrived in the peer's memory. Dropping a stream waits
//! for nothing; what was written is sent meanwhile, also if the process ends in good order.
//!
//! [`ConnectionReset`]: std::io::ErrorKind::ConnectionReset
//! [`TimedOut`]: std::io::ErrorKind::TimedOut
//! [`BrokenPipe`]: std::io::ErrorKind::BrokenPipe
//! [`UnexpectedEof`]: std::io::ErrorKind::UnexpectedEof
//! [`ConnectionRefused`]: std::io::ErrorKind::ConnectionRefused

pub mod blocking;
/// `AsyncWrite` of tokio or of `futures`, which differ in the name of the call that ends a stream, and in that tokio asks
/// whether several pieces are written at once.
#[cfg(any(feature = "tokio", feature = "futures"))]
macro_rules! async_write {
    ($kind:ty, $close:ident $(, $takes_pieces:ident)?) => {
        impl AsyncWrite for $kind {
            fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                self.core.poll_write(context, &[bytes])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.core.poll_write_vectored(context, pieces)
            }

            $(fn $takes_pieces(&self) -> bool {
                true
            })?

            /// Nothing to do: what is written is on its way.
            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn $close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.core.poll_shutdown(context)
            }
        }
    };
}

mod error;
#[cfg(feature = "futures")]
mod futures_traits;
mod halves;
mod listener;
mod shared;
mod socket;
#[cfg(feature = "tokio")]
mod tokio_traits;

pub use crate::lookup::ToAddresses;
#[cfg(feature = "futures")]
pub use futures_traits::Incoming;
pub use halves::{OwnedReadHalf, OwnedWriteHalf, ReuniteError};
pub use listener::RdmaListener;
pub use socket::RdmaSocket;

use crate::{lookup, timer};
use shared::{Core, Side};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A stream of bytes to a peer. [The module](self) says how it behaves.
#[doc(alias = "rsocket")]
pub struct RdmaStream {
    core: Arc<Core>,
}

impl RdmaStream {
    fn of(core: Arc<Core>) -> RdmaStream {
        RdmaStream { core }
    }

    /// Connects to a peer. Of several addresses of a name, the first that accepts; if none does, why the last did not.
    /// A name is looked up in a thread of its own. Dropping the future gives the attempt up.
    #[doc(alias = "rconnect")]
    pub async fn connect(to: impl ToAddresses) -> io::Result<RdmaStream> {
        let found = lookup::addresses(&to);
        drop(to);
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name means no address");
        for address in found.await? {
            match RdmaSocket::new()?.connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects to a peer, and fails as [`TimedOut`](io::ErrorKind::TimedOut) if it takes longer than `limit`. Needs no
    /// runtime.
    pub async fn connect_timeout(to: impl ToAddresses, limit: Duration) -> io::Result<RdmaStream> {
        timer::within(limit, RdmaStream::connect(to)).await.unwrap_or_else(|| Err(error::too_late()))
    }

    /// Reads what is there, as much as fits; waits if there is nothing. 0 is the end of the stream. Cancel-safe.
    #[doc(alias = "rrecv")]
    pub async fn read(&self, mut into: &mut [u8]) -> io::Result<usize> {
        self.core.read(&mut into, false).await
    }

    /// Fills the buffer; [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the stream ends before. Not cancel-safe.
    pub async fn read_exact(&self, into: &mut [u8]) -> io::Result<()> {
        self.core.read_exact(into).await
    }

    /// Reads what is there and leaves it there; waits if there is nothing. Cancel-safe.
    pub async fn peek(&self, mut into: &mut [u8]) -> io::Result<usize> {
        self.core.read(&mut into, true).await
    }

    /// Reads what is there; [`WouldBlock`](io::ErrorKind::WouldBlock) if there is nothing.
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.core.try_read(into)
    }

    /// Writes as much as there is room for, and returns how much that was; waits if there is no room. Cancel-safe.
    #[doc(alias = "rsend")]
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.write(&[bytes]).await
    }

    /// Writes everything. Not cancel-safe.
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.core.write_all(bytes).await
    }

    /// Writes as much of several pieces as there is room for, as if they were one. Cancel-safe.
    #[doc(alias = "rwritev")]
    pub async fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.core.write_vectored(pieces).await
    }

    /// Writes as much as there is room for; [`WouldBlock`](io::ErrorKind::WouldBlock) if there is none.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.write_now(&[bytes])
    }

    /// Writes no more, which the peer hears after everything that was written. Waits until all of that has arrived in
    /// the peer's memory. Reading goes on. Cancel-safe.
    #[doc(alias = "rshutdown")]
    pub async fn shutdown(&self) -> io::Result<()> {
        self.core.shutdown().await
    }

    /// Until a read would not wait. Cancel-safe.
    pub async fn readable(&self) -> io::Result<()> {
        self.core.ready(Side::Read).await
    }

    /// Until a write would not wait. Cancel-safe.
    pub async fn writable(&self) -> io::Result<()> {
        self.core.ready(Side::Write).await
    }

    /// Ends it at once: what has not been sent is lost, and the peer's reader hears
    /// [`ConnectionReset`](io::ErrorKind::ConnectionReset).
    #[doc(alias = "SO_LINGER")]
    pub fn abort(self) {
        self.core.socket().abort();
    }

    /// The own address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.local_addr()
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.core.peer_addr()
    }

    /// Sends something to an idle peer each time so long has passed, so that one that is gone is noticed. `None`, as at
    /// first, is never.
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(&self, every: Option<Duration>) {
        self.core.socket().keep_alive(every);
    }

    /// A half to read and a half to write, for two tasks. Dropping the one to write shuts the stream down.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        halves::split(self.core)
    }

    /// This stream for blocking calls.
    pub fn into_blocking(self) -> blocking::RdmaStream {
        self.into()
    }
}

impl fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shared::show(f, "RdmaStream", &self.core)
    }
}
