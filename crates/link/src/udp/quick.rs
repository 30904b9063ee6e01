//! A connected socket for short messages to a peer on this host: the kernel looks for the route once, not for each datagram, which is a twelfth
//! of the time that one takes.
//!
//! A connected socket of IPv4 counts its identifications up from a number that the kernel chooses, and the ICRC covers them. What that number is
//! the kernel shows to one who asks when a datagram left: it then hands the datagram back, headers included.

use super::call;
use super::front::outer;
use super::socket::{self, Family};
use super::way::{Control, Route};
use crate::descriptor::{Descriptor, check, check_length};
use socket2::SockAddr;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use wire::{Ipv4Header, Outer, ROCE_PORT, UdpHeader};

#[derive(Debug)]
pub(super) struct Quick {
    pub socket: Descriptor,
    /// What the headers outside add to packets from its port.
    pub outer: Outer,
    /// The identification of the next datagram; 0 where there is none.
    pub next: u16,
}

impl Quick {
    /// Whether it is for packets that go there.
    pub fn suits(route: &Route) -> bool {
        route.destination.is_loopback() && route.scope == 0
    }

    /// A socket for that route. Nothing if there is none, or if the kernel does not tell how it counts. `beside` is another socket of ours, at `port`:
    /// it gets a few datagrams for the kernel to show.
    pub fn open(route: &Route, family: Family, beside: RawFd, port: u16) -> Option<Quick> {
        let socket = socket::sender(family).ok()?;
        let (level, class, hops) = match family {
            Family::V4 => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            Family::V6 => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_UNICAST_HOPS),
        };
        let set = |option, value| socket::set_raw(socket.raw(), level, option, value).ok();
        set(class, route.traffic_class.into())?;
        if let Some(limit) = route.hops() {
            set(hops, limit)?;
        }
        connect(&socket, SocketAddr::new(route.destination, ROCE_PORT)).ok()?;
        let here = socket::local_address(socket.raw()).ok().filter(|here| here.ip() == route.source)?;
        let next = match here.ip() {
            IpAddr::V4(source) => learn(socket.raw(), source, here.port(), beside, port)?,
            IpAddr::V6(_) => 0,
        };
        Some(Quick { outer: outer(route, family, here.port())?, socket, next })
    }

    /// Sends a datagram, cut into segments of that length, whose ICRCs are for the next identifications. False if it was not sent: then nobody knows how the
    /// kernel goes on counting.
    pub fn send(&mut self, bytes: &[u8], segment: Option<usize>) -> bool {
        let (socket, flags) = (self.socket.raw(), libc::MSG_NOSIGNAL);
        let sent = match segment {
            // SAFETY: `bytes` is live and as long as it says.
            None => unsafe { call::send_bytes(socket, bytes.as_ptr(), bytes.len(), flags) },
            Some(segment) => {
                let control = Control::default().and(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &(segment as u16));
                let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                let mut message = message_of(&mut vector);
                message.msg_control = control.bytes.as_ptr().cast_mut().cast();
                message.msg_controllen = control.length as _;
                // SAFETY: the message points to a vector and control messages that are live, which the kernel only reads, and the vector to `bytes`.
                unsafe { call::send(socket, &raw const message, flags) }
            }
        };
        self.next = self.next.wrapping_add(1);
        sent == bytes.len() as isize
    }
}

fn message_of(vector: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: `msghdr` is plain integers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen) = (vector, 1);
    message
}

fn connect(socket: &Descriptor, to: SocketAddr) -> io::Result<()> {
    let to = SockAddr::from(to);
    // SAFETY: `to` is live and as long as it says.
    check(unsafe { libc::connect(socket.raw(), to.as_ptr().cast(), to.len()) }).map(drop)
}

/// What the probes hold.
const MARK: [u8; 8] = *b"ubiverbs";

/// The identification that a connected socket gives to its next datagram.
pub(super) fn learn(socket: RawFd, source: Ipv4Addr, port: u16, beside: RawFd, to: u16) -> Option<u16> {
    const TELL: libc::c_uint = libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_SOFTWARE;
    let timestamps = |which: libc::c_uint| socket::set_raw(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, which as _);
    timestamps(TELL).ok()?;
    let probe = || {
        let to = SockAddr::from(SocketAddr::new(source.into(), to));
        let (mut mark, mut shown) = (MARK, [0u8; 256]);
        let mut vector = libc::iovec { iov_base: mark.as_mut_ptr().cast(), iov_len: mark.len() };
        let mut message = message_of(&mut vector);
        (message.msg_name, message.msg_namelen) = (to.as_ptr().cast_mut().cast(), to.len());
        // SAFETY: the message points to a vector and an address that are live, and the vector to bytes of that length.
        check_length(unsafe { call::send(socket, &raw const message, libc::MSG_NOSIGNAL) }).ok()?;
        let mut vector = libc::iovec { iov_base: shown.as_mut_ptr().cast(), iov_len: shown.len() };
        let (mut message, flags) = (message_of(&mut vector), libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
        // SAFETY: the message points to a vector that is live, and that to a buffer of that length.
        let length = check_length(unsafe { call::receive(socket, &raw mut message, flags) }).ok()?;
        // What came to the other socket is of no use.
        message.msg_iovlen = 0;
        // SAFETY: the message points to nothing.
        unsafe { call::receive(beside, &raw mut message, libc::MSG_DONTWAIT) };
        identification(shown.get(..length)?, source, port)
    };
    let seen = [probe()?, probe()?];
    timestamps(0).ok()?;
    let [first, second] = seen;
    (second == first.wrapping_add(1)).then(|| second.wrapping_add(1))
}

/// The identification of a datagram of ours as the kernel shows it: behind the header of its link.
fn identification(shown: &[u8], source: Ipv4Addr, port: u16) -> Option<u16> {
    let mark = shown.windows(MARK.len()).position(|bytes| bytes == MARK)?;
    let header = shown.get(mark.checked_sub(Ipv4Header::LEN + UdpHeader::LEN)?..mark)?;
    let (ip, udp) = header.split_first_chunk::<{ Ipv4Header::LEN }>()?;
    let [0x45, _, _, _, upper, lower, _, _, _, protocol, _, _, from @ .., _, _, _, _] = *ip else { return None };
    let ours =
        i32::from(protocol) == libc::IPPROTO_UDP && from == source.octets() && udp.starts_with(&port.to_be_bytes());
    ours.then(|| u16::from_be_bytes([upper, lower]))
}
