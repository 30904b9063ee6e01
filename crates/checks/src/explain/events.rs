//! What happens without a call, and what does not happen: UV-09xx.

mod closing;
pub(super) mod connections;
mod drops;
mod stalls;
mod unanswered;
mod waits;

use alloc::format;

use trace::{Call, DropReason, Event, Kind, Queue, RetryCause, StateCause};
use wire::access::Refusal;
use wire::{Headers, Operation, Psn, Qpn};

use super::calls;
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::mistakes::Mistake;
use crate::model::Model;
use crate::naming;
use crate::rule::catalogue::connections::PKEY_DIFFERS;
use crate::rule::catalogue::events::*;
use crate::witness::Witness;

/// A queue pair takes no more receives of its shared receive queue.
const LAST_RECEIVE: &str = "QP_LAST_WQE_REACHED";

/// How many queue pairs are watched.
const MAX_WATCHED: usize = 4096;

/// What a queue pair did last.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    /// When it handed a packet to the link last.
    sent_at: u64,
    /// Since when, and how often, the peer has had no receive; until something is acknowledged.
    not_ready: Option<(u64, u64)>,
    /// Since when, and how often, this side has had no receive.
    without_receive: Option<(u64, u64)>,
    /// The number of the first request that came.
    first_request: Option<Psn>,
    /// Requests that came, and how many of them were dropped.
    requests: u64,
    dropped: u64,
    /// Packets that were dropped.
    all_dropped: u64,
    /// The last access of the peer that was refused.
    refused: Option<Refusal>,
    /// WRITEs of the peer that used up no receive, when the last of them came, and whether this side has posted a send
    /// since the first.
    writes: u64,
    written_at: u64,
    acted_since_write: bool,
    /// Messages of the peer that used up a receive.
    messages: u64,
}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Events {
    watched: Map<Qpn, Watched>,
    /// The threads that wait.
    waits: waits::Waits,
    /// Where ids connect to, and listen.
    places: connections::Places,
    /// Connections that wait for an answer.
    unanswered: unanswered::UnansweredMessages,
    /// Connections whose end is waited for.
    closing: closing::Closing,
}

impl Events {
    fn watched(&mut self, qpn: Option<Qpn>) -> Option<&mut Watched> {
        let qpn = qpn?;
        if self.watched.len() >= MAX_WATCHED && !self.watched.contains_key(&qpn) {
            return None;
        }
        Some(self.watched.entry(qpn).or_default())
    }

    /// Takes note of what an event says about progress.
    fn note(&mut self, event: &Event) {
        let at = event.at;
        let count = |before: Option<(u64, u64)>| Some(before.map_or((at, 1), |(since, count)| (since, count + 1)));
        let Some(watched) = self.watched(event.qpn) else { return };
        match event.kind {
            Kind::PacketSent { .. } => watched.sent_at = at,
            Kind::PacketReceived { headers, .. } if headers.bth.opcode.is_request() => {
                watched.requests += 1;
                watched.first_request.get_or_insert(headers.bth.psn);
                let opcode = headers.bth.opcode;
                if opcode.operation() == Operation::Send || opcode.has_immediate() {
                    watched.messages += 1;
                } else if opcode.operation() == Operation::Write {
                    watched.writes += u64::from(opcode.ends());
                    watched.written_at = at;
                }
            }
            Kind::PacketDropped { headers: Some(headers), .. } if headers.bth.opcode.is_request() => {
                watched.dropped += 1;
            }
            Kind::Retry { cause: RetryCause::RnrNak, .. } => watched.not_ready = count(watched.not_ready),
            Kind::Completed { queue: Queue::Send, .. } => watched.not_ready = None,
            Kind::NakSent { code: "receiver not ready", .. } => {
                watched.without_receive = count(watched.without_receive)
            }
            Kind::WorkPosted { queue: Queue::Receive, .. } => watched.without_receive = None,
            Kind::WorkPosted { queue: Queue::Send, .. } => watched.acted_since_write |= watched.writes > 0,
            Kind::AccessRefused { key, address, length, access, cause } => {
                let range = wire::access::Range { key, address, length };
                watched.refused = Some(Refusal { range, access, cause });
            }
            Kind::StateChanged { to: "RESET", .. } | Kind::Called { call: Call::DestroyQp { .. }, .. } => {
                *watched = Watched::default();
            }
            _ => {}
        }
    }
}

impl Examine for Events {
    fn sees(&self) -> Sort {
        Sort::all()
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let (event, model) = (moment.event, moment.model);
        self.note(event);
        if let Kind::Called { thread, call } = &event.kind {
            self.waits.called(event.at, *thread, call);
            self.closing.called(event.at, event.qpn, call);
        }
        match &event.kind {
            // The queue pair may be about to go, and the event with it: it is reported when the program takes it.
            Kind::AsyncEvent { name } if name.ends_with(LAST_RECEIVE) => {}
            Kind::AsyncEvent { name } => {
                let refused = self.watched(event.qpn).and_then(|watched| watched.refused);
                let finding = asynchronous(model, event.qpn.map(Subject::QueuePair), name, refused);
                out.tell(between(finding, model, event.qpn, None));
            }
            Kind::Called { call: Call::GetAsyncEvent { event: name, about }, .. }
                if !name.contains("_QP_") || name.ends_with(LAST_RECEIVE) =>
            {
                let number = u32::try_from(*about).unwrap_or_default();
                let subject = match *name {
                    "IBV_EVENT_CQ_ERR" => Some(Subject::CompletionQueue(number)),
                    "IBV_EVENT_SRQ_ERR" | "IBV_EVENT_SRQ_LIMIT_REACHED" => Some(Subject::SharedQueue(number)),
                    "IBV_EVENT_COMM_EST" | "IBV_EVENT_SQ_DRAINED" => return,
                    name if name.ends_with(LAST_RECEIVE) => Some(Subject::QueuePair(Qpn::new(number))),
                    _ => None,
                };
                out.tell(asynchronous(model, subject, name, None));
            }
            Kind::PostRefused { queue: Queue::Send, reason: "queue_full", wr_id } => {
                let full =
                    event.qpn.and_then(|qpn| model.pairs.get(&qpn)).filter(|pair| calls::nothing_is_signaled(pair));
                if let Some(pair) = full {
                    let mistake = Mistake::Object(Subject::QueuePair(pair.qpn));
                    out.tell_mistake(stalls::nothing_signaled(model, pair, *wr_id), mistake);
                }
            }
            Kind::PacketDropped { headers, reason } => {
                let watched = self.watched(event.qpn).map(|watched| {
                    watched.all_dropped += 1;
                    *watched
                });
                if let Some(finding) = drops::explain(model, event.qpn, headers.as_ref(), *reason, watched) {
                    match (event.qpn, reason) {
                        // The rule about partitions tells it, and names this one.
                        (Some(qpn), DropReason::PkeyMismatch)
                            if out.wants(PKEY_DIFFERS) && model.pairs.contains_key(&qpn) => {}
                        (Some(qpn), DropReason::QkeyMismatch) => {
                            out.tell_mistake(finding, Mistake::Object(Subject::QueuePair(qpn)));
                        }
                        _ => out.tell(finding),
                    }
                }
            }
            Kind::CmMessageDropped { message, local_comm_id, reason: DropReason::CmCrowded } => {
                let what =
                    format!("a {message} for connection {local_comm_id:#010x} was dropped: too many wait already");
                let advice = "accept or reject requests as they come, and listen with a longer backlog";
                out.tell(Finding::new(LOST, Subject::Process, what, advice));
            }
            Kind::Injected { script, line, what, ends: false, missed } => {
                let subject = event.qpn.map_or(Subject::Process, Subject::QueuePair);
                let happened = format!("a failure script did this: {what}");
                let advice = "nothing: it is no fault of the program, which is to live with what follows";
                let (source, of_line) = (format!("{script}"), format!("{line}"));
                let finding = Finding::new(INJECTED, subject, happened, advice)
                    .because(format!("injected by line {line} of {script}"))
                    .apart_by(&[&source, &of_line]);
                let nothing = "there was nothing to do it to";
                out.tell(if *missed { finding.shown_by(nothing) } else { finding });
            }
            Kind::ConnectionEnded { local_comm_id, by } => {
                if let Some(finding) = connections::ended(model, event.qpn, *local_comm_id, *by) {
                    out.tell(finding);
                }
            }
            Kind::CmTransition { local_comm_id, to, .. } => {
                self.unanswered.moved(event.at, event.qpn, *local_comm_id, to);
            }
            Kind::Called {
                call:
                    call @ (Call::CmPlace { .. } | Call::CmCall { .. } | Call::CmChannel { .. } | Call::CmOffer { .. }),
                ..
            } => {
                self.places.observe(call);
            }
            Kind::Called { call: Call::CmEvent { event: name, id, status, id_qpn, .. }, .. } => {
                if let Some(finding) = connections::not_made(&self.places, *id, *id_qpn, name, *status) {
                    out.tell(finding);
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        for pair in model.pairs.values() {
            let watched = self.watched.get(&pair.qpn).copied().unwrap_or_default();
            if let Some(finding) = stalls::explain(model, pair, &watched, now) {
                out.tell(finding);
            }
        }
        self.unanswered.explain(&self.places, now, |finding| out.tell(finding));
        self.waits.explain(model, &self.watched, now, |finding| out.tell(finding));
        self.closing.explain(model, now).into_iter().for_each(|finding| out.tell(finding));
    }
}

/// An asynchronous event.
fn asynchronous(model: &Model, subject: Option<Subject>, name: &str, refused: Option<Refusal>) -> Finding {
    let about = match subject {
        Some(Subject::QueuePair(qpn)) => format!(" for {}", naming::pair(model, qpn)),
        Some(subject) => format!(" for {subject}"),
        None => "".into(),
    };
    let short = name.trim_start_matches("IBV_EVENT_");
    let what = |happened: &str| format!("asynchronous event {short}{about}: {happened}");
    let subject = subject.unwrap_or(Subject::Process);
    match short {
        "QP_REQ_ERR" | "QP_ACCESS_ERR" => {
            let advice = "fix the request at the peer, or grant what it needs: access flags of the region and of the \
                          queue pair, a longer region, max_dest_rd_atomic. The queue pair has stopped; connect again";
            let happened = "a request of the peer was refused, and this queue pair stopped";
            let finding = Finding::new(PEER_REFUSED, subject, what(happened), advice);
            let Some(refusal) = refused else {
                let pair = if let Subject::QueuePair(qpn) = subject { model.pairs.get(&qpn) } else { None };
                return finding.because(match pair.and_then(|pair| pair.state_cause) {
                    Some(cause @ (StateCause::PeerRequest(_) | StateCause::ReceiveFailed { .. })) => format!("{cause}"),
                    _ => "the peer's request made no sense here, or the queue pair does not grant it".into(),
                });
            };
            let range = refusal.range;
            let needs = refusal.access;
            let mut finding = finding.because(format!("the peer reached for {refusal}, which needs {needs}"));
            if let Some(advice) = naming::advice_on_rkey(model, range.key) {
                finding.advice = advice.into();
            }
            // If the peer is in this process, what is known of the memory is told of its work.
            let pair = if let Subject::QueuePair(qpn) = subject { model.pairs.get(&qpn) } else { None };
            if pair.and_then(|pair| naming::peer_here(model, pair)).is_none() {
                finding.evidence.extend(naming::memory_of_peer(
                    model,
                    range.key,
                    range.address,
                    range.length,
                    u64::MAX,
                ));
            }
            finding
        }
        "COMM_EST"
        | "SQ_DRAINED"
        | "QP_LAST_WQE_REACHED"
        | "SRQ_LIMIT_REACHED"
        | "PORT_ACTIVE"
        | "GID_CHANGE"
        | "PATH_MIG"
        | "LID_CHANGE"
        | "PKEY_CHANGE"
        | "SM_CHANGE"
        | "CLIENT_REREGISTER" => {
            let (happened, advice) = match short {
                "COMM_EST" => (
                    "the first message came before the queue pair was moved to RTS",
                    "nothing: with the connection manager, rdma_notify may be called",
                ),
                "SQ_DRAINED" => ("the send queue has drained", "nothing: attributes can be changed now"),
                "QP_LAST_WQE_REACHED" => (
                    "the queue pair takes no more receives of its shared receive queue",
                    "nothing: the queue pair can be destroyed without losing receives",
                ),
                "SRQ_LIMIT_REACHED" => (
                    "the shared receive queue has fewer receives than its limit",
                    "post receives, and set the limit again with ibv_modify_srq",
                ),
                _ => ("the device has changed", "ask again for what was asked before: ports, GIDs, addresses"),
            };
            Finding::new(ROUTINE_EVENT, subject, what(happened), advice)
        }
        "CQ_ERR" => Finding::new(
            ASYNC_ERROR,
            subject,
            what("the completion queue overflowed and lost completions"),
            "create it with room for all that can complete: the send and receive queues of every queue pair on it",
        )
        .because("more work completed than the queue holds, and the program did not poll in time"),
        _ => {
            let happened = match short {
                "PORT_ERR" => "the port went down",
                "DEVICE_FATAL" => "the device cannot be used any more",
                "QP_FATAL" => "the queue pair failed",
                "SRQ_ERR" => "the shared receive queue failed",
                _ => "an error was reported",
            };
            Finding::new(ASYNC_ERROR, subject, what(happened), "destroy what the event is about and make it again")
        }
    }
}

/// The connection of a pair, for a finding about a packet.
fn between(finding: Finding, model: &Model, qpn: Option<Qpn>, headers: Option<&Headers>) -> Finding {
    let peer = qpn.and_then(|qpn| model.pairs.get(&qpn)).and_then(|pair| pair.connection.dest_qpn);
    match (qpn, peer.or_else(|| Some(headers?.deth?.src_qpn))) {
        (Some(qpn), Some(peer)) => finding.between(qpn, peer, headers.map(|headers| headers.bth.psn)),
        _ => finding,
    }
}

#[cfg(test)]
mod tests;
