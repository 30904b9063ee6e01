//! The easy level's one event channel: a descriptor for all connections of the program, not one for each. A thread that
//! makes progress sorts the events into mailboxes, one per id, and wakes who waits there.

use super::channel::{Event, EventChannel};
use super::deferred::Deferred;
use super::id::Id;
use super::{EventKind, PortSpace};
use crate::backend;
use crate::device::{Context, ContextCore};
use latch::PerProcess;
use latch::lock;
use seam::wake;
use seam::{Backend, CloseReason, ConnectError, Error, environment};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{self, Poll, Waker};
use transport::Kind;
use wire::Gid;

/// The channel, and who its events are for.
pub(crate) struct Hub {
    backend: Arc<dyn Backend>,
    channel: EventChannel,
    mailboxes: Mutex<HashMap<u64, Weak<Mailbox>>>,
    /// Devices that connections have opened: once each, however many connections there are.
    contexts: Mutex<HashMap<String, Weak<ContextCore>>>,
    next_key: AtomicU64,
    /// One thread sorts at a time, so that events stay in order.
    sorting: Mutex<()>,
    fresh: AtomicBool,
    deferred: Arc<Deferred>,
}

impl Hub {
    /// The hub of this process; a forked child makes its own.
    pub fn ours() -> Result<Arc<Hub>, Error> {
        if let Some(kept) = environment::current().and_then(|environment| environment.kept()) {
            let known = kept.get().and_then(|hub| Arc::clone(hub).downcast::<Hub>().ok());
            if let Some(hub) = known {
                return Ok(hub);
            }
            let hub = Hub::new(&backend::current()?)?;
            let _ = kept.set(Arc::clone(&hub) as Arc<dyn Any + Send + Sync>);
            return Ok(hub);
        }
        static OURS: PerProcess<Mutex<Option<Arc<Hub>>>> = PerProcess::new();
        let mut ours = lock(OURS.get_or_make(Mutex::default));
        if let Some(hub) = &*ours {
            return Ok(Arc::clone(hub));
        }
        let hub = Hub::new(&backend::software()?)?;
        *ours = Some(Arc::clone(&hub));
        Ok(hub)
    }

    fn new(backend: &Arc<dyn Backend>) -> Result<Arc<Hub>, Error> {
        // The channel must know the hub, and the hub has the channel.
        let there: Arc<OnceLock<Weak<Hub>>> = Arc::default();
        let seen = Arc::clone(&there);
        let channel = EventChannel::observed(backend, move || {
            if let Some(hub) = seen.get().and_then(Weak::upgrade) {
                hub.sort();
            }
        })?;
        let hub = Arc::new(Hub {
            backend: Arc::clone(backend),
            channel,
            mailboxes: Mutex::default(),
            contexts: Mutex::default(),
            next_key: AtomicU64::new(1),
            sorting: Mutex::default(),
            fresh: AtomicBool::new(false),
            deferred: Arc::default(),
        });
        let _ = there.set(Arc::downgrade(&hub));
        Ok(hub)
    }

    /// A fresh id with a mailbox.
    pub fn party(self: &Arc<Hub>, kind: Kind) -> Result<Party, Error> {
        let space = if kind == Kind::UnreliableDatagram { PortSpace::Udp } else { PortSpace::Tcp };
        Ok(self.adopt(Id::new(&self.channel, space, kind)?))
    }

    fn adopt(self: &Arc<Hub>, id: Id) -> Party {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let mailbox = Arc::new(Mailbox::default());
        lock(&self.mailboxes).insert(key, Arc::downgrade(&mailbox));
        id.set_user(key);
        Party { hub: Arc::clone(self), key, id, mailbox }
    }

    /// The device of that name, opened.
    fn context(&self, device: &str) -> Result<Context, Error> {
        let mut contexts = lock(&self.contexts);
        if let Some(core) = contexts.get(device).and_then(Weak::upgrade) {
            return Ok(Context { core });
        }
        let context = Context::open(&self.backend, device)?;
        contexts.insert(device.to_owned(), Arc::downgrade(&context.core));
        Ok(context)
    }

    /// Brings events to their mailboxes. Called by the NIC with no lock held; holds none when it wakes or calls others.
    fn sort(self: &Arc<Hub>) {
        self.fresh.store(true, Ordering::SeqCst);
        // A thread that sorts already looks again when it is through.
        while self.fresh.load(Ordering::SeqCst) {
            let mut after = Vec::new();
            let Ok(sorting) = self.sorting.try_lock() else { return };
            self.fresh.store(false, Ordering::SeqCst);
            while let Some(event) = self.channel.try_next() {
                after.push(self.deliver(event));
            }
            drop(sorting);
            after.into_iter().for_each(After::see_to);
        }
    }

    fn deliver(self: &Arc<Hub>, mut event: Event) -> After {
        // A handle in its own mailbox would keep the listener.
        let listener = event.listener.take();
        let newcomer = listener.as_ref().map(|_| self.adopt(event.id.clone()));
        let key = listener.as_ref().unwrap_or(&event.id).user();
        let mailbox = lock(&self.mailboxes).get(&key).and_then(Weak::upgrade);
        match mailbox {
            Some(mailbox) => mailbox.put(event, newcomer),
            // Nobody is interested any more; a request is refused by that.
            None => After { dropped: Some((event, newcomer)), ..After::default() },
        }
    }
}

/// What follows from a delivery, without any lock.
#[derive(Default)]
struct After {
    wakers: Vec<Waker>,
    end: Option<(AtEnd, CloseReason)>,
    dropped: Option<(Event, Option<Party>)>,
}

/// What is to be done when a connection ends.
type AtEnd = Arc<dyn Fn(&CloseReason) + Send + Sync>;

impl After {
    fn see_to(self) {
        if let Some((end, reason)) = self.end {
            end(&reason);
        }
        self.wakers.into_iter().for_each(wake);
    }
}

/// What has happened to an id and has not been looked at.
#[derive(Default)]
struct Mailbox {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    events: VecDeque<(Event, Option<Party>)>,
    wakers: Vec<Waker>,
    /// The connection has ended.
    ended: Option<CloseReason>,
    /// What is to be done then. Once it is set, nothing else is of interest.
    end: Option<AtEnd>,
}

impl Inner {
    fn note(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }
}

impl Mailbox {
    fn rouse(&self) {
        let wakers = std::mem::take(&mut lock(&self.inner).wakers);
        wakers.into_iter().for_each(wake);
    }

    fn put(&self, event: Event, newcomer: Option<Party>) -> After {
        let mut inner = lock(&self.inner);
        let mut after = After::default();
        let device_gone = event.kind == EventKind::DeviceRemoval && inner.end.is_some();
        if event.kind == EventKind::Disconnected || device_gone {
            let reason = inner.ended.get_or_insert_with(|| event.close_reason()).clone();
            after.end = inner.end.clone().map(|end| (end, reason));
        }
        match inner.end {
            None => inner.events.push_back((event, newcomer)),
            Some(_) => after.dropped = Some((event, newcomer)),
        }
        after.wakers = std::mem::take(&mut inner.wakers);
        after
    }
}

/// An id of the easy level, with its mailbox. Dropping it takes the id down.
pub(crate) struct Party {
    hub: Arc<Hub>,
    key: u64,
    pub id: Id,
    mailbox: Arc<Mailbox>,
}

impl Party {
    /// The next thing that happens to it; a request brings its own party.
    pub fn poll_event(&self, context: &mut task::Context<'_>) -> Poll<(Event, Option<Party>)> {
        let mut inner = lock(&self.mailbox.inner);
        if let Some(event) = inner.events.pop_front() {
            return Poll::Ready(event);
        }
        environment::waits_for(|| format!("the connection manager: {:?}", self.id));
        inner.note(context.waker());
        Poll::Pending
    }

    /// The next thing that happens to it.
    pub async fn event(&self) -> Event {
        poll_fn(|context| self.poll_event(context)).await.0
    }

    /// The next thing, which must be of this kind.
    pub async fn expect(&self, kind: EventKind) -> Result<Event, Error> {
        let event = self.event().await;
        if event.kind == kind {
            return Ok(event);
        }
        let unexpected = || ConnectError::Unexpected { event: event.kind, status: event.status };
        Err(event.failure().unwrap_or_else(unexpected).into())
    }

    /// Its connection stands: from now on only its end is of interest, and this is what to do then.
    pub fn stands(&self, end: impl Fn(&CloseReason) + Send + Sync + 'static) {
        let end: AtEnd = Arc::new(end);
        let mut inner = lock(&self.mailbox.inner);
        inner.end = Some(Arc::clone(&end));
        let (events, ended) = (std::mem::take(&mut inner.events), inner.ended.clone());
        drop(inner);
        drop(events);
        if let Some(reason) = ended {
            end(&reason);
        }
    }

    pub fn has_ended(&self) -> bool {
        lock(&self.mailbox.inner).ended.is_some()
    }

    /// Until the connection has ended.
    pub async fn end(&self) {
        poll_fn(|context| {
            let mut inner = lock(&self.mailbox.inner);
            if inner.ended.is_some() {
                return Poll::Ready(());
            }
            environment::waits_for(|| format!("the end of a connection: {:?}", self.id));
            inner.note(context.waker());
            Poll::Pending
        })
        .await;
    }

    /// Until `look` finds something. It is asked again whenever there is news of the connection, or
    /// [`rouse`](Party::rouse) is called.
    pub async fn until<R>(&self, look: impl Fn() -> Option<R>) -> R {
        poll_fn(|context| {
            if let Some(found) = look() {
                return Poll::Ready(found);
            }
            environment::waits_for(|| format!("the end of a connection: {:?}", self.id));
            lock(&self.mailbox.inner).note(context.waker());
            // What came between the look and the waker was told to nobody.
            look().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// What [`rouse`](Party::rouse) does, for those who do not keep it.
    pub fn rouser(&self) -> impl Fn() + Send + Sync + 'static {
        let mailbox = Arc::downgrade(&self.mailbox);
        move || {
            if let Some(mailbox) = mailbox.upgrade() {
                mailbox.rouse();
            }
        }
    }

    /// Wakes the tasks and threads that wait for it, as an event would.
    pub fn rouse(&self) {
        self.mailbox.rouse();
    }

    pub fn deferred(&self) -> Arc<Deferred> {
        Arc::clone(&self.hub.deferred)
    }

    /// The device it is bound to, opened.
    pub fn context(&self) -> Result<Context, Error> {
        let none = || Error::NoDevice { name: String::new(), available: Vec::new() };
        self.hub.context(&self.id.device_name().ok_or_else(none)?)
    }

    /// The device of the address it listens at, opened. One at the loopback is bound to no device, as a peer may come
    /// by any.
    pub fn listening_context(&self) -> Result<Context, Error> {
        if self.id.device_name().is_some() {
            return self.context();
        }
        let address = Gid::from_ip(self.local_addr().ip());
        let devices = self.hub.backend.devices();
        let found = devices.iter().find(|device| self.hub.backend.addresses(&device.name).contains(&address));
        let none = || Error::NoDevice {
            name: format!("of a listener at {}", self.local_addr()),
            available: devices.iter().map(|device| device.name.clone()).collect(),
        };
        self.hub.context(&found.ok_or_else(none)?.name)
    }

    /// Whether something belongs to the device it is bound to.
    pub fn is_on(&self, context: &ContextCore) -> bool {
        Arc::ptr_eq(&context.backend, &self.hub.backend) && self.id.device_name().as_deref() == Some(&context.name)
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.id.local_addr().unwrap_or(NO_ADDRESS)
    }

    pub fn peer_addr(&self) -> SocketAddr {
        self.id.peer_addr().unwrap_or(NO_ADDRESS)
    }
}

const NO_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Drop for Party {
    fn drop(&mut self) {
        lock(&self.hub.mailboxes).remove(&self.key);
        self.id.destroy();
    }
}

impl fmt::Debug for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}
