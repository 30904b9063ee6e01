//! The headers of a frame, as far as flows, hashes and checksums ask for them. A header that is cut short ends the
//! reading: what came before it counts.

use super::{ETHERNET_HEADER, bytes_at, u16_at, u32_at};

pub(super) const TYPE_IPV4: u16 = 0x0800;
pub(super) const TYPE_IPV6: u16 = 0x86dd;
const VLAN_ETHERTYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const MPLS_ETHERTYPES: [u16; 2] = [0x8847, 0x8848];
/// Ethernet inside GRE.
const TYPE_BRIDGED: u16 = 0x6558;

pub(super) const PROTOCOL_TCP: u8 = 6;
pub(super) const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_GRE: u8 = 47;
const PROTOCOL_ESP: u8 = 50;
const MPLS_IN_IP: u8 = 137;

const VXLAN_PORT: u16 = 4789;
const MPLS_PORT: u16 = 6635;

/// The most tags and labels that are read past.
const MAX_TAGS: usize = 2;
const MAX_LABELS: usize = 16;
/// The most extension headers of IPv6 that are read past.
const MAX_EXTENSIONS: usize = 8;

/// The headers of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// The frame's own.
    pub outer: Stack,
    /// Those of the frame or packet inside a tunnel.
    pub inner: Option<Stack>,
    /// The number of a VXLAN network.
    pub vxlan: Option<u32>,
}

/// The headers from Ethernet to the transport, as far as they are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stack {
    /// Ethernet.
    pub ethernet: Option<EthernetHeader>,
    /// The first MPLS label, with class, bottom bit and time to live.
    pub mpls: Option<u32>,
    /// IP.
    pub internet: Option<Internet>,
    /// What IP carries. None for fragments, whose first alone has it.
    pub upper: Option<Upper>,
    /// The upper protocol's number, also of fragments.
    pub protocol: u8,
    /// It is a part of a longer packet.
    pub fragment: bool,
    /// Where the IP header begins, where what it carries begins, and where that ends.
    pub internet_at: usize,
    /// See [`Stack::internet_at`].
    pub upper_at: usize,
    /// See [`Stack::internet_at`].
    pub end: usize,
}

/// An Ethernet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EthernetHeader {
    /// Where to.
    pub destination: [u8; 6],
    /// Where from.
    pub source: [u8; 6],
    /// What follows the last tag.
    pub ether_type: u16,
    /// The first VLAN tag: priority, eligibility to drop, number.
    pub vlan: Option<u16>,
}

/// An IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Internet {
    /// Version 4.
    V4 {
        /// Where from.
        source: [u8; 4],
        /// Where to.
        destination: [u8; 4],
        /// Type of service.
        tos: u8,
        /// Time to live.
        ttl: u8,
        /// Bit 1: do not fragment; bit 2: more fragments. As `ibv_flow_ipv4_ext_filter` has them.
        flags: u8,
    },
    /// Version 6.
    V6 {
        /// Where from.
        source: [u8; 16],
        /// Where to.
        destination: [u8; 16],
        /// The flow label.
        flow_label: u32,
        /// The traffic class.
        traffic_class: u8,
        /// The hop limit.
        hop_limit: u8,
    },
}

/// The ports of TCP or UDP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ports {
    /// Where from.
    pub source: u16,
    /// Where to.
    pub destination: u16,
}

/// A GRE header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gre {
    /// Its first two bytes: which fields there are, and the version.
    pub flags: u16,
    /// What it carries.
    pub protocol: u16,
    /// Its key; 0 if it has none.
    pub key: u32,
}

/// What IP carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upper {
    /// TCP.
    Tcp(Ports),
    /// UDP.
    Udp(Ports),
    /// Encrypted.
    Esp {
        /// The association.
        spi: u32,
        /// The number of the packet.
        sequence: u32,
    },
    /// A tunnel.
    Gre(Gre),
}

impl Layers {
    /// Reads a frame. None if it is shorter than an Ethernet header.
    pub fn parse(frame: &[u8]) -> Option<Layers> {
        frame.get(..ETHERNET_HEADER)?;
        let mut layers = Layers { outer: Stack::from_ethernet(frame, 0), ..Layers::default() };
        let outer = &layers.outer;
        match outer.upper {
            Some(Upper::Udp(Ports { destination: VXLAN_PORT, .. })) => {
                let at = outer.upper_at + 8;
                if let Some(word) = u32_at(frame, at + 4).filter(|_| frame.get(at).is_some_and(|flags| flags & 8 != 0))
                {
                    layers.vxlan = Some(word >> 8);
                    layers.inner = Some(Stack::from_ethernet(frame, at + 8));
                }
            }
            Some(Upper::Udp(Ports { destination: MPLS_PORT, .. })) => {
                layers.inner = Some(Stack::from_labels(frame, outer.upper_at + 8));
            }
            Some(Upper::Gre(Gre { flags, protocol, .. })) => {
                let optional = [0x8000, 0x2000, 0x1000].into_iter().filter(|bit| flags & bit != 0).count();
                layers.inner = Stack::from_type(frame, outer.upper_at + 4 + 4 * optional, protocol);
            }
            None if outer.protocol == MPLS_IN_IP && !outer.fragment => {
                layers.inner = Some(Stack::from_labels(frame, outer.upper_at));
            }
            _ => {}
        }
        Some(layers)
    }

    /// Whether its destination is a group.
    pub fn is_multicast(&self) -> bool {
        self.outer.ethernet.is_some_and(|header| header.destination[0] & 1 != 0)
    }
}

impl Stack {
    fn from_ethernet(frame: &[u8], at: usize) -> Stack {
        let (Some(destination), Some(source), Some(mut ether_type)) =
            (bytes_at(frame, at), bytes_at(frame, at + 6), u16_at(frame, at + 12))
        else {
            return Stack::default();
        };
        let mut next = at + ETHERNET_HEADER;
        let mut vlan = None;
        for _ in 0..MAX_TAGS {
            let (true, Some(tag), Some(after)) =
                (VLAN_ETHERTYPES.contains(&ether_type), u16_at(frame, next), u16_at(frame, next + 2))
            else {
                break;
            };
            vlan.get_or_insert(tag);
            ether_type = after;
            next += 4;
        }
        let stack = Stack::from_type(frame, next, ether_type).unwrap_or_default();
        Stack { ethernet: Some(EthernetHeader { destination, source, ether_type, vlan }), ..stack }
    }

    /// What follows a field that says what follows.
    fn from_type(frame: &[u8], at: usize, ether_type: u16) -> Option<Stack> {
        match ether_type {
            TYPE_IPV4 => Some(Stack::from_ipv4(frame, at)),
            TYPE_IPV6 => Some(Stack::from_ipv6(frame, at)),
            TYPE_BRIDGED => Some(Stack::from_ethernet(frame, at)),
            _ if MPLS_ETHERTYPES.contains(&ether_type) => Some(Stack::from_labels(frame, at)),
            _ => None,
        }
    }

    fn from_labels(frame: &[u8], at: usize) -> Stack {
        const BOTTOM: u32 = 1 << 8;
        let mut labels = (0..MAX_LABELS).map_while(|index| u32_at(frame, at + 4 * index));
        let Some(first) = labels.next() else { return Stack::default() };
        let depth =
            if first & BOTTOM != 0 { Some(1) } else { labels.position(|label| label & BOTTOM != 0).map(|n| n + 2) };
        // Labels do not say what follows them.
        let next = depth.map(|depth| at + 4 * depth);
        let stack = next.and_then(|next| match frame.get(next)? >> 4 {
            4 => Some(Stack::from_ipv4(frame, next)),
            6 => Some(Stack::from_ipv6(frame, next)),
            _ => None,
        });
        Stack { mpls: Some(first), ..stack.unwrap_or_default() }
    }

    fn from_ipv4(frame: &[u8], at: usize) -> Stack {
        let Some(header) = bytes_at::<20>(frame, at) else { return Stack::default() };
        let length = usize::from(header[0] & 15) * 4;
        if header[0] >> 4 != 4 || length < 20 {
            return Stack::default();
        }
        let [_, tos, total_high, total_low, _, _, frag_high, frag_low, ttl, protocol, _, _, rest @ ..] = header;
        let [s0, s1, s2, s3, d0, d1, d2, d3] = rest;
        let flags = (frag_high >> 5 & 2) | (frag_high >> 3 & 4);
        let fragment = u16::from_be_bytes([frag_high & 0x3f, frag_low]) != 0;
        let total = usize::from(u16::from_be_bytes([total_high, total_low]));
        let stack = Stack {
            internet: Some(Internet::V4 { source: [s0, s1, s2, s3], destination: [d0, d1, d2, d3], tos, ttl, flags }),
            protocol,
            fragment,
            internet_at: at,
            upper_at: at + length,
            end: (at + total).min(frame.len()),
            ..Stack::default()
        };
        stack.with_upper(frame)
    }

    fn from_ipv6(frame: &[u8], at: usize) -> Stack {
        const HOP_BY_HOP: u8 = 0;
        const ROUTING: u8 = 43;
        const FRAGMENT: u8 = 44;
        const DESTINATION: u8 = 60;
        let (Some(word), Some(length), Some([next, hop_limit]), Some(source), Some(destination)) = (
            u32_at(frame, at),
            u16_at(frame, at + 4),
            bytes_at::<2>(frame, at + 6),
            bytes_at(frame, at + 8),
            bytes_at(frame, at + 24),
        ) else {
            return Stack::default();
        };
        if word >> 28 != 6 {
            return Stack::default();
        }
        let (traffic_class, flow_label) = ((word >> 20) as u8, word & 0xf_ffff);
        let (mut protocol, mut upper_at, mut fragment) = (next, at + 40, false);
        for _ in 0..MAX_EXTENSIONS {
            let Some([following, size]) = bytes_at::<2>(frame, upper_at) else { break };
            upper_at += match protocol {
                HOP_BY_HOP | ROUTING | DESTINATION => 8 + 8 * usize::from(size),
                FRAGMENT => {
                    // Where it lies in the packet, and whether more follow.
                    fragment |= u16_at(frame, upper_at + 2).is_none_or(|place| place & 0xfff9 != 0);
                    8
                }
                _ => break,
            };
            protocol = following;
        }
        let stack = Stack {
            internet: Some(Internet::V6 { source, destination, flow_label, traffic_class, hop_limit }),
            protocol,
            fragment,
            internet_at: at,
            upper_at,
            end: (at + 40 + usize::from(length)).min(frame.len()),
            ..Stack::default()
        };
        stack.with_upper(frame)
    }

    fn with_upper(self, frame: &[u8]) -> Stack {
        if self.fragment {
            return self;
        }
        let at = self.upper_at;
        let ports = || Some(Ports { source: u16_at(frame, at)?, destination: u16_at(frame, at + 2)? });
        let upper = match self.protocol {
            PROTOCOL_TCP => ports().map(Upper::Tcp),
            PROTOCOL_UDP => ports().map(Upper::Udp),
            PROTOCOL_ESP => {
                u32_at(frame, at).and_then(|spi| u32_at(frame, at + 4).map(|sequence| Upper::Esp { spi, sequence }))
            }
            PROTOCOL_GRE => u16_at(frame, at).and_then(|flags| {
                let key_at = at + 4 + if flags & 0x8000 != 0 { 4 } else { 0 };
                let key = if flags & 0x2000 != 0 { u32_at(frame, key_at)? } else { 0 };
                Some(Upper::Gre(Gre { flags, protocol: u16_at(frame, at + 2)?, key }))
            }),
            _ => None,
        };
        Stack { upper, ..self }
    }
}
