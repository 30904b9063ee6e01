//! Bytes in and out of memory that other threads may be changing. Programs spin on the last byte of a message, so a
//! copy into memory goes up a chunk at a time and stores its last eight bytes last, with release; and a program may
//! write to a buffer while it is read, which is its own business and must stay so. Bounds and rights were checked by
//! the caller.
//!
//! # Why plain copies are sound enough
//!
//! The other side of these races is a program in any language, storing as it likes. The language has no copy of many
//! bytes that tolerates that; an atomic access per word would, at a tenth of the speed. So the bulk is moved by the C
//! library's `memmove`, out of line, over raw pointers: no reference to the memory ever exists, no value is derived
//! from it here, nothing branches on it, and a fence after each chunk keeps the compiler from moving the copy or
//! reading the source a second time. Torn data is the worst outcome, and is what a NIC gives too. What a program may
//! rely on (eight aligned bytes whole, the last bytes last) goes through atomics. Under Miri, which finds any race and
//! any two sizes that meet, all goes byte by byte.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// How much is moved before the next store is ordered behind it. Below the size at which the C library turns to
/// non-temporal stores, and large enough that the call does not show.
const ORDERED_CHUNK_BYTES: usize = 4096;

/// How much is moved at once of what is read, where no order matters: long enough that the C library writes whole cache
/// lines without asking another processor for what they held. Through shared memory that is a fifth of the time.
const LOAD_CHUNK_BYTES: usize = 64 * 1024;

/// The bytes that are stored last.
const TAIL_BYTES: usize = 8;

/// Copies `source` to `target` and beyond.
///
/// # Safety
/// `target` must be valid for writes of `source.len()` bytes, but for races with code that tolerates them.
pub(crate) unsafe fn store(target: *mut u8, source: &[u8]) {
    if cfg!(miri) {
        // SAFETY: the same contract.
        return unsafe { store_bytes(target, source) };
    }
    let (bulk, tail) = source.split_at(source.len().saturating_sub(TAIL_BYTES));
    let mut at = target;
    for chunk in bulk.chunks(ORDERED_CHUNK_BYTES) {
        // SAFETY: the chunks are consecutive parts of `source`, so `at` and as many bytes are part of the target.
        // `copy`, not `copy_nonoverlapping`: a program may have registered what other code holds read-only.
        unsafe {
            std::ptr::copy(chunk.as_ptr(), at, chunk.len());
            at = at.add(chunk.len());
        }
        fence(Ordering::Release);
    }
    // SAFETY: `at` is past the bulk; what is left of the target is as long as the tail.
    unsafe { store_tail(at, tail) };
}

/// Copies what is at `source` and beyond into `target`.
///
/// # Safety
/// `source` must be valid for reads of `target.len()` bytes, but for races with code that tolerates them.
pub(crate) unsafe fn load(target: &mut [u8], source: *const u8) {
    if cfg!(miri) {
        // SAFETY: the same contract.
        return unsafe { load_bytes(target, source) };
    }
    if target.len() <= TAIL_BYTES {
        // SAFETY: as many bytes as the target has are readable.
        unsafe { load_words(target, source) };
        return;
    }
    let mut at = source;
    for chunk in target.chunks_mut(LOAD_CHUNK_BYTES) {
        // SAFETY: the chunks are consecutive parts of `target`, and the source is as long.
        unsafe {
            std::ptr::copy(at, chunk.as_mut_ptr(), chunk.len());
            at = at.add(chunk.len());
        }
        fence(Ordering::Acquire);
    }
}

/// `store` a byte at a time: no two accesses of different sizes meet, whatever the other side does.
///
/// # Safety
/// As `store`.
unsafe fn store_bytes(target: *mut u8, source: &[u8]) {
    for (i, byte) in source.iter().enumerate() {
        // SAFETY: within the target; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(target.add(i)) }.store(*byte, Ordering::Release);
    }
}

/// `load` a byte at a time.
///
/// # Safety
/// As `load`.
unsafe fn load_bytes(target: &mut [u8], source: *const u8) {
    for (i, byte) in target.iter_mut().enumerate() {
        // SAFETY: within the source, which tests for this mode make writable; a byte is always aligned.
        *byte = unsafe { AtomicU8::from_ptr(source.add(i).cast_mut()) }.load(Ordering::Acquire);
    }
}

/// Stores up to eight bytes, ascending, each store a release; aligned words are stored whole.
///
/// # Safety
/// As `store`, with at most eight bytes.
#[inline]
unsafe fn store_tail(target: *mut u8, bytes: &[u8]) {
    if let Ok(whole) = <[u8; TAIL_BYTES]>::try_from(bytes) {
        if target.addr().is_multiple_of(8) {
            // SAFETY: eight bytes are valid for writes and aligned.
            unsafe { AtomicU64::from_ptr(target.cast()) }.store(u64::from_ne_bytes(whole), Ordering::Release);
            return;
        }
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            // One store, though not aligned: whole for every thread unless it crosses a cache line. Ordered behind all
            // stores before it, as every store of this machine is; the block is opaque to the compiler, which moves no
            // access to memory across it.
            // SAFETY: eight bytes are valid for writes; `mov` needs no alignment.
            unsafe {
                std::arch::asm!("mov qword ptr [{at}], {value}", at = in(reg) target,
                    value = in(reg) u64::from_ne_bytes(whole), options(nostack, preserves_flags));
            }
            return;
        }
    }
    let mut at = target;
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: `at` runs through the target in step with `rest`; each cell is within it and aligned, as the arm's
        // guard says.
        let taken = unsafe {
            match *rest {
                [a, b, c, d, ..] if at.addr().is_multiple_of(4) => {
                    AtomicU32::from_ptr(at.cast()).store(u32::from_ne_bytes([a, b, c, d]), Ordering::Release);
                    4
                }
                [a, b, ..] if at.addr().is_multiple_of(2) => {
                    AtomicU16::from_ptr(at.cast()).store(u16::from_ne_bytes([a, b]), Ordering::Release);
                    2
                }
                _ => {
                    AtomicU8::from_ptr(at).store(rest[0], Ordering::Release);
                    1
                }
            }
        };
        // SAFETY: `taken` bytes of the target were there, so one past them is still within it or at its end.
        at = unsafe { at.add(taken) };
        rest = &rest[taken..];
    }
}

/// Loads up to eight bytes; aligned words are loaded whole.
///
/// # Safety
/// As `load`, with at most eight bytes.
#[inline]
unsafe fn load_words(target: &mut [u8], source: *const u8) {
    // Volatile, because the atomics would need a pointer that may be written through, and the memory may be read-only.
    // A volatile load of an aligned word is one load; the fence makes it an acquire.
    let mut at = source;
    let mut rest = target;
    while !rest.is_empty() {
        let (length, place) = (rest.len(), at.addr());
        // SAFETY: `at` runs through the source in step with `rest`; each word is within it and aligned, as the
        // condition says.
        let taken = unsafe {
            if length >= 8 && place.is_multiple_of(8) {
                rest[..8].copy_from_slice(&at.cast::<u64>().read_volatile().to_ne_bytes());
                8
            } else if length >= 4 && place.is_multiple_of(4) {
                rest[..4].copy_from_slice(&at.cast::<u32>().read_volatile().to_ne_bytes());
                4
            } else if length >= 2 && place.is_multiple_of(2) {
                rest[..2].copy_from_slice(&at.cast::<u16>().read_volatile().to_ne_bytes());
                2
            } else {
                rest[0] = at.read_volatile();
                1
            }
        };
        // SAFETY: `taken` bytes of the source were there, so one past them is still within it or at its end.
        at = unsafe { at.add(taken) };
        rest = &mut rest[taken..];
    }
    fence(Ordering::Acquire);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(16))]
    struct Room([u8; 32]);

    #[test]
    fn words_of_every_length_and_alignment_are_exact() {
        for store in [store_tail, store_bytes] {
            for (start, length) in (0..16).flat_map(|start| (0..=TAIL_BYTES).map(move |length| (start, length))) {
                let mut room = Room([0xee; 32]);
                let bytes: Vec<u8> = (1..=length as u8).collect();
                // SAFETY: start and length together are less than the room.
                unsafe { store(room.0.as_mut_ptr().add(start), &bytes) };
                let mut expected = [0xee; 32];
                expected[start..start + length].copy_from_slice(&bytes);
                assert_eq!(room.0, expected, "{length} at {start}");
            }
        }
        for load in [load_words, load_bytes] {
            let mut room = Room(std::array::from_fn(|i| i as u8));
            for (start, length) in (0..16).flat_map(|start| (0..=TAIL_BYTES).map(move |length| (start, length))) {
                let mut bytes = [0xee; TAIL_BYTES];
                // SAFETY: start and length together are less than the room.
                unsafe { load(&mut bytes[..length], room.0.as_mut_ptr().add(start)) };
                assert!(bytes[..length].iter().copied().eq((start..start + length).map(|i| i as u8)));
                assert!(bytes[length..].iter().all(|byte| *byte == 0xee));
            }
        }
    }
}
