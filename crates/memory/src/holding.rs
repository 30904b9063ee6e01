//! What a region is made of: what a program asks to have registered or changed, and what the books keep of it.

use std::sync::Arc;

use crate::block::Block;
use crate::error::Error;
use crate::gpu;
use crate::program_files::ProgramPart;
use crate::replaced_pages::ReplacedPages;
use crate::slot::{DeviceNumber, Kind, Reach, Terms};
use wire::access::{Access, ProtectionDomain};
use wire::{Key, Qpn};

/// What to register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionSpec {
    /// Where it lies and how it is addressed.
    pub translation: Translation,
    /// The protection domain.
    pub domain: ProtectionDomain,
    /// The rights it grants. With `ZERO_BASED` addresses count from 0.
    pub access: Access,
}

/// Where a region lies and how it is addressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// The first byte.
    pub address: *mut u8,
    /// How many bytes. With `ON_DEMAND`, `usize::MAX` bytes from address 0 are all memory the process has or will have.
    pub length: usize,
    /// The address keys see, if not the memory's own.
    pub iova: Option<u64>,
}

impl Translation {
    /// Memory at its own address.
    #[must_use]
    pub const fn new(address: *mut u8, length: usize) -> Translation {
        Translation { address, length, iova: None }
    }
}

/// What to change about a region; `None` stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Other memory.
    pub translation: Option<Translation>,
    /// Another protection domain.
    pub domain: Option<ProtectionDomain>,
    /// Other rights.
    pub access: Option<Access>,
}

/// What a region is made of, as the books keep it.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) place: MemoryPlace,
    pub(crate) domain: ProtectionDomain,
    pub(crate) access: Access,
    /// Pages that were replaced for it.
    pub(crate) pages: Vec<Arc<ReplacedPages>>,
    /// The file that the program has mapped it from, if peers may map that as well.
    pub(crate) program_part: Option<ProgramPart>,
}

impl Holding {
    pub(crate) fn new(place: MemoryPlace, domain: ProtectionDomain, access: Access) -> Holding {
        Holding { place, domain, access, pages: Vec::new(), program_part: None }
    }

    /// The first address by which keys reach it, and its length.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let zero_based = self.access.contains(Access::ZERO_BASED);
        match &self.place {
            MemoryPlace::Program(place) | MemoryPlace::Gpu(place, _) => {
                let own = place.iova.unwrap_or(place.address as u64);
                (if zero_based { 0 } else { own }, place.length as u64)
            }
            MemoryPlace::Device { length, .. } => (0, *length as u64),
            MemoryPlace::Nowhere => (0, 0),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum MemoryPlace {
    Program(Translation),
    Gpu(Translation, DeviceNumber),
    Device { block: Arc<Block>, offset: usize, length: usize },
    Nowhere,
}

impl MemoryPlace {
    /// Where its first byte lies.
    pub(crate) fn first(&self) -> *mut u8 {
        match self {
            MemoryPlace::Program(place) | MemoryPlace::Gpu(place, _) => place.address,
            MemoryPlace::Device { block, offset, .. } => block.at(*offset),
            MemoryPlace::Nowhere => std::ptr::null_mut(),
        }
    }
}

// SAFETY: the pointer is an address of the process, as good in one thread as in another; nothing is reached through it
// here.
unsafe impl Send for Holding {}

impl Translation {
    pub(crate) fn is_everything(&self) -> bool {
        self.address.is_null() && self.length == usize::MAX
    }
}

impl Holding {
    pub(crate) fn apply(&mut self, key: Key, change: &Change) -> Result<(), Error> {
        if let MemoryPlace::Nowhere = self.place {
            return Err(Error::WrongKind { key });
        }
        if let Some(translation) = change.translation {
            match &mut self.place {
                MemoryPlace::Program(before) | MemoryPlace::Gpu(before, _) => *before = translation,
                // Device memory stays where it is.
                MemoryPlace::Device { .. } | MemoryPlace::Nowhere => return Err(Error::WrongKind { key }),
            }
        }
        self.domain = change.domain.unwrap_or(self.domain);
        self.access = change.access.unwrap_or(self.access);
        Ok(())
    }

    /// The terms on which it grants access.
    pub(crate) fn terms(&self) -> Terms {
        let (base, length, own) = match &self.place {
            MemoryPlace::Program(Translation { address, length, iova })
            | MemoryPlace::Gpu(Translation { address, length, iova }, _) => {
                (*address, *length, iova.unwrap_or(address.addr() as u64))
            }
            MemoryPlace::Device { block, offset, length } => (block.at(*offset), *length, 0),
            MemoryPlace::Nowhere => (std::ptr::null_mut(), usize::MAX, 0),
        };
        let everything = matches!(&self.place, MemoryPlace::Program(translation) if translation.is_everything());
        Terms {
            kind: if let MemoryPlace::Nowhere = self.place { Kind::Null } else { Kind::Region },
            domain: self.domain,
            qpn: Qpn::new(0),
            access: self.access,
            start: if self.access.contains(Access::ZERO_BASED) || everything { 0 } else { own },
            length: length as u64,
            base,
            reach: match &self.place {
                MemoryPlace::Gpu(_, device) => Reach::Gpu(*device),
                _ if self.access.contains(Access::ON_DEMAND) => Reach::OnDemand,
                _ => Reach::Processor,
            },
        }
    }

    /// Tells device memory that a region covers it.
    pub(crate) fn taken(&self) -> Result<(), Error> {
        self.noted(true);
        match &self.place {
            MemoryPlace::Program(_) | MemoryPlace::Gpu(..) | MemoryPlace::Nowhere => Ok(()),
            MemoryPlace::Device { block, .. } => block.take(),
        }
    }

    /// Tells device memory that a region covers it no more.
    pub(crate) fn released(&self) {
        self.noted(false);
        if let MemoryPlace::Device { block, .. } = &self.place {
            block.release();
        }
    }

    /// Tells that GPU memory is registered, or is no more.
    pub(crate) fn noted(&self, registered: bool) {
        if let MemoryPlace::Gpu(translation, _) = &self.place {
            gpu::note((translation.address.addr() as u64, translation.length as u64), registered);
        }
    }
}
