//! Queue pairs and shared receive queues of simulated NICs.

use super::nic::Events;
use super::queue::Queue;
use super::world::{Inner, Observer, PartyLife};
use latch::lock;
use seam::{Error, QueuePair, SharedReceiveQueue, Stats};
use sim::{QpId, SrqId};
use std::sync::{Arc, Mutex};
use transport::{
    Attributes, Counters, Kind, Modify, ModifyError, PostError, ReceiveRequest, SendRequest, SrqAttributes, SrqError,
    SrqModify, State, Stop,
};
use wire::{Gid, Qpn, Srqn};

/// What a party keeps of a queue pair.
pub(super) struct PairRecord {
    pub(super) send: Option<Arc<Queue>>,
    pub(super) receive: Option<Arc<Queue>>,
    pub(super) events: Arc<Events>,
    pub(super) stop: Option<Observer>,
    pub(super) told_of_stop: bool,
}

/// A queue pair as the API has it.
pub(super) struct SimulatedPair {
    pub(super) place: PartyLife,
    pub(super) qp: QpId,
    pub(super) kind: Kind,
    /// What it was when it was destroyed, or when its party died.
    pub(super) last: Mutex<Attributes>,
}

impl std::fmt::Debug for SimulatedPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "simulated queue pair {}", self.qp.qpn)
    }
}

impl SimulatedPair {
    /// Does something with the queue pair, if there still is one.
    fn with<R>(&self, work: impl FnOnce(&mut Inner, QpId) -> R) -> Option<R> {
        self.place
            .with(|inner, _| {
                inner.sim().queue_pair(self.qp)?;
                let answer = work(inner, self.qp);
                // It may have stopped without a completion.
                inner.hear(self.qp);
                Some(answer)
            })
            .flatten()
    }
}

// SAFETY: buffers are touched by requests that are in the queue pair's queues only, under the lock of the simulation,
// and every access asks `memory`. `destroy`, a reset and the end of its party take that lock and empty the queues; after
// the run there is nothing that touches anything.
#[allow(unsafe_code)]
unsafe impl QueuePair for SimulatedPair {
    fn qpn(&self) -> Qpn {
        self.qp.qpn
    }

    fn link(&self) -> &'static str {
        "simulated network"
    }

    fn attributes(&self) -> Attributes {
        match self.with(|inner, qp| inner.sim().attributes(qp)) {
            Some(attributes) => attributes,
            None => *lock(&self.last),
        }
    }

    fn stats(&self) -> Stats {
        let counters = self.with(|inner, qp| inner.sim().queue_pair(qp).map(|pair| pair.counters()));
        let Counters { traffic, incidents, .. } = counters.flatten().unwrap_or_default();
        Stats::new(traffic, incidents, None)
    }

    fn modify(&self, modify: &Modify) -> Result<(), ModifyError> {
        let modified = self.with(|inner, qp| {
            let modified = inner.sim().modify(qp, modify);
            if modify.state == Some(State::Reset) && modified.is_ok() {
                let record = inner.parties.get_mut(self.place.party).and_then(|party| party.pairs.get_mut(&qp.qpn));
                if let Some(record) = record {
                    record.told_of_stop = false;
                }
            }
            modified
        });
        // Of a party that is gone, nothing runs that could hear the answer.
        let to = modify.state.unwrap_or(State::Reset);
        modified.unwrap_or(Err(ModifyError::NotATransition { kind: self.kind, from: State::Error, to }))
    }

    fn stop(&self) -> Option<Stop> {
        self.with(|inner, qp| inner.sim().queue_pair(qp).and_then(|pair| pair.stop())).flatten()
    }

    fn observe_stop(&self, observer: Box<dyn Fn() + Send + Sync>) {
        self.place.with(|inner, party| {
            if let Some(record) = inner.parties[party].pairs.get_mut(&self.qp.qpn) {
                record.stop.get_or_insert(observer.into());
            }
        });
    }

    fn disconnect(&self) {
        self.with(|inner, qp| inner.sim().disconnect(qp));
    }

    unsafe fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        let posted = self.with(|inner, qp| {
            let posted = requests.iter().map(|request| inner.sim().post_send(qp, request));
            first_refusal(posted)
        });
        posted.unwrap_or(Err((0, PostError::WrongState { state: State::Error, queue: "send" })))
    }

    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostError)> {
        let posted = self.with(|inner, qp| {
            let posted = requests.iter().map(|request| inner.sim().receive(qp, request.wr_id, request.sges));
            first_refusal(posted)
        });
        posted.unwrap_or(Err((0, PostError::WrongState { state: State::Error, queue: "receive" })))
    }

    fn attach(&self, group: Gid) -> Result<(), Error> {
        if self.kind != Kind::UnreliableDatagram || !group.is_multicast() {
            let source = "only queue pairs of datagrams join groups, and only groups".into();
            return Err(Error::Create { what: "a membership", source });
        }
        self.with(|inner, qp| inner.sim().join_group(qp, group)).ok_or_else(|| super::nic::gone("a membership"))
    }

    fn detach(&self, group: Gid) -> Result<(), Error> {
        self.with(|inner, qp| inner.sim().leave_group(qp, group)).ok_or_else(|| super::nic::gone("a membership"))
    }

    fn destroy(&self) -> Option<u64> {
        let destroyed = self.place.with(|inner, party| {
            inner.sim().queue_pair(self.qp)?;
            *lock(&self.last) = inner.sim().attributes(self.qp);
            inner.sim().leave_all_groups(self.qp);
            let taken = inner.sim().destroy_qp_with_receive(self.qp);
            let party = &mut inner.parties[party];
            party.memory.release_queue_pair(self.qp.qpn);
            let record = party.pairs.remove(&self.qp.qpn)?;
            for queue in [&record.send, &record.receive].into_iter().flatten() {
                queue.forget(self.qp.qpn);
            }
            // Its observer may hold something that calls the simulation when it goes.
            inner.after(super::world::After::Drop(Box::new(record)));
            taken
        });
        destroyed.flatten()
    }
}

/// Posts until one is refused: then its index and why.
fn first_refusal(posted: impl Iterator<Item = Result<(), PostError>>) -> Result<(), (usize, PostError)> {
    for (index, posted) in posted.enumerate() {
        posted.map_err(|error| (index, error))?;
    }
    Ok(())
}

/// A shared receive queue as the API has it.
pub(super) struct SimulatedShared {
    pub(super) place: PartyLife,
    pub(super) srq: SrqId,
    pub(super) last: SrqAttributes,
}

impl std::fmt::Debug for SimulatedShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "simulated shared receive queue {}", self.srq.srqn.value())
    }
}

impl SimulatedShared {
    fn with<R>(&self, work: impl FnOnce(&mut transport::SharedReceiveQueue) -> R) -> Option<R> {
        self.place
            .with(|inner, party| {
                inner.parties[party].shared.get(&self.srq.srqn)?;
                Some(work(inner.sim().srq(self.srq)))
            })
            .flatten()
    }
}

// SAFETY: a receive is with the queue or with the one queue pair that took it, whose promise is above.
#[allow(unsafe_code)]
unsafe impl SharedReceiveQueue for SimulatedShared {
    fn number(&self) -> Srqn {
        self.srq.srqn
    }

    unsafe fn post(&self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        let refused = Err(PostError::WrongState { state: State::Error, queue: "receive" });
        self.with(|queue| queue.post(request)).unwrap_or(refused)
    }

    fn modify(&self, modify: &SrqModify) -> Result<(), SrqError> {
        self.with(|queue| queue.modify(modify)).unwrap_or(Ok(()))
    }

    fn attributes(&self) -> SrqAttributes {
        self.with(|queue| queue.query()).unwrap_or(self.last)
    }

    fn destroy(&self) {
        self.place.with(|inner, party| {
            if let Some(gone) = inner.parties[party].shared.remove(&self.srq.srqn) {
                inner.sim().destroy_srq(self.srq);
                inner.after(super::world::After::Drop(Box::new(gone)));
            }
        });
    }
}
