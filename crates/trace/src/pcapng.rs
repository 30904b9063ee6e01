//! Captures for Wireshark: whole Ethernet frames with nanosecond timestamps, one interface per host, and a comment on
//! each frame that says which work request it serves. Only whoever has the bytes can call it (a link, the simulator),
//! and whoever has them knows what to say about them: it builds neither frames nor comments.

use std::borrow::Cow;
use std::io::{self, Write};
use std::string::ToString;
use std::time::Duration;
use std::vec;
use std::vec::Vec;

use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{PcapNgWriteError, PcapNgWriter};

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
    /// It was sent by whoever captures.
    Outbound,
}

/// Writes a pcapng file.
///
/// Wrap a file in a [`std::io::BufWriter`]; each frame is several small writes.
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
    writer: PcapNgWriter<W>,
}

impl<W: Write> PcapNg<W> {
    /// Begins a capture.
    pub fn new(writer: W) -> Result<Self, Error> {
        let section = SectionHeaderBlock {
            options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed(concat!(
                "ubiverbs ",
                env!("CARGO_PKG_VERSION")
            )))],
            ..Default::default()
        };
        let writer = PcapNgWriter::with_section_header(writer, section).map_err(|e| Error::Section(plain(e)))?;
        Ok(Self { writer })
    }

    /// Adds an Ethernet interface; Wireshark shows its name on every frame that came from it.
    pub fn interface(&mut self, name: &str) -> Result<Interface, Error> {
        let failed = |source| Error::Interface { name: name.to_string(), source };
        let id = u32::try_from(self.writer.interfaces().len()).map_err(|e| failed(io::Error::other(e)))?;
        let description = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(cut(name))),
                InterfaceDescriptionOption::IfTsResol(InterfaceTsResolution::NANO),
            ],
        };
        self.writer.write_pcapng_block(description).map_err(|e| failed(plain(e)))?;
        Ok(Interface(id))
    }

    /// Adds one frame, from its destination MAC address to its ICRC, that was seen `at` nanoseconds after the epoch of
    /// the capture.
    pub fn frame(&mut self, interface: Interface, at: u64, frame: &[u8], comment: Option<&str>) -> Result<(), Error> {
        let comment = comment.map(|text| EnhancedPacketOption::Common(CommonOption::Comment(Cow::Borrowed(cut(text)))));
        self.write(interface, at, frame, comment.into_iter().collect())
    }

    /// The same, with the way it went instead of a comment, for one who sees what is sent and what arrives.
    pub fn directed(&mut self, interface: Interface, at: u64, frame: &[u8], direction: Direction) -> Result<(), Error> {
        let flags = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        self.write(interface, at, frame, vec![EnhancedPacketOption::Flags(flags)])
    }

    fn write(
        &mut self,
        interface: Interface,
        at: u64,
        frame: &[u8],
        options: Vec<EnhancedPacketOption<'_>>,
    ) -> Result<(), Error> {
        let failed = |source| Error::Frame { at, source };
        let packet = EnhancedPacketBlock {
            interface_id: interface.0,
            timestamp: Duration::from_nanos(at),
            original_len: u32::try_from(frame.len()).map_err(|e| failed(io::Error::other(e)))?,
            data: Cow::Borrowed(frame),
            options,
        };
        self.writer.write_pcapng_block(packet).map_err(|e| failed(plain(e)))?;
        Ok(())
    }

    /// Hands over what was written so far, which is a whole capture.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.writer.get_mut().flush().map_err(Error::Flush)
    }

    /// Ends the capture and gives the writer back, flushed.
    pub fn finish(self) -> Result<W, Error> {
        let mut writer = self.writer.into_inner();
        writer.flush().map_err(Error::Flush)?;
        Ok(writer)
    }
}

impl<W: Write> core::fmt::Debug for PcapNg<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PcapNg").field("interfaces", &self.writer.interfaces().len()).finish_non_exhaustive()
    }
}

fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST_COMMENT)).unwrap_or(text)
}

fn plain(error: PcapNgWriteError) -> io::Error {
    match error {
        PcapNgWriteError::Io(error) => error,
        other => io::Error::other(other),
    }
}
