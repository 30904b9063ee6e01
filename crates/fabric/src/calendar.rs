//! What will happen, and when: a wheel of one nanosecond a slot for the next microseconds, where nearly everything in a
//! network lies, and a heap for what is further away. Planning and taking cost the same whatever the number of plans.
//! Two things planned for one moment happen in the order they were planned; those from the heap come first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds that the wheel reaches ahead: more than a frame needs for a link, in most networks.
const SLOTS: u64 = 8192;
const WORDS: usize = SLOTS as usize / 64;

/// Plans of up to 64 bits.
#[derive(Debug)]
pub(crate) struct Calendar {
    now: u64,
    slots: Vec<Vec<u64>>,
    /// A bit for each slot that has something.
    occupied: [u64; WORDS],
    /// How far the slot of this moment has been taken.
    taken: usize,
    near: usize,
    far: BinaryHeap<Reverse<(u64, u64, u64)>>,
    order: u64,
}

impl Calendar {
    pub fn new() -> Calendar {
        Calendar {
            now: 0,
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            occupied: [0; WORDS],
            taken: 0,
            near: 0,
            far: BinaryHeap::new(),
            order: 0,
        }
    }

    /// The moment of the last plan taken, in nanoseconds.
    #[inline]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Whether nothing is planned.
    pub fn is_empty(&self) -> bool {
        self.near == 0 && self.far.is_empty()
    }

    /// Plans something for a moment; what is past happens now.
    #[inline]
    pub fn plan(&mut self, at: u64, what: u64) {
        let at = at.max(self.now);
        if at - self.now < SLOTS {
            let slot = (at % SLOTS) as usize;
            self.slots[slot].push(what);
            self.occupied[slot / 64] |= 1 << (slot % 64);
            self.near += 1;
        } else {
            self.order += 1;
            self.far.push(Reverse((at, self.order, what)));
        }
    }

    /// Takes the next plan, if its moment is not after `until`.
    #[inline]
    pub fn next(&mut self, until: u64) -> Option<u64> {
        loop {
            let slot = (self.now % SLOTS) as usize;
            if let Some(&what) = self.slots[slot].get(self.taken) {
                self.taken += 1;
                self.near -= 1;
                return Some(what);
            }
            if self.taken > 0 {
                self.slots[slot].clear();
                self.occupied[slot / 64] &= !(1 << (slot % 64));
                self.taken = 0;
            }
            let near = if self.near > 0 { Some(self.next_near(slot)) } else { None };
            let far = self.far.peek().map(|Reverse((at, ..))| *at);
            match (near, far) {
                (_, Some(far)) if near.is_none_or(|near| far <= near) => {
                    if far > until {
                        return None;
                    }
                    // Slots hold moments from now on, and there is nothing before this one.
                    self.now = far;
                    return self.far.pop().map(|Reverse((.., what))| what);
                }
                (Some(near), _) if near <= until => self.now = near,
                _ => return None,
            }
        }
    }

    /// What is planned for the moments from one to another, both included, not further away than 64 ns from each other.
    #[inline]
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = u64> + '_ {
        let first = (from % SLOTS) as usize;
        let (word, bit) = (first / 64, first % 64);
        let wide = u128::from(self.occupied[(word + 1) % WORDS]) << 64 | u128::from(self.occupied[word]);
        let moments = (to + 1).saturating_sub(from).min(64);
        let mut bits = (wide >> bit) as u64 & (u64::MAX.checked_shr(64 - moments as u32).unwrap_or(0));
        std::iter::from_fn(move || {
            let next = bits.trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
            (next < 64).then(|| &self.slots[(first + next) % SLOTS as usize])
        })
        .flatten()
        .copied()
    }

    /// The moment of the first slot in use, from `slot` on around the wheel.
    fn next_near(&self, slot: usize) -> u64 {
        let (mut word, bit) = (slot / 64, slot % 64);
        let mut bits = self.occupied[word] & (u64::MAX << bit);
        for _ in 0..=WORDS {
            if bits != 0 {
                let found = (word * 64) as u64 + u64::from(bits.trailing_zeros());
                return self.now + (found + SLOTS - slot as u64) % SLOTS;
            }
            word = (word + 1) % WORDS;
            bits = self.occupied[word];
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::Rng;

    #[test]
    fn plans_come_in_time_order_and_within_a_moment_as_planned() {
        let mut rng = Rng::new(5);
        let mut calendar = Calendar::new();
        let mut planned: Vec<(u64, u64)> = Vec::new();
        let mut taken = Vec::new();
        for round in 0..20_000 {
            if rng.chance(0.55) {
                let reach = [3, 100, 9_000, 100_000][rng.below(4) as usize];
                let at = calendar.now() + rng.below(reach);
                calendar.plan(at, round);
                planned.push((at, round));
            } else if let Some(what) = calendar.next(u64::MAX) {
                taken.push((calendar.now(), what));
            }
        }
        while let Some(what) = calendar.next(u64::MAX) {
            taken.push((calendar.now(), what));
        }
        assert!(taken.is_sorted_by_key(|(at, _)| *at));
        planned.sort_unstable();
        taken.sort_unstable();
        assert_eq!(taken, planned);
    }

    #[test]
    fn what_is_planned_can_be_seen_before() {
        let mut calendar = Calendar::new();
        let moments = [3, 3, 60, 67, 130, 8_191];
        for at in moments {
            calendar.plan(at, at);
        }
        for (from, to) in [(0, 2), (0, 3), (3, 60), (4, 67), (60, 100), (100, 163), (8_150, 8_191), (5, 4)] {
            let seen: Vec<u64> = calendar.between(from, to).collect();
            let planned: Vec<u64> = moments.into_iter().filter(|at| (from..=to).contains(at)).collect();
            assert_eq!(seen, planned, "{from} to {to}");
        }
    }

    #[test]
    fn nothing_is_taken_that_lies_after_the_end() {
        let mut calendar = Calendar::new();
        for at in [10, 10, 20, 50_000] {
            calendar.plan(at, at);
        }
        assert_eq!([calendar.next(15), calendar.next(15), calendar.next(15)], [Some(10), Some(10), None]);
        assert_eq!([calendar.next(30_000), calendar.next(30_000)], [Some(20), None]);
        calendar.plan(25, 25);
        assert_eq!(
            [calendar.next(60_000), calendar.next(60_000), calendar.next(60_000)],
            [Some(25), Some(50_000), None]
        );
    }
}
