//! What arrives. Every message may come at any time, twice, late, or from a stranger that makes it up: it moves a
//! connection only if it fits the connection's state and comes from its peer. A repeated message gets the answer that
//! the first one got.

use alloc::boxed::Box;

use trace::DropReason;
use wire::cm::{
    CmDatagram, CommId, Data, Drep, Dreq, Lap, Message, MessageKind, Mra, ReceivedMessage, Rej, RejectReason,
    RejectedMessage, Rep, Req, Rtu,
};
use wire::mad::MadHeader;
use wire::{Qpn, refuse_if};

use crate::connection::{Connection, Fingerprint, State};
use crate::manager::LONGEST_DELAY;
use crate::messages::{apr, drep, stateless_rej};
use crate::output::Passed;
use crate::timeouts::MRA_SERVICE_TIMEOUT;
use crate::{Ece, Event, Manager, Route, Time};

impl Manager {
    /// Takes a message that arrived. `from` is the way it came: its source is the peer, its destination one of our
    /// addresses.
    pub fn handle(&mut self, now: Time, from: Route, datagram: &CmDatagram) {
        self.take(now, from, datagram, self.believes(now, from.source));
    }

    /// Takes a message that certainly was sent by the owner of its source address.
    pub fn handle_proven(&mut self, now: Time, from: Route, datagram: &CmDatagram) {
        self.take(now, from, datagram, true);
    }

    fn take(&mut self, now: Time, from: Route, datagram: &CmDatagram, proven: bool) {
        let back = from.reversed();
        let header = &datagram.header;
        let passed = match &datagram.message {
            // Zero stands for a name that is not known, so nobody can have it.
            Message::Req(Req { local_comm_id, .. }) | Message::Rep(Rep { local_comm_id, .. })
                if *local_comm_id == CommId::new(0) =>
            {
                Err(DropReason::CmUnknown)
            }
            Message::Req(req) => self.req_arrived(now, back, header, req, proven),
            Message::Mra(mra) => self.mra_arrived(now, back, header, mra),
            Message::Rej(rej) => self.rej_arrived(now, back, header, rej),
            Message::Rep(rep) => self.rep_arrived(now, back, header, rep),
            Message::Rtu(rtu) => self.rtu_arrived(now, back, header, rtu),
            Message::Dreq(dreq) => self.dreq_arrived(now, back, header, dreq),
            Message::Drep(drep) => self.drep_arrived(now, back, header, drep),
            Message::SidrReq(req) => self.sidr_req_arrived(now, back, header, req),
            Message::SidrRep(rep) => self.sidr_rep_arrived(back, header, rep),
            Message::Lap(lap) => self.lap_arrived(now, back, header, lap),
            // We never offer a path.
            Message::Apr(_) => Err(DropReason::CmWrongState),
        };
        if let Err(reason) = passed {
            self.drop_message(now, datagram, reason);
        }
    }

    /// The connection of this name, if it is with the sender.
    fn with(&mut self, id: CommId, back: Route) -> Option<&mut Connection> {
        self.connections.get_mut(&id).filter(|connection| connection.route.destination == back.destination)
    }

    /// The connection of these two names.
    fn between(&mut self, ours: CommId, theirs: CommId, back: Route) -> Option<&mut Connection> {
        self.with(ours, back).filter(|connection| connection.peer == theirs && theirs != CommId::new(0))
    }

    fn req_arrived(&mut self, now: Time, back: Route, header: &MadHeader, req: &Req, proven: bool) -> Passed {
        let fingerprint = Fingerprint::of(header, req);
        let theirs = req.local_comm_id;
        let reject = |manager: &mut Manager, reason| {
            let rej = stateless_rej(header.transaction_id, CommId::new(0), theirs, RejectedMessage::Req, reason);
            manager.out.answer_stranger(now, back, rej)
        };
        if let Some(&id) = self.by_peer.get(&(back.destination, theirs)) {
            match self.connections.get(&id) {
                Some(connection) if connection.request == Some(fingerprint) => return self.req_again(now, id),
                // The peer uses the name for something new, as it may.
                Some(connection) if connection.state == State::Timewait => {}
                Some(connection) if connection.remote_qpn != req.local_qpn => {
                    return reject(self, RejectReason::DuplicateLocalCommId);
                }
                Some(_) => {
                    let answered = reject(self, RejectReason::StaleConnection);
                    self.suspect(now, id);
                    return answered;
                }
                None => {}
            }
        }
        if let Some(&id) = self.by_qpn.get(&(back.destination, req.local_qpn)) {
            let answered = reject(self, RejectReason::StaleConnection);
            self.suspect(now, id);
            return answered;
        }
        let Some(listener) = self.listeners.find(req.service_id, back.source.to_ip()) else {
            return reject(self, RejectReason::InvalidServiceId);
        };
        if req.transport().is_none() {
            return reject(self, RejectReason::InvalidTransport);
        }
        // A request for which there is no room is not answered: the peer repeats it, and perhaps there is then.
        let crowded = self.half_open >= self.config.half_open || !self.out.has_room();
        if crowded || !self.listeners.get_mut(listener).is_some_and(|listener| listener.has_room()) {
            return Err(DropReason::CmCrowded);
        }
        let Ok(id) = self.new_id() else { return reject(self, RejectReason::NoResources) };
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.waiting.insert(id);
        }
        let connection = Connection::passive(back, header, req, listener, proven);
        self.insert(now, id, connection, Some(MessageKind::Req));
        self.enlist(id, back, theirs, req.local_qpn);
        let ece = Ece { vendor_id: req.vendor_id, options: header.attribute_modifier };
        self.out.tell(Event::Request { listener, id, route: back, request: *req, ece });
        Ok(())
    }

    /// Makes a connection known by what the peer calls it.
    fn enlist(&mut self, id: CommId, back: Route, theirs: CommId, qpn: Qpn) {
        self.by_peer.insert((back.destination, theirs), id);
        if qpn != Qpn::new(0) {
            self.by_qpn.insert((back.destination, qpn), id);
        }
    }

    fn req_again(&mut self, now: Time, id: CommId) -> Passed {
        let Some(connection) = self.connections.get_mut(&id) else { return Err(DropReason::CmUnknown) };
        connection.allowance = connection.allowance.saturating_add(1);
        match connection.state {
            // The program is thinking. The peer is told, so that it neither repeats nor gives up.
            State::ReqReceived => self.say_thinking(now, id, State::MraReqSent),
            State::RepSent | State::MraRepReceived => {
                connection.may_send(0);
                let Some(pending) = &mut connection.pending else { return Err(DropReason::CmWrongState) };
                let sent = self.out.send_again(connection.route, &pending.datagram);
                pending.sent_again();
                let deadline = pending.deadline(now);
                self.set_timer(id, deadline);
                sent
            }
            State::MraReqSent | State::Timewait => self.answer_again(id),
            _ => Err(DropReason::CmWrongState),
        }
    }

    pub(crate) fn answer_again(&mut self, id: CommId) -> Passed {
        let Some(connection) = self.connections.get_mut(&id) else { return Err(DropReason::CmUnknown) };
        // An answer to a request that waits leaves room for the reply.
        refuse_if!(!connection.may_send(u32::from(connection.state.is_half_open())), DropReason::CmCrowded);
        let Some(answer) = &connection.answer else { return Err(DropReason::CmWrongState) };
        self.out.send_again(connection.route, answer)
    }

    pub(crate) fn say_thinking(&mut self, now: Time, id: CommId, state: State) -> Passed {
        let Some(connection) = self.connections.get_mut(&id) else { return Err(DropReason::CmUnknown) };
        connection.answer = Some(Box::new(connection.mra(id, MRA_SERVICE_TIMEOUT, Data::default())));
        let answered = self.answer_again(id);
        self.enter(now, id, state, None);
        answered
    }

    /// The peer's queue pair seems to ask for a new connection, as if it did not have the old one any more
    /// (specification 12.9.8.3.1). A claim ends nothing: the driver is told, and asks the peer.
    fn suspect(&mut self, now: Time, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let asked = connection.suspected.is_some_and(|before| now < before + self.config.suspicion);
        if connection.state == State::Established && connection.owned && !asked && self.out.has_room() {
            connection.suspected = Some(now);
            self.out.tell(Event::Suspected { id });
        }
    }

    fn rep_arrived(&mut self, now: Time, back: Route, header: &MadHeader, rep: &Rep) -> Passed {
        let (id, theirs) = (rep.remote_comm_id, rep.local_comm_id);
        let reject = |manager: &mut Manager, reason| {
            let rej = stateless_rej(header.transaction_id, id, theirs, RejectedMessage::Rep, reason);
            manager.out.answer_stranger(now, back, rej)
        };
        let Some(connection) = self.with(id, back) else { return reject(self, RejectReason::InvalidCommId) };
        connection.check_transaction(header)?;
        if !matches!(connection.state, State::ReqSent | State::MraReqReceived) {
            return match connection.state {
                // We gave up before the reply came, so our last word could not name its sender.
                State::Timewait if connection.peer == CommId::new(0) => reject(self, RejectReason::Timeout),
                _ if connection.request.is_some() => Err(DropReason::CmWrongState),
                _ if connection.peer != theirs => reject(self, RejectReason::InvalidCommId),
                State::RepReceived => self.say_thinking(now, id, State::MraRepSent),
                State::MraRepSent | State::Established | State::Timewait => self.answer_rep_again(id),
                _ => Err(DropReason::CmWrongState),
            };
        }
        let qpn = if connection.xrc { Qpn::new(rep.local_eecn) } else { rep.local_qpn };
        let other = self.by_peer.get(&(back.destination, theirs)).copied();
        if other.is_some_and(|other| self.state(other) != Some(State::Timewait)) {
            let answered = reject(self, RejectReason::DuplicateLocalCommId);
            self.reject_here(now, id, RejectReason::DuplicateLocalCommId);
            return answered;
        }
        if let Some(&other) = self.by_qpn.get(&(back.destination, qpn)) {
            let answered = reject(self, RejectReason::StaleConnection);
            self.reject_here(now, id, RejectReason::StaleConnection);
            self.suspect(now, other);
            return answered;
        }
        self.enter(now, id, State::RepReceived, Some(MessageKind::Rep));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.peer = theirs;
            connection.remote_qpn = qpn;
        }
        self.enlist(id, back, theirs, qpn);
        self.prove(now, id);
        self.repeat_rtu(now, id, true);
        let ece = Ece { vendor_id: rep.vendor_id, options: header.attribute_modifier };
        self.tell(Event::Reply { id, reply: *rep, ece });
        Ok(())
    }

    /// The peer did not hear what we answered to its REP. After a disconnection there is nothing to say to it.
    fn answer_rep_again(&mut self, id: CommId) -> Passed {
        let fits = self.connections.get(&id).and_then(|connection| connection.answer.as_ref()).is_some_and(|answer| {
            matches!(answer.message.kind(), MessageKind::Mra | MessageKind::Rtu | MessageKind::Rej)
        });
        if fits { self.answer_again(id) } else { Err(DropReason::CmWrongState) }
    }

    /// We cannot take the peer's reply, and the program learns it as if the peer had said so.
    fn reject_here(&mut self, now: Time, id: CommId, reason: RejectReason) {
        let (ari, private_data, rejected) = (Default::default(), Data::default(), RejectedMessage::Rep);
        self.tell(Event::Rejected { id, reason, ari, private_data, rejected });
        self.remove(now, id);
    }

    fn rtu_arrived(&mut self, now: Time, back: Route, header: &MadHeader, rtu: &Rtu) -> Passed {
        let id = rtu.remote_comm_id;
        let Some(connection) = self.between(id, rtu.local_comm_id, back) else { return Err(DropReason::CmUnknown) };
        connection.check_transaction(header)?;
        let refused = connection.answer.as_ref().is_some_and(|answer| answer.message.kind() == MessageKind::Rej);
        match connection.state {
            State::RepSent | State::MraRepReceived => {}
            // Repeated, or a reminder.
            State::Established => return Ok(()),
            // The peer has not heard that we gave it up, and believes that it is connected.
            State::Timewait if refused => {
                self.prove(now, id);
                return self.answer_again(id);
            }
            _ => return Err(DropReason::CmWrongState),
        }
        self.establish(now, id, Some(MessageKind::Rtu));
        Ok(())
    }

    fn mra_arrived(&mut self, now: Time, back: Route, header: &MadHeader, mra: &Mra) -> Passed {
        let id = mra.remote_comm_id;
        let Some(connection) = self.with(id, back) else { return Err(DropReason::CmUnknown) };
        connection.check_transaction(header)?;
        let state = match (connection.state, mra.received) {
            (State::ReqSent | State::MraReqReceived, ReceivedMessage::Req) => State::MraReqReceived,
            (State::RepSent | State::MraRepReceived, ReceivedMessage::Rep) if connection.peer == mra.local_comm_id => {
                State::MraRepReceived
            }
            _ => return Err(DropReason::CmWrongState),
        };
        // A peer that always asks for more time is not believed for ever.
        let Some(mut pending) = connection.pending.take_if(|pending| pending.delays < 16) else {
            return Err(DropReason::CmWrongState);
        };
        let patience = connection.patience;
        let delay = mra.service_timeout.duration().min(LONGEST_DELAY);
        pending.delay(delay, now + delay + patience.timeout, patience.timeout);
        let deadline = pending.deadline(now);
        self.enter(now, id, state, Some(MessageKind::Mra));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.pending = Some(pending);
        }
        self.prove(now, id);
        self.set_timer(id, deadline);
        Ok(())
    }

    fn rej_arrived(&mut self, now: Time, back: Route, header: &MadHeader, rej: &Rej) -> Passed {
        let (mut id, theirs) = (rej.remote_comm_id, rej.local_comm_id);
        if id == CommId::new(0) {
            // A peer that gives up a request may not have learnt our name.
            match self.by_peer.get(&(back.destination, theirs)) {
                Some(&ours) if rej.reason == RejectReason::Timeout => id = ours,
                _ => return Err(DropReason::CmUnknown),
            }
        }
        let Some(connection) = self.with(id, back) else { return Err(DropReason::CmUnknown) };
        connection.check_transaction(header)?;
        let known = connection.peer == theirs && theirs != CommId::new(0);
        let kind = Some(MessageKind::Rej);
        match connection.state {
            State::ReqSent | State::MraReqReceived => {
                self.tell_rejected(id, rej);
                self.remove(now, id);
            }
            _ if !known => return Err(DropReason::CmUnknown),
            // The peer does not have the connection: it never heard that it was established, or has forgotten.
            State::Established | State::DreqSent => {
                self.tell(Event::Disconnected { id, private_data: Data::default() });
                self.end(now, id, None, kind);
            }
            State::DreqReceived | State::Timewait => return Err(DropReason::CmWrongState),
            _ => {
                self.tell_rejected(id, rej);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.owned = false;
                }
                // Should its request arrive once more, it is not a new one.
                self.end(now, id, None, kind);
            }
        }
        Ok(())
    }

    fn tell_rejected(&mut self, id: CommId, rej: &Rej) {
        let length = usize::from(rej.info_length).min(Data::<72>::LEN);
        let ari = rej.info.bytes().get(..length).unwrap_or_default().to_vec();
        self.tell(Event::Rejected {
            id,
            reason: rej.reason,
            ari,
            private_data: rej.private_data,
            rejected: rej.rejected,
        });
    }

    fn dreq_arrived(&mut self, now: Time, back: Route, header: &MadHeader, dreq: &Dreq) -> Passed {
        let (id, theirs) = (dreq.remote_comm_id, dreq.local_comm_id);
        let answer = drep(header.transaction_id, id, theirs, Data::default());
        let Some(connection) = self.between(id, theirs, back) else {
            return self.out.answer_stranger(now, back, answer);
        };
        let kind = Some(MessageKind::Dreq);
        let state = connection.state;
        match state {
            State::Timewait => {
                let same = connection.answer.as_ref().is_some_and(|said| said.message.kind() == MessageKind::Drep);
                return if same { self.answer_again(id) } else { self.out.send_again(back, &answer) };
            }
            // Not the queue pair that we have.
            _ if connection.local_qpn != dreq.remote_qpn => return Err(DropReason::CmUnknown),
            State::DreqSent => {
                // Both sides want to end it, and neither needs to be asked.
                self.out.send(back, answer);
                self.tell(Event::Disconnected { id, private_data: Data::default() });
                self.end(now, id, Some(answer), kind);
            }
            State::RepSent | State::MraRepReceived | State::Established => {
                connection.transaction = header.transaction_id;
                if state != State::Established {
                    // The confirmation was lost, but it was sent: who disconnects was connected.
                    self.establish(now, id, kind);
                }
                self.enter(now, id, State::DreqReceived, kind);
                self.tell(Event::DisconnectRequested { id, private_data: dreq.private_data });
            }
            _ => return Err(DropReason::CmWrongState),
        }
        Ok(())
    }

    fn drep_arrived(&mut self, now: Time, back: Route, header: &MadHeader, drep: &Drep) -> Passed {
        let id = drep.remote_comm_id;
        let ours = self.transaction(id);
        let Some(connection) = self.between(id, drep.local_comm_id, back) else { return Err(DropReason::CmUnknown) };
        refuse_if!(connection.state != State::DreqSent, DropReason::CmWrongState);
        // A kernel that is in timewait already answers with the transaction that it knew last.
        if header.transaction_id != ours {
            connection.check_transaction(header)?;
        }
        self.tell(Event::Disconnected { id, private_data: drep.private_data });
        self.end(now, id, None, Some(MessageKind::Drep));
        Ok(())
    }

    fn lap_arrived(&mut self, now: Time, back: Route, header: &MadHeader, lap: &Lap) -> Passed {
        refuse_if!(self.between(lap.remote_comm_id, lap.local_comm_id, back).is_none(), DropReason::CmUnknown);
        self.out.answer_stranger(now, back, apr(header.transaction_id, lap))
    }
}

/// The connection or request of ours that a message names; 0 for those that ask for a new one.
pub(crate) fn named(message: &Message) -> CommId {
    match message {
        Message::Req(_) | Message::SidrReq(_) => CommId::new(0),
        Message::SidrRep(message) => message.request_id,
        Message::Mra(message) => message.remote_comm_id,
        Message::Rej(message) => message.remote_comm_id,
        Message::Rep(message) => message.remote_comm_id,
        Message::Rtu(message) => message.remote_comm_id,
        Message::Dreq(message) => message.remote_comm_id,
        Message::Drep(message) => message.remote_comm_id,
        Message::Lap(message) => message.remote_comm_id,
        Message::Apr(message) => message.remote_comm_id,
    }
}
