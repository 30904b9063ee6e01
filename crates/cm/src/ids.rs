//! Numbers that outsiders should not guess: communication ids, each used once before any is used again, and transaction ids.

use wire::cm::CommId;

/// Draws numbers from a seed.
pub(crate) struct Ids {
    first: u32,
    /// How many ids there are.
    count: u64,
    /// Half the bits of the smallest even-sized power of two that holds `count`.
    half: u32,
    /// How many were drawn.
    drawn: u64,
    keys: [u64; 4],
    state: u64,
}

impl Ids {
    pub fn new(first: CommId, last: CommId, seed: u64) -> Ids {
        // Zero names nobody, so it is never drawn.
        let first = first.value().max(1);
        let count = u64::from(last.value()).saturating_sub(u64::from(first)) + 1;
        let bits = 64 - (count - 1).leading_zeros();
        let mut ids = Ids { first, count, half: bits.div_ceil(2).max(1), drawn: 0, keys: [0; 4], state: seed };
        ids.keys = core::array::from_fn(|_| ids.number());
        ids
    }

    /// How many there are.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The next id; all of them come before any comes again.
    pub fn draw(&mut self) -> CommId {
        // A keyed permutation of a domain up to four times as large; those outside the range are walked over.
        let mut index = self.drawn;
        self.drawn = (self.drawn + 1) % self.count;
        loop {
            index = self.permuted(index);
            if index < self.count {
                return CommId::new(self.first.wrapping_add(index as u32));
            }
        }
    }

    /// A number nobody can foresee who does not know the seed.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Four rounds of a Feistel network.
    fn permuted(&self, index: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (index >> self.half, index & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half | right
    }
}

/// Spreads every bit of `value` over all of them.
const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    fn ids(first: u32, last: u32, seed: u64) -> Ids {
        Ids::new(CommId::new(first), CommId::new(last), seed)
    }

    #[test]
    fn every_id_of_the_range_comes_once_before_any_comes_again() {
        for (first, last) in [(1, 1), (7, 8), (5, 9), (1000, 1999), (0, 16), (u32::MAX - 2, u32::MAX)] {
            let mut ids = ids(first, last, 99);
            let count = ids.count() as usize;
            for _ in 0..3 {
                let drawn: BTreeSet<u32> = (0..count).map(|_| ids.draw().value()).collect();
                assert_eq!(drawn.len(), count);
                assert_eq!(drawn.first().copied(), Some(first.max(1)));
                assert_eq!(drawn.last().copied(), Some(last));
            }
        }
    }

    #[test]
    fn a_range_that_ends_before_it_begins_has_one_id() {
        assert_eq!(ids(9, 3, 1).draw(), CommId::new(9));
        assert_eq!(ids(0, 0, 1).draw(), CommId::new(1));
    }

    #[test]
    fn another_seed_draws_others() {
        let drawn = |seed| {
            let mut ids = ids(1, u32::MAX, seed);
            [ids.draw(), ids.draw(), ids.draw()]
        };
        assert_eq!(drawn(1), drawn(1));
        let (one, two) = (drawn(1), drawn(2));
        assert!(one.iter().all(|id| !two.contains(id)));
        assert_ne!(one[1].value().wrapping_sub(one[0].value()), one[2].value().wrapping_sub(one[1].value()));
    }
}
