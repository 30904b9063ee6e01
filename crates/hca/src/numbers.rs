//! Queue pair numbers: 24 bits, of which the upper twelve name a slot of this host's registry and the lower twelve an index within. A process
//! takes a slot when it needs one and keeps it; numbers are used again as late as possible, so that packets for a queue pair that is gone do
//! not find its successor.

use crate::nic::lock;
use std::collections::VecDeque;
use std::io;
use std::sync::Mutex;
use wire::Qpn;

/// Bits of the index within a slot.
const INDEX_BITS: u32 = 12;
const INDICES: u32 = 1 << INDEX_BITS;

/// A number rests until this many others have been given back after it.
const REST: usize = 1024;

#[derive(Debug)]
pub(crate) struct Numbers {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    slots: Vec<u16>,
    /// The next index of the newest slot.
    next: u32,
    resting: VecDeque<Qpn>,
}

impl Numbers {
    pub fn open() -> io::Result<Numbers> {
        let inner = Inner { slots: vec![slot()?], next: 0, resting: VecDeque::new() };
        Ok(Numbers { inner: Mutex::new(inner) })
    }

    /// The slot of a number.
    pub fn slot_of(qpn: Qpn) -> u16 {
        (qpn.value() >> INDEX_BITS) as u16
    }

    /// A number that no other queue pair of this host has.
    pub fn take(&self) -> Option<Qpn> {
        let mut inner = lock(&self.inner);
        if inner.resting.len() > REST {
            return inner.resting.pop_front();
        }
        if inner.next == INDICES {
            match slot() {
                Ok(slot) => {
                    inner.slots.push(slot);
                    inner.next = 0;
                }
                Err(_) => return inner.resting.pop_front(),
            }
        }
        let slot = u32::from(*inner.slots.last()?);
        let qpn = Qpn::new(slot << INDEX_BITS | inner.next);
        inner.next += 1;
        Some(qpn)
    }

    /// A queue pair is gone.
    pub fn give_back(&self, qpn: Qpn) {
        lock(&self.inner).resting.push_back(qpn);
    }

    /// Whether a number is of this process.
    pub fn owns(&self, qpn: Qpn) -> bool {
        lock(&self.inner).slots.contains(&Numbers::slot_of(qpn))
    }
}

fn slot() -> io::Result<u16> {
    Ok((std::process::id() % 4095 + 1) as u16)
}
