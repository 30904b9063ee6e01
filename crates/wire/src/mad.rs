//! Management datagrams: the 24 bytes that begin every one (specification 13.4.2). RoCE knows only those of connection management, whose
//! bodies are in [`cm`](crate::cm).

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

/// The length of a management datagram.
pub const MAD_LEN: usize = 256;

/// The header of a management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MadHeader {
    /// Version of the datagram format: 1.
    pub base_version: u8,
    /// What is managed.
    pub management_class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// What is asked; the top bit marks a response.
    pub method: u8,
    /// How it went.
    pub status: u16,
    /// Depends on the class.
    pub class_specific: u16,
    /// Pairs responses with requests.
    pub transaction_id: u64,
    /// What the body is.
    pub attribute_id: u16,
    /// More about the body; connection management keeps vendor options there.
    pub attribute_modifier: u32,
}

impl MadHeader {
    /// Its encoded length.
    pub const LEN: usize = 24;
    /// The base version that exists.
    pub const BASE_VERSION: u8 = 1;
    /// The class of connection management.
    pub const CLASS_CM: u8 = 7;
    /// The method of connection management: Send.
    pub const METHOD_SEND: u8 = 3;

    /// Reads it from the front of `bytes`; returns what follows.
    pub fn parse(bytes: &[u8]) -> Result<(MadHeader, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Mad, MadHeader::LEN, bytes)?;
        let mut header = MadHeader {
            base_version: reader.u8()?,
            management_class: reader.u8()?,
            class_version: reader.u8()?,
            method: reader.u8()?,
            status: reader.u16()?,
            class_specific: reader.u16()?,
            transaction_id: reader.u64()?,
            attribute_id: reader.u16()?,
            attribute_modifier: 0,
        };
        let _reserved = reader.u16()?;
        header.attribute_modifier = reader.u32()?;
        Ok((header, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Mad, MadHeader::LEN, out)?;
        writer.u8(self.base_version)?;
        writer.u8(self.management_class)?;
        writer.u8(self.class_version)?;
        writer.u8(self.method)?;
        writer.u16(self.status)?;
        writer.u16(self.class_specific)?;
        writer.u64(self.transaction_id)?;
        writer.u16(self.attribute_id)?;
        writer.u16(0)?;
        writer.u32(self.attribute_modifier)?;
        Ok(writer.finish())
    }
}
