//! Is a range of addresses there, and may it be written? Asked once, at registration, so that a wrong range is an error
//! and not a later crash. The kernel answers best: it brings the pages in as an access would. Older kernels and odd
//! mappings are judged by the process's map. Nothing is pinned: what the program unmaps afterwards is gone.

use latch::PerProcess;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::Error;
use wire::refuse_if;

/// Whether all of `length` bytes at `address` can be read, and written if `write`; their pages are there afterwards.
pub(crate) fn check(address: usize, length: usize, write: bool) -> Result<(), Error> {
    if cfg!(miri) {
        // No kernel to ask.
        return Ok(());
    }
    // The last page of the address space is the kernel's.
    let (start, span) = pages(address, length).ok_or(Error::NotMapped { address: address as u64 })?;
    let absent = Error::Absent { address: address as u64, length: length as u64 };
    match populate(start, span, write) {
        Populated::Yes => Ok(()),
        Populated::OutOfMemory => check_by_map(start, span, write).and(Err(Error::OutOfMemory)),
        // Memory of devices cannot be populated and is still memory: the map decides.
        Populated::NotThisWay => check_by_map(start, span, write),
        Populated::Absent => check_by_map(start, span, write).and(Err(absent)),
    }
}

/// The pages a range touches, first and length, if all of them end inside the address space.
pub(crate) fn pages(address: usize, length: usize) -> Option<(usize, usize)> {
    let page = page_size();
    let start = address & !(page - 1);
    let end = address.checked_add(length)?.checked_next_multiple_of(page)?;
    Some((start, end - start))
}

/// Whether a page begins there.
pub(crate) fn is_page_boundary(address: usize) -> bool {
    address.is_multiple_of(page_size())
}

pub(crate) fn page_size() -> usize {
    // Not a `OnceLock`: a child that is forked in the middle of it would wait for ever.
    static SIZE: PerProcess<usize> = PerProcess::new();
    // SAFETY: a call without pointers.
    *SIZE.get_or_make(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

enum Populated {
    Yes,
    /// Not mapped, or no memory left: one errno for both.
    OutOfMemory,
    /// A protection that does not fit, a mapping that cannot be populated, or a kernel before 5.14: one errno for all.
    NotThisWay,
    /// Mapped, and an access would fail all the same.
    Absent,
}

fn populate(start: usize, span: usize, write: bool) -> Populated {
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: populating changes no byte and no mapping of the range, whatever is there; the address is only looked
        // at by the kernel.
        let result = unsafe { libc::madvise(start as *mut libc::c_void, span, advice) };
        if result == 0 {
            return Populated::Yes;
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => {}
            Some(libc::ENOMEM) => return Populated::OutOfMemory,
            Some(libc::EFAULT | libc::EHWPOISON) => return Populated::Absent,
            _ => return Populated::NotThisWay,
        }
    }
}

/// The answer of `/proc/self/maps`; without one, of `mincore`, which knows what is mapped and not how it is protected.
fn check_by_map(start: usize, span: usize, write: bool) -> Result<(), Error> {
    match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) => judge(&maps, start as u64, span as u64, write),
        Err(_) => check_by_mincore(start, span),
    }
}

/// Walks the lines of the map, which are in order of address.
#[doc(hidden)] // for fuzzing
pub fn judge(maps: &str, start: u64, span: u64, write: bool) -> Result<(), Error> {
    let end = start.saturating_add(span);
    let mut next = start;
    for line in maps.lines() {
        let Some((from, to, rights)) = parse(line) else { continue };
        if to <= next {
            continue;
        }
        if from > next {
            break;
        }
        let fits = rights.starts_with('r') && (!write || rights.as_bytes().get(1) == Some(&b'w'));
        refuse_if!(!fits, Error::Protected { address: next, write });
        next = to;
        if next >= end {
            return Ok(());
        }
    }
    Err(Error::NotMapped { address: next })
}

/// A line of the map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapLine<'a> {
    pub(crate) rights: &'a str,
    /// 0 if it is of no file.
    pub(crate) inode: u64,
    pub(crate) name: &'a str,
}

/// The lines of the map that a range lies in; none if it has holes.
pub(crate) fn mappings(maps: &str, start: u64, span: u64) -> Option<Vec<MapLine<'_>>> {
    let end = start.checked_add(span)?;
    let (mut next, mut lines) = (start, Vec::new());
    for line in maps.lines() {
        let Some((from, to, rights)) = parse(line) else { continue };
        if to <= next {
            continue;
        }
        if from > next {
            return None;
        }
        let mut words = line.split_ascii_whitespace().skip(4);
        let inode = words.next()?.parse().ok()?;
        lines.push(MapLine { rights, inode, name: words.next().unwrap_or_default() });
        next = to;
        if next >= end {
            return Some(lines);
        }
    }
    None
}

/// The number of a file.
pub(crate) fn inode_of(file: BorrowedFd<'_>) -> std::io::Result<u64> {
    // SAFETY: the kernel fills in a live structure, for which zeros are a value.
    unsafe {
        let mut facts: libc::stat = std::mem::zeroed();
        refuse_if!(libc::fstat(file.as_raw_fd(), &raw mut facts) != 0, std::io::Error::last_os_error());
        Ok(facts.st_ino)
    }
}

/// `7f12-7f34 rw-p …`
fn parse(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((address(from)?, address(to)?, rest.split(' ').next()?))
}

fn check_by_mincore(start: usize, span: usize) -> Result<(), Error> {
    let page = page_size();
    let mut residency = [0u8; 1024];
    for offset in (0..span).step_by(residency.len() * page) {
        let length = (span - offset).min(residency.len() * page);
        // SAFETY: the kernel writes one byte per page, and there is room for so many; the range itself is only looked
        // at.
        let result = unsafe { libc::mincore((start + offset) as *mut libc::c_void, length, residency.as_mut_ptr()) };
        refuse_if!(result != 0, Error::NotMapped { address: (start + offset) as u64 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0                                  [heap]
3000-4000 r--p 00000000 fe:00 1311                               /lib/a b
4000-5000 ---p 00000000 00:00 0
6000-7000 rw-s 00000000 00:01 7                                  /memfd:x (deleted)
7000-9000 -w-p 00000000 00:00 0
";

    #[test]
    fn the_map_tells_holes_and_protections() {
        let judge = |start, span, write| judge(MAPS, start, span, write);
        assert_eq!(judge(0x1000, 0x2000, true), Ok(()));
        assert_eq!(judge(0x2000, 0x1000, true), Ok(()));
        assert_eq!(judge(0x1000, 0x3000, false), Ok(()));
        assert_eq!(judge(0x1000, 0x3000, true), Err(Error::Protected { address: 0x3000, write: true }));
        assert_eq!(judge(0x3000, 0x2000, false), Err(Error::Protected { address: 0x4000, write: false }));
        assert_eq!(judge(0x5000, 0x1000, false), Err(Error::NotMapped { address: 0x5000 }));
        assert_eq!(judge(0x6000, 0x1000, true), Ok(()));
        assert_eq!(judge(0x8000, 0x1000, true), Err(Error::Protected { address: 0x8000, write: true }));
        assert_eq!(judge(0, 0x2000, false), Err(Error::NotMapped { address: 0 }));
        assert_eq!(judge(0xa000, 0x1000, false), Err(Error::NotMapped { address: 0xa000 }));
    }

    #[test]
    fn a_line_that_is_no_mapping_is_passed_over() {
        assert_eq!(judge("garbage\n\n1000-x rw-p\n1000-2000 rw-p 0", 0x1000, 0x1000, true), Ok(()));
    }

    #[test]
    fn a_range_takes_whole_pages_along() {
        let page = page_size();
        assert_eq!(pages(page + 1, 1), Some((page, page)));
        assert_eq!(pages(page, page), Some((page, page)));
        assert_eq!((pages(page + 1, 0), pages(page, 0)), (Some((page, page)), Some((page, 0))));
        assert_eq!(pages(2 * page - 1, 2), Some((page, 2 * page)));
        assert_eq!(pages(usize::MAX - 10, 10), None);
        assert_eq!(pages(usize::MAX, 2), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn every_way_of_asking_agrees() {
        let bytes = vec![0u8; 3 * page_size()];
        let (start, span) = pages(bytes.as_ptr().addr(), bytes.len()).unwrap();
        assert_eq!(check_by_map(start, span, true), Ok(()));
        assert_eq!(check_by_mincore(start, span), Ok(()));
        assert!(matches!(populate(start, span, true), Populated::Yes));
        assert!(matches!(check_by_map(0, page_size(), false), Err(Error::NotMapped { address: 0 })));
        assert!(matches!(check_by_mincore(0, page_size()), Err(Error::NotMapped { address: 0 })));
        assert!(!matches!(populate(0, page_size(), false), Populated::Yes));
    }
}
