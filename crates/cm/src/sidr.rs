//! Datagram services (specification 12.11): a request finds out which queue pair and key stand behind a service id. An
//! answered request is remembered for a while, so that one that is repeated gets the same answer.

use alloc::boxed::Box;
use core::time::Duration;

use trace::DropReason;
use wire::cm::{CmDatagram, CommId, Data, ServiceId, SidrRep, SidrReq, SidrStatus};
use wire::mad::MadHeader;
use wire::{Timeout, refuse_if};

use crate::connection::{Patience, Pending};
use crate::output::Passed;
use crate::{CmError, Event, ListenerId, Manager, Resolve, Route, SidrAnswer, Time};

/// How long an answer is remembered: longer than the kernel waits before it asks again.
const ANSWER_LIFETIME: Duration = Duration::from_secs(6);

/// A request for a datagram service.
pub(crate) struct Inquiry {
    route: Route,
    side: Side,
    service: ServiceId,
    transaction: u64,
    timer: Option<Time>,
    pub listener: Option<ListenerId>,
    pub announced: bool,
}

enum Side {
    /// Ours, which waits for an answer.
    Asked { pending: Pending, timeout: Duration },
    /// A peer's, which waits for our program.
    Asks { peer: CommId },
    /// A peer's, and what it was told.
    Answered { peer: CommId, answer: Box<CmDatagram> },
}

impl Inquiry {
    pub const fn has_timer(&self) -> bool {
        self.timer.is_some()
    }

    /// Whether the program has yet to answer it.
    pub const fn is_half_open(&self) -> bool {
        matches!(self.side, Side::Asks { .. })
    }

    const fn peer(&self) -> Option<CommId> {
        match self.side {
            Side::Asked { .. } => None,
            Side::Asks { peer } | Side::Answered { peer, .. } => Some(peer),
        }
    }
}

impl Manager {
    /// Asks which queue pair stands behind a service. It ends in [`Event::ServiceAnswer`] or
    /// [`Event::ServiceTimedOut`].
    pub fn resolve(&mut self, now: Time, resolve: Resolve) -> Result<CommId, CmError> {
        let id = self.new_id()?;
        let transaction = self.transaction(id);
        let (service, private_data) = (resolve.service, resolve.private_data);
        let message = SidrReq { request_id: id, pkey: resolve.pkey, service_id: service, private_data };
        let datagram = CmDatagram::new(transaction, message.into());
        let patience = Patience::new(resolve.timeout.duration(), resolve.retries, Timeout::new(0));
        let pending = Pending::new(now, datagram, &patience, self.config.eager);
        let deadline = pending.deadline(now);
        self.out.send(resolve.route, datagram);
        let inquiry = Inquiry {
            route: resolve.route,
            side: Side::Asked { pending, timeout: patience.timeout },
            service,
            transaction,
            timer: Some(deadline),
            listener: None,
            announced: true,
        };
        self.timers.insert((deadline, id));
        self.inquiries.insert(id, inquiry);
        Ok(id)
    }

    /// Answers a peer that asked for a datagram service. There are no more events of it.
    pub fn answer(&mut self, now: Time, id: CommId, answer: SidrAnswer) -> Result<(), CmError> {
        let inquiry = self.inquiries.get_mut(&id).ok_or(CmError::UnknownId(id))?;
        let Side::Asks { peer } = inquiry.side else { return Err(CmError::UnknownId(id)) };
        let datagram = sidr_rep(inquiry.transaction, peer, inquiry.service, &answer);
        inquiry.side = Side::Answered { peer, answer: Box::new(datagram) };
        let until = now + ANSWER_LIFETIME;
        inquiry.timer = Some(until);
        self.out.send(inquiry.route, datagram);
        self.half_open -= 1;
        self.release(id);
        self.rest(now, id, until);
        Ok(())
    }

    /// Forgets a request of ours, or refuses a peer's.
    pub(crate) fn abandon_inquiry(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        match self.inquiries.get(&id).map(|inquiry| &inquiry.side) {
            None | Some(Side::Answered { .. }) => Err(CmError::UnknownId(id)),
            Some(Side::Asks { .. }) => self.answer(now, id, SidrAnswer::refused(SidrStatus::Rejected)),
            Some(Side::Asked { .. }) => {
                self.forget_inquiry(id);
                Ok(())
            }
        }
    }

    pub(crate) fn forget_inquiry(&mut self, id: CommId) {
        let Some(inquiry) = self.inquiries.remove(&id) else { return };
        if let Some(peer) = inquiry.peer() {
            let key = (inquiry.route.destination, peer);
            if self.inquiries_by_peer.get(&key) == Some(&id) {
                self.inquiries_by_peer.remove(&key);
            }
        }
        if let Some(when) = inquiry.timer {
            self.timers.remove(&(when, id));
            self.ended.remove(&(when, id));
        }
    }

    /// A request of ours was not answered in time.
    pub(crate) fn inquiry_unanswered(&mut self, now: Time, id: CommId) {
        let Some(inquiry) = self.inquiries.get_mut(&id) else { return };
        let Side::Asked { pending, timeout } = &mut inquiry.side else { return };
        if now < pending.give_up {
            if let Err(reason) = self.out.send_again(inquiry.route, &pending.datagram) {
                self.out.drop_message(now, id, pending.datagram.message.kind(), reason);
            }
            pending.repeated(now, *timeout);
            let deadline = pending.deadline(now);
            inquiry.timer = Some(deadline);
            self.timers.insert((deadline, id));
            return;
        }
        self.out.tell(Event::ServiceTimedOut { id });
        self.forget_inquiry(id);
    }

    pub(crate) fn sidr_req_arrived(&mut self, now: Time, back: Route, header: &MadHeader, req: &SidrReq) -> Passed {
        let key = (back.destination, req.request_id);
        if let Some(inquiry) = self.inquiries_by_peer.get(&key).and_then(|id| self.inquiries.get(id)) {
            let same = inquiry.transaction == header.transaction_id && inquiry.service == req.service_id;
            match &inquiry.side {
                Side::Answered { answer, .. } if same => return self.out.send_again(inquiry.route, answer),
                // The peer uses the name for something new, as it may.
                Side::Answered { .. } => {}
                // The program is thinking.
                _ => return Err(DropReason::CmWrongState),
            }
        }
        let Some(listener) = self.listeners.find(req.service_id, back.source.to_ip()) else {
            let nobody = SidrAnswer::refused(SidrStatus::ServiceIdNotSupported);
            let answer = sidr_rep(header.transaction_id, req.request_id, req.service_id, &nobody);
            return self.out.answer_stranger(now, back, answer);
        };
        let crowded = self.half_open >= self.config.half_open || !self.out.has_room();
        if crowded || !self.listeners.get_mut(listener).is_some_and(|listener| listener.has_room()) {
            return Err(DropReason::CmCrowded);
        }
        let Ok(id) = self.new_id() else { return Err(DropReason::CmCrowded) };
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.waiting.insert(id);
        }
        let inquiry = Inquiry {
            route: back,
            side: Side::Asks { peer: req.request_id },
            service: req.service_id,
            transaction: header.transaction_id,
            timer: None,
            listener: Some(listener),
            announced: false,
        };
        self.half_open += 1;
        self.inquiries.insert(id, inquiry);
        self.inquiries_by_peer.insert(key, id);
        self.out.tell(Event::ServiceRequest { listener, id, route: back, request: *req });
        Ok(())
    }

    pub(crate) fn sidr_rep_arrived(&mut self, back: Route, header: &MadHeader, rep: &SidrRep) -> Passed {
        let id = rep.request_id;
        let Some(inquiry) = self.inquiries.get(&id) else { return Err(DropReason::CmUnknown) };
        let asked = matches!(inquiry.side, Side::Asked { .. });
        if !asked || inquiry.route.destination != back.destination || inquiry.service != rep.service_id {
            return Err(DropReason::CmUnknown);
        }
        refuse_if!(inquiry.transaction != header.transaction_id, DropReason::CmWrongTransaction);
        self.out.tell(Event::ServiceAnswer { id, answer: *rep });
        self.forget_inquiry(id);
        Ok(())
    }
}

fn sidr_rep(transaction: u64, peer: CommId, service: ServiceId, answer: &SidrAnswer) -> CmDatagram {
    let message = SidrRep {
        request_id: peer,
        status: answer.status,
        info_length: 0,
        qpn: answer.qpn,
        service_id: service,
        qkey: answer.qkey,
        info: Data::default(),
        private_data: answer.private_data,
    };
    CmDatagram::new(transaction, message.into())
}
