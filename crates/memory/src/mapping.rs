//! Memory that this process maps for its regions: of a file that others may map too, or of none. Device memory is such
//! a file, so that it can be exported; an imported file is mapped for the region over it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;

use crate::mapped::page_size;
use crate::shareable;
use wire::refuse_if;

/// So many are made of files at a time, device memory apart.
pub(crate) const MAX_SHAREABLE_MAPPINGS: usize = 64;

/// The size of a huge page.
const HUGE_PAGE: usize = 2 << 20;

/// A mapping, unmapped when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    /// All that is to be unmapped.
    base: *mut u8,
    span: usize,
    /// Where the memory itself begins.
    first: *mut u8,
    /// The file that was made for it, if one was.
    file: Option<OwnFile>,
}

/// A file that was made for a mapping.
#[derive(Debug)]
struct OwnFile {
    descriptor: OwnedFd,
    /// Its memory is the mapping's alone, whatever other processes have of it.
    is_freed_with_mapping: bool,
    /// The process that made it. A forked child has only a share in it.
    process: u32,
}

// SAFETY: the mapping is owned, and only its address is given out; the code that uses it says why it may.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of no file.
    ///
    /// # Errors
    /// What the system says.
    pub fn anonymous(length: usize) -> io::Result<Mapping> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let base = map(null_mut(), length, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)?;
        Ok(Mapping { base, span: length, first: base, file: None })
    }

    /// Zeros to read, which take no memory.
    pub(crate) fn zeros(length: usize) -> io::Result<Mapping> {
        let hidden = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = map(null_mut(), length, libc::PROT_READ, hidden, None)?;
        Ok(Mapping { base, span: length, first: base, file: None })
    }

    /// Zeroed memory of no file in huge pages: those that an administrator set apart for that, or (`advised`) ordinary
    /// ones that the kernel joins where it can. Begins at the boundary of one.
    ///
    /// # Errors
    /// What the system says; `ENOMEM` if not so many were set apart.
    pub fn huge(length: usize, advised: bool) -> io::Result<Mapping> {
        let span = length.checked_next_multiple_of(HUGE_PAGE).filter(|span| *span > 0).ok_or_else(invalid)?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let hidden = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        if !advised {
            let base = map(null_mut(), span, rights, hidden | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB, None)?;
            return Ok(Mapping { base, span, first: base, file: None });
        }
        let room = span.checked_add(HUGE_PAGE).ok_or_else(invalid)?;
        let base = map(null_mut(), room, rights, hidden, None)?;
        let first = base.wrapping_add(base.align_offset(HUGE_PAGE));
        // SAFETY: advice for a range of our own, which changes no byte of it. A kernel that does not take it has small
        // pages.
        unsafe { libc::madvise(first.cast(), span, libc::MADV_HUGEPAGE) };
        Ok(Mapping { base, span: room, first, file: None })
    }

    /// `length` bytes at `offset` of a file, shared with the other processes that have it.
    ///
    /// # Errors
    /// What the system says; `EINVAL` if there is no such range.
    pub fn of_file(file: BorrowedFd<'_>, offset: u64, length: usize, write: bool) -> io::Result<Mapping> {
        let end = offset.checked_add(length as u64).ok_or_else(invalid)?;
        refuse_if!(end > file_size(file)?, invalid());
        let inside = (offset % page_size() as u64) as usize;
        let span = length.checked_add(inside).filter(|span| *span > 0).ok_or_else(invalid)?;
        let start = libc::off_t::try_from(offset - inside as u64).map_err(|_| invalid())?;
        let rights = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let base = map(null_mut(), span, rights, libc::MAP_SHARED, Some((file, start)))?;
        Ok(Mapping { base, span, first: base.wrapping_add(inside), file: None })
    }

    /// A new file of `length` zeroed bytes that can be made neither longer nor shorter, mapped where its alignment
    /// wants it.
    pub(crate) fn of_new_file(length: usize, alignment: usize) -> io::Result<Mapping> {
        let span = length.checked_next_multiple_of(page_size()).ok_or_else(invalid)?;
        let file = sealed_file(span)?;
        // Room for the alignment is taken first; the file comes into the middle of it.
        let room = if alignment > page_size() { span.checked_add(alignment).ok_or_else(invalid)? } else { span };
        let hidden = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = map(null_mut(), room, libc::PROT_NONE, hidden, None)?;
        let first = base.wrapping_add(base.align_offset(alignment));
        let mut mapping = Mapping { base, span: room, first, file: None };
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        map(mapping.first, span, rights, libc::MAP_SHARED | libc::MAP_FIXED, Some((file.as_fd(), 0)))?;
        shareable::note(mapping.first.addr(), span, &file)?;
        mapping.file = Some(OwnFile { descriptor: file, is_freed_with_mapping: false, process: std::process::id() });
        Ok(mapping)
    }

    /// Zeroed memory that processes of the same user may map, where the system has such and this process not too many
    /// of them: each has a descriptor. A forked child shares it.
    #[must_use]
    pub fn shareable(length: usize) -> Option<Mapping> {
        if cfg!(miri) || shareable::count() >= MAX_SHAREABLE_MAPPINGS {
            return None;
        }
        let mut mapping = Mapping::of_new_file(length, page_size()).ok()?;
        if let Some(file) = &mut mapping.file {
            file.is_freed_with_mapping = true;
        }
        Some(mapping)
    }

    /// The file that was made for it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.descriptor.as_fd())
    }

    /// The first byte.
    #[must_use]
    pub fn first(&self) -> *mut u8 {
        self.first
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(file) = &self.file
            && file.process == std::process::id()
        {
            shareable::forget(self.first.addr());
            if file.is_freed_with_mapping {
                // A process that has it mapped as well does not keep the memory.
                // SAFETY: all of it is of that file, and nothing that lives on has a right to the bytes.
                unsafe { libc::madvise(self.first.cast(), self.span, libc::MADV_REMOVE) };
            }
        }
        // SAFETY: mapped by this type, and nothing that lives on has a right to it.
        unsafe { libc::munmap(self.base.cast(), self.span) };
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// How long the memory of a descriptor is. A dma-buf tells it only to who seeks its end, and stays where it is.
pub(crate) fn file_size(file: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: all zeros are numbers.
    let mut facts: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor, and room for the answer.
    match unsafe { libc::fstat(file.as_raw_fd(), &raw mut facts) } {
        0 if facts.st_size == 0 && is_dma_buf(file) => {
            // SAFETY: a call without pointers.
            let end = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_END) };
            u64::try_from(end).map_err(|_| io::Error::last_os_error())
        }
        0 => u64::try_from(facts.st_size).map_err(|_| invalid()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// With `MAP_FIXED` only inside a mapping that the caller has made for it.
fn map(
    at: *mut u8,
    length: usize,
    rights: i32,
    flags: i32,
    file: Option<(BorrowedFd<'_>, libc::off_t)>,
) -> io::Result<*mut u8> {
    let (file, offset) = file.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset));
    // SAFETY: the kernel chooses the place, or the caller has made room there; no memory that is in use changes.
    let place = unsafe { libc::mmap(at.cast(), length, rights, flags, file, offset) };
    if place == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(place.cast()) }
}

/// A file in memory whose length stays: a process that maps it never meets its end.
pub(crate) fn sealed_file(length: usize) -> io::Result<OwnedFd> {
    // A longer one would be a signal, of which programs die.
    // SAFETY: a live record.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        refuse_if!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) != 0, io::Error::last_os_error());
        limit.rlim_cur
    };
    refuse_if!(length as u64 > limit, io::ErrorKind::FileTooLarge.into());
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a C string and flags.
    let file = unsafe { libc::memfd_create(c"ubiverbs-device-memory".as_ptr(), flags) };
    refuse_if!(file < 0, io::Error::last_os_error());
    // SAFETY: just made, and nobody else's.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let size = libc::off_t::try_from(length).map_err(|_| invalid())?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: calls without pointers, for a descriptor of our own.
    let done = unsafe {
        libc::ftruncate(file.as_raw_fd(), size) == 0 && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
    };
    if done { Ok(file) } else { Err(io::Error::last_os_error()) }
}

/// Whether a descriptor is of memory that can be shared between devices: a dma-buf, or a file in memory that nobody can
/// make shorter.
#[must_use]
pub fn is_shareable(file: BorrowedFd<'_>) -> bool {
    // SAFETY: a call without pointers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals >= 0 { seals & libc::F_SEAL_SHRINK != 0 } else { is_dma_buf(file) }
}

/// Whether a descriptor is of a file in memory that nobody can make shorter.
pub(crate) fn is_sealed(file: BorrowedFd<'_>) -> bool {
    // SAFETY: a call without pointers.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

fn is_dma_buf(file: BorrowedFd<'_>) -> bool {
    /// The file system of dma-bufs.
    const DMA_BUF_MAGIC: libc::__fsword_t = 0x444d_4142;
    // SAFETY: all zeros are numbers.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor, and room for the answer.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut system) } == 0;
    known && system.f_type == DMA_BUF_MAGIC
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_aligned_and_what_one_mapping_writes_another_reads() {
        let mapping = Mapping::of_new_file(100, 1 << 21).unwrap();
        let file = mapping.file().unwrap();
        assert!(mapping.first().addr().is_multiple_of(1 << 21));
        let offset = 4;
        let other = Mapping::of_file(file, offset, 96, false).unwrap();
        // SAFETY: inside both mappings.
        unsafe {
            mapping.first().add(offset as usize).write_volatile(7);
            assert_eq!(other.first().read_volatile(), 7);
        }
    }

    #[test]
    fn only_files_that_stay_as_long_as_they_are_can_be_shared() {
        let mapping = Mapping::of_new_file(1, 64).unwrap();
        assert!(is_shareable(mapping.file().unwrap()));
        // SAFETY: a C string and a flag; nobody else's descriptor.
        let loose = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"loose".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        assert!(!is_shareable(loose.as_fd()));
        assert!(!is_shareable(std::fs::File::open("/dev/null").unwrap().as_fd()));
    }

    #[test]
    fn huge_pages_begin_at_the_boundary_of_one() {
        let mapping = Mapping::huge(3 << 20, true).unwrap();
        assert!(mapping.first().addr().is_multiple_of(HUGE_PAGE));
        // SAFETY: inside the mapping: the end of its second huge page.
        unsafe { mapping.first().add((4 << 20) - 1).write(7) };
        assert!(Mapping::huge(0, true).is_err() && Mapping::huge(usize::MAX, false).is_err());
    }

    #[test]
    fn ranges_that_do_not_exist_are_refused() {
        let mapping = Mapping::of_new_file(4096, 64).unwrap();
        let file = mapping.file().unwrap();
        assert!(Mapping::of_file(file, 0, 0, false).is_err());
        assert!(Mapping::of_file(file, 1, usize::MAX, false).is_err());
        assert!(Mapping::of_file(file, u64::MAX - 5, 1, false).is_err());
        assert!(Mapping::of_file(file, 4000, 97, false).is_err());
        assert!(Mapping::of_file(file, 4000, 96, false).is_ok());
    }
}
