//! What the owner of the table knows about each slot and no access needs: what it is, what hangs on it, whether it is
//! being changed. Kept under one lock that no access takes and that is never held while waiting for one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::block::{Block, DeviceMemory};
use crate::error::Error;
use crate::holding::{Holding, MemoryPlace};
use crate::keys::{Keys, SLOT_COUNT};
use wire::access::{Access, ProtectionDomain};
use wire::{Key, Qpn};

/// All books of one process.
#[derive(Debug, Default)]
pub(crate) struct Books {
    records: Vec<Record>,
    /// Free slots, the longest free first.
    free: VecDeque<u32>,
    pub(crate) regions: u32,
    pub(crate) windows: u32,
    /// Windows of type 2 that are bound, so that the end of a queue pair is cheap where there are none.
    pub(crate) bound_type2: u32,
    pub(crate) device: HashMap<DeviceMemory, Arc<Block>>,
    pub(crate) device_used: u64,
    pub(crate) device_next: u32,
}

/// One slot.
#[derive(Debug)]
struct Record {
    /// Counts its owners, for the key of the next.
    life: u32,
    what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Free,
    Region(Region),
    Window(Window),
}

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) holding: Holding,
    /// Windows bound to it.
    pub(crate) windows: u32,
    /// A thread is changing or freeing it and does not hold the lock.
    pub(crate) changing: bool,
}

impl Region {
    /// What others see of it; its key is this.
    pub(crate) fn facts(&self, key: Key) -> RegionFacts {
        let Holding { place, domain, access, .. } = &self.holding;
        let (address, length) = self.holding.extent();
        RegionFacts { key, domain: *domain, address, length, place: place.first() as u64, access: *access }
    }
}

/// The type of a window, with the specification's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowType {
    /// Bound and bound again at will, with another key each time.
    Type1,
    /// Bound when free, and freed by invalidating it.
    Type2,
}

#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) kind: WindowType,
    pub(crate) domain: ProtectionDomain,
    /// The slot of the region it is bound to.
    pub(crate) region: Option<u32>,
    /// Type 2, bound: for which queue pair.
    pub(crate) qpn: Qpn,
    /// As for a region.
    pub(crate) changing: bool,
}

/// Slots are not used again while fewer than this many are free, so that an old key stays invalid for as long as
/// possible.
const MIN_FREE_SLOTS: usize = 1024;

impl Books {
    /// The regions there are.
    pub(crate) fn facts(&self, keys: &Keys) -> Vec<RegionFacts> {
        let fact = |(slot, record): (usize, &Record)| match &record.what {
            What::Region(region) => Some(region.facts(keys.region_key(slot as u32, record.life)?)),
            _ => None,
        };
        self.records.iter().enumerate().filter_map(fact).collect()
    }

    /// Whether a region of the program's memory has a part of this range.
    pub(crate) fn has_region_in(&self, address: usize, length: usize) -> bool {
        self.records.iter().any(|record| match &record.what {
            What::Region(Region { holding: Holding { place: MemoryPlace::Program(place), .. }, .. }) => {
                let start = place.address.addr();
                start < address.saturating_add(length) && address < start.saturating_add(place.length)
            }
            _ => false,
        })
    }

    /// Whether no slot is left.
    pub(crate) fn full(&self) -> bool {
        self.free.is_empty() && self.records.len() as u32 >= SLOT_COUNT
    }

    /// A slot for a new owner, and its key.
    pub(crate) fn take(&mut self, keys: &Keys, what: What) -> Option<(u32, Key)> {
        let fresh = self.records.len() as u32;
        let slot = match self.free.len() {
            free if free < MIN_FREE_SLOTS && fresh < SLOT_COUNT => {
                self.records.push(Record { life: keys.first_life(fresh), what: What::Free });
                fresh
            }
            _ => self.free.pop_front()?,
        };
        let record = self.records.get_mut(slot as usize)?;
        let key = loop {
            // Of consecutive lives few are skipped, and never all.
            let key = match what {
                What::Region(_) => keys.region_key(slot, record.life),
                _ => keys.key(slot, record.life),
            };
            if let Some(key) = key {
                break key;
            }
            record.life = record.life.wrapping_add(1);
        };
        match what {
            What::Region(_) => self.regions += 1,
            What::Window(_) => self.windows += 1,
            What::Free => {}
        }
        record.what = what;
        Some((slot, key))
    }

    /// Gives a slot back.
    pub(crate) fn give(&mut self, slot: u32) -> What {
        let Some(record) = self.records.get_mut(slot as usize) else { return What::Free };
        let what = std::mem::replace(&mut record.what, What::Free);
        match what {
            What::Region(_) => self.regions -= 1,
            What::Window(_) => self.windows -= 1,
            What::Free => return What::Free,
        }
        record.life = record.life.wrapping_add(1);
        self.free.push_back(slot);
        what
    }

    pub(crate) fn what(&mut self, slot: u32) -> Option<&mut What> {
        self.records.get_mut(slot as usize).map(|record| &mut record.what)
    }

    pub(crate) fn region(&mut self, slot: u32) -> Option<&mut Region> {
        match self.what(slot) {
            Some(What::Region(region)) => Some(region),
            _ => None,
        }
    }

    pub(crate) fn window(&mut self, slot: u32) -> Option<&mut Window> {
        match self.what(slot) {
            Some(What::Window(window)) => Some(window),
            _ => None,
        }
    }

    /// The region, if it may be changed or freed now; marked as being changed.
    pub(crate) fn claim_region(&mut self, slot: u32, key: Key) -> Result<&mut Region, Error> {
        match self.what(slot) {
            Some(What::Region(region)) if region.changing => Err(Error::ChangeUnderWay { key }),
            Some(What::Region(region)) if region.windows > 0 => {
                Err(Error::WindowsBound { key, windows: region.windows })
            }
            Some(What::Region(region)) => {
                region.changing = true;
                Ok(region)
            }
            Some(What::Window(_)) => Err(Error::WrongKind { key }),
            _ => Err(Error::UnknownKey { key }),
        }
    }

    /// A window was bound to a region, or is no more.
    pub(crate) fn count_window(&mut self, region: u32, change: i32) {
        if let Some(region) = self.region(region) {
            region.windows = region.windows.saturating_add_signed(change);
        }
    }

    /// The windows of type 2 that a queue pair bound and no thread is changing.
    pub(crate) fn windows_of(&self, qpn: Qpn) -> Vec<u32> {
        let bound = |record: &Record| match &record.what {
            What::Window(window) => window.region.is_some() && window.kind == WindowType::Type2 && window.qpn == qpn,
            _ => false,
        };
        if self.bound_type2 == 0 {
            return Vec::new();
        }
        (0u32..).zip(&self.records).filter(|(_, record)| bound(record)).map(|(slot, _)| slot).collect()
    }
}

/// A region, as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionFacts {
    /// Its R_Key.
    pub key: Key,
    /// The protection domain.
    pub domain: ProtectionDomain,
    /// The address by which keys reach it.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Where its first byte lies in the process; 0 where it has none.
    pub place: u64,
    /// The rights granted.
    pub access: Access,
}
