//! Send queues that are stopped, or full of work that never completes.

use alloc::format;

use super::{NEVER_REAPED, NEVER_SIGNALED, POSTED_WHILE_DRAINING};
use crate::checker::Out;
use crate::finding::{Finding, Subject};
use crate::model::Pair;
use crate::rules::memory::{Owner, Posting};

/// A queue of this queue pair may have taken work.
pub(super) fn observe(pair: &Pair, posted: Option<&Posting<'_>>, out: &mut Out<'_>) {
    let Some(posted) = posted.filter(|posted| matches!(posted.owner, Owner::Send(_))) else { return };
    never_reaped(posted, pair, out);
    if pair.state == "SQD" {
        let what = format!("{} waits: the send queue is stopped (SQD)", posted.name());
        let advice = "move the queue pair to RTS with ibv_modify_qp, or post later";
        out.tell(posted.finding(POSTED_WHILE_DRAINING, what, advice));
    }
}

/// Whether the queue is now full of work that never completes.
fn never_reaped(posted: &Posting<'_>, pair: &Pair, out: &mut Out<'_>) {
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
