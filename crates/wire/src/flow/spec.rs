//! Flow specifications: what a program asks of a frame's headers, and what is done with the frames that have it. They
//! lie in memory as `verbs.h` has them; here they become values, or an error that says what is wrong.

use super::layers::{TYPE_IPV4, TYPE_IPV6};
use super::{Internet, Layers, Stack, Upper, bytes_at};

/// What kind of specification it is, with the numbers of `ibv_flow_spec_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the header's")]
pub enum SpecType {
    Eth = 0x20,
    Ipv4 = 0x30,
    Ipv6 = 0x31,
    Ipv4Ext = 0x32,
    Esp = 0x34,
    Tcp = 0x40,
    Udp = 0x41,
    VxlanTunnel = 0x50,
    Gre = 0x51,
    Mpls = 0x60,
    ActionTag = 0x1000,
    ActionDrop = 0x1001,
    ActionHandle = 0x1002,
    ActionCount = 0x1003,
}

/// The flag that has a specification speak of the headers inside a tunnel.
const INNER_FLAG: u32 = 0x100;

/// Why a specification was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No such type.
    #[error("a flow specification of the unknown type {0:#x}")]
    UnknownType(u32),
    /// Shorter than its type.
    #[error("a flow specification of type {kind:?} has {given} bytes, and needs {needed}")]
    Size {
        /// Its type.
        kind: SpecType,
        /// Its bytes.
        given: usize,
        /// Those of its type.
        needed: usize,
    },
    /// A tunnel or an action has no inner form.
    #[error("a flow specification of type {0:?} cannot be of the inner headers")]
    NotInner(SpecType),
    /// The device does not do it.
    #[error("flow specifications of type {0:?} are not offered")]
    NotOffered(SpecType),
    /// A value that its field cannot have.
    #[error("the {field} of a flow specification is too large")]
    TooLarge {
        /// Which field.
        field: &'static str,
    },
}

/// One part of a flow: a condition, or what is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowPart {
    /// A condition.
    Match(Match),
    /// What is done.
    Action(Action),
}

/// What is done with a frame besides giving it to a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Its completion has this tag.
    Tag(u32),
    /// It goes no further.
    Drop,
    /// It is counted by the object at this address.
    Count(u64),
}

/// A condition on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Match {
    /// It speaks of the headers inside a tunnel.
    pub inner: bool,
    /// The header it speaks of, with the bits that must be so.
    pub filter: Filter,
}

/// The bytes a header must have, in the places that the mask names. Each has them in the order of its structure in
/// `verbs.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    /// Destination, source, type, tag.
    Eth {
        /// What it must have.
        value: [u8; 16],
        /// Where it must have that.
        mask: [u8; 16],
    },
    /// Source, destination, protocol, type of service, time to live, flags.
    Ipv4 {
        /// What it must have.
        value: [u8; 12],
        /// Where it must have that.
        mask: [u8; 12],
    },
    /// Source, destination, flow label, next header, class, hop limit.
    Ipv6 {
        /// What it must have.
        value: [u8; 39],
        /// Where it must have that.
        mask: [u8; 39],
    },
    /// Destination port, source port.
    Tcp {
        /// What it must have.
        value: [u8; 4],
        /// Where it must have that.
        mask: [u8; 4],
    },
    /// Destination port, source port.
    Udp {
        /// What it must have.
        value: [u8; 4],
        /// Where it must have that.
        mask: [u8; 4],
    },
    /// Association, number.
    Esp {
        /// What it must have.
        value: [u8; 8],
        /// Where it must have that.
        mask: [u8; 8],
    },
    /// Flags, protocol, key.
    Gre {
        /// What it must have.
        value: [u8; 8],
        /// Where it must have that.
        mask: [u8; 8],
    },
    /// The first label.
    Mpls {
        /// What it must have.
        value: [u8; 4],
        /// Where it must have that.
        mask: [u8; 4],
    },
    /// The number of the network.
    Vxlan {
        /// What it must have.
        value: [u8; 4],
        /// Where it must have that.
        mask: [u8; 4],
    },
}

impl SpecType {
    const ALL: [SpecType; 14] = [
        SpecType::Eth,
        SpecType::Ipv4,
        SpecType::Ipv6,
        SpecType::Ipv4Ext,
        SpecType::Esp,
        SpecType::Tcp,
        SpecType::Udp,
        SpecType::VxlanTunnel,
        SpecType::Gre,
        SpecType::Mpls,
        SpecType::ActionTag,
        SpecType::ActionDrop,
        SpecType::ActionHandle,
        SpecType::ActionCount,
    ];

    /// The size of its structure.
    pub fn size(self) -> usize {
        match self {
            SpecType::Eth => 40,
            SpecType::Ipv4 | SpecType::Esp | SpecType::Gre => 24,
            SpecType::Ipv6 => 88,
            SpecType::Ipv4Ext => 32,
            SpecType::Tcp | SpecType::Udp | SpecType::VxlanTunnel | SpecType::Mpls => 16,
            SpecType::ActionTag => 12,
            SpecType::ActionDrop => 8,
            SpecType::ActionHandle | SpecType::ActionCount => 16,
        }
    }

    fn may_be_inner(self) -> bool {
        !matches!(
            self,
            SpecType::VxlanTunnel
                | SpecType::Gre
                | SpecType::ActionTag
                | SpecType::ActionDrop
                | SpecType::ActionHandle
                | SpecType::ActionCount
        )
    }
}

impl FlowPart {
    /// Reads one specification, all of its bytes.
    pub fn parse(bytes: &[u8]) -> Result<FlowPart, SpecError> {
        let code = bytes_at(bytes, 0).map_or(0, u32::from_ne_bytes);
        let found = SpecType::ALL.into_iter().find(|kind| *kind as u32 == code & !INNER_FLAG);
        let kind = found.ok_or(SpecError::UnknownType(code))?;
        let inner = code & INNER_FLAG != 0;
        refuse_if!(inner && !kind.may_be_inner(), SpecError::NotInner(kind));
        let short = SpecError::Size { kind, given: bytes.len(), needed: kind.size() };
        refuse_if!(bytes.len() < kind.size(), short);
        let number = |at| bytes_at(bytes, at).map(u32::from_ne_bytes).ok_or(short);
        // Two structures of `N` bytes, the second `apart` after the first; those of bytes alone begin at 6.
        fn pair<const N: usize>(bytes: &[u8], at: usize, apart: usize) -> Option<([u8; N], [u8; N])> {
            Some((bytes_at(bytes, at)?, bytes_at(bytes, at + apart)?))
        }
        let filter = match kind {
            SpecType::Eth => pair(bytes, 6, 16).map(|(value, mask)| Filter::Eth { value, mask }),
            SpecType::Ipv4 => {
                pair(bytes, 8, 8).map(|(value, mask)| Filter::Ipv4 { value: wide(value), mask: wide(mask) })
            }
            SpecType::Ipv4Ext => pair(bytes, 8, 12).map(|(value, mask)| Filter::Ipv4 { value, mask }),
            SpecType::Ipv6 => pair(bytes, 8, 40).map(|(value, mask)| Filter::Ipv6 { value, mask }),
            SpecType::Tcp => pair(bytes, 6, 4).map(|(value, mask)| Filter::Tcp { value, mask }),
            SpecType::Udp => pair(bytes, 6, 4).map(|(value, mask)| Filter::Udp { value, mask }),
            SpecType::Esp => pair(bytes, 8, 8).map(|(value, mask)| Filter::Esp { value, mask }),
            SpecType::Gre => pair(bytes, 8, 8).map(|(value, mask)| Filter::Gre { value, mask }),
            SpecType::Mpls => pair(bytes, 8, 4).map(|(value, mask)| Filter::Mpls { value, mask }),
            SpecType::VxlanTunnel => pair(bytes, 8, 4).map(|(value, mask)| Filter::Vxlan { value, mask }),
            SpecType::ActionTag => {
                let tag = number(8)?;
                // As many bits as completions of hardware have for it.
                return match tag >> 24 {
                    0 => Ok(FlowPart::Action(Action::Tag(tag))),
                    _ => Err(SpecError::TooLarge { field: "tag" }),
                };
            }
            SpecType::ActionDrop => return Ok(FlowPart::Action(Action::Drop)),
            SpecType::ActionCount => {
                let address = bytes_at(bytes, 8).map(u64::from_ne_bytes).ok_or(short)?;
                return Ok(FlowPart::Action(Action::Count(address)));
            }
            SpecType::ActionHandle => return Err(SpecError::NotOffered(kind)),
        };
        let filter = filter.ok_or(short)?;
        filter.check()?;
        Ok(FlowPart::Match(Match { inner, filter }))
    }
}

/// The short form of an IPv4 filter, as the long one has it.
fn wide(short: [u8; 8]) -> [u8; 12] {
    let mut long = [0; 12];
    put_front(&mut long, &short);
    long
}

fn put_front(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

/// Whether a header has the bits it must have.
fn has(header: &[u8], value: &[u8], mask: &[u8]) -> bool {
    header.iter().zip(value).zip(mask).all(|((have, want), mask)| (have ^ want) & mask == 0)
}

impl Filter {
    /// Values that no header can have.
    fn check(&self) -> Result<(), SpecError> {
        match self {
            Filter::Ipv6 { value, mask } => {
                let label = |bytes: &[u8; 39]| bytes_at(bytes, 32).map_or(0, u32::from_be_bytes);
                let beyond = (label(value) | label(mask)) >> 20 != 0;
                if beyond { Err(SpecError::TooLarge { field: "flow label" }) } else { Ok(()) }
            }
            Filter::Vxlan { value, mask } if value[0] | mask[0] != 0 => {
                Err(SpecError::TooLarge { field: "VXLAN network number" })
            }
            _ => Ok(()),
        }
    }

    /// The Ethernet type that this filter needs, if it needs one: what contradicts it never matches.
    pub(super) fn ether_type(&self) -> Option<u16> {
        match self {
            Filter::Ipv4 { .. } => Some(TYPE_IPV4),
            Filter::Ipv6 { .. } => Some(TYPE_IPV6),
            Filter::Eth { value, mask } if mask[12..14] == [0xff; 2] => {
                Some(u16::from_be_bytes([value[12], value[13]]))
            }
            _ => None,
        }
    }

    /// The Ethernet address that it asks for, if it asks for one and for all of it.
    pub fn destination(&self) -> Option<[u8; 6]> {
        match self {
            Filter::Eth { value, mask } if mask[..6] == [0xff; 6] => bytes_at(value, 0),
            _ => None,
        }
    }
}

impl Match {
    /// Whether a frame has what it asks for.
    pub fn holds(&self, layers: &Layers) -> bool {
        let stack = if self.inner { layers.inner.as_ref() } else { Some(&layers.outer) };
        match (&self.filter, stack) {
            (Filter::Vxlan { value, mask }, _) => {
                layers.vxlan.is_some_and(|network| has(&network.to_be_bytes(), value, mask))
            }
            // The label may lie in front of the packet inside a tunnel, which is where the outer headers end.
            (Filter::Mpls { value, mask }, Some(stack)) => {
                let label = stack.mpls.or_else(|| layers.inner.filter(|_| !self.inner)?.mpls);
                label.is_some_and(|label| has(&label.to_be_bytes(), value, mask))
            }
            (filter, Some(stack)) => stack.has(filter),
            (_, None) => false,
        }
    }
}

impl Stack {
    fn has(&self, filter: &Filter) -> bool {
        let two = |first: u32, second: u32| {
            let mut bytes = [0; 8];
            put_front(&mut bytes, &first.to_be_bytes());
            put_front(bytes.get_mut(4..).unwrap_or_default(), &second.to_be_bytes());
            bytes
        };
        match filter {
            Filter::Eth { value, mask } => {
                let Some(header) = self.ethernet else { return false };
                let wants_tag = mask[14..] != [0; 2];
                let [t0, t1] = header.ether_type.to_be_bytes();
                let [v0, v1] = header.vlan.unwrap_or(0).to_be_bytes();
                let mut bytes = [0; 16];
                put_front(&mut bytes, &header.destination);
                put_front(bytes.get_mut(6..).unwrap_or_default(), &header.source);
                put_front(bytes.get_mut(12..).unwrap_or_default(), &[t0, t1, v0, v1]);
                has(&bytes, value, mask) && !(wants_tag && header.vlan.is_none())
            }
            Filter::Ipv4 { value, mask } => {
                let Some(Internet::V4 { source, destination, tos, ttl, flags }) = self.internet else { return false };
                let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (source, destination);
                has(&[s0, s1, s2, s3, d0, d1, d2, d3, self.protocol, tos, ttl, flags], value, mask)
            }
            Filter::Ipv6 { value, mask } => {
                let Some(Internet::V6 { source, destination, flow_label, traffic_class, hop_limit }) = self.internet
                else {
                    return false;
                };
                let mut bytes = [0; 39];
                put_front(&mut bytes, &source);
                put_front(bytes.get_mut(16..).unwrap_or_default(), &destination);
                put_front(bytes.get_mut(32..).unwrap_or_default(), &flow_label.to_be_bytes());
                put_front(bytes.get_mut(36..).unwrap_or_default(), &[self.protocol, traffic_class, hop_limit]);
                has(&bytes, value, mask)
            }
            Filter::Tcp { value, mask } => match self.upper {
                Some(Upper::Tcp(ports)) => has(&ports.bytes(), value, mask),
                _ => false,
            },
            Filter::Udp { value, mask } => match self.upper {
                Some(Upper::Udp(ports)) => has(&ports.bytes(), value, mask),
                _ => false,
            },
            Filter::Esp { value, mask } => match self.upper {
                Some(Upper::Esp { spi, sequence }) => has(&two(spi, sequence), value, mask),
                _ => false,
            },
            Filter::Gre { value, mask } => match self.upper {
                Some(Upper::Gre(gre)) => {
                    let front = u32::from(gre.flags) << 16 | u32::from(gre.protocol);
                    has(&two(front, gre.key), value, mask)
                }
                _ => false,
            },
            Filter::Mpls { .. } | Filter::Vxlan { .. } => false,
        }
    }
}

impl super::Ports {
    /// As the filter has them: the destination first.
    fn bytes(self) -> [u8; 4] {
        (u32::from(self.destination) << 16 | u32::from(self.source)).to_be_bytes()
    }
}
