//! Where a polling thread wants what its peer writes next: the bytes go there straight from the ring, and not to the
//! registered memory that the peer has written to.

use wire::Key;
use wire::access::Range;

/// Room that stands for a part of registered memory, for one poll. Only bytes that follow each other from its
/// beginning on land here.
#[derive(Debug)]
pub struct Landing<'a> {
    key: Key,
    address: u64,
    room: &'a mut [u8],
    filled: usize,
}

/// What takes bytes in place of registered memory.
pub(crate) trait Land {
    /// Takes what was to be written to a range, which the peer may write to. False if it does not belong here.
    fn take(&mut self, range: Range, bytes: &[u8]) -> bool;
}

impl<'a> Landing<'a> {
    /// For the memory of this key from an address on.
    pub fn new(key: Key, address: u64, room: &'a mut [u8]) -> Landing<'a> {
        Landing { key, address, room, filled: 0 }
    }

    /// How many bytes have landed.
    pub fn filled(&self) -> usize {
        self.filled
    }
}

impl Land for Landing<'_> {
    #[inline]
    fn take(&mut self, range: Range, bytes: &[u8]) -> bool {
        if range.key != self.key || range.address.wrapping_sub(self.address) != self.filled as u64 {
            return false;
        }
        let Some(place) = self.room.get_mut(self.filled..).and_then(|left| left.get_mut(..bytes.len())) else {
            return false;
        };
        place.copy_from_slice(bytes);
        self.filled += bytes.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_follows_lands() {
        let mut room = [0; 8];
        let key = Key::new(0x700);
        let at = |key, address, length| Range { key, address, length };
        let mut landing = Landing::new(key, 100, &mut room);
        assert!(!landing.take(at(key, 101, 2), &[9, 9]), "a gap");
        assert!(!landing.take(at(Key::new(0x800), 100, 2), &[9, 9]), "other memory");
        assert!(!landing.take(at(key, 99, 2), &[9, 9]) && !landing.take(at(key, u64::MAX, 2), &[9, 9]));
        assert!(landing.take(at(key, 100, 3), &[1, 2, 3]) && landing.take(at(key, 103, 2), &[4, 5]));
        assert!(!landing.take(at(key, 100, 3), &[9, 9, 9]), "it is there already");
        assert!(!landing.take(at(key, 105, 4), &[9, 9, 9, 9]), "there is no room");
        assert!(landing.take(at(key, 105, 3), &[6, 7, 8]));
        assert_eq!((landing.filled(), room), (8, [1, 2, 3, 4, 5, 6, 7, 8]));
    }
}
