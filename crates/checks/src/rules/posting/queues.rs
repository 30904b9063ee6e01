//! What happens to the queues of a queue pair in the course of its life.

use alloc::format;

use trace::{Call, DropReason, Kind};

use super::{AFTER_ERROR, NEVER_REAPED, NEVER_SIGNALED, POSTED_WHILE_DRAINING, RECEIVE_TOO_LATE, requests};
use crate::checker::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::model::Pair;
use crate::rules::memory::{Owner, Posting};

/// So much work posted after an error was polled is told: one or two requests may be there to mark the end of a queue.
const AFTER_ERROR_MIN: u32 = 4;

/// What is remembered of a queue pair.
#[derive(Default, Debug)]
pub(super) struct Life {
    /// The status of an error that the program has polled.
    error_polled: Option<&'static str>,
    posted_after_error: u32,
    /// When a message came for which nothing had ever been posted.
    missed_at: Option<u64>,
}

impl Life {
    pub fn observe(&mut self, posted: Option<&Posting>, moment: &Moment<'_>, out: &mut Out<'_>) {
        let Some(pair) = moment.model.pair_of(moment.event) else { return };
        match &moment.event.kind {
            Kind::Called { call: Call::Polled { status, .. }, .. }
                if !status.ends_with("SUCCESS") && matches!(pair.state, "ERR" | "SQE") =>
            {
                self.error_polled.get_or_insert(status);
            }
            Kind::Called { call: Call::DestroyQp { .. }, .. } => never_signaled(pair, out),
            Kind::PacketDropped { reason: DropReason::NoReceive, .. }
                if pair.receives.posted == 0 && pair.srq.is_none() =>
            {
                self.missed_at.get_or_insert(moment.event.at);
            }
            Kind::Completed { .. } => requests::failed(pair, moment, out),
            _ => {}
        }
        if let Some(posted) = posted {
            self.posted(posted, pair, out);
        }
    }

    fn posted(&mut self, posted: &Posting, pair: &Pair, out: &mut Out<'_>) {
        if let (Some(status), "ERR") = (self.error_polled, pair.state) {
            self.posted_after_error += 1;
            if self.posted_after_error >= AFTER_ERROR_MIN {
                let what = format!(
                    "{} is the {}. work request on this queue pair after the program polled {status} from it",
                    posted.name(),
                    self.posted_after_error
                );
                let advice = "after a failed completion of a connected queue pair, stop posting: destroy the queue \
                              pair, or take it through RESET, INIT, RTR to RTS and connect it again";
                out.tell(
                    posted
                        .finding(AFTER_ERROR, what, advice)
                        .because("the queue pair is in state ERR: all that is posted is flushed and never sent"),
                );
            }
        }
        match posted.owner {
            Owner::Receive(_) => {
                if let Some(missed_at) = self.missed_at.take() {
                    let late = posted.work.at.saturating_sub(missed_at) / 1_000;
                    let what = format!(
                        "{} is the first that was posted, {late} us after a message had come for it",
                        posted.name()
                    );
                    let advice = "post receives before the peer can send: before the queue pair goes to RTR, or \
                                  before the program tells the peer that it is ready (rdma_connect, rdma_accept)";
                    let cause = match pair.kind {
                        "RC" | "XRC_RECV" => "the peer's NIC was told to wait (RNR) and has to send the message again",
                        _ => "the message was dropped, and nobody is told",
                    };
                    out.tell(posted.finding(RECEIVE_TOO_LATE, what, advice).because(cause));
                }
            }
            Owner::Send(_) => {
                never_reaped(posted, pair, out);
                if pair.state == "SQD" {
                    let what = format!("{} waits: the send queue is stopped (SQD)", posted.name());
                    let advice = "move the queue pair to RTS with ibv_modify_qp, or post later";
                    out.tell(posted.finding(POSTED_WHILE_DRAINING, what, advice));
                }
            }
            Owner::Shared(_) => {}
        }
    }
}

/// Whether the queue is now full of work that never completes.
fn never_reaped(posted: &Posting, pair: &Pair, out: &mut Out<'_>) {
    let (capacity, held) = (u64::from(pair.max_send_wr), pair.sends.len() as u64 + 1);
    let full = capacity > 0 && held >= capacity && pair.state == "RTS";
    if full && !posted.work.signaled && !pair.sends.iter().any(|work| work.signaled) {
        let what =
            format!("{} makes the send queue full, and none of its {held} work requests is signaled", posted.name());
        let advice = "set IBV_SEND_SIGNALED on at least one work request of each max_send_wr, and poll its \
                      completion before the queue is full (or make the queue pair with sq_sig_all = 1)";
        out.tell(
            posted
                .finding(NEVER_REAPED, what, advice)
                .because(
                    "places of a send queue become free when a completion is polled, for the work that completed and \
                     all before it; here no completion will come",
                )
                .shown_by(format!("QP {} was made with max_send_wr {capacity} and sq_sig_all 0", pair.qpn)),
        );
    }
}

/// A queue pair ends: did the program ever ask how its work went?
pub(super) fn never_signaled(pair: &Pair, out: &mut Out<'_>) {
    let (posted, capacity) = (pair.sends.posted, u64::from(pair.max_send_wr));
    if pair.sends.signaled > 0 || posted == 0 || capacity == 0 || posted * 4 < capacity || pair.first_failure.is_some()
    {
        return;
    }
    let what =
        format!("{posted} work requests were posted to the send queue of QP {}, and none was signaled", pair.qpn);
    let advice = "set IBV_SEND_SIGNALED on the last work request of a batch and poll its completion: it says that \
                  all before it are done and their buffers free";
    out.tell(
        Finding::new(NEVER_SIGNALED, Subject::QueuePair(pair.qpn), what, advice)
            .because(format!("without a completion the queue fills, and takes no more work after {capacity}")),
    );
}
