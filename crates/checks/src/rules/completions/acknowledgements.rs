//! Acknowledging completion events: UV-0407 to UV-0409.

use alloc::collections::VecDeque;
use alloc::format;

use trace::{Call, Kind};

use super::{ACKNOWLEDGED_ONE_BY_ONE, ACKNOWLEDGED_TOO_OFTEN, NOT_ACKNOWLEDGED};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::model::Model;
use crate::rules::waiting_destroyers::WaitingDestroyers;
use crate::witness::Witness;

/// How many single acknowledgements are reported.
const SINGLE_ACKS: u64 = 256;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Acknowledgements {
    queues: Map<u32, Events>,
    destroyers: WaitingDestroyers,
}

/// The events of a queue.
#[derive(Default, Debug)]
struct Events {
    got: u64,
    acknowledged: u64,
    single_acks: u64,
    /// An acknowledgement was of several.
    has_batches: bool,
    /// The threads that got those that are not acknowledged, the oldest first, as far as they are kept.
    takers: VecDeque<u32>,
}

/// How many threads are kept for events that are not acknowledged.
const MAX_TAKERS: usize = 1024;

impl Examine for Acknowledgements {
    fn sees(&self) -> Sort {
        Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Called { thread, call } = &moment.event.kind else { return };
        self.destroyers.called(*thread);
        match *call {
            Call::GetCqEvent { cq, .. } => {
                let events = self.queues.entry(cq).or_default();
                events.got += 1;
                if events.takers.len() < MAX_TAKERS {
                    events.takers.push_back(*thread);
                }
            }
            Call::AckCqEvents { cq, count } => self.acknowledges(cq, count, out),
            Call::WaitForAcks { object: "cq", number, missing } => {
                let Some(events) = u32::try_from(number).ok().and_then(|cq| self.queues.get(&cq)) else { return };
                if events.got <= events.acknowledged {
                    // Asynchronous events: another family's.
                    return;
                }
                let finding = not_acknowledged(number, missing, events);
                // A thread that waits for what only it could do waits for ever.
                if events.takers.iter().all(|taker| taker == thread) {
                    out.tell(finding);
                } else {
                    self.destroyers.waits(*thread, moment.event.at, finding);
                }
            }
            Call::DestroyCq { cq } => {
                self.queues.remove(&cq);
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: u64, _model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.destroyers.tick(now, out);
    }
}

impl Acknowledgements {
    fn acknowledges(&mut self, cq: u32, count: u32, out: &mut Out<'_>) {
        let events = self.queues.entry(cq).or_default();
        let open = events.got.saturating_sub(events.acknowledged);
        events.acknowledged += u64::from(count);
        let known = events.takers.len().min(count as usize);
        events.takers.drain(..known);
        if u64::from(count) > open {
            out.tell(
                Finding::new(
                    ACKNOWLEDGED_TOO_OFTEN,
                    Subject::CompletionQueue(cq),
                    format!(
                        "ibv_ack_cq_events acknowledged {count} events of CQ {cq}, of which {open} were got and not \
                         acknowledged"
                    ),
                    "count the events that ibv_get_cq_event has stored for this queue, and acknowledge as many",
                )
                .because(
                    "ibv_destroy_cq waits until exactly as many events are acknowledged as were got: with rdma-core's \
                     library it waits for ever after this",
                )
                .shown_by(format!(
                    "the program got {} events of this queue and has acknowledged {}",
                    events.got, events.acknowledged
                )),
            );
        }
        match count {
            0 => {}
            1 => events.single_acks += 1,
            _ => events.has_batches = true,
        }
        if count == 1 && events.single_acks == SINGLE_ACKS && !events.has_batches {
            out.tell(
                Finding::new(
                    ACKNOWLEDGED_ONE_BY_ONE,
                    Subject::CompletionQueue(cq),
                    format!("the program acknowledged {SINGLE_ACKS} events of CQ {cq} one by one"),
                    "count the events and acknowledge many at once, for instance ibv_ack_cq_events(cq, 100), and the \
                     rest before ibv_destroy_cq",
                )
                .because("each ibv_ack_cq_events takes a lock, and nothing but ibv_destroy_cq waits for it"),
            );
        }
    }
}

fn not_acknowledged(cq: u64, missing: u32, events: &Events) -> Finding {
    Finding::new(
        NOT_ACKNOWLEDGED,
        Subject::CompletionQueue(cq as u32),
        format!("ibv_destroy_cq of CQ {cq} waits, perhaps for ever: {missing} of its events are not acknowledged"),
        "call ibv_ack_cq_events for every event that ibv_get_cq_event returned, before ibv_destroy_cq",
    )
    .because("ibv_destroy_cq returns only after every event of the queue is acknowledged")
    .shown_by(format!("the program got {} events of this queue and acknowledged {}", events.got, events.acknowledged))
}
