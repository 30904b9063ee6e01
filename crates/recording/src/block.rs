//! A block: [`BLOCK_BYTES`] of a file with a head and records. Each can be read without the others. A record counts when
//! the block's head says so, and it says so after the record is there: whatever ends the writer, what the head counts is
//! whole.

use alloc::boxed::Box;
use core::sync::atomic::{Ordering, compiler_fence};

use trace::Event;
use trace::packed::{Memory, PackedBytes};

/// How long a block is, and what comes before the first.
pub const BLOCK_BYTES: usize = 64 << 10;

/// The head of a block.
pub const BLOCK_HEAD_BYTES: usize = 48;

/// The first bytes of a block.
pub const BLOCK_MAGIC: [u8; 4] = *b"uvbk";

/// The longest record.
pub const MAX_RECORD_BYTES: usize = (1 << 14) - 1;

/// The longest text of a note.
pub const MAX_TEXT_BYTES: usize = 8 << 10;

/// Where the head says how many bytes of records there are.
const COMMITTED_AT: core::ops::Range<usize> = 4..8;

/// What the head of a block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockStart {
    /// The number of the block, from 0. In a ring, where blocks are written over, the numbers go on.
    pub sequence: u64,
    /// When it was begun, on the clock of its events.
    pub at: u64,
    /// The same moment on the host's monotonic clock, in nanoseconds.
    pub monotonic: u64,
    /// The same moment in nanoseconds since the Unix epoch.
    pub wall: u64,
}

impl BlockStart {
    /// What a block says, and its records; none if it is no block. Of records that it says it has but has not, none is
    /// returned.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<(BlockStart, &[u8])> {
        let number = |at: usize| Some(u64::from_le_bytes(block.get(at..at + 8)?.try_into().ok()?));
        if block.get(..4)? != BLOCK_MAGIC {
            return None;
        }
        let committed = u32::from_le_bytes(block.get(COMMITTED_AT)?.try_into().ok()?) as usize;
        let start = BlockStart { sequence: number(8)?, at: number(16)?, monotonic: number(24)?, wall: number(32)? };
        let records = block.get(BLOCK_HEAD_BYTES..)?;
        Some((start, &records[..committed.min(records.len())]))
    }
}

/// Writes records into blocks.
#[derive(Debug, Default)]
pub struct BlockWriter {
    memory: Box<Memory>,
    /// Where the next record begins.
    end: usize,
    is_full: bool,
}

impl BlockWriter {
    /// Begins a block, whatever is in it.
    pub fn begin(&mut self, block: &mut [u8], start: &BlockStart) {
        let BlockStart { sequence, at, monotonic, wall } = *start;
        (self.end, self.is_full) = (BLOCK_HEAD_BYTES, false);
        self.memory.reset(at);
        // Nothing counts until the rest of the head is there.
        write(block, COMMITTED_AT.start, &[0; 4]);
        compiler_fence(Ordering::SeqCst);
        for (place, number) in [(8, sequence), (16, at), (24, monotonic), (32, wall), (40, 0)] {
            write(block, place, &number.to_le_bytes());
        }
        write(block, 0, &BLOCK_MAGIC);
    }

    /// How long the block is now.
    #[must_use]
    pub fn length(&self) -> usize {
        self.end
    }

    /// Adds an event. False if the block has no room for it: then nothing more can be added, and the next must be begun.
    #[inline]
    pub fn event(&mut self, block: &mut [u8], event: &Event) -> bool {
        self.add(block, &[], |memory| memory.pack(event))
    }

    /// Adds that the work request was accepted that the last event of the block posts: `trace::Event::acceptance`.
    #[inline]
    pub fn acceptance(&mut self, block: &mut [u8]) -> bool {
        self.add(block, &[], Memory::pack_acceptance)
    }

    /// Adds what is no event.
    pub fn note(&mut self, block: &mut [u8], name: &'static str, at: u64, numbers: &[u64], texts: &[&str]) -> bool {
        self.add(block, texts, |memory| memory.pack_note(name, at, numbers, texts))
    }

    #[inline]
    fn add(
        &mut self,
        block: &mut [u8],
        texts: &[&str],
        pack: impl FnOnce(&mut Memory) -> Option<PackedBytes<'_>>,
    ) -> bool {
        if self.is_full {
            return false;
        }
        match pack(&mut self.memory).and_then(|packed| append(block, self.end, packed, texts)) {
            Some(end) => self.end = end,
            // The memory has what the block has not.
            None => self.is_full = true,
        }
        !self.is_full
    }
}

/// Appends a record and returns where the next begins; none if there is no room.
#[inline]
fn append(block: &mut [u8], begin: usize, packed: PackedBytes<'_>, texts: &[&str]) -> Option<usize> {
    let length = texts.iter().fold(packed.len(), |length, text| length.saturating_add(text.len()));
    // Most records are short: the length takes one byte, and two if it does not fit.
    let head = if length < 0x80 { 1 } else { 2 };
    if length > MAX_RECORD_BYTES {
        return None;
    }
    let mut out = block.get_mut(begin..)?;
    if out.len() < head + length {
        return None;
    }
    out[0] = length as u8 & 0x7f | if head == 2 { 0x80 } else { 0 };
    if head == 2 {
        out[1] = (length >> 7) as u8;
    }
    out = &mut out[head..];
    packed.copy_to(out);
    out = &mut out[packed.len()..];
    for text in texts {
        out[..text.len()].copy_from_slice(text.as_bytes());
        out = &mut out[text.len()..];
    }
    let end = begin + head + length;
    let committed = (end - BLOCK_HEAD_BYTES) as u32;
    // A signal that ends the process comes between two instructions: first the record, then that it counts.
    compiler_fence(Ordering::SeqCst);
    write(block, COMMITTED_AT.start, &committed.to_le_bytes());
    Some(end)
}

/// A record of a block that was packed, and what follows it; none at the end, or where it makes no sense.
#[must_use]
pub fn next_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = records.split_first()?;
    if *first < 0x80 {
        return rest.split_at_checked(usize::from(*first));
    }
    let (second, rest) = rest.split_first()?;
    rest.split_at_checked(usize::from(first & 0x7f) | usize::from(*second) << 7)
}

fn write(block: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = block.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
