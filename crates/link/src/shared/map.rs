//! Memory that two processes see: a memfd, sealed so that no process can change its size, and mapped. Only sealed ones
//! are believed, because a file that shrinks under a mapping turns every access into SIGBUS. A forked child does not
//! have the mapping.

#[cfg(miri)]
mod interpreted;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(not(miri))]
use {
    host::descriptor::check,
    host::file_size,
    std::io,
    std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// What the receiver insists on.
#[cfg(not(miri))]
const REQUIRED_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Where a mapping of a part of a file may begin, whatever the size of pages.
#[cfg(not(miri))]
const PAGE_ALIGNMENT: u64 = 64 * 1024;

/// The protection of a mapping that this process writes.
#[cfg(not(miri))]
const READ_WRITE_PROTECTION: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// The length of a file whose length is sealed, if it is believed.
#[cfg(not(miri))]
fn sealed_length(fd: BorrowedFd<'_>, required: libc::c_int, lengths: impl FnOnce(u64) -> bool) -> io::Result<u64> {
    // SAFETY: numbers. Only files that can be sealed answer.
    let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
    // SAFETY: the kernel fills in a live structure, for which zeros are a value.
    let length = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd.as_raw_fd(), &raw mut status))?;
        status.st_size as u64
    };
    if seals & required != required || !lengths(length) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(length)
}

/// A mapping of a sealed memfd. Its bytes may change at any time: they are reached through atomics and raw copies only.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    /// The process that has it. A forked child does not, and may have something of its own there.
    process: u32,
}

// SAFETY: the mapping belongs to the process, not to a thread, and hands out nothing but atomics and raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

#[cfg(not(miri))]
impl Mapping {
    /// New memory, all of it present: what is not there when it is touched would be SIGBUS. The descriptor is for the
    /// other process.
    pub fn create(length: usize) -> io::Result<(Mapping, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        file_size::check(length as u64)?;
        // SAFETY: a string constant and a number; the descriptor that comes back is ours.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::memfd_create(c"ubiverbs".as_ptr(), flags))?) };
        // SAFETY: numbers.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), length as libc::off_t))?;
            check(libc::fallocate(fd.as_raw_fd(), 0, 0, length as libc::off_t))?;
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, REQUIRED_SEALS | libc::F_SEAL_SEAL))?;
        }
        Ok((Mapping::of(&fd, length)?, fd))
    }

    /// Memory that another process made: `lengths` says which sizes are believed.
    pub fn accept(fd: BorrowedFd<'_>, lengths: impl FnOnce(u64) -> bool) -> io::Result<Mapping> {
        let length = sealed_length(fd, REQUIRED_SEALS, lengths)?;
        Mapping::of(&fd, length as usize)
    }

    /// New memory that this process writes and others can only read; empty, and so not all of it present.
    pub fn create_published(length: usize) -> io::Result<(Mapping, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        file_size::check(length as u64)?;
        // SAFETY: a string constant and a number; the descriptor that comes back is ours.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::memfd_create(c"ubiverbs".as_ptr(), flags))?) };
        // SAFETY: numbers.
        unsafe { check(libc::ftruncate(fd.as_raw_fd(), length as libc::off_t))? };
        let mapping = Mapping::of(&fd, length)?;
        let seals = REQUIRED_SEALS | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        // SAFETY: numbers.
        unsafe { check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals))? };
        Ok((mapping, fd))
    }

    /// Memory that another process made for others to read.
    pub fn accept_published(fd: BorrowedFd<'_>, length: usize) -> io::Result<Mapping> {
        sealed_length(fd, REQUIRED_SEALS, |known| known == length as u64)?;
        Mapping::map(fd.as_raw_fd(), libc::PROT_READ, libc::MAP_SHARED, length)
    }

    /// A part of a file of another process, sealed against shrinking, and where it begins in the mapping.
    pub fn accept_part(fd: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<(Mapping, usize)> {
        let end = offset.checked_add(length).ok_or(io::ErrorKind::InvalidData)?;
        // It may become longer: that changes nothing here.
        sealed_length(fd, libc::F_SEAL_SHRINK, |known| end <= known)?;
        let inside = offset % PAGE_ALIGNMENT;
        let start = libc::off_t::try_from(offset - inside).map_err(|_| io::ErrorKind::InvalidData)?;
        let span = usize::try_from(length + inside).map_err(|_| io::ErrorKind::InvalidData)?;
        let map = Mapping::map_from(fd.as_raw_fd(), READ_WRITE_PROTECTION, libc::MAP_SHARED, (start, span))?;
        Ok((map, inside as usize))
    }

    /// Memory of this process alone.
    pub fn private(length: usize) -> io::Result<Mapping> {
        Mapping::map(-1, READ_WRITE_PROTECTION, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, length)
    }

    fn of(fd: &impl AsRawFd, length: usize) -> io::Result<Mapping> {
        Mapping::map(fd.as_raw_fd(), READ_WRITE_PROTECTION, libc::MAP_SHARED, length)
    }

    fn map(fd: RawFd, access: libc::c_int, flags: libc::c_int, length: usize) -> io::Result<Mapping> {
        Mapping::map_from(fd, access, flags, (0, length))
    }

    fn map_from(
        fd: RawFd,
        access: libc::c_int,
        flags: libc::c_int,
        (offset, length): (libc::off_t, usize),
    ) -> io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, access, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping { base, length, process: std::process::id() };
        // SAFETY: our own mapping, entire.
        check(unsafe { libc::madvise(base.as_ptr().cast(), length, libc::MADV_DONTFORK) })?;
        Ok(mapping)
    }
}

impl Mapping {
    pub fn length(&self) -> usize {
        self.length
    }

    /// A pointer to the byte at `offset`, from which `length` bytes can be reached.
    #[inline]
    pub fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset, "beyond shared memory");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The word at `offset`, which is a multiple of four.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4));
        // SAFETY: within the mapping, aligned because mappings begin at a page, and alive as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at(offset & !3, 4).cast()) }
    }

    /// The words of the cache line at `offset`, which is a multiple of 64.
    #[inline]
    pub fn line(&self, offset: usize) -> &[AtomicU32; 16] {
        debug_assert!(offset.is_multiple_of(64));
        // SAFETY: as for `word`; sixteen of them lie there.
        unsafe { &*self.at(offset & !63, 64).cast() }
    }

    /// The double word at `offset`, which is a multiple of eight.
    #[inline]
    pub fn double_word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8));
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.at(offset & !7, 8).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !cfg!(miri) && self.process == std::process::id() {
            // SAFETY: our own mapping, entire, to which no pointer is left.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
    use std::sync::atomic::Ordering;

    #[test]
    fn both_see_the_same() {
        let (ours, fd) = Mapping::create(8192).unwrap();
        let theirs = Mapping::accept(fd.as_fd(), |length| length == 8192).unwrap();
        ours.word(4096).store(7, Ordering::Relaxed);
        assert_eq!(theirs.word(4096).load(Ordering::Relaxed), 7);
        assert_eq!((ours.length(), theirs.length()), (8192, 8192));
    }

    #[test]
    #[cfg_attr(miri, ignore = "memfds and their seals")]
    fn only_sealed_memory_of_a_known_size_is_believed() {
        let (_ours, fd) = Mapping::create(4096).unwrap();
        assert!(Mapping::accept(fd.as_fd(), |length| length == 8192).is_err());
        // SAFETY: a string constant and a number; the descriptor that comes back is ours.
        let open = unsafe {
            OwnedFd::from_raw_fd(libc::memfd_create(c"open".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING))
        };
        // SAFETY: numbers.
        unsafe { libc::ftruncate(open.as_raw_fd(), 4096) };
        assert!(Mapping::accept(open.as_fd(), |_| true).is_err(), "not sealed");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Mapping::accept(file.as_fd(), |_| true).is_err(), "not even memory");
    }
}
