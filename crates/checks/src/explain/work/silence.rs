//! Work that the peer did not answer, did not want yet, or that was flushed.

use alloc::format;
use alloc::string::String;

use trace::{Call, ConnectionEnd, StateCause};

use super::{FLUSHED, Failed, NO_ANSWER, NO_RECEIVE, PEER_GONE, rule_of_failure};
use crate::finding::Finding;
use crate::model::Pair;
use crate::naming::{peer_here, span};

/// Retries ran out.
pub(super) fn no_answer(failed: &Failed<'_>, tries: u32) -> Finding {
    let happened = format!("the peer acknowledged nothing, though it was sent {tries} times");
    let Some(pair) = failed.pair else {
        return failed.finding(NO_ANSWER, &happened, GENERAL_ADVICE);
    };
    let connection = &pair.connection;
    let mut advice = String::from(GENERAL_ADVICE);
    let mut cause = None;
    let mut finding = failed.finding(NO_ANSWER, &happened, "");
    finding = finding.shown_by(match pair.heard_at {
        None => "this queue pair never received anything from its peer".into(),
        Some(at) => format!("the last packet of the peer came {} before", span(failed.at.saturating_sub(at))),
    });
    if let Some(dest) = connection.dest_qpn {
        if let Some((reason, psn, count)) = failed.drops.get(&dest) {
            finding = finding.shown_by(format!(
                "this process dropped {count} packets for QP {dest}, the last with PSN {psn}: {reason}"
            ));
            cause = Some(format!("the packets reached the destination and were dropped there: {reason}"));
        }
        if let Some((why, what_to_do)) = wrong_peer(failed, pair) {
            cause = Some(why);
            advice = what_to_do;
        } else if let Some((why, what_to_do)) = failed.seen.and_then(|seen| wrong_answer(pair, seen)) {
            finding = finding.shown_by("that is what a process of this host answered when it was asked for the peer");
            cause = Some(why);
            advice = what_to_do;
        } else if let Some((_, at)) = failed.model.gone_pairs.iter().rev().find(|(qpn, _)| *qpn == dest) {
            let ago = span(failed.at.saturating_sub(*at));
            cause = Some(format!("QP {dest} was destroyed in this process {ago} before"));
            advice = "keep the peer's queue pair until all work of this one has completed".into();
        }
    }
    if let Some(dgid) = connection.dgid {
        finding = finding.shown_by(format!("the peer's address (GID) is {}", shown(&dgid)));
    }
    let (timeout, retries) = (connection.timeout.unwrap_or(0), connection.retry_cnt.unwrap_or(0));
    finding = finding.shown_by(format!("the queue pair has timeout {timeout} and retry_cnt {retries}"));
    let cause = cause.unwrap_or_else(|| match pair.heard_at {
        None => "the connection never worked: wrong QP number, GID or PSN, a peer that is not in RTR, or no way there"
            .into(),
        Some(_) => {
            "the connection worked before: the peer's queue pair or process ended, or the network lost the way".into()
        }
    });
    finding.advice = advice;
    finding.because(cause)
}

const GENERAL_ADVICE: &str = "check that dest_qp_num, ah_attr.grh.dgid, rq_psn and sq_psn are what the peer sent (in host byte order), and \
     that the peer is in RTR or RTS before the first work is posted";

/// What is wrong with the queue pair of this process that has the peer's number.
fn wrong_peer(failed: &Failed<'_>, pair: &Pair) -> Option<(String, String)> {
    let dest = pair.connection.dest_qpn?;
    let Some((peer, mutual)) = peer_here(failed.model, pair) else {
        // 24 bits of a number that was sent in network byte order and not turned: the last byte of the number is lost.
        let turned = failed.model.pairs.keys().find(|qpn| wire::Qpn::new(qpn.value().swap_bytes()) == dest)?;
        return (*turned != dest).then(|| {
            (
                format!(
                    "QP {dest} does not exist here; QP {turned} does, whose number with its bytes in reverse ends in the \
                     same 24 bits"
                ),
                "convert qp_num with htonl before it is sent and with ntohl when it was received".into(),
            )
        });
    };
    let theirs = peer.connection;
    if matches!(peer.state, "RESET" | "INIT") {
        let state = peer.state;
        return Some((
            format!("QP {dest} of this process is in {state}, and a queue pair receives from RTR on"),
            format!("move QP {dest} to RTR with ibv_modify_qp before this side sends"),
        ));
    }
    if matches!(peer.state, "ERR") {
        let why = peer.state_cause.map_or_else(String::new, |cause| format!(": {cause}"));
        return Some((
            format!("QP {dest} of this process had stopped (ERR){why}"),
            format!("find out what stopped QP {dest}; it is reported as a finding of its own"),
        ));
    }
    if !mutual {
        let other = theirs.dest_qpn?;
        return Some((
            format!("QP {dest} of this process is connected to QP {other}, not to QP {}", pair.qpn),
            "set dest_qp_num on each side to the qp_num of the other".into(),
        ));
    }
    if let (None, Some(sends), Some(expects)) = (pair.heard_at, pair.connection.sq_psn, theirs.rq_psn)
        && sends != expects
    {
        return Some((
            format!("QP {} begins with PSN {sends} (sq_psn), and QP {dest} expects {expects} (rq_psn)", pair.qpn),
            "set rq_psn on each side to the sq_psn of the other".into(),
        ));
    }
    None
}

/// What is wrong with the peer as its process, another one of this host, describes it.
fn wrong_answer(pair: &Pair, seen: &Call) -> Option<(String, String)> {
    let Call::PeerSeen { peer, process, state, dest_qpn, rq_psn, .. } = *seen else { return None };
    if pair.connection.dest_qpn != Some(peer) {
        return None;
    }
    if process == 0 {
        return Some((
            format!("no process of this host has a queue pair {peer}"),
            "set dest_qp_num to the qp_num that the peer has now, in host byte order".into(),
        ));
    }
    if matches!(state, "RESET" | "INIT" | "ERR") {
        return Some((
            format!("QP {peer} of process {process} is in {state}, and a queue pair receives in RTR and RTS"),
            format!("in process {process}, move QP {peer} to RTR before this side sends"),
        ));
    }
    if let Some(other) = dest_qpn.filter(|other| *other != pair.qpn) {
        return Some((
            format!("QP {peer} of process {process} is connected to QP {other}, not to QP {}", pair.qpn),
            "set dest_qp_num on each side to the qp_num of the other".into(),
        ));
    }
    match (pair.heard_at, pair.connection.sq_psn, rq_psn) {
        (None, Some(sends), Some(expects)) if sends != expects => Some((
            format!("this side begins with PSN {sends} (sq_psn), and QP {peer} of process {process} expects {expects}"),
            "set rq_psn on each side to the sq_psn of the other".into(),
        )),
        _ => None,
    }
}

/// Receiver-not-ready retries ran out.
pub(super) fn not_ready(failed: &Failed<'_>, tries: u32) -> Finding {
    let happened = format!("the peer had no receive posted, though it was sent {tries} times");
    let advice = "have the peer post a receive (ibv_post_recv) before this side sends, and another for each message; \
                  rnr_retry 7 waits for ever";
    let retries = failed.pair.and_then(|pair| pair.connection.rnr_retry).unwrap_or(0);
    let mut finding = failed
        .finding(NO_RECEIVE, &happened, advice)
        .because("a SEND, or a WRITE with immediate, uses up one receive of the peer, and there was none")
        .shown_by(format!("the queue pair has rnr_retry {retries}"));
    if let Some((peer, true)) = failed.pair.and_then(|pair| peer_here(failed.model, pair)) {
        let (posted, waiting) = match peer.srq.and_then(|srq| failed.model.srqs.get(&srq)) {
            Some(shared) => (shared.receives.posted, shared.receives.len()),
            None => (peer.receives.posted, peer.receives.len()),
        };
        finding = finding
            .shown_by(format!("the peer is QP {} of this process: {posted} receives posted, {waiting} left", peer.qpn));
    }
    finding
}

/// The process of the peer ended.
pub(super) fn peer_gone(failed: &Failed<'_>) -> Finding {
    failed
        .finding(
            PEER_GONE,
            "the peer's process ended before it acknowledged this",
            "find out why the peer's program ended: it exited, crashed or was killed. If it ended on purpose, have it \
             wait until this side is done",
        )
        .because("the process that has the peer's queue pair does not exist any more")
}

/// The queue pair had stopped.
pub(super) fn flushed(failed: &Failed<'_>) -> Finding {
    let what = "the queue pair had stopped before this work was done";
    let first = failed.pair.and_then(|pair| pair.first_failure);
    let (cause, advice) = match (first, failed.pair.and_then(|pair| pair.state_cause)) {
        (Some((wr_id, status, failure)), _) => {
            let (rule, short) = (rule_of_failure(&failure, status), status.trim_start_matches("IBV_WC_"));
            (
                format!("work request {wr_id} failed first, with {short} ({rule}): {failure}"),
                "fix what the first failure says; what was flushed after it has no fault of its own",
            )
        }
        (None, Some(StateCause::Modify)) if let Some(stop) = failed.stopped_by => stop.cause_and_advice(),
        (None, Some(StateCause::Modify)) => (
            "the program itself moved the queue pair to ERR".into(),
            "nothing, if that was meant: this is how the work that is left is given back",
        ),
        (None, Some(StateCause::Disconnected)) => (
            format!("the connection ended: {}", ending(failed.ended)),
            "nothing, if the end was expected; otherwise look at the side that ended it",
        ),
        (None, Some(StateCause::PeerRequest(why))) => (
            format!("a request of the peer was refused, which stops both queue pairs: {why}"),
            "look at the peer's failed work: its report names the request",
        ),
        (None, Some(cause)) => (format!("{cause}"), "fix what stopped the queue pair"),
        (None, None) => ("what stopped it was not seen".into(), "look for what happened to the queue pair before"),
    };
    failed.finding(FLUSHED, what, advice).because(cause)
}

/// Who ended a connection.
fn ending(by: Option<ConnectionEnd>) -> String {
    by.map_or_else(|| "one of both sides disconnected".into(), |by| format!("{by}"))
}

fn shown(gid: &[u8; 16]) -> String {
    let address = core::net::Ipv6Addr::from(*gid);
    address.to_ipv4_mapped().map_or_else(|| format!("{address}"), |v4| format!("{v4}"))
}
