//! Memory in pages of its own, and files.

use super::{Memory, OwnMemory};
use crate::allocation::Allocation;
use crate::buffer::SharedRegion;
use crate::domain::{ProtectionDomain, grantable};
use crate::error::Error;
use crate::registration::empty;
use hca::Mapping;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use transport::Access;

/// Zeroed memory in pages of its own, huge ones where wanted: fewer, larger pages are looked up faster where there is
/// much memory. To be registered by
/// [`register_own`](ProtectionDomain::register_own) or [`share_own`](ProtectionDomain::share_own), or, as bytes, to be
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

/// The first byte of a mapping. None is at address zero.
fn first(mapping: &Mapping) -> NonNull<u8> {
    NonNull::new(mapping.first()).unwrap_or(NonNull::dangling())
}

// SAFETY: pages of no file, mapped by this value and for it alone, which stay until it is dropped.
unsafe impl Memory for Mapped {
    type Rest = Mapped;

    fn take_apart(self) -> (NonNull<u8>, usize, Mapped) {
        (first(&self.mapping), self.length, self)
    }

    unsafe fn put_together(_: NonNull<u8>, rest: Mapped) -> Mapped {
        rest
    }
}

impl OwnMemory for Mapped {
    type Slice = [u8];

    fn view(bytes: &[u8]) -> &[u8] {
        bytes
    }

    fn view_mut(bytes: &mut [u8]) -> &mut [u8] {
        bytes
    }
}

/// A part of a file in memory. Any process that has the file may change it.
struct FileMap {
    mapping: Mapping,
    length: usize,
}

// SAFETY: mapped until it is dropped; others may change the bytes, and they are used by atomics and by the NIC's copies
// only, which tolerate it.
unsafe impl Memory for FileMap {
    type Rest = FileMap;

    fn take_apart(self) -> (NonNull<u8>, usize, FileMap) {
        (first(&self.mapping), self.length, self)
    }

    unsafe fn put_together(_: NonNull<u8>, rest: FileMap) -> FileMap {
        rest
    }
}

impl ProtectionDomain {
    /// Lets peers, and work of this program, reach a part of a file where the kernel keeps it, without a copy: sends
    /// and WRITEs come from the file, receives and READs go into it. A file that was opened for reading only is never
    /// written, by anybody.
    ///
    /// ```
    /// # use std::io::Read;
    /// # use ubiverbs::{Access, Reliable};
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [client, _server] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    /// # let path = std::env::temp_dir().join(format!("ubiverbs-share-file-{}", std::process::id()));
    /// # let io = |source| ubiverbs::Error::System { what: "file", source };
    /// let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).map_err(io)?;
    /// file.set_len(1 << 20).map_err(io)?;
    /// let region = pd.share_file(&file, 0..1 << 20, Access::REMOTE_WRITE)?;
    ///
    /// client.write_inline(b"straight into the file", region.remote_slice())?.wait()?;
    /// assert!(std::fs::read(&path).map_err(io)?.starts_with(b"straight into the file"));
    /// # std::fs::remove_file(&path).map_err(io)?;
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Who else has the file
    ///
    /// Any process may change the file at any time. What it writes is seen here and by peers, and what they write is
    /// seen there, as between threads: eight aligned bytes are never torn, and everything else is for the programs to
    /// arrange. That is why there is no `&[u8]` of a file. One that is made **shorter** takes the memory behind its new
    /// end away: touching that ends this process with `SIGBUS`, as with every map. Where others may do so, add
    /// [`Access::ON_DEMAND`]: then the NIC's accesses go through the kernel and are refused instead, which is slower,
    /// and only `read_at`, `write_at` and the atomic operations of this program remain dangerous. The file's bytes
    /// reach the disk when the kernel writes them, at the latest with [`sync_all`](std::fs::File::sync_all), or by a
    /// FLUSH of a peer with [`Access::FLUSH_PERSISTENT`].
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be mapped, is shorter than that, or was not opened with the rights that
    /// peers are to have.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "mmap")]
    pub fn share_file(&self, file: &impl AsFd, range: Range<u64>, rights: Access) -> Result<SharedRegion, Error> {
        const WHAT: &str = "cannot map the file";
        // Without any it is for work of this program.
        grantable(rights.difference(Access::ON_DEMAND))?;
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        if length == 0 {
            return Err(empty());
        }
        let mapped = |write| Mapping::of_file(file.as_fd(), range.start, length, write);
        let (mapping, access) = match mapped(true) {
            Ok(mapping) => (mapping, rights | Access::LOCAL_WRITE),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !rights.writes() => {
                (mapped(false).map_err(|source| Error::System { what: WHAT, source })?, rights)
            }
            Err(source) => return Err(Error::System { what: WHAT, source }),
        };
        let allocation = Allocation::keep(&self.core().opened, self.id, FileMap { mapping, length }, access);
        Ok(SharedRegion::new(allocation.map_err(|(error, _)| error)?))
    }
}
