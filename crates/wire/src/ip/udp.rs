//! The UDP header. The checksum is carried, not judged: RoCEv2 senders commonly leave it 0, over IPv6 too, because the
//! ICRC protects more.

use super::{ROCE_PORT, length_field};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

/// The UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UdpHeader {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// Length of header and payload.
    pub length: u16,
    /// Checksum; 0 is none.
    pub checksum: u16,
}

impl UdpHeader {
    /// Its encoded length.
    pub const LEN: usize = 8;

    /// The header of a RoCEv2 packet of `payload_len` bytes, BTH to ICRC, without checksum.
    pub fn roce(source_port: u16, payload_len: usize) -> Result<UdpHeader, EncodeError> {
        let header = UdpHeader { source_port, destination_port: ROCE_PORT, length: 0, checksum: 0 };
        header.with_payload(payload_len)
    }

    /// This header for another length of payload.
    pub fn with_payload(self, payload_len: usize) -> Result<UdpHeader, EncodeError> {
        Ok(UdpHeader { length: length_field(Header::Udp, payload_len.saturating_add(UdpHeader::LEN))?, ..self })
    }

    /// Reads it from the front of `bytes`; returns what its length field covers.
    pub fn parse(bytes: &[u8]) -> Result<(UdpHeader, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Udp, UdpHeader::LEN, bytes)?;
        let header = UdpHeader {
            source_port: reader.u16()?,
            destination_port: reader.u16()?,
            length: reader.u16()?,
            checksum: reader.u16()?,
        };
        let rest = reader.rest();
        let said = usize::from(header.length);
        match said.checked_sub(UdpHeader::LEN).and_then(|length| rest.get(..length)) {
            Some(payload) => Ok((header, payload)),
            None => Err(ParseError::BadLength { header: Header::Udp, said, have: UdpHeader::LEN + rest.len() }),
        }
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Udp, UdpHeader::LEN, out)?;
        writer.u16(self.source_port)?;
        writer.u16(self.destination_port)?;
        writer.u16(self.length)?;
        writer.u16(self.checksum)?;
        Ok(writer.finish())
    }
}
