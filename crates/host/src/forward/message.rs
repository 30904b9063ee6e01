//! How forwarded packets are written down. A message is one record of a SEQPACKET connection:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `UbiF` |
//! | 1 | version, 1 |
//! | 1 | what follows: 1 for packets that came in by a socket, 7 for messages of the sender itself |
//! | 2 | how many |
//!
//! and then for each packet, numbers in network order:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | IP version, 4 or 6 |
//! | 1 | type of service or traffic class |
//! | 1 | time to live or hop limit |
//! | 1 | 1 if fragmentation was forbidden |
//! | 2 | UDP source port |
//! | 2 | IPv4 identification |
//! | 2 | length |
//! | 2 | 0 |
//! | 16, 16 | source and destination as GIDs |
//! | length | the packet, from the BTH to the ICRC |

use crate::arrival::{Arrival, Origin};
use std::net::IpAddr;
use wire::{Gid, IpHeader, Ipv4Header, Ipv6Header, Packet};

const MESSAGE_MAGIC: [u8; 4] = *b"UbiF";
const MESSAGE_VERSION: u8 = 1;
const KIND_PACKETS: u8 = 1;
/// The numbers between are those of [`greeting`](crate::greeting).
const KIND_LOCAL: u8 = 7;
const MESSAGE_HEADER_BYTES: usize = 8;
const PACKET_HEADER: usize = 44;

/// The longest message: room for the longest packet that a datagram can hold.
pub const MAX_MESSAGE_BYTES: usize = 66 * 1024;

/// Appends a packet; false, and nothing appended, if it does not fit. `message` is empty or was filled by this
/// function with packets of the same origin: this process itself, or a socket.
pub fn append(message: &mut Vec<u8>, arrival: &Arrival<'_>) -> bool {
    let begun = message.len().max(MESSAGE_HEADER_BYTES);
    let Ok(length) = u16::try_from(arrival.bytes.len()) else { return false };
    if begun + PACKET_HEADER + arrival.bytes.len() > MAX_MESSAGE_BYTES {
        return false;
    }
    if message.is_empty() {
        message.extend(MESSAGE_MAGIC);
        let kind = if arrival.origin == Origin::Local { KIND_LOCAL } else { KIND_PACKETS };
        message.extend([MESSAGE_VERSION, kind, 0, 0]);
    }
    let Some(count) = message.get_mut(6..8).and_then(|bytes| bytes.first_chunk_mut::<2>()) else { return false };
    let Some(more) = u16::from_be_bytes(*count).checked_add(1) else { return false };
    *count = more.to_be_bytes();
    let (version, class, hops, dont_fragment, identification) = match arrival.ip {
        IpHeader::V4(ip) => (4, ip.tos, ip.ttl, ip.dont_fragment, ip.identification),
        IpHeader::V6(ip) => (6, ip.traffic_class, ip.hop_limit, false, 0),
    };
    message.extend([version, class, hops, u8::from(dont_fragment)]);
    message.extend(arrival.port.to_be_bytes());
    message.extend(identification.to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend([0, 0]);
    message.extend(arrival.ip.source().octets());
    message.extend(arrival.ip.destination().octets());
    message.extend_from_slice(arrival.bytes);
    true
}

/// How many packets a message claims.
pub fn count(message: &[u8]) -> u32 {
    match message {
        [_, _, _, _, _, _, high, low, ..] => u16::from_be_bytes([*high, *low]).into(),
        _ => 0,
    }
}

/// Gives each packet of a message to `take`, in order. Returns how many could not be read; a message that does not keep
/// to the format counts once, and what was read before that is given.
pub fn read(message: &[u8], mut take: impl FnMut(&Arrival<'_>)) -> u32 {
    let Some((header, mut rest)) = message.split_first_chunk::<MESSAGE_HEADER_BYTES>() else { return 1 };
    let [magic @ .., version, kind, _, _] = header;
    let origin = match *kind {
        KIND_PACKETS => Origin::Forwarded,
        KIND_LOCAL => Origin::Local,
        _ => return 1,
    };
    if *magic != MESSAGE_MAGIC || *version != MESSAGE_VERSION {
        return 1;
    }
    let mut malformed = 0;
    for _ in 0..count(message) {
        let Some((header, bytes)) = rest.split_first_chunk::<PACKET_HEADER>() else { return malformed + 1 };
        let [version, class, hops, dont_fragment, p0, p1, i0, i1, l0, l1, _, _, addresses @ ..] = header;
        let Some((bytes, after)) = bytes.split_at_checked(u16::from_be_bytes([*l0, *l1]).into()) else {
            return malformed + 1;
        };
        rest = after;
        let addresses = addresses.split_first_chunk::<16>().and_then(|(source, rest)| {
            let gid = |octets: &[u8; 16]| Gid::new(*octets).to_ip();
            Some((gid(source), gid(rest.first_chunk::<16>()?)))
        });
        let ip = match (version, addresses) {
            (4, Some((IpAddr::V4(source), IpAddr::V4(destination)))) => {
                Ipv4Header::udp(source, destination, bytes.len()).ok().map(|mut ip| {
                    (ip.tos, ip.ttl, ip.dont_fragment) = (*class, *hops, *dont_fragment != 0);
                    ip.identification = u16::from_be_bytes([*i0, *i1]);
                    IpHeader::V4(ip)
                })
            }
            (6, Some((IpAddr::V6(source), IpAddr::V6(destination)))) => {
                Ipv6Header::udp(source, destination, bytes.len()).ok().map(|mut ip| {
                    (ip.traffic_class, ip.hop_limit) = (*class, *hops);
                    IpHeader::V6(ip)
                })
            }
            _ => None,
        };
        match (ip, Packet::parse(bytes)) {
            (Some(ip), Ok(Packet { headers, payload })) => take(&Arrival {
                headers,
                payload,
                ip,
                bytes,
                port: u16::from_be_bytes([*p0, *p1]),
                interface: 0,
                congestion_marked: class & 3 == 3,
                origin,
            }),
            _ => malformed += 1,
        }
    }
    if rest.is_empty() { malformed } else { malformed + 1 }
}
