//! Private memory of the program whose pages are replaced by those of a file, at the same addresses and while other
//! threads use it, so that peers can map it: an option ([`replace_pages`]). Only regions of whole pages are replaced,
//! and only while they are registered: afterwards the pages are private again, as `madvise`, `mremap` and allocators
//! expect.
//!
//! Writes of other threads wait for the copy (userfaultfd). What a program notices: a *system call* of another thread
//! that writes into the region at that moment returns `EFAULT`; a child that the program forks with `_Fork` or a bare
//! `clone` shares the region, and a child of `fork` sees what the parent writes to pages that it has not written itself.

use crate::mapped::{self, mappings};
use crate::mapping::{MAX_SHAREABLE_MAPPINGS, Mapping, sealed_file};
use crate::shareable;
use latch::Rank;
use latch::plain::Mutex;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use wire::refuse_if;

static IS_ASKED_FOR: AtomicBool = AtomicBool::new(false);

/// The replaced ranges that regions hold.
static REPLACED: Mutex<Vec<Weak<ReplacedPages>>> = Mutex::new(Rank::ReplacedPages, Vec::new());

/// From now on the pages of regions that peers may reach are replaced where that is possible.
pub fn replace_pages() {
    IS_ASKED_FOR.store(true, Ordering::Relaxed);
}

/// Pages that are of a file for as long as a region holds this.
#[derive(Debug)]
pub(crate) struct ReplacedPages {
    start: usize,
    span: usize,
    file: OwnedFd,
    process: u32,
}

impl ReplacedPages {
    fn overlaps(&self, start: usize, span: usize) -> bool {
        self.start < start + span && start < self.start + self.span
    }
}

/// What a new region at this place has to hold: the replaced pages there. They are replaced now, if the region is of
/// whole pages of private memory and no other region (`is_taken`) has a part of it: a peer may be writing there.
pub(crate) fn hold(address: usize, length: usize, is_taken: impl FnOnce() -> bool) -> Vec<Arc<ReplacedPages>> {
    if !IS_ASKED_FOR.load(Ordering::Relaxed) {
        return Vec::new();
    }
    let Some((start, span)) = mapped::pages(address, length) else { return Vec::new() };
    let mut replaced = REPLACED.lock();
    replaced.retain(|pages| pages.strong_count() > 0);
    let held: Vec<_> = replaced.iter().filter_map(Weak::upgrade).filter(|pages| pages.overlaps(start, span)).collect();
    if !held.is_empty() || (start, span) != (address, length) || span == 0 || is_taken() {
        return held;
    }
    match replace(start, span) {
        Ok(pages) => {
            let pages = Arc::new(pages);
            replaced.push(Arc::downgrade(&pages));
            vec![pages]
        }
        // Peers reach it by the kernel then.
        Err(_) => held,
    }
}

/// In a forked child: pages that the child writes become its own. Takes no lock that another thread may have held.
pub fn keep_replaced_pages_in_child() {
    let Some(replaced) = REPLACED.try_lock() else { return };
    for pages in replaced.iter().filter_map(Weak::upgrade) {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
        // SAFETY: the same bytes at the same addresses.
        unsafe { libc::mmap(pages.start as *mut _, pages.span, rights, flags, pages.file.as_raw_fd(), 0) };
        // The last reference to it is the parent's region, whose memory the child has a copy of.
        std::mem::forget(pages);
    }
}

fn replace(start: usize, span: usize) -> io::Result<ReplacedPages> {
    let busy = || io::Error::from_raw_os_error(libc::EBUSY);
    refuse_if!(shareable::count() >= MAX_SHAREABLE_MAPPINGS || !is_private(start, span)?, busy());
    let file = sealed_file(span)?;
    let copy = Mapping::of_file(file.as_fd(), 0, span, true)?;
    shareable::note(start, span, &file)?;
    let pages = ReplacedPages { start, span, file, process: std::process::id() };
    move_pages(start, span, copy).inspect_err(|_| shareable::forget(start))?;
    Ok(pages)
}

impl Drop for ReplacedPages {
    fn drop(&mut self) {
        // A child has a copy of the parent's memory, and with it of this.
        if self.process != std::process::id() {
            return;
        }
        shareable::forget(self.start);
        let inode = mapped::inode_of(self.file.as_fd()).ok();
        let is_there = |maps: &str| {
            mappings(maps, self.start as u64, self.span as u64)
                .is_some_and(|lines| lines.iter().all(|line| Some(line.inode) == inode))
        };
        // What the program has unmapped or mapped anew meanwhile is not touched.
        if std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| is_there(&maps))
            && let Ok(fresh) = Mapping::anonymous(self.span)
        {
            // Without it the pages stay those of the file, which works as well.
            let _ = move_pages(self.start, self.span, fresh);
        }
    }
}

/// Whether all of a range is memory of this process alone, of no file, and may be written; no stack that grows.
fn is_private(start: usize, span: usize) -> io::Result<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let lines = mappings(&maps, start as u64, span as u64);
    Ok(lines.is_some_and(|lines| {
        lines.iter().all(|line| line.rights.starts_with("rw-p") && line.inode == 0 && !line.name.starts_with("[stack"))
    }))
}

/// Copies a range to `copy` and puts that in its place. Writes of other threads wait meanwhile.
fn move_pages(start: usize, span: usize, copy: Mapping) -> io::Result<()> {
    let wait = WriteBarrier::around(start, span)?;
    // SAFETY: the range is mapped, and no thread writes to it while the barrier stands; the copy is ours alone, and as
    // long. Its mapping goes where the same bytes were.
    let moved = unsafe {
        std::ptr::copy_nonoverlapping(start as *const u8, copy.first(), span);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        libc::mremap(copy.first().cast(), span, span, flags, start as *mut libc::c_void)
    };
    drop(wait);
    refuse_if!(moved == libc::MAP_FAILED, io::Error::last_os_error());
    // It is no mapping of its own any more.
    std::mem::forget(copy);
    Ok(())
}

/// While it stands, threads that write to a range wait; the kernel refuses to write there for them.
struct WriteBarrier {
    _faults: OwnedFd,
}

impl WriteBarrier {
    fn around(start: usize, span: usize) -> io::Result<WriteBarrier> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: flags alone.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        refuse_if!(faults < 0, io::Error::last_os_error());
        // SAFETY: just made, and not shared.
        let faults = unsafe { OwnedFd::from_raw_fd(faults as i32) };
        let ask = |request: u64, words: &mut [u64]| {
            // SAFETY: each request has a structure of so many words.
            let result = unsafe { libc::ioctl(faults.as_raw_fd(), request as libc::Ioctl, words.as_mut_ptr()) };
            if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        let range = [start as u64, span as u64];
        ask(UFFDIO_API, &mut [USERFAULTFD_API, FEATURE_WRITE_PROTECT | FEATURE_WRITE_PROTECT_FILES, 0])?;
        ask(UFFDIO_REGISTER, &mut [range[0], range[1], REGISTER_WRITE_PROTECT, 0])?;
        ask(UFFDIO_WRITEPROTECT, &mut [range[0], range[1], PROTECT])?;
        Ok(WriteBarrier { _faults: faults })
    }
}

// From linux/userfaultfd.h.
const USER_MODE_ONLY: i32 = 1;
const USERFAULTFD_API: u64 = 0xaa;
const FEATURE_WRITE_PROTECT: u64 = 1;
const FEATURE_WRITE_PROTECT_FILES: u64 = 1 << 12;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const PROTECT: u64 = 1;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    const WORDS: usize = 1 << 16;

    #[test]
    fn no_write_is_lost_while_pages_are_replaced_and_given_back() {
        let memory = Mapping::anonymous(WORDS * 8).unwrap();
        let (start, span) = (memory.first().addr(), WORDS * 8);
        // SAFETY: as many words, all zero, that only atomics touch.
        let words = unsafe { std::slice::from_raw_parts(memory.first().cast::<AtomicU64>(), WORDS) };
        mapped::check(start, span, true).unwrap();
        let ends = AtomicBool::new(false);
        let counted: u64 = thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|first| {
                    let ends = &ends;
                    scope.spawn(move || {
                        let mut count = 0;
                        for word in words.iter().cycle().skip(first * 7).step_by(517) {
                            word.fetch_add(1, Ordering::Relaxed);
                            count += 1;
                            if ends.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                        count
                    })
                })
                .collect();
            for _ in 0..20 {
                let pages = replace(start, span).unwrap();
                assert!(!is_private(start, span).unwrap() && shareable::find(start, 8).is_some());
                drop(pages);
                assert!(is_private(start, span).unwrap() && shareable::find(start, 8).is_none());
            }
            ends.store(true, Ordering::Relaxed);
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        assert_eq!(words.iter().map(|word| word.load(Ordering::Relaxed)).sum::<u64>(), counted);
    }

    #[test]
    fn memory_that_was_unmapped_meanwhile_is_left_alone() {
        let memory = Mapping::anonymous(4 * mapped::page_size()).unwrap();
        let (start, span) = (memory.first().addr(), 4 * mapped::page_size());
        let pages = replace(start, span).unwrap();
        let (rights, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: inside of the mapping above.
        unsafe { libc::mmap(memory.first().cast(), mapped::page_size(), rights, flags, -1, 0) };
        drop(pages);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let lines = mappings(&maps, start as u64, span as u64).unwrap();
        assert!(lines[0].rights.starts_with("r--p") && lines[1].rights.starts_with("rw-s"), "{lines:?}");
    }

    #[test]
    fn memory_of_files_and_read_only_memory_are_not_replaced() {
        let shared = Mapping::shareable(4096).unwrap();
        assert!(replace(shared.first().addr(), mapped::page_size()).is_err());
        let page = mapped::page_size();
        assert!(replace((main as fn() as usize) & !(page - 1), page).is_err());
    }

    fn main() {}
}
