//! Memory in pages of its own, and files.

use hca::Mapping;
use seam::Error;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed memory in pages of its own, huge ones where wanted: fewer, larger pages are looked up faster where there is
/// much memory. To be registered by
/// [`register_own`](crate::ProtectionDomain::register_own) or [`share_own`](crate::ProtectionDomain::share_own), or, as bytes, to be
/// an
/// [`Arena`](crate::Arena).
///
/// ```
/// # use ubiverbs::{Arena, Mapped};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let mut memory = Mapped::huge_where_possible(8 << 20)?;
/// memory[..5].copy_from_slice(b"hello");
/// let memory = pd.register_own(memory)?;
/// assert_eq!(&memory[..5], b"hello");
///
/// let arena = Arena::over(memory.into_bytes());
/// let buffer = arena.allocate(1 << 20)?;
/// # Ok::<(), ubiverbs::Error>(())
/// ```
pub struct Mapped {
    mapping: Mapping,
    length: usize,
}

impl Mapped {
    /// In ordinary pages.
    ///
    /// # Errors
    /// [`Error::System`], also for a length of zero.
    pub fn pages(length: usize) -> Result<Mapped, Error> {
        Mapped::made(length, Mapping::anonymous(length))
    }

    /// In huge pages that an administrator has set apart, by `sysctl vm.nr_hugepages`.
    ///
    /// # Errors
    /// [`Error::System`] if not so many are left.
    pub fn huge(length: usize) -> Result<Mapped, Error> {
        Mapped::made(length, Mapping::huge(length, false))
    }

    /// In huge pages as far as the kernel has them at hand, else in ordinary ones.
    ///
    /// # Errors
    /// [`Error::System`], also for a length of zero.
    pub fn huge_where_possible(length: usize) -> Result<Mapped, Error> {
        Mapped::made(length, Mapping::huge(length, true))
    }

    fn made(length: usize, mapping: io::Result<Mapping>) -> Result<Mapped, Error> {
        match mapping {
            Ok(mapping) => Ok(Mapped { mapping, length }),
            Err(source) => Err(Error::System { what: "cannot map memory", source }),
        }
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped there, zeroed by the kernel, and are this value's alone.
        unsafe { std::slice::from_raw_parts(self.mapping.first(), self.length) }
    }
}

impl DerefMut for Mapped {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the value is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.first(), self.length) }
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({} bytes)", self.length)
    }
}

/// The bytes of a mapping. None is at address zero.
fn bytes(mapping: &Mapping, length: usize) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(NonNull::new(mapping.first()).unwrap_or(NonNull::dangling()), length)
}

// SAFETY: pages of no file, mapped by this value and for it alone, which stay until it is dropped.
kept_whole!(Mapped, |pages| bytes(&pages.mapping, pages.length));
own_bytes!(Mapped);

/// A part of a file in memory. Any process that has the file may change it.
pub(crate) struct FileMap {
    pub mapping: Mapping,
    pub length: usize,
}

// SAFETY: mapped until it is dropped; others may change the bytes, and they are used by atomics and by the NIC's copies
// only, which tolerate it.
kept_whole!(FileMap, |map| bytes(&map.mapping, map.length));
