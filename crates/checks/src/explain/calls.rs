//! Calls that were refused: UV-08xx. The NIC says why in a sentence; which rule that is follows from its words and the
//! errno. What the program has is evidence.

mod reason;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use trace::{Call, Kind, Queue};
use wire::Qpn;

use super::events;
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::mistakes::Mistake;
use crate::model::{Model, Pair, Work, WorkQueue};
use crate::naming;
use crate::rule::catalogue::calls::*;

/// The family.
#[derive(Default, Debug)]
pub(crate) struct RefusedCalls {
    /// The queue has told why it did not take work: the call that posted it says the same again.
    told: bool,
}

impl Examine for RefusedCalls {
    fn sees(&self) -> Sort {
        Sort::POST | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let (event, model) = (moment.event, moment.model);
        match &event.kind {
            Kind::Called { call: Call::PostSend { .. } | Call::PostReceive { .. }, .. } => self.told = false,
            Kind::PostRefused { wr_id, queue, reason } => {
                self.told = true;
                let Some(qpn) = event.qpn else { return };
                let Some(finding) = not_posted(model, qpn, *wr_id, *queue, reason) else { return };
                out.tell_mistake(finding, Mistake::Object(Subject::QueuePair(qpn)));
            }
            // To be called again is no refusal: nothing is there yet, or a signal came.
            Kind::Called { call: Call::Refused { function, errno, reason }, .. }
                if reason::is_an_answer(function, *errno, reason.as_str()) => {}
            Kind::Called { call: Call::Refused { function, errno, reason }, .. } => {
                let posts = function.starts_with("ibv_post_") || *function == "ibv_wr_complete";
                if posts && core::mem::take(&mut self.told) {
                    return;
                }
                // What the call waited for has been told, with the address.
                if events::connections::tells_of(reason.as_str()) && out.wants_any_of(events::connections::RULES) {
                    return;
                }
                // The rule of the connection manager says it better.
                if *function == "rdma_ack_cm_event" && out.wants(crate::rule::catalogue::manager::ACKNOWLEDGED_TWICE) {
                    return;
                }
                let finding = refused(model, event.qpn, function, *errno, reason.as_str());
                let mistake = Mistake::Object(finding.subject);
                out.tell_mistake(finding, mistake);
            }
            _ => {}
        }
    }
}

/// Whether no work of the send queue asks for a completion: then nothing ever makes room.
pub(super) fn nothing_is_signaled(pair: &Pair) -> bool {
    !pair.sends.is_empty() && pair.sends.iter().all(|work| !work.signaled)
}

/// A queue did not take a work request. None where another family tells of it.
fn not_posted(model: &Model, qpn: Qpn, wr_id: u64, queue: Queue, reason: &str) -> Option<Finding> {
    let sends = queue == Queue::Send;
    let pair = model.pairs.get(&qpn);
    if reason == "queue_full" && sends && pair.is_some_and(nothing_is_signaled) {
        return None;
    }
    let works = pair.map(|pair| if sends { &pair.sends } else { &pair.receives });
    let posting = works.and_then(|works| works.about_to_post());
    let opcode = posting.as_ref().map_or(if sends { "send" } else { "RECV" }, |work| work.opcode);
    let what = naming::work(model, qpn, queue, wr_id, opcode, posting);
    let state = pair.map_or("a state that was not seen", |pair| pair.state);
    let (pieces, bytes) = posting.as_ref().map_or((0, 0), |work| (work.pieces.count, work.pieces.bytes));
    let granted = |send: u32, receive: u32| if sends { send } else { receive };
    let kind = pair.map_or("", |pair| pair.kind);
    let (rule, why, advice) = match reason {
        "wrong_state" if sends => (
            WRONG_STATE,
            format!("the queue pair is in {state}, and sends are taken from RTS on"),
            "move the queue pair to INIT, RTR and RTS with ibv_modify_qp first, and check what each call returns"
                .into(),
        ),
        "wrong_state" => (
            WRONG_STATE,
            format!("the queue pair is in {state}, and receives are taken from INIT on"),
            "move the queue pair to INIT with ibv_modify_qp before receives are posted".into(),
        ),
        "queue_full" if sends => (
            SEND_QUEUE_FULL,
            full(pair, works.map_or(0, |works| works.len()), pair.map_or(0, |pair| pair.max_send_wr)),
            "poll the completion queue before more is posted, or create the queue pair with a larger max_send_wr"
                .into(),
        ),
        "queue_full" => (
            RECEIVE_QUEUE_FULL,
            full(pair, works.map_or(0, |works| works.len()), pair.map_or(0, |pair| pair.max_recv_wr)),
            "post one receive for each that has completed, or create the queue pair with a larger max_recv_wr".into(),
        ),
        "too_many_sges" => {
            let max = pair.map_or(0, |pair| granted(pair.max_send_sge, pair.max_recv_sge));
            let name = if sends { "max_send_sge" } else { "max_recv_sge" };
            (
                TOO_MANY_PIECES,
                format!("its list has {pieces} pieces, and the queue was created for {max} ({name})"),
                format!("ask for more {name} in ibv_qp_init_attr.cap, or use fewer pieces"),
            )
        }
        "inline_too_long" => {
            let max = pair.map_or(0, |pair| pair.max_inline_data);
            (
                INLINE_TOO_LONG,
                format!("it has {bytes} bytes inline, and the queue was created for {max} (max_inline_data)"),
                "ask for more max_inline_data in ibv_qp_init_attr.cap and read back what was granted, or send without \
                 IBV_SEND_INLINE"
                    .into(),
            )
        }
        "inline_not_allowed" => (
            NOT_SUPPORTED,
            "the operation writes into its local memory, which inline data does not have".into(),
            "take IBV_SEND_INLINE away: READs and atomics need registered memory for their answer".into(),
        ),
        "not_supported" => (
            NOT_SUPPORTED,
            format!("a queue pair of type {kind} does not do {opcode}"),
            "keys are invalidated and windows bound on RC and UC, and raw packets can only be sent".into(),
        ),
        "target" => (
            TARGET_MISSING,
            "a datagram needs an address handle, and only a datagram takes one".into(),
            "set wr.ud.ah, wr.ud.remote_qpn and wr.ud.remote_qkey on a UD queue pair".into(),
        ),
        "xrc_target" => (
            TARGET_MISSING,
            "an XRC send needs the number of the peer's shared receive queue".into(),
            "set qp_type.xrc.remote_srqn to what ibv_get_srq_num said at the peer".into(),
        ),
        "uses_srq" => (
            NO_RECEIVE_QUEUE,
            "the queue pair takes its receives from a shared receive queue".into(),
            "post the receive with ibv_post_srq_recv".into(),
        ),
        "no_receive_queue" => (
            NO_RECEIVE_QUEUE,
            format!("a queue pair of type {kind} has no receive queue"),
            "post receives to the shared receive queue that the peer names".into(),
        ),
        "frame_too_short" | "message_too_long" => (
            MESSAGE_LENGTH,
            format!("{bytes} bytes cannot be sent as one message"),
            "messages have at most 2^31 bytes, and raw frames at least the 14 of an Ethernet header".into(),
        ),
        "refused_by_device" => (
            CARD_REFUSES,
            format!("the card that the NIC is like does not do {opcode}, though queue pairs of type {kind} may"),
            "have another way for cards that lack it, such as a SEND for immediate data; `ubiverbs run --nic show NAME` \
             prints what a card does not have"
                .into(),
        ),
        other => (REFUSED, other.into(), "see ibv_post_send(3) and ibv_post_recv(3)".into()),
    };
    let finding = Finding::new(rule, Subject::QueuePair(qpn), format!("{what} was not posted: {why}"), advice);
    let finding = match works.zip(posting).filter(|_| reason == "queue_full") {
        Some((works, posting)) if is_one_request(works, posting) => finding.shown_by(format!(
            "the {} work requests before it in the list are the same as this one: does wr.next point to a request that \
             is in the list already?",
            posting.index
        )),
        _ => finding,
    };
    let queue = if sends { "sends" } else { "receives" };
    Some(
        finding
            .apart_by(&[queue, reason])
            .because("the call returned an error, bad_wr points to the request, and none from it on was posted"),
    )
}

/// Whether a list that was posted seems to have one request again and again.
fn is_one_request(works: &WorkQueue, posting: &Work) -> bool {
    let same = |work: &Work| {
        (work.wr_id, work.opcode, work.pieces, work.remote)
            == (posting.wr_id, posting.opcode, posting.pieces, posting.remote)
    };
    let mut before = works.iter().rev().take(posting.index as usize);
    before.next().is_some_and(same) && before.all(same)
}

fn full(pair: Option<&Pair>, under_way: usize, size: u32) -> String {
    let Some(_) = pair else { return "all its slots are taken".into() };
    format!("{under_way} work requests have not completed, and the queue was created for {size}")
}

/// A call was refused.
fn refused(model: &Model, qpn: Option<Qpn>, function: &'static str, errno: i32, reason: &str) -> Finding {
    let kind = qpn.and_then(|qpn| model.pairs.get(&qpn)).map_or("", |pair| pair.kind);
    let rule = match reason::rule(function, errno, reason) {
        // The pointer that a datagram must have beside its list is that to its address handle.
        NULL if function == "ibv_post_send" && kind == "UD" => TARGET_MISSING,
        rule => rule,
    };
    let about = qpn.map_or_else(String::new, |qpn| format!(" for {}", naming::pair(model, qpn)));
    let name = reason::errno_name(errno);
    let why = match reason {
        "" => reason::meaning(errno).unwrap_or("no reason was given"),
        reason => reason,
    };
    let subject = qpn.map_or(Subject::Function(function), Subject::QueuePair);
    let mut finding = Finding::new(
        rule,
        subject,
        format!("{function}{about} failed with {name}: {why}"),
        reason::advice(rule, function, errno, reason),
    )
    .apart_by(&[function, &name, reason]);
    if let Some(pair) = qpn.and_then(|qpn| model.pairs.get(&qpn)) {
        finding = finding.shown_by(format!("{} is a queue pair of type {} in {}", pair.qpn, pair.kind, pair.state));
    }
    if rule == BUSY {
        finding.evidence.extend(users(model, function));
    }
    finding
}

/// What may still use the object that could not be destroyed.
fn users(model: &Model, function: &str) -> Vec<String> {
    let mut seen = Vec::new();
    let mut list = |what: &str, names: Vec<String>| {
        let shown = names.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(", ");
        match names.len() {
            0 => {}
            1..=4 => seen.push(format!("still there: {what} {shown}")),
            more => seen.push(format!("still there: {what} {shown} and {} more", more - 4)),
        }
    };
    let of_domain = matches!(function, "ibv_dealloc_pd" | "ibv_close_device");
    if of_domain {
        list("regions", model.regions.values().map(|one| format!("{} (PD {})", one.key, one.pd)).collect());
        list("address handles", model.handles.iter().map(|(ah, pd)| format!("{ah:#x} (PD {pd})")).collect());
        list("windows", model.windows.iter().map(|(key, one)| format!("{key:#x} (PD {})", one.pd)).collect());
    }
    if of_domain || matches!(function, "ibv_destroy_cq" | "ibv_destroy_srq") {
        let name = |pair: &Pair| match function {
            "ibv_destroy_cq" => match (pair.send_cq, pair.receive_cq) {
                (Some(one), Some(other)) if one != other => format!("{} (CQ {one} and CQ {other})", pair.qpn),
                (Some(cq), _) | (None, Some(cq)) => format!("{} (CQ {cq})", pair.qpn),
                (None, None) => format!("{}", pair.qpn),
            },
            "ibv_destroy_srq" => format!("{} (SRQ {})", pair.qpn, pair.srq.unwrap_or_default()),
            _ => format!("{} (PD {})", pair.qpn, pair.pd),
        };
        let uses = |pair: &&Pair| function != "ibv_destroy_srq" || pair.srq.is_some();
        list("queue pairs", model.pairs.values().filter(uses).map(name).collect());
    }
    if function == "ibv_destroy_comp_channel" {
        let on = model.cqs.iter().filter(|(_, cq)| cq.channel.is_some());
        list("completion queues", on.map(|(cq, _)| format!("CQ {cq}")).collect());
    }
    seen
}

#[cfg(test)]
mod tests;
