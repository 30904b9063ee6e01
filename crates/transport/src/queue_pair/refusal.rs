//! The reason beside a NAK: what this side knows about its refusal, for a peer on the same host, and what such a peer
//! said about its own. Nothing here is on the path of work that succeeds.

use super::QueuePair;
use crate::port::Port;
use crate::stop::Stop;
use crate::train::Inbound;
use trace::{Failure, PeerReason, RequestFault, Time};
use wire::access::Access;
use wire::{Headers, NakCode, Syndrome};

impl QueuePair {
    /// Why it refuses what this packet refuses, if the packet is a refusal that stops both queue pairs.
    #[cold]
    pub fn reason_of(&self, headers: &Headers) -> Option<PeerReason> {
        let code = refusal_in(headers)?;
        let cause = match self.stop()? {
            Stop::PeerRequest { cause } | Stop::Work { cause, .. } => cause,
            _ => return None,
        };
        // A queue pair may have stopped for another reason before its refusal was sent.
        Some(match (code, cause) {
            (NakCode::RemoteAccess | NakCode::RemoteOperational, Failure::Refused(refusal)) => {
                PeerReason::refused(&refusal)
            }
            (NakCode::InvalidRequest, Failure::TooLong { length, space }) => PeerReason::TooLong { length, space },
            (NakCode::InvalidRequest, Failure::PeerFault { what, .. }) => match RequestFault::told_by(what)? {
                RequestFault::NotGranted | RequestFault::FlushNotGranted => {
                    PeerReason::PairForbids { access: Access::empty(), granted: self.connection.attributes.access }
                }
                RequestFault::TooManyReads => {
                    PeerReason::TooManyReads { max: self.connection.attributes.max_dest_rd_atomic.into() }
                }
                fault => PeerReason::Fault(fault),
            },
            _ => return None,
        })
    }

    /// Takes a packet of a peer on this host, which says more about its refusal than the packet does.
    #[cold]
    pub fn handle_refusal<P: Port>(
        &mut self,
        now: Time,
        inbound: &Inbound<'_>,
        reason: Option<PeerReason>,
        port: &mut P,
    ) {
        self.peer_said = reason;
        self.handle(now, inbound, port);
        self.peer_said = None;
    }

    /// The cause of failed work, with what the peer said about it.
    pub(super) fn with_reason(&self, cause: Failure) -> Failure {
        match cause {
            Failure::Nak { code, psn, .. } => Failure::Nak { code, psn, peer: self.peer_said },
            cause => cause,
        }
    }
}

/// The code of a refusal that stops both queue pairs.
fn refusal_in(headers: &Headers) -> Option<NakCode> {
    match headers.aeth?.syndrome {
        Syndrome::Nak(NakCode::SequenceError) => None,
        Syndrome::Nak(code) => Some(code),
        _ => None,
    }
}
