//! Memory regions: registering, changing and deregistering them (IBA 10.6). Any memory of the process will do; it is
//! looked at, not pinned, and stays the program's. Device memory is registered by the same rules from its own module.

use crate::books::{self, What};
use crate::error::Error;
use crate::gpu::{self, Reference, Source, references};
use crate::guard::Counted;
use crate::holding::{Change, Holding, MemoryPlace, RegionSpec, Translation};
use crate::mapped;
use crate::memory::Memory;
use crate::program_files::{self, ProgramPart};
use crate::replaced_pages;
use crate::slot::Reach;
use wire::access::{Access, ProtectionDomain, Range, Refusal, Subject};
use wire::{Key, refuse_if};

impl Memory {
    /// Registers memory of the process and returns its R_Key, by which its owner may name it as well.
    ///
    /// The whole range is brought in, for writing where any right to write is granted; what is not mapped, or not so,
    /// is an `EFAULT`. Regions on demand are not looked at; an access to a part that is not there is refused.
    ///
    /// # Errors
    /// See [`Error`]; nothing is registered then.
    ///
    /// # Safety
    /// Until the region is deregistered (or reregistered elsewhere) the range must stay mapped, unless it is
    /// `ON_DEMAND`, and must hold nothing that may not be read at any time, or with a right to write not be changed at
    /// any time, by others: no Rust reference to it may be relied on meanwhile, but `&[u8]` where no right to write is
    /// granted.
    pub unsafe fn register(&self, spec: &RegionSpec) -> Result<Key, Error> {
        let RegionSpec { translation, domain, access } = *spec;
        let mut holding = Holding::new(MemoryPlace::Program(translation), domain, access);
        self.validate(&mut holding)?;
        self.replace_pages(&mut holding);
        self.enroll(holding)
    }

    /// Registers nothing: a region over all addresses that reads as zeros and forgets what is written. Its key is an
    /// L_Key only, for parts of messages that the program does not want.
    ///
    /// # Errors
    /// [`Error::TooManyRegions`].
    pub fn register_null(&self, domain: ProtectionDomain) -> Result<Key, Error> {
        self.enroll(Holding::new(MemoryPlace::Nowhere, domain, Access::LOCAL_WRITE))
    }

    /// Changes a region; its key stays. Waits for the accesses under way on the old terms; accesses that come meanwhile
    /// are refused.
    ///
    /// # Errors
    /// See [`Error`]. The region is as it was then; in particular while windows are bound to it.
    ///
    /// # Safety
    /// As for [`register`](Memory::register), for what the region covers and grants afterwards.
    pub unsafe fn reregister(&self, key: Key, change: &Change) -> Result<(), Error> {
        refuse_if!(*change == Change::default(), Error::NothingToChange);
        self.change(key, |holding| holding.apply(key, change))
    }

    /// Gives a key of [`register_null`](Memory::register_null) memory: a peer may be told of the key before the memory
    /// is taken.
    ///
    /// # Errors
    /// See [`Error`]. The key leads nowhere then, as before.
    ///
    /// # Safety
    /// As for [`register`](Memory::register).
    pub unsafe fn fill(&self, key: Key, spec: &RegionSpec) -> Result<(), Error> {
        let RegionSpec { translation, domain, access } = *spec;
        self.change(key, |holding| match holding.place {
            MemoryPlace::Nowhere => {
                *holding = Holding::new(MemoryPlace::Program(translation), domain, access);
                Ok(())
            }
            _ => Err(Error::WrongKind { key }),
        })
    }

    fn change(&self, key: Key, change: impl FnOnce(&mut Holding) -> Result<(), Error>) -> Result<(), Error> {
        let (number, slot) = self.find(key).ok_or(Error::UnknownKey { key })?;
        let mut books = self.books();
        let mut holding = claim(&mut books, number, key, slot)?.holding.clone();
        drop(books);
        let result = change(&mut holding).and_then(|()| self.validate(&mut holding));
        if result.is_ok() {
            self.find_program_file(&mut holding);
            slot.close();
            self.publication.closed(key);
            self.drain(slot);
            let terms = holding.terms();
            let program_file = holding.program_part.as_ref().map(ProgramPart::part);
            slot.open(key, &terms);
            self.publication.opened(key, &terms, program_file);
        }
        let mut books = self.books();
        if let Some(region) = books.region(number) {
            region.changing = false;
            if result.is_ok() {
                holding.noted(true);
                std::mem::replace(&mut region.holding, holding).noted(false);
            }
        }
        result
    }

    /// Deregisters a region. When it returns, no access is under way and none will be: the memory is the program's
    /// alone.
    ///
    /// Waits for accesses under way, guards included. Of several threads that deregister one region, one succeeds.
    ///
    /// # Errors
    /// [`Error::WindowsBound`] while windows are bound to it; [`Error::ChangeUnderWay`] while another thread is at it.
    pub fn deregister(&self, key: Key) -> Result<(), Error> {
        let (number, slot) = self.find(key).ok_or(Error::UnknownKey { key })?;
        let mut books = self.books();
        claim(&mut books, number, key, slot)?;
        slot.close();
        drop(books);
        self.publication.closed(key);
        self.drain(slot);
        slot.free();
        let mut books = self.books();
        let given = books.give(number);
        if let What::Region(region) = &given {
            // Under the lock, as `taken`: device memory counts its regions by plain loads and stores.
            region.holding.released();
        }
        drop(books);
        Ok(())
    }

    /// Makes memory that peers may reach such that they can map it, if the program asked for that or has done so itself.
    fn replace_pages(&self, holding: &mut Holding) {
        let right = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let special = Access::ON_DEMAND | Access::HUGETLB;
        if let MemoryPlace::Program(Translation { address, length, .. }) = holding.place
            && !holding.access.intersection(right).is_empty()
            && holding.access.intersection(special).is_empty()
        {
            let is_taken = || self.books().has_region_in(address.addr(), length);
            holding.pages = replaced_pages::hold(address.addr(), length, is_taken);
        }
        self.find_program_file(holding);
    }

    /// Finds the file that the program has mapped it from, if peers may map that as well.
    fn find_program_file(&self, holding: &mut Holding) {
        let right = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let special = Access::ON_DEMAND | Access::HUGETLB;
        holding.program_part = None;
        if let MemoryPlace::Program(Translation { address, length, .. }) = holding.place
            && self.publication.is_on()
            && holding.pages.is_empty()
            && !holding.access.intersection(right).is_empty()
            && holding.access.intersection(special).is_empty()
        {
            holding.program_part = program_files::find(address.addr(), length);
        }
    }

    /// Enters a valid region into table and books.
    pub(crate) fn enroll(&self, holding: Holding) -> Result<Key, Error> {
        let terms = holding.terms();
        let program_file = holding.program_part.as_ref().map(ProgramPart::part);
        let limit = self.limits.regions;
        let mut books = self.books();
        refuse_if!(books.regions >= limit || books.full(), Error::TooManyRegions { limit });
        holding.taken()?;
        let what = What::Region(books::Region { holding, windows: 0, changing: false });
        let (number, key) = books.take(&self.keys, what).ok_or(Error::TooManyRegions { limit })?;
        // A number the books gave out has its place in the table.
        let slot = self.table.make(number).ok_or(Error::TooManyRegions { limit })?;
        slot.open(key, &terms);
        self.publication.opened(key, &terms, program_file);
        Ok(key)
    }

    /// Whether there is such memory and these rights go together. Finds out whose memory it is.
    pub(crate) fn validate(&self, holding: &mut Holding) -> Result<(), Error> {
        let Holding { place, access, .. } = holding;
        refuse_if!(access.peers_write() && !access.contains(Access::LOCAL_WRITE), Error::LocalWriteMissing);
        let unknown = access.difference(Access::all());
        refuse_if!(!unknown.is_empty(), Error::Rights { bits: unknown.bits() });
        let (MemoryPlace::Program(translation) | MemoryPlace::Gpu(translation, _)) = *place else {
            let of_pages = access.intersection(Access::ON_DEMAND | Access::HUGETLB);
            return match access.contains(Access::ZERO_BASED) {
                true if of_pages.is_empty() => Ok(()),
                true => Err(Error::Rights { bits: of_pages.bits() }),
                false => Err(Error::ZeroBasedMissing),
            };
        };
        if access.contains(Access::ON_DEMAND) && translation.is_everything() {
            return Ok(());
        }
        let (address, length) = (translation.address.addr() as u64, translation.length as u64);
        // As the kernel counts pages: no bytes in the middle of a page are on it, none at its start are on no page.
        refuse_if!(length == 0 && mapped::is_page_boundary(translation.address.addr()), Error::Empty);
        refuse_if!(length > self.limits.region_length, Error::TooLong { length, limit: self.limits.region_length });
        // The last byte must have an address, in memory and as keys see it.
        for address in [address, translation.iova.unwrap_or(address)] {
            address.checked_add(length.saturating_sub(1)).ok_or(Error::AddressOverflow { address, length })?;
        }
        let on_demand = access.contains(Access::ON_DEMAND);
        let writes = access.writes();
        holding.place = MemoryPlace::Program(translation);
        // A program that has no GPU memory is spared the question.
        let in_process = match on_demand {
            true => Ok(()),
            false if gpu::is_known() => Err(Error::NotMapped { address }),
            false => mapped::check(translation.address.addr(), translation.length, writes),
        };
        if (in_process.is_err() || on_demand)
            && let Some(found) = gpu::find(address, length)?
        {
            holding.place = MemoryPlace::Gpu(translation, found.device);
            return Ok(());
        }
        match in_process {
            Err(_) if gpu::is_known() => mapped::check(translation.address.addr(), translation.length, writes),
            checked => checked,
        }
    }
}

/// Marks a region as being changed, once it is certain that the slot is still the key's: only the holder of the books'
/// lock gives it away.
fn claim<'b>(
    books: &'b mut books::Books,
    number: u32,
    key: Key,
    slot: &crate::slot::Slot,
) -> Result<&'b mut books::Region, Error> {
    refuse_if!(slot.key() != key, Error::UnknownKey { key });
    books.claim_region(number, key)
}

impl Memory {
    /// What names a range of GPU memory in other processes of the user, if it is that and can be named.
    #[must_use]
    pub fn refer(&self, subject: Subject, range: Range, access: Access) -> Option<Reference> {
        let terms = self.slot(range.key)?.look(range.key, &self.bell).ok()?;
        let Reach::Gpu(device) = terms.reach else { return None };
        let first = terms.admit(subject, range, access).ok()?;
        references::refer(first.addr() as u64, range.length, device)
    }

    /// Whether ranges of a region can be named so.
    #[must_use]
    pub fn can_refer(&self, key: Key) -> bool {
        let terms = self.slot(key).and_then(|slot| slot.look(key, &self.bell).ok());
        terms.is_some_and(|terms| match terms.reach {
            Reach::Gpu(device) => references::can_refer(terms.base.addr() as u64, device),
            _ => false,
        })
    }

    /// Copies bytes that another process named: those for which `bytes`, a part of the [`shadow`](gpu::shadow), stands.
    /// Slices that are none are written as ever.
    ///
    /// # Errors
    /// As for [`write`](Memory::write).
    #[cold]
    pub fn write_named(
        &self,
        subject: Subject,
        key: Key,
        address: u64,
        bytes: &[u8],
        source: &Source,
    ) -> Result<(), Refusal> {
        let Some(offset) = references::offset_in_shadow(bytes) else {
            return self.write(subject, key, address, bytes);
        };
        let access = if subject.remote { Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let range = Range { key, address, length: bytes.len() as u64 };
        let Some(entry) = self.enter(subject, range, access, Counted::AtGate)? else { return Ok(()) };
        entry.store_named(source, offset).map_err(|cause| Refusal { range, access, cause })
    }
}
