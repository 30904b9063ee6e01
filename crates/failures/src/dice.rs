//! The one source of chance. It is SplitMix64 (Steele, Lea and Flood, 2014), written out here because the same seed must
//! do the same in every version. Not for secrets.

/// A seeded generator.
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    state: u64,
}

impl Dice {
    /// The sequence of this seed, for this failure of a script in this process: what one failure takes from its sequence
    /// changes nothing for the others.
    pub fn new(seed: u64, process: u32, line: usize) -> Dice {
        let mut dice = Dice { state: seed };
        for mixed in [u64::from(process), line as u64] {
            dice.state = dice.next() ^ mixed;
        }
        dice
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with this probability. What is certain takes nothing from the sequence.
    pub fn chance(&mut self, probability: f64) -> bool {
        if probability >= 1.0 {
            return true;
        }
        // 53 bits: as many as a float's mantissa.
        probability > 0.0 && ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}
