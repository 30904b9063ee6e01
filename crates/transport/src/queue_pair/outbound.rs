//! What a queue pair sends: responses it owes and requests of its own, in turns.

use super::{QueuePair, State};
use crate::completion::{Cause, Status};
use crate::port::{Port, Refusal};
use crate::requester::{self, RequestTrain, Step};
use crate::responder::ResponseTrain;
use crate::send_queue::SendWork;
use crate::state::Kind;
use crate::time::Time;
use crate::train::{Payload, Train};
use crate::work::Operation;
use wire::{Opcode, Psn};

/// A congestion notification goes out at most this often.
const CNP_INTERVAL: u64 = 50_000;

/// The 16 reserved bytes a congestion notification carries (IBA annex A17.9.3).
static CNP_PAYLOAD: [u8; 16] = [0; 16];

/// What the last train was.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handed {
    Nothing,
    Request { seq: u64 },
    Response { psn: Psn },
}

impl QueuePair {
    /// The next train to send, if any. Its payload is described, not copied: the link gathers it before this queue pair is touched again.
    pub fn poll_transmit<P: Port>(&mut self, now: Time, port: &mut P) -> Option<Train<'_>> {
        self.handed = Handed::Nothing;
        if self.cnp_owed {
            return Some(self.notify_congestion(now, port));
        }
        self.requests_next = !self.requests_next;
        if self.requests_next
            && let Some(train) = self.next_request(now, port)
        {
            return Some(self.hand_request(now, train, port));
        }
        if let Some(train) = self.next_response(now, port) {
            return Some(self.hand_response(now, train, port));
        }
        if self.requests_next {
            return None;
        }
        let train = self.next_request(now, port)?;
        Some(self.hand_request(now, train, port))
    }

    /// The link could not gather the payload of the train it was just given: the memory has gone since it was checked.
    pub fn transmit_refused<P: Port>(&mut self, now: Time, refusal: Refusal, port: &mut P) {
        self.trace_refusal(now, &refusal, port);
        match core::mem::replace(&mut self.handed, Handed::Nothing) {
            Handed::Nothing => {}
            Handed::Request { seq } => {
                // Packets of it may be on their way; nothing before it is in doubt.
                self.fail_work(now, seq, Status::LocalProtection, Cause::Refused(refusal), port);
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

    fn next_request<P: Port>(&mut self, now: Time, port: &mut P) -> Option<RequestTrain> {
        while self.may_request() {
            let limits = requester::Limits {
                una: self.completer.una(),
                answers: self.completer.questions(),
                draining: self.state() == State::SendQueueDrained,
            };
            match self.requester.step(&self.connection, &mut self.queue, &limits, port) {
                Step::Again => {}
                Step::Idle => break,
                Step::Train(train) => return Some(train),
                Step::Failed(seq, status, cause) => self.fail_work(now, seq, status, cause, port),
            }
        }
        // Work that took no packets may have been the last to drain.
        self.check_drained(now, port);
        None
    }

    fn next_response<P: Port>(&mut self, now: Time, port: &mut P) -> Option<ResponseTrain> {
        loop {
            match self.responder.next_response(&self.connection, port) {
                Ok(train) => return train,
                Err(fault) => self.fault(now, fault, port),
            }
        }
    }

    fn hand_request<P: Port>(&mut self, now: Time, train: RequestTrain, port: &mut P) -> Train<'_> {
        let RequestTrain { seq, headers, count, psns, offset, length, retransmission } = train;
        self.handed = Handed::Request { seq };
        let timeout = self.connection.attributes.timeout;
        if self.kind().is_reliable() {
            let question = self.queue.get(seq).filter(|work| work.operation.is_answered()).map(|work| {
                let request = if matches!(work.operation, Operation::AtomicWrite { .. }) { 8 } else { 0 };
                crate::congestion::Window::charge_of(request, 1, request)
            });
            let armed = self.completer.ack_deadline();
            self.completer.sent(now, headers.bth.psn, psns, question, retransmission, timeout);
            self.trace_timer(now, armed, port);
        }
        let wr_id = self.queue.get(seq).map(|work| work.wr_id);
        self.trace(now, port, || trace::Kind::PacketSent {
            headers,
            payload_len: length,
            packets: count,
            wr_id,
            retransmit: retransmission,
        });
        let work = self.queue.get(seq);
        let payload = match work {
            Some(work) if length > 0 => self.payload_of(work, offset, length),
            _ => Payload::NONE,
        };
        let to = match work.and_then(|work| work.target.as_ref()) {
            Some(target) => &target.av,
            None => &self.connection.attributes.av,
        };
        let mut train = Train { headers, count, mtu: self.connection.mtu(), payload, to, wr_id, retransmission };
        train.headers.bth.pad = pad(length);
        train
    }

    fn payload_of<'a>(&'a self, work: &'a SendWork, offset: u32, length: u32) -> Payload<'a> {
        if work.is_inline {
            let (from, to) = (offset as usize, offset as usize + length as usize);
            Payload::Bytes(work.inline.get(from..to).unwrap_or(&[]))
        } else {
            let subject = self.connection.local();
            Payload::Gather { subject, sges: &work.sges, offset: u64::from(offset), length }
        }
    }

    fn hand_response<P: Port>(&mut self, now: Time, train: ResponseTrain, port: &mut P) -> Train<'_> {
        let ResponseTrain { mut headers, count, region } = train;
        self.handed = Handed::Response { psn: headers.bth.psn };
        let payload = match region {
            Some((subject, range)) => Payload::Region { subject, range },
            None => Payload::NONE,
        };
        headers.bth.pad = pad(payload.len());
        self.trace(now, port, || trace::Kind::PacketSent {
            headers,
            payload_len: payload.len(),
            packets: count,
            wr_id: None,
            retransmit: false,
        });
        Train {
            headers,
            count,
            mtu: self.connection.mtu(),
            payload,
            to: &self.connection.attributes.av,
            wr_id: None,
            retransmission: false,
        }
    }

    /// Owes the peer a congestion notification, unless it has just had one.
    pub(super) fn owe_notification(&mut self, now: Time) {
        let recently = self.last_cnp.is_some_and(|last| now.since(last) < CNP_INTERVAL);
        if self.kind() != Kind::UnreliableDatagram && !recently {
            self.cnp_owed = true;
        }
    }

    fn notify_congestion<P: Port>(&mut self, now: Time, port: &mut P) -> Train<'_> {
        self.cnp_owed = false;
        self.last_cnp = Some(now);
        let mut headers = self.connection.response(Opcode::Cnp, Psn::default());
        headers.bth.becn = true;
        let payload = Payload::Bytes(&CNP_PAYLOAD);
        self.trace(now, port, || trace::Kind::PacketSent {
            headers,
            payload_len: payload.len(),
            packets: 1,
            wr_id: None,
            retransmit: false,
        });
        Train {
            headers,
            count: 1,
            mtu: self.connection.mtu(),
            payload,
            to: &self.connection.attributes.av,
            wr_id: None,
            retransmission: false,
        }
    }
}

fn pad(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}
