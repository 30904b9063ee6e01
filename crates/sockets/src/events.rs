//! What the connection manager has to say, for all sockets of the process: one channel, whose events are put into the
//! inboxes of the sockets they concern.

use crate::deferred_tasks::{DeferredTask, DeferredTasks};
use crate::error::Error;
use crate::socket::Socket;
use hca::cm::{Event, EventChannel, EventKind};
use hca::{Context, Device, Nic, OwnCalls};
use latch::{PerProcess, lock};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};
use wire::Gid;

/// What a socket is notified of.
#[derive(Debug)]
pub(crate) enum Letter {
    /// By the connection manager.
    Event(Event),
    /// By a socket that was made for a request to this one: it is connected, or will not be.
    Accepted(u64, bool),
    /// By another listener: a request to this one is the oldest of too many.
    Forget(u64),
}

/// Requests that were answered and not confirmed.
#[derive(Debug, Default)]
struct UnconfirmedRequests {
    /// Oldest first: the listener of each, and its address if nothing has proven that.
    requests: BTreeMap<u64, (u64, Option<Gid>)>,
    /// How many each address has.
    addresses: HashMap<Gid, u32>,
}

impl UnconfirmedRequests {
    /// Returns the listener.
    fn remove(&mut self, key: u64) -> Option<u64> {
        let (listener, unproven) = self.requests.remove(&key)?;
        if let Some(address) = unproven
            && let Some(count) = self.addresses.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&address);
            }
        }
        Some(listener)
    }
}

/// What the sockets of a process share.
#[derive(Debug)]
pub(crate) struct Hub {
    nic: Arc<Nic>,
    events: Arc<EventChannel>,
    sockets: Mutex<HashMap<u64, Weak<Socket>>>,
    /// Sockets that are being accepted, and the listeners that were asked for them.
    accepting: Mutex<HashMap<u64, u64>>,
    unconfirmed: Mutex<UnconfirmedRequests>,
    contexts: Mutex<Vec<Arc<Context>>>,
    /// Sockets that are closed and have not sent everything.
    lingering: Mutex<BTreeMap<u64, Lingering>>,
    deferred: DeferredTasks,
    next_key: AtomicU64,
    /// Events may wait.
    news: AtomicBool,
    /// One thread at a time hands them out, so that they stay in order.
    turn: Mutex<()>,
}

static EVENT_HUB: PerProcess<Mutex<Option<&'static Hub>>> = PerProcess::new();

/// How long a closed socket is kept whose peer takes nothing. The kernel keeps those of TCP for about as long.
const LINGER_MAX: Duration = Duration::from_secs(60);
/// Closed sockets that are kept. Of more, the oldest is ended, and what it has not sent is lost.
const MAX_LINGERING: usize = 128;
/// A process that ends does not wait for peers that have taken nothing for so long.
const END_STALL: Duration = Duration::from_millis(500);

/// Whether all sockets that were closed have sent everything that their peers take, as far as can be seen without
/// waiting: for a process that is about to end, and asks again and again.
pub fn nothing_lingers() -> bool {
    static ASKED_AT: OnceLock<Instant> = OnceLock::new();
    let asked_at = *ASKED_AT.get_or_init(Instant::now);
    let Some(hub) = Hub::present() else { return true };
    hub.lingering.try_lock().is_ok_and(|lingering| {
        lingering.values().all(|lingering| lingering.moved_at.max(asked_at).elapsed() > END_STALL)
    })
}

/// A closed socket that is kept.
#[derive(Debug)]
struct Lingering {
    socket: Arc<Socket>,
    /// When its peer last took something.
    moved_at: Instant,
}

impl Hub {
    /// The one of this process, which stays for ever.
    pub fn of_process() -> Result<&'static Hub, Error> {
        let mut ours = lock(EVENT_HUB.get_or_make(Mutex::default));
        if let Some(hub) = *ours {
            return Ok(hub);
        }
        let hub: &'static Hub = Box::leak(Box::new(Hub {
            nic: Nic::of_process()?,
            events: Arc::new(EventChannel::new()?),
            sockets: Mutex::default(),
            accepting: Mutex::default(),
            unconfirmed: Mutex::default(),
            contexts: Mutex::default(),
            lingering: Mutex::default(),
            deferred: DeferredTasks::default(),
            next_key: AtomicU64::new(1),
            news: AtomicBool::new(false),
            turn: Mutex::default(),
        }));
        hub.events.observe(|| hub.hand_out());
        hca::wait_before_exit(nothing_lingers);
        hca::report_sockets(crate::report::sockets_of);
        *ours = Some(hub);
        Ok(hub)
    }

    /// The one of this process, if there is one and no thread is about to make it.
    pub fn present() -> Option<&'static Hub> {
        *EVENT_HUB.get()?.try_lock().ok()?
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

    /// So many sockets at most; none if another thread has the list.
    pub fn some(&self, count: usize) -> Option<Vec<Arc<Socket>>> {
        let sockets = self.sockets.try_lock().ok()?;
        Some(sockets.values().filter_map(Weak::upgrade).take(count).collect())
    }

    /// Keeps a socket, though its program has closed it.
    pub fn keep(&'static self, socket: &Arc<Socket>) {
        let lingering = Lingering { socket: Arc::clone(socket), moved_at: Instant::now() };
        let mut kept = lock(&self.lingering);
        kept.insert(socket.key, lingering);
        let oldest = if kept.len() > MAX_LINGERING { kept.pop_first() } else { None };
        drop(kept);
        match oldest {
            Some((_, oldest)) => self.defer(oldest.socket, DeferredTask::End),
            // Its thread looks for those that are overdue.
            None => self.deferred.start(self),
        }
    }

    /// Keeps it no more.
    pub fn let_go(&self, key: u64) -> Option<Arc<Socket>> {
        Some(lock(&self.lingering).remove(&key)?.socket)
    }

    /// Its peer has taken something.
    pub fn moved(&self, key: u64) {
        if let Some(lingering) = lock(&self.lingering).get_mut(&key) {
            lingering.moved_at = Instant::now();
        }
    }

    /// Those whose peers have taken nothing for too long. They are kept no more.
    pub fn overdue(&self) -> Vec<Arc<Socket>> {
        let mut kept = lock(&self.lingering);
        let overdue = kept.extract_if(.., |_, lingering| lingering.moved_at.elapsed() >= LINGER_MAX);
        overdue.map(|(_, lingering)| lingering.socket).collect()
    }

    /// Whether any is kept.
    pub fn keeps_any(&self) -> bool {
        !lock(&self.lingering).is_empty()
    }

    /// Has something done with a socket by a thread that is not in the middle of the NIC.
    pub fn defer(&'static self, socket: Arc<Socket>, task: DeferredTask) {
        self.deferred.add(self, socket, task);
    }

    /// A socket is being accepted for a listener.
    pub fn expect(&self, key: u64, listener: u64) {
        lock(&self.accepting).insert(key, listener);
    }

    /// It no longer is. Returns the listener.
    pub fn forget(&self, key: u64) -> Option<u64> {
        lock(&self.accepting).remove(&key)
    }

    /// A request to a listener was answered, from an address that may be anybody's.
    pub fn enter_unconfirmed(&self, key: u64, listener: u64, unproven: Option<Gid>) {
        let mut unconfirmed = lock(&self.unconfirmed);
        unconfirmed.requests.insert(key, (listener, unproven));
        if let Some(address) = unproven {
            *unconfirmed.addresses.entry(address).or_default() += 1;
        }
    }

    /// How many of one address there are.
    pub fn unconfirmed_of(&self, address: Gid) -> u32 {
        lock(&self.unconfirmed).addresses.get(&address).copied().unwrap_or(0)
    }

    /// It was confirmed, or is forgotten.
    pub fn settle_unconfirmed(&self, key: u64) {
        lock(&self.unconfirmed).remove(key);
    }

    /// The oldest of them and its listener, if there are as many as there may be. It is taken off the list.
    pub fn oldest_unconfirmed(&self, limit: usize) -> Option<(u64, u64)> {
        let mut unconfirmed = lock(&self.unconfirmed);
        let oldest = *unconfirmed.requests.first_key_value()?.0;
        if unconfirmed.requests.len() < limit { None } else { Some((oldest, unconfirmed.remove(oldest)?)) }
    }

    /// A device, opened once.
    pub fn context(&self, device: &Arc<Device>) -> Result<Arc<Context>, Error> {
        let mut contexts = lock(&self.contexts);
        if let Some(found) = contexts.iter().find(|context| Arc::ptr_eq(context.device(), device)) {
            return Ok(Arc::clone(found));
        }
        let _own = OwnCalls::told_by(self.nic.tracing());
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
        let key = id.user();
        // A request that has no socket yet is its listener's.
        let listener = || lock(&self.unconfirmed).requests.get(&key).map(|(listener, _)| *listener);
        let socket = self.find(key).or_else(|| self.find(listener()?))?;
        socket.deliver(Letter::Event(event));
        Some(socket)
    }
}
