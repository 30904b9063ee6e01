//! What a queue pair sends: responses it owes and requests of its own, in turns.

use super::{QueuePair, State};
use crate::completion::Status;
use crate::port::{Port, Toward};
use crate::rate::Flow;
use crate::requester::{self, RequestTrain, Step};
use crate::responder::ResponseTrain;
use crate::send_queue::SendWork;
use crate::train::{Payload, Train};
use crate::work::{DatagramTarget, Sge};
use trace::{Failure, Time};
use wire::access::Refusal;
use wire::{Headers, Key, Operation, Psn};

/// What the last train was.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handed {
    Nothing,
    Request { seq: u64 },
    Response { psn: Psn },
}

impl QueuePair {
    /// Whether there may be something to send: if not, [`poll_transmit`](QueuePair::poll_transmit) need not be asked.
    #[inline]
    pub fn may_transmit(&self) -> bool {
        self.cnp_owed || self.drain_owed || self.responder.owes() || self.requester.has_more(&self.queue)
    }

    /// Whether an answer is owed to the peer: an acknowledgement, a refusal, data, a congestion notification. A driver
    /// whose port is busy with requests of this queue pair asks for it to let answers pass them.
    #[inline]
    pub fn owes_answer(&self) -> bool {
        self.cnp_owed || self.responder.owes()
    }

    /// The sequence number of the next request. It lies before what was handed out last when the queue pair has gone
    /// back to send again: a driver need not send the rest of that.
    #[inline]
    pub fn next_psn(&self) -> Psn {
        self.requester.psn()
    }

    /// Where the next datagram goes, if there is one, for a link that may have no room for it yet. Work that cannot be
    /// done is not looked for.
    #[inline]
    pub fn next_datagram(&self) -> Option<&DatagramTarget> {
        self.requester.next_work(&self.queue).and_then(|work| work.target.as_ref())
    }

    /// Copies the bytes of the datagrams that wait for room on their link. Real NICs have read them within a
    /// microsecond, and programs rely on it: UCX takes a request of its peer for the answer to its own, and uses the
    /// memory of its own for something else.
    pub fn keep_datagrams<P: Port>(&mut self, port: &mut P) {
        let (subject, mtu) = (self.connection.local(), self.connection.mtu());
        let from = self.requester.next_seq(&self.queue);
        self.queue.keep(from, mtu, |sges, out| {
            let payload = Payload::Gather { subject, sges, offset: 0, length: out.len() as u32 };
            payload.copy(0, out, port).is_ok()
        });
    }

    /// Work that is not answered yet and whose bytes lie in the region of this key takes them from elsewhere from now
    /// on: `to` is asked for each piece, and answers two, of which the second may be empty. The bytes must be the same.
    pub fn relocate(&mut self, key: Key, to: impl FnMut(Sge) -> [Sge; 2]) {
        self.queue.relocate(key, to);
    }

    /// The next train to send, if any. Its payload is described, not copied: the link gathers it before this queue pair
    /// is touched again.
    pub fn poll_transmit<P: Port>(&mut self, now: Time, port: &mut P) -> Option<Train<'_>> {
        self.handed = Handed::Nothing;
        if self.cnp_owed {
            return Some(self.notify_congestion(now, port));
        }
        self.requests_next = !self.requests_next;
        // Most often there is an acknowledgement to send and nothing else.
        let requests_first = self.requests_next && !self.owes_acknowledgement_only();
        if requests_first && self.next_request(now, port) {
            return Some(self.hand_request(now, port));
        }
        if let Some(response) = self.next_response(now, port) {
            return Some(self.hand_response(now, &response, port));
        }
        if !requests_first && self.next_request(now, port) {
            return Some(self.hand_request(now, port));
        }
        None
    }

    /// The link could not gather the payload of the train it was just given: the memory has gone since it was checked.
    pub fn transmit_refused<P: Port>(&mut self, now: Time, refusal: Refusal, port: &mut P) {
        self.trace_refusal(now, &refusal, port);
        match core::mem::replace(&mut self.handed, Handed::Nothing) {
            Handed::Nothing => {}
            Handed::Request { seq } => {
                // Packets of it may be on their way; nothing before it is in doubt.
                self.fail_work(now, seq, Status::LocalProtection, Failure::Refused(refusal), port);
            }
            Handed::Response { psn } => {
                let fault = self.responder.unanswerable(psn, refusal);
                self.fault(now, fault, port);
            }
        }
    }

    /// Whether the send queue may send in this state. In SQD what has begun goes on.
    fn may_request(&self) -> bool {
        matches!(self.state(), State::ReadyToSend | State::SendQueueDrained)
            && self.completer.not_ready_until().is_none()
    }

    fn next_request<P: Port>(&mut self, now: Time, port: &mut P) -> bool {
        while self.may_request() {
            let packets = match self.requester.has_more(&self.queue) {
                true => self.allowance(now, Flow::Requests),
                false => Some(u32::MAX),
            };
            let Some(packets) = packets else { break };
            let psn = self.requester.next_psn();
            let limits = requester::Limits {
                una: self.completer.una(),
                responses: self.completer.awaited_responses(),
                longest_read: self.completer.asked_before(psn),
                partly_under_way: self.completer.is_partly_under_way(psn),
                missing: self.completer.missing(),
                draining: self.state() == State::SendQueueDrained || self.holds_back,
                packets,
                failing_work: self.limits.refused_work.failing,
            };
            match self.requester.step(&self.connection, &mut self.queue, &limits, port) {
                Step::Idle => break,
                Step::Train => return true,
                Step::Failed(seq, status, cause) => self.fail_work(now, seq, status, cause, port),
            }
        }
        // Work that took no packets may have been the last to drain, or the last before a failure.
        self.check_halted(now, port);
        self.check_drained(now, port);
        false
    }

    #[inline]
    fn next_response<P: Port>(&mut self, now: Time, port: &mut P) -> Option<ResponseTrain> {
        let packets = match self.rate.is_some() && self.responder.owes_response_next() {
            true => self.allowance(now, Flow::Answers)?,
            false => u32::MAX,
        };
        loop {
            match self.responder.next_response(&self.connection, packets, port) {
                Ok(response) => return response,
                Err(fault) => self.fault(now, fault, port),
            }
        }
    }

    fn hand_request<P: Port>(&mut self, now: Time, port: &mut P) -> Train<'_> {
        let &RequestTrain { seq, ref headers, count, psns, offset, length, retransmission } = self.requester.train();
        self.handed = Handed::Request { seq };
        let target = self.queue.get(seq).and_then(|work| work.target.as_ref()).map(|target| target.av.dgid);
        let opcode = headers.bth.opcode;
        self.count_sent(opcode, count, length, retransmission, target);
        self.spend(now, Flow::Requests, count, length);
        let headers = &self.requester.train().headers;
        let reliable = self.connection.kind.is_reliable();
        let work = self.queue.get(seq);
        if let Some(target) = work.and_then(|work| work.target.as_ref()) {
            self.recent.note(target.av.dgid);
        }
        if reliable {
            let question = work.is_some_and(|work| work.operation.is_answered());
            let armed = self.completer.ack_deadline();
            let timeout = self.connection.attributes.timeout;
            self.completer.trust(port.window(self.connection.qpn, Toward::Peer, |window| window.is_unlimited()));
            self.completer.sent(now, headers.bth.psn, psns, question, retransmission, timeout);
            self.trace_timer(now, armed, port);
        }
        let wr_id = work.map(|work| work.wr_id);
        self.trace(now, port, || trace::Kind::PacketSent {
            headers: *headers,
            payload_len: length,
            packets: count,
            wr_id,
            retransmit: retransmission,
        });
        let payload = match work {
            Some(work) if length > 0 => self.payload_of(work, offset, length),
            _ => Payload::NONE,
        };
        let to = match work.and_then(|work| work.target.as_ref()) {
            Some(target) => &target.av,
            None => &self.connection.attributes.av,
        };
        Train { headers: *headers, count, mtu: self.connection.mtu(), payload, to, wr_id, retransmission }
    }

    fn payload_of<'a>(&'a self, work: &'a SendWork, offset: u32, length: u32) -> Payload<'a> {
        match work.inline() {
            Some(bytes) => {
                let (from, to) = (offset as usize, offset as usize + length as usize);
                Payload::Bytes(bytes.get(from..to).unwrap_or(&[]))
            }
            None => {
                let subject = self.connection.local();
                Payload::Gather { subject, sges: work.sges(), offset: u64::from(offset), length }
            }
        }
    }

    #[inline]
    fn hand_response<P: Port>(&mut self, now: Time, response: &ResponseTrain, port: &mut P) -> Train<'_> {
        let &ResponseTrain { ref headers, count, region } = response;
        self.handed = Handed::Response { psn: headers.bth.psn };
        let payload = match region {
            Some((subject, range)) => Payload::Region { subject, range },
            None => Payload::NONE,
        };
        if headers.bth.opcode.operation() != Operation::Acknowledge {
            self.spend(now, Flow::Answers, count, payload.len());
        }
        self.traffic.sent(headers.bth.opcode, count, payload.len(), self.ip_header);
        self.answer_train(now, headers, count, payload, port)
    }

    /// A train that belongs to no work of ours.
    pub(super) fn answer_train<'a, P: Port>(
        &'a self,
        now: Time,
        headers: &Headers,
        count: u32,
        payload: Payload<'a>,
        port: &mut P,
    ) -> Train<'a> {
        self.trace(now, port, || trace::Kind::PacketSent {
            headers: *headers,
            payload_len: payload.len(),
            packets: count,
            wr_id: None,
            retransmit: false,
        });
        let to = &self.connection.attributes.av;
        Train { headers: *headers, count, mtu: self.connection.mtu(), payload, to, wr_id: None, retransmission: false }
    }
}
