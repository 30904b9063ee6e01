//! Whose turn it is to send into a window that not all can send into: deficit round robin. Who cannot go on waits in a
//! queue; the one at its head may send a quantum, then goes to the back. A turn that the window cut short goes on where
//! it stopped, or two queue pairs whose acknowledgements come in step could share a window one to twenty-four for ever.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use wire::Qpn;

#[derive(Debug, Default)]
pub(super) struct Turns {
    queue: VecDeque<Waiter>,
    /// Who is in `queue`, so that asking again costs nothing.
    members: QpnSet,
    /// Who may send although others wait, and how much more.
    turn: Option<Turn>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    qpn: Qpn,
    /// The cost of the packet it could not send.
    next: u64,
    /// What is left of a turn cut short.
    credit: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    qpn: Qpn,
    credit: u64,
}

impl Turns {
    /// How much of `room` may `qpn` use?
    pub(super) fn allow(&mut self, qpn: Qpn, room: u64) -> u64 {
        match self.queue.front() {
            None => return room,
            // Alone in the queue: it waits for nobody but itself.
            Some(waiter) if waiter.qpn == qpn && self.queue.len() == 1 => {
                self.leave(qpn);
                return room;
            }
            Some(_) => {}
        }
        match self.turn {
            Some(turn) if turn.qpn == qpn => room.min(turn.credit),
            _ => 0,
        }
    }

    /// `qpn` sent `charge` and got all it wanted.
    pub(super) fn spend(&mut self, qpn: Qpn, charge: u64) {
        if let Some(turn) = &mut self.turn
            && turn.qpn == qpn
        {
            turn.credit = turn.credit.saturating_sub(charge);
        }
    }

    /// `qpn` sent `charge` and wants to send a packet of cost `next`, but may not: for want of room, or because it had
    /// its share.
    pub(super) fn wait(&mut self, qpn: Qpn, next: u64, charge: u64, stopped_by_window: bool) {
        self.spend(qpn, charge);
        let unfinished = match self.turn {
            Some(turn) if turn.qpn == qpn => {
                self.turn = None;
                // A credit too small for a packet is a turn that is over.
                (stopped_by_window && turn.credit >= next).then_some(turn.credit)
            }
            _ => None,
        };
        if !self.members.insert(qpn) {
            return;
        }
        let waiter = Waiter { qpn, next, credit: unfinished };
        if unfinished.is_some() {
            self.queue.push_front(waiter);
        } else {
            self.queue.push_back(waiter);
        }
    }

    /// Gives the turn to the head of the queue, if its next packet fits in `room`.
    pub(super) fn next(&mut self, room: u64, quantum: u64) -> Option<Qpn> {
        let head = *self.queue.front()?;
        if head.next > room {
            return None;
        }
        self.queue.pop_front();
        self.members.remove(head.qpn);
        // The queue pair that has the turn can send at least the packet it waits with, however small the quantum.
        let credit = head.credit.unwrap_or(quantum.max(head.next));
        self.turn = Some(Turn { qpn: head.qpn, credit });
        Some(head.qpn)
    }

    pub(super) fn leave(&mut self, qpn: Qpn) {
        if self.turn.is_some_and(|turn| turn.qpn == qpn) {
            self.turn = None;
        }
        if self.members.remove(qpn) {
            if self.queue.back().is_some_and(|waiter| waiter.qpn == qpn) {
                // It has just come.
                self.queue.pop_back();
            } else {
                // A walk along the queue, but only for those who leave while they wait.
                self.queue.retain(|waiter| waiter.qpn != qpn);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// A set of queue pair numbers that allocates only when it meets a new neighbourhood of them. A process's numbers lie
/// close together, so a page of bits serves thousands, and neither asking nor inserting costs more with more members.
#[derive(Debug, Default)]
struct QpnSet {
    /// Sorted by page number.
    pages: Vec<(u32, Box<[u64; QpnSet::BITMAP_WORDS]>)>,
}

impl QpnSet {
    const BITMAP_WORDS: usize = 64;

    /// False if it was in already.
    fn insert(&mut self, qpn: Qpn) -> bool {
        let (page, word, bit) = QpnSet::place(qpn);
        let index = match self.pages.binary_search_by_key(&page, |(page, _)| *page) {
            Ok(index) => index,
            Err(index) => {
                self.pages.insert(index, (page, Box::new([0; QpnSet::BITMAP_WORDS])));
                index
            }
        };
        let word = &mut self.pages[index].1[word];
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// False if it was not in.
    fn remove(&mut self, qpn: Qpn) -> bool {
        let (page, word, bit) = QpnSet::place(qpn);
        let Ok(index) = self.pages.binary_search_by_key(&page, |(page, _)| *page) else {
            return false;
        };
        let word = &mut self.pages[index].1[word];
        let present = *word & bit != 0;
        *word &= !bit;
        present
    }

    /// Page, word of the page (always below `WORDS`) and bit of the word.
    fn place(qpn: Qpn) -> (u32, usize, u64) {
        let value = qpn.value();
        (value >> 12, (value as usize >> 6) % QpnSet::BITMAP_WORDS, 1 << (value & 63))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn the_set_is_a_set() {
        let mut set = QpnSet::default();
        let mut model = BTreeSet::new();
        // Numbers that share words, pages, neither, and come back; a fixed walk reaches them all.
        let mut value = 1u32;
        for step in 0..20_000u32 {
            value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let qpn = Qpn::new((value >> 8) & 0xf0_01ff);
            if step % 3 == 0 {
                assert_eq!(set.remove(qpn), model.remove(&qpn));
            } else {
                assert_eq!(set.insert(qpn), model.insert(qpn));
            }
        }
        assert!(model.len() > 100);
        for qpn in model {
            assert!(set.remove(qpn) && !set.remove(qpn));
        }
    }
}
