//! Reads a file, block by block in the order in which they were written. A file may end anywhere, and may have been
//! written by anybody: what makes no sense is skipped and counted, and no more memory is used than a block and a word per
//! block take.

use std::io::{self, Read, Seek, SeekFrom};
use std::string::String;
use std::vec;
use std::vec::Vec;

use trace::Event;
use trace::packed::{Recall, Unpacked};

use crate::block::{BLOCK_BYTES, BLOCK_HEAD_BYTES, BlockStart, next_record};
use crate::header::{FileHeader, HeaderError};
use crate::recent::{self, RECENT_AT, RECENT_BYTES};

/// Findings of the checker, one JSON object each.
pub const FINDING_NOTE: &str = "finding";

/// What another tool tells of: how long it took, the thread; tool, name, and names and values of fields.
pub const SPAN_NOTE: &str = "span";

/// How many blocks of a file are read: 64 GiB.
const MAX_BLOCKS: u64 = 1 << 20;

/// What a recording has.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Entry {
    /// An event of the NIC.
    Event(Event),
    /// The checker found something.
    Finding {
        /// When.
        at: u64,
        /// What, as a JSON object.
        json: String,
    },
    /// Another tool said so.
    Span {
        /// When it began.
        at: u64,
        /// Nanoseconds.
        duration: u64,
        /// The thread.
        thread: u32,
        /// Which tool.
        tool: String,
        /// What it is.
        name: String,
        /// Its fields.
        fields: Vec<(String, String)>,
    },
}

impl Entry {
    /// When, on the clock of the recording.
    #[must_use]
    pub fn at(&self) -> u64 {
        match self {
            Self::Event(event) => event.at,
            Self::Finding { at, .. } | Self::Span { at, .. } => *at,
        }
    }
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is none that can be read here.
    #[error("{0}")]
    Header(#[from] HeaderError),
}

/// A recording that is read.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    header: FileHeader,
    /// Numbers of blocks, and where they are in the file.
    blocks: Vec<(u64, u64)>,
    next: usize,
    block: Vec<u8>,
    /// Where the next record begins.
    at: usize,
    /// Where the records of the block end.
    end: usize,
    recall: Recall,
    /// The newest events of a process that had no time to pack them.
    recent: std::collections::VecDeque<Event>,
    /// The last that was read.
    newest: Option<Event>,
    /// What follows the last event if its work request was accepted.
    acceptance: Option<Event>,
    first: Option<BlockStart>,
    last: Option<BlockStart>,
    nearest: Option<BlockStart>,
    gaps: u64,
    damaged: u64,
    skipped: u64,
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the header, and finds the blocks.
    ///
    /// # Errors
    /// What is no recording, and what the system cannot read.
    pub fn new(mut from: R) -> Result<Self, RecordingError> {
        let mut block = vec![0; BLOCK_BYTES];
        let length = from.seek(SeekFrom::End(0))?;
        let read = read_at(&mut from, 0, &mut block)?;
        let header = FileHeader::from_bytes(&block[..read])?;
        let recent = block[..read].get(RECENT_AT..RECENT_AT + RECENT_BYTES).map_or_else(Vec::new, recent::read);
        let count = length.div_ceil(BLOCK_BYTES as u64).saturating_sub(1).min(MAX_BLOCKS);
        let (mut blocks, mut damaged, mut nearest) = (Vec::new(), 0, None);
        let mut head = [0; BLOCK_HEAD_BYTES];
        for place in 1..=count {
            let read = read_at(&mut from, place * BLOCK_BYTES as u64, &mut head)?;
            match BlockStart::read(&head[..read]) {
                Some((start, _)) => {
                    blocks.push((start.sequence, place));
                    // The clocks of a block are read after the time of its first event, sometimes much later.
                    let delay = |start: &BlockStart| i128::from(start.monotonic) - i128::from(start.at);
                    if nearest.as_ref().is_none_or(|nearest| delay(&start) < delay(nearest)) {
                        nearest = Some(start);
                    }
                }
                // What was made and never begun is empty.
                None if head[..read].iter().all(|byte| *byte == 0) => {}
                None => damaged += 1,
            }
        }
        blocks.sort_unstable();
        let first = blocks.first().map_or(0, |(sequence, _)| *sequence);
        let last = blocks.last().map_or(0, |(sequence, _)| *sequence);
        let gaps = (last - first).saturating_add(1).saturating_sub(blocks.len() as u64);
        let gaps = if blocks.is_empty() { 0 } else { gaps };
        Ok(Self {
            from,
            header,
            blocks,
            next: 0,
            block,
            at: 0,
            end: 0,
            recall: Recall::default(),
            recent: recent.into(),
            newest: None,
            acceptance: None,
            first: None,
            last: None,
            nearest,
            gaps,
            damaged,
            skipped: 0,
        })
    }

    /// What the file says of itself.
    #[must_use]
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// What the first block said that was read.
    #[must_use]
    pub fn first_block(&self) -> Option<&BlockStart> {
        self.first.as_ref()
    }

    /// What the block says, of all of the file, whose clocks were read the soonest after the time of its first event.
    #[must_use]
    pub fn nearest_block(&self) -> Option<&BlockStart> {
        self.nearest.as_ref()
    }

    /// What the block says that is being read.
    #[must_use]
    pub fn current_block(&self) -> Option<&BlockStart> {
        self.last.as_ref()
    }

    /// How many blocks the first lacks that were before it: those of a ring that were written over.
    #[must_use]
    pub fn overwritten_blocks(&self) -> u64 {
        self.blocks.first().map_or(0, |(sequence, _)| *sequence)
    }

    /// How many blocks are missing between others.
    #[must_use]
    pub fn missing_blocks(&self) -> u64 {
        self.gaps
    }

    /// How many blocks are none, or have records that make no sense.
    #[must_use]
    pub fn damaged_blocks(&self) -> u64 {
        self.damaged
    }

    /// How many records this reader did not know: each, and what followed it in its block, was skipped.
    #[must_use]
    pub fn skipped_records(&self) -> u64 {
        self.skipped
    }

    /// The next entry; none at the end.
    ///
    /// # Errors
    /// What the system cannot read.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, RecordingError> {
        loop {
            let records = &self.block[self.at.min(self.end)..self.end];
            if records.is_empty() {
                if self.next_block()? {
                    continue;
                }
                // The oldest of them may be packed, too, if the process ended when it just was.
                let newest = self.newest.take();
                let next = self.recent.pop_front().filter(|event| newest.as_ref() != Some(event));
                return Ok(next.or_else(|| self.recent.pop_front()).map(Entry::Event));
            }
            let Some((record, rest)) = next_record(records) else {
                // A file that was cut off ends in a record.
                self.damaged += 1;
                self.at = self.end;
                continue;
            };
            self.at = self.end - rest.len();
            let accepted = self.acceptance.take();
            let entry = match self.recall.unpack(record, &[FINDING_NOTE, SPAN_NOTE]) {
                Some(Unpacked::Acceptance) => accepted.map(Entry::Event),
                unpacked => unpacked.and_then(entry),
            };
            match entry {
                Some(entry) => {
                    if let Entry::Event(event) = &entry {
                        self.acceptance = event.acceptance();
                        self.newest = Some(*event);
                    }
                    return Ok(Some(entry));
                }
                None => {
                    // What follows may refer to it.
                    self.skipped += 1;
                    self.at = self.end;
                }
            }
        }
    }

    /// Reads the next block. False if there is none.
    fn next_block(&mut self) -> Result<bool, RecordingError> {
        let Some((_, place)) = self.blocks.get(self.next) else { return Ok(false) };
        self.next += 1;
        let read = read_at(&mut self.from, place * BLOCK_BYTES as u64, &mut self.block)?;
        (self.at, self.end) = (0, 0);
        if let Some((start, records)) = BlockStart::read(&self.block[..read]) {
            self.end = BLOCK_HEAD_BYTES + records.len();
            self.at = BLOCK_HEAD_BYTES;
            self.recall.reset(start.at);
            self.acceptance = None;
            self.first.get_or_insert(start);
            self.last = Some(start);
        }
        Ok(true)
    }
}

fn entry(unpacked: Unpacked) -> Option<Entry> {
    Some(match unpacked {
        Unpacked::Event(event) => Entry::Event(event),
        Unpacked::Note { name: FINDING_NOTE, at, texts, .. } => Entry::Finding { at, json: texts.into_iter().next()? },
        Unpacked::Note { name: SPAN_NOTE, at, numbers, texts } => {
            let [duration, thread, ..] = numbers[..] else { return None };
            let mut texts = texts.into_iter();
            let (tool, name) = (texts.next()?, texts.next()?);
            let mut fields = Vec::new();
            while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
                fields.push((name, value));
            }
            Entry::Span { at, duration, thread: thread.try_into().ok()?, tool, name, fields }
        }
        _ => return None,
    })
}

/// Reads as much as there is.
fn read_at(from: &mut (impl Read + Seek), place: u64, into: &mut [u8]) -> io::Result<usize> {
    from.seek(SeekFrom::Start(place))?;
    let mut read = 0;
    while read < into.len() {
        match from.read(&mut into[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
