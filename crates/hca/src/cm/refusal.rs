//! Refusals that come too soon. Programs tell each other by other means that they are about to connect, and then one listens while the other asks: with
//! kernels the one who asks is slower, since its calls go through several work queues. Here both are as fast, and who asks may be first. So
//! that nobody listens is believed only of an answer to the question repeated.

use super::Inner;
use super::record::Stage;
use std::time::Duration;
use wire::cm::{CmDatagram, Message, RejectReason, RejectedMessage, SidrStatus};

/// How long after the first question a refusal is passed over: less than until the second.
const HASTE: Duration = Duration::from_millis(100);

impl Inner {
    /// Whether a message says that nobody listens, and may say so only because it was asked too soon.
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
        let record = self.communications.get(&id).and_then(|key| self.records.get(key));
        record.is_some_and(|record| {
            record.stage == Stage::Connecting && record.asked_at.is_some_and(|asked| now < asked + HASTE)
        })
    }
}
