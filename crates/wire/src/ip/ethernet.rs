//! The Ethernet header.

use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

/// The Ethernet header, without VLAN tags.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ethernet {
    /// The receiver's address.
    pub destination: [u8; 6],
    /// The sender's address.
    pub source: [u8; 6],
    /// What follows.
    pub ethertype: u16,
}

impl Ethernet {
    /// Its encoded length.
    pub const LEN: usize = 14;
    /// The type of IPv4.
    pub const IPV4: u16 = 0x0800;
    /// The type of IPv6.
    pub const IPV6: u16 = 0x86dd;

    /// Reads it from the front of `bytes`; returns what follows.
    pub fn parse(bytes: &[u8]) -> Result<(Ethernet, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Ethernet, Ethernet::LEN, bytes)?;
        let header = Ethernet { destination: reader.array()?, source: reader.array()?, ethertype: reader.u16()? };
        Ok((header, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Ethernet, Ethernet::LEN, out)?;
        writer.array(self.destination)?;
        writer.array(self.source)?;
        writer.u16(self.ethertype)?;
        Ok(writer.finish())
    }
}
