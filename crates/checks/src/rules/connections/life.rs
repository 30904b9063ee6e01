//! What becomes of a queue pair: brought to where it works, failed, looked at; and the limit of a shared receive queue.

use alloc::format;
use alloc::string::String;

use trace::{Call, Kind, Queue, StateCause};
use wire::Qpn;
use wire::access::RefusalCause;

use super::{ERROR_NOT_SEEN, NEVER_READY, POSTED_IN_ERROR, SQE_NOT_HANDLED, SRQ_LIMIT_NOT_REARMED};
use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::{Map, Set};
use crate::model::{Model, Pair};

/// What is kept of lives.
#[derive(Default, Debug)]
pub(super) struct Life {
    /// Queue pairs of which the program knows that they failed: it polled an error, or asked.
    known_to_fail: Set<Qpn>,
    /// Sends that were refused as the queue pair was not ready: the first, and how many.
    refused: Map<Qpn, (u64, u64)>,
    /// Receives that were refused as the queue pair was not ready: the first, and how many.
    refused_receives: Map<Qpn, (u64, u64)>,
    /// What queue pairs were before they were reset: the library resets one before it destroys it.
    before_reset: Map<Qpn, Last>,
    /// Shared receive queues whose limit was reached, by number.
    limits: Map<u32, Limit>,
}

/// What a queue pair was at its end.
#[derive(Clone, Copy, Debug)]
struct Last {
    qpn: Qpn,
    state: &'static str,
    cause: Option<StateCause>,
    /// How many receives it ever had.
    receives: u64,
}

/// Why a queue pair is in its state. The trace has refusals of memory by their stable names.
fn cause_in_words(cause: &StateCause) -> String {
    if let StateCause::PeerRequest(name) = cause
        && let Some(refusal) = RefusalCause::ALL.iter().find(|refusal| refusal.name() == *name)
    {
        return match refusal {
            RefusalCause::OutOfBounds { .. } => "the peer's request reached outside the region of its key".into(),
            refusal => format!("the peer's request was refused: {refusal}"),
        };
    }
    format!("{cause}")
}

impl Last {
    fn of(pair: &Pair) -> Last {
        Last { qpn: pair.qpn, state: pair.state, cause: pair.state_cause, receives: pair.receives.posted }
    }

    /// Whether it is in error by itself: neither the program nor the connection's end put it there.
    fn failed(&self) -> bool {
        !matches!(self.cause, None | Some(StateCause::Modify | StateCause::Disconnected))
    }

    /// Whether no completion tells of it. One that the program does not poll is a matter of completions.
    fn failed_without_work(&self) -> bool {
        matches!(self.cause, Some(StateCause::PeerRequest(_) | StateCause::Local(_)))
    }

    /// The finding with what made the queue pair fail.
    fn failed_by(&self, finding: Finding) -> Finding {
        match self.cause {
            Some(cause) => finding.shown_by(format!("it is in {} because: {}", self.state, cause_in_words(&cause))),
            None => finding,
        }
    }
}

/// A limit that was reached and not set again.
#[derive(Clone, Copy, Debug)]
struct Limit {
    value: u32,
    /// There were enough receives again since.
    refilled: bool,
}

impl Life {
    pub fn observe(&mut self, moment: &Moment<'_>, out: &mut Out<'_>) {
        let Moment { event, model, .. } = moment;
        let pair = event.qpn.and_then(|qpn| model.pairs.get(&qpn));
        match (&event.kind, pair) {
            (Kind::Called { call, .. }, pair) => self.called(call, pair, model, out),
            (Kind::PostRefused { wr_id, queue, reason: "wrong_state" }, Some(pair)) => {
                let all = if *queue == Queue::Send { &mut self.refused } else { &mut self.refused_receives };
                let refused = all.entry(pair.qpn).or_insert((*wr_id, 0));
                refused.1 += 1;
            }
            (Kind::StateChanged { to: "RESET", .. }, Some(pair)) => {
                self.before_reset.insert(pair.qpn, Last::of(pair));
            }
            (Kind::StateChanged { to, .. }, Some(pair)) => {
                self.known_to_fail.remove(&pair.qpn);
                self.before_reset.remove(&pair.qpn);
                self.refused_receives.remove(&pair.qpn);
                if *to == "RTS" {
                    self.refused.remove(&pair.qpn);
                }
            }
            _ => {}
        }
        self.check_limits(model, out);
    }

    fn called(&mut self, call: &Call, pair: Option<&Pair>, model: &Model, out: &mut Out<'_>) {
        match (*call, pair) {
            (Call::PostSend { wr_id, opcode, .. }, Some(pair)) => self.posted(pair, wr_id, opcode, out),
            (Call::PostReceive { wr_id, srq: None, .. }, Some(pair)) => self.posted(pair, wr_id, "RECV", out),
            (Call::Polled { status, .. }, Some(pair)) if !status.ends_with("SUCCESS") => {
                self.known_to_fail.insert(pair.qpn);
            }
            (Call::QueryQp { state: "ERR" | "SQE" }, Some(pair)) => {
                self.known_to_fail.insert(pair.qpn);
            }
            (Call::GetAsyncEvent { event, about }, _) => {
                let number = u32::try_from(about).unwrap_or(u32::MAX);
                if event.ends_with("SRQ_LIMIT_REACHED") {
                    if let Some(queue) = model.srqs.get(&number).filter(|queue| queue.limit > 0) {
                        self.limits.insert(number, Limit { value: queue.limit, refilled: false });
                    }
                } else if event.contains("QP_") || event.contains("PATH_") {
                    self.known_to_fail.insert(Qpn::new(number));
                }
            }
            (Call::ModifySrq { srq, limit: Some(_), .. } | Call::DestroySrq { srq }, _) => {
                self.limits.remove(&srq.value());
            }
            // A program that resets a queue pair knows what it does.
            (Call::ModifyQp { state: Some("RESET"), .. }, Some(pair)) => self.forget(pair.qpn),
            (Call::DestroyQp { .. }, Some(pair)) => {
                let last = self.before_reset.get(&pair.qpn).copied();
                self.ends(last.unwrap_or_else(|| Last::of(pair)), out);
                self.forget(pair.qpn);
            }
            _ => {}
        }
    }

    fn forget(&mut self, qpn: Qpn) {
        self.known_to_fail.remove(&qpn);
        self.refused.remove(&qpn);
        self.refused_receives.remove(&qpn);
        self.before_reset.remove(&qpn);
    }

    fn posted(&self, pair: &Pair, wr_id: u64, opcode: &str, out: &mut Out<'_>) {
        let subject = Subject::QueuePair(pair.qpn);
        let last = Last::of(pair);
        let work = || format!("work request {wr_id} ({opcode}) is posted on QP {}", pair.qpn);
        if pair.state == "SQE" && opcode != "RECV" {
            out.tell(
                last.failed_by(Finding::new(
                    SQE_NOT_HANDLED,
                    subject,
                    format!("{}, whose send queue has stopped (state SQE)", work()),
                    "look at each completion's status; after an error move the queue pair from SQE to RTS with \
                         ibv_modify_qp, then post again",
                ))
                .because(
                    "in SQE whatever is posted to the send queue completes at once with a flush error, and is not sent",
                ),
            );
        } else if pair.state == "ERR" && last.failed() && self.known_to_fail.contains(&pair.qpn) {
            out.tell(
                last.failed_by(Finding::new(
                    POSTED_IN_ERROR,
                    subject,
                    format!("{}, which has failed, and the program has polled the failure", work()),
                    "look at each completion's status; after an error post no more: destroy the queue pair, or move it \
                         to RESET and connect anew",
                ))
                .because("in state ERR whatever is posted completes at once with a flush error"),
            );
        }
    }

    /// A queue pair is destroyed, or the program ends.
    fn ends(&self, last: Last, out: &mut Out<'_>) {
        let subject = Subject::QueuePair(last.qpn);
        if last.state == "ERR" && last.failed_without_work() && !self.known_to_fail.contains(&last.qpn) {
            out.tell(
                last.failed_by(Finding::new(
                    ERROR_NOT_SEEN,
                    subject,
                    format!("QP {} failed, and the program never looked", last.qpn),
                    "take asynchronous events with ibv_get_async_event, ask with ibv_query_qp, or post a receive and look at its \
                         status: it is flushed",
                ))
                .because(
                    "no completion with an error was polled for it, no event about it was taken, it was not queried",
                ),
            );
        }
        let receives = last.receives;
        match (last.state, self.refused.get(&last.qpn)) {
            ("RESET", None) => self.refused_receives.get(&last.qpn).into_iter().for_each(|(wr_id, times)| {
                out.tell(
                    Finding::new(
                        NEVER_READY,
                        subject,
                        format!("QP {} stayed in RESET: {times} receives were refused, the first is {wr_id}", last.qpn),
                        "move the queue pair to INIT with ibv_modify_qp, and check what the call returns, before \
                         ibv_post_recv",
                    )
                    .because("a queue pair takes receives from INIT on; ibv_post_recv returns EINVAL before"),
                );
            }),
            (state @ ("RESET" | "INIT" | "RTR"), Some((wr_id, times))) => out.tell(
                Finding::new(
                    NEVER_READY,
                    subject,
                    format!("QP {} stayed in {state}: {times} sends were refused, the first is {wr_id}", last.qpn),
                    "move the queue pair through INIT, RTR and RTS with ibv_modify_qp, and check what each call returns, \
                     before ibv_post_send",
                )
                .because("a queue pair sends from RTS on; ibv_post_send returns EINVAL before"),
            ),
            ("INIT", None) if receives > 0 => out.tell(
                Finding::new(
                    NEVER_READY,
                    subject,
                    format!("QP {} stayed in INIT, with {receives} receives posted that nothing could use", last.qpn),
                    "move the queue pair to RTR with ibv_modify_qp, and check what the call returns",
                )
                .because("a queue pair takes messages from RTR on and drops them before"),
            ),
            _ => {}
        }
    }

    pub fn finish(&mut self, model: &Model, out: &mut Out<'_>) {
        model.pairs.values().for_each(|pair| self.ends(Last::of(pair), out));
    }

    /// Whether a shared receive queue fell below a limit that the program did not set again.
    fn check_limits(&mut self, model: &Model, out: &mut Out<'_>) {
        self.limits.for_each_mut(|srq, limit| {
            let Some(queue) = model.srqs.get(srq) else { return };
            let enough = queue.receives.len() >= limit.value as usize;
            if enough {
                limit.refilled = true;
            } else if limit.refilled {
                out.tell(
                    Finding::new(
                        SRQ_LIMIT_NOT_REARMED,
                        Subject::SharedQueue(*srq),
                        format!(
                            "SRQ {srq} has {} receives, fewer than its limit of {}, and no event tells: the limit was not \
                             set again",
                            queue.receives.len(),
                            limit.value
                        ),
                        "after IBV_EVENT_SRQ_LIMIT_REACHED post receives, then call ibv_modify_srq (IBV_SRQ_LIMIT) again",
                    )
                    .because("a limit raises one event; then it is 0 until it is set again"),
                );
            }
        });
    }
}
