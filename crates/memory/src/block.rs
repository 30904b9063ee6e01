//! The bytes of device memory: where they are from, and how many regions cover them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;
use crate::mapping::Mapping;
use crate::slot::within;
use wire::refuse_if;

/// A piece of device memory, by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceMemory(pub u32);

/// The bytes of a piece of device memory. A copy under way keeps them when they are freed.
#[derive(Debug)]
pub(crate) struct Block {
    first: *mut u8,
    layout: Layout,
    backing: Backing,
    /// Regions over it, or `FREED_MARK`. Changed only under the books' lock.
    regions: AtomicU32,
}

/// Where the bytes are from.
#[derive(Debug)]
enum Backing {
    /// A file of its own, mapped.
    File(Mapping),
    Heap,
}

const FREED_MARK: u32 = u32::MAX;

// SAFETY: the block owns its bytes and gives out addresses only; the code that uses one says why it may.
unsafe impl Send for Block {}
// SAFETY: as above; the counter is atomic.
unsafe impl Sync for Block {}

impl Block {
    pub(crate) fn new(length: usize, log_alignment: u32) -> Result<Block, Error> {
        let layout = Layout::from_size_align(length, 1 << log_alignment.max(6)).map_err(|_| Error::OutOfMemory)?;
        let regions = AtomicU32::new(0);
        // Miri has no such files.
        if !cfg!(miri)
            && let Ok(mapping) = Mapping::of_new_file(length, layout.align())
        {
            return Ok(Block { first: mapping.first(), layout, backing: Backing::File(mapping), regions });
        }
        // SAFETY: the length is not zero.
        let first = unsafe { alloc_zeroed(layout) };
        refuse_if!(first.is_null(), Error::OutOfMemory);
        Ok(Block { first, layout, backing: Backing::Heap, regions })
    }

    /// The byte at `offset`, which is at most the length.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.first.wrapping_add(offset)
    }

    pub(crate) fn length(&self) -> u64 {
        self.layout.size() as u64
    }

    /// A descriptor of its file.
    pub(crate) fn export(&self) -> Result<OwnedFd, Error> {
        match &self.backing {
            Backing::File(mapping) => mapping.file().and_then(|file| file.try_clone_to_owned().ok()),
            Backing::Heap => None,
        }
        .ok_or(Error::NotExportable)
    }

    /// A range as an offset of its first byte, if the block has it.
    pub(crate) fn offset(&self, offset: u64, length: usize) -> Result<usize, Error> {
        let (length, size) = (length as u64, self.length());
        match within(0, size, offset, length) {
            Some(offset) => Ok(offset as usize),
            None => Err(Error::DeviceMemoryBounds { offset, length, size }),
        }
    }

    /// Counts a region, unless the memory was freed since it was looked up.
    pub(crate) fn take(&self) -> Result<(), Error> {
        match self.regions.load(Ordering::Relaxed) {
            FREED_MARK => Err(Error::UnknownDeviceMemory),
            regions => {
                self.regions.store(regions + 1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Counts a region out.
    pub(crate) fn release(&self) {
        self.regions.store(self.regions.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// Lets no region cover it any more, unless one does.
    pub(crate) fn free(&self) -> Result<(), Error> {
        match self.regions.load(Ordering::Relaxed) {
            0 => {
                self.regions.store(FREED_MARK, Ordering::Relaxed);
                Ok(())
            }
            regions => Err(Error::DeviceMemoryInUse { regions }),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Backing::Heap = self.backing {
            // SAFETY: allocated in `new` with this layout, and freed once.
            unsafe { dealloc(self.first, self.layout) };
        }
    }
}
