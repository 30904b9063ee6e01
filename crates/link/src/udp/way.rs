//! Where packets go: the address and the control messages of a call, and what the headers outside add to the ICRC.

use super::front::outer;
use super::socket;
use host::family::Family;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use wire::{Outer, ROCE_PORT};

/// Where packets go and come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Our address.
    pub source: IpAddr,
    /// The peer's.
    pub destination: IpAddr,
    /// The interface, for multicast and for link-local IPv6 addresses; 0 leaves it to the routes.
    pub scope: u32,
    /// Type of service or traffic class, with the bits of [`Ecn`](wire::Ecn).
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub hop_limit: u8,
}

impl Route {
    /// What to say of the hop limit, if it is not what a socket does anyway: 64 to one host, and 1 to many. 0 means
    /// that no hop limit was asked for.
    pub(super) fn hops(&self) -> Option<libc::c_int> {
        let usual = if self.destination.is_multicast() { 1 } else { 64 };
        (self.hop_limit != 0 && self.hop_limit != usual).then(|| self.hop_limit.into())
    }
}

/// What packets to one peer have in common.
#[derive(Debug)]
pub(super) struct Way {
    pub route: Route,
    pub to: socket2::SockAddr,
    pub control: Control,
    /// What the headers outside add to each; none if the addresses are not of the socket's family.
    pub outer: Option<Outer>,
}

impl Way {
    /// From that port.
    pub fn new(route: &Route, family: Family, port: u16) -> Way {
        let mut control = Control::default();
        match route.source {
            IpAddr::V4(source) => {
                let info = libc::in_pktinfo {
                    ipi_ifindex: route.scope as libc::c_int,
                    ipi_spec_dst: in_addr(source),
                    ipi_addr: in_addr(Ipv4Addr::UNSPECIFIED),
                };
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                if route.traffic_class != socket::DEFAULT_TRAFFIC_CLASS {
                    control.push(libc::IPPROTO_IP, libc::IP_TOS, &libc::c_int::from(route.traffic_class));
                }
                if let Some(hops) = route.hops() {
                    control.push(libc::IPPROTO_IP, libc::IP_TTL, &hops);
                }
            }
            IpAddr::V6(source) => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: source.octets() },
                    ipi6_ifindex: route.scope,
                };
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
                if route.traffic_class != socket::DEFAULT_TRAFFIC_CLASS {
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &libc::c_int::from(route.traffic_class));
                }
                if let Some(hops) = route.hops() {
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
                }
            }
        }
        let mut to = SocketAddr::new(route.destination, ROCE_PORT);
        if let SocketAddr::V6(to) = &mut to {
            to.set_scope_id(route.scope);
        }
        Way { route: *route, to: to.into(), control, outer: outer(route, family, port) }
    }
}

fn in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) }
}

/// Room for the control messages of one send, aligned as the kernel wants them.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    pub bytes: [u8; 160],
    pub length: usize,
}

impl Default for Control {
    fn default() -> Control {
        Control { bytes: [0; 160], length: 0 }
    }
}

impl Control {
    /// These control messages with another one behind them.
    pub fn and<T: Copy>(&self, level: libc::c_int, kind: libc::c_int, value: &T) -> Control {
        let mut control = self.clone();
        control.push(level, kind, value);
        control
    }

    /// Appends a control message. `T` is one of the plain structures the kernel defines for it.
    fn push<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, value: &T) {
        let header = align(size_of::<libc::cmsghdr>());
        let space = header + align(size_of::<T>());
        let Some(room) = self.bytes.get_mut(self.length..self.length + space) else { return };
        let cmsg = libc::cmsghdr { cmsg_len: (header + size_of::<T>()) as _, cmsg_level: level, cmsg_type: kind };
        // SAFETY: `room` has `space` bytes, enough for the header and, behind it, for a `T`; both are plain data
        // without padding that matters to the kernel, and unaligned writes need no alignment.
        unsafe {
            room.as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(cmsg);
            room.as_mut_ptr().add(header).cast::<T>().write_unaligned(*value);
        }
        self.length += space;
    }
}

/// Control messages start at multiples of the word size.
pub(super) const fn align(length: usize) -> usize {
    length.next_multiple_of(size_of::<usize>())
}
