//! The IPv6 header, without extension headers.

use core::net::Ipv6Addr;

use super::{PROTOCOL_UDP, UdpHeader, length_field};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, Header, ParseError};

/// The IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ipv6Header {
    /// Traffic class: six bits of DSCP, two of ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length of what follows.
    pub payload_length: u16,
    /// What follows.
    pub next_header: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// The sender.
    pub source: Ipv6Addr,
    /// The receiver.
    pub destination: Ipv6Addr,
}

impl Ipv6Header {
    /// Its encoded length.
    pub const LEN: usize = 40;

    /// The header of a UDP datagram: flow label 0, hop limit 64.
    pub fn udp(source: Ipv6Addr, destination: Ipv6Addr, payload_len: usize) -> Result<Ipv6Header, EncodeError> {
        let header = Ipv6Header {
            traffic_class: 0,
            flow_label: 0,
            payload_length: 0,
            next_header: PROTOCOL_UDP,
            hop_limit: 64,
            source,
            destination,
        };
        header.with_udp_payload(payload_len)
    }

    /// This header for another length of UDP payload.
    pub fn with_udp_payload(self, payload_len: usize) -> Result<Ipv6Header, EncodeError> {
        let payload_length = length_field(Header::Ipv6, payload_len.saturating_add(UdpHeader::LEN))?;
        Ok(Ipv6Header { payload_length, ..self })
    }

    /// Reads it from the front of `bytes`; returns what its length field covers.
    pub fn parse(bytes: &[u8]) -> Result<(Ipv6Header, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::Ipv6, Ipv6Header::LEN, bytes)?;
        let first = reader.u32()?;
        if first >> 28 != 6 {
            let value = first >> 28;
            return Err(ParseError::Unexpected { header: Header::Ipv6, field: "version", value, expected: 6 });
        }
        let header = Ipv6Header {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_length: reader.u16()?,
            next_header: reader.u8()?,
            hop_limit: reader.u8()?,
            source: reader.array::<16>()?.into(),
            destination: reader.array::<16>()?.into(),
        };
        let rest = reader.rest();
        let (said, have) = (usize::from(header.payload_length), rest.len());
        match rest.get(..said) {
            Some(payload) => Ok((header, payload)),
            None => Err(ParseError::BadLength { header: Header::Ipv6, said, have }),
        }
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::Ipv6, Ipv6Header::LEN, out)?;
        writer.array(self.bytes())?;
        Ok(writer.finish())
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; Ipv6Header::LEN] {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let [a, b, c, d] = first.to_be_bytes();
        let [high, low] = self.payload_length.to_be_bytes();
        let mut bytes = [0; Ipv6Header::LEN];
        let (start, addresses) = bytes.split_at_mut(8);
        start.copy_from_slice(&[a, b, c, d, high, low, self.next_header, self.hop_limit]);
        let (source, destination) = addresses.split_at_mut(16);
        source.copy_from_slice(&self.source.octets());
        destination.copy_from_slice(&self.destination.octets());
        bytes
    }
}
