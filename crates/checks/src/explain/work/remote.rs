//! Work that the peer refused, and receives that failed because of what the peer sent.

use alloc::format;
use alloc::string::String;

use trace::{PeerReason, RequestFault};
use wire::NakCode;
use wire::access::{Access, RefusalCause};

use super::Failed;
use crate::finding::Finding;
use crate::naming;
use crate::rule::Number;
use crate::rule::catalogue::work::*;

/// The right at the peer that an operation needs.
fn needed(opcode: &str) -> &'static str {
    match opcode {
        "RDMA_READ" => "IBV_ACCESS_REMOTE_READ",
        "COMP_SWAP" | "FETCH_ADD" => "IBV_ACCESS_REMOTE_ATOMIC",
        "FLUSH" => "IBV_ACCESS_FLUSH_GLOBAL or IBV_ACCESS_FLUSH_PERSISTENT",
        _ => "IBV_ACCESS_REMOTE_WRITE",
    }
}

/// The peer answered with a NAK.
pub(super) fn refused(rule: Number, failed: &Failed<'_>, code: NakCode, peer: Option<PeerReason>) -> Finding {
    let target = failed.remote().map_or_else(
        || "the request".into(),
        |(address, length, key)| format!("the access to {length} bytes at {address:#x} with rkey {key}"),
    );
    let happened = match rule {
        REMOTE_RECEIVE_TOO_SHORT => "the peer's receive is shorter than the message".into(),
        REMOTE_RECEIVE_BAD => "the peer could not store the message in its own receive".into(),
        REMOTE_MALFORMED => "the peer could not make sense of the packets".into(),
        TOO_MANY_READS => "the peer does not take so many READs and atomics at once".into(),
        _ => format!("the peer refused {target} ({code})"),
    };
    let right = needed(failed.opcode);
    let advice = match peer {
        Some(PeerReason::Fault(RequestFault::ForeignXrcQueue)) => {
            "set qp_type.xrc.remote_srqn of the work request to what ibv_get_srq_num says of the peer's shared receive \
             queue, which must be of the XRC domain of its queue pair; 0 is what a request that is all zeros has"
                .into()
        }
        Some(PeerReason::Refused { cause: RefusalCause::LocalKey, .. }) => naming::ADVICE_ON_LOCAL_KEY.into(),
        _ => advice(rule, right),
    };
    let finding = failed.finding(rule, &happened, advice);
    let finding = match peer {
        Some(reason) => finding.because(cause(reason, failed)).shown_by(format!("the peer says: {reason}")),
        None => finding.because(possible(rule, right)),
    };
    with_memory(finding, failed, rule)
}

/// What this process has to say about the peer's memory: everything, if the peer is a queue pair of this process.
fn with_memory(mut finding: Finding, failed: &Failed<'_>, rule: Number) -> Finding {
    let here = failed.pair.and_then(|pair| naming::peer_here(failed.model, pair));
    let Some((peer, true)) = here else {
        let side =
            "the other side's report has the reason: run the peer with --why, or give both logs to `ubiverbs why`";
        if [REMOTE_ACCESS, REMOTE_INVALID, REMOTE_RECEIVE_BAD].contains(&rule) {
            finding = finding.shown_by(side);
        }
        return finding;
    };
    let about_memory = [
        REMOTE_ACCESS,
        REMOTE_KEY_UNKNOWN,
        REMOTE_LOCAL_KEY,
        REMOTE_OUT_OF_BOUNDS,
        REMOTE_OTHER_DOMAIN,
        REMOTE_REGION_FORBIDS,
        REMOTE_NOT_THERE,
        REMOTE_GPU,
        REMOTE_WINDOW,
    ];
    if let (true, Some((address, length, key))) = (about_memory.contains(&rule), failed.remote()) {
        finding.evidence.extend(naming::memory_of_peer(failed.model, key, address, length, failed.at));
        if let Some(advice) = naming::advice_on_rkey(failed.model, key) {
            finding.advice = advice.into();
        }
    }
    let access = naming::rights(peer.connection.access.unwrap_or(Access::empty()));
    finding.shown_by(format!("the peer is QP {} of this process, in PD {}, and grants {access}", peer.qpn, peer.pd))
}

/// The cause, in the requester's words.
fn cause(reason: PeerReason, failed: &Failed<'_>) -> String {
    match reason {
        PeerReason::Refused { key, cause: RefusalCause::OutOfBounds { start, length: size }, .. } => {
            let Some((address, length, _)) = failed.remote() else {
                return format!("the memory of key {key} is [{start:#x}, +{size})");
            };
            let (end, last) = (start.saturating_add(size), address.saturating_add(length));
            let how = if last > end && address < end {
                format!("reaches {} bytes past its end", last - end)
            } else if address < start && last > start {
                format!("begins {} bytes before it", start - address)
            } else {
                "lies outside it".into()
            };
            let hint = naming::mangled(address, start, size).map_or_else(String::new, |hint| format!("; {hint}"));
            format!("the peer's memory of key {key} is [{start:#x}, +{size}); the request {how}{hint}")
        }
        PeerReason::Refused { key, cause: RefusalCause::GpuFailed { error }, .. } => {
            format!("at the peer, the GPU's driver says {error} (key {key}): {}", naming::gpu_error(error))
        }
        PeerReason::Refused { key, cause, .. } => format!("at the peer, {cause} (key {key})"),
        other => format!("at the peer, {other}"),
    }
}

/// Where the peer did not say why: what it can be.
fn possible(rule: Number, right: &str) -> String {
    match rule {
        REMOTE_ACCESS => format!(
            "one of: the key is not one of the peer's (any more), the range leaves its region, the region is of \
             another protection domain than the peer's queue pair, or was registered without {right}"
        ),
        REMOTE_INVALID => format!(
            "one of: the peer's queue pair does not grant {right}, its receive is shorter than the message, the \
             address of an atomic is no multiple of 8, more READs than its max_dest_rd_atomic, or the path MTUs differ"
        ),
        _ => "the peer's receive names memory that may not be written: a wrong lkey, or no LOCAL_WRITE".into(),
    }
}

fn advice(rule: Number, right: &str) -> String {
    match rule {
        REMOTE_KEY_UNKNOWN => {
            "use the rkey that ibv_reg_mr gave the peer, as the peer has it now; a region that is registered again has \
             another key"
                .into()
        }
        REMOTE_OUT_OF_BOUNDS => {
            "exchange address and length of the peer's region together with its rkey, and stay inside them".into()
        }
        REMOTE_OTHER_DOMAIN => {
            "at the peer, register the memory with the ibv_pd that its queue pair was created with".into()
        }
        REMOTE_REGION_FORBIDS => format!("at the peer, add {right} to the access flags of ibv_reg_mr"),
        REMOTE_PAIR_FORBIDS => {
            format!("at the peer, add {right} to qp_access_flags (ibv_modify_qp to INIT, IBV_QP_ACCESS_FLAGS)")
        }
        ATOMIC_MISALIGNED => "let wr.atomic.remote_addr be a multiple of 8".into(),
        REMOTE_WINDOW => {
            "at the peer, bind the window to this queue pair and wait for its completion before the key is sent".into()
        }
        REMOTE_GPU => {
            "at the peer, keep the GPU's memory and its context until its region was deregistered, and free no GPU \
             memory while kernels wait for the NIC"
                .into()
        }
        REMOTE_NOT_THERE => "at the peer, keep the memory mapped while it is registered".into(),
        REMOTE_RECEIVE_TOO_SHORT => "send less, or have the peer post longer receives".into(),
        TOO_MANY_READS => {
            "set max_rd_atomic here to at most the peer's max_dest_rd_atomic (with rdma_connect: initiator_depth and \
             responder_resources)"
                .into()
        }
        REMOTE_RECEIVE_BAD => {
            "at the peer, give its receives the lkey of a region that has IBV_ACCESS_LOCAL_WRITE and holds them".into()
        }
        REMOTE_MALFORMED => {
            "give both ends the same path_mtu, and let nothing else use their queue pair numbers".into()
        }
        _ => format!("check rkey, address, length and {right} on both sides"),
    }
}

/// A receive of ours failed for what the peer sent.
pub(super) fn their_message(failed: &Failed<'_>, what: &str) -> Finding {
    let advice = "look at the peer: its work failed, too, and its report says with which request; both ends must agree \
                  on path_mtu, keys and ranges";
    failed
        .finding(PEER_MESSAGE_BAD, "the peer's message could not be carried out", advice)
        .because(format!("the peer's message was wrong: {what}"))
}

/// The peer answered nonsense.
pub(super) fn bad_answer(failed: &Failed<'_>, what: &str) -> Finding {
    let mut finding = failed
        .finding(
            BAD_ANSWER,
            "the peer's answer does not fit the request",
            "give both ends the same path_mtu, and let no other queue pair send to this one's number",
        )
        .because(format!("the answer was wrong: {what}"));
    if let Some((peer, true)) = failed.pair.and_then(|pair| naming::peer_here(failed.model, pair)) {
        let mtu = |mtu: Option<u32>| mtu.map_or_else(|| "no path_mtu".into(), |mtu| format!("path_mtu {mtu}"));
        finding = finding.shown_by(format!(
            "QP {} has {}, its peer QP {} has {}",
            failed.qpn,
            mtu(failed.pair.and_then(|pair| pair.connection.path_mtu)),
            peer.qpn,
            mtu(peer.connection.path_mtu)
        ));
    }
    finding
}
