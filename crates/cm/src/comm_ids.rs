//! Numbers that outsiders should not guess: communication ids, each used once before any is used again, transaction ids,
//! and first sequence numbers. Peers see many of them, so they come from a keyed function (SipHash-2-4) that does not give away its key.

use wire::Psn;
use wire::cm::CommId;

/// Draws numbers from a seed.
pub(crate) struct CommIds {
    first: u32,
    /// How many ids there are.
    count: u64,
    /// Half the bits of the smallest even-sized power of two that holds `count`.
    half: u32,
    /// How many were drawn.
    drawn: u64,
    /// How many sequence numbers were.
    psns: u64,
    key: [u64; 2],
}

/// Rounds of the Feistel network: more than the four that suffice for large domains.
const FEISTEL_ROUNDS: u64 = 8;

impl CommIds {
    pub fn new(first: CommId, last: CommId, seed: u128) -> CommIds {
        // Zero names nobody, so it is never drawn.
        let first = first.value().max(1);
        let count = u64::from(last.value()).saturating_sub(u64::from(first)) + 1;
        let bits = 64 - (count - 1).leading_zeros();
        let key = [seed as u64, (seed >> 64) as u64];
        CommIds { first, count, half: bits.div_ceil(2).max(1), drawn: 0, psns: 0, key }
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

    /// The transaction of an id: a number that a stranger without the seed cannot foresee, even from others of them.
    pub fn transaction(&self, id: CommId) -> u64 {
        keyed(self.key, [FEISTEL_ROUNDS, id.value().into()])
    }

    /// The first sequence number of a connection: a stranger who cannot see its packets must guess it to interfere.
    pub fn draw_psn(&mut self) -> Psn {
        self.psns += 1;
        Psn::new(keyed(self.key, [FEISTEL_ROUNDS + 1, self.psns]) as u32)
    }

    /// A Feistel network.
    fn permuted(&self, index: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (index >> self.half, index & mask);
        for round in 0..FEISTEL_ROUNDS {
            (left, right) = (right, left ^ (keyed(self.key, [round, right]) & mask));
        }
        left << self.half | right
    }
}

/// SipHash-2-4 of two words (Aumasson and Bernstein, 2012).
fn keyed(key: [u64; 2], words: [u64; 2]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    // The last word has the length in bytes.
    for word in [words[0], words[1], 16 << 56] {
        v[3] ^= word;
        (0..2).for_each(|_| round(&mut v));
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    fn ids(first: u32, last: u32, seed: u128) -> CommIds {
        CommIds::new(CommId::new(first), CommId::new(last), seed)
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
    fn the_keyed_function_is_siphash() {
        // The sixteenth vector of the reference implementation: key and message are the bytes 0 to 15.
        let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(keyed(words, words), 0x3f2a_cc7f_57c2_9bdb);
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
