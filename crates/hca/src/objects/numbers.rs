//! Queue pair numbers: 24 bits, of which the upper twelve name a slot of this host's registry and the lower twelve an
//! index within. A process takes a slot when it needs one and keeps it. Slots are public, so indices are random: a
//! stranger does not know which number to send to. Only their lowest bits go round, from a random one on, as they
//! spread queue pairs over the sockets that send. A number is used again after all others of the slot were, and after
//! it has rested, so that packets for a queue pair that is gone do not find its successor.

use crate::tuning::{NUMBERS_AT_REST, SEND_SOCKETS};
use ::host::slots::{Slot, SlotError, Slots, random};
use latch::Rank;
use latch::plain::Mutex;
use std::collections::VecDeque;
use wire::Qpn;

#[derive(Debug)]
pub(crate) struct Numbers {
    slots: Slots,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The newest slot and the indices in it that were not used yet.
    slot: Slot,
    unused: Unused,
    resting: VecDeque<Qpn>,
    /// How many are in use, and how many may be.
    used: u32,
    limit: u32,
}

/// The indices of a slot that were not used yet, by the socket that they stand for.
#[derive(Debug)]
struct Unused {
    indices: [Vec<u16>; SEND_SOCKETS],
    next: usize,
}

impl Unused {
    fn all() -> Unused {
        let of = |socket: usize| (socket as u16..Slot::INDICES).step_by(SEND_SOCKETS).collect();
        Unused { indices: std::array::from_fn(of), next: below(SEND_SOCKETS) }
    }

    /// One of them, at random.
    fn take(&mut self) -> Option<u16> {
        let indices = self.indices.get_mut(self.next)?;
        self.next = (self.next + 1) % SEND_SOCKETS;
        (!indices.is_empty()).then(|| indices.swap_remove(below(indices.len())))
    }
}

/// A random number below this one, which is small: every one of them is as likely, nearly.
fn below(limit: usize) -> usize {
    (random() % limit as u64) as usize
}

impl Numbers {
    /// Takes the first slot. No more than `limit` numbers will be in use at a time.
    pub fn new(slots: &Slots, limit: u32) -> Result<Numbers, SlotError> {
        let slot = slots.take()?;
        let inner = Inner { slot, unused: Unused::all(), resting: VecDeque::new(), used: 0, limit };
        Ok(Numbers { slots: slots.clone(), inner: Mutex::new(Rank::Numbers, inner) })
    }

    /// A number that no other queue pair of this host has.
    pub fn take(&self) -> Option<Qpn> {
        let mut inner = self.inner.lock();
        if inner.used >= inner.limit {
            return None;
        }
        let number = self.find(&mut inner)?;
        inner.used += 1;
        Some(number)
    }

    fn find(&self, inner: &mut Inner) -> Option<Qpn> {
        if let Some(index) = inner.unused.take() {
            return Some(inner.slot.qpn(index));
        }
        // Which of those that have rested is not to be foreseen either.
        let rested = inner.resting.len().saturating_sub(NUMBERS_AT_REST);
        if rested > 0 {
            return inner.resting.swap_remove_front(below(rested));
        }
        match self.slots.take() {
            Ok(slot) => (inner.slot, inner.unused) = (slot, Unused::all()),
            Err(_) => return inner.resting.pop_front(),
        }
        let index = inner.unused.take()?;
        Some(inner.slot.qpn(index))
    }

    /// A queue pair is gone.
    pub fn give_back(&self, qpn: Qpn) {
        let mut inner = self.inner.lock();
        inner.used -= 1;
        inner.resting.push_back(qpn);
    }

    /// A slot of this process, which it keeps.
    pub fn slot(&self) -> Slot {
        self.inner.lock().slot
    }

    /// Whether a number is of this process.
    pub fn owns(&self, qpn: Qpn) -> bool {
        Slot::of(qpn).is_some_and(|slot| self.slots.owns(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_are_not_to_be_foreseen() {
        let slots = Slots::open().unwrap();
        let index = |numbers: &Numbers| Slot::index(numbers.take().unwrap());
        // The first of 64 processes, and the next of each: one in 4096 has the number that another has.
        let firsts: Vec<(u16, u16)> = (0..64)
            .map(|_| {
                let numbers = Numbers::new(&slots, 2).unwrap();
                (index(&numbers), index(&numbers))
            })
            .collect();
        let different: HashSet<u16> = firsts.iter().map(|(first, _)| *first).collect();
        let steps: HashSet<u16> = firsts.iter().map(|(first, second)| second.wrapping_sub(*first)).collect();
        assert!(different.len() > 50 && steps.len() > 50, "{firsts:?}");
    }

    #[test]
    fn a_slot_is_used_up_and_its_numbers_rest_before_they_come_back() {
        let numbers = Numbers::new(&Slots::open().unwrap(), 1).unwrap();
        let slot = numbers.slot();
        let mut seen = HashSet::new();
        let mut sockets = [0; SEND_SOCKETS];
        for _ in 0..Slot::INDICES {
            let qpn = numbers.take().unwrap();
            assert!(seen.insert(qpn) && Slot::of(qpn) == Some(slot));
            sockets[qpn.value() as usize % SEND_SOCKETS] += 1;
            assert!(sockets.iter().max().unwrap() - sockets.iter().min().unwrap() <= 1, "sockets take turns");
            numbers.give_back(qpn);
        }
        let recent: Vec<Qpn> = numbers.inner.lock().resting.iter().rev().take(NUMBERS_AT_REST).copied().collect();
        assert!(!recent.contains(&numbers.take().unwrap()), "it has rested");
    }

    #[test]
    fn more_than_the_limit_are_never_in_use() {
        let numbers = Numbers::new(&Slots::open().unwrap(), 5000).unwrap();
        let taken: HashSet<Qpn> = (0..5000).map(|_| numbers.take().unwrap()).collect();
        assert_eq!((taken.len(), numbers.take()), (5000, None));
        numbers.give_back(*taken.iter().next().unwrap());
        assert!(numbers.take().is_some() && numbers.take().is_none());
    }
}
