//! Listening and accepting. A request is accepted when it comes, by the thread that hears of it; the program takes
//! the connection later.

use crate::connect::{REFUSAL, parameters};
use crate::endpoint::{Endpoint, fitted};
use crate::error::Error;
use crate::events::{Hub, Letter};
use crate::socket::{Phase, Socket, State};
use hca::cm::{Body, Event, Id};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Connections that wait for the program, at least, before more are refused.
const LEAST_BACKLOG: usize = 128;

/// A socket that waits for connections.
#[derive(Debug)]
pub(crate) struct Listening {
    limit: usize,
    /// Accepted, but the peer has not said that it is ready.
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
}

impl Socket {
    /// Waits for connections from now on.
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        let mut state = self.lock();
        let limit = usize::try_from(backlog).unwrap_or(0).max(LEAST_BACKLOG);
        match &mut state.phase {
            Phase::Listening(listening) => listening.limit = limit,
            Phase::Idle | Phase::Bound => {
                self.id.listen(limit as u32)?;
                state.phase = Phase::Listening(Listening { limit, coming: HashMap::new(), waiting: VecDeque::new() });
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
        let full = listening.coming.len() + listening.waiting.len() >= listening.limit;
        match if full { Err(Error::NO_MEMORY) } else { self.socket_for(&event, sizes) } {
            Ok(socket) => {
                listening.coming.insert(socket.key, socket);
            }
            Err(_) => {
                let _ = event.id.reject(REFUSAL, &[]);
            }
        }
    }

    fn socket_for(&self, event: &Event, sizes: rsocket::Sizes) -> Result<Arc<Socket>, Error> {
        let Body::Connection(body) = &event.body else { return Err(Error::INVALID) };
        let key = self.hub.new_key();
        let id: &Arc<Id> = &event.id;
        id.set_user(key);
        let sizes = fitted(sizes);
        let device = id.device().ok_or(Error(libc::ENODEV))?;
        let context = self.hub.context(&device)?;
        let socket = Socket::make(self.hub, key, Arc::clone(id), sizes, Phase::Idle)?;
        let mut endpoint = Endpoint::new(&self.nic, &context, &socket.channel, sizes)?;
        endpoint.protocol.handle_connection_data(&body.private_data)?;
        endpoint.make_ready(id)?;
        let private_data = endpoint.protocol.connection_data().to_bytes();
        let offer = parameters(&private_data, &endpoint);
        self.hub.expect(key, self.key);
        // It is locked while it is accepted: what the peer says next finds it as it should be.
        let mut state = socket.lock();
        state.phase = Phase::Connecting(Box::new(endpoint));
        let accepted = id.accept(&offer);
        if accepted.is_err() {
            state.phase = Phase::Failed;
            self.hub.forget(key);
        }
        drop(state);
        accepted?;
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
