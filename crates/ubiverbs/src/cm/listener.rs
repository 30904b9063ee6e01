//! Listeners, and those who ask them.

use super::connection::Connection;
use super::handshake::Handshake;
use super::hub::{Hub, Party};
use super::pending::Pending;
use super::route::{addresses, nothing_tried};
use super::{Body, ConnectError, ConnectParameters, ConnectionBody, IdOption};
use crate::device::Context;
use crate::queue_pair::QueuePair;
use crate::transports::{Connected, Datagram, Reliable, Transport};
use latch::lock;
use seam::Error;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{self, Poll};
use wire::cm::RejectReason;
use wire::refuse_if;

/// Listens at an address for peers that ask for a connection, or, of [`Datagram`]s, for the queue pair behind a port. A
/// handle; clones are the same listener.
///
/// [`accept`](Listener::accept) is the short way. [`next`](Listener::next) gives a [`Request`], to look at before it is
/// accepted or rejected:
///
/// ```
/// use ubiverbs::{Error, cm::{self, ConnectError}};
///
/// let listener = cm::Listener::bind("127.0.0.1:0")?;
/// let client = cm::resolve(listener.local_addr()).wait()?.connect().private_data(b"open sesame").start();
/// let request = listener.next().wait()?;
/// assert!(request.private_data().starts_with(b"open sesame"));
/// request.reject(b"not today")?;
///
/// let Err(Error::Connect(ConnectError::Rejected { private_data, .. })) = client.wait() else { panic!() };
/// assert!(private_data.starts_with(b"not today"));
/// # Ok::<(), Error>(())
/// ```
#[doc(alias = "rdma_listen")]
pub struct Listener<T: Transport = Reliable> {
    inner: Arc<Inner<T>>,
}

struct Inner<T: Transport> {
    party: Party,
    /// Connections that a caller began to accept and did not wait for.
    begun: Mutex<VecDeque<Pending<Connection<T>>>>,
}

impl Listener<Reliable> {
    /// Listens for reliable connections. Port 0 is any; `0.0.0.0` is every address, and `[::]` those of both families.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(address: impl ToSocketAddrs) -> Result<Listener<Reliable>, Error> {
        Listener::bind_as(address)
    }
}

impl<T: Transport> Listener<T> {
    /// Listens with any transport: `Listener::<Datagram>::bind_as("127.0.0.1:7471")`. Of several addresses of a name,
    /// the first that can be had.
    pub fn bind_as(address: impl ToSocketAddrs) -> Result<Listener<T>, Error> {
        let mut last = nothing_tried();
        for address in addresses(address)? {
            match Listener::bind_with(address, 0, &[]) {
                Ok(listener) => return Ok(listener),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Listens with a particular backlog (0 for the usual one) and options.
    pub fn bind_with(address: SocketAddr, backlog: u32, options: &[IdOption]) -> Result<Listener<T>, Error> {
        let party = Hub::ours()?.party(T::KIND)?;
        options.iter().try_for_each(|option| party.id.set(*option))?;
        party.id.bind(address)?;
        party.id.listen(backlog)?;
        Ok(Listener { inner: Arc::new(Inner { party, begun: Mutex::default() }) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.party.local_addr()
    }

    /// The device that it listens at, opened: for queue pairs and memory that are made before anybody asks.
    ///
    /// ```
    /// let listener = ubiverbs::cm::Listener::bind("127.0.0.1:0")?;
    /// assert_eq!(listener.context()?.name(), "ubi_lo");
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it listens at every address: then each [`Request`] says at which device it came.
    pub fn context(&self) -> Result<Context, Error> {
        self.inner.party.listening_context()
    }

    /// The next request. None is taken before it is waited for, and dropping the future loses none: a peer that asks
    /// meanwhile is there for the next call.
    ///
    /// # Cancel safety
    /// Dropping it loses no request: a peer that asks meanwhile is there for the next call.
    #[doc(alias = "rdma_get_request")]
    pub fn next(&self) -> Pending<Request<T>> {
        let inner = Arc::clone(&self.inner);
        // Nothing is taken before a task waits for it: a future that is dropped has nothing to lose.
        Pending::later(async move { Ok(poll_fn(|context| inner.poll_request(context)).await) })
    }
}

impl<T: Connected> Listener<T> {
    /// The next connection, accepted with a queue pair of the usual kind, once it is waited for. Peers that ask and go
    /// away again are passed over. Dropping the future loses no connection: one that it had begun to accept is the next
    /// call's.
    ///
    /// # Cancel safety
    /// Dropping it loses no connection: one that it had begun to accept is the next call's.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self) -> Pending<Connection<T>> {
        let inner = Arc::clone(&self.inner);
        Pending::later(async move {
            loop {
                let accepting = poll_fn(|context| inner.poll_begun(context)).await;
                let mut accepting = Accepting { inner: &inner, under_way: Some(accepting) };
                match accepting.outcome().await {
                    Err(Error::Connect(ConnectError::Gone { .. } | ConnectError::TimedOut { .. })) => {}
                    Err(Error::Connect(ConnectError::Rejected { .. })) => {}
                    result => return result,
                }
            }
        })
    }
}

impl<T: Transport> Inner<T> {
    fn poll_request(&self, context: &mut task::Context<'_>) -> Poll<Request<T>> {
        loop {
            let (event, party) = task::ready!(self.party.poll_event(context));
            // Only requests come with a party.
            if let Some(party) = party {
                return Poll::Ready(Request { party, body: event.body, transport: PhantomData });
            }
        }
    }
}

impl<T: Connected> Inner<T> {
    /// A connection that is being accepted: one that was left behind, or the next that is asked for.
    fn poll_begun(&self, context: &mut task::Context<'_>) -> Poll<Pending<Connection<T>>> {
        let left = || lock(&self.begun).pop_front();
        if let Some(begun) = left() {
            return Poll::Ready(begun);
        }
        if let Poll::Ready(request) = self.poll_request(context) {
            return Poll::Ready(request.accept().start());
        }
        // What was left between the look and the waker was told to nobody.
        left().map_or(Poll::Pending, Poll::Ready)
    }
}

/// A connection being accepted. If it is not waited for, it goes back to the listener.
struct Accepting<'a, T: Transport> {
    inner: &'a Inner<T>,
    under_way: Option<Pending<Connection<T>>>,
}

impl<T: Transport> Accepting<'_, T> {
    async fn outcome(&mut self) -> Result<Connection<T>, Error> {
        poll_fn(|context| {
            let Some(under_way) = &mut self.under_way else { return Poll::Pending };
            let result = task::ready!(Pin::new(under_way).poll(context));
            self.under_way = None;
            Poll::Ready(result)
        })
        .await
    }
}

impl<T: Transport> Drop for Accepting<'_, T> {
    fn drop(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            lock(&self.inner.begun).push_back(under_way);
            self.inner.party.rouse();
        }
    }
}

/// A peer that asks a [`Listener`]. Dropping it rejects it.
#[must_use = "a request that is dropped is rejected"]
pub struct Request<T: Transport> {
    party: Party,
    body: Body,
    transport: PhantomData<T>,
}

impl<T: Transport> Request<T> {
    /// What the peer's program said: as long as the field of the message, filled up with zeros.
    pub fn private_data(&self) -> &[u8] {
        match &self.body {
            Body::None | Body::Number(_) => &[],
            Body::Connection(body) => &body.private_data,
            Body::Datagram(body) => &body.private_data,
        }
    }

    /// Which address and port it asked at.
    pub fn local_addr(&self) -> SocketAddr {
        self.party.local_addr()
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.party.peer_addr()
    }

    /// The device at which it asked, opened: queue pairs for it are made here.
    pub fn context(&self) -> Result<Context, Error> {
        self.party.context()
    }

    /// Rejects it, with up to 148 bytes for the peer's program.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.party.id.reject(RejectReason::Consumer, private_data)
    }
}

impl<T: Connected> Request<T> {
    /// Accepts it, as [`Handshake`] says.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self) -> Handshake<T> {
        let asked = if let Body::Connection(body) = self.body { body } else { ConnectionBody::default() };
        Handshake::passive(self.party, asked)
    }
}

impl Request<Datagram> {
    /// Tells the peer to send its datagrams to `qp`, with up to 136 bytes for its program.
    #[doc(alias = "rdma_accept")]
    pub fn answer(self, qp: &QueuePair<Datagram>, private_data: &[u8]) -> Result<(), Error> {
        refuse_if!(!self.party.is_on(qp.core().context()), Error::OtherDevice { what: "queue pair" });
        let qkey = Some(qp.endpoint().qkey());
        self.party.id.accept(&ConnectParameters { private_data, qpn: qp.qpn(), qkey, ..ConnectParameters::default() })
    }
}

impl<T: Transport> Clone for Listener<T> {
    fn clone(&self) -> Listener<T> {
        Listener { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Transport> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.local_addr())
    }
}

impl<T: Transport> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({} of {})", self.local_addr(), self.peer_addr())
    }
}
