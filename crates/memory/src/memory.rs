//! The registered memory of a process, and access to it by L_Key and R_Key: a key that is unknown, or does not grant
//! the access, is a `Refusal`. Finding a key's slot, entering it and checking its terms costs the same however many
//! regions there are, and takes no lock. How regions, windows and device memory come and go is in the modules of those
//! names.

use latch::{Apart, Mutex, Rank, STRIPE_COUNT};

use crate::books::{Books, RegionFacts};
use crate::copy;
use crate::current_access::CurrentAccess;
use crate::gate::Bell;
use crate::guard::{Counted, Guard, RangeAccess};
use crate::keys::{KeyLayout, Keys, SLOT_COUNT};
use crate::published::{Publication, Publisher};
use crate::slot::Slot;
use crate::table::Table;
use wire::access::{Access, Atomic, Range, Refusal, RefusalCause, Subject};
use wire::{Key, refuse_if};

/// All registered memory of one process.
///
/// Any number of threads may use it at once. An access (`check`, `read`, `write`, `atomic`, `flush`, `lend`) never
/// waits for another; taking memory away (`deregister`, `reregister`, `bind`, `invalidate`, `free_window`) waits for
/// the accesses to it that are under way.
///
/// After a `fork` the child must not use its parent's: another thread may have been in the middle of something, and is
/// not there to finish.
#[derive(Debug)]
pub struct Memory {
    pub(crate) keys: Keys,
    pub(crate) table: Table,
    pub(crate) bell: Bell,
    /// What the threads of each stripe are in the middle of.
    current: [Apart<CurrentAccess>; STRIPE_COUNT],
    pub(crate) limits: Limits,
    pub(crate) publication: Publication,
    books: Mutex<Books>,
}

/// How much may be registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Regions at a time.
    pub regions: u32,
    /// Windows at a time.
    pub windows: u32,
    /// The length of a region, but for the one over everything.
    pub region_length: u64,
    /// Bytes of device memory in all.
    pub device_memory: u64,
    /// What keys look like.
    pub keys: KeyLayout,
}

impl Limits {
    /// Regions and windows share so many places.
    pub const PLACES: u32 = SLOT_COUNT;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            regions: SLOT_COUNT / 2,
            windows: SLOT_COUNT / 2,
            region_length: 1 << 47,
            device_memory: 16 << 20,
            keys: KeyLayout::Random,
        }
    }
}

/// How much is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Regions.
    pub regions: u32,
    /// Windows, bound or not.
    pub windows: u32,
    /// Bytes of device memory.
    pub device_memory: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl Memory {
    /// No memory yet, with the usual limits.
    #[must_use]
    pub fn new() -> Memory {
        Memory::with_limits(Limits::default())
    }

    /// No memory yet. Regions and windows together never exceed [`Limits::PLACES`].
    #[must_use]
    pub fn with_limits(limits: Limits) -> Memory {
        Memory {
            keys: Keys::new(limits.keys),
            table: Table::new(),
            bell: Bell::new(),
            current: std::array::from_fn(|_| Apart(CurrentAccess::new())),
            limits,
            publication: Publication::default(),
            books: Mutex::new(Rank::MemoryBooks, Books::default()),
        }
    }

    /// Tells `publisher` of the regions that are registered from now on. There can be one.
    pub fn publish_to(&self, publisher: Box<dyn Publisher>) {
        self.publication.begin(publisher);
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// How much is registered now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let books = self.books();
        Usage { regions: books.regions, windows: books.windows, device_memory: books.device_used }
    }

    /// The regions there are: for those who ask what a process has.
    #[must_use]
    pub fn regions(&self) -> Vec<RegionFacts> {
        self.books().facts(&self.keys)
    }

    /// The region of that key.
    #[must_use]
    pub fn region(&self, key: Key) -> Option<RegionFacts> {
        let (number, _) = self.find(key)?;
        self.books().region(number).map(|region| region.facts(key)).filter(|_| self.find(key).is_some())
    }

    /// Would this access succeed now? Changes nothing, not even a counter. An empty range needs no key at all (IBA
    /// 9.7.4.1.5).
    #[inline]
    pub fn check(&self, subject: Subject, range: Range, access: Access) -> Result<(), Refusal> {
        if range.length == 0 {
            return Ok(());
        }
        let refuse = |cause| Refusal { range, access, cause };
        let slot = self.slot(range.key).ok_or(refuse(RefusalCause::UnknownKey))?;
        let terms = slot.look(range.key, &self.bell).map_err(refuse)?;
        terms.admit(subject, range, access).map(drop).map_err(refuse)
    }

    /// Copies bytes out. Eight aligned bytes are read whole.
    #[inline]
    pub fn read(&self, subject: Subject, key: Key, address: u64, out: &mut [u8]) -> Result<(), Refusal> {
        let access = if subject.remote { Access::REMOTE_READ } else { Access::empty() };
        let range = Range { key, address, length: out.len() as u64 };
        if let Some(first) = self.plain(subject, range, access) {
            // SAFETY: as in `Entry::load`. The region stays as long as this thread is alone, which it is.
            unsafe { copy::load(out, first) };
            return Ok(());
        }
        let Some(entry) = self.enter(subject, range, access, self.counted())? else { return Ok(()) };
        entry.load(out).map_err(|cause| Refusal { range, access, cause })
    }

    /// Copies bytes in, ascending; the last up to eight of them are stored last, with release: a thread that sees them
    /// sees all.
    #[inline]
    pub fn write(&self, subject: Subject, key: Key, address: u64, bytes: &[u8]) -> Result<(), Refusal> {
        let access = if subject.remote { Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let range = Range { key, address, length: bytes.len() as u64 };
        if let Some(first) = self.plain(subject, range, access) {
            // SAFETY: as in `Entry::store`. The region stays as long as this thread is alone, which it is.
            unsafe { copy::store(first, bytes) };
            return Ok(());
        }
        let Some(entry) = self.enter(subject, range, access, self.counted())? else { return Ok(()) };
        entry.store(bytes).map_err(|cause| Refusal { range, access, cause })
    }

    /// Runs an atomic operation on eight aligned bytes, as one instruction of the processor, and returns what was there
    /// as a native integer.
    pub fn atomic(&self, subject: Subject, key: Key, address: u64, operation: Atomic) -> Result<u64, Refusal> {
        let access = operation.access();
        let range = Range { key, address, length: 8 };
        let refuse = |cause| Refusal { range, access, cause };
        let entry = self.enter(subject, range, access, self.counted())?.ok_or(refuse(RefusalCause::WrongKind))?;
        refuse_if!(!address.is_multiple_of(8), refuse(RefusalCause::Misaligned));
        entry.atomic(operation).map_err(refuse)
    }

    /// Makes earlier writes to the range visible (`FLUSH_GLOBAL`) or persistent (`FLUSH_PERSISTENT`), as `access` says.
    /// An empty range is nothing to flush; a caller that means a whole region names its bounds.
    pub fn flush(&self, subject: Subject, range: Range, access: Access) -> Result<(), Refusal> {
        let Some(entry) = self.enter(subject, range, access, self.counted())? else { return Ok(()) };
        entry.flush(access.contains(Access::FLUSH_PERSISTENT)).map_err(|cause| Refusal { range, access, cause })
    }

    /// Lends the bytes themselves, for a system call that gathers or scatters. The memory stays registered until the
    /// guard is dropped: deregistration waits for it. Do not hold a guard while deregistering what it lends, or while
    /// waiting for a lock whose holder does. A null region has no bytes to lend, and one of GPU memory none that a
    /// system call reaches.
    pub fn lend(&self, subject: Subject, range: Range, access: Access) -> Result<Guard<'_>, Refusal> {
        let entry = self.enter(subject, range, access, Counted::AtGate)?;
        if entry.as_ref().is_some_and(|entry| !entry.is_lendable()) {
            return Err(Refusal { range, access, cause: RefusalCause::WrongKind });
        }
        Ok(Guard::new(entry))
    }

    /// As [`lend`](Memory::lend), for a caller that drops the guard before its thread does anything else with memory, or
    /// takes another lock of the NIC's books.
    #[inline]
    pub fn lend_briefly(&self, subject: Subject, range: Range, access: Access) -> Result<Guard<'_>, Refusal> {
        let entry = self.enter(subject, range, access, self.counted())?;
        if entry.as_ref().is_some_and(|entry| !entry.is_lendable()) {
            return Err(Refusal { range, access, cause: RefusalCause::WrongKind });
        }
        Ok(Guard::new(entry))
    }

    /// How an access is counted that is over before this thread does anything else.
    #[inline]
    pub(crate) fn counted(&self) -> Counted<'_> {
        match latch::is_alone() {
            true => Counted::Not,
            false => Counted::AtThread(&self.current[latch::stripe()].0),
        }
    }

    /// Waits at a closed slot until no access to it is under way.
    pub(crate) fn drain(&self, slot: &Slot) {
        slot.drain(&self.bell);
        CurrentAccess::wait_until_over(self.current.iter().map(|current| &current.0), slot.key().value());
    }

    /// Enters the slot of a key for as long as the entry lives; `None` for an empty range.
    #[inline]
    pub(crate) fn enter<'m>(
        &'m self,
        subject: Subject,
        range: Range,
        access: Access,
        counted: Counted<'m>,
    ) -> Result<Option<RangeAccess<'m>>, Refusal> {
        if range.length == 0 {
            return Ok(None);
        }
        let refuse = |cause| Refusal { range, access, cause };
        let slot = self.slot(range.key).ok_or(refuse(RefusalCause::UnknownKey))?;
        RangeAccess::new(slot, &self.bell, subject, range, access, counted).map(Some).map_err(refuse)
    }

    /// The first byte of a range of a plain region, in a thread that has the right to all locks, if all is well. A
    /// caller that gets `None` enters.
    #[inline]
    fn plain(&self, subject: Subject, range: Range, access: Access) -> Option<*mut u8> {
        if range.length == 0 || !latch::is_alone() {
            return None;
        }
        let slot = self.slot(range.key)?;
        slot.pass_gate(range.key).ok()?;
        slot.admit_plain(subject, range, access)
    }

    #[inline]
    pub(crate) fn slot(&self, key: Key) -> Option<&Slot> {
        self.table.get(self.keys.slot(key))
    }

    /// The slot of a key that is in use, by its number.
    pub(crate) fn find(&self, key: Key) -> Option<(u32, &Slot)> {
        let number = self.keys.slot(key);
        let slot = self.table.get(number)?;
        (slot.key() == key && key.value() != 0).then_some((number, slot))
    }

    pub(crate) fn books(&self) -> latch::Guard<'_, Books> {
        // Nothing panics while it holds the lock; if it did, the books would still be whole between two of its steps.
        self.books.lock()
    }
}
