//! Copies to and from memory that may not be there. Regions on demand are not looked at when they are registered, and
//! the program may unmap part of them at any time; a plain access would then end the process. So the kernel makes the
//! copy, from the process to itself, and says what is missing. Slower (a system call and a page walk), and only for
//! those regions.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::mapped;

/// The memory was not there, or not for this. Bytes before the missing one may have been copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Missing;

/// What is stored last; see `copy`.
const TAIL_BYTES: usize = 8;

/// Copies `source` to `target` and beyond; the last bytes in a second step.
///
/// # Safety
/// No object of ours may lie in the target.
pub(crate) unsafe fn store(target: *mut u8, source: &[u8]) -> Result<(), Missing> {
    let (bulk, tail) = source.split_at(source.len().saturating_sub(TAIL_BYTES));
    // SAFETY: both parts are within the target.
    unsafe {
        transfer(Way::Store, target, bulk.as_ptr().cast_mut(), bulk.len())?;
        transfer(Way::Store, target.wrapping_add(bulk.len()), tail.as_ptr().cast_mut(), tail.len())
    }
}

/// Copies what is at `source` and beyond into `target`.
pub(crate) fn load(target: &mut [u8], source: *const u8) -> Result<(), Missing> {
    // SAFETY: the target is ours to write, and nothing else is written.
    unsafe { transfer(Way::Load, source.cast_mut(), target.as_mut_ptr(), target.len()) }
}

/// How many places are looked at together.
pub(crate) const PAGES_PER_LOOK: usize = 32;

/// Copies what is at these places, one after the other, into `target`, which is as long as they are together. There
/// are at most [`PAGES_PER_LOOK`] of them. Returns whether everything was there.
pub(crate) fn load_together(target: &mut [u8], places: &[(u64, usize)]) -> bool {
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PAGES_PER_LOOK];
    let Some(remote) = remote.get_mut(..places.len()) else { return false };
    for (part, &(address, length)) in remote.iter_mut().zip(places) {
        *part = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
    }
    let local = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    // SAFETY: the target is ours to write, and what the others are the kernel finds out.
    let moved = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, remote.as_ptr(), remote.len() as libc::c_ulong, 0)
    };
    if usize::try_from(moved) == Ok(target.len()) {
        return true;
    }
    if moved >= 0 || !refused(&io::Error::last_os_error()) {
        return false;
    }
    let mut rest = target;
    places.iter().all(|&(address, length)| {
        let (now, later) = std::mem::take(&mut rest).split_at_mut(length);
        rest = later;
        load(now, address as *const u8).is_ok()
    })
}

/// Brings in the page of an atomic operation. The kernel has no 64-bit atomic on behalf of a program, so the operation
/// itself is a plain one: a program that unmaps the word in the instant between the two ends itself.
pub(crate) fn prepare_word(word: *mut u8) -> Result<(), Missing> {
    mapped::check(word.addr(), 8, true).map_err(|_| Missing)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From ours to theirs.
    Store,
    /// From theirs to ours.
    Load,
}

/// # Safety
/// `ours` must be valid for reads (`Store`) or writes (`Load`) of `length` bytes. When storing, no object of ours may
/// lie in `theirs`.
unsafe fn transfer(way: Way, theirs: *mut u8, ours: *mut u8, length: usize) -> Result<(), Missing> {
    let mut done = 0;
    while done < length {
        let (theirs, ours, rest) = (theirs.wrapping_add(done), ours.wrapping_add(done), length - done);
        // SAFETY: the rest of what the caller vouches for.
        let moved = match unsafe { by_process(way, theirs, ours, rest) } {
            Err(e) if refused(&e) => {
                // SAFETY: as above.
                unsafe { by_pipe(way, theirs, ours, rest) }
            }
            result => result,
        };
        match moved {
            Ok(0) => return Err(Missing),
            Ok(moved) => done += moved,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Missing),
        }
    }
    Ok(())
}

/// Whether the call itself is not to be had: filtered away in some containers.
fn refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EACCES))
}

/// # Safety
/// As `transfer`.
unsafe fn by_process(way: Way, theirs: *mut u8, ours: *mut u8, length: usize) -> io::Result<usize> {
    let local = libc::iovec { iov_base: ours.cast(), iov_len: length };
    let remote = libc::iovec { iov_base: theirs.cast(), iov_len: length };
    // SAFETY: one element each; `ours` is valid for the direction, and what `theirs` is the kernel finds out.
    let moved = unsafe {
        let pid = libc::getpid();
        match way {
            Way::Store => libc::process_vm_writev(pid, &local, 1, &remote, 1, 0),
            Way::Load => libc::process_vm_readv(pid, &local, 1, &remote, 1, 0),
        }
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// Through a pipe: `write` and `read` too tell a missing page instead of dying of it.
///
/// # Safety
/// As `transfer`.
unsafe fn by_pipe(way: Way, theirs: *mut u8, ours: *mut u8, length: usize) -> io::Result<usize> {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and not shared.
    let (out, into) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // A program that was started without standard output must not write into it: a copy is above the first three.
    let (out, into) =
        if ends.iter().any(|end| *end <= 2) { (out.try_clone()?, into.try_clone()?) } else { (out, into) };
    let (from, to) = match way {
        Way::Store => (ours, theirs),
        Way::Load => (theirs, ours),
    };
    // SAFETY: whichever side is ours is valid for `length` bytes, and of the other the kernel finds out.
    let written = unsafe { libc::write(into.as_raw_fd(), from.cast(), length.min(4096)) };
    let written = usize::try_from(written).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: as above; no more than was written.
    let read = unsafe { libc::read(out.as_raw_fd(), to.cast(), written) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    /// Two pages of which the second may not be touched. (Unmapped, another test's allocation could move in.)
    fn half() -> (*mut u8, usize) {
        let page = mapped::page_size();
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, and then its second half locked up.
        let start = unsafe {
            let start = libc::mmap(std::ptr::null_mut(), 2 * page, rights, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(page), page, libc::PROT_NONE), 0);
            start
        };
        (start.cast(), page)
    }

    #[test]
    fn both_ways_copy_and_both_notice_what_is_missing() {
        let (start, page) = half();
        for by in [by_process, by_pipe] {
            let mut bytes: Vec<u8> = (0..100).collect();
            // SAFETY: `bytes` is ours, and the mapping is no object's.
            unsafe {
                assert_eq!(by(Way::Store, start, bytes.as_mut_ptr(), 100).unwrap(), 100);
                bytes.fill(0);
                assert_eq!(by(Way::Load, start, bytes.as_mut_ptr(), 100).unwrap(), 100);
                assert!(bytes.iter().copied().eq(0..100));
                for way in [Way::Store, Way::Load] {
                    let error = by(way, start.add(page), bytes.as_mut_ptr(), 100).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
                }
            }
        }
    }

    #[test]
    fn a_copy_into_nothing_is_missing_and_not_fatal() {
        let (start, page) = half();
        let mut bytes = vec![7u8; page + 1];
        // SAFETY: the mapping is no object's.
        unsafe {
            assert_eq!(store(start, &bytes), Err(Missing));
            assert_eq!(store(start, &bytes[..page]), Ok(()));
        }
        assert_eq!(load(&mut bytes, start), Err(Missing));
        assert_eq!(load(&mut bytes[..page], start), Ok(()));
        assert_eq!(prepare_word(start), Ok(()));
        assert_eq!(prepare_word(start.wrapping_add(page)), Err(Missing));
    }
}
