//! Two owned halves of a stream, for two tasks.

use super::RdmaStream;
use super::shared::{self, Core};
use std::fmt;
use std::io::{self, IoSlice};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::refuse_if;

/// The half of a stream that reads. Made by [`RdmaStream::into_split`].
pub struct OwnedReadHalf {
    pub(super) core: Arc<Core>,
}

/// The half of a stream that writes. Made by [`RdmaStream::into_split`]. Dropping it shuts the stream down: the peer
/// reads what was written, then the end.
pub struct OwnedWriteHalf {
    pub(super) core: Arc<Core>,
    shuts_down: bool,
}

pub(super) fn split(core: Arc<Core>) -> (OwnedReadHalf, OwnedWriteHalf) {
    (OwnedReadHalf { core: Arc::clone(&core) }, OwnedWriteHalf { core, shuts_down: true })
}

impl OwnedReadHalf {
    /// As [`RdmaStream::read`].
    pub async fn read(&self, mut into: &mut [u8]) -> io::Result<usize> {
        self.core.read(&mut into, false).await
    }

    /// As [`RdmaStream::read_exact`].
    pub async fn read_exact(&self, into: &mut [u8]) -> io::Result<()> {
        self.core.read_exact(into).await
    }

    /// As [`RdmaStream::peek`].
    pub async fn peek(&self, mut into: &mut [u8]) -> io::Result<usize> {
        self.core.read(&mut into, true).await
    }

    /// As [`RdmaStream::try_read`].
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        self.core.try_read(into)
    }

    /// The own address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.local_addr()
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.core.peer_addr()
    }

    /// The stream, of its two halves. Halves of different streams are given back.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<RdmaStream, ReuniteError> {
        refuse_if!(!Arc::ptr_eq(&self.core, &other.core), ReuniteError(self, other));
        other.forget();
        Ok(RdmaStream { core: self.core })
    }
}

impl OwnedWriteHalf {
    /// As [`RdmaStream::write`].
    pub async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.write(&[bytes]).await
    }

    /// As [`RdmaStream::write_all`].
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.core.write_all(bytes).await
    }

    /// As [`RdmaStream::write_vectored`].
    pub async fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.core.write_vectored(pieces).await
    }

    /// As [`RdmaStream::try_write`].
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.write_now(&[bytes])
    }

    /// As [`RdmaStream::shutdown`].
    pub async fn shutdown(&self) -> io::Result<()> {
        self.core.shutdown().await
    }

    /// Drops it, and the stream goes on: the other half may still read.
    pub fn forget(mut self) {
        self.shuts_down = false;
    }

    /// The own address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.local_addr()
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.core.peer_addr()
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if mem::take(&mut self.shuts_down) {
            let _ = self.core.socket().shutdown(sockets::Shutdown::Write);
        }
    }
}

/// Two halves that are not of one stream.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("these halves are not of one stream")
    }
}

impl std::error::Error for ReuniteError {}

impl fmt::Debug for OwnedReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shared::show(f, "OwnedReadHalf", &self.core)
    }
}

impl fmt::Debug for OwnedWriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shared::show(f, "OwnedWriteHalf", &self.core)
    }
}
