//! The IPv4 header, without options.

use core::net::Ipv4Addr;

use super::{PROTOCOL_UDP, UdpHeader, length_field};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

/// The IPv4 header. Its checksum is verified when read and made when written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv4Header {
    /// Type of service: six bits of DSCP, two of ECN.
    pub tos: u8,
    /// Length of header and payload.
    pub total_length: u16,
    /// Names the datagram among its fragments. The ICRC covers it.
    pub identification: u16,
    /// Do not fragment.
    pub dont_fragment: bool,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Where this fragment belongs, in units of eight bytes; 13 bits.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// What follows.
    pub protocol: u8,
    /// The sender.
    pub source: Ipv4Addr,
    /// The receiver.
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// Its encoded length.
    pub const LEN: usize = 20;

    /// The header of an unfragmented UDP datagram: identification 0, do not fragment, time to live 64.
    pub fn udp(source: Ipv4Addr, destination: Ipv4Addr, payload_len: usize) -> Result<Ipv4Header, EncodeError> {
        let header = Ipv4Header {
            tos: 0,
            total_length: 0,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: PROTOCOL_UDP,
            source,
            destination,
        };
        header.with_udp_payload(payload_len)
    }

    /// This header for another length of UDP payload.
    pub fn with_udp_payload(self, payload_len: usize) -> Result<Ipv4Header, EncodeError> {
        let total_length = length_field(Header::Ipv4, payload_len.saturating_add(Ipv4Header::LEN + UdpHeader::LEN))?;
        Ok(Ipv4Header { total_length, ..self })
    }

    /// Reads it from the front of `bytes`; returns what its length field covers.
    pub fn parse(bytes: &[u8]) -> Result<(Ipv4Header, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Ipv4, Ipv4Header::LEN, bytes)?;
        let version = reader.u8()?;
        if version >> 4 != 4 {
            let value = u32::from(version >> 4);
            return Err(ParseError::Unexpected { header: Header::Ipv4, field: "version", value, expected: 4 });
        }
        refuse_if!(version & 0xf != 5, ParseError::Ipv4Options(version & 0xf));
        let tos = reader.u8()?;
        let total_length = reader.u16()?;
        let identification = reader.u16()?;
        let fragment = reader.u16()?;
        let ttl = reader.u8()?;
        let protocol = reader.u8()?;
        let checksum = reader.u16()?;
        let header = Ipv4Header {
            tos,
            total_length,
            identification,
            dont_fragment: fragment & 0x4000 != 0,
            more_fragments: fragment & 0x2000 != 0,
            fragment_offset: fragment & 0x1fff,
            ttl,
            protocol,
            source: reader.array()?.into(),
            destination: reader.array()?.into(),
        };
        // Computed with the reserved flag as it came, so that it neither fails nor passes for the wrong reason.
        let computed = checksum_of(&header.words(fragment, 0));
        refuse_if!(checksum != computed, ParseError::Ipv4Checksum { have: checksum, computed });
        let rest = reader.rest();
        let (said, have) = (usize::from(total_length), Ipv4Header::LEN + rest.len());
        match said.checked_sub(Ipv4Header::LEN).and_then(|length| rest.get(..length)) {
            Some(payload) => Ok((header, payload)),
            None => Err(ParseError::BadLength { header: Header::Ipv4, said, have }),
        }
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Ipv4, Ipv4Header::LEN, out)?;
        writer.array(self.bytes())?;
        Ok(writer.finish())
    }

    /// Its bytes, with the checksum.
    pub fn bytes(&self) -> [u8; Ipv4Header::LEN] {
        let fragment = self.fragment_field();
        let checksum = checksum_of(&self.words(fragment, 0));
        let mut bytes = [0; Ipv4Header::LEN];
        for (place, word) in bytes.chunks_exact_mut(2).zip(self.words(fragment, checksum)) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Flags and fragment offset as they share a field.
    pub(crate) fn fragment_field(&self) -> u16 {
        u16::from(self.dont_fragment) << 14 | u16::from(self.more_fragments) << 13 | self.fragment_offset & 0x1fff
    }

    fn words(&self, fragment: u16, checksum: u16) -> [u16; 10] {
        let [s0, s1, s2, s3] = self.source.octets();
        let [d0, d1, d2, d3] = self.destination.octets();
        let pair = |high: u8, low: u8| u16::from_be_bytes([high, low]);
        [
            pair(0x45, self.tos),
            self.total_length,
            self.identification,
            fragment,
            pair(self.ttl, self.protocol),
            checksum,
            pair(s0, s1),
            pair(s2, s3),
            pair(d0, d1),
            pair(d2, d3),
        ]
    }
}

/// The internet checksum of a header whose checksum field is 0.
fn checksum_of(words: &[u16; 10]) -> u16 {
    let sum: u32 = words.iter().map(|&word| u32::from(word)).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}
