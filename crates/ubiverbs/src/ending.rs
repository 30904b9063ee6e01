//! The end of a queue pair, as its handles, its work and its connection know it.

use latch::lock;
use seam::CloseReason;
use std::fmt;
use std::sync::{Mutex, Weak};
use wire::Qpn;

/// The end of a queue pair: known to its handles, to its work, and to the connection that it is of. What is noted
/// first counts.
pub(crate) struct Ending {
    pair: Weak<dyn seam::QueuePair>,
    qpn: Qpn,
    reason: Mutex<Option<CloseReason>>,
}

impl Ending {
    pub fn new(pair: Weak<dyn seam::QueuePair>, qpn: Qpn) -> Ending {
        Ending { pair, qpn, reason: Mutex::new(None) }
    }

    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// It ends, for this reason if there was none before. To be noted before its work is flushed.
    pub fn note(&self, reason: CloseReason) {
        // What the NIC knows came first.
        if self.reason().is_none() {
            lock(&self.reason).get_or_insert(reason);
        }
    }

    /// Why it ended, if it has. Asks the NIC, so no lock is held.
    pub fn reason(&self) -> Option<CloseReason> {
        let known = lock(&self.reason).clone();
        if known.is_some() {
            return known;
        }
        let stop = self.pair.upgrade()?.stop()?;
        Some(lock(&self.reason).get_or_insert_with(|| CloseReason::of(stop, self.qpn)).clone())
    }

    /// The queue pair begins anew.
    pub fn clear(&self) {
        *lock(&self.reason) = None;
    }
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ending({:?})", lock(&self.reason))
    }
}
