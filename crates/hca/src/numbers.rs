//! Queue pair numbers: 24 bits, of which the upper twelve name a slot of this host's registry and the lower twelve an index within. A process
//! takes a slot when it needs one and keeps it; numbers are used again as late as possible, so that packets for a queue pair that is gone do
//! not find its successor.

use crate::nic::lock;
use link::slots::{Slot, SlotError, Slots};
use std::collections::VecDeque;
use std::sync::Mutex;
use wire::Qpn;

/// A number rests until this many others have been given back after it.
const REST: usize = 1024;

#[derive(Debug)]
pub(crate) struct Numbers {
    slots: Slots,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The newest slot and the next index in it.
    slot: Slot,
    next: u16,
    resting: VecDeque<Qpn>,
}

impl Numbers {
    /// Takes the first slot.
    pub fn new(slots: &Slots) -> Result<Numbers, SlotError> {
        let inner = Inner { slot: slots.take()?, next: 0, resting: VecDeque::new() };
        Ok(Numbers { slots: slots.clone(), inner: Mutex::new(inner) })
    }

    /// A number that no other queue pair of this host has.
    pub fn take(&self) -> Option<Qpn> {
        let mut inner = lock(&self.inner);
        if inner.resting.len() > REST {
            return inner.resting.pop_front();
        }
        if inner.next == Slot::INDICES {
            match self.slots.take() {
                Ok(slot) => (inner.slot, inner.next) = (slot, 0),
                Err(_) => return inner.resting.pop_front(),
            }
        }
        let qpn = inner.slot.qpn(inner.next);
        inner.next += 1;
        Some(qpn)
    }

    /// A queue pair is gone.
    pub fn give_back(&self, qpn: Qpn) {
        lock(&self.inner).resting.push_back(qpn);
    }

    /// A slot of this process, which it keeps.
    pub fn slot(&self) -> Slot {
        lock(&self.inner).slot
    }

    /// Whether a number is of this process.
    pub fn owns(&self, qpn: Qpn) -> bool {
        Slot::of(qpn).is_some_and(|slot| self.slots.owns(slot))
    }
}
