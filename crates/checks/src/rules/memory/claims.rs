//! Which memory is lent to the NIC by work under way, by address.

use alloc::collections::VecDeque;

use trace::{Call, Kind};

use crate::examine::Moment;
use crate::map::{Key, Map, Wide};
use crate::model::{Model, Work};
use crate::posted_work::{Owner, Posting};

/// How many places that were filled are remembered.
const FILLED_MAX: usize = 64;

/// How many claims are looked at, the nearest to an address first.
const LOOKED_AT_MAX: usize = 256;

/// Memory that is lent.
#[derive(Default, Debug)]
pub(super) struct Claims {
    by_start: Map<(u64, Owner, u64), Claim>,
    /// Where the pieces of each work start, zeros where there are fewer; for each queue, by the work's serial.
    starts: Map<Owner, VecDeque<(u64, [u64; 4])>>,
    /// The longest claim ever.
    longest: u64,
    /// Memory that was filled last: where, and when that was known. The newest is last.
    filled: VecDeque<(u64, u64, u64)>,
}

impl Key for (u64, Owner, u64) {
    type Order = Wide;

    fn order(self) -> Wide {
        let (start, owner, serial) = self;
        (start, owner.order(), None, serial)
    }
}

/// A piece of work under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub owner: Owner,
    pub start: u64,
    pub end: u64,
    pub wr_id: u64,
    pub opcode: &'static str,
    pub signaled: bool,
    pub fills_memory: bool,
    pub is_answered: bool,
}

/// Where the pieces of a work request lie in the process, start and end, and the key. Those of unknown keys are
/// nowhere.
pub(super) fn places<'a>(work: &'a Work, model: &'a Model) -> impl Iterator<Item = ((u64, u64), wire::Key)> + 'a {
    work.pieces.kept().iter().filter(|piece| piece.length > 0).filter_map(|piece| {
        let region = model.local_region(piece.key).filter(|region| region.address != 0)?;
        let start = region.place(piece.address);
        Some(((start, start.checked_add(u64::from(piece.length))?), piece.key))
    })
}

impl Claims {
    /// Work lends memory to the NIC.
    pub fn add(&mut self, posting: &Posting<'_>, model: &Model) {
        let work = &posting.work;
        if !work.fills_memory() && !work.leaves_memory() {
            return;
        }
        let mut starts = [0; 4];
        for (((start, end), _), kept) in places(work, model).zip(&mut starts) {
            let claim = Claim {
                owner: posting.owner,
                start,
                end,
                wr_id: work.wr_id,
                opcode: work.opcode,
                signaled: work.signaled,
                fills_memory: work.fills_memory(),
                is_answered: work.is_answered(),
            };
            *kept = start;
            self.longest = self.longest.max(end - start);
            self.by_start.insert((start, posting.owner, work.serial), claim);
        }
        if starts[0] != 0 {
            self.starts.entry(posting.owner).or_default().push_back((work.serial, starts));
        }
    }

    /// Memory is given back by completions, and with queues.
    pub fn observe(&mut self, moment: &Moment<'_>) {
        match &moment.event.kind {
            Kind::Completed { wr_id, queue, .. } => {
                let Some(owner) = Owner::of(moment.model, moment.event, *queue) else { return };
                let model = moment.model;
                let works = match owner {
                    Owner::Send(qpn) => model.pairs.get(&qpn).map(|pair| &pair.sends),
                    Owner::Receive(qpn) => model.pairs.get(&qpn).map(|pair| &pair.receives),
                    Owner::Shared(srq) => model.srqs.get(&srq).map(|srq| &srq.receives),
                };
                let in_order = !matches!(owner, Owner::Shared(_));
                for work in works.into_iter().flat_map(|works| works.ended_by(*wr_id, in_order)) {
                    if work.fills_memory() {
                        for ((start, end), _) in places(work, model) {
                            self.note_filled(start, end, moment.event.at);
                        }
                    }
                    self.remove(owner, work.serial);
                }
            }
            Kind::StateChanged { to: "RESET", .. } | Kind::Called { call: Call::DestroyQp { .. }, .. } => {
                if let Some(qpn) = moment.event.qpn {
                    self.remove_all(Owner::Send(qpn));
                    self.remove_all(Owner::Receive(qpn));
                }
            }
            Kind::Called { call: Call::DestroySrq { srq }, .. } => self.remove_all(Owner::Shared(srq.value())),
            _ => {}
        }
    }

    /// What is lent of this memory, by other work than that.
    pub fn at(&self, start: u64, end: u64, except: (Owner, u64)) -> impl Iterator<Item = &Claim> {
        let first = (start.saturating_sub(self.longest), Owner::Send(wire::Qpn::new(0)), 0);
        let last = (end, Owner::Send(wire::Qpn::new(0)), 0);
        self.by_start
            .range(first..last)
            .rev()
            .take(LOOKED_AT_MAX)
            .filter(move |((_, owner, serial), claim)| claim.end > start && (*owner, *serial) != except)
            .map(|(_, claim)| claim)
    }

    fn note_filled(&mut self, start: u64, end: u64, at: u64) {
        if self.filled.len() == FILLED_MAX {
            self.filled.pop_front();
        }
        self.filled.push_back((start, end, at));
    }

    /// Whether a message or an answer was put into this memory since then.
    pub fn was_filled(&self, start: u64, end: u64, since: u64) -> bool {
        self.filled.iter().rev().any(|&(from, to, at)| at >= since && from < end && start < to)
    }

    fn remove(&mut self, owner: Owner, serial: u64) {
        let Some(queue) = self.starts.get_mut(&owner) else { return };
        // Serials rise, and the oldest work mostly ends first.
        let place = match queue.front() {
            Some((first, _)) if *first == serial => Some(0),
            _ => queue.binary_search_by_key(&serial, |(serial, _)| *serial).ok(),
        };
        let Some((_, starts)) = place.and_then(|place| queue.remove(place)) else { return };
        for start in starts.into_iter().take_while(|start| *start != 0) {
            self.by_start.remove(&(start, owner, serial));
        }
    }

    fn remove_all(&mut self, owner: Owner) {
        for (serial, starts) in self.starts.remove(&owner).into_iter().flatten() {
            for start in starts {
                self.by_start.remove(&(start, owner, serial));
            }
        }
    }
}
