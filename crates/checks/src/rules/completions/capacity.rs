//! Whether a completion queue has a place for everything that can complete: UV-0401, UV-0402, UV-0420.

use alloc::format;

use trace::{Call, Kind, Queue};
use wire::Qpn;

use super::{CAN_OVERFLOW, HELD_BY_ROUNDING, OVERFLOWED};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::{self, Key, Map, Set};
use crate::model::{CompletionQueue, Model, Pair};

/// What was posted to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Poster {
    Sends(Qpn),
    Receives(Qpn),
    Shared(u32),
}

impl Key for Poster {
    type Order = u64;

    fn order(self) -> u64 {
        match self {
            Poster::Sends(qpn) => map::tagged(0, qpn.value()),
            Poster::Receives(qpn) => map::tagged(1, qpn.value()),
            Poster::Shared(srq) => map::tagged(2, srq),
        }
    }
}

/// The part.
#[derive(Default, Debug)]
pub(super) struct Capacity {
    /// The most that was under way on each queue of work when the completion queue was looked at: only more is news.
    peaks: Map<Poster, usize>,
    /// Completion queues that were told of.
    told: Set<u32>,
}

/// What can complete on a completion queue, at one moment.
#[derive(Default, Debug)]
struct Load {
    pairs: usize,
    sends: usize,
    receives: usize,
    waiting: usize,
}

impl Load {
    fn of(model: &Model, cq: u32) -> Load {
        let mut load = Load { waiting: model.cqs.get(&cq).map_or(0, |queue| queue.waiting()), ..Load::default() };
        let mut shared = Set::new();
        for pair in model.pairs.values() {
            let (sends, receives) = (pair.send_cq == Some(cq), pair.receive_cq == Some(cq));
            load.pairs += usize::from(sends || receives);
            if sends {
                load.sends += pair.sends.signaled_under_way();
            }
            match pair.srq {
                Some(srq) if receives => {
                    shared.insert(srq);
                }
                None if receives => load.receives += pair.receives.len(),
                _ => {}
            }
        }
        for srq in shared.iter() {
            load.receives += model.srqs.get(srq).map_or(0, |queue| queue.receives.len());
        }
        load
    }

    fn total(&self) -> usize {
        self.sends + self.receives + self.waiting
    }
}

/// What the queues of work that complete on it were made for.
fn granted(model: &Model, cq: u32) -> u64 {
    let sends = |pair: &Pair| if pair.send_cq == Some(cq) { u64::from(pair.max_send_wr) } else { 0 };
    let receives = |pair: &Pair| if pair.receive_cq == Some(cq) { u64::from(pair.max_recv_wr) } else { 0 };
    model.pairs.values().map(|pair| sends(pair) + receives(pair)).sum()
}

impl Examine for Capacity {
    fn sees(&self) -> Sort {
        Sort::POST | Sort::POSTED | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let (model, event) = (moment.model, moment.event);
        match event.kind {
            Kind::CqOverflowed { cq, capacity } => overflowed(model, event.qpn, cq, capacity, out),
            Kind::WorkPosted { queue, wr_id, opcode, .. } => {
                let Some(pair) = model.pair_of(event) else { return };
                if queue == Queue::Send {
                    let signaled = pair.sends.next_is_signaled(wr_id, pair.signals_all);
                    if signaled {
                        let count = pair.sends.signaled_under_way() + 1;
                        self.posted(Poster::Sends(pair.qpn), count, pair.send_cq, opcode, model, out);
                    }
                } else if queue == Queue::Receive {
                    let count = pair.receives.len() + 1;
                    self.posted(Poster::Receives(pair.qpn), count, pair.receive_cq, opcode, model, out);
                }
            }
            Kind::Called { call: Call::PostReceive { srq: Some(srq), .. }, .. } => {
                let srq = srq.value();
                let Some(count) = model.srqs.get(&srq).map(|queue| queue.receives.len() + 1) else { return };
                if self.is_news(Poster::Shared(srq), count) {
                    let pairs = model.pairs.values().filter(|pair| pair.srq == Some(srq));
                    let cqs: Set<u32> = pairs.filter_map(|pair| pair.receive_cq).collect();
                    cqs.iter().for_each(|cq| self.look(*cq, "RECV", model, out));
                }
            }
            Kind::Called { call: Call::DestroyQp { .. }, .. } => {
                if let Some(qpn) = event.qpn {
                    self.peaks.remove(&Poster::Sends(qpn));
                    self.peaks.remove(&Poster::Receives(qpn));
                }
            }
            Kind::Called { call: Call::DestroySrq { srq }, .. } => {
                self.peaks.remove(&Poster::Shared(srq.value()));
            }
            _ => {}
        }
    }
}

impl Capacity {
    fn is_news(&mut self, poster: Poster, count: usize) -> bool {
        let peak = self.peaks.entry(poster).or_default();
        let is_news = count > *peak;
        *peak = count.max(*peak);
        is_news
    }

    fn posted(
        &mut self,
        poster: Poster,
        count: usize,
        cq: Option<u32>,
        opcode: &str,
        model: &Model,
        out: &mut Out<'_>,
    ) {
        if let Some(cq) = cq
            && self.is_news(poster, count)
        {
            self.look(cq, opcode, model, out);
        }
    }

    /// One more is about to be under way that completes there.
    fn look(&mut self, cq: u32, opcode: &str, model: &Model, out: &mut Out<'_>) {
        let Some(queue) = model.cqs.get(&cq) else { return };
        if self.told.contains(&cq) {
            return;
        }
        let (load, subject) = (Load::of(model, cq), Subject::CompletionQueue(cq));
        let total = load.total() + 1;
        if total <= queue.capacity as usize {
            // Otherwise each post that is news would make this sentence.
            if queue.wanted > 0 && total > queue.wanted as usize && !out.is_old(HELD_BY_ROUNDING, subject) {
                out.tell(held_by_rounding(model, cq, queue, opcode, &load));
            }
            return;
        }
        self.told.insert(cq);
        out.tell(
            Finding::new(
                CAN_OVERFLOW,
                Subject::CompletionQueue(cq),
                format!(
                    "with this {opcode} {total} work requests can have their completions in CQ {cq} at once, which \
                     holds {}",
                    queue.capacity
                ),
                format!(
                    "make the queue with ibv_create_cq(…, {}, …), or post less before the completions are polled",
                    granted(model, cq).max(total as u64)
                ),
            )
            .because(
                "a completion that finds no place is lost, the queue with it, and on hardware every queue pair that \
                 completes there",
            )
            .shown_by(format!(
                "{} sends that ask for a completion and {} receives are under way on {} queue pairs, {} completions \
                 wait to be polled; the program asked for {} entries",
                load.sends, load.receives, load.pairs, load.waiting, queue.wanted
            ))
            .shown_by("it is not sure that all of them complete before the program polls again"),
        );
    }
}

/// The queue holds all that can complete because its size was rounded up.
fn held_by_rounding(model: &Model, cq: u32, queue: &CompletionQueue, opcode: &str, load: &Load) -> Finding {
    let total = load.total() + 1;
    Finding::new(
        HELD_BY_ROUNDING,
        Subject::CompletionQueue(cq),
        format!(
            "with this {opcode} {total} work requests can have their completions in CQ {cq} at once; the program asked \
             for {} entries, and was granted {}",
            queue.wanted, queue.capacity
        ),
        format!("make the queue with ibv_create_cq(…, {}, …)", granted(model, cq).max(total as u64)),
    )
    .because(
        "a device may grant more entries than were asked for, and need not: how far it rounds up differs, so a program \
         counts on what it asked for, or looks at cq->cqe",
    )
    .shown_by(format!(
        "{} sends that ask for a completion and {} receives are under way on {} queue pairs, {} completions wait to be \
         polled",
        load.sends, load.receives, load.pairs, load.waiting
    ))
}

fn overflowed(model: &Model, qpn: Option<Qpn>, cq: u32, capacity: u32, out: &mut Out<'_>) {
    let granted = granted(model, cq);
    let load = Load::of(model, cq);
    let who = qpn.map_or_else(Default::default, |qpn| format!(" of QP {qpn}"));
    let mut finding = Finding::new(
        OVERFLOWED,
        Subject::CompletionQueue(cq),
        format!("a completion{who} was lost: CQ {cq} holds {capacity} completions, and all of them waited to be polled"),
        format!(
            "poll CQ {cq} before it is full, or make it with ibv_create_cq(…, {}, …); fewer sends with \
             IBV_SEND_SIGNALED make fewer completions",
            granted.max(u64::from(capacity) + 1)
        ),
    )
    .because(
        "a completion queue that is full is dead: every poll fails from now on, and IBV_EVENT_CQ_ERR tells of it",
    )
    .shown_by(format!(
        "{} queue pairs complete on it; they were made for {granted} work requests at once (max_send_wr and max_recv_wr)",
        load.pairs
    ));
    if let Some(queue) = model.cqs.get(&cq) {
        finding = finding.shown_by(match queue.last_poll {
            None => format!("{} completions arrived, and the program never polled it", queue.completed),
            Some(_) => format!("{} completions arrived, of which the program polled {}", queue.completed, queue.polled),
        });
    }
    out.tell(finding);
}
