//! The beginning of a file: what was recorded, by which version, and what its clock is. It has a length of its own, so
//! that later versions can say more.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::block::BLOCK_BYTES;

/// The first bytes of every recording. A text file that lost its line ends, or its upper bits, begins otherwise.
pub const FILE_MAGIC: [u8; 8] = *b"\x89uvrec\r\n";

/// Readers refuse files of another major version.
pub const MAJOR_VERSION: u16 = 1;

/// A later minor version adds what earlier readers may skip.
pub const MINOR_VERSION: u16 = 0;

/// The bytes in front of the facts.
const FIXED_BYTES: usize = 24;

/// How many bytes of facts are written and read.
const MAX_FACTS: usize = 16 << 10;

/// How many facts are read.
const MAX_FACT_COUNT: usize = 256;

/// What a file says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileHeader {
    /// The number of blocks of a ring: the newest are kept. 0 if all are.
    pub ring_blocks: u32,
    /// Names and values: see the constants of this type.
    pub facts: Vec<(String, String)>,
}

impl FileHeader {
    /// The program's name.
    pub const PROGRAM: &'static str = "program";
    /// Its arguments, with a space between two.
    pub const ARGUMENTS: &'static str = "arguments";
    /// The number of the process.
    pub const PROCESS: &'static str = "pid";
    /// The name of the host.
    pub const HOST: &'static str = "host";
    /// The host's boot: recordings of the same have the same monotonic clock.
    pub const BOOT: &'static str = "boot";
    /// Who made the recording: `software NIC`, `simulation`.
    pub const WORLD: &'static str = "world";
    /// What read or writes it: the version of ubiverbs.
    pub const WRITER: &'static str = "writer";

    /// A fact by its name; empty if it is not there.
    #[must_use]
    pub fn fact(&self, name: &str) -> &str {
        self.facts.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value)
    }

    /// The bytes at the beginning of the file, which the first block follows at [`BLOCK_BYTES`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut facts = Vec::new();
        for (name, value) in &self.facts {
            let before = facts.len();
            for text in [name, value] {
                facts.extend(text.bytes().filter(|byte| *byte != 0));
                facts.push(0);
            }
            if facts.len() > MAX_FACTS {
                facts.truncate(before);
            }
        }
        let mut bytes = Vec::with_capacity(FIXED_BYTES + facts.len());
        bytes.extend(FILE_MAGIC);
        bytes.extend(MAJOR_VERSION.to_le_bytes());
        bytes.extend(MINOR_VERSION.to_le_bytes());
        bytes.extend((BLOCK_BYTES as u32).to_le_bytes());
        bytes.extend(self.ring_blocks.to_le_bytes());
        bytes.extend((facts.len() as u32).to_le_bytes());
        bytes.extend(facts);
        bytes
    }

    /// Reads them.
    ///
    /// # Errors
    /// What is no recording, or one of another version, or one that ends in its header.
    pub fn from_bytes(bytes: &[u8]) -> Result<FileHeader, HeaderError> {
        let cut = HeaderError::CutOff { length: bytes.len() };
        let begins = bytes.len().min(FILE_MAGIC.len());
        if bytes.is_empty() || bytes[..begins] != FILE_MAGIC[..begins] {
            return Err(HeaderError::NoRecording);
        }
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        let (Some(version), Some(block), Some(ring_blocks), Some(length)) =
            (number(8), number(12), number(16), number(20))
        else {
            return Err(cut);
        };
        let (major, minor) = (version as u16, (version >> 16) as u16);
        if major != MAJOR_VERSION {
            return Err(HeaderError::OtherVersion { major, minor });
        }
        let length = length as usize;
        if block as usize != BLOCK_BYTES || length > MAX_FACTS {
            return Err(HeaderError::Senseless);
        }
        let facts = bytes.get(FIXED_BYTES..FIXED_BYTES + length).ok_or(cut)?;
        let mut texts = facts.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
        let mut facts = Vec::new();
        while let (Some(name), Some(value)) = (texts.next(), texts.next())
            && facts.len() < MAX_FACT_COUNT
        {
            facts.push((name, value));
        }
        Ok(FileHeader { ring_blocks, facts })
    }
}

/// Why a file is no recording that can be read here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HeaderError {
    /// It begins otherwise.
    NoRecording,
    /// It ends before its header does.
    CutOff {
        /// How many bytes there are.
        length: usize,
    },
    /// A version that this reader does not know.
    OtherVersion {
        /// Its version.
        major: u16,
        /// The part that does not matter.
        minor: u16,
    },
    /// Its lengths are none of a recording.
    Senseless,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecording => f.write_str("this is no recording: it does not begin as one"),
            Self::CutOff { length } => write!(f, "the recording is cut off in its header, after {length} bytes"),
            Self::OtherVersion { major, minor } => {
                write!(f, "the recording has version {major}.{minor}; this program reads version {MAJOR_VERSION}")
            }
            Self::Senseless => f.write_str("the header of the recording is damaged: its lengths make no sense"),
        }
    }
}

impl core::error::Error for HeaderError {}
