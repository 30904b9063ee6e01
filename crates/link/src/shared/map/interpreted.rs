//! What stands in for shared memory under Miri, which knows neither memfds nor shared mappings: memory of the one
//! process there is, found again by the number of a descriptor. It is never given back, so that no later descriptor of
//! the same number can take it from a mapping.

use super::Mapping;
use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

#[repr(align(4096))]
struct Page(#[allow(dead_code, reason = "reached through pointers")] UnsafeCell<[u8; 4096]>);

struct Memory {
    descriptor: RawFd,
    pages: &'static [Page],
    length: usize,
}

// SAFETY: bytes that are reached through atomics and raw copies only, as those of a mapping are.
unsafe impl Send for Memory {}

/// The latest is the last.
static MAPPED_MEMORIES: Mutex<Vec<Memory>> = Mutex::new(Vec::new());

impl Memory {
    fn mapping(&self) -> Mapping {
        let base = NonNull::from(self.pages).cast();
        Mapping { base, length: self.length, process: std::process::id() }
    }
}

impl Mapping {
    /// New memory, and the descriptor by which it is found.
    pub fn create(length: usize) -> io::Result<(Mapping, OwnedFd)> {
        let fd = OwnedFd::from(File::open("/dev/null")?);
        let pages: Box<[Page]> = (0..length.div_ceil(4096)).map(|_| Page(UnsafeCell::new([0; 4096]))).collect();
        let memory = Memory { descriptor: fd.as_raw_fd(), pages: Box::leak(pages), length };
        let mapping = memory.mapping();
        MAPPED_MEMORIES.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        Ok((mapping, fd))
    }

    /// As [`create`](Mapping::create).
    pub fn create_published(length: usize) -> io::Result<(Mapping, OwnedFd)> {
        Mapping::create(length)
    }

    /// As [`accept`](Mapping::accept).
    pub fn accept_published(fd: BorrowedFd<'_>, length: usize) -> io::Result<Mapping> {
        Mapping::accept(fd, |known| known == length as u64)
    }

    /// Memory of this process alone.
    pub fn private(length: usize) -> io::Result<Mapping> {
        Mapping::create(length).map(|(mapping, _)| mapping)
    }

    /// The memory that was created with this descriptor.
    pub fn accept(fd: BorrowedFd<'_>, lengths: impl FnOnce(u64) -> bool) -> io::Result<Mapping> {
        let memories = MAPPED_MEMORIES.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = memories.iter().rev().find(|memory| memory.descriptor == fd.as_raw_fd());
        let memory = memory.filter(|memory| lengths(memory.length as u64)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(memory.mapping())
    }
}
