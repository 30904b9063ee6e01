//! Memory of a process that its peers reach without it: a WRITE or READ by the posting thread itself, while the other
//! process may sleep or be stopped. Packets, and what the program's program hears of them, are others' business.
//!
//! The process that lets others in (the *target*) hands each peer a descriptor of its own memory (`/proc/self/mem`),
//! and publishes what may be done: which regions are open on which terms, which queue pairs take what from whom. The
//! table is sealed memory that only the target can write. The peer (the *requester*) looks there, moves the bytes with
//! a system call, and sends packets whenever the table does not say yes.
//!
//! | module | what |
//! |---|---|
//! | `protocol` | how an access ends before the target takes its memory back; a model checker runs it |
//! | `published` | the target: the table, and whom it lets in |
//! | `claim` | the target: whether a thread of the requester is still at it |
//! | `peer` | the requester: another process's table and memory |
//! | `views` | the requester: its mappings of the files that regions of the peer are of |
//! | `restartable` | the requester: a copy that is never finished late |
//!
//! Memory that this library allocated is of files (`memory::shareable`). The requester maps such a file after a few
//! accesses, and from then on moves the bytes with its own stores and loads. Other memory stays with the system call.
//!
//! # Who is let in
//!
//! A descriptor of a process's memory opens all of it. So the kernel decides: the requester has to read a number by
//! `/proc/PID/fd`, which the kernel allows to processes that may read the target's memory (the same user, user
//! namespace and no fewer capabilities; not a process that made itself undumpable). Only who may attach to it as a
//! debugger (Yama) is not asked.

mod claim;
mod peer;
mod protocol;
mod published;
mod restartable;
mod views;

pub(super) use peer::PeerTable;
pub use peer::{DirectAccess, Moved, PIECE_BYTES, PeerAccesses, PeerMemory};
pub(super) use published::Grant;
pub use published::{Published, PublishedQueuePair, PublishedRegion, SharedFile};

use super::map::Mapping;
use protocol::{ENTRY_BYTES, Entry, find_entry, publish_entry, withdraw_entry};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;

/// What the table begins with.
const TABLE_MAGIC: u64 = u64::from_ne_bytes(*b"UbiDir01");
/// Where words of its first page are: the magic, the number that proves a requester's right, whether it is open, the
/// page's address in the target, a word to try writing on, and the generation of the table.
const MAGIC_OFFSET: usize = 0;
const SECRET_OFFSET: usize = 8;
const OPEN_OFFSET: usize = 64;
const ADDRESS_OFFSET: usize = 128;
const SCRATCH_OFFSET: usize = 192;
const GENERATION_OFFSET: usize = 256;
const HEADER_BYTES: usize = 4096;
/// Entries of one kind that may have the same place: what finds none free is not published.
const PLACE_ENTRIES: usize = 4;

/// The kinds of entries: where those of the table are, and how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shelf {
    /// By R_Key.
    Regions,
    /// By number.
    QueuePairs,
    /// By the number of the grant.
    Grants,
}

impl Shelf {
    /// As logarithms, in the order of the kinds.
    const SIZE_LOGARITHMS: [u32; 3] = [12, 10, 10];
    const TABLE_BYTES: usize = HEADER_BYTES + ((1 << 12) + (1 << 10) + (1 << 10)) * ENTRY_BYTES;

    /// The entries where one of that name may be.
    #[inline]
    fn places(self, map: &Mapping, name: u64) -> &[Entry] {
        let before: usize = Shelf::SIZE_LOGARITHMS[..self as usize].iter().map(|log| 1usize << log).sum();
        // The upper bits of the product depend on all bits of the name.
        let hash = name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - Shelf::SIZE_LOGARITHMS[self as usize]);
        let first = before + hash as usize / PLACE_ENTRIES * PLACE_ENTRIES;
        let start = map.at(HEADER_BYTES + first * ENTRY_BYTES, PLACE_ENTRIES * ENTRY_BYTES);
        // SAFETY: within the mapping, which lives as long as `map`, and aligned, because it begins at a page and
        // entries fill cache lines. Entries are atomics for which all bits are values.
        unsafe { std::slice::from_raw_parts(start.cast::<Entry>(), PLACE_ENTRIES) }
    }
}

/// The name of a key or a queue pair's number: never 0.
#[inline]
fn name_of(number: u32) -> u64 {
    1 << 32 | u64::from(number)
}

/// Where the next access by a descriptor of memory goes. Waits for the access that is under way.
fn set_position(memory: RawFd, address: u64) {
    // SAFETY: numbers; a descriptor that is none is an error.
    unsafe { libc::syscall(libc::SYS_lseek, memory, address as i64, libc::SEEK_SET) };
}

/// Whether this process could hand its memory to others: for a tool that says so.
pub fn check_support() -> io::Result<()> {
    Published::new()?.try_own_memory()
}

fn word(map: &Mapping, offset: usize) -> &AtomicU64 {
    map.double_word(offset)
}

#[cfg(test)]
mod tests;
