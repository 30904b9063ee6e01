//! A stream socket: what it is at the moment, its lock, and who is told when that changes.

use crate::accept::Listening;
use crate::connect::CONNECTION_BROKE;
use crate::deferred_tasks::{self, DeferredTask};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::events::{Hub, Letter};
use crate::iomap::IoMaps;
use crate::settings::Settings;
use crate::shutdown::Broken;
use crate::wait::{Waitable, Waiters};
use hca::cm::{Id, IdOption};
use hca::{CompletionChannel, Nic, Notify};
use rsocket::{Sizes, Transfer};
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use transport::Kind;
use wire::cm::PortSpace;
use wire::refuse_if;

/// A stream socket.
pub struct Socket {
    pub(crate) nic: Arc<Nic>,
    pub(crate) hub: &'static Hub,
    /// Its number among the sockets of the process.
    pub(crate) key: u64,
    pub(crate) id: Arc<Id>,
    /// Where completions come.
    pub(crate) channel: Arc<CompletionChannel>,
    state: Mutex<State>,
    /// What the connection manager has to say, and what other sockets do.
    inbox: Mutex<VecDeque<Letter>>,
    /// There is something in the inbox, or in the completion queue of a socket that is observed.
    news: AtomicBool,
    /// Calls that wait.
    waiters: Arc<Waiters>,
    /// One caller at a time sends, and one receives.
    pub(crate) send_turn: Mutex<()>,
    pub(crate) receive_turn: Mutex<()>,
    /// The program has lent memory, of which the peer may have to be told.
    pub(crate) lends: AtomicBool,
    observer: OnceLock<Box<dyn Fn() + Send + Sync>>,
    telling: Mutex<()>,
    untold: AtomicBool,
    /// The program has closed it, and it has not sent everything.
    lingers: AtomicBool,
    /// It has given back what it had.
    pub(crate) ended: AtomicBool,
}

/// What a socket is at the moment.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub phase: Phase,
    pub sizes: Sizes,
    /// What went wrong, until the program has asked.
    pub error: i32,
    /// The program has been told of the failure by a call.
    pub failure_told: bool,
    /// The connection ended though neither side had closed it.
    pub broken: Option<Broken>,
    pub io_maps: IoMaps,
    /// The queue pair failed: the peer is told of it, once.
    pub peer_told: bool,
    /// It is to be told when the lock has been let go.
    tells_peer: bool,
    /// Completions are looked at when they come, perhaps by a thread in the middle of the NIC: it must not drive.
    observed: bool,
    /// Something is different from what sleepers and the observer know.
    changed: bool,
}

/// How far a socket is.
#[derive(Debug, Default)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Bound,
    Listening(Listening),
    /// A request is on its way, or an answer to one.
    Connecting(Box<Endpoint>),
    /// There is a connection, or there was.
    Connected(Box<Endpoint>),
    /// It has listened, and may again.
    Stopped,
    /// There will be none.
    Failed,
}

/// What a program could do without waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// A read, or an accept, would not wait.
    pub readable: bool,
    /// A write would not wait.
    pub writable: bool,
    /// The peer sends no more.
    pub peer_closed: bool,
    /// Both directions have ended.
    pub hung_up: bool,
    /// Something went wrong.
    pub failed: bool,
}

/// What may be set on a socket that the connection manager must know.
pub type SocketOption = IdOption;

impl Socket {
    /// A fresh socket.
    pub fn new() -> Result<Arc<Socket>, Error> {
        let hub = Hub::of_process()?;
        let key = hub.new_key();
        let id = Id::new(hub.nic(), hub.events(), PortSpace::Tcp, Kind::ReliableConnected, key);
        Socket::make(hub, key, id, Settings::of_process().sizes, Phase::Idle)
    }

    pub(crate) fn make(
        hub: &'static Hub,
        key: u64,
        id: Arc<Id>,
        sizes: Sizes,
        phase: Phase,
    ) -> Result<Arc<Socket>, Error> {
        let waiters = Arc::<Waiters>::default();
        let socket = Arc::new(Socket {
            nic: Arc::clone(hub.nic()),
            hub,
            key,
            id,
            channel: waiters.channel(),
            state: Mutex::new(State { phase, sizes, ..State::default() }),
            inbox: Mutex::default(),
            news: AtomicBool::new(false),
            waiters,
            send_turn: Mutex::default(),
            receive_turn: Mutex::default(),
            lends: AtomicBool::new(false),
            observer: OnceLock::new(),
            telling: Mutex::default(),
            untold: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        hub.enter(key, &socket);
        Ok(socket)
    }

    /// Its own address, as far as it has one.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.source()
    }

    /// Its peer's.
    pub fn peer_address(&self) -> Result<SocketAddr, Error> {
        match self.lock().phase {
            Phase::Connected(_) | Phase::Connecting(_) => self.id.destination().ok_or(Error::NOT_CONNECTED),
            _ => Err(Error::NOT_CONNECTED),
        }
    }

    /// Takes an address.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Error> {
        let mut state = self.lock();
        refuse_if!(!matches!(state.phase, Phase::Idle), Error::INVALID);
        self.id.bind(address)?;
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Sets something that the connection manager must know.
    pub fn set(&self, option: SocketOption) -> Result<(), Error> {
        Ok(self.id.set(option)?)
    }

    /// Its sizes: those it has, or those that it will ask for.
    pub fn sizes(&self) -> Sizes {
        self.lock().sizes
    }

    /// Changes the sizes it will have. Once it has a queue pair, `EINVAL`.
    pub fn set_sizes(&self, change: impl FnOnce(&mut Sizes)) -> Result<(), Error> {
        let mut state = self.lock();
        refuse_if!(matches!(state.phase, Phase::Connecting(_) | Phase::Connected(_) | Phase::Failed), Error::INVALID);
        change(&mut state.sizes);
        Ok(())
    }

    /// What went wrong since the program last asked: an errno, or 0.
    pub fn take_error(&self) -> i32 {
        std::mem::take(&mut self.lock().error)
    }

    /// The most payload of a packet to the peer.
    pub fn segment(&self) -> Option<u32> {
        self.id.path().map(|path| path.mtu.bytes())
    }

    /// The way to the peer, once it is known.
    pub fn path(&self) -> Option<hca::cm::PathFacts> {
        self.id.path()
    }

    /// Whether there is a connection that neither side has ended.
    pub fn is_connected(&self) -> bool {
        matches!(&self.lock().phase, Phase::Connected(endpoint) if endpoint.protocol.is_connected())
    }

    /// Whether it waits for connections.
    pub fn is_listening(&self) -> bool {
        matches!(self.lock().phase, Phase::Listening(_))
    }

    /// Calls `observer` whenever something may be different, in whichever thread found it, with no lock held. Set
    /// once; false if there was one. From then on completions are looked at when they come, and not when the program
    /// asks.
    pub fn observe(self: &Arc<Socket>, observer: impl Fn() + Send + Sync + 'static) -> bool {
        if self.observer.set(Box::new(observer)).is_err() {
            return false;
        }
        self.look_when_it_changes();
        true
    }

    /// The program has closed it: from now on each change is a look whether everything was sent.
    pub(crate) fn begin_to_linger(&self) {
        self.lingers.store(true, Ordering::SeqCst);
        self.look_when_it_changes();
    }

    fn look_when_it_changes(&self) {
        let mut state = self.lock();
        state.observed = true;
        if let Phase::Connected(endpoint) | Phase::Connecting(endpoint) = &state.phase {
            self.watch_completions(endpoint);
        }
        drop(state);
        self.kick();
        self.tell_observer();
    }

    /// Whether completions are looked at when they come.
    pub(crate) fn is_observed(&self) -> bool {
        self.observer.get().is_some() || self.lingers.load(Ordering::SeqCst)
    }

    /// Has completions of a queue pair looked at when they come.
    pub(crate) fn watch_completions(&self, endpoint: &Endpoint) {
        let (hub, key) = (self.hub, self.key);
        endpoint.parts.cq.observe(move || {
            if let Some(socket) = hub.find(key) {
                deferred_tasks::in_the_nic(|| socket.kick());
                // Its program may have let go of it meanwhile, and then this is its last owner.
                if let Some(socket) = Arc::into_inner(socket) {
                    hub.defer(Arc::new(socket), DeferredTask::Release);
                }
            }
        });
    }

    /// Takes the lock. The thread that releases it handles what has come meanwhile.
    pub(crate) fn lock(&self) -> Guard<'_> {
        Guard { socket: self, state: Some(self.state.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        Some(Guard { socket: self, state: Some(self.try_state()?) })
    }

    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether its program has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.lingers.load(Ordering::Relaxed)
    }

    /// Puts something into the inbox. [`kick`](Socket::kick) is due.
    pub(crate) fn deliver(&self, letter: Letter) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push_back(letter);
    }

    fn next_letter(&self) -> Option<Letter> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn has_letters(&self) -> bool {
        !self.inbox.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// There is something to see to. If the socket is locked, the lock's holder does.
    pub(crate) fn kick(&self) {
        self.news.store(true, Ordering::SeqCst);
        self.see_to_news();
    }

    fn see_to_news(&self) {
        loop {
            // Between storing the flag, or letting go of the lock, and the look at the other.
            fence(Ordering::SeqCst);
            if !self.news.load(Ordering::SeqCst) {
                return;
            }
            let Some(mut state) = self.try_state() else { return };
            self.news.store(false, Ordering::SeqCst);
            let in_nic = deferred_tasks::is_in_nic();
            while !in_nic && let Some(letter) = self.next_letter() {
                self.open(&mut state, letter);
                state.changed = true;
            }
            if self.is_observed() {
                state.progress();
            }
            self.unlock(state);
            if in_nic
                && self.has_letters()
                && let Some(socket) = self.hub.find(self.key)
            {
                self.hub.defer(socket, DeferredTask::HandleCmEvents);
            }
        }
    }

    /// Lets go of the lock, and tells those who should know what has changed.
    fn unlock(&self, mut state: MutexGuard<'_, State>) {
        let changed = std::mem::take(&mut state.changed);
        let tells_peer = std::mem::take(&mut state.tells_peer);
        drop(state);
        if tells_peer {
            self.tell_peer_of_failure();
        }
        if changed {
            self.waiters.wake();
            self.tell_observer();
        }
    }

    /// Ends a connection whose queue pair has failed: nothing else tells a peer that only reads. Nor may the peer take
    /// this for the end of the stream, as bytes may be lost.
    pub(crate) fn tell_peer_of_failure(&self) {
        if !deferred_tasks::is_in_nic() {
            let _ = self.id.disconnect_with(CONNECTION_BROKE);
        } else if let Some(socket) = self.hub.find(self.key) {
            self.hub.defer(socket, DeferredTask::TellPeer);
        }
    }

    fn tell_observer(&self) {
        if !self.is_observed() {
            return;
        }
        self.untold.store(true, Ordering::SeqCst);
        loop {
            fence(Ordering::SeqCst);
            if !self.untold.load(Ordering::SeqCst) {
                return;
            }
            let Ok(turn) = self.telling.try_lock() else { return };
            while self.untold.swap(false, Ordering::SeqCst) {
                if let Some(observer) = self.observer.get() {
                    observer();
                }
                if self.lingers.load(Ordering::SeqCst) {
                    self.let_go_if_flushed();
                }
            }
            drop(turn);
        }
    }
}

impl Waitable for Socket {
    fn nic(&self) -> &Arc<Nic> {
        &self.nic
    }

    fn channel(&self) -> &Arc<CompletionChannel> {
        &self.channel
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    fn arm(&self) {
        if let Phase::Connected(endpoint) | Phase::Connecting(endpoint) = &self.lock().phase {
            endpoint.parts.cq.arm(Notify::Any);
        }
    }

    fn readiness(&self) -> Readiness {
        let mut state = self.lock();
        state.progress();
        match &state.phase {
            Phase::Idle | Phase::Bound | Phase::Connecting(_) => Readiness::default(),
            Phase::Listening(listening) => Readiness { readable: listening.has_waiting(), ..Readiness::default() },
            Phase::Stopped => Readiness { readable: true, peer_closed: true, hung_up: true, ..Readiness::default() },
            Phase::Failed => Readiness { readable: true, writable: true, failed: true, ..Readiness::default() },
            Phase::Connected(endpoint) => {
                let protocol = &endpoint.protocol;
                let ended = !protocol.is_connected();
                Readiness {
                    readable: protocol.unread() > 0 || !protocol.is_readable(),
                    writable: ended || !protocol.is_writable() || protocol.can_send(),
                    peer_closed: !protocol.is_readable(),
                    // Not before the program has read what came before.
                    hung_up: protocol.is_disconnected() && protocol.unread() == 0,
                    failed: protocol.has_failed(),
                }
            }
        }
    }
}

impl State {
    /// The connection, or why there is none.
    pub fn connection(&mut self) -> Result<&mut Endpoint, Error> {
        match &mut self.phase {
            Phase::Connected(endpoint) => Ok(endpoint),
            // It may become one.
            Phase::Connecting(_) => Err(Error::WOULD_BLOCK),
            _ => Err(Error::NOT_CONNECTED),
        }
    }

    /// Takes what has completed.
    pub fn progress(&mut self) {
        let drives = !self.observed;
        self.progress_with(|endpoint| (endpoint.progress(drives), 0));
    }

    /// Takes what has completed; bytes that come meanwhile go to `room` at once, if they can: see
    /// [`Endpoint::progress_into`].
    pub fn progress_into(&mut self, room: &mut [u8]) -> usize {
        let drives = !self.observed;
        self.progress_with(|endpoint| match drives {
            true => endpoint.progress_into(room),
            false => (endpoint.progress(false), 0),
        })
    }

    fn progress_with(&mut self, progress: impl FnOnce(&mut Endpoint) -> (bool, usize)) -> usize {
        let Phase::Connected(endpoint) = &mut self.phase else { return 0 };
        let (any, bytes) = progress(endpoint);
        if any {
            self.changed = true;
            if endpoint.protocol.has_failed() {
                self.tells_peer |= !std::mem::replace(&mut self.peer_told, true);
                if !self.failure_told && self.error == 0 {
                    self.error = libc::EIO;
                }
            }
        }
        bytes
    }

    /// The queue pair took no work for a transfer: the connection is over.
    pub fn could_not_post(&mut self, transfer: &Transfer) -> Result<(), Error> {
        self.connection()?.protocol.handle_sent(transfer.wr_id(), false);
        self.tells_peer |= !std::mem::replace(&mut self.peer_told, true);
        self.changed = true;
        Ok(())
    }

    /// Something is different.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }
}

/// The lock of a socket. The thread that releases it handles what has come meanwhile.
pub(crate) struct Guard<'a> {
    socket: &'a Socket,
    /// There until it is dropped.
    state: Option<MutexGuard<'a, State>>,
}

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_deref().expect("the lock is held until this is dropped")
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_deref_mut().expect("the lock is held until this is dropped")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.socket.unlock(state);
            self.socket.see_to_news();
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "socket {}", self.key)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.hub.leave(self.key);
        crate::keep_alive::forget(self.key);
        // The last owner may be an observer, in the middle of the NIC: it has nothing to do then.
        if !self.ended.load(Ordering::Acquire) {
            self.take_all_back();
            self.id.destroy();
        }
    }
}
