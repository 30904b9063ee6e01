//! Receiving: as many datagrams as one system call brings, each cut into the packets GRO had merged, each packet held to its ICRC.

use super::call;
use super::group::Group;
use super::identification::{Identifications, matches};
use super::send::align;
use super::socket::{self, BindError, Family};
use crate::descriptor::Descriptor;
use crate::faults::Faults;
use crate::slots::{Slot, random};
use crate::steering::probe::{self, Answer, Probe};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;
use std::time::Instant;
use wire::{Gid, Headers, IpHeader, Ipv4Header, Ipv6Header, Outer, Packet, ROCE_PORT, UdpHeader};

/// Datagrams per system call, where short ones follow one another.
const BATCH: usize = 8;

/// After so many calls in a row that brought a short datagram, further calls ask for several: asking for a second one that is not there costs
/// about as much as asking again.
const STREAK: u32 = 3;

/// Longer datagrams are taken one at a time, so that the next one comes to memory that is still in the cache.
const SHORT: usize = 8192;

/// A GRO buffer may hold as much as the largest datagram; a shorter one would be cut off in the middle of a packet.
const BUFFER: usize = 65_536;

const CONTROL: usize = 256;

/// So many packets are taken together, or so many bytes: they were read to be checked, and are read again when they are taken.
const LONGEST_RUN: usize = 8;
const MOST_BYTES: usize = 16 * 1024;

/// A packet that arrived undamaged.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its headers.
    pub headers: Headers,
    /// Its payload without pad.
    pub payload: &'a [u8],
    /// The IP header it came with, as far as a socket sees it.
    pub ip: IpHeader,
    /// The packet as it was on the wire, from the BTH to the ICRC: what is forwarded to another process.
    pub bytes: &'a [u8],
    /// The sender's UDP port.
    pub port: u16,
    /// The interface it came in by; 0 if another process passed it on.
    pub interface: u32,
    /// A router marked it "congestion experienced".
    pub congestion_marked: bool,
}

impl Arrival<'_> {
    /// None yet.
    const NONE: Arrival<'static> = Arrival {
        headers: Headers::NONE,
        payload: &[],
        ip: IpHeader::V4(Ipv4Header {
            tos: 0,
            total_length: 0,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 0,
            protocol: 0,
            source: Ipv4Addr::UNSPECIFIED,
            destination: Ipv4Addr::UNSPECIFIED,
        }),
        bytes: &[],
        port: 0,
        interface: 0,
        congestion_marked: false,
    };

    /// Who sent it.
    pub fn source(&self) -> Gid {
        match self.ip {
            IpHeader::V4(ip) => Gid::from_ipv4(ip.source),
            IpHeader::V6(ip) => Gid::from_ipv6(ip.source),
        }
    }

    /// Sent to all in a multicast group.
    pub fn is_multicast(&self) -> bool {
        match self.ip {
            IpHeader::V4(ip) => ip.destination.is_multicast(),
            IpHeader::V6(ip) => ip.destination.is_multicast(),
        }
    }

    /// The address it was sent to.
    pub fn destination(&self) -> Gid {
        match self.ip {
            IpHeader::V4(ip) => Gid::from_ipv4(ip.destination),
            IpHeader::V6(ip) => Gid::from_ipv6(ip.destination),
        }
    }
}

/// What one call brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Datagrams: if there were any, there may be more.
    pub datagrams: u32,
    /// Undamaged packets.
    pub packets: u32,
    /// Packets whose ICRC was wrong.
    pub damaged: u32,
    /// Packets that could not be read.
    pub malformed: u32,
    /// Questions of other processes of this host, answered.
    pub probes: u32,
}

/// The socket that receives for one address family, with its buffers. Whoever holds it drives.
#[derive(Debug)]
pub struct Receiver {
    socket: Descriptor,
    /// Tells this socket from others in answers to probes.
    identity: u64,
    slots: Vec<Slot>,
    checker: Checker,
    faults: Option<Faults<Segment>>,
    buffers: Vec<u8>,
    controls: Vec<Aligned>,
    names: Vec<libc::sockaddr_storage>,
    /// How many calls in a row brought only short datagrams.
    streak: u32,
}

#[derive(Clone, Debug)]
#[repr(C, align(8))]
struct Aligned([u8; CONTROL]);

impl Receiver {
    /// Shares port 4791 with the other processes of this user.
    pub fn open(family: Family) -> Result<Receiver, BindError> {
        Receiver::open_port(family, ROCE_PORT)
    }

    /// The same on another port, for tests.
    pub fn open_port(family: Family, port: u16) -> Result<Receiver, BindError> {
        let socket = socket::receiver(family, port)?;
        // SAFETY: `sockaddr_storage` is plain integers, for which zero is a value.
        let name: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        Ok(Receiver {
            socket,
            identity: random(),
            slots: Vec::new(),
            checker: Checker { family, identifications: Identifications::default(), last: None },
            faults: None,
            buffers: vec![0; BATCH * BUFFER],
            controls: vec![Aligned([0; CONTROL]); BATCH],
            names: vec![name; BATCH],
            streak: 0,
        })
    }

    /// The socket, to wait for; -1 in a forked child.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.raw()
    }

    /// Receives what is sent to a multicast group, too.
    pub fn join(&self, group: &Group) -> io::Result<()> {
        group.join(self.socket.raw())
    }

    /// Receives it no longer.
    pub fn leave(&self, group: &Group) -> io::Result<()> {
        group.leave(self.socket.raw())
    }

    /// The slots that other processes of this host should [steer](crate::steering) to this socket.
    pub fn announce(&mut self, slots: Vec<Slot>) {
        self.slots = slots;
    }

    /// Puts faults between the network and the check of the ICRC, or takes them away; answers what was there.
    pub fn inject(&mut self, faults: Option<Faults<Segment>>) -> Option<Faults<Segment>> {
        std::mem::replace(&mut self.faults, faults)
    }

    /// When a packet that faults hold back is due: [`receive`](Receiver::receive) has to be called then, though the socket is silent.
    pub fn due(&self) -> Option<Instant> {
        self.faults.as_ref().and_then(Faults::due)
    }

    /// What the kernel buffers for us: the window that senders should keep to.
    pub fn buffer_size(&self) -> io::Result<usize> {
        // The kernel answers twice what was asked for, and charges packets by that.
        Ok(socket::get(self.socket.raw(), libc::SOL_SOCKET, libc::SO_RCVBUF)? as usize)
    }

    /// Datagrams that the kernel dropped because the buffer was full, since the socket was opened.
    pub fn overflowed(&self) -> io::Result<u32> {
        socket::drops(self.socket.raw())
    }

    /// Takes what has arrived, without waiting, and gives each undamaged packet to `take`, in order.
    pub fn receive(&mut self, mut take: impl FnMut(&Arrival<'_>)) -> io::Result<Received> {
        self.receive_runs(|run| run.iter().for_each(&mut take))
    }

    /// The same, several packets at a time where they came together, from one sender: as many as stay in the cache until they are taken.
    pub fn receive_runs(&mut self, mut take: impl FnMut(&[Arrival<'_>])) -> io::Result<Received> {
        let mut received = Received::default();
        let now = if self.faults.is_some() { Some(Instant::now()) } else { None };
        // Takes a datagram, or several if they seem to come one after another.
        let short = if self.streak < STREAK {
            match self.receive_one()? {
                Some(size) => {
                    self.unpack(0, size, now, &mut received, &mut take);
                    size.length <= SHORT
                }
                None => false,
            }
        } else {
            let mut sizes = [Size::default(); BATCH];
            let count = self.receive_several(&mut sizes)?;
            for (at, size) in sizes.into_iter().enumerate().take(count) {
                self.unpack(at, size, now, &mut received, &mut take);
            }
            count > 0 && sizes.iter().all(|size| size.length <= SHORT)
        };
        self.streak = if short { self.streak.saturating_add(1) } else { 0 };
        if let (Some(faults), Some(now)) = (&mut self.faults, now) {
            faults.release(now, |passed| {
                passed.meta.give(passed.bytes, &mut self.checker, &mut received, &mut take);
            });
        }
        Ok(received)
    }

    /// Cuts a datagram into its packets, and gives those that are undamaged to `take`.
    fn unpack(
        &mut self,
        at: usize,
        size: Size,
        now: Option<Instant>,
        received: &mut Received,
        take: &mut impl FnMut(&[Arrival<'_>]),
    ) {
        received.datagrams += 1;
        let Receiver { buffers, controls, names, checker, faults, .. } = self;
        let (Some(control), Some(name)) = (controls.get(at), names.get(at)) else { return };
        let Some(bytes) = buffers.get(at * BUFFER..at * BUFFER + size.length) else { return };
        let Some((source, port)) = address(name) else { return };
        let notes = Notes::read(control.0.get(..size.control).unwrap_or(&[]));
        if size.flags & libc::MSG_TRUNC != 0 {
            received.malformed += 1;
            return;
        }
        let segment = notes.segment.filter(|segment| *segment > 0).unwrap_or(bytes.len().max(1));
        let mut several = (segment < bytes.len()).then(Run::new);
        // Written once, long before it is read: what is written in parts and read as a whole waits until everything stored before is in the cache.
        let mut meta = Segment { source, port, notes, index: 0 };
        for (index, bytes) in bytes.chunks(segment).enumerate() {
            if let Some(probe) = Probe::parse(bytes)
                && source.is_loopback()
            {
                received.probes += 1;
                let Probe { nonce, index } = probe;
                let answer = Answer { nonce, index, socket: self.identity, slots: self.slots.clone() };
                // Who asked will ask again.
                let _ = probe::send(self.socket.raw(), &answer.bytes(), (source, port).into());
                continue;
            }
            meta.index = index as u16;
            match (&mut *faults, notes.destination, now, &mut several) {
                (Some(faults), Some(destination), Some(now), _) => {
                    faults.arrive(now, (source, destination), meta, bytes, |passed| {
                        passed.meta.give(passed.bytes, checker, received, take);
                    });
                }
                (.., Some(run)) => run.add(|into| meta.check(bytes, checker, received, into), take),
                _ => meta.give(bytes, checker, received, take),
            }
        }
        if let Some(run) = &mut several {
            run.end(take);
        }
    }

    fn receive_one(&mut self) -> io::Result<Option<Size>> {
        let (Some(buffer), Some(control), Some(name)) =
            (self.buffers.get_mut(..BUFFER), self.controls.first_mut(), self.names.first_mut())
        else {
            return Ok(None);
        };
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut header = message(&mut vector, control, name);
        let received = until_answered(|| {
            // SAFETY: the header points to a buffer, a control area, a name and a vector that are live, disjoint and of the lengths given.
            unsafe { call::receive(self.socket.raw(), &raw mut header, libc::MSG_DONTWAIT) }
        })?;
        Ok(received.map(|length| Size::of(length, &header)))
    }

    fn receive_several(&mut self, sizes: &mut [Size; BATCH]) -> io::Result<usize> {
        // SAFETY: `mmsghdr` and `iovec` are plain integers and pointers, for which zero is a value.
        let (mut messages, mut vectors): ([libc::mmsghdr; BATCH], [libc::iovec; BATCH]) =
            unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
        let parts = self.buffers.chunks_mut(BUFFER).zip(&mut self.controls).zip(&mut self.names);
        for (((buffer, control), name), (slot, vector)) in parts.zip(messages.iter_mut().zip(&mut vectors)) {
            *vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            slot.msg_hdr = message(vector, control, name);
        }
        let answer = until_answered(|| {
            let nothing = std::ptr::null_mut();
            // SAFETY: each message points to a buffer, a control area, a name and a vector that are live, disjoint and of the lengths given.
            let answer = unsafe {
                libc::recvmmsg(self.socket.raw(), messages.as_mut_ptr(), BATCH as _, libc::MSG_DONTWAIT as _, nothing)
            };
            answer as isize
        })?;
        let count = answer.unwrap_or(0);
        for (size, message) in sizes.iter_mut().zip(&messages).take(count) {
            *size = Size::of(message.msg_len as usize, &message.msg_hdr);
        }
        Ok(count)
    }
}

/// How much of a datagram there is.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    length: usize,
    /// The length of its control messages.
    control: usize,
    flags: libc::c_int,
}

impl Size {
    fn of(length: usize, header: &libc::msghdr) -> Size {
        Size { length, control: header.msg_controllen as _, flags: header.msg_flags }
    }
}

/// Asks the kernel until it has an answer: how much it had, or nothing.
fn until_answered(mut ask: impl FnMut() -> isize) -> io::Result<Option<usize>> {
    loop {
        if let Ok(answer) = usize::try_from(ask()) {
            return Ok(Some(answer));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN) => return Ok(None),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

/// Where a datagram goes. The pointers are as good as what they were made of.
fn message(vector: &mut libc::iovec, control: &mut Aligned, name: &mut libc::sockaddr_storage) -> libc::msghdr {
    // SAFETY: `msghdr` is plain integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_name = (&raw mut *name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as _;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL as _;
    header
}

/// What is known of a packet before it is checked.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    source: IpAddr,
    port: u16,
    notes: Notes,
    /// Its place in its GRO buffer.
    index: u16,
}

impl Segment {
    /// Gives a packet to `take`, if it is undamaged.
    fn give(
        &self,
        bytes: &[u8],
        checker: &mut Checker,
        received: &mut Received,
        take: &mut impl FnMut(&[Arrival<'_>]),
    ) {
        let mut arrival = Arrival::NONE;
        if self.check(bytes, checker, received, &mut arrival) {
            take(std::slice::from_ref(&arrival));
        }
    }

    /// Reads a packet into `arrival`. False if it is damaged or makes no sense, and then `arrival` means nothing. It is counted in any case.
    fn check<'a>(
        &self,
        bytes: &'a [u8],
        checker: &mut Checker,
        received: &mut Received,
        arrival: &mut Arrival<'a>,
    ) -> bool {
        let Some(ip) = header(checker.family, self.source, &self.notes, bytes.len()) else { return false };
        arrival.ip = ip;
        if !checker.is_intact(&mut arrival.ip, self.port, bytes, self.index) {
            received.damaged += 1;
            return false;
        }
        let Ok(payload) = Packet::read(bytes, &mut arrival.headers) else {
            received.malformed += 1;
            return false;
        };
        received.packets += 1;
        (arrival.payload, arrival.bytes) = (payload, bytes);
        (arrival.port, arrival.interface) = (self.port, self.notes.interface);
        arrival.congestion_marked = self.notes.traffic_class & 3 == 3;
        true
    }
}

/// Holds packets to their ICRC.
#[derive(Debug)]
struct Checker {
    family: Family,
    identifications: Identifications,
    /// Who sent the last packet, by which port, and to whom, and what the headers outside added to it. Mostly that goes for the next, too.
    last: Option<((Gid, Gid, u16), Outer)>,
}

impl Checker {
    /// Whether a packet, from the BTH to the end of the ICRC, arrived undamaged. `index` is its place in its GRO buffer.
    fn is_intact(&mut self, ip: &mut IpHeader, port: u16, bytes: &[u8], index: u16) -> bool {
        let way = match ip {
            IpHeader::V4(ip) => (Gid::from_ipv4(ip.source), Gid::from_ipv4(ip.destination), port),
            IpHeader::V6(ip) => (Gid::from_ipv6(ip.source), Gid::from_ipv6(ip.destination), port),
        };
        let Ok(udp) = UdpHeader::roce(port, bytes.len()) else { return false };
        let outer = match self.last {
            Some((last, outer)) if last == way => outer,
            _ => self.last.insert((way, Outer::new(ip, &udp))).1,
        };
        match ip {
            IpHeader::V4(ip) => self.identifications.intact(&outer, ip, &udp, bytes, index),
            IpHeader::V6(_) => matches(&outer, 0, bytes),
        }
    }
}

/// Packets that came together and are taken together. They are read where they stay: a copy of what was just written in small parts waits until
/// everything stored before it is in the cache.
struct Run<'a> {
    arrivals: [Arrival<'a>; LONGEST_RUN],
    count: usize,
    bytes: usize,
}

impl<'a> Run<'a> {
    fn new() -> Run<'a> {
        Run { arrivals: [Arrival::NONE; LONGEST_RUN], count: 0, bytes: 0 }
    }

    /// Adds what `read` reads, if it answers that it has.
    fn add(&mut self, read: impl FnOnce(&mut Arrival<'a>) -> bool, take: &mut impl FnMut(&[Arrival<'_>])) {
        if let Some(arrival) = self.arrivals.get_mut(self.count)
            && read(arrival)
        {
            self.count += 1;
            self.bytes += arrival.bytes.len();
            if self.bytes >= MOST_BYTES || self.count == LONGEST_RUN {
                self.end(take);
            }
        }
    }

    fn end(&mut self, take: &mut impl FnMut(&[Arrival<'_>])) {
        if let Some(arrivals @ [_, ..]) = self.arrivals.get(..self.count) {
            take(arrivals);
        }
        (self.count, self.bytes) = (0, 0);
    }
}

/// What the kernel told beside the data.
#[derive(Clone, Copy, Debug, Default)]
struct Notes {
    destination: Option<IpAddr>,
    interface: u32,
    segment: Option<usize>,
    traffic_class: u8,
    hop_limit: u8,
}

impl Notes {
    /// Reads control messages. The kernel writes them, but they are read like anything else: no further than they reach.
    fn read(mut bytes: &[u8]) -> Notes {
        let mut notes = Notes::default();
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

fn address(name: &libc::sockaddr_storage) -> Option<(IpAddr, u16)> {
    // SAFETY: the kernel has filled in an address of the family it names, and both structures are no larger than `sockaddr_storage`, whose
    // alignment suits them.
    unsafe {
        match libc::c_int::from(name.ss_family) {
            libc::AF_INET => {
                let name = &*(&raw const *name).cast::<libc::sockaddr_in>();
                Some((Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes()).into(), u16::from_be(name.sin_port)))
            }
            libc::AF_INET6 => {
                let name = &*(&raw const *name).cast::<libc::sockaddr_in6>();
                Some((Ipv6Addr::from(name.sin6_addr.s6_addr).into(), u16::from_be(name.sin6_port)))
            }
            _ => None,
        }
    }
}

/// The IP header as the receiver of one segment would have seen it.
fn header(family: Family, source: IpAddr, notes: &Notes, length: usize) -> Option<IpHeader> {
    match (family, source, notes.destination?) {
        (Family::V4, IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip = Ipv4Header::udp(source, destination, length).ok()?;
            (ip.tos, ip.ttl, ip.dont_fragment) = (notes.traffic_class, notes.hop_limit, true);
            Some(IpHeader::V4(ip))
        }
        (Family::V6, IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut ip = Ipv6Header::udp(source, destination, length).ok()?;
            (ip.traffic_class, ip.hop_limit) = (notes.traffic_class, notes.hop_limit);
            Some(IpHeader::V6(ip))
        }
        _ => None,
    }
}
