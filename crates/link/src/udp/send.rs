//! Sending: a train becomes as few GSO datagrams as its packets' lengths allow.

use super::socket::{self, Family};
use crate::descriptor::Descriptor;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use wire::{EncodeError, Headers, Icrc, Ipv4Header, Ipv6Header, ROCE_PORT, UdpHeader};

/// The most bytes one system call sends: what fits an IPv4 datagram.
const MAX_DATAGRAM: usize = 65_507;

/// The most segments the kernel cuts one datagram into (`UDP_MAX_SEGMENTS`).
const MAX_SEGMENTS: usize = 64;

/// Where packets go and come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Our address.
    pub source: IpAddr,
    /// The peer's.
    pub destination: IpAddr,
    /// The interface, for multicast and for link-local IPv6 addresses; 0 leaves it to the routes.
    pub scope: u32,
    /// Type of service or traffic class.
    pub traffic_class: u8,
    /// Time to live or hop limit.
    pub hop_limit: u8,
}

impl Route {
    /// What to say of the hop limit, if it is not what a socket does anyway: 64 to one host, and 1 to many. 0 is nobody's wish.
    fn hops(&self) -> Option<libc::c_int> {
        let usual = if self.destination.is_multicast() { 1 } else { 64 };
        (self.hop_limit != 0 && self.hop_limit != usual).then(|| self.hop_limit.into())
    }
}

/// Packets to send: consecutive ones of one message.
pub trait Cargo {
    /// Why payload could not be had.
    type Error;

    /// How many packets.
    fn count(&self) -> u32;

    /// Headers of packet `index`, their pad count set, and the length of its payload.
    fn packet(&self, index: u32) -> (Headers, usize);

    /// Copies the payload of packet `index`.
    fn payload(&mut self, index: u32, out: &mut [u8]) -> Result<(), Self::Error>;
}

/// Why packets were not sent, or not all of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError<E> {
    /// The payload could not be had.
    #[error("the payload could not be gathered")]
    Payload(E),
    /// A packet cannot be written down.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A packet is longer than the way to the peer can carry.
    #[error("a packet of {length} bytes is too long for the path to {destination}")]
    TooLong {
        /// Its length, IP header included.
        length: usize,
        /// Where it was going.
        destination: IpAddr,
    },
    /// The system has no way to the peer.
    #[error("no route from {source_address} to {destination}")]
    NoRoute {
        /// From.
        source_address: IpAddr,
        /// To.
        destination: IpAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Source and destination are not of this socket's family.
    #[error("addresses of different families: {0} and {1}")]
    Families(IpAddr, IpAddr),
    /// Anything else.
    #[error("sending failed")]
    System(#[source] io::Error),
}

/// What was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Packets.
    pub packets: u32,
    /// System calls.
    pub calls: u32,
}

/// A socket to send from, and the buffer packets are put together in. One per sending thread, or behind a lock.
#[derive(Debug)]
pub struct Sender {
    socket: Descriptor,
    family: Family,
    port: u16,
    buffer: Vec<u8>,
    /// The kernel cuts datagrams for us.
    segmentation: bool,
}

impl Sender {
    /// A socket with a source port of its own.
    pub fn open(family: Family) -> io::Result<Sender> {
        let socket = socket::sender(family)?;
        let port = socket::local_port(socket.raw())?;
        Ok(Sender { socket, family, port, buffer: vec![0; MAX_DATAGRAM], segmentation: true })
    }

    /// The source port of everything it sends.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The socket; -1 in a forked child.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.raw()
    }

    /// Sends all packets of `cargo`. `one_by_one` for retransmissions: a train whose end is lost in a full buffer would be lost there again.
    pub fn send<C: Cargo>(
        &mut self,
        route: &Route,
        cargo: &mut C,
        one_by_one: bool,
    ) -> Result<Sent, SendError<C::Error>> {
        let mut sent = Sent::default();
        let count = cargo.count();
        let mut next = 0;
        while next < count {
            let (filled, segment, segments) = self.fill(route, cargo, next, one_by_one)?;
            match self.transmit(route, filled, segment, segments) {
                Ok(()) => {}
                Err(error)
                    if segments > 1
                        && matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::ENOPROTOOPT)) =>
                {
                    // This device or kernel does not segment: never try again, and send these one by one.
                    self.segmentation = false;
                    continue;
                }
                Err(error) => return Err(refusal(error, route, segment)),
            }
            next += segments;
            sent.packets += segments;
            sent.calls += 1;
        }
        Ok(sent)
    }

    /// Puts packets from `first` on into the buffer, as many as one datagram takes: all of one length but the last, which may be shorter.
    /// Answers how many bytes, the length of a segment, and how many segments.
    fn fill<C: Cargo>(
        &mut self,
        route: &Route,
        cargo: &mut C,
        first: u32,
        one_by_one: bool,
    ) -> Result<(usize, usize, u32), SendError<C::Error>> {
        let (mut filled, mut segment, mut segments) = (0, 0, 0);
        for index in first..cargo.count() {
            let (headers, length) = cargo.packet(index);
            let start = headers.len();
            let total = start + length + usize::from(headers.bth.pad) + Icrc::LEN;
            if segments > 0 {
                let alone = one_by_one || !self.segmentation || segments as usize >= MAX_SEGMENTS;
                if alone || total > segment || filled + total > MAX_DATAGRAM {
                    break;
                }
            }
            let Some(packet) = self.buffer.get_mut(filled..filled + total) else {
                return Err(SendError::TooLong { length: total, destination: route.destination });
            };
            headers.encode(packet)?;
            let covered = total - Icrc::LEN;
            packet[start + length..covered].fill(0);
            cargo.payload(index, &mut packet[start..start + length]).map_err(SendError::Payload)?;
            let udp = UdpHeader::roce(self.port, total)?;
            let mut icrc = match (route.source, route.destination) {
                (IpAddr::V4(source), IpAddr::V4(destination)) if self.family == Family::V4 => {
                    let mut ip = Ipv4Header::udp(source, destination, total)?;
                    ip.identification = segments as u16;
                    Icrc::v4(&ip, &udp)
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) if self.family == Family::V6 => {
                    Icrc::v6(&Ipv6Header::udp(source, destination, total)?, &udp)
                }
                (source, destination) => return Err(SendError::Families(source, destination)),
            };
            let icrc = icrc.headers(&packet[..covered]).finish();
            packet[covered..].copy_from_slice(&icrc);
            filled += total;
            segments += 1;
            if segments == 1 {
                segment = total;
            } else if total < segment {
                break;
            }
        }
        Ok((filled, segment, segments))
    }

    fn transmit(&self, route: &Route, filled: usize, segment: usize, segments: u32) -> io::Result<()> {
        let mut control = Control::default();
        match route.source {
            IpAddr::V4(source) => {
                let info = libc::in_pktinfo {
                    ipi_ifindex: route.scope as libc::c_int,
                    ipi_spec_dst: in_addr(source),
                    ipi_addr: in_addr(Ipv4Addr::UNSPECIFIED),
                };
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                if route.traffic_class != 0 {
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
                if route.traffic_class != 0 {
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &libc::c_int::from(route.traffic_class));
                }
                if let Some(hops) = route.hops() {
                    control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
                }
            }
        }
        if segments > 1 {
            control.push(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &(segment as u16));
        }
        let mut to = SocketAddr::new(route.destination, ROCE_PORT);
        if let SocketAddr::V6(to) = &mut to {
            to.set_scope_id(route.scope);
        }
        let to = socket2::SockAddr::from(to);
        let mut bytes = libc::iovec { iov_base: self.buffer.as_ptr().cast_mut().cast(), iov_len: filled };
        // SAFETY: `msghdr` is plain integers and pointers, for which zero is a value.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
        message.msg_iov = &raw mut bytes;
        message.msg_iovlen = 1;
        message.msg_control = control.bytes.as_mut_ptr().cast();
        message.msg_controllen = control.length as _;
        loop {
            // SAFETY: every pointer in `message` is to a live local or to `self.buffer`, of which `filled` bytes are initialised; the kernel
            // only reads them.
            let answer = unsafe { libc::sendmsg(self.socket.raw(), &raw const message, libc::MSG_NOSIGNAL) };
            if answer >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // An ICMP error that an earlier packet earned. It says nothing about this one.
                Some(libc::ECONNREFUSED) => {}
                _ => return Err(error),
            }
        }
    }
}

fn refusal<E>(error: io::Error, route: &Route, segment: usize) -> SendError<E> {
    match error.raw_os_error() {
        Some(libc::EMSGSIZE) => SendError::TooLong { length: segment, destination: route.destination },
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::EACCES | libc::ENETDOWN) => {
            SendError::NoRoute { source_address: route.source, destination: route.destination, source: error }
        }
        _ => SendError::System(error),
    }
}

fn in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) }
}

/// Room for the control messages of one send, aligned as the kernel wants them.
#[repr(C, align(8))]
struct Control {
    bytes: [u8; 160],
    length: usize,
}

impl Default for Control {
    fn default() -> Control {
        Control { bytes: [0; 160], length: 0 }
    }
}

impl Control {
    /// Appends a control message. `T` is one of the plain structures the kernel defines for it.
    fn push<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, value: &T) {
        let header = align(size_of::<libc::cmsghdr>());
        let space = header + align(size_of::<T>());
        let Some(room) = self.bytes.get_mut(self.length..self.length + space) else { return };
        let cmsg = libc::cmsghdr { cmsg_len: (header + size_of::<T>()) as _, cmsg_level: level, cmsg_type: kind };
        // SAFETY: `room` has `space` bytes, enough for the header and, behind it, for a `T`; both are plain data without padding that matters
        // to the kernel, and unaligned writes need no alignment.
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
