//! Dice, and the bytes of messages: a function of a key and an offset, so that each end can say what the other must
//! have sent.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What stands where nobody may write.
pub const FILL: u8 = 0xa5;

/// SplitMix64's last step: every bit of the answer hangs on every bit of the question.
fn mix(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One number out of several.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(0x5eed, |key, part| mix(key.wrapping_add(GOLDEN) ^ part.wrapping_mul(GOLDEN)))
}

/// Dice that fall alike at both ends.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(parts: &[u64]) -> Dice {
        Dice(key(parts))
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Less than `limit`, which is not zero.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// The eight bytes of a stream at a multiple of eight.
fn word(key: u64, index: u64) -> [u8; 8] {
    mix(key ^ index.wrapping_mul(GOLDEN)).to_le_bytes()
}

/// Writes the bytes of a stream from `offset` on.
pub fn fill(key: u64, offset: usize, out: &mut [u8]) {
    let (mut at, mut rest) = (offset, out);
    while !rest.is_empty() {
        let word = word(key, at as u64 / 8);
        let from = at % 8;
        let length = (8 - from).min(rest.len());
        let (here, next) = rest.split_at_mut(length);
        here.copy_from_slice(&word[from..from + length]);
        at += length;
        rest = next;
    }
}

/// The first `length` bytes of a stream.
pub fn stream(key: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(key, 0, &mut bytes);
    bytes
}

/// Where `bytes` differ from the stream from `offset` on: the place, what should be there and what is.
pub fn difference(key: u64, offset: usize, bytes: &[u8]) -> Option<(usize, u8, u8)> {
    let mut expected = [0; 4096];
    for (index, part) in bytes.chunks(expected.len()).enumerate() {
        let at = index * 4096;
        let expected = &mut expected[..part.len()];
        fill(key, offset + at, expected);
        if expected != part {
            let place = expected.iter().zip(part).position(|(expected, seen)| expected != seen)?;
            return Some((at + place, expected[place], part[place]));
        }
    }
    None
}

/// Where `bytes` are not as nobody should have changed them.
pub fn touched(bytes: &[u8]) -> Option<(usize, u8)> {
    let place = bytes.iter().position(|byte| *byte != FILL)?;
    Some((place, bytes[place]))
}

#[cfg(test)]
mod streams {
    use super::{difference, fill, stream};

    #[test]
    fn are_the_same_from_any_offset() {
        let whole = stream(7, 100);
        for from in 0..40 {
            let mut part = vec![0; 100 - from];
            fill(7, from, &mut part);
            assert_eq!(part, whole[from..]);
        }
    }

    #[test]
    fn tell_where_they_differ() {
        let mut bytes = stream(3, 10_000);
        assert_eq!(difference(3, 0, &bytes), None);
        bytes[5000] ^= 1;
        assert_eq!(difference(3, 0, &bytes), Some((5000, bytes[5000] ^ 1, bytes[5000])));
        assert!(difference(4, 0, &bytes).is_some());
    }
}
