//! A socket before it is a stream or a listener: where sizes and addresses are chosen.

use super::error;
use super::shared::{Core, Side};
use super::{RdmaListener, RdmaStream};
use sockets::{Error, Socket};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How many connections wait for the program to take them, unless it says otherwise.
pub(super) const DEFAULT_BACKLOG: u32 = 1024;

/// A socket that is neither connected nor listens: for what must be chosen before.
///
/// ```
/// use ubiverbs::stream::RdmaSocket;
///
/// # ubiverbs::block_on(async {
/// let socket = RdmaSocket::new()?;
/// socket.set_receive_buffer_size(1 << 20)?;
/// socket.bind("127.0.0.1:0".parse().unwrap())?;
/// let listener = socket.listen(16)?;
/// # let _ = listener.local_addr()?;
/// # Ok::<(), std::io::Error>(()) }).unwrap();
/// ```
pub struct RdmaSocket {
    core: Arc<Core>,
}

impl RdmaSocket {
    /// A fresh one, with the sizes of `/etc/rdma/rsocket`, or the usual ones.
    pub fn new() -> io::Result<RdmaSocket> {
        super::error::not_simulated()?;
        Ok(RdmaSocket { core: Core::new(Socket::new()?) })
    }

    /// Bytes that may be on their way to the peer.
    #[doc(alias = "SO_SNDBUF")]
    pub fn set_send_buffer_size(&self, bytes: u32) -> io::Result<()> {
        Ok(self.core.socket().set_sizes(|sizes| sizes.send_buffer = bytes.max(1))?)
    }

    /// Bytes that the peer may send before the program reads. A stream that is accepted has that of its listener.
    #[doc(alias = "SO_RCVBUF")]
    pub fn set_receive_buffer_size(&self, bytes: u32) -> io::Result<()> {
        Ok(self.core.socket().set_sizes(|sizes| sizes.receive_buffer = bytes.max(1))?)
    }

    /// How many bytes may be on their way to the peer.
    pub fn send_buffer_size(&self) -> u32 {
        self.core.socket().sizes().send_buffer
    }

    /// How many bytes the peer may send before the program reads.
    pub fn receive_buffer_size(&self) -> u32 {
        self.core.socket().sizes().receive_buffer
    }

    /// Takes an address of this host; port 0 is any.
    pub fn bind(&self, address: SocketAddr) -> io::Result<()> {
        Ok(self.core.socket().bind(address)?)
    }

    /// The address that it has taken.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.local_addr()
    }

    /// Listens. So many connections at least may wait for the program to accept them; more are refused.
    pub fn listen(self, backlog: u32) -> io::Result<RdmaListener> {
        self.core.socket().listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(RdmaListener::of(self.core))
    }

    /// Connects. Dropping the future gives the attempt up.
    pub async fn connect(self, to: SocketAddr) -> io::Result<RdmaStream> {
        let refused = |error| error::connecting(to, error);
        self.core.socket().connect(to).map_err(refused)?;
        let outcome = |socket: &Socket| match socket.outcome() {
            Err(Error::IN_PROGRESS) => Err(Error::WOULD_BLOCK),
            outcome => outcome,
        };
        self.core.when(Side::Write, outcome).await.map_err(refused)?;
        Ok(RdmaStream::of(self.core))
    }

    /// Sends something to an idle peer each time so long has passed, so that one that is gone is noticed. `None`, as at
    /// first, is never.
    #[doc(alias = "SO_KEEPALIVE")]
    pub fn set_keepalive(&self, every: Option<Duration>) {
        self.core.socket().keep_alive(every);
    }
}

impl fmt::Debug for RdmaSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RdmaSocket({:?})", self.core.socket().local_address())
    }
}
