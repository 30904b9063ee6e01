//! The manager itself: the tables by which a message finds its connection, the timers, and what every change of a
//! connection goes through. Nothing here costs more with more connections than a search in an ordered table.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use wire::cm::{CmDatagram, CommId, Data, Message, MessageKind, RejectReason};
use wire::{Gid, Qpn};

use crate::comm_ids::CommIds;
use crate::connection::{Connection, Pending, State};
use crate::listeners::Listeners;
use crate::output::Output;
use crate::sidr::Inquiry;
use crate::{CmError, Config, Event, Listen, ListenError, ListenerId, Time, Transmit};

/// The connection manager of a process. See the [crate's page](crate) for how it is driven.
pub struct Manager {
    pub(crate) config: Config,
    pub(crate) ids: CommIds,
    pub(crate) listeners: Listeners,
    pub(crate) connections: BTreeMap<CommId, Connection>,
    /// Requests for datagram services, ours and the peers'.
    pub(crate) inquiries: BTreeMap<CommId, Inquiry>,
    /// Connections by the peer's address and its name for them.
    pub(crate) by_peer: BTreeMap<(Gid, CommId), CommId>,
    /// Open connections by the peer's address and its queue pair.
    pub(crate) by_qpn: BTreeMap<(Gid, Qpn), CommId>,
    /// Peers' requests for datagram services by their address and their name for them.
    pub(crate) inquiries_by_peer: BTreeMap<(Gid, CommId), CommId>,
    /// Addresses that have proven themselves, and until when they are believed.
    pub(crate) believed: BTreeMap<Gid, Time>,
    pub(crate) timers: BTreeSet<(Time, CommId)>,
    /// When what has ended may be forgotten.
    pub(crate) ended: BTreeSet<(Time, CommId)>,
    /// Requests that their program has not answered.
    pub(crate) half_open: usize,
    /// What peers hear of connections whose owner forgets them.
    pub(crate) parting: Data<220>,
    pub(crate) out: Output,
}

impl Manager {
    /// One that knows nobody.
    pub fn new(config: Config) -> Manager {
        let ids = CommIds::new(config.first, config.last, config.seed);
        Manager {
            config,
            ids,
            listeners: Listeners::default(),
            connections: BTreeMap::new(),
            inquiries: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            inquiries_by_peer: BTreeMap::new(),
            believed: BTreeMap::new(),
            timers: BTreeSet::new(),
            ended: BTreeSet::new(),
            half_open: 0,
            parting: Data::default(),
            out: Output::new(),
        }
    }

    /// Hears requests for a service from now on, for connections and for datagrams.
    pub fn listen(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        self.listeners.add(listen)
    }

    /// Hears no more. Requests that the program has not been told of are rejected; those it was told of are its own to
    /// answer.
    pub fn stop_listening(&mut self, now: Time, listener: ListenerId) {
        let Some(listener) = self.listeners.remove(listener) else { return };
        let untold: Vec<CommId> = listener.waiting.into_iter().filter(|id| !self.is_announced(*id)).collect();
        for id in untold {
            let _ = self.abandon(now, id);
        }
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.transmits.pop_front()
    }

    /// The next thing to tell the program.
    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.out.events.pop_front()?;
        match event {
            Event::Request { id, .. } => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.announced = true;
                }
            }
            Event::ServiceRequest { id, .. } => {
                if let Some(inquiry) = self.inquiries.get_mut(&id) {
                    inquiry.announced = true;
                }
            }
            _ => {}
        }
        Some(event)
    }

    /// When [`handle_timeout`](Manager::handle_timeout) wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        let first = |set: &BTreeSet<(Time, CommId)>| set.first().map(|(when, _)| *when);
        match (first(&self.timers), first(&self.ended)) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Whether state changes are kept for [`poll_trace`](Manager::poll_trace).
    pub fn set_tracing(&mut self, tracing: bool) {
        self.out.tracing = tracing;
    }

    /// The next state change, for the trace.
    pub fn poll_trace(&mut self) -> Option<trace::Event> {
        self.out.take_trace()
    }

    /// Messages that went no further since the last call, by reason: those that fit no connection or not its state,
    /// and those for which there is no room. They are counted whether anyone traces or not.
    pub fn take_drops(&mut self) -> Vec<(trace::DropReason, u64)> {
        self.out.take_drops()
    }

    /// Counts a message that the driver of the manager does not hand to it.
    pub fn drop_message(&mut self, now: Time, datagram: &CmDatagram, reason: trace::DropReason) {
        self.out.drop_message(now, crate::inbound::named(&datagram.message), datagram.message.kind(), reason);
    }

    /// What state a connection is in; nothing once it is forgotten.
    pub fn state(&self, id: CommId) -> Option<State> {
        self.connections.get(&id).map(|connection| connection.state)
    }

    /// Whether the peer of a connection has proven that it is at its address.
    pub fn is_proven(&self, id: CommId) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.proven)
    }

    /// How many connections and requests there are, without those that have ended.
    pub fn live(&self) -> usize {
        self.connections.len() + self.inquiries.len() - self.ended.len()
    }

    /// How many there are, with those that have ended and are remembered for the sake of late messages.
    pub fn remembered(&self) -> usize {
        self.connections.len() + self.inquiries.len()
    }

    fn is_announced(&self, id: CommId) -> bool {
        match (self.connections.get(&id), self.inquiries.get(&id)) {
            (Some(connection), _) => connection.announced,
            (None, Some(inquiry)) => inquiry.announced,
            (None, None) => false,
        }
    }

    /// A name for a new connection.
    pub(crate) fn new_id(&mut self) -> Result<CommId, CmError> {
        // Ids of the same moment may all be taken only if most of the range is.
        for _ in 0..self.ids.count().min(64) {
            let id = self.ids.draw();
            if !self.connections.contains_key(&id) && !self.inquiries.contains_key(&id) {
                return Ok(id);
            }
        }
        Err(CmError::NoId)
    }

    /// A transaction of ours, about the connection `id`.
    pub(crate) fn transaction(&self, id: CommId) -> u64 {
        self.ids.transaction(id)
    }

    pub(crate) fn connection(&mut self, id: CommId) -> Result<&mut Connection, CmError> {
        self.connections.get_mut(&id).filter(|connection| connection.owned).ok_or(CmError::UnknownId(id))
    }

    /// The connection, if the program may make this call in its state.
    pub(crate) fn allowed(
        &mut self,
        id: CommId,
        call: &'static str,
        states: &[State],
    ) -> Result<&mut Connection, CmError> {
        let connection = self.connection(id)?;
        let state = connection.state;
        if states.contains(&state) { Ok(connection) } else { Err(CmError::WrongState { id, call, state }) }
    }

    pub(crate) fn insert(&mut self, now: Time, id: CommId, connection: Connection, message: Option<MessageKind>) {
        self.half_open += usize::from(connection.state.is_half_open());
        self.out.trace(now, connection.local_qpn, id, None, Some(connection.state), message);
        self.connections.insert(id, connection);
    }

    /// Moves a connection to another state. What waited for an answer waits no more.
    pub(crate) fn enter(&mut self, now: Time, id: CommId, state: State, message: Option<MessageKind>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let from = core::mem::replace(&mut connection.state, state);
        self.half_open -= usize::from(from.is_half_open());
        self.half_open += usize::from(state.is_half_open());
        connection.pending = None;
        if let Some(when) = connection.timer.take() {
            self.timers.remove(&(when, id));
        }
        if !state.is_open() {
            let key = (connection.route.destination, connection.remote_qpn);
            if self.by_qpn.get(&key) == Some(&id) {
                self.by_qpn.remove(&key);
            }
        }
        self.out.trace(now, connection.local_qpn, id, Some(from), Some(state), message);
        if !state.is_half_open() {
            self.release(id);
        }
    }

    /// Sends a message and repeats it until it is answered.
    pub(crate) fn send_until_answered(&mut self, now: Time, id: CommId, datagram: CmDatagram) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.may_send(0) {
            self.out.send(connection.route, datagram);
        }
        let pending = Pending::new(now, datagram, &connection.patience, self.config.eager);
        let deadline = pending.deadline(now);
        connection.pending = Some(pending);
        self.set_timer(id, deadline);
    }

    pub(crate) fn set_timer(&mut self, id: CommId, when: Time) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(old) = connection.timer.replace(when) {
            self.timers.remove(&(old, id));
        }
        self.timers.insert((when, id));
    }

    /// The connection is over. What is left answers late messages for a while, with `answer` where it was the last
    /// word.
    pub(crate) fn end(&mut self, now: Time, id: CommId, answer: Option<CmDatagram>, message: Option<MessageKind>) {
        self.enter(now, id, State::Timewait, message);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        // A peer that did not hear the refusal asks again, and much later than packets are late.
        let refused = matches!(&answer, Some(CmDatagram { message: Message::Rej(_), .. }));
        let shortest = if refused { REFUSAL_REMEMBERED } else { Duration::ZERO };
        let until = now + connection.patience.timewait.max(shortest);
        connection.answer = answer.map(Box::new);
        connection.timer = Some(until);
        self.rest(now, id, until);
    }

    /// Remembers something that has ended, and forgets the oldest where there are too many.
    pub(crate) fn rest(&mut self, now: Time, id: CommId, until: Time) {
        self.ended.insert((until, id));
        while self.ended.len() > self.config.timewait {
            let Some((_, oldest)) = self.ended.pop_first() else { break };
            self.forget_ended(now, oldest);
        }
    }

    /// Timewait is over, on time or before. The caller took it from the table of what has ended.
    pub(crate) fn forget_ended(&mut self, now: Time, id: CommId) {
        if let Some(mut connection) = self.connections.remove(&id) {
            connection.timer = None;
            if connection.owned && connection.lasting {
                self.out.tell(Event::TimewaitEnded { id });
            }
            self.unlist(now, id, &connection);
        } else {
            self.forget_inquiry(id);
        }
    }

    /// Forgets a connection at once.
    pub(crate) fn remove(&mut self, now: Time, id: CommId) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.half_open -= usize::from(connection.state.is_half_open());
        self.unlist(now, id, &connection);
    }

    fn unlist(&mut self, now: Time, id: CommId, connection: &Connection) {
        let gid = connection.route.destination;
        if self.by_peer.get(&(gid, connection.peer)) == Some(&id) {
            self.by_peer.remove(&(gid, connection.peer));
        }
        if self.by_qpn.get(&(gid, connection.remote_qpn)) == Some(&id) {
            self.by_qpn.remove(&(gid, connection.remote_qpn));
        }
        if let Some(when) = connection.timer {
            self.timers.remove(&(when, id));
            self.ended.remove(&(when, id));
        }
        if let Some(listener) = connection.listener.and_then(|listener| self.listeners.get_mut(listener)) {
            listener.waiting.remove(&id);
        }
        self.out.trace(now, connection.local_qpn, id, Some(connection.state), None, None);
    }

    /// A request no longer counts for the backlog.
    pub(crate) fn release(&mut self, id: CommId) {
        let listener = match (self.connections.get_mut(&id), self.inquiries.get_mut(&id)) {
            (Some(connection), _) => connection.listener.take(),
            (None, Some(inquiry)) => inquiry.listener.take(),
            (None, None) => None,
        };
        if let Some(listener) = listener.and_then(|listener| self.listeners.get_mut(listener)) {
            listener.waiting.remove(&id);
        }
    }

    /// Tells the owner of a connection, if it has one.
    pub(crate) fn tell(&mut self, event: Event) {
        if self.connections.get(&event.id()).is_some_and(|connection| connection.owned) {
            self.out.tell(event);
        }
    }

    /// Ends a connection with a REJ that a repeated message will get again.
    pub(crate) fn reject_and_end(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejectReason,
        ari: &[u8],
        private_data: Data<148>,
    ) -> Result<(), CmError> {
        let Some(connection) = self.connections.get_mut(&id) else { return Err(CmError::UnknownId(id)) };
        let rej = connection.rej(id, reason, ari, private_data)?;
        if connection.may_send(0) {
            self.out.send(connection.route, rej);
        }
        connection.owned = false;
        self.out.forget(id);
        self.end(now, id, Some(rej), None);
        Ok(())
    }

    /// Asks the peer to disconnect.
    pub(crate) fn send_dreq(&mut self, now: Time, id: CommId, private_data: Data<220>) {
        let transaction = self.transaction(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let dreq = connection.dreq(id, transaction, private_data);
        connection.lasting = true;
        self.enter(now, id, State::DreqSent, None);
        self.send_until_answered(now, id, dreq);
    }
}

/// How long a refusal is remembered, so that the peer's repeated request gets it again and is no new one: the kernel
/// repeats after four seconds.
const REFUSAL_REMEMBERED: Duration = Duration::from_secs(10);

/// The longest that a peer may ask us to wait, in the words of an MRA.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(138);
