//! Shares: which slots and blocks of ports a user may have. Names are taken by the first process that binds them, so
//! without a limit one user could take them all, and a name that has become free could be taken by another user to get
//! what is still under way for the former owner.
//!
//! A user may have one slot in eight and one block of ports in four, which ones its number decides. Who takes a name
//! keeps to that, and who relies on a name does not believe another owner. A squatter can still *bind* any name, so a
//! process that finds its whole share bound by others who may not have it binds another name for the same slot
//! ([`Name::Other`](crate::names::Name::Other)), which a process that looks for the slot finds as well; and it takes
//! ports one by one instead of in blocks.
//!
//! Two users share 64 slots of the 512 that each may have. A user who can act as many users (see subuid(5)) has their
//! shares, too.

use crate::slot::Slot;
use std::fs;
use std::sync::OnceLock;
use wire::cm::PortSpace;

/// One slot in so many.
const SLOT_DIVISOR: u32 = 8;

/// One block in so many.
const BLOCK_DIVISOR: u32 = 4;

/// Whether a user may have a slot.
pub fn may_have_slot(uid: u32, slot: Slot) -> bool {
    mix(everywhere(uid), u32::from(slot.number())).is_multiple_of(SLOT_DIVISOR)
}

/// Whether a user may have a block of ports.
pub fn may_have_block(uid: u32, space: PortSpace, block: u16) -> bool {
    mix(everywhere(uid), (space as u32) << 16 | u32::from(block)).is_multiple_of(BLOCK_DIVISOR)
}

/// A number that looks like chance, but is the same for all processes.
fn mix(uid: u32, name: u32) -> u32 {
    // The finishing steps of a well-known hash (splitmix64).
    let mut value = (u64::from(uid) << 32 | u64::from(name)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (value ^ (value >> 31)) as u32
}

/// The number that a user of this namespace of users has outside it. Processes in a container that shares the host's
/// network see other numbers than the host does, and both must agree on the shares.
fn everywhere(uid: u32) -> u32 {
    static MAP: OnceLock<Vec<[u32; 3]>> = OnceLock::new();
    let map = MAP.get_or_init(|| read_map(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default()));
    outside(map, uid)
}

/// The lines of a map: the first number inside, the first outside, how many.
fn read_map(text: &str) -> Vec<[u32; 3]> {
    let line = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map_while(|number| number.parse().ok());
        Some([numbers.next()?, numbers.next()?, numbers.next()?])
    };
    text.lines().filter_map(line).collect()
}

fn outside(map: &[[u32; 3]], uid: u32) -> u32 {
    let place = |[inside, outside, count]: &[u32; 3]| {
        let offset = uid.checked_sub(*inside)?;
        (offset < *count).then(|| outside.wrapping_add(offset))
    };
    map.iter().find_map(place).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_their_share_and_little_of_others() {
        let share = |uid| -> Vec<Slot> {
            (1..=Slot::COUNT).filter_map(Slot::new).filter(|slot| may_have_slot(uid, *slot)).collect()
        };
        for uid in [0, 1, 1000, 1001, 65_534, 100_000] {
            let (own, next) = (share(uid), share(uid + 1));
            assert!((430..600).contains(&own.len()), "{uid}: {}", own.len());
            let common = own.iter().filter(|slot| next.contains(slot)).count();
            assert!(common < 110, "{uid}: {common} of {}", own.len());
            let blocks = (512..=952).filter(|block| may_have_block(uid, PortSpace::Tcp, *block)).count();
            assert!((80..145).contains(&blocks), "{uid}: {blocks}");
        }
    }

    #[test]
    fn a_user_in_a_container_has_the_share_of_its_number_outside() {
        let map = read_map("0 1000 1\n1 100000 65536\nnonsense\n5 5\n");
        assert_eq!(map.len(), 2);
        assert_eq!([0, 1, 65_536, 65_537].map(|uid| outside(&map, uid)), [1000, 100_000, 165_535, 65_537]);
        assert_eq!(outside(&read_map("0 0 4294967295"), 42), 42);
    }
}
