//! What the connection manager has to say, for all sockets of the process: one channel, whose events are put into the
//! inboxes of the sockets they concern.

use crate::elsewhere::{Elsewhere, Errand};
use crate::error::Error;
use crate::socket::Socket;
use hca::cm::{Event, EventChannel, EventKind};
use hca::{Context, Device, Nic, OwnCalls};
use latch::PerProcess;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What a socket is told.
#[derive(Debug)]
pub(crate) enum Letter {
    /// By the connection manager.
    Event(Event),
    /// By a socket that was made for a request to this one: it is connected, or will not be.
    Accepted(u64, bool),
}

/// What the sockets of a process share.
#[derive(Debug)]
pub(crate) struct Hub {
    nic: Arc<Nic>,
    events: Arc<EventChannel>,
    sockets: Mutex<HashMap<u64, Weak<Socket>>>,
    /// Sockets that are being accepted, and the listeners that were asked for them.
    accepting: Mutex<HashMap<u64, u64>>,
    contexts: Mutex<Vec<Arc<Context>>>,
    /// Sockets that are closed and have not sent everything.
    lingering: Mutex<HashMap<u64, Arc<Socket>>>,
    elsewhere: Elsewhere,
    next_key: AtomicU64,
    /// Events may wait.
    news: AtomicBool,
    /// One thread at a time hands them out, so that they stay in order.
    turn: Mutex<()>,
}

static HUB: PerProcess<Mutex<Option<&'static Hub>>> = PerProcess::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether all sockets that were closed have sent everything, as far as can be seen without waiting.
fn nothing_lingers() -> bool {
    let Some(hub) = HUB.get().and_then(|ours| *ours.try_lock().ok()?) else { return true };
    hub.lingering.try_lock().is_ok_and(|lingering| lingering.is_empty())
}

impl Hub {
    /// The one of this process, which stays for ever.
    pub fn of_process() -> Result<&'static Hub, Error> {
        let mut ours = lock(HUB.get_or_make(Mutex::default));
        if let Some(hub) = *ours {
            return Ok(hub);
        }
        let hub: &'static Hub = Box::leak(Box::new(Hub {
            nic: Nic::of_process()?,
            events: Arc::new(EventChannel::new()?),
            sockets: Mutex::default(),
            accepting: Mutex::default(),
            contexts: Mutex::default(),
            lingering: Mutex::default(),
            elsewhere: Elsewhere::default(),
            next_key: AtomicU64::new(1),
            news: AtomicBool::new(false),
            turn: Mutex::default(),
        }));
        hub.events.observe(|| hub.hand_out());
        hca::wait_before_exit(nothing_lingers);
        *ours = Some(hub);
        Ok(hub)
    }

    pub fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    pub fn events(&self) -> &Arc<EventChannel> {
        &self.events
    }

    pub fn new_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// A socket wants to hear of events.
    pub fn enter(&self, key: u64, socket: &Arc<Socket>) {
        lock(&self.sockets).insert(key, Arc::downgrade(socket));
    }

    /// It does no more.
    pub fn leave(&self, key: u64) {
        lock(&self.sockets).remove(&key);
    }

    /// The socket of a number.
    pub fn find(&self, key: u64) -> Option<Arc<Socket>> {
        lock(&self.sockets).get(&key).and_then(Weak::upgrade)
    }

    /// Keeps a socket, though its program has closed it.
    pub fn keep(&self, socket: &Arc<Socket>) {
        lock(&self.lingering).insert(socket.key, Arc::clone(socket));
    }

    /// Keeps it no more.
    pub fn let_go(&self, key: u64) -> Option<Arc<Socket>> {
        lock(&self.lingering).remove(&key)
    }

    /// Has something done with a socket by a thread that is not in the middle of the NIC.
    pub fn do_elsewhere(&'static self, socket: Arc<Socket>, errand: Errand) {
        self.elsewhere.add(socket, errand);
    }

    /// A socket is being accepted for a listener.
    pub fn expect(&self, key: u64, listener: u64) {
        lock(&self.accepting).insert(key, listener);
    }

    /// It no longer is. Answers the listener.
    pub fn forget(&self, key: u64) -> Option<u64> {
        lock(&self.accepting).remove(&key)
    }

    /// A device, opened once.
    pub fn context(&self, device: &Arc<Device>) -> Result<Arc<Context>, Error> {
        let mut contexts = lock(&self.contexts);
        if let Some(found) = contexts.iter().find(|context| Arc::ptr_eq(context.device(), device)) {
            return Ok(Arc::clone(found));
        }
        let _own = OwnCalls::told_by(&self.nic);
        let context = self.nic.open_device(device)?;
        contexts.push(Arc::clone(&context));
        Ok(context)
    }

    /// Hands out the events that wait. Called by whichever thread has heard of them.
    fn hand_out(&self) {
        self.news.store(true, Ordering::SeqCst);
        loop {
            fence(Ordering::SeqCst);
            if !self.news.load(Ordering::SeqCst) {
                return;
            }
            let Ok(turn) = self.turn.try_lock() else { return };
            let mut told = Vec::new();
            while self.news.swap(false, Ordering::SeqCst) {
                while let Some(event) = self.events.try_take() {
                    told.extend(self.deliver(event));
                }
            }
            drop(turn);
            // A socket may ask the connection manager for something, which may have an answer at once.
            told.iter().for_each(|socket| socket.kick());
        }
    }

    /// Puts an event into the inbox of the socket that it is for.
    fn deliver(&self, event: Event) -> Option<Arc<Socket>> {
        let id = match event.kind {
            EventKind::ConnectRequest => event.listener.as_ref()?,
            _ => &event.id,
        };
        let socket = self.find(id.user())?;
        socket.deliver(Letter::Event(event));
        Some(socket)
    }
}
