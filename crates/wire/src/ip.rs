//! What surrounds a RoCEv2 packet: Ethernet, IPv4 or IPv6, UDP. For captures, for tests, for the ICRC, which covers
//! part of it, and for the GRH that a datagram's receiver is shown. No routing, no fragments, no options.

use core::net::IpAddr;

use crate::{EncodeError, Gid, Header, ParseError, Qpn};

mod ecn;
mod ethernet;
mod ipv4;
mod ipv6;
mod udp;

pub use ecn::Ecn;
pub use ethernet::Ethernet;
pub use ipv4::Ipv4Header;
pub use ipv6::Ipv6Header;
pub use udp::UdpHeader;

/// The UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// The protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// An IP header of either family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpHeader {
    /// IPv4.
    V4(Ipv4Header),
    /// IPv6.
    V6(Ipv6Header),
}

impl IpHeader {
    /// The header of a UDP datagram with `payload_len` bytes of UDP payload, as an unconnected socket that forbids
    /// fragmentation sends it. IPv4 if both ends have an IPv4 address.
    pub fn udp(source: Gid, destination: Gid, payload_len: usize) -> Result<IpHeader, EncodeError> {
        match (source.to_ip(), destination.to_ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Ipv4Header::udp(source, destination, payload_len).map(IpHeader::V4)
            }
            _ => Ipv6Header::udp(source.octets().into(), destination.octets().into(), payload_len).map(IpHeader::V6),
        }
    }

    /// Reads either from the front of `bytes`, by the version in the first four bits; returns what the header's length
    /// field covers.
    pub fn parse(bytes: &[u8]) -> Result<(IpHeader, &[u8]), ParseError> {
        match bytes.first().map(|first| first >> 4) {
            Some(6) => Ipv6Header::parse(bytes).map(|(header, rest)| (IpHeader::V6(header), rest)),
            _ => Ipv4Header::parse(bytes).map(|(header, rest)| (IpHeader::V4(header), rest)),
        }
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        match self {
            IpHeader::V4(header) => header.encode(out),
            IpHeader::V6(header) => header.encode(out),
        }
    }

    /// This header for another length of UDP payload.
    pub fn with_udp_payload(self, payload_len: usize) -> Result<IpHeader, EncodeError> {
        match self {
            IpHeader::V4(header) => header.with_udp_payload(payload_len).map(IpHeader::V4),
            IpHeader::V6(header) => header.with_udp_payload(payload_len).map(IpHeader::V6),
        }
    }

    /// Its encoded length: 20 or 40.
    pub const fn header_length(&self) -> usize {
        match self {
            IpHeader::V4(_) => Ipv4Header::LEN,
            IpHeader::V6(_) => Ipv6Header::LEN,
        }
    }

    /// The type of service or traffic class.
    pub const fn traffic_class(&self) -> u8 {
        match self {
            IpHeader::V4(header) => header.tos,
            IpHeader::V6(header) => header.traffic_class,
        }
    }

    /// Changes it.
    pub const fn set_traffic_class(&mut self, class: u8) {
        match self {
            IpHeader::V4(header) => header.tos = class,
            IpHeader::V6(header) => header.traffic_class = class,
        }
    }

    /// The protocol of what follows.
    pub const fn protocol(&self) -> u8 {
        match self {
            IpHeader::V4(header) => header.protocol,
            IpHeader::V6(header) => header.next_header,
        }
    }

    /// The Ethernet type that announces it.
    pub const fn ethertype(&self) -> u16 {
        match self {
            IpHeader::V4(_) => Ethernet::IPV4,
            IpHeader::V6(_) => Ethernet::IPV6,
        }
    }

    /// The sender.
    pub const fn source(&self) -> Gid {
        match self {
            IpHeader::V4(header) => Gid::from_ipv4(header.source),
            IpHeader::V6(header) => Gid::from_ipv6(header.source),
        }
    }

    /// The receiver.
    pub const fn destination(&self) -> Gid {
        match self {
            IpHeader::V4(header) => Gid::from_ipv4(header.destination),
            IpHeader::V6(header) => Gid::from_ipv6(header.destination),
        }
    }
}

/// The 40 bytes that a datagram's receiver finds in front of its data: the IPv6 header, or 20 bytes of zeroes and the
/// IPv4 header.
pub fn grh_bytes(ip: &IpHeader) -> [u8; 40] {
    match ip {
        IpHeader::V4(header) => {
            let mut grh = [0; 40];
            let (_, half) = grh.split_at_mut(20);
            half.copy_from_slice(&header.bytes());
            grh
        }
        IpHeader::V6(header) => header.bytes(),
    }
}

/// The address a packet was sent to, as the GRH that its receiver is shown says it.
pub fn grh_destination(grh: &[u8; 40]) -> Option<Gid> {
    match (grh[0] >> 4, grh[20] >> 4, grh.last_chunk::<16>(), grh.last_chunk::<4>()) {
        (6, _, Some(octets), _) => Some(Gid::new(*octets)),
        (0, 4, _, Some(octets)) => Some(Gid::from_ipv4((*octets).into())),
        _ => None,
    }
}

/// The UDP source port of a connection between two queue pairs, as kernel Soft-RoCE and RoCEv2 NICs choose it when the
/// path has no flow label: the product of the numbers makes a label. Both directions get the same port, and flows
/// spread over the paths of a network.
pub const fn source_port(local: Qpn, remote: Qpn) -> u16 {
    let product = local.value() as u64 * remote.value() as u64;
    let folded = product ^ product >> 20;
    let folded = folded ^ folded >> 40;
    source_port_of_flow_label((folded & 0xf_ffff) as u32)
}

/// The UDP source port for a path with a flow label of 20 bits: its top six folded into the lower fourteen, in the
/// dynamic port range.
pub const fn source_port_of_flow_label(label: u32) -> u16 {
    let label = label & 0xf_ffff;
    0xc000 | ((label ^ label >> 14) & 0x3fff) as u16
}

/// An Ethernet frame with a UDP datagram in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Ethernet header.
    pub ethernet: Ethernet,
    /// IP header.
    pub ip: IpHeader,
    /// UDP header.
    pub udp: UdpHeader,
    /// UDP payload.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads a frame and cuts its padding; anything but UDP in IP is [`ParseError::Unexpected`].
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, ParseError> {
        let (ethernet, rest) = Ethernet::parse(bytes)?;
        let (ip, rest) = match ethernet.ethertype {
            Ethernet::IPV6 => Ipv6Header::parse(rest).map(|(header, rest)| (IpHeader::V6(header), rest))?,
            Ethernet::IPV4 => Ipv4Header::parse(rest).map(|(header, rest)| (IpHeader::V4(header), rest))?,
            other => {
                return Err(ParseError::Unexpected {
                    header: Header::Ethernet,
                    field: "type",
                    value: other.into(),
                    expected: Ethernet::IPV4.into(),
                });
            }
        };
        if let IpHeader::V4(Ipv4Header { more_fragments: true, fragment_offset: value, .. })
        | IpHeader::V4(Ipv4Header { fragment_offset: value @ 1.., .. }) = ip
        {
            let value = value.into();
            return Err(ParseError::Unexpected { header: Header::Ipv4, field: "fragment", value, expected: 0 });
        }
        if ip.protocol() != PROTOCOL_UDP {
            return Err(ParseError::Unexpected {
                header: if ip.header_length() == Ipv4Header::LEN { Header::Ipv4 } else { Header::Ipv6 },
                field: "protocol",
                value: ip.protocol().into(),
                expected: PROTOCOL_UDP.into(),
            });
        }
        let (udp, payload) = UdpHeader::parse(rest)?;
        // IP and UDP must agree where the datagram ends: the ICRC is its last four bytes.
        if usize::from(udp.length) != rest.len() {
            return Err(ParseError::BadLength { header: Header::Udp, said: udp.length.into(), have: rest.len() });
        }
        Ok(Frame { ethernet, ip, udp, payload })
    }

    /// The encoded length.
    pub const fn encoded_length(&self) -> usize {
        Ethernet::LEN + self.ip.header_length() + UdpHeader::LEN + self.payload.len()
    }

    /// Writes the frame to the front of `out`; returns its length. Type and length fields are written as the headers
    /// have them.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let have = out.len();
        let need = self.encoded_length();
        let Some(out) = out.get_mut(..need) else {
            return Err(EncodeError::NoRoom { header: Header::Ethernet, need, have });
        };
        let mut at = self.ethernet.encode(out)?;
        at += self.ip.encode(out.get_mut(at..).unwrap_or_default())?;
        at += self.udp.encode(out.get_mut(at..).unwrap_or_default())?;
        out.get_mut(at..).unwrap_or_default().copy_from_slice(self.payload);
        Ok(need)
    }
}

/// The length field for `length` bytes, if they fit 16 bits.
fn length_field(header: Header, length: usize) -> Result<u16, EncodeError> {
    u16::try_from(length).map_err(|_| EncodeError::TooLarge { header, field: "length", value: length as u64, bits: 16 })
}

#[cfg(test)]
mod tests;
