//! What does not happen: work that goes nowhere.

use alloc::format;

use super::Watched;
use crate::finding::{Finding, Subject};
use crate::model::{Model, Pair};
use crate::naming::{self, peer_here, span};
use crate::rule::catalogue::events::*;

/// How long nothing may happen, in nanoseconds.
const A_WHILE: u64 = 2_000_000_000;

/// Whether a queue pair stands still, and why.
pub(super) fn explain(model: &Model, pair: &Pair, watched: &Watched, now: u64) -> Option<Finding> {
    let subject = Subject::QueuePair(pair.qpn);
    let name = naming::pair(model, pair.qpn);
    if let Some((since, count)) = watched.without_receive
        && now.saturating_sub(since) > A_WHILE
        && no_receive_is_posted(model, pair)
    {
        let posted =
            pair.srq.and_then(|srq| model.srqs.get(&srq)).map_or(pair.receives.posted, |srq| srq.receives.posted);
        let what = format!("{name} has had no receive for {}, and the peer wants to send", span(now - since));
        let finding = Finding::new(
            RECEIVE_QUEUE_EMPTY,
            subject,
            what,
            "post receives with ibv_post_recv (ibv_post_srq_recv), and one more for each completion that was polled",
        );
        return Some(connected(
            finding
                .because("each SEND, and each WRITE with immediate, uses up one receive; none is left")
                .shown_by(format!("{posted} receives were posted so far; the peer was asked to wait {count} times")),
            pair,
        ));
    }
    let oldest = pair.sends.iter().find(|work| work.signaled)?;
    if pair.state == "SQD" && now.saturating_sub(pair.state_since) > A_WHILE {
        let what = format!("{} work requests wait on {name}, which is in SQD", pair.sends.len());
        let finding = Finding::new(NEVER_SENT, subject, what, "move the queue pair back to RTS with ibv_modify_qp");
        return Some(finding.because("in SQD nothing is begun; the program moved the queue pair there"));
    }
    if pair.state != "RTS" || now.saturating_sub(oldest.at) < A_WHILE {
        return None;
    }
    let work = naming::work(model, pair.qpn, trace::Queue::Send, oldest.wr_id, oldest.opcode, Some(oldest));
    if let Some((since, count)) = watched.not_ready {
        if now.saturating_sub(since) < A_WHILE {
            return None;
        }
        let forever = pair.connection.rnr_retry == Some(7);
        let mut finding = Finding::new(
            PEER_NOT_READY,
            subject,
            format!("{work} waits since {}: the peer has no receive posted", span(now - oldest.at)),
            "have the peer post receives before this side sends; a smaller rnr_retry turns the wait into an error",
        )
        .because("a SEND, or a WRITE with immediate, uses up one receive of the peer")
        .shown_by(format!("the peer asked to wait {count} times"));
        if forever {
            finding = finding.shown_by("rnr_retry is 7: this side asks again for ever, and the work never fails");
        }
        return Some(connected(finding, pair));
    }
    if !matches!(pair.kind, "RC" | "XRC_SEND") {
        return None;
    }
    if watched.sent_at < oldest.at {
        let what = format!("{work} was posted {} ago, and nothing of it was sent", span(now - oldest.at));
        let finding = Finding::new(
            NEVER_SENT,
            subject,
            what,
            "finish the batch with ibv_wr_complete; let work with IBV_SEND_FENCE wait only for READs that can end",
        );
        return Some(connected(finding.because("the queue pair is in RTS and did not begin the work"), pair));
    }
    if pair.heard_at.is_some_and(|heard| now.saturating_sub(heard) < A_WHILE) {
        return None;
    }
    let mut finding = Finding::new(
        NOT_ACKNOWLEDGED,
        subject,
        format!("{work} was sent {} ago, and the peer has acknowledged nothing since", span(now - oldest.at)),
        "look at the peer: is its process stopped, its queue pair in RTR or RTS, its number, GID and PSN the ones that \
         this side has?",
    )
    .because(match pair.heard_at {
        None => "the peer never answered on this connection",
        Some(_) => "the peer answered before and stopped",
    });
    if pair.connection.timeout == Some(0) {
        finding = finding.shown_by("timeout is 0: this side waits for ever, and sends nothing again");
    }
    if let Some((peer, _)) = peer_here(model, pair) {
        finding = finding
            .shown_by(format!("QP {} of this process has the peer's number, and is in {}", peer.qpn, peer.state));
    }
    Some(connected(finding, pair))
}

/// The program does nothing but wait for these completion queues, and no queue pair of one of them has ever sent or been
/// sent anything.
pub(super) fn nothing_to_wait_for(model: &Model, queues: &[u32], waited: u64) -> Option<Finding> {
    let is_fresh = |number: &&u32| model.cqs.get(number).is_some_and(|cq| cq.completed == 0 && cq.last_poll.is_some());
    let number = queues.iter().find(is_fresh)?;
    let of_it = |pair: &&Pair| pair.send_cq == Some(*number) || pair.receive_cq == Some(*number);
    let (mut pairs, mut receives) = (0, 0);
    for pair in model.pairs.values().filter(of_it) {
        let is_fresh = pair.sends.posted == 0 && pair.asked_at.is_none();
        if pair.state != "RTS" || !is_fresh {
            return None;
        }
        pairs += 1;
        receives += pair.srq.and_then(|srq| model.srqs.get(&srq)).map_or(pair.receives.len(), |srq| srq.receives.len());
    }
    (pairs > 0).then(|| {
        Finding::new(
            NOTHING_TO_WAIT_FOR,
            Subject::CompletionQueue(*number),
            format!(
                "the program polls CQ {number} since {}, and nothing is under way that could complete there",
                span(waited)
            ),
            "let one side begin: post a send there before it polls, and check what ibv_post_send returns",
        )
        .because("if both sides wait for the other one to begin, both wait for ever")
        .shown_by(format!(
            "{pairs} queue pairs complete there: {receives} receives are posted, no send was ever posted, and no \
             message of a peer has come"
        ))
    })
}

fn no_receive_is_posted(model: &Model, pair: &Pair) -> bool {
    match pair.srq.and_then(|srq| model.srqs.get(&srq)) {
        Some(srq) => srq.receives.is_empty(),
        None => pair.receives.is_empty(),
    }
}

fn connected(finding: Finding, pair: &Pair) -> Finding {
    match pair.connection.dest_qpn {
        Some(peer) => finding.between(pair.qpn, peer, None),
        None => finding,
    }
}

/// The send queue is full, and the program cannot learn when it has room again.
pub(super) fn nothing_signaled(model: &Model, pair: &Pair, wr_id: u64) -> Finding {
    let name = naming::pair(model, pair.qpn);
    let (count, size) = (pair.sends.len(), pair.max_send_wr);
    Finding::new(
        NOTHING_SIGNALED,
        Subject::QueuePair(pair.qpn),
        format!("work request {wr_id} was not posted on {name}: the send queue is full, and nothing in it is signaled"),
        format!(
            "set IBV_SEND_SIGNALED on at least one in {size} work requests (or sq_sig_all), and poll its completion"
        ),
    )
    .because(
        "unsignaled work makes no completion, and on hardware its slots stay taken until signaled work behind it was \
         polled: the queue stays full for ever",
    )
    .shown_by(format!("{count} work requests are in the queue of {size}, and none of them is signaled"))
}
