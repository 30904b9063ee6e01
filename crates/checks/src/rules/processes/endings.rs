//! Work and connections that the program leaves behind: UV-0626 to UV-0628.

use alloc::format;

use trace::{Call, Kind};
use wire::Qpn;

use super::{DESTROYED_UNDER_WAY, ENDED_CONNECTED, ENDED_UNDER_WAY};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::{Map, Set};
use crate::model::{Model, Pair, Work};
use crate::witness::Witness;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Endings {
    /// Ids of the connection manager that are connected.
    connected: Set<u64>,
    /// Queue pairs that were just reset with sends under way: how many, and the oldest. Destroying one resets it first.
    reset: Map<Qpn, (usize, Work)>,
}

impl Examine for Endings {
    fn sees(&self) -> Sort {
        Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let (model, event) = (moment.model, moment.event);
        if let Kind::StateChanged { to: "RESET", .. } = event.kind
            && let Some((pair, under_way)) = model.pair_of(event).and_then(|pair| Some((pair, under_way(pair)?)))
        {
            self.reset.insert(pair.qpn, under_way);
        }
        let Kind::Called { call, .. } = &event.kind else { return };
        match *call {
            Call::ModifyQp { .. } => {
                // The program resets it, and knows that its work goes with it.
                event.qpn.map(|qpn| self.reset.remove(&qpn));
            }
            Call::DestroyQp { .. } => {
                let Some(qpn) = event.qpn else { return };
                let reset = self.reset.remove(&qpn);
                if let Some((count, oldest)) = reset.or_else(|| model.pairs.get(&qpn).and_then(under_way)) {
                    out.tell(destroyed_under_way(qpn, count, &oldest));
                }
            }
            Call::CmEvent { event, id, .. } => {
                if event.ends_with("ESTABLISHED") {
                    self.connected.insert(id);
                } else if event.ends_with("DISCONNECTED") {
                    self.connected.remove(&id);
                }
            }
            Call::CmCall { function: "rdma_disconnect" | "rdma_destroy_id" | "rdma_destroy_ep", id, .. } => {
                self.connected.remove(&id);
            }
            _ => {}
        }
    }

    fn finish(&mut self, _now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        let mut busy = model.pairs.values().filter_map(|pair| Some((pair.qpn, under_way(pair)?)));
        if let Some((qpn, (first, oldest))) = busy.next() {
            let (pairs, sends) = busy.fold((1, first), |(pairs, sends), (_, (count, _))| (pairs + 1, sends + count));
            out.tell(
                Finding::new(
                    ENDED_UNDER_WAY,
                    Subject::Process,
                    format!("the program ends while {sends} sends on {pairs} queue pairs are under way"),
                    "poll until the last send has completed before the program ends",
                )
                .because("what the peer has not acknowledged may never arrive, and the peer's work fails")
                .shown_by(format!(
                    "on QP {qpn} the oldest is work request {} ({}, {} bytes)",
                    oldest.wr_id, oldest.opcode, oldest.pieces.bytes
                )),
            );
        }
        if !self.connected.is_empty() {
            out.tell(
                Finding::new(
                    ENDED_CONNECTED,
                    Subject::Process,
                    format!("the program ends with {} connections that it has not disconnected", self.connected.len()),
                    "call rdma_disconnect, wait for RDMA_CM_EVENT_DISCONNECTED, and destroy the id",
                )
                .because(
                    "the peer learns of the end only when its own work fails or its kernel tells it, and cannot know \
                     whether it was meant",
                ),
            );
        }
    }
}

/// Sends that ask for a completion and have none, of a queue pair that still works: how many, and the oldest.
fn under_way(pair: &Pair) -> Option<(usize, Work)> {
    let works = ["RTS", "SQD"].contains(&pair.state);
    let oldest = pair.sends.iter().find(|work| work.signaled)?;
    works.then_some((pair.sends.signaled_under_way(), *oldest))
}

fn destroyed_under_way(qpn: Qpn, count: usize, oldest: &Work) -> Finding {
    Finding::new(
        DESTROYED_UNDER_WAY,
        Subject::QueuePair(qpn),
        format!(
            "QP {qpn} was destroyed while {count} of its sends were under way; the oldest is work request {} ({}, {} \
             bytes)",
            oldest.wr_id, oldest.opcode, oldest.pieces.bytes
        ),
        "poll until the last send has completed before ibv_destroy_qp",
    )
    .because("what the peer has not acknowledged may never arrive, and no completion tells which it was")
}
