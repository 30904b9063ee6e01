//! The responder of unreliable queue pairs. Nothing is answered: what cannot be carried out is passed over in silence,
//! a message of which a packet is missing is lost as a whole (IBA 9.8.2.2), and only a fault of our own memory stops
//! the queue.

use super::{Arrival, Fault, Message, Reaction, Responder, grant, length_fits};
use crate::completion::{Completion, CompletionKind, Status};
use crate::connection::Connection;
use crate::port::{Port, TakenReceive};
use crate::receive::scatter;
use crate::train::Inbound;
use trace::{DropReason, Failure};
use wire::access::{Access, Subject};
use wire::{NakCode, Operation};

/// Length of the global route header that precedes every datagram in its receive buffer.
const GRH_BYTES: u64 = 40;

impl Responder {
    /// A packet or train on an unreliable connection.
    pub fn unreliable<P: Port>(&mut self, inbound: &Inbound<'_>, connection: &Connection, port: &mut P) -> Reaction {
        let headers = inbound.headers;
        let opcode = headers.bth.opcode;
        let psn = headers.bth.psn;
        let in_sequence = psn == self.expected;
        self.expected = psn.add(inbound.count);
        if opcode.starts() {
            // A new message always begins; one that was under way has lost its end. The receive in hand serves again.
            self.message = Message::None;
            self.abandoned = false;
        } else if self.abandoned || !in_sequence || self.message == Message::None {
            self.abandon();
            return Reaction::Dropped(DropReason::MessageAbandoned);
        }
        let arrival = Arrival { starts: opcode.starts(), psn, count: inbound.count, payload: inbound.payload };
        let continues = match self.message {
            Message::None => opcode.starts(),
            Message::Send { .. } => opcode.operation() == Operation::Send,
            Message::Write { .. } => opcode.operation() == Operation::Write,
        };
        if !continues {
            self.abandon();
            return Reaction::Dropped(DropReason::BadSequence);
        }
        if !length_fits(&arrival, opcode.ends(), connection.mtu()) {
            self.abandon();
            return Reaction::Dropped(DropReason::BadLength);
        }
        let needs_receive = match opcode.operation() {
            Operation::Send => opcode.starts(),
            _ => opcode.ends() && opcode.has_immediate(),
        };
        if needs_receive && !self.hand.held && self.take_receive(None, connection, port) != TakenReceive::Taken {
            self.abandon();
            return Reaction::Dropped(DropReason::NoReceive);
        }
        let subject = connection.remote();
        if opcode.starts() {
            self.message = match (opcode.operation(), headers.reth) {
                (Operation::Write, Some(reth)) => {
                    if let Err(fault) = grant(reth, Access::REMOTE_WRITE, subject, psn, connection, port) {
                        self.abandon();
                        return passed_over(&fault, DropReason::AccessRefused);
                    }
                    Message::Write { reth, placed: 0 }
                }
                (Operation::Write, None) => {
                    self.abandon();
                    return Reaction::Dropped(DropReason::Malformed);
                }
                _ => Message::Send { placed: 0 },
            };
        }
        if let Err(fault) = self.store(&arrival, opcode.ends(), subject, port) {
            self.abandon();
            return match fault.receive {
                Status::LocalProtection => self.stop(fault, connection),
                // As with datagrams, below: the receive waits for the next message.
                Status::LocalLength => Reaction::Dropped(DropReason::TooLong),
                _ => passed_over(&fault, DropReason::BadLength),
            };
        }
        if opcode.ends() {
            self.finish(inbound, None, connection);
        }
        Reaction::Fine
    }

    /// A datagram. The queue pair has checked its Q_Key.
    pub fn datagram<P: Port>(&mut self, inbound: &Inbound<'_>, connection: &Connection, port: &mut P) -> Reaction {
        let headers = inbound.headers;
        let Some(deth) = headers.deth else {
            return Reaction::Dropped(DropReason::Malformed);
        };
        if inbound.count != 1 || inbound.payload.len() > connection.mtu() as usize {
            return Reaction::Dropped(DropReason::BadLength);
        }
        if !self.hand.held && self.take_receive(None, connection, port) != TakenReceive::Taken {
            return Reaction::Dropped(DropReason::NoReceive);
        }
        let length = inbound.payload.len() as u64 + GRH_BYTES;
        let local = Subject { remote: false, ..self.hand.subject.unwrap_or(connection.local()) };
        if length > self.hand.space {
            // The sender's fault, and any sender with the Q_Key may commit it: dropped in silence, the queue pair goes
            // on and the receive waits for the next datagram (IBA 9.9.3, class D; Soft-RoCE does the same). A receive
            // from a shared queue waits in the hand of this queue pair. There the specification has the receive fail
            // (class E), because hardware cannot keep it; to a program silence is the milder of the two.
            return Reaction::Dropped(DropReason::TooLong);
        }
        let placed = scatter(&self.hand.work.sges, 0, inbound.grh, local, port)
            .and_then(|()| scatter(&self.hand.work.sges, GRH_BYTES, inbound.payload, local, port));
        if let Err(refusal) = placed {
            let cause = Failure::Refused(refusal);
            let fault =
                Fault { code: NakCode::RemoteOperational, receive: Status::LocalProtection, cause, event: None };
            return self.stop(fault, connection);
        }
        self.hand.held = false;
        let (wr_id, kind) = (self.hand.work.wr_id, CompletionKind::Receive);
        self.completions.push_back(Completion {
            bytes: length as u32,
            immediate: headers.immediate,
            src_qpn: Some(deth.src_qpn),
            grh: true,
            over_ipv4: inbound.from.to_ip().is_ipv4(),
            solicited: headers.bth.solicited,
            ..Completion::of(wr_id, kind, Status::Success, self.hand.queue, connection.qpn)
        });
        Reaction::Fine
    }

    fn abandon(&mut self) {
        self.message = Message::None;
        self.abandoned = true;
    }

    /// Our own memory or buffer is at fault: the receive fails and the queue pair with it.
    pub(super) fn stop(&mut self, fault: Fault, connection: &Connection) -> Reaction {
        if self.hand.held {
            self.hand.held = false;
            let completion = self.failed_receive(fault.receive, fault.cause, connection);
            self.completions.push_back(completion);
        }
        Reaction::Fault(fault)
    }
}

/// The peer's fault, which it is not told: only the trace says what memory refused, or else `reason`.
fn passed_over(fault: &Fault, reason: DropReason) -> Reaction {
    match fault.cause {
        Failure::Refused(refusal) => Reaction::Forbidden(refusal),
        _ => Reaction::Dropped(reason),
    }
}
