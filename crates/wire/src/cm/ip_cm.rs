//! IP addressing over connection management (specification annex A11): service ids that are ports, and the header that
//! begins the private data of a request and says which addresses it is between.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cursor::{Reader, Writer};
use crate::numbers::number;
use crate::{EncodeError, Header, ParseError};

number! {
    /// What a request asks for: 64 bits, of which an IP service uses the lowest 32.
    ServiceId(u64), mask 0xffff_ffff_ffff_ffff, show "{:#018x}", derive PartialOrd, derive Ord
}

/// The namespaces of ports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// Datagrams of IP over InfiniBand.
    Ipoib = 0x0002,
    /// Reliable, connected: `RDMA_PS_TCP`.
    Tcp = 0x0106,
    /// Datagrams: `RDMA_PS_UDP`.
    Udp = 0x0111,
    /// Any service: `RDMA_PS_IB`.
    Ib = 0x013f,
}

impl ServiceId {
    /// The service id of a port.
    pub const fn ip(space: PortSpace, port: u16) -> ServiceId {
        ServiceId::new((space as u64) << 16 | port as u64)
    }

    /// The namespace, if this is a port's service id.
    pub const fn port_space(self) -> Option<PortSpace> {
        match self.value() >> 16 {
            0x0002 => Some(PortSpace::Ipoib),
            0x0106 => Some(PortSpace::Tcp),
            0x0111 => Some(PortSpace::Udp),
            0x013f => Some(PortSpace::Ib),
            _ => None,
        }
    }

    /// The port, if this is a port's service id.
    pub const fn port(self) -> Option<u16> {
        match self.port_space() {
            Some(_) => Some(self.value() as u16),
            None => None,
        }
    }
}

/// The header at the front of a request's private data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpCm {
    /// Major version, four bits; 0 exists.
    pub major_version: u8,
    /// Minor version, four bits; 0 exists.
    pub minor_version: u8,
    /// The sender's port.
    pub source_port: u16,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address, of the same family.
    pub destination: IpAddr,
}

impl IpCm {
    /// Its encoded length, and so what it takes from the private data.
    pub const LEN: usize = 36;

    /// A header between two addresses. Of different families, both are written as IPv6.
    pub const fn new(source_port: u16, source: IpAddr, destination: IpAddr) -> IpCm {
        IpCm { major_version: 0, minor_version: 0, source_port, source, destination }
    }

    /// Reads it from the front of `bytes`; returns what follows, which is the user's.
    pub fn parse(bytes: &[u8]) -> Result<(IpCm, &[u8]), ParseError> {
        let mut reader = Reader::new(Header::IpCm, IpCm::LEN, bytes)?;
        let version = reader.u8()?;
        let family = reader.u8()? >> 4;
        let source_port = reader.u16()?;
        let [source, destination] = [reader.array::<16>()?, reader.array()?].map(|address| match family {
            4 => {
                let [.., a, b, c, d] = address;
                Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
            }
            6 => Some(IpAddr::V6(Ipv6Addr::from(address))),
            _ => None,
        });
        let (Some(source), Some(destination)) = (source, destination) else {
            let value = family.into();
            return Err(ParseError::Unexpected { header: Header::IpCm, field: "IP version", value, expected: 4 });
        };
        let header =
            IpCm { major_version: version >> 4, minor_version: version & 0xf, source_port, source, destination };
        Ok((header, reader.rest()))
    }

    /// Writes it to the front of `out`; returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer::new(Header::IpCm, IpCm::LEN, out)?;
        let major = writer.fit("major version", self.major_version, 4)?;
        let minor = writer.fit("minor version", self.minor_version, 4)?;
        writer.u8(major << 4 | minor)?;
        let (family, addresses) = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => (4, [source, destination].map(padded)),
            (source, destination) => (6, [source, destination].map(mapped)),
        };
        writer.u8(family << 4)?;
        writer.u16(self.source_port)?;
        for address in addresses {
            writer.array(address)?;
        }
        Ok(writer.finish())
    }
}

/// An IPv4 address in the last four of sixteen bytes, the others zero: not the mapped form that GIDs use.
fn padded(address: Ipv4Addr) -> [u8; 16] {
    u128::from(address.to_bits()).to_be_bytes()
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
