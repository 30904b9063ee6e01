//! Listening and accepting. A request is answered when it comes, by the thread that hears of it; the program takes the
//! connection later.
//!
//! Anybody can ask for a connection in the name of anybody. So nothing but a record is kept of a request until its peer
//! has confirmed the answer, which names numbers that only the owner of the address was told; where there are too many
//! records, the oldest makes room. A process of the same user is believed at once: its first bytes may come through
//! shared memory before its confirmation does.

use crate::connect::{REFUSAL_REASON, parameters};
use crate::endpoint::{Endpoint, Plan};
use crate::error::Error;
use crate::events::{Hub, Letter};
use crate::socket::{Phase, Socket, State};
use hca::cm::{Body, Event, EventKind, Id};
use rsocket::{ConnectionData, Sizes};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use wire::Gid;

/// Connections that wait for the program, at least, before more are refused,
const LEAST_BACKLOG: usize = 128;
/// and at most, whatever the program says: what the kernel has for TCP (`net.core.somaxconn`).
const MOST_BACKLOG: usize = 4096;
/// Requests of all listeners that are answered and not confirmed. At 4,000 a second each has half a second.
const MAX_UNCONFIRMED: usize = 2048;
/// How many of them may have one address, until something has proven that the peer is there; others are dropped, and
/// their peers ask again. Answers to an address of our own network that no host has fill the sockets that send them:
/// the kernel keeps each for three seconds.
const MAX_UNPROVEN: u32 = 8;

/// A socket that waits for connections.
#[derive(Debug)]
pub(crate) struct Listening {
    limit: usize,
    /// Answered, but the peer has not confirmed it.
    unconfirmed: HashMap<u64, Unconfirmed>,
    /// Answered and not confirmed, of peers that are believed.
    coming: HashMap<u64, Arc<Socket>>,
    /// Connected, and not taken by the program.
    waiting: VecDeque<Arc<Socket>>,
}

impl Listening {
    /// Whether the program could take one.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A socket that was coming is connected, or will not be.
    pub fn settle(&mut self, key: u64, connected: bool) {
        if let Some(socket) = self.coming.remove(&key)
            && connected
        {
            self.waiting.push_back(socket);
        }
    }

    /// A request was the oldest of too many.
    pub fn forget(&mut self, key: u64) {
        if let Some(unconfirmed) = self.unconfirmed.remove(&key) {
            unconfirmed.id.forget();
        }
    }
}

/// A request that was answered and not confirmed.
#[derive(Debug)]
struct Unconfirmed {
    hub: &'static Hub,
    key: u64,
    id: Arc<Id>,
    /// What is to be made for it; nothing once it is.
    plan: Option<Plan>,
    /// What the peer said of itself.
    data: [u8; ConnectionData::LENGTH],
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        self.hub.settle_unconfirmed(self.key);
    }
}

impl Socket {
    /// Waits for connections from now on.
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        let mut state = self.lock();
        let limit = usize::try_from(backlog).unwrap_or(0).clamp(LEAST_BACKLOG, MOST_BACKLOG);
        match &mut state.phase {
            Phase::Listening(listening) => listening.limit = limit,
            Phase::Idle | Phase::Bound | Phase::Stopped => {
                self.id.listen(limit as u32)?;
                let (unconfirmed, coming, waiting) = Default::default();
                state.phase = Phase::Listening(Listening { limit, unconfirmed, coming, waiting });
            }
            _ => return Err(Error::INVALID),
        }
        Ok(())
    }

    /// The oldest connection that waits.
    pub fn accept(&self) -> Result<Arc<Socket>, Error> {
        let mut state = self.lock();
        match &mut state.phase {
            Phase::Listening(listening) => listening.waiting.pop_front().ok_or(Error::WOULD_BLOCK),
            _ => Err(Error::INVALID),
        }
    }

    /// A peer asks for a connection.
    pub(crate) fn requested(&self, state: &mut State, event: Event) {
        let sizes = state.sizes;
        let Phase::Listening(listening) = &mut state.phase else { return };
        let unproven = event.id.unproven_address();
        if unproven.is_some_and(|address| self.hub.unconfirmed_of(address) >= MAX_UNPROVEN) {
            return event.id.forget();
        }
        let answered = match listening.coming.len() + listening.waiting.len() >= listening.limit {
            true => Err(Error::NO_MEMORY),
            false if event.id.is_asked_by_our_user() => self.answer_ours(listening, &event, sizes),
            false => self.answer(listening, &event, sizes, unproven),
        };
        if answered.is_err() {
            let _ = event.id.reject(REFUSAL_REASON, &[]);
        }
    }

    fn plan_for(&self, event: &Event, sizes: Sizes) -> Result<Plan, Error> {
        let device = event.id.device().ok_or(Error(libc::ENODEV))?;
        Plan::new(&self.nic, &self.hub.context(&device)?, sizes)
    }

    /// Answers a request, and keeps a record of it.
    fn answer(
        &self,
        listening: &mut Listening,
        event: &Event,
        sizes: Sizes,
        unproven: Option<Gid>,
    ) -> Result<(), Error> {
        let Body::Connection(body) = &event.body else { return Err(Error::INVALID) };
        ConnectionData::from_bytes(&body.private_data)?;
        let data = body.private_data.first_chunk().copied().ok_or(Error::INVALID)?;
        if let Some((oldest, listener)) = self.hub.oldest_unconfirmed(MAX_UNCONFIRMED) {
            match self.hub.find(listener).filter(|_| listener != self.key) {
                Some(other) => {
                    other.deliver(Letter::Forget(oldest));
                    other.kick();
                }
                None => listening.forget(oldest),
            }
        }
        let plan = self.plan_for(event, sizes)?;
        let (key, id) = (self.hub.new_key(), Arc::clone(&event.id));
        id.set_user(key);
        let (hub, offer) = (self.hub, plan.connection_data());
        hub.enter_unconfirmed(key, self.key, unproven);
        let unconfirmed = Unconfirmed { hub, key, id, plan: Some(plan), data };
        // What the peer says next waits for the lock of this socket.
        event.id.accept(&parameters(&offer, unconfirmed.plan.as_ref().map_or_else(Default::default, Plan::qpn)))?;
        listening.unconfirmed.insert(key, unconfirmed);
        Ok(())
    }

    /// Answers a request of a process of our own user, and makes its socket.
    fn answer_ours(&self, listening: &mut Listening, event: &Event, sizes: Sizes) -> Result<(), Error> {
        let Body::Connection(body) = &event.body else { return Err(Error::INVALID) };
        let plan = self.plan_for(event, sizes)?;
        let (key, id) = (self.hub.new_key(), &event.id);
        id.set_user(key);
        let offer = plan.connection_data();
        let socket = Socket::make(self.hub, key, Arc::clone(id), plan.sizes, Phase::Idle)?;
        let mut endpoint = Endpoint::new(&self.nic, plan, &socket.channel)?;
        endpoint.protocol.handle_connection_data(&body.private_data)?;
        endpoint.make_ready(id)?;
        self.hub.expect(key, self.key);
        // It is locked while it is accepted: what the peer says next finds it as it should be.
        let mut state = socket.lock();
        let accepted = id.accept(&parameters(&offer, endpoint.parts.qp.qpn()));
        state.phase = Phase::Connecting(Box::new(endpoint));
        if accepted.is_err() {
            state.phase = Phase::Failed;
            self.hub.forget(key);
        }
        drop(state);
        accepted?;
        listening.coming.insert(key, socket);
        Ok(())
    }

    /// Something became of a request that was answered.
    pub(crate) fn settled(&self, state: &mut State, event: Event) {
        let Phase::Listening(listening) = &mut state.phase else { return };
        let key = event.id.user();
        let Some(unconfirmed) = listening.unconfirmed.remove(&key) else {
            // It has a socket meanwhile.
            if let Some(socket) = self.hub.find(key) {
                socket.deliver(Letter::Event(event));
                socket.kick();
            }
            return;
        };
        // Bursts may be longer than the backlog: their requests were answered while there was room.
        if event.kind == EventKind::Established
            && listening.waiting.len() < 2 * listening.limit
            && let Ok(socket) = self.make_connected(unconfirmed)
        {
            listening.waiting.push_back(socket);
        }
    }

    /// The socket of a request that was confirmed.
    fn make_connected(&self, mut unconfirmed: Unconfirmed) -> Result<Arc<Socket>, Error> {
        let Unconfirmed { key, ref id, ref data, .. } = unconfirmed;
        let plan = unconfirmed.plan.take().ok_or(Error::INVALID)?;
        let socket = Socket::make(self.hub, key, Arc::clone(id), plan.sizes, Phase::Idle)?;
        // From now on events come to it, and wait for its lock.
        let mut state = socket.lock();
        let mut endpoint = Endpoint::new(&self.nic, plan, &socket.channel)?;
        endpoint.protocol.handle_connection_data(data)?;
        endpoint.make_ready(id)?;
        endpoint.post_due();
        state.phase = Phase::Connected(Box::new(endpoint));
        drop(state);
        Ok(socket)
    }
}

impl Hub {
    /// A socket that was made for a request to a listener has become a connection, or will not be one: the listener, if
    /// it is still there, is told.
    pub(crate) fn tell_listener(&self, key: u64, connected: bool) {
        let Some(listener) = self.forget(key).and_then(|listener| self.find(listener)) else { return };
        listener.deliver(Letter::Accepted(key, connected));
        listener.kick();
    }
}
