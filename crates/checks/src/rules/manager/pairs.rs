//! Queue pairs of ids: who moves them, and when they may be used.

use alloc::format;

use trace::{Call, Kind};
use wire::{Qkey, Qpn};

use super::ids::Ids;
use super::{MOVED_BY_HAND, QKEY_NOT_OF_EVENT, RECEIVES_AFTER_ACCEPT, SENDS_AFTER_END, SENDS_BEFORE_ESTABLISHED};
use crate::examine::{Moment, Out};
use crate::finding::{Finding, Subject};
use crate::map::{Map, Set};
use crate::model::Pair;

/// What is known of the queue pairs of ids.
#[derive(Default, Debug)]
pub(super) struct Pairs {
    /// Those that the connection manager moves, and the thread in which it is about to.
    managed: Map<Qpn, Option<u32>>,
    /// The Q_Keys that the connection manager told, by the id and the queue pair that they are for.
    qkeys: Map<(u64, Qpn), Set<Qkey>>,
}

impl Pairs {
    pub fn observe(&mut self, moment: &Moment<'_>, ids: &Ids, out: &mut Out<'_>) {
        let Moment { event, model, .. } = moment;
        if let Kind::Called { call: Call::CmPeer { id, peer_qpn: Some(peer), peer_qkey: Some(key), .. }, .. } =
            event.kind
        {
            self.qkeys.entry((id, peer)).or_default().insert(key);
        }
        let Some(qpn) = event.qpn else { return };
        match &event.kind {
            Kind::Called { thread, call } => match *call {
                Call::CmMovesQp { .. } => {
                    self.managed.insert(qpn, Some(*thread));
                }
                Call::ModifyQp { state, .. } => self.modified(qpn, *thread, state, out),
                Call::DestroyQp { .. } => {
                    self.managed.remove(&qpn);
                }
                Call::PostSend { .. } => {
                    if let Some(pair) = model.pairs.get(&qpn) {
                        self.posted(pair, call, ids, out);
                    }
                }
                _ => {}
            },
            Kind::NakSent { code: "receiver not ready", .. } => {
                if let Some(pair) = model.pairs.get(&qpn).filter(|pair| pair.srq.is_none() && pair.receives.posted == 0)
                {
                    self.not_ready(pair, ids, out);
                }
            }
            _ => {}
        }
    }

    fn modified(&mut self, qpn: Qpn, thread: u32, state: Option<&str>, out: &mut Out<'_>) {
        let Some(mover) = self.managed.get_mut(&qpn) else { return };
        if mover.take() == Some(thread) {
            return;
        }
        let Some(state) = state.filter(|state| matches!(*state, "INIT" | "RTR" | "RTS")) else { return };
        out.tell(
            Finding::new(
                MOVED_BY_HAND,
                Subject::QueuePair(qpn),
                format!("the program moves QP {qpn} to {state} itself, and the connection manager moves it as well"),
                "leave the states of a queue pair of rdma_create_qp to rdma_connect and rdma_accept; to do it by hand, make \
                 it with ibv_create_qp and take the attributes from rdma_init_qp_attr",
            )
            .because(
                "rdma_connect and rdma_accept set QP number, address and sequence numbers of the peer as they were agreed; a \
                 move from another state than expected fails",
            ),
        );
    }

    fn not_ready(&self, pair: &Pair, ids: &Ids, out: &mut Out<'_>) {
        let Some((number, _)) = ids.of_pair(pair.qpn).filter(|_| self.managed.contains_key(&pair.qpn)) else { return };
        out.tell(
            Finding::new(
                RECEIVES_AFTER_ACCEPT,
                Subject::QueuePair(pair.qpn),
                format!(
                    "a message of the peer came for QP {} (id {number:#x}) before the program had posted a receive on it",
                    pair.qpn
                ),
                "post receives after rdma_create_qp and before rdma_accept or rdma_connect: once the connection stands the \
                 peer may send",
            )
            .because("the peer is told to wait and to send again; it fails if its rnr_retry_count is used up before"),
        );
    }

    fn posted(&self, pair: &Pair, call: &Call, ids: &Ids, out: &mut Out<'_>) {
        let Call::PostSend { wr_id, opcode, remote_qpn, remote_qkey, .. } = *call else { return };
        let Some((number, id)) = ids.of_pair(pair.qpn) else { return };
        let subject = Subject::QueuePair(pair.qpn);
        let work = format!("work request {wr_id} ({opcode}) is posted on QP {} of id {number:#x}", pair.qpn);
        if let (Some(to), Some(shows)) = (remote_qpn, remote_qkey)
            && let Some(told) = self.qkeys.get(&(number, to))
            && !told.contains(&shows)
            && !shows.is_privileged()
        {
            let told = told.iter().next().copied().unwrap_or_default();
            out.tell(
                Finding::new(
                    QKEY_NOT_OF_EVENT,
                    subject,
                    format!("{work} with Q_Key {shows}, but the connection manager told Q_Key {told} for QP {to}"),
                    "set wr.ud.remote_qkey to param.ud.qkey of the event, and wr.ud.remote_qpn to param.ud.qp_num",
                )
                .because("a datagram with another Q_Key than the receiver's is dropped, and nobody tells the sender"),
            );
        }
        if pair.kind == "UD" {
            return;
        }
        if let Some((event, _)) = id.ended {
            out.tell(
                Finding::new(
                    SENDS_AFTER_END,
                    subject,
                    format!("{work} after the program took {event}"),
                    "after this event post no more: call rdma_disconnect, destroy queue pair and id, and connect with a new \
                     id if need be",
                )
                .because("the queue pair of a connection that has ended is in error: the work completes with a flush error"),
            );
        } else if id.accepted && !id.established && pair.completed == 0 {
            out.tell(
                Finding::new(
                    SENDS_BEFORE_ESTABLISHED,
                    subject,
                    format!("{work} after rdma_accept and before RDMA_CM_EVENT_ESTABLISHED was taken"),
                    "wait for RDMA_CM_EVENT_ESTABLISHED, or for a message of the peer, before the first send",
                )
                .because(
                    "the peer can receive only once it has dealt with the answer to its request; what comes before is dropped \
                     and sent again after a timeout, or refused for good if the peer does not go on",
                ),
            );
        }
    }
}
