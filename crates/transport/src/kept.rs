//! Packets that came before their turn, as one before them was lost: requests for a responder, answers for a requester.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use wire::{Headers, Psn};

/// The most that is kept for one queue pair, payload and what describes it.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// What a packet costs beside its payload.
const ENTRY_BYTES: usize = 256;

/// A packet or train that came before its turn.
#[derive(Debug)]
pub(crate) struct Kept {
    pub headers: Headers,
    pub count: u32,
    pub payload: Vec<u8>,
}

impl Kept {
    fn psn(&self) -> Psn {
        self.headers.bth.psn
    }
}

/// Packets in the order of their numbers, as many as there is room for.
#[derive(Debug, Default)]
pub(crate) struct KeptPackets {
    packets: VecDeque<Kept>,
    bytes: usize,
}

impl KeptPackets {
    /// Copies a packet that lies behind `expected`, if there is room for it.
    pub fn keep(&mut self, headers: &Headers, count: u32, payload: &[u8], expected: Psn) {
        let psn = headers.bth.psn;
        let cost = payload.len() + ENTRY_BYTES;
        let place = |psn: Psn| psn.distance_from(expected);
        let before = self.packets.iter().rposition(|kept| place(kept.psn()) <= place(psn));
        let known = before.is_some_and(|index| self.packets[index].psn() == psn);
        if known || self.bytes + cost > MAX_KEPT_BYTES {
            return;
        }
        self.bytes += cost;
        let kept = Kept { headers: *headers, count, payload: payload.to_vec() };
        self.packets.insert(before.map_or(0, |index| index + 1), kept);
    }

    /// The number of the first.
    pub fn first(&self) -> Option<Psn> {
        self.packets.front().map(Kept::psn)
    }

    /// Takes the first whose turn it is, past those whose turn is over.
    pub fn next(&mut self, expected: Psn) -> Option<Kept> {
        while self.first().is_some_and(|first| !first.is_after(expected)) {
            let kept = self.packets.pop_front()?;
            self.bytes -= kept.payload.len() + ENTRY_BYTES;
            if kept.psn().add(kept.count).is_after(expected) {
                return Some(kept);
            }
        }
        None
    }

    pub fn clear(&mut self) {
        *self = KeptPackets::default();
    }
}
