//! Completions that the program does not poll, and failures that it does not heed: UV-0403, UV-0410 to UV-0412.

use alloc::format;

use trace::{Call, Kind, Queue};
use wire::Qpn;

use super::{FAILURE_IGNORED, FAILURE_UNPOLLED, LEFT_UNPOLLED, WRONG_QUEUE_POLLED};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::{Model, Pair, Unpolled, is_failure};
use crate::witness::Witness;

/// How long completions wait in a queue that was never polled until that is no accident.
const UNPOLLED_NS: u64 = 2_000_000_000;

/// How many sends after a failure that was polled are reported.
const SENDS_AFTER_FAILURE: u32 = 4;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Reaping {
    /// Queue pairs whose failure the program has polled: what failed, with which status, and how many sends it has
    /// posted since.
    failed: Map<Qpn, (u64, &'static str, u32)>,
}

impl Examine for Reaping {
    fn sees(&self) -> Sort {
        Sort::POSTED | Sort::POLL | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let (model, event) = (moment.model, moment.event);
        match &event.kind {
            Kind::WorkPosted { wr_id, queue: Queue::Send, opcode, .. } => {
                if let Some(qpn) = event.qpn {
                    self.posted(qpn, *wr_id, opcode, model, out);
                }
            }
            Kind::StateChanged { to, .. } if !["ERR", "SQE"].contains(to) => {
                if let Some(qpn) = event.qpn {
                    if *to == "RESET" {
                        // What waits of it is lost.
                        wrong_queue_polled(model, out, |one| one.qpn == qpn);
                        tell_failures(model, |one| one == qpn, out);
                    }
                    self.failed.remove(&qpn);
                }
            }
            Kind::Called { call: Call::DestroyQp { .. }, .. } => {
                if let Some(qpn) = event.qpn {
                    wrong_queue_polled(model, out, |one| one.qpn == qpn);
                    tell_failures(model, |one| one == qpn, out);
                    pair_destroyed(qpn, model, out);
                    self.failed.remove(&qpn);
                }
            }
            Kind::Called { call: Call::Polled { cq, wr_id, status }, .. } if is_failure(status) => {
                // Where the event does not say whose it is, the pair that failed so is.
                let is_it = |pair: &&Pair| {
                    pair.first_failure.is_some_and(|(failed, how, _)| failed == *wr_id && how == *status)
                        && [pair.send_cq, pair.receive_cq].contains(&Some(*cq))
                };
                let qpn = event.qpn.or_else(|| model.pairs.values().find(is_it).map(|pair| pair.qpn));
                if let Some(qpn) = qpn {
                    self.failed.entry(qpn).or_insert((*wr_id, status, 0));
                }
            }
            Kind::Called { call: Call::DestroyCq { cq }, .. } => {
                // Those of queue pairs that are gone were told of before.
                if let Some(count) = model.cqs.get(cq).map(|queue| queue.unheard().count()).filter(|count| *count > 0) {
                    let what =
                        format!("CQ {cq} was destroyed with {count} completions that the program had not polled");
                    out.tell(left_unpolled(Subject::CompletionQueue(*cq), what));
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        wrong_queue_polled(model, out, |one| now.saturating_sub(one.at) >= UNPOLLED_NS);
    }

    fn finish(&mut self, _now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        wrong_queue_polled(model, out, |_| true);
        tell_failures(model, |_| true, out);
        let queues = model.cqs.values().map(|queue| queue.unheard().count()).filter(|count| *count > 0);
        let (queues, completions) = queues.fold((0, 0), |(queues, all), count| (queues + 1, all + count));
        if completions > 0 {
            out.tell(left_unpolled(
                Subject::Process,
                format!("the program ends and leaves {completions} completions unpolled in {queues} completion queues"),
            ));
        }
    }
}

impl Reaping {
    fn posted(&mut self, qpn: Qpn, wr_id: u64, opcode: &str, model: &Model, out: &mut Out<'_>) {
        let Some((failed, status, since)) = self.failed.get_mut(&qpn) else { return };
        let Some(pair) = model.pairs.get(&qpn).filter(|pair| ["ERR", "SQE"].contains(&pair.state)) else { return };
        *since += 1;
        if *since != SENDS_AFTER_FAILURE {
            return;
        }
        out.tell(
            Finding::new(
                FAILURE_IGNORED,
                Subject::QueuePair(qpn),
                format!(
                    "the program polled that work request {failed} on QP {qpn} failed with {status}, and has posted \
                     {since} more sends to it since; the last is {wr_id} ({opcode})"
                ),
                "look at the status of every completion; after a failure move the queue pair to RESET and connect it \
                 anew, or destroy it",
            )
            .because(format!(
                "a failure takes the queue pair to {}, where whatever is posted completes with IBV_WC_WR_FLUSH_ERR and \
                 reaches nobody",
                pair.state
            )),
        );
    }
}

/// Completions wait in a queue that was never polled, while another is polled on which nothing ever completed.
fn wrong_queue_polled(model: &Model, out: &mut Out<'_>, counts: impl Fn(&Unpolled) -> bool) {
    let mut polled_in_vain = model.cqs.iter().filter(|(_, queue)| queue.last_poll.is_some() && queue.completed == 0);
    let Some((other, _)) = polled_in_vain.next() else { return };
    for (cq, queue) in model.cqs.iter().filter(|(_, queue)| queue.last_poll.is_none()) {
        let Some(oldest) = queue.unheard().find(|one| counts(one)) else { continue };
        let pair = model.pairs.get(&oldest.qpn);
        let side = if pair.is_some_and(|pair| pair.send_cq == Some(*cq)) { "send_cq" } else { "recv_cq" };
        out.tell(
            Finding::new(
                WRONG_QUEUE_POLLED,
                Subject::CompletionQueue(*cq),
                format!(
                    "the program polls CQ {other}, on which nothing has completed, and never CQ {cq}, where {} \
                     completions wait",
                    queue.waiting()
                ),
                format!("call ibv_poll_cq for CQ {cq}, or make QP {} with the queue that is polled", oldest.qpn),
            )
            .because(format!("QP {} was made with CQ {cq} as its {side}, and its work completes there", oldest.qpn))
            .shown_by(format!("the oldest completion there is of work request {} ({})", oldest.wr_id, oldest.status)),
        );
    }
}

/// A queue pair was destroyed: what waits of it may be polled no more.
fn pair_destroyed(qpn: Qpn, model: &Model, out: &mut Out<'_>) {
    for (cq, queue) in &model.cqs {
        let count = queue.unpolled().filter(|one| one.qpn == qpn && !one.is_flush()).count();
        if count > 0 {
            let what = format!("QP {qpn} was destroyed, and {count} of its completions wait unpolled in CQ {cq}");
            out.tell(left_unpolled(Subject::CompletionQueue(*cq), what));
        }
    }
}

fn left_unpolled(subject: Subject, what: alloc::string::String) -> Finding {
    Finding::new(
        LEFT_UNPOLLED,
        subject,
        what,
        "poll until everything that was posted has completed, before queues go or the program ends",
    )
    .because("the program does not know whether that work succeeded")
}

/// Tells of failures that wait unpolled, of these queue pairs.
fn tell_failures(model: &Model, concerns: impl Fn(Qpn) -> bool, out: &mut Out<'_>) {
    for (cq, queue) in &model.cqs {
        for one in queue.unheard().filter(|one| one.is_failure() && concerns(one.qpn)) {
            out.tell(failure_unpolled(*cq, one));
        }
    }
}

fn failure_unpolled(cq: u32, one: &Unpolled) -> Finding {
    Finding::new(
        FAILURE_UNPOLLED,
        Subject::QueuePair(one.qpn),
        format!(
            "work request {} on QP {} failed with {}, and the program never polled its completion from CQ {cq}",
            one.wr_id, one.qpn, one.status
        ),
        format!("poll CQ {cq} and look at the status of each completion before the queue pair goes"),
    )
    .because("a program learns that work failed from its completion alone")
}
