//! Channels of events: where a program that handles every step itself hears of its ids.

use super::id::Id;
use super::{Body, EventKind};
use crate::address::AddressHandle;
use crate::backend;
use hca::cm::ConnectionEnd;
use latch::lock;
use seam::wake;
use seam::{Backend, CloseReason, ConnectError, Error, connections};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use wire::cm::{RejectReason, SidrStatus};

/// The status of what nobody answered: Linux's `-ETIMEDOUT`.
const OUT_OF_TIME: i32 = -110;

/// Where events of [`Id`]s arrive, oldest first. A handle; clones are the same channel.
///
/// A program waits for it, awaits it, or watches its descriptor with `poll` or `epoll`.
///
/// ```
/// use ubiverbs::cm::{EventChannel, EventKind, Id, PortSpace};
/// use ubiverbs::Kind;
///
/// let channel = EventChannel::new()?;
/// let id = Id::new(&channel, PortSpace::Tcp, Kind::ReliableConnected)?;
/// id.resolve_address(None, ([127, 0, 0, 1], 7471).into())?;
/// let event = channel.wait()?;
/// assert_eq!((event.kind, &event.id), (EventKind::AddressResolved, &id));
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "rdma_event_channel")]
#[doc(alias = "rdma_create_event_channel")]
pub struct EventChannel {
    core: Arc<Core>,
}

struct Core {
    backend: Arc<dyn Backend>,
    channel: Arc<dyn connections::EventChannel>,
    waiters: Mutex<Vec<Waker>>,
}

impl EventChannel {
    /// An empty one.
    pub fn new() -> Result<EventChannel, Error> {
        EventChannel::of(&backend::current()?)
    }

    /// An empty one of a NIC that is not the usual one.
    pub fn of(backend: &Arc<dyn Backend>) -> Result<EventChannel, Error> {
        EventChannel::observed(backend, || {})
    }

    /// One whose news another listener hears of, too.
    pub(super) fn observed(
        backend: &Arc<dyn Backend>,
        observer: impl Fn() + Send + Sync + 'static,
    ) -> Result<EventChannel, Error> {
        let channel = backend.create_event_channel()?;
        let core = Arc::new(Core { backend: Arc::clone(backend), channel, waiters: Mutex::new(Vec::new()) });
        let weak = Arc::downgrade(&core);
        core.channel.observe(Box::new(move || {
            if let Some(core) = weak.upgrade() {
                let waiters = std::mem::take(&mut *lock(&core.waiters));
                waiters.into_iter().for_each(wake);
            }
            observer();
        }));
        Ok(EventChannel { core })
    }

    /// The oldest event, if there is one.
    pub fn try_next(&self) -> Option<Event> {
        self.core.channel.try_take().map(|event| Event::new(&self.core.backend, event))
    }

    /// The next event, as a future. Dropping it loses no event.
    ///
    /// # Cancel safety
    /// It takes an event at the moment it returns it: dropping it before loses none.
    pub fn next(&self) -> NextEvent<'_> {
        NextEvent { channel: self }
    }

    /// Waits for the next event. The waiting thread drives. If the program has made the descriptor non-blocking, the
    /// answer is an error of kind `WouldBlock` instead of a wait.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn wait(&self) -> Result<Event, Error> {
        let failed = |source| Error::System { what: "waiting for an event of a connection", source };
        if self.core.channel.is_nonblocking().map_err(failed)? {
            self.core.backend.progress();
            return self.try_next().ok_or_else(|| failed(io::ErrorKind::WouldBlock.into()));
        }
        Ok(crate::block_on(self.next()))
    }

    /// Waits for the next event, but not longer than `limit`.
    ///
    /// # Cancel safety
    /// An event that comes later stays in the channel.
    pub fn wait_for(&self, limit: Duration) -> Option<Event> {
        crate::block_on::block_on_for(pin!(self.next()), limit)
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        &self.core.backend
    }

    pub(super) fn channel(&self) -> &Arc<dyn connections::EventChannel> {
        &self.core.channel
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.channel.fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventChannel({})", self.as_raw_fd())
    }
}

/// The next event of a channel. Made by [`EventChannel::next`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct NextEvent<'a> {
    channel: &'a EventChannel,
}

impl Future for NextEvent<'_> {
    type Output = Event;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Event> {
        if let Some(event) = self.channel.try_next() {
            return Poll::Ready(event);
        }
        seam::environment::waits_for(|| "an event of the connection manager".into());
        let mut waiters = lock(&self.channel.core.waiters);
        if !waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
            waiters.push(context.waker().clone());
        }
        drop(waiters);
        // What came between the look and the waker was told to nobody.
        self.channel.try_next().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Something that happened to an [`Id`]. There is nothing to acknowledge: dropping it is enough.
#[derive(Clone, Debug)]
#[doc(alias = "rdma_cm_event")]
#[doc(alias = "rdma_ack_cm_event")]
#[non_exhaustive]
pub struct Event {
    /// To which. A [request](EventKind::ConnectRequest) comes with an id of its own; dropping the last handle of it
    /// refuses the request.
    pub id: Id,
    /// The id that listens, if it is a request.
    pub listener: Option<Id>,
    /// What.
    pub kind: EventKind,
    /// 0, a negative errno, or the reason of a rejection.
    pub status: i32,
    /// What comes with it.
    pub body: Body,
}

impl Event {
    fn new(backend: &Arc<dyn Backend>, event: connections::ConnectionEvent) -> Event {
        let connections::ConnectionEvent { id, listener, kind, status, body } = event;
        let listener = listener.map(|listener| Id::from_backend(backend, listener));
        Event { id: Id::from_backend(backend, id), listener, kind, status, body }
    }

    /// What the peer's program said: as long as the field of the message, filled up with zeros.
    pub fn private_data(&self) -> &[u8] {
        match &self.body {
            Body::None | Body::Number(_) => &[],
            Body::Connection(body) => &body.private_data,
            Body::Datagram(body) => &body.private_data,
        }
    }

    /// Where datagrams go: to a service that was found, or to a group that was joined.
    pub fn address(&self) -> Option<AddressHandle> {
        match (&self.body, self.kind) {
            (Body::Datagram(body), EventKind::Established | EventKind::MulticastJoin) => {
                Some(AddressHandle::found(body.av, body.qpn, body.qkey))
            }
            _ => None,
        }
    }

    /// As what the event ends a connection, if it is [`Disconnected`](EventKind::Disconnected) or
    /// [`DeviceRemoval`](EventKind::DeviceRemoval). What the program itself has ended, and what failed before, says
    /// its queue pair: [`close_reason`](crate::QueuePair::close_reason).
    pub fn end(&self) -> Option<CloseReason> {
        let ends = matches!(self.kind, EventKind::Disconnected | EventKind::DeviceRemoval);
        ends.then(|| self.close_reason())
    }

    pub(super) fn close_reason(&self) -> CloseReason {
        let peer = || CloseReason::PeerDisconnected { private_data: self.private_data().to_vec() };
        match (self.kind, &self.body) {
            (EventKind::DeviceRemoval, _) => CloseReason::DeviceGone,
            (_, Body::Connection(body)) => match body.end {
                Some(ConnectionEnd::PeerDied | ConnectionEnd::PeerLost) => CloseReason::PeerDied,
                Some(ConnectionEnd::Local) => CloseReason::LocalClose,
                Some(ConnectionEnd::DeviceGone) => CloseReason::DeviceGone,
                _ => peer(),
            },
            _ => peer(),
        }
    }

    /// As what the event ends an attempt to connect, if it does.
    pub fn failure(&self) -> Option<ConnectError> {
        let peer = self.id.peer_addr().unwrap_or(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        let rejected = |reason| ConnectError::Rejected { by: peer, reason, private_data: self.private_data().to_vec() };
        let system = || io::Error::from_raw_os_error(-self.status);
        Some(match (self.kind, self.status) {
            (EventKind::Rejected, code) => match RejectReason::from_code(code as u16) {
                RejectReason::InvalidServiceId => ConnectError::NobodyListens { at: peer },
                // What a peer says that has given up.
                RejectReason::Timeout => ConnectError::Gone { peer },
                reason => rejected(reason),
            },
            (EventKind::Unreachable, code) if code > 0 => match SidrStatus::from_code(code as u8) {
                SidrStatus::ServiceIdNotSupported => ConnectError::NobodyListens { at: peer },
                SidrStatus::NoQp => rejected(RejectReason::NoQp),
                _ => rejected(RejectReason::Consumer),
            },
            (EventKind::Unreachable, _) => ConnectError::TimedOut { to: peer },
            (EventKind::Disconnected, _) => ConnectError::Gone { peer },
            (EventKind::AddressError, status) if status != OUT_OF_TIME => ConnectError::NoDevice { address: peer.ip() },
            (EventKind::AddressError | EventKind::RouteError, _) => {
                ConnectError::NoRoute { to: peer.ip(), source: system() }
            }
            (EventKind::ConnectError | EventKind::DeviceRemoval | EventKind::MulticastError, status) => {
                ConnectError::Unexpected { event: self.kind, status }
            }
            _ => return None,
        })
    }
}
