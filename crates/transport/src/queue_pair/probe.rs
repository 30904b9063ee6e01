//! A probe of the peer of a reliable connection: is your queue pair still there, and still connected to this one? It
//! is a packet that the peer has had already, an empty SEND with the last sequence number before the next one. The peer
//! acknowledges it once more and does nothing else (specification 9.7.5.1.2): it needs no receive, no right and no
//! sequence number, and neither program sees anything of it. TCP's keep-alive is made the same way.

use super::{QueuePair, State};
use crate::state::Kind;
use crate::train::Inbound;
use wire::{Headers, Opcode, Operation, Psn, Syndrome};

/// What came of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum ProbeOutcome {
    #[default]
    None,
    /// The peer was asked with this sequence number.
    Asked(Psn),
    Answered,
}

impl QueuePair {
    /// The probe, to be sent to the peer as a packet of its own. None where there is nothing to ask: the queue pair
    /// is not a reliable connection that is ready to send, or requests are under way, which are probes themselves.
    pub fn ask_peer(&mut self) -> Option<Headers> {
        let una = self.completer.una();
        let idle = una == self.requester.high() && !self.requester.has_more(&self.queue);
        if self.kind() != Kind::ReliableConnected || self.state() != State::ReadyToSend || !idle {
            return None;
        }
        let psn = una.sub(1);
        self.probe = ProbeOutcome::Asked(psn);
        let mut headers = Headers::new(Opcode::RcSendOnly, self.connection.attributes.dest_qpn, psn);
        headers.bth.pkey = self.connection.pkey;
        headers.bth.ack_req = true;
        Some(headers)
    }

    /// Whether a packet of the peer has moved it since it was connected: a request that was taken, or would have been if
    /// there had been a receive, or an acknowledgement.
    pub fn has_heard(&self) -> bool {
        let attributes = &self.connection.attributes;
        let asked = self.responder.expected() != attributes.rq_psn || self.responder.has_asked_back();
        let receives = self.state().receives() && asked;
        receives || self.state() == State::ReadyToSend && self.completer.una() != attributes.sq_psn
    }

    /// Whether the peer has answered since it was last asked.
    pub fn peer_answered(&self) -> bool {
        self.probe == ProbeOutcome::Answered
    }

    /// An acknowledgement of the peer has arrived. It is the answer if it names the packet that the peer was asked
    /// with; a queue pair that is not connected to this one would have to guess 24 bits.
    pub(super) fn note_answer(&mut self, inbound: &Inbound<'_>) {
        let headers = inbound.headers;
        let acknowledges = headers.bth.opcode.operation() == Operation::Acknowledge
            && headers.aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        if acknowledges && self.probe == ProbeOutcome::Asked(headers.bth.psn) {
            self.probe = ProbeOutcome::Answered;
        }
    }
}
