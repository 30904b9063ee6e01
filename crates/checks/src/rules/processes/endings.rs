//! Work and connections that the program leaves behind: UV-0626 to UV-0628.

use alloc::collections::BTreeSet;
use alloc::format;

use trace::{Call, Kind};

use super::{DESTROYED_UNDER_WAY, ENDED_CONNECTED, ENDED_UNDER_WAY};
use crate::checker::{Examine, Moment, Out};
use crate::finding::{Finding, Subject};
use crate::model::{Model, Pair};
use crate::witness::Witness;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Endings {
    /// Ids of the connection manager that are connected.
    connected: BTreeSet<u64>,
}

impl Examine for Endings {
    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Called { call, .. } = &moment.event.kind else { return };
        match *call {
            Call::DestroyQp { .. } => {
                let Some(pair) = moment.model.pair_of(moment.event) else { return };
                let count = under_way(pair);
                let Some(oldest) = pair.sends.iter().find(|work| work.signaled).filter(|_| count > 0) else { return };
                out.tell(
                    Finding::new(
                        DESTROYED_UNDER_WAY,
                        Subject::QueuePair(pair.qpn),
                        format!(
                            "QP {} was destroyed while {count} of its sends were under way; the oldest is work request \
                             {} ({}, {} bytes)",
                            pair.qpn, oldest.wr_id, oldest.opcode, oldest.pieces.bytes
                        ),
                        "poll until the last send has completed before ibv_destroy_qp",
                    )
                    .because(
                        "what the peer has not acknowledged may never arrive, and no completion tells which it was",
                    ),
                );
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
        let busy = model.pairs.values().map(|pair| (pair, under_way(pair))).filter(|(_, count)| *count > 0);
        let (pairs, sends) = busy.clone().fold((0, 0), |(pairs, sends), (_, count)| (pairs + 1, sends + count));
        if let Some((pair, _)) = busy.clone().next()
            && let Some(oldest) = pair.sends.iter().find(|work| work.signaled)
        {
            out.tell(
                Finding::new(
                    ENDED_UNDER_WAY,
                    Subject::Process,
                    format!("the program ends while {sends} sends on {pairs} queue pairs are under way"),
                    "poll until the last send has completed before the program ends",
                )
                .because("what the peer has not acknowledged may never arrive, and the peer's work fails")
                .shown_by(format!(
                    "on QP {} the oldest is work request {} ({}, {} bytes)",
                    pair.qpn, oldest.wr_id, oldest.opcode, oldest.pieces.bytes
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

/// Sends that ask for a completion and have none, of a queue pair that still works.
fn under_way(pair: &Pair) -> usize {
    if ["RTS", "SQD"].contains(&pair.state) { pair.sends.signaled_under_way() } else { 0 }
}
