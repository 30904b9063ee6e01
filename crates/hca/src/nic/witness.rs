//! The live process, asked by the checks: what buffers hold, and whether they are there. It may be asked by a sink of
//! the trace, whatever locks the calling thread holds: it takes none, and never faults.

use crate::nic::Nic;
use checks::Witness;
use std::mem::forget;
use std::sync::{Arc, Weak};
use trace::Pieces;

/// So many bytes are looked at whole. Of more, the first and last of each piece, and samples between them.
const MAX_WHOLE_BYTES: u64 = 4096;
/// Bytes at either end of a long piece.
const END_BYTES: u64 = 256;
/// Samples between the ends of a long piece, and the bytes of each.
const SAMPLE_COUNT: u64 = 24;
const SAMPLE_BYTES: u64 = 32;

/// Looking at a buffer takes a system call, which costs as much as many messages. So many nanoseconds may be spent on it
/// at once, and afterwards one part in so many of the time that passes, but not before there is enough for many looks:
/// of a program that sends without pause, some runs of messages are compared.
const BUDGET_NS: u64 = 5_000_000;
const BUDGET_SHARE: u64 = 32;
const ENOUGH_NS: u64 = 1_000_000;

/// How much time was spent on looking.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    spent: u64,
    since: Option<u64>,
    /// It was spent, and is to grow again first.
    rests: bool,
}

impl Budget {
    /// Whether it allows another look at this time of the NIC's clock.
    fn allows(&mut self, now: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        let left = (BUDGET_NS + now.saturating_sub(since) / BUDGET_SHARE).saturating_sub(self.spent);
        self.rests = if self.rests { left < ENOUGH_NS } else { left == 0 };
        !self.rests
    }

    /// A look took so long.
    fn spend(&mut self, nanos: u64) {
        self.spent += nanos;
    }
}

/// Answers questions about this process.
#[derive(Clone, Debug)]
pub struct LiveWitness {
    nic: Weak<Nic>,
    /// What was looked at, kept to be used again.
    bytes: Vec<u8>,
    places: Vec<(u64, usize)>,
    budget: Budget,
}

impl LiveWitness {
    /// A witness of the process that has this NIC.
    pub fn new(nic: &Arc<Nic>) -> LiveWitness {
        let (bytes, places) = (Vec::new(), Vec::new());
        LiveWitness { nic: Arc::downgrade(nic), bytes, places, budget: Budget::default() }
    }

    /// Asks the NIC, which may be about to go.
    fn ask<R>(&self, question: impl FnOnce(&Nic) -> R) -> Option<R> {
        let nic = self.nic.upgrade()?;
        let answer = question(&nic);
        if Arc::strong_count(&nic) == 1 {
            // Dropping the last would take locks.
            forget(nic);
        }
        Some(answer)
    }

    /// The time of the NIC's clock.
    fn now(&self) -> Option<u64> {
        self.ask(|nic| nic.now().as_nanos())
    }

    /// Notes which bytes of the pieces are looked at. `None` if a key does not lead to them.
    fn choose(&mut self, pieces: &Pieces) -> Option<()> {
        let whole = pieces.bytes <= MAX_WHOLE_BYTES;
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        let found = self.ask(|nic| {
            for piece in pieces.kept().iter().filter(|piece| piece.length > 0) {
                let length = u64::from(piece.length);
                match nic.memory().place(piece.key.of_region(), piece.address, length)? {
                    place if whole => places.push((place, length as usize)),
                    place => sample(place, length, &mut places),
                }
            }
            Some(())
        });
        self.places = places;
        found.flatten()
    }
}

/// The places of a long piece that are looked at.
fn sample(place: u64, length: u64, places: &mut Vec<(u64, usize)>) {
    if length <= 2 * END_BYTES + SAMPLE_COUNT * SAMPLE_BYTES {
        return places.push((place, length as usize));
    }
    places.push((place, END_BYTES as usize));
    let between = length - 2 * END_BYTES - SAMPLE_BYTES;
    let at = |index| place + END_BYTES + between * index / SAMPLE_COUNT;
    places.extend((0..SAMPLE_COUNT).map(|index| (at(index), SAMPLE_BYTES as usize)));
    places.push((place + length - END_BYTES, END_BYTES as usize));
}

impl Witness for LiveWitness {
    fn digest(&mut self, pieces: &Pieces) -> Option<u64> {
        let begun = self.now()?;
        if !self.budget.allows(begun) {
            return None;
        }
        self.choose(pieces)?;
        let length = self.places.iter().map(|(_, length)| length).sum();
        self.bytes.resize(length, 0);
        let digest = memory::peek(&self.places, &mut self.bytes).then(|| hash(&self.bytes));
        self.budget.spend(self.now()?.saturating_sub(begun));
        digest
    }

    fn may_look(&mut self) -> bool {
        self.now().is_some_and(|now| self.budget.allows(now))
    }

    fn is_mapped(&mut self, address: u64, length: u64) -> Option<bool> {
        memory::is_mapped(address, length)
    }

    fn is_on_stack(&mut self, address: u64, length: u64) -> Option<bool> {
        ::host::thread::is_on_stack(address, length)
    }
}

/// A hash of eight bytes at a time, each step of which can be undone: of two contents that differ in one word the hashes
/// differ.
fn hash(bytes: &[u8]) -> u64 {
    const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(HASH_FACTOR);
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let hash = mix(hash, u64::from_le_bytes(last));
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::Piece;
    use transport::{Access, ProtectionDomain};

    fn pieces(places: &[(u64, usize)], key: wire::Key) -> Pieces {
        places.iter().map(|&(address, length)| Piece { address, length: length as u32, key }).collect()
    }

    /// However long the last look took.
    fn digest(witness: &mut LiveWitness, pieces: &Pieces) -> Option<u64> {
        witness.budget = Budget::default();
        witness.digest(pieces)
    }

    #[test]
    fn a_changed_buffer_has_another_digest_and_a_missing_one_has_none() {
        let nic = Nic::open().unwrap();
        let mut witness = LiveWitness::new(&nic);
        let mut buffer = vec![0u8; 1 << 20];
        let address = buffer.as_ptr().addr() as u64;
        // SAFETY: the buffer stays, and is changed by this thread alone.
        let key = unsafe { nic.register(buffer.as_mut_ptr(), buffer.len(), ProtectionDomain(1), Access::empty()) };
        let key = key.unwrap();
        for length in [1, 7, 8, 64, 4096, 4097, 1 << 20] {
            let looked_at = pieces(&[(address, length)], key);
            let before = digest(&mut witness, &looked_at).unwrap();
            assert_eq!(digest(&mut witness, &looked_at), Some(before));
            for at in [0, length - 1] {
                buffer[at] ^= 1;
                assert_ne!(digest(&mut witness, &looked_at), Some(before), "{at} of {length}");
                buffer[at] ^= 1;
            }
            assert_eq!(digest(&mut witness, &looked_at), Some(before));
        }
        let two = pieces(&[(address, 10), (address + 20, 10)], key);
        let before = digest(&mut witness, &two);
        buffer[15] = 1;
        assert_eq!(digest(&mut witness, &two), before, "between the pieces");
        buffer[25] = 1;
        assert_ne!(digest(&mut witness, &two), before);
        assert_eq!(digest(&mut witness, &pieces(&[(address + (1 << 20) - 4, 8)], key)), None, "past the end");
        assert_eq!(digest(&mut witness, &pieces(&[(address, 8)], wire::Key::new(77))), None, "no such key");
        assert_eq!(witness.is_mapped(address, 1 << 20), Some(true));
        nic.deregister(key).unwrap();
        assert_eq!(digest(&mut witness, &pieces(&[(address, 8)], key)), None, "the key is gone");
    }

    #[test]
    fn looks_take_a_share_of_the_time_and_no_more() {
        let mut budget = Budget::default();
        assert!(budget.allows(1_000));
        budget.spend(BUDGET_NS - 1);
        assert!(budget.allows(1_000), "what may be spent at once");
        budget.spend(1 + BUDGET_SHARE);
        assert!(!budget.allows(1_000) && !budget.allows(1_000 + BUDGET_SHARE * (BUDGET_SHARE + ENOUGH_NS - 1)));
        assert!(budget.allows(1_000 + BUDGET_SHARE * (1 + BUDGET_SHARE + ENOUGH_NS)), "time has passed");
    }

    #[test]
    fn what_is_looked_at_of_a_long_piece_lies_inside_it_and_is_bounded() {
        for length in [4097, 5000, 65536, 1 << 20, u64::from(u32::MAX)] {
            let mut places = Vec::new();
            sample(1000, length, &mut places);
            let all: usize = places.iter().map(|(_, length)| length).sum();
            assert!((512..=4096).contains(&all), "{all} of {length}");
            assert!(places.iter().all(|&(at, part)| at >= 1000 && at + part as u64 <= 1000 + length));
            let (last, part) = places[places.len() - 1];
            assert_eq!(last + part as u64, 1000 + length);
        }
    }
}
