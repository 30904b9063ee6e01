//! The reason of a refusal between queue pairs of one host. It is the payload of the NAK, which has none on the wire:
//! over UDP, also to this host, nothing is sent but the packet.

use crate::ground::Ground;
use crate::links::path::Path;
use crate::queue_pair::port::NicPort;
use link::{Destination, Link};
use trace::{DropReason, PeerReason};
use transport::{Inbound, QueuePair, Time};
use wire::access::RefusalCause;
use wire::{Headers, Operation, Qpn, Syndrome};

/// Whether this is a NAK. Acknowledgements are many, refusals are few.
#[inline]
pub(super) fn is_refusal(headers: &Headers) -> bool {
    headers.bth.opcode.operation() == Operation::Acknowledge
        && headers.aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Nak(_)))
}

impl Ground {
    /// What a queue pair knows about its refusal, as it travels.
    #[cold]
    pub(super) fn reason_of(&self, pair: &QueuePair, headers: &Headers) -> Option<[u8; PeerReason::SIZE]> {
        let reason = pair.reason_of(headers)?;
        let region = |key| self.memory.region(key);
        let reason = match reason {
            PeerReason::Refused { key, access, cause: RefusalCause::NotPermitted } => match region(key) {
                Some(facts) => PeerReason::RegionForbids { key, access, granted: facts.access },
                None => reason,
            },
            PeerReason::Refused { key, cause: RefusalCause::WrongProtectionDomain, .. } => match region(key) {
                Some(facts) => PeerReason::OtherDomain { key, region: facts.domain.0, pair: pair.domain().0 },
                None => reason,
            },
            reason => reason,
        };
        Some(reason.to_bytes())
    }

    /// Sends a refusal with its reason over a link inside the process.
    #[cold]
    pub(super) fn refuse_through(&self, link: &dyn Link, from: Qpn, path: &Path, headers: &Headers, reason: &[u8]) {
        let (scope, traffic_class, hop_limit) = (0, 0, 64);
        let to =
            Destination { source: path.source, destination: path.destination, from, scope, traffic_class, hop_limit };
        let mut fill = |at: usize, out: &mut [u8]| {
            let part = reason.get(at..at + out.len()).ok_or(link::NoPayload)?;
            out.copy_from_slice(part);
            Ok(())
        };
        let mut train = link::Train { headers, count: 1, mtu: 0, length: reason.len(), fill: &mut fill };
        if link.send(&to, &mut train).is_err() {
            self.dropped(self.now(), Some(from), Some(headers), DropReason::Overflow);
        }
    }
}

/// Gives a train of this host to its queue pair. What lies beside a refusal is its reason; it is read as what another
/// process says, and believed as words.
#[inline]
pub(super) fn handle_from_host(pair: &mut QueuePair, now: Time, inbound: &Inbound<'_>, port: &mut NicPort<'_>) {
    if inbound.payload.is_empty() || inbound.headers.bth.opcode.operation() != Operation::Acknowledge {
        return pair.handle(now, inbound, port);
    }
    let reason = PeerReason::from_bytes(inbound.payload);
    pair.handle_refusal(now, &Inbound { payload: &[], ..*inbound }, reason, port);
}
