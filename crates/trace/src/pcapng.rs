//! Captures for Wireshark: whole Ethernet frames with nanosecond timestamps, one interface per host, and a comment on
//! each frame that says which work request it serves. It builds neither frames nor comments: a link or the simulator
//! has the bytes, and knows what to say about them.

use std::io::{self, Write};
use std::string::ToString;
use std::vec::Vec;

use crate::error::Error;

/// A comment longer than this is cut: the format allows 65535 bytes, a reader wants one line.
const LONGEST_COMMENT: usize = 4096;

/// A host's interface in one capture; see [`PcapNg::interface`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interface(u32);

/// Which way a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// It came from elsewhere.
    Inbound,
    /// The host that captures sent it.
    Outbound,
}

/// Writes a pcapng file.
///
/// Each frame is one write. Wrap a file in a [`std::io::BufWriter`] where many come and none is urgent.
///
/// ```
/// # fn main() -> Result<(), trace::Error> {
/// let mut capture = trace::PcapNg::new(Vec::new())?;
/// let alice = capture.interface("alice")?;
/// let frame = [0; 60]; // from a link or the simulator
/// capture.frame(alice, 1_500, &frame, Some("work request 7"))?;
/// let bytes = capture.finish()?;
/// # assert_eq!(&bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
/// # Ok(())
/// # }
/// ```
pub struct PcapNg<W: Write> {
    writer: W,
    interfaces: u32,
    /// Where blocks are put together.
    block: Block,
}

impl<W: Write> PcapNg<W> {
    /// Begins a capture.
    pub fn new(mut writer: W) -> Result<Self, Error> {
        let mut block = Block::default();
        block.begin(SECTION_HEADER);
        block.put(&BYTE_ORDER.to_be_bytes());
        // Version 1.0.
        block.put(&1_u16.to_be_bytes());
        block.put(&0_u16.to_be_bytes());
        // How long the section will be is not known.
        block.put(&(-1_i64).to_be_bytes());
        block.option(USER_APPLICATION, concat!("ubiverbs ", env!("CARGO_PKG_VERSION")).as_bytes());
        block.end_of_options();
        block.write(&mut writer).map_err(Error::Section)?;
        Ok(Self { writer, interfaces: 0, block })
    }

    /// Adds an Ethernet interface; Wireshark shows its name on every frame that came from it.
    pub fn interface(&mut self, name: &str) -> Result<Interface, Error> {
        let failed = |source| Error::Interface { name: name.to_string(), source };
        let id = self.interfaces;
        let next = id.checked_add(1).ok_or_else(|| failed(io::Error::other("no number is left")))?;
        self.block.begin(INTERFACE_DESCRIPTION);
        self.block.put(&LINK_TYPE_ETHERNET.to_be_bytes());
        self.block.put(&[0; 2]);
        // Frames are never cut.
        self.block.put(&0_u32.to_be_bytes());
        self.block.option(INTERFACE_NAME, cut(name).as_bytes());
        self.block.option(TIME_RESOLUTION, &[RESOLUTION_NANOSECONDS]);
        self.block.end_of_options();
        self.block.write(&mut self.writer).map_err(failed)?;
        self.interfaces = next;
        Ok(Interface(id))
    }

    /// Adds one frame, from its destination MAC address to its ICRC, that was seen `at` nanoseconds after the epoch of
    /// the capture.
    pub fn frame(&mut self, interface: Interface, at: u64, frame: &[u8], comment: Option<&str>) -> Result<(), Error> {
        self.write(interface, at, frame, comment.map(|text| (OPTION_COMMENT, cut(text).as_bytes())))
    }

    /// Adds one frame with the way it went instead of a comment, for a link that sees what is sent and what arrives.
    pub fn directed(&mut self, interface: Interface, at: u64, frame: &[u8], direction: Direction) -> Result<(), Error> {
        let flags: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.write(interface, at, frame, Some((OPTION_FLAGS, &flags.to_be_bytes())))
    }

    fn write(&mut self, to: Interface, at: u64, frame: &[u8], option: Option<(u16, &[u8])>) -> Result<(), Error> {
        let failed = |source| Error::Frame { at, source };
        if to.0 >= self.interfaces {
            return Err(failed(io::Error::other("the interface is of another capture")));
        }
        let length = u32::try_from(frame.len()).map_err(|e| failed(io::Error::other(e)))?.to_be_bytes();
        self.block.begin(ENHANCED_PACKET);
        self.block.put(&to.0.to_be_bytes());
        // Its two halves, the high one first, are each a number in the byte order of the section.
        self.block.put(&at.to_be_bytes());
        // What was captured, and what there was.
        self.block.put(&length);
        self.block.put(&length);
        self.block.put_padded(frame);
        if let Some((code, value)) = option {
            self.block.option(code, value);
            self.block.end_of_options();
        }
        self.block.write(&mut self.writer).map_err(failed)
    }

    /// Hands over what was written so far, which is a whole capture.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.writer.flush().map_err(Error::Flush)
    }

    /// Ends the capture and gives the writer back, flushed.
    pub fn finish(mut self) -> Result<W, Error> {
        self.flush()?;
        Ok(self.writer)
    }
}

impl<W: Write> core::fmt::Debug for PcapNg<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PcapNg").field("interfaces", &self.interfaces).finish_non_exhaustive()
    }
}

fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST_COMMENT)).unwrap_or(text)
}

// Kinds of block, and what stands in them. The format: draft-ietf-opsawg-pcapng, sections 3.1, 3.5, 4.1, 4.2 and 4.3.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// A reader learns from it in which byte order the section is; ours is the network's.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// The link type of frames that begin with a MAC address.
const LINK_TYPE_ETHERNET: u16 = 1;
/// A time resolution: ten to the power of minus nine seconds.
const RESOLUTION_NANOSECONDS: u8 = 9;

const END_OF_OPTIONS: u16 = 0;
/// In any block.
const OPTION_COMMENT: u16 = 1;
/// In a section header: the program that wrote it.
const USER_APPLICATION: u16 = 4;
/// In an interface description.
const INTERFACE_NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;
/// In a packet: among other things, which way it went.
const OPTION_FLAGS: u16 = 2;

/// One block: its kind, its length, what stands in it in units of four bytes, and its length again.
#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
}

impl Block {
    fn begin(&mut self, kind: u32) {
        self.bytes.clear();
        self.put(&kind.to_be_bytes());
        // The length, which is known at the end.
        self.put(&[0; 4]);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// What need not be a multiple of four bytes long.
    fn put_padded(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// An option whose value is at most [`LONGEST_COMMENT`] bytes long, so that its length is a number of 16 bits.
    fn option(&mut self, code: u16, value: &[u8]) {
        self.put(&code.to_be_bytes());
        self.put(&(value.len() as u16).to_be_bytes());
        self.put_padded(value);
    }

    fn end_of_options(&mut self) {
        self.put(&END_OF_OPTIONS.to_be_bytes());
        self.put(&[0; 2]);
    }

    /// Ends the block and writes it, all at once.
    fn write(&mut self, writer: &mut impl Write) -> io::Result<()> {
        let length = u32::try_from(self.bytes.len() + 4).map_err(io::Error::other)?.to_be_bytes();
        if let Some(place) = self.bytes.get_mut(4..8) {
            place.copy_from_slice(&length);
        }
        self.put(&length);
        writer.write_all(&self.bytes)
    }
}
