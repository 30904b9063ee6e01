//! Connections: a queue pair and the word of the connection manager that its peer is there.

use super::hub::Party;
use super::pending::Pending;
use crate::completion_queue::CompletionQueue;
use crate::domain::ProtectionDomain;
use crate::queue_pair::{PreparedQueuePair, QueuePair};
use crate::transports::{Connected, Reliable, Transport};
use seam::{CloseReason, ConnectError};
use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

/// A connection that stands: what a [`QueuePair`] can do, it can, and it knows its peer's address and when the peer has
/// gone. A handle; clones are the same connection. When the last is dropped, the peer is notified that it has ended.
///
/// When it ends, from either side, work that is not done comes back with an error; that also happens if the peer's
/// process is killed. Where the peer ends it, what it had received before counts as sent.
///
/// ```
/// use ubiverbs::cm;
///
/// let listener = cm::Listener::bind("127.0.0.1:0")?;
/// let client = cm::connect(listener.local_addr()); // under way
/// let server = listener.accept().wait()?;
/// let client = client.wait()?;
/// assert_eq!(client.peer_addr(), server.local_addr());
///
/// let receiving = server.recv(server.pd().allocate(64)?)?;
/// client.send_inline(b"hello")?.wait()?;
/// assert_eq!(receiving.wait()?.payload(), b"hello");
///
/// client.disconnect().wait()?;
/// server.closed().wait()?;
/// # Ok::<(), ubiverbs::Error>(())
/// ```
pub struct Connection<T: Transport = Reliable> {
    inner: Arc<Inner<T>>,
}

struct Inner<T: Transport> {
    /// First: the peer hears of the end before the queue pair goes.
    party: Party,
    qp: QueuePair<T>,
    private_data: Vec<u8>,
    local: SocketAddr,
    peer: SocketAddr,
}

/// Everything outstanding comes back. It may be in error already.
fn flush<T: Transport>(qp: &QueuePair<T>) {
    qp.core().pair().disconnect();
}

impl<T: Connected> Connection<T> {
    pub(super) fn new(party: Party, prepared: PreparedQueuePair<T>, private_data: Vec<u8>) -> Connection<T> {
        let (local, peer) = (party.local_addr(), party.peer_addr());
        let qp = prepared.into_ready();
        let (id, deferred, ending) = (party.id.clone(), party.deferred(), qp.weak());
        party.stands(move |reason| {
            let qp = ending.upgrade().map(QueuePair::from_inner);
            // Before anything is flushed.
            if let Some(qp) = &qp {
                qp.core().ending().note(reason.clone());
            }
            // The peer waits for our word, if it was not we who asked.
            let _ = id.disconnect();
            let Some(qp) = qp else { return };
            if qp.outstanding().0 == 0 {
                return flush(&qp);
            }
            // What the peer said last may have overtaken its acknowledgements.
            let ending = ending.clone();
            deferred.push(move || ending.upgrade().map(QueuePair::from_inner).iter().for_each(flush));
        });
        Connection { inner: Arc::new(Inner { party, qp, private_data, local, peer }) }
    }

    /// Its queue pair.
    pub fn queue_pair(&self) -> &QueuePair<T> {
        &self.inner.qp
    }

    /// The protection domain of its queue pair: where buffers for it are made.
    pub fn pd(&self) -> ProtectionDomain {
        self.inner.qp.core().pd()
    }

    /// Where its sends complete.
    pub fn completion_queue(&self) -> &CompletionQueue {
        self.inner.qp.core().send_cq()
    }

    /// What the peer's program said when it asked or accepted, filled up with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.inner.private_data
    }

    /// Our address and port.
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }

    /// The peer's address and port.
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer
    }

    /// Whether neither side has ended it, as far as is known here.
    pub fn is_connected(&self) -> bool {
        !self.inner.party.has_ended() && self.inner.qp.close_reason().is_none()
    }

    /// Ends it: work that is not done comes back with an error, and the peer is notified. Done when the peer has
    /// agreed, or does not answer.
    ///
    /// # Cancel safety
    /// The connection has ended when this returns. Dropping what it returns only means not to wait for the peer.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Pending<()> {
        self.disconnect_with(&[])
    }

    /// Ends the connection with up to 220 bytes for the peer's program: it finds them in
    /// [`CloseReason::PeerDisconnected`].
    ///
    /// # Errors
    /// [`ConnectError::PrivateData`](ConnectError::PrivateData) if there are more. Then the connection still
    /// stands.
    ///
    /// # Cancel safety
    /// As [`disconnect`](Connection::disconnect).
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect_with(&self, private_data: &[u8]) -> Pending<()> {
        let inner = Arc::clone(&self.inner);
        let length = private_data.len();
        if length > DISCONNECT_ROOM {
            let error = ConnectError::PrivateData { length, room: DISCONNECT_ROOM };
            return Pending::start(async move { Err(error.into()) });
        }
        let private_data = private_data.to_vec();
        Pending::start(async move {
            if !inner.party.has_ended() {
                inner.qp.core().ending().note(CloseReason::LocalClose);
            }
            flush(&inner.qp);
            inner.party.rouse();
            if let Err(error) = inner.party.id.disconnect_with(&private_data)
                && !inner.party.has_ended()
            {
                return Err(error);
            }
            inner.party.end().await;
            Ok(())
        })
    }

    /// Why it ended, if it has.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.inner.qp.close_reason()
    }

    /// Waits for its end, and says why: the peer disconnected or died, this program closed it, or work failed.
    ///
    /// ```
    /// # use ubiverbs::{CloseReason, cm};
    /// # let listener = cm::Listener::bind("127.0.0.1:0")?;
    /// # let client = cm::connect(listener.local_addr());
    /// # let server = listener.accept().wait()?;
    /// # let client = client.wait()?;
    /// # drop(client);
    /// match server.closed().wait()? {
    ///     CloseReason::PeerDisconnected { .. } => println!("it is done"),
    ///     reason => return Err(reason.into()), // `main` prints the sentence
    /// }
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Cancel safety
    /// Dropping it changes nothing; the next call returns the same.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    pub fn closed(&self) -> Pending<CloseReason> {
        let inner = Arc::clone(&self.inner);
        inner.qp.core().pair().observe_stop(Box::new(inner.party.rouser()));
        Pending::start(async move { Ok(inner.party.until(|| inner.qp.close_reason()).await) })
    }
}

/// How many bytes for the peer's program the message has room for that ends a connection.
const DISCONNECT_ROOM: usize = 220;

impl<T: Transport> Drop for Inner<T> {
    fn drop(&mut self) {
        // Other owners of a handle of the queue pair hear it.
        self.qp.core().ending().note(CloseReason::LocalClose);
    }
}

impl<T: Connected> Deref for Connection<T> {
    type Target = QueuePair<T>;

    fn deref(&self) -> &QueuePair<T> {
        &self.inner.qp
    }
}

impl<T: Transport> Clone for Connection<T> {
    fn clone(&self) -> Connection<T> {
        Connection { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Transport> fmt::Debug for Connection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({} -> {})", self.inner.local, self.inner.peer)
    }
}
