//! What the program does with connections: connect, accept, reject, delay, confirm, disconnect, abandon.

use alloc::boxed::Box;
use alloc::vec::Vec;

use wire::cm::{CommId, Data, RejectReason, ServiceId};
use wire::{Psn, Timeout};

use crate::connection::{Connection, State};
use crate::messages::{data, drep, process_ended, rep, req, with_options};
use crate::{Accept, CmError, Connect, Event, Manager, Orphan, Time};

impl Manager {
    /// Asks a peer for a connection. It ends in [`Event::Reply`], [`Event::Rejected`] or [`Event::TimedOut`].
    pub fn connect(&mut self, now: Time, connect: Connect) -> Result<CommId, CmError> {
        let id = self.new_id()?;
        let message = req(id, &connect)?;
        let transaction = self.transaction(id);
        self.insert(now, id, Connection::active(&connect, transaction), None);
        self.send_until_answered(now, id, with_options(transaction, message, connect.ece));
        Ok(id)
    }

    /// Says that the program has taken the request from its listener, so that it no longer counts for the backlog.
    /// Accepting and rejecting say so too.
    pub fn taken(&mut self, id: CommId) {
        self.release(id);
    }

    /// Accepts a request. It ends in [`Event::Established`], [`Event::Rejected`] or [`Event::TimedOut`].
    pub fn accept(&mut self, now: Time, id: CommId, accept: Accept) -> Result<(), CmError> {
        let connection = self.allowed(id, "accept", &[State::ReqReceived, State::MraReqSent])?;
        let message = rep(id, connection, &accept)?;
        connection.local_qpn = accept.qpn;
        connection.answer = None;
        let transaction = connection.transaction;
        self.enter(now, id, State::RepSent, None);
        self.send_until_answered(now, id, with_options(transaction, message, accept.ece));
        Ok(())
    }

    /// Ends an attempt, from either side. There are no more events of it.
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejectReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = data("private data", private_data)?;
        let connection = self.connection(id)?;
        if connection.state >= State::Established {
            return Err(CmError::WrongState { id, call: "reject", state: connection.state });
        }
        self.reject_and_end(now, id, reason, ari, private_data)
    }

    /// Tells the peer that the answer to its REQ or REP will take up to `service_timeout`.
    pub fn delay(
        &mut self,
        now: Time,
        id: CommId,
        service_timeout: Timeout,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = data("private data", private_data)?;
        let states = [State::ReqReceived, State::MraReqSent, State::RepReceived, State::MraRepSent];
        let connection = self.allowed(id, "delay", &states)?;
        let mra = connection.mra(id, service_timeout, private_data);
        connection.answer = Some(Box::new(mra));
        let (route, half_open) = (connection.route, connection.state.is_half_open());
        // Otherwise it goes when the peer repeats its request.
        if connection.may_send(1) {
            self.out.send(route, mra);
        }
        // The request stays where it is in the backlog, which entering a state would not change.
        self.enter(now, id, if half_open { State::MraReqSent } else { State::MraRepSent }, None);
        Ok(())
    }

    /// Confirms the peer's reply: the connection is established.
    pub fn confirm(&mut self, now: Time, id: CommId, private_data: &[u8]) -> Result<(), CmError> {
        let private_data = data("private data", private_data)?;
        let connection = self.allowed(id, "confirm", &[State::RepReceived, State::MraRepSent])?;
        let rtu = connection.rtu(id, private_data);
        // Should it be lost, the peer repeats its reply and gets another, or it comes again by itself.
        connection.answer = Some(Box::new(rtu));
        connection.lasting = true;
        let route = connection.route;
        self.out.send(route, rtu);
        self.enter(now, id, State::Established, None);
        self.repeat_rtu(now, id, true);
        Ok(())
    }

    /// Says that data came before the peer's confirmation did: the connection is established all the same.
    pub fn established(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        match self.connection(id)?.state {
            State::RepSent | State::MraRepReceived => {
                self.establish(now, id, None);
                Ok(())
            }
            State::Established | State::DreqReceived => Ok(()),
            state => Err(CmError::WrongState { id, call: "establish", state }),
        }
    }

    /// Ends a connection: with a DREQ, or with the answer to the peer's. A DREQ ends in [`Event::Disconnected`] or
    /// [`Event::TimedOut`].
    pub fn disconnect(&mut self, now: Time, id: CommId, private_data: &[u8]) -> Result<(), CmError> {
        match self.connection(id)?.state {
            State::Established => {
                let private_data = data("private data", private_data)?;
                self.send_dreq(now, id, private_data);
                Ok(())
            }
            State::DreqReceived => self.answer_disconnect(now, id, private_data),
            state => Err(CmError::WrongState { id, call: "disconnect", state }),
        }
    }

    /// A message about an established connection that its peer passes over in silence: our RTU once more, or in its
    /// direction the first. Whether it arrives is for the driver to see.
    pub fn reminder(&mut self, id: CommId, private_data: &[u8]) -> Option<crate::Transmit> {
        let private_data = data("private data", private_data).ok()?;
        let connection = self.allowed(id, "remind of", &[State::Established]).ok()?;
        Some(crate::Transmit { route: connection.route, datagram: connection.rtu(id, private_data), again: true })
    }

    /// Says that a [suspected](Event::Suspected) peer was asked and does not answer: it does not have the connection
    /// any more. It ends as if the program had disconnected. One that has ended in the meantime is left alone.
    pub fn peer_lost(&mut self, now: Time, id: CommId) {
        if self.state(id) == Some(State::Established) {
            self.send_dreq(now, id, Data::default());
        }
    }

    /// Agrees to the peer's DREQ.
    pub fn answer_disconnect(&mut self, now: Time, id: CommId, private_data: &[u8]) -> Result<(), CmError> {
        let private_data = data("private data", private_data)?;
        let connection = self.allowed(id, "answer the disconnection of", &[State::DreqReceived])?;
        let answer = drep(connection.transaction, id, connection.peer, private_data);
        let route = connection.route;
        self.out.send(route, answer);
        self.end(now, id, Some(answer), None);
        Ok(())
    }

    /// The owner forgets a connection or a request, whatever its state. The peer is told what it must be told; there
    /// are no more events.
    pub fn abandon(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        self.out.forget(id);
        if self.inquiries.contains_key(&id) {
            return self.abandon_inquiry(now, id);
        }
        let connection = self.connection(id)?;
        let (state, ca_guid) = (connection.state, connection.ca_guid);
        connection.owned = false;
        match state {
            State::ReqSent | State::MraReqReceived => {
                // The peer does not know our name for sure: it finds the request by our channel adapter.
                let ari = ca_guid.to_be_bytes();
                self.reject_and_end(now, id, RejectReason::Timeout, &ari, Data::default())?;
            }
            State::Established => self.send_dreq(now, id, self.parting),
            State::DreqSent => {}
            State::DreqReceived => {
                if let Some(connection) = self.connections.get(&id) {
                    let answer = drep(connection.transaction, id, connection.peer, Data::default());
                    self.out.send(connection.route, answer);
                    self.end(now, id, Some(answer), None);
                }
            }
            State::Timewait => {}
            _ => self.reject_and_end(now, id, RejectReason::Consumer, &[], Data::default())?,
        }
        Ok(())
    }

    /// Forgets a request that its peer has not confirmed, at once: there are more of them than can be kept. A peer that
    /// has proven its address is told. Nothing is remembered: who asks again asks anew. Anything else is
    /// [abandoned](Manager::abandon).
    pub fn forget(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        let unconfirmed = [State::ReqReceived, State::MraReqSent, State::RepSent, State::MraRepReceived];
        if self.state(id).is_none_or(|state| !unconfirmed.contains(&state)) {
            return self.abandon(now, id);
        }
        let connection = self.connection(id)?;
        let rej = connection.rej(id, RejectReason::NoResources, &[], Data::default())?;
        let (route, proven) = (connection.route, connection.proven);
        if proven {
            self.out.send(route, rej);
        }
        self.out.forget(id);
        self.remove(now, id);
        Ok(())
    }

    /// Disconnects a connection of another manager, whose process died: its peer would wait for it in vain, and hears
    /// [why](crate::PROCESS_ENDED). There are no events of it. Its id may be outside of our range; messages for it
    /// belong here from now on.
    pub fn disconnect_orphan(&mut self, now: Time, orphan: Orphan) -> Result<(), CmError> {
        if self.connections.contains_key(&orphan.id) || self.inquiries.contains_key(&orphan.id) {
            return Err(CmError::OutOfRange("the communication id of the orphan"));
        }
        let connect = Connect::new(orphan.route, ServiceId::new(0), orphan.local_qpn, Psn::new(0));
        let connection = Connection {
            peer: orphan.peer,
            remote_qpn: orphan.remote_qpn,
            owned: false,
            state: State::Established,
            ..Connection::active(&connect, self.transaction(orphan.id))
        };
        self.insert(now, orphan.id, connection, None);
        self.send_dreq(now, orphan.id, process_ended());
        Ok(())
    }

    /// The program ends: everything it has is abandoned. Peers of its connections hear [why](crate::PROCESS_ENDED).
    pub fn abandon_all(&mut self, now: Time) {
        self.parting = process_ended();
        self.out.events.clear();
        let ids: Vec<CommId> = self.connections.keys().chain(self.inquiries.keys()).copied().collect();
        for id in ids {
            let _ = self.abandon(now, id);
        }
    }

    /// The passive side is sure of the connection.
    pub(crate) fn establish(&mut self, now: Time, id: CommId, message: Option<wire::cm::MessageKind>) {
        self.enter(now, id, State::Established, message);
        self.prove(now, id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.lasting = true;
        }
        self.tell(Event::Established { id });
    }
}
