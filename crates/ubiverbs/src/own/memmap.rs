//! Maps that a program made with the crate `memmap2`. Making one is `unsafe`: with that the program has promised that
//! nobody else changes the file meanwhile. [`share_file`](crate::ProtectionDomain::share_file) needs no such promise.

use super::ReadOnlyMemory;
use memmap2::{Mmap, MmapMut};
use std::ptr::NonNull;

// SAFETY: mapped until it is dropped, and nobody else touches it, by the promise of who made it.
kept_whole!(MmapMut, |map| NonNull::from(&mut **map));
own_bytes!(MmapMut);

// SAFETY: mapped until it is dropped, and nobody writes it, by the promise of who made it.
kept_whole!(Mmap, |map| NonNull::from(&**map));
impl ReadOnlyMemory for Mmap {}
