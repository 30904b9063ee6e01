//! What the kernel tells of a datagram beside its bytes: its source and destination, how it came, and how long the
//! packets are that GRO had merged.

use super::way::align;
use host::family::Family;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{Ecn, IpHeader, Ipv4Header, Ipv6Header, Outer, UdpHeader};

/// Room for control messages, and for an address.
pub(super) const CONTROL_BYTES: usize = 256;
pub(super) const ADDRESS_BYTES: usize = 32;

/// How many hops a packet has left that says nothing of it, and its class: ECT(0).
const USUAL_HOPS: u8 = 64;
const USUAL_CLASS: u8 = Ecn::Capable0.in_class(0);

/// What the packets of a datagram have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    /// The IP header they came with, as far as a socket sees it, for a packet without length.
    pub ip: IpHeader,
    /// What the headers outside add to their ICRC, with "don't fragment".
    pub outer: Outer,
    /// The sender's UDP port.
    pub port: u16,
    /// The interface they came in by.
    pub interface: u32,
    /// The length of all but the last, if they were merged.
    pub segment: Option<usize>,
    /// A router marked them "congestion experienced".
    pub congestion_marked: bool,
}

impl Envelope {
    /// Reads an address and control messages; nothing if they do not say what they should.
    fn read(family: Family, destination: Option<IpAddr>, name: &[u8], control: &[u8]) -> Option<Envelope> {
        let (source, port) = address(name)?;
        let notes = Notes::read(control, destination);
        let ip = match (family, source, notes.destination?) {
            (Family::V4, IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut ip = Ipv4Header::udp(source, destination, 0).ok()?;
                (ip.tos, ip.ttl, ip.dont_fragment) = (notes.traffic_class, notes.hop_limit, true);
                IpHeader::V4(ip)
            }
            (Family::V6, IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut ip = Ipv6Header::udp(source, destination, 0).ok()?;
                (ip.traffic_class, ip.hop_limit) = (notes.traffic_class, notes.hop_limit);
                IpHeader::V6(ip)
            }
            _ => return None,
        };
        Some(Envelope {
            ip,
            outer: Outer::new(&ip, &UdpHeader::roce(port, 0).ok()?),
            port,
            interface: notes.interface,
            segment: notes.segment.filter(|segment| *segment > 0),
            congestion_marked: Ecn::of(notes.traffic_class) == Ecn::Experienced,
        })
    }

    /// A router on the way marks them, if their sender takes marks.
    pub fn mark(&mut self) {
        let class = self.ip.traffic_class();
        if Ecn::of(class) != Ecn::NotCapable {
            // The ICRC covers the class as if it were all ones.
            self.ip.set_traffic_class(Ecn::Experienced.in_class(class));
            self.congestion_marked = true;
        }
    }

    /// The source, and the destination.
    pub fn addresses(&self) -> (IpAddr, IpAddr) {
        match self.ip {
            IpHeader::V4(ip) => (ip.source.into(), ip.destination.into()),
            IpHeader::V6(ip) => (ip.source.into(), ip.destination.into()),
        }
    }
}

/// Reads envelopes. Mostly the next is as the last, to the byte.
#[derive(Debug)]
pub(super) struct Reader {
    family: Family,
    /// Where datagrams were sent of which nothing else is told.
    destination: Option<IpAddr>,
    name: Vec<u8>,
    control: Vec<u8>,
    last: Option<Envelope>,
}

impl Reader {
    pub fn new(family: Family, destination: Option<IpAddr>) -> Reader {
        let (name, control) = (Vec::with_capacity(ADDRESS_BYTES), Vec::with_capacity(CONTROL_BYTES));
        Reader { family, destination, name, control, last: None }
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// What address and control messages say, if they make sense.
    #[inline]
    pub fn read(&mut self, name: &[u8], control: &[u8]) -> Option<&Envelope> {
        if self.name != name || self.control != control {
            self.read_new(name, control);
        }
        self.last.as_ref()
    }

    #[cold]
    fn read_new(&mut self, name: &[u8], control: &[u8]) {
        for (kept, new) in [(&mut self.name, name), (&mut self.control, control)] {
            kept.clear();
            kept.extend_from_slice(new);
        }
        self.last = Envelope::read(self.family, self.destination, name, control);
    }
}

/// What the kernel told beside the data.
#[derive(Clone, Copy, Debug)]
struct Notes {
    destination: Option<IpAddr>,
    interface: u32,
    segment: Option<usize>,
    traffic_class: u8,
    hop_limit: u8,
}

impl Notes {
    /// Reads control messages. The kernel writes them, but they are read like anything else: no further than they
    /// reach.
    fn read(mut bytes: &[u8], destination: Option<IpAddr>) -> Notes {
        let (interface, segment, traffic_class) = (0, None, USUAL_CLASS);
        let mut notes = Notes { destination, interface, segment, traffic_class, hop_limit: USUAL_HOPS };
        let header = align(size_of::<libc::cmsghdr>());
        while let Some((length, level, kind)) = read_header(bytes) {
            let Some(data) = bytes.get(header..length) else { break };
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // `in_pktinfo`: interface, address for a reply, destination in the header.
                    if let Some(octets) = data.get(8..12).and_then(|octets| <[u8; 4]>::try_from(octets).ok()) {
                        notes.interface = integer(data) as u32;
                        notes.destination = Some(Ipv4Addr::from(octets).into());
                    }
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    // `in6_pktinfo`: destination in the header, interface.
                    if let Some((octets, interface)) = data.split_first_chunk::<16>() {
                        notes.interface = integer(interface) as u32;
                        notes.destination = Some(Ipv6Addr::from(*octets).into());
                    }
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => notes.traffic_class = data.first().copied().unwrap_or(0),
                (libc::IPPROTO_IP, libc::IP_TTL) => notes.hop_limit = integer(data) as u8,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => notes.traffic_class = integer(data) as u8,
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => notes.hop_limit = integer(data) as u8,
                (libc::IPPROTO_UDP, libc::UDP_GRO) => notes.segment = usize::try_from(integer(data)).ok(),
                _ => {}
            }
            bytes = bytes.get(align(length)..).unwrap_or(&[]);
        }
        notes
    }
}

fn integer(data: &[u8]) -> i32 {
    data.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}

/// Length (header included), level and type of the control message at the front.
fn read_header(bytes: &[u8]) -> Option<(usize, libc::c_int, libc::c_int)> {
    let (length, rest) = bytes.split_first_chunk::<{ size_of::<usize>() }>()?;
    let (level, rest) = rest.split_first_chunk::<4>()?;
    let (kind, _) = rest.split_first_chunk::<4>()?;
    let length = usize::from_ne_bytes(*length);
    (length >= size_of::<libc::cmsghdr>()).then(|| (length, i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind)))
}

/// The address and port in a `sockaddr` of either family.
fn address(name: &[u8]) -> Option<(IpAddr, u16)> {
    let (family, rest) = name.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let address = match libc::c_int::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => Ipv4Addr::from(*rest.first_chunk::<4>()?).into(),
        // Behind the flow information.
        libc::AF_INET6 => Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some((address, u16::from_be_bytes(*port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A control message.
    fn note(level: libc::c_int, kind: libc::c_int, data: &[u8]) -> Vec<u8> {
        let header = size_of::<libc::cmsghdr>();
        let mut bytes = (header + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes().into_iter().chain(kind.to_ne_bytes()).chain(data.iter().copied()));
        bytes.resize(align(bytes.len()), 0);
        bytes
    }

    fn name(port: u16) -> Vec<u8> {
        let mut bytes = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        bytes.extend(port.to_be_bytes().into_iter().chain([127, 0, 0, 2]).chain([0; 8]));
        bytes
    }

    fn destination(last: u8) -> Vec<u8> {
        note(libc::IPPROTO_IP, libc::IP_PKTINFO, &[1, 0, 0, 0, 9, 9, 9, 9, 127, 0, 0, last])
    }

    #[test]
    fn whatever_differs_from_the_last_is_read_again() {
        let mut reader = Reader::new(Family::V4, None);
        let marked = note(libc::IPPROTO_IP, libc::IP_TOS, &[3]);
        let merged = note(libc::IPPROTO_UDP, libc::UDP_GRO, &4112i32.to_ne_bytes());
        let mut read = |port, parts: &[Vec<u8>]| {
            let envelope = reader.read(&name(port), &parts.concat())?;
            let (_, destination) = envelope.addresses();
            Some((envelope.port, destination.to_string(), envelope.segment, envelope.congestion_marked))
        };
        let plain = |port, to: &str| Some((port, to.to_owned(), None, false));
        for _ in 0..2 {
            assert_eq!(read(7, &[destination(1)]), plain(7, "127.0.0.1"));
        }
        assert_eq!(read(8, &[destination(1)]), plain(8, "127.0.0.1"));
        assert_eq!(read(8, &[destination(3)]), plain(8, "127.0.0.3"));
        let all = [destination(3), marked, merged];
        assert_eq!(read(8, &all), Some((8, "127.0.0.3".to_owned(), Some(4112), true)));
        assert_eq!(read(8, &[]), None, "it does not say to whom");
        assert_eq!(read(8, &[destination(1)]), plain(8, "127.0.0.1"));
    }

    #[test]
    fn what_is_cut_off_says_nothing() {
        let mut reader = Reader::new(Family::V4, None);
        let (name, control) = (name(7), destination(1));
        for length in 0..name.len() {
            assert_eq!(reader.read(&name[..length], &control).is_some(), length >= 8, "{length} bytes of a name");
        }
        for length in 0..control.len() {
            let whole = size_of::<libc::cmsghdr>() + 12;
            assert_eq!(reader.read(&name, &control[..length]).is_some(), length >= whole, "{length} bytes");
        }
        assert!(Reader::new(Family::V6, None).read(&name, &control).is_none(), "another family");
    }
}
