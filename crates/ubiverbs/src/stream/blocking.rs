//! Streams for threads that wait: [`std::io::Read`] and [`std::io::Write`], with the names of `std::net`.
//!
//! ```
//! use std::io::{Read, Write};
//! use ubiverbs::stream::blocking::{RdmaListener, RdmaStream};
//!
//! let listener = RdmaListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let server = std::thread::spawn(move || {
//!     let (mut stream, _) = listener.accept()?;
//!     let mut said = String::new();
//!     stream.read_to_string(&mut said)?;
//!     Ok::<_, std::io::Error>(said)
//! });
//!
//! let mut stream = RdmaStream::connect(address)?;
//! stream.write_all(b"hello")?;
//! drop(stream);
//! assert_eq!(server.join().unwrap()?, "hello");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A thread that waits drives the NIC meanwhile: it looks for some ten microseconds, and then sleeps.

use super::ToAddresses;
use super::shared::{self, Core};
use crate::block_on::{block_on, block_on_for};
use latch::lock;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A stream of bytes to a peer, for threads that wait. [The module above](super) says how it behaves. Dropping the last
/// handle waits up to two seconds until what was written has arrived; the rest is sent without it.
#[doc(alias = "rsocket")]
pub struct RdmaStream {
    core: Arc<Core>,
    limits: Arc<Limits>,
}

/// How long calls wait at most.
#[derive(Debug, Default)]
struct Limits {
    read: Mutex<Option<Duration>>,
    write: Mutex<Option<Duration>>,
}

impl RdmaStream {
    /// Connects to a peer. Of several addresses of a name, the first that accepts.
    pub fn connect(to: impl ToAddresses) -> io::Result<RdmaStream> {
        block_on(super::RdmaStream::connect(to)).map(RdmaStream::from)
    }

    /// Connects to a peer; [`TimedOut`](io::ErrorKind::TimedOut) if it takes longer than `limit`.
    pub fn connect_timeout(to: impl ToAddresses, limit: Duration) -> io::Result<RdmaStream> {
        let connected = block_on_for(pin!(super::RdmaStream::connect(to)), limit);
        connected.unwrap_or_else(|| Err(super::error::too_late())).map(RdmaStream::from)
    }

    /// Another handle of the same stream.
    pub fn try_clone(&self) -> io::Result<RdmaStream> {
        Ok(RdmaStream { core: Arc::clone(&self.core), limits: Arc::clone(&self.limits) })
    }

    /// Reads wait no longer than this: then they fail as [`WouldBlock`](io::ErrorKind::WouldBlock), as those of
    /// `std::net` do. `None`, as at first, is for ever; zero is refused.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        set(&self.limits.read, limit)
    }

    /// Writes wait no longer than this, as [`set_read_timeout`](RdmaStream::set_read_timeout) has it for reads.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        set(&self.limits.write, limit)
    }

    /// How long reads wait at most.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(*lock(&self.limits.read))
    }

    /// How long writes wait at most.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(*lock(&self.limits.write))
    }

    /// Reads what is there and leaves it there.
    pub fn peek(&self, mut into: &mut [u8]) -> io::Result<usize> {
        wait(&self.limits.read, self.core.read(&mut into, true))
    }

    /// Ends a direction, or both. The peer hears of the end after everything that was written; the call waits until all
    /// of that has arrived.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            let which = if how == Shutdown::Read { sockets::Shutdown::Read } else { sockets::Shutdown::Both };
            self.core.socket().shutdown(which)?;
        }
        match how {
            Shutdown::Read => Ok(()),
            _ => wait(&self.limits.write, self.core.shutdown()),
        }
    }

    /// The own address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.local_addr()
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.core.peer_addr()
    }

    /// This stream for tasks. Handles that [`try_clone`](RdmaStream::try_clone) made stay what they are.
    pub fn into_async(self) -> super::RdmaStream {
        self.core.patient.store(false, Ordering::Relaxed);
        super::RdmaStream::of(self.core)
    }
}

fn set(place: &Mutex<Option<Duration>>, limit: Option<Duration>) -> io::Result<()> {
    if limit == Some(Duration::ZERO) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a time limit of zero; None is no limit"));
    }
    *lock(place) = limit;
    Ok(())
}

/// Waits for something of a stream, as long as its program wants.
fn wait<R>(limit: &Mutex<Option<Duration>>, future: impl Future<Output = io::Result<R>>) -> io::Result<R> {
    let limit = *lock(limit);
    match limit {
        None => block_on(future),
        Some(limit) => block_on_for(pin!(future), limit).unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into())),
    }
}

impl From<super::RdmaStream> for RdmaStream {
    fn from(stream: super::RdmaStream) -> RdmaStream {
        stream.core.patient.store(true, Ordering::Relaxed);
        RdmaStream { core: stream.core, limits: Arc::default() }
    }
}

impl Read for &RdmaStream {
    fn read(&mut self, mut into: &mut [u8]) -> io::Result<usize> {
        wait(&self.limits.read, self.core.read(&mut into, false))
    }
}

impl Write for &RdmaStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        wait(&self.limits.write, self.core.write(&[bytes]))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        wait(&self.limits.write, self.core.write_vectored(pieces))
    }

    /// Nothing to do: what is written is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for RdmaStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for RdmaStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(pieces)
    }

    /// Nothing to do: what is written is on its way.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for RdmaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shared::show(f, "RdmaStream", &self.core)
    }
}

/// Listens at an address for peers that want a stream, for threads that wait.
#[derive(Debug)]
pub struct RdmaListener {
    listener: super::RdmaListener,
}

impl RdmaListener {
    /// Listens. Port 0 is any; `0.0.0.0` is every address, and `[::]` those of both families.
    pub fn bind(address: impl ToAddresses) -> io::Result<RdmaListener> {
        block_on(super::RdmaListener::bind(address)).map(RdmaListener::from)
    }

    /// Waits for the next stream.
    pub fn accept(&self) -> io::Result<(RdmaStream, SocketAddr)> {
        block_on(self.listener.accept()).map(|(stream, peer)| (stream.into(), peer))
    }

    /// The streams that come, one after the other, for ever.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<RdmaStream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// This listener for tasks.
    pub fn into_async(self) -> super::RdmaListener {
        self.listener
    }
}

impl From<super::RdmaListener> for RdmaListener {
    fn from(listener: super::RdmaListener) -> RdmaListener {
        RdmaListener { listener }
    }
}
