//! Send queues that are stopped, or full of work that never completes.

use alloc::format;

use super::{ASKED_FOR_NONE, MORE_THAN_THE_QUEUE_HOLDS, NEVER_REAPED, NEVER_SIGNALED, POSTED_WHILE_DRAINING};
use crate::examine::Out;
use crate::finding::{Finding, Subject};
use crate::mistakes::Mistake;
use crate::model::Pair;
use crate::posted_work::{Owner, Posting};

/// A queue of this queue pair may have taken work.
pub(super) fn observe(pair: &Pair, posted: Option<&Posting<'_>>, out: &mut Out<'_>) {
    let Some(posted) = posted else { return };
    asked_for_none(posted, pair, out);
    let Owner::Send(_) = posted.owner else { return };
    never_reaped(posted, pair, out);
    more_than_it_holds(posted, pair, out);
    if pair.state == "SQD" {
        let what = format!("{} waits: the send queue is stopped (SQD)", posted.name());
        let advice = "move the queue pair to RTS with ibv_modify_qp, or post later";
        out.tell(posted.finding(POSTED_WHILE_DRAINING, what, advice));
    }
}

/// Whether the program asked for a queue that takes nothing of this kind.
fn asked_for_none(posted: &Posting<'_>, pair: &Pair, out: &mut Out<'_>) {
    let (asked, has_pieces) = (pair.asked_for_none, posted.work.pieces.count > 0 && !posted.work.inline);
    let none = match posted.owner {
        Owner::Send(_) if asked.sends => "max_send_wr",
        Owner::Send(_) if asked.send_pieces && has_pieces => "max_send_sge",
        Owner::Receive(_) if asked.receives => "max_recv_wr",
        Owner::Receive(_) if asked.receive_pieces && has_pieces => "max_recv_sge",
        _ => return,
    };
    let what = format!("{} is posted to a queue pair that the program wanted with cap.{none} 0", posted.name());
    let advice = "set all of ibv_qp_init_attr.cap before ibv_create_qp: max_send_wr, max_recv_wr, max_send_sge and \
                  max_recv_sge, as many as are used at a time";
    out.tell(posted.finding(ASKED_FOR_NONE, what, advice).because(
        "this NIC grants 1 where 0 is asked for; on other hardware there is no such queue then, and posting fails",
    ));
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
        out.tell_mistake(
            posted
                .finding(NEVER_REAPED, what, advice)
                .because(
                    "places of a send queue become free when a completion is polled, for the work that completed and \
                     all before it; here no completion will come",
                )
                .shown_by(format!("QP {} was made with max_send_wr {capacity} and sq_sig_all 0", pair.qpn)),
            Mistake::Object(posted.owner.subject()),
        );
    }
}

/// Whether a queue of hardware would have no place for this: there, a place is free when a completion was polled.
fn more_than_it_holds(posted: &Posting<'_>, pair: &Pair, out: &mut Out<'_>) {
    let (capacity, taken) = (u64::from(pair.max_send_wr), pair.sends.places_taken());
    // Where nothing is signaled, UV-0301 is reported.
    let overfull = capacity > 0 && taken >= capacity && pair.state == "RTS" && pair.sends.signaled > 0;
    if !overfull || out.is_old(MORE_THAN_THE_QUEUE_HOLDS, posted.owner.subject()) {
        return;
    }
    let what = format!(
        "{} is posted although {taken} work requests before it still have their places: the program has not polled \
         their completions, and the send queue has {capacity}",
        posted.name()
    );
    let advice = "poll completions before more than max_send_wr work requests are posted (one that is polled frees the \
                  places of all work before it), or ask for a larger max_send_wr in ibv_create_qp";
    out.tell(
        posted
            .finding(MORE_THAN_THE_QUEUE_HOLDS, what, advice)
            .because(
                "on hardware a place is free when a completion was polled, not when the work is done: ibv_post_send \
                 fails there with ENOMEM; this NIC frees it when the work is done",
            )
            .shown_by(format!(
                "QP {} was made with max_send_wr {capacity}; {} work requests were posted so far, and {} are not done",
                pair.qpn,
                pair.sends.posted + 1,
                pair.sends.len() + 1
            )),
    );
}

/// A queue pair ends: did the program ever ask how its work went?
pub(super) fn never_signaled(pair: &Pair, out: &mut Out<'_>) {
    let (posted, capacity) = (pair.sends.posted, u64::from(pair.max_send_wr));
    // That the queue was full of such work says more.
    if out.was_told(NEVER_REAPED, Subject::QueuePair(pair.qpn)) {
        return;
    }
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
