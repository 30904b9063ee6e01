//! Maps that a program made with the crate `memmap2`. Making one is `unsafe`: with that the program has promised that
//! nobody else changes the file meanwhile. [`share_file`](crate::ProtectionDomain::share_file) needs no such promise.

use super::{Memory, OwnMemory, ReadOnlyMemory};
use memmap2::{Mmap, MmapMut};
use std::ptr::NonNull;

// SAFETY: mapped until it is dropped, and nobody else touches it, by the promise of who made it.
unsafe impl Memory for MmapMut {
    type Rest = MmapMut;

    fn take_apart(mut self) -> (NonNull<u8>, usize, MmapMut) {
        (NonNull::from(&mut *self).cast(), self.len(), self)
    }

    unsafe fn put_together(_: NonNull<u8>, rest: MmapMut) -> MmapMut {
        rest
    }
}

impl OwnMemory for MmapMut {
    type Slice = [u8];

    fn view(bytes: &[u8]) -> &[u8] {
        bytes
    }

    fn view_mut(bytes: &mut [u8]) -> &mut [u8] {
        bytes
    }
}

// SAFETY: mapped until it is dropped, and nobody writes it, by the promise of who made it.
unsafe impl Memory for Mmap {
    type Rest = Mmap;

    fn take_apart(self) -> (NonNull<u8>, usize, Mmap) {
        (NonNull::from(&*self).cast(), self.len(), self)
    }

    unsafe fn put_together(_: NonNull<u8>, rest: Mmap) -> Mmap {
        rest
    }
}

impl ReadOnlyMemory for Mmap {}
