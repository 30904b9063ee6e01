//! FETH, the header of a flush (memory placement annex).

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

bitflags::bitflags! {
    /// How far the flushed data must have come.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Placement: u8 {
        /// Visible to every agent of the responder's system.
        const GLOBAL = 1 << 0;
        /// In persistent memory.
        const PERSISTENT = 1 << 1;
        /// The field is four bits wide; the other two are kept as they come.
        const _ = 0xf;
    }
}

/// Which data is flushed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Selectivity {
    /// The range the RETH names.
    Range,
    /// The whole region behind the RETH's key.
    Region,
    /// Not assigned: 2 or 3.
    Reserved(u8),
}

impl Selectivity {
    /// From the low two bits of the field.
    pub const fn from_bits(bits: u8) -> Selectivity {
        match bits & 0x3 {
            0 => Selectivity::Range,
            1 => Selectivity::Region,
            other => Selectivity::Reserved(other),
        }
    }

    /// The field's two bits.
    pub const fn bits(self) -> u8 {
        match self {
            Selectivity::Range => 0,
            Selectivity::Region => 1,
            Selectivity::Reserved(bits) => bits & 0x3,
        }
    }
}

/// The flush header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// How far the data must have come.
    pub placement: Placement,
    /// Which data.
    pub selectivity: Selectivity,
}

impl Feth {
    /// Its encoded length.
    pub const LEN: usize = 4;

    /// Reads it from the front of `bytes`; returns what follows.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Feth, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Feth, Feth::LEN, bytes)?;
        let [_, _, _, bits] = reader.array()?;
        let feth =
            Feth { placement: Placement::from_bits_truncate(bits), selectivity: Selectivity::from_bits(bits >> 4) };
        Ok((feth, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Feth, Feth::LEN, out)?;
        writer.array([0, 0, 0, self.selectivity.bits() << 4 | self.placement.bits() & 0xf])?;
        Ok(writer.finish())
    }
}
