//! The table of slots: fixed places that never move, so that a reader needs no lock to find one, allocated a page of
//! slots at a time as they are first used and freed with the whole.

use std::sync::OnceLock;

use crate::keys::SLOT_COUNT;
use crate::slot::Slot;

const SLOTS_PER_PAGE: u32 = 512;

/// All slots of one process.
#[derive(Debug)]
pub(crate) struct Table {
    pages: Box<[OnceLock<Box<[Slot]>>]>,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { pages: (0..SLOT_COUNT / SLOTS_PER_PAGE).map(|_| OnceLock::new()).collect() }
    }

    /// The slot, if its page was ever used.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&Slot> {
        self.pages.get((slot / SLOTS_PER_PAGE) as usize)?.get()?.get((slot % SLOTS_PER_PAGE) as usize)
    }

    /// The slot, whose page is allocated if need be; `None` past the end of the table.
    pub(crate) fn make(&self, slot: u32) -> Option<&Slot> {
        let page = self.pages.get((slot / SLOTS_PER_PAGE) as usize)?;
        page.get_or_init(|| (0..SLOTS_PER_PAGE).map(|_| Slot::new()).collect()).get((slot % SLOTS_PER_PAGE) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_stays_where_it_is() {
        let table = Table::new();
        assert!(table.get(700).is_none());
        let place: *const Slot = table.make(700).unwrap();
        assert!(std::ptr::eq(table.get(700).unwrap(), place));
        assert!(table.get(512).is_some(), "a page comes whole");
        assert!(table.get(0).is_none());
        assert!(table.make(SLOT_COUNT - 1).is_some());
        assert!(table.make(SLOT_COUNT).is_none() && table.get(u32::MAX).is_none());
    }

    #[test]
    fn a_slot_fills_a_cache_line() {
        assert_eq!((size_of::<Slot>(), align_of::<Slot>()), (64, 64));
    }
}
