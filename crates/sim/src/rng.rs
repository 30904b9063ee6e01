//! The one source of chance in a simulation: a small generator with a seed, so that a run can be had again. It is
//! SplitMix64 (Steele, Lea and Flood, 2014), written out here because its numbers must never change with the version of
//! a dependency. Not for secrets.

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The sequence of this seed.
    pub const fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// A generator of its own, independent of what this one goes on to yield.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if there is none.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: the bias is below 2^-32 for any bound a simulation uses.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with this probability. Certain outcomes take nothing from the sequence, so that a fault that is off changes
    /// nothing else.
    pub fn chance(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        if probability >= 1.0 {
            return true;
        }
        // 53 bits: as many as a float's mantissa.
        ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // Reference values of SplitMix64 for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.next_u64(), rng.next_u64()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_everything() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 7];
        for _ in 0..7000 {
            seen[rng.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn a_chance_comes_true_about_as_often_as_it_says() {
        let mut rng = Rng::new(2);
        let hits = (0..100_000).filter(|_| rng.chance(0.03)).count();
        assert!((2700..3300).contains(&hits), "{hits}");
        let before = rng.clone().next_u64();
        assert!(!rng.chance(0.0) && rng.chance(1.0));
        assert_eq!(rng.next_u64(), before, "certainty takes nothing from the sequence");
    }
}
