//! Refusals that come too soon. A program that has a connection to a port, and asks there for another one, has agreed
//! on that with its peer: perftest does so, whose server listens anew for each connection. With kernels the asking
//! program is slower, since its calls go through several work queues. Here both are as fast, and the asking program may
//! be first. So a refusal for want of a listener is believed only as the answer to a repeated request, if the process
//! has a connection to that very port; any other refusal is believed at once.

use super::Inner;
use super::record::{Record, Stage};
use crate::tuning::EARLY_REFUSAL;
use wire::cm::{CmDatagram, Message, RejectReason, RejectedMessage, SidrStatus};

impl Inner {
    /// Whether a message says that no program listens, and may say so only because the request came too soon.
    pub(super) fn is_hasty(&self, now: ::cm::Time, datagram: &CmDatagram) -> bool {
        let id = match &datagram.message {
            Message::Rej(rej)
                if rej.reason == RejectReason::InvalidServiceId && rej.rejected == RejectedMessage::Req =>
            {
                rej.remote_comm_id
            }
            Message::SidrRep(answer) if answer.status == SidrStatus::ServiceIdNotSupported => answer.request_id,
            _ => return false,
        };
        let Some(asking) = self.communications.get(&id).and_then(|key| self.records.get(key)) else { return false };
        let is_early = asking.asked_at.is_some_and(|asked| now < asked + EARLY_REFUSAL);
        let is_there = |record: &Record| record.stage == Stage::Connected && record.destination == asking.destination;
        asking.stage == Stage::Connecting && is_early && self.records.values().any(is_there)
    }
}
