//! What the tests share: memory that is only touched by address, as a program in another language would, and the usual
//! subjects.

#![allow(dead_code, reason = "each test file uses some of it")]

#[cfg(not(miri))]
pub mod stand_in;

use memory::{
    Access, Bind, Error, Key, Memory, ProtectionDomain, Qpn, Range, Refusal, RefusalCause, RegionSpec, Subject,
    Translation, WindowType,
};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const PD: ProtectionDomain = ProtectionDomain(1);
pub const OTHER: ProtectionDomain = ProtectionDomain(2);
pub const LOCAL: Subject = Subject { pd: PD, qpn: Qpn::new(0x11), remote: false };
pub const REMOTE: Subject = Subject { remote: true, ..LOCAL };
pub const STRANGER: Subject = Subject { pd: OTHER, ..REMOTE };
pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Bytes on the heap, aligned to 64.
pub struct Buffer {
    first: *mut u8,
    length: usize,
}

// SAFETY: all access goes through atomics.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn new(length: usize) -> Buffer {
        // SAFETY: the size is not zero.
        let first = unsafe { std::alloc::alloc_zeroed(Buffer::layout(length)) };
        assert!(!first.is_null());
        Buffer { first, length }
    }

    pub fn of(bytes: &[u8]) -> Buffer {
        let buffer = Buffer::new(bytes.len());
        for (i, byte) in bytes.iter().enumerate() {
            buffer.cell(i).store(*byte, Ordering::Relaxed);
        }
        buffer
    }

    fn layout(length: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(length.max(1), 64).unwrap()
    }

    pub fn pointer(&self) -> *mut u8 {
        self.first
    }

    pub fn address(&self) -> u64 {
        self.first.addr() as u64
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn cell(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.length);
        // SAFETY: inside the allocation, which lives as long as `self`.
        unsafe { AtomicU8::from_ptr(self.first.add(offset)) }
    }

    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.length && offset.is_multiple_of(8));
        // SAFETY: inside the allocation, which lives as long as `self` and is aligned.
        unsafe { AtomicU64::from_ptr(self.first.add(offset).cast()) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        (0..self.length).map(|i| self.cell(i).load(Ordering::Relaxed)).collect()
    }

    pub fn translation(&self) -> Translation {
        Translation::new(self.first, self.length)
    }

    pub fn spec(&self, access: Access) -> RegionSpec {
        RegionSpec { translation: self.translation(), domain: PD, access }
    }

    pub fn register(&self, memory: &Memory, access: Access) -> Key {
        register(memory, &self.spec(access)).unwrap()
    }

    pub fn range(&self, key: Key, offset: u64, length: u64) -> Range {
        Range { key, address: self.address().wrapping_add(offset), length }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.first, Buffer::layout(self.length)) };
    }
}

/// Registers memory that the test keeps until the region is gone.
pub fn register(memory: &Memory, spec: &RegionSpec) -> Result<Key, Error> {
    // SAFETY: tests touch what they register by atomics only, and keep it.
    unsafe { memory.register(spec) }
}

pub fn cause<T: Debug>(result: Result<T, Refusal>) -> RefusalCause {
    result.unwrap_err().cause
}

/// A window over a part of a region, of which it returns the key.
pub fn window(memory: &Memory, kind: WindowType, region: Key, address: u64, length: u64, access: Access) -> Key {
    let window = memory.allocate_window(PD, kind).unwrap();
    let bind = Bind { window, new_key: window.next(), region, address, length, access };
    memory.bind(LOCAL, &bind).unwrap();
    bind.new_key
}

/// Up to `most` rounds, but on a crowded machine, where one takes a time slice, only as many as fit in two seconds (and
/// ten at least).
pub fn rounds(most: u32) -> impl Iterator<Item = u32> {
    let start = Instant::now();
    (0..most).take_while(move |round| *round < 10 || start.elapsed() < Duration::from_secs(2))
}

/// Pages of our own, for the rules of mappings.
pub struct Pages {
    pub first: *mut u8,
    pub length: usize,
}

impl Pages {
    pub const SIZE: usize = 4096;

    pub fn new(count: usize, flags: i32, fd: i32) -> Pages {
        let length = count * Pages::SIZE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), length, rights, flags, fd, 0) };
        assert_ne!(first, libc::MAP_FAILED);
        Pages { first: first.cast(), length }
    }

    pub fn private(count: usize) -> Pages {
        Pages::new(count, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    pub fn protect(&self, page: usize, count: usize, rights: i32) {
        // SAFETY: pages of our own.
        let result = unsafe { libc::mprotect(self.first.add(page * Pages::SIZE).cast(), count * Pages::SIZE, rights) };
        assert_eq!(result, 0);
    }

    pub fn translation(&self) -> Translation {
        Translation::new(self.first, self.length)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: a mapping of our own.
        unsafe { libc::munmap(self.first.cast(), self.length) };
    }
}
