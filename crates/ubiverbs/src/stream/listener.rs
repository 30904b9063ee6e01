//! Listeners of streams.

use super::shared::{self, Core, Side};
use super::socket::DEFAULT_BACKLOG;
use super::{RdmaSocket, RdmaStream, ToAddresses};
use crate::lookup;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Listens at an address for peers that want a stream. A peer that asks is connected at once, and waits until the
/// program takes it. Those that wait when the listener is dropped are reset.
///
/// ```
/// use ubiverbs::stream::{RdmaListener, RdmaStream};
///
/// # ubiverbs::block_on(async {
/// let listener = RdmaListener::bind("localhost:0").await?;
/// let address = listener.local_addr()?;
/// let client = RdmaStream::connect(address).await?;
/// let (server, peer) = listener.accept().await?;
/// assert_eq!((client.local_addr()?, client.peer_addr()?), (peer, address));
/// # let _ = server;
/// # Ok::<(), std::io::Error>(()) }).unwrap();
/// ```
#[doc(alias = "rlisten")]
pub struct RdmaListener {
    core: Arc<Core>,
}

impl RdmaListener {
    pub(super) fn of(core: Arc<Core>) -> RdmaListener {
        RdmaListener { core }
    }

    /// Listens. Port 0 is any; `0.0.0.0` is every address, and `[::]` those of both families. Of several addresses of a
    /// name, the first that can be had. [`RdmaSocket`] has more to choose.
    #[doc(alias = "rbind")]
    pub async fn bind(address: impl ToAddresses) -> io::Result<RdmaListener> {
        let found = lookup::addresses(&address);
        drop(address);
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name means no address");
        for address in found.await? {
            let socket = RdmaSocket::new()?;
            match socket.bind(address).and_then(|()| socket.listen(DEFAULT_BACKLOG)) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The next stream, and its peer's address. Cancel-safe: dropping the future loses none.
    #[doc(alias = "raccept")]
    pub async fn accept(&self) -> io::Result<(RdmaStream, SocketAddr)> {
        let socket = self.core.when(Side::Read, |socket| socket.accept()).await?;
        accepted(socket)
    }

    /// The next stream. Of several tasks that poll in this way the last is woken; any number may
    /// [`accept`](RdmaListener::accept).
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<(RdmaStream, SocketAddr)>> {
        self.core.poll(Side::Read, context, |socket| socket.accept()).map(|socket| accepted(socket?))
    }

    /// The next stream; [`WouldBlock`](io::ErrorKind::WouldBlock) if none waits.
    pub fn try_accept(&self) -> io::Result<(RdmaStream, SocketAddr)> {
        accepted(self.core.socket().accept()?)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.local_addr()
    }
}

fn accepted(socket: Arc<sockets::Socket>) -> io::Result<(RdmaStream, SocketAddr)> {
    let core = Core::new(socket);
    let peer = core.peer_addr()?;
    Ok((RdmaStream::of(core), peer))
}

impl fmt::Debug for RdmaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shared::show(f, "RdmaListener", &self.core)
    }
}
