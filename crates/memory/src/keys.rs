//! How keys are made: 32 bits that find a slot of the table and that a stranger does not guess. The upper 24 are the
//! slot and its generation, scrambled with random constants of the process; the lower 8 are random for a region, but for
//! the bit that its L_Key has and its R_Key has not, and the binder's choice for a window. This is no cipher: a peer that was given many keys could work out the upper 24 bits of
//! others.
//!
//! What guessing costs. Only the peer can guess, or a host of the network that can send from its address: a connected
//! queue pair takes nothing from strangers on its own host. Each wrong key is counted as `access_refused` and raises
//! trace events with the key, the range and the cause.
//!
//! | transport | a wrong key | so |
//! |---|---|---|
//! | RC, XRC | breaks the connection | one guess per connection |
//! | UC | is passed over (IBA 9.8.2.2) | 2^31 guesses: 36 minutes at a million a second; 128, knowing many keys |
//! | UD | names no memory | none |
//!
//! There is no limit on wrong keys over UC: a spoofer could use it up and so stop the honest peer. Where a peer may not
//! be trusted with more than it was given, use RC.

use std::hash::{BuildHasher, Hasher, RandomState};

use wire::Key;

/// Slots of the table.
pub(crate) const SLOT_COUNT: u32 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 18;
const MAX_GENERATION: u32 = (1 << (24 - SLOT_BITS)) - 1;
const INDEX_MASK: u32 = (1 << 24) - 1;

/// How much of a small index stands below the bit by which L_Keys differ from R_Keys; the rest begins at bit 8.
const SMALL_BITS: u32 = 7;

/// What keys look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyLayout {
    /// Scrambled: nobody guesses them.
    #[default]
    Random,
    /// As on many cards: an index that counts up, and a variant in the low 8 bits. They can be guessed.
    IndexAndVariant,
    /// Small numbers that count up. They can be guessed, and windows have none.
    Small,
}

/// The constants of one process.
#[derive(Debug)]
pub(crate) struct Keys {
    layout: KeyLayout,
    /// The bits of an index that stand in the low byte, and how many they are: none, unless keys are small numbers.
    low_mask: u32,
    low_bits: u32,
    first: Step,
    second: Step,
    secret: RandomState,
}

/// `x -> x * factor + addend`, and back, in 24 bits.
#[derive(Debug, Clone, Copy)]
struct Step {
    factor: u32,
    inverse: u32,
    addend: u32,
}

impl Keys {
    pub(crate) fn new(layout: KeyLayout) -> Keys {
        let keys = Keys::with([random(), random()]);
        match layout {
            KeyLayout::Random => keys,
            _ => Keys { layout, first: Step::COUNTING, second: Step::IDENTITY, ..keys },
        }
        .with_low_bits(if layout == KeyLayout::Small { SMALL_BITS } else { 0 })
    }

    fn with_low_bits(self, bits: u32) -> Keys {
        Keys { low_mask: (1 << bits) - 1, low_bits: bits, ..self }
    }

    fn with([a, b]: [u64; 2]) -> Keys {
        let (first, second) = (Step::new(a), Step::new(b));
        let (layout, secret) = (KeyLayout::Random, RandomState::new());
        Keys { layout, low_mask: 0, low_bits: 0, first, second, secret }
    }

    /// Where a slot's first life starts.
    pub(crate) fn first_life(&self, slot: u32) -> u32 {
        match self.layout {
            KeyLayout::Random => self.hash(slot, u32::MAX) & MAX_GENERATION,
            _ => 0,
        }
    }

    /// The key of a slot in one of its lives. The generation changes with every life, so the key of the life before
    /// never opens this one, whatever its low byte; a region's low byte moves on when the generations have gone round,
    /// so a window's first key comes back after 2^14 lives of the slot, and a region's after 2^13. `None` where the key would look like none at all to a
    /// program: such a life is skipped.
    pub(crate) fn key(&self, slot: u32, life: u32) -> Option<Key> {
        let generation = life & MAX_GENERATION;
        let index = self.scramble(generation << SLOT_BITS | slot & (SLOT_COUNT - 1));
        if index == 0 || index == INDEX_MASK {
            return None;
        }
        if self.layout == KeyLayout::Small {
            return Some(Key::new((index >> SMALL_BITS) << 8 | index & self.low_mask));
        }
        let noise = self.hash(slot, generation);
        // An odd step visits all 256 values before it repeats one.
        let low = (life >> (24 - SLOT_BITS)).wrapping_mul(noise >> 8 | 1).wrapping_add(noise) & 0xff;
        Some(Key::new(index << 8 | low))
    }

    /// The R_Key of a region in that slot and life. See [`key`](Keys::key).
    pub(crate) fn region_key(&self, slot: u32, life: u32) -> Option<Key> {
        self.key(slot, life).map(Key::of_region)
    }

    /// The slot a key would be in.
    #[inline]
    pub(crate) fn slot(&self, key: Key) -> u32 {
        self.unscramble((key.value() >> 8) << self.low_bits | key.value() & self.low_mask) & (SLOT_COUNT - 1)
    }

    fn scramble(&self, index: u32) -> u32 {
        let index = self.first.forth(index);
        // A shift by half the width undoes itself.
        let index = self.second.forth(index ^ index >> 12);
        index ^ index >> 12
    }

    #[inline]
    fn unscramble(&self, index: u32) -> u32 {
        let index = self.second.back(index ^ index >> 12);
        self.first.back(index ^ index >> 12)
    }

    fn hash(&self, slot: u32, generation: u32) -> u32 {
        let mut hasher = self.secret.build_hasher();
        hasher.write_u32(slot);
        hasher.write_u32(generation);
        hasher.finish() as u32
    }
}

impl Step {
    const IDENTITY: Step = Step { factor: 1, inverse: 1, addend: 0 };
    /// The first index is 1, as 0 would look like no key. With the identity behind it the rest of scrambling undoes
    /// itself.
    const COUNTING: Step = Step { addend: 1, ..Step::IDENTITY };

    fn new(random: u64) -> Step {
        let factor = random as u32 & INDEX_MASK | 1;
        // Newton's iteration doubles the correct bits; an odd number is its own inverse in 3.
        let mut inverse = factor;
        for _ in 0..4 {
            inverse = inverse.wrapping_mul(2u32.wrapping_sub(factor.wrapping_mul(inverse)));
        }
        Step { factor, inverse: inverse & INDEX_MASK, addend: (random >> 32) as u32 & INDEX_MASK }
    }

    fn forth(self, x: u32) -> u32 {
        x.wrapping_mul(self.factor).wrapping_add(self.addend) & INDEX_MASK
    }

    #[inline]
    fn back(self, x: u32) -> u32 {
        x.wrapping_sub(self.addend).wrapping_mul(self.inverse) & INDEX_MASK
    }
}

/// Eight bytes from the system's generator; where the system has no such call, from the seeds the standard library
/// hashes with.
fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the pointer and length are those of a live array.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize { u64::from_ne_bytes(bytes) } else { RandomState::new().hash_one(got) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn scrambling_is_undone() {
        for keys in [Keys::new(KeyLayout::Random), Keys::with([0, 0]), Keys::with([u64::MAX, u64::MAX])] {
            for index in (0..INDEX_MASK).step_by(if cfg!(miri) { 400_009 } else { 4099 }).chain([
                0,
                1,
                INDEX_MASK - 1,
                INDEX_MASK,
            ]) {
                assert_eq!(keys.unscramble(keys.scramble(index)), index);
            }
        }
    }

    #[test]
    fn a_key_finds_its_slot_with_any_low_byte() {
        let keys = Keys::new(KeyLayout::Random);
        for slot in (0..SLOT_COUNT).step_by(if cfg!(miri) { 40_009 } else { 1009 }) {
            for life in [0, 1, 63, 64, 1000] {
                let Some(key) = keys.key(slot, life) else { continue };
                assert_eq!(keys.slot(key), slot);
                assert_eq!(keys.slot(Key::new(key.value() ^ 0xff)), slot);
            }
        }
    }

    #[test]
    fn the_lives_of_a_slot_share_no_key() {
        let keys = Keys::new(KeyLayout::Random);
        let lives = if cfg!(miri) { 200 } else { 1 << 14 };
        let mut seen = HashSet::new();
        let mut skipped = 0;
        for life in 0..lives {
            match keys.key(77, life) {
                Some(key) => assert!(seen.insert(key), "life {life} has an old key {key}"),
                None => skipped += 1,
            }
        }
        assert_eq!(seen.len() + skipped, lives as usize);
        // The next life has another index, so that no low byte a window may choose fits it.
        for (before, after) in (0..lives).map(|life| (keys.key(5, life), keys.key(5, life + 1))) {
            if let (Some(before), Some(after)) = (before, after) {
                assert_ne!(before.value() >> 8, after.value() >> 8);
            }
        }
    }

    #[test]
    fn no_key_looks_like_none() {
        // The identity, nearly: slot 0 in generation 0 would be index 0.
        let keys = Keys::with([1, 1]);
        assert_eq!(keys.scramble(0), 0);
        assert_eq!(keys.key(0, 0), None);
        assert!(keys.key(0, 1).is_some());
    }

    #[test]
    fn keys_of_cards_count_up_and_find_their_slots() {
        let variants = Keys::new(KeyLayout::IndexAndVariant);
        let small = Keys::new(KeyLayout::Small);
        for keys in [&variants, &small] {
            for slot in (0..SLOT_COUNT).step_by(if cfg!(miri) { 40_009 } else { 1009 }) {
                for life in [0, 1, 62] {
                    let Some(key) = keys.region_key(slot, life) else { continue };
                    assert_eq!((keys.slot(key), keys.slot(key.local())), (slot, slot));
                    assert!(key != key.local() && key.of_region() == key);
                }
            }
        }
        let first = |keys: &Keys| [0, 1, 2].map(|slot| keys.region_key(slot, keys.first_life(slot)).unwrap().value());
        assert_eq!(first(&variants).map(|key| key >> 8), [1, 2, 3]);
        assert_eq!(first(&small), [1, 2, 3]);
        let keys: HashSet<u32> = (0..1000).filter_map(|slot| small.region_key(slot, 0)).map(Key::value).collect();
        assert_eq!(keys.len(), 1000);
    }

    #[test]
    fn two_processes_have_different_keys() {
        let (one, other) = (Keys::new(KeyLayout::Random), Keys::new(KeyLayout::Random));
        let same = (0..1000).filter(|slot| one.key(*slot, 0) == other.key(*slot, 0)).count();
        assert!(same < 10, "{same} of 1000 keys are the same");
    }
}
