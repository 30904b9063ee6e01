//! What threads tell each other about progress: the engine, deadlines, queue pairs that are ready to send, and
//! acknowledgements that wait for an answer.

use crate::progress::delayed_ack::DelayedAckOwner;
use crate::progress::engine::Engine;
use crate::progress::piggybacked_ack::PiggybackOwners;
use crate::progress::ready::ReadyQueue;
use crate::progress::timers::Timers;
use crate::tuning::LONG_TRAIN_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transport::Time;
use wire::Qpn;

/// See the module.
#[derive(Debug)]
pub(crate) struct ProgressState {
    pub engine: Arc<Engine>,
    pub timers: Timers,
    pub ready: ReadyQueue,
    /// The queue pair whose acknowledgement waits for an answer over UDP, and those of which one does in shared memory.
    pub delayed_ack_owner: DelayedAckOwner,
    pub piggyback_owners: PiggybackOwners,
    /// Bytes that went through shared memory in long trains.
    pub moved: AtomicU64,
}

impl ProgressState {
    /// For a NIC whose engine this is.
    pub fn new(engine: Arc<Engine>) -> ProgressState {
        ProgressState {
            engine,
            timers: Timers::new(),
            ready: ReadyQueue::default(),
            delayed_ack_owner: DelayedAckOwner::default(),
            piggyback_owners: PiggybackOwners::default(),
            moved: AtomicU64::new(0),
        }
    }

    pub fn wake_at(&self, deadline: Time, qpn: Qpn) {
        if self.timers.set(deadline, qpn) {
            self.engine.deadline_moved(deadline);
        }
    }

    pub fn make_ready(&self, qpn: Qpn) {
        self.ready.add(qpn);
    }

    /// A queue pair begins, or ceases, to be one that other hosts may send to.
    pub fn uses_udp(&self, uses: bool) {
        self.engine.policy.sockets.uses_udp(uses);
        self.engine.sockets.uses_udp(uses);
    }

    /// How many bytes went through shared memory in long trains, in either direction.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Counts them, roughly: threads may count at the same time.
    #[inline]
    pub fn note_moved(&self, bytes: usize) {
        if bytes >= LONG_TRAIN_BYTES {
            self.moved.store(self.moved() + bytes as u64, Ordering::Relaxed);
        }
    }
}
