//! Makes recordings as the NIC does, in memory.

use recording::block::BLOCK_BYTES;
use recording::{BlockStart, BlockWriter, Entry, FileHeader, Reader};
use std::io::Cursor;
use trace::Event;

/// A recording that grows in memory.
pub struct Recorded {
    pub bytes: Vec<u8>,
    writer: BlockWriter,
    blocks: u64,
    ring: u64,
}

impl Recorded {
    pub fn new(ring: u32) -> Self {
        let facts = vec![(FileHeader::PROGRAM.to_owned(), "a program".to_owned())];
        let mut bytes = FileHeader { ring_blocks: ring, facts }.to_bytes();
        bytes.resize(BLOCK_BYTES, 0);
        Self { bytes, writer: BlockWriter::default(), blocks: 0, ring: ring.into() }
    }

    fn place(&self) -> usize {
        let block = self.blocks - 1;
        (1 + if self.ring == 0 { block } else { block % self.ring }) as usize * BLOCK_BYTES
    }

    fn add(&mut self, at: u64, add: impl Fn(&mut BlockWriter, &mut [u8]) -> bool) {
        if self.blocks > 0 {
            let place = self.place();
            if add(&mut self.writer, &mut self.bytes[place..place + BLOCK_BYTES]) {
                return;
            }
        }
        self.blocks += 1;
        let place = self.place();
        if self.bytes.len() < place + BLOCK_BYTES {
            self.bytes.resize(place + BLOCK_BYTES, 0);
        }
        let block = &mut self.bytes[place..place + BLOCK_BYTES];
        let start = BlockStart { sequence: self.blocks - 1, at, monotonic: 1, wall: 2 };
        self.writer.begin(block, &start);
        assert!(add(&mut self.writer, block), "an empty block has room");
    }

    pub fn event(&mut self, event: &Event) {
        self.add(event.at, |writer, block| writer.event(block, event));
    }

    pub fn note(&mut self, name: &'static str, at: u64, numbers: &[u64], texts: &[&str]) {
        self.add(at, |writer, block| writer.note(block, name, at, numbers, texts));
    }

    /// How long the file is when its end is cut to what is used.
    pub fn used(&self) -> usize {
        self.place() + self.writer.length()
    }
}

/// All that is in a file.
pub fn entries(bytes: &[u8]) -> Vec<Entry> {
    let mut reader = Reader::new(Cursor::new(bytes)).expect("a recording");
    std::iter::from_fn(|| reader.next_entry().expect("memory can be read")).collect()
}
