//! Datagram sockets. A datagram between queue pairs has a header with its sender's address. Two sockets learn of each
//! other's queue pair over ordinary UDP: what one sends before it knows the other's goes there too, behind another
//! header.

use crate::target::{get, put};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use wire::Qpn;

/// The longest [`DatagramHeader`].
pub const MAX_DATAGRAM_HEADER: usize = DatagramHeader::LENGTH_V6;

/// In front of each datagram between queue pairs: from whom it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramHeader {
    /// The sender's address.
    pub source: SocketAddr,
}

impl DatagramHeader {
    const LENGTH_V4: usize = 8;
    const LENGTH_V6: usize = 24;

    /// Writes it and returns how long it is.
    pub fn encode(&self, out: &mut [u8; MAX_DATAGRAM_HEADER]) -> usize {
        *out = [0; MAX_DATAGRAM_HEADER];
        put(out, 2, &self.source.port().to_be_bytes());
        let (version, length) = match self.source {
            SocketAddr::V4(address) => {
                put(out, 4, &address.ip().octets());
                (4, Self::LENGTH_V4)
            }
            SocketAddr::V6(address) => {
                put(out, 4, &address.flowinfo().to_be_bytes());
                put(out, 8, &address.ip().octets());
                (6, Self::LENGTH_V6)
            }
        };
        put(out, 0, &[version, length as u8]);
        length
    }

    /// Reads the header of a datagram and returns how long it is; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<(DatagramHeader, usize)> {
        let port = u16::from_be_bytes(get(bytes, 2));
        let [version, length] = get::<2>(bytes, 0);
        let (source, expected) = match version {
            4 => (SocketAddr::new(Ipv4Addr::from(get::<4>(bytes, 4)).into(), port), Self::LENGTH_V4),
            6 => {
                let flow = u32::from_be_bytes(get(bytes, 4));
                let address = Ipv6Addr::from(get::<16>(bytes, 8));
                (SocketAddrV6::new(address, port, flow, 0).into(), Self::LENGTH_V6)
            }
            _ => return None,
        };
        let whole = usize::from(length) == expected && bytes.len() >= expected;
        whole.then_some((DatagramHeader { source }, expected))
    }
}

/// What a datagram over UDP is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DiscoveryKind {
    /// It carries data, and asks for the receiver's queue pair.
    Data,
    /// It names the sender's queue pair.
    Answer,
}

/// In front of what goes over UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiscoveryHeader {
    /// What it is for.
    pub kind: DiscoveryKind,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The sender's address, as its queue pair has it.
    pub address: IpAddr,
}

impl DiscoveryHeader {
    const DISCOVERY_TAG: u32 = 0x5555_5555;
    const LENGTH_V4: usize = 16;
    const LENGTH_V6: usize = 28;
    /// Room for every header.
    pub const MAX_LENGTH: usize = Self::LENGTH_V6;
    const DATA_OP: u8 = 0;
    const ANSWER_OP: u8 = 7;

    /// Writes it and returns how long it is.
    pub fn encode(&self, out: &mut [u8; Self::MAX_LENGTH]) -> usize {
        *out = [0; Self::MAX_LENGTH];
        let kind = match self.kind {
            DiscoveryKind::Data => Self::DATA_OP,
            DiscoveryKind::Answer => Self::ANSWER_OP,
        };
        let (version, length) = match self.address {
            IpAddr::V4(address) => {
                put(out, 12, &address.octets());
                (4, Self::LENGTH_V4)
            }
            IpAddr::V6(address) => {
                put(out, 12, &address.octets());
                (6, Self::LENGTH_V6)
            }
        };
        put(out, 0, &Self::DISCOVERY_TAG.to_be_bytes());
        put(out, 4, &[version, kind, length as u8, 0]);
        put(out, 8, &self.qpn.value().to_be_bytes());
        length
    }

    /// Reads the header of what came over UDP from an address of that family, and returns how long it is; `None` if
    /// it is none.
    pub fn decode(bytes: &[u8], over_ipv4: bool) -> Option<(DiscoveryHeader, usize)> {
        let [version, kind, length, _] = get::<4>(bytes, 4);
        let (address, expected) = match (version, over_ipv4) {
            (4, true) => (IpAddr::V4(get::<4>(bytes, 12).into()), Self::LENGTH_V4),
            (6, false) => (IpAddr::V6(get::<16>(bytes, 12).into()), Self::LENGTH_V6),
            _ => return None,
        };
        let kind = match kind {
            Self::DATA_OP => DiscoveryKind::Data,
            Self::ANSWER_OP => DiscoveryKind::Answer,
            _ => return None,
        };
        let tagged = u32::from_be_bytes(get(bytes, 0)) == Self::DISCOVERY_TAG;
        let whole = usize::from(length) == expected && bytes.len() >= expected;
        let qpn = Qpn::new(u32::from_be_bytes(get(bytes, 8)) & 0xFF_FFFF);
        (tagged && whole).then_some((DiscoveryHeader { kind, qpn, address }, expected))
    }
}
