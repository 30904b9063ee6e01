//! Receiving: as many datagrams as one system call brings, each cut into the packets GRO had merged, each packet held to its ICRC.

use super::call;
use super::envelope::{CONTROL, Envelope, NAME, Reader};
use super::group::Group;
use super::identification::{Identifications, matches};
use super::socket::{self, BindError, Family, Scope};
use crate::descriptor::Descriptor;
use crate::faults::Faults;
use crate::slots::{Slot, random};
use crate::steering::probe::{self, Answer, Probe};
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::time::Instant;
use wire::{Gid, Headers, IpHeader, Ipv4Header, Packet, ROCE_PORT};

/// Datagrams per system call, where short ones follow one another.
const BATCH: usize = 8;

/// After so many calls in a row that brought a short datagram, further calls ask for several: asking for a second one that is not there costs
/// about as much as asking again.
const STREAK: u32 = 3;

/// Longer datagrams are taken one at a time, so that the next one comes to memory that is still in the cache.
const SHORT: usize = 8192;

/// A GRO buffer may hold as much as the largest datagram; a shorter one would be cut off in the middle of a packet.
const BUFFER: usize = 65_536;

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

impl Received {
    /// Whether there was more than questions.
    pub(crate) fn is_news(&self) -> bool {
        self.datagrams > self.probes || self.packets > 0
    }
}

/// The socket that receives for one address family, with its buffers. Whoever holds it drives.
#[derive(Debug)]
pub struct Receiver {
    socket: Descriptor,
    /// Tells this socket from others in answers to probes.
    identity: u64,
    slots: Vec<Slot>,
    reader: Reader,
    identifications: Identifications,
    faults: Option<Faults<Segment>>,
    buffers: Vec<u8>,
    controls: Vec<Aligned<CONTROL>>,
    names: Vec<Aligned<NAME>>,
    /// How many calls in a row brought only short datagrams.
    streak: u32,
}

#[derive(Clone, Debug)]
#[repr(C, align(8))]
struct Aligned<const LENGTH: usize>([u8; LENGTH]);

impl Receiver {
    /// Shares port 4791 with the other processes of this user.
    pub fn open(family: Family) -> Result<Receiver, BindError> {
        Receiver::open_port(family, ROCE_PORT)
    }

    /// The same on another port, for tests.
    pub fn open_port(family: Family, port: u16) -> Result<Receiver, BindError> {
        Receiver::open_scope(family, port, Scope::Everywhere)
    }

    /// The same for packets of that kind only.
    pub fn open_scope(family: Family, port: u16, scope: Scope) -> Result<Receiver, BindError> {
        let socket = socket::receiver(family, port, scope)?;
        let destination = (scope == Scope::Inside).then(|| scope.address(family));
        Ok(Receiver {
            socket,
            identity: random(),
            slots: Vec::new(),
            reader: Reader::new(family, destination),
            identifications: Identifications::default(),
            faults: None,
            buffers: vec![0; BATCH * BUFFER],
            controls: vec![Aligned([0; CONTROL]); BATCH],
            names: vec![Aligned([0; NAME]); BATCH],
            streak: 0,
        })
    }

    /// The socket, to wait for; -1 in a forked child.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.raw()
    }

    /// Tells of each packet from now on its class, and how many hops it had left. Each note of the kernel's takes time; without it a packet looks as if it
    /// came from a neighbour.
    pub fn tell_all(&self) -> io::Result<()> {
        socket::tell_all(self.socket.raw(), self.reader.family())
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
        self.identifications.suspicious = faults.is_some();
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
                let Segment { envelope, index } = *passed.meta;
                give(&envelope, index, passed.bytes, &mut self.identifications, &mut received, &mut take);
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
        let Receiver { buffers, controls, names, reader, identifications, faults, .. } = self;
        let Some(bytes) = buffers.get_mut(at * BUFFER..at * BUFFER + size.length) else { return };
        let (Some(name), Some(control)) = (
            names.get(at).and_then(|name| name.0.get(..size.name)),
            controls.get(at).and_then(|control| control.0.get(..size.control)),
        ) else {
            return;
        };
        let Some(envelope) = reader.read(name, control) else { return };
        if size.flags & libc::MSG_TRUNC != 0 {
            received.malformed += 1;
            return;
        }
        let segment = envelope.segment.unwrap_or(bytes.len().max(1));
        let mut run = Run::new();
        let mut several = (segment < bytes.len()).then_some(&mut run);
        for (index, bytes) in bytes.chunks_mut(segment).enumerate() {
            if let Some(Probe { nonce, index }) = Probe::parse(bytes)
                && let (source, _) = envelope.addresses()
                && source.is_loopback()
            {
                received.probes += 1;
                let answer = Answer { nonce, index, socket: self.identity, slots: self.slots.clone() };
                // Who asked will ask again.
                let _ = probe::send(self.socket.raw(), &answer.bytes(), (source, envelope.port).into());
                continue;
            }
            let index = index as u16;
            match (&mut *faults, now, &mut several) {
                (Some(faults), Some(now), _) => {
                    let meta = Segment { envelope: *envelope, index };
                    faults.arrive(now, envelope.addresses(), meta, bytes, |passed| {
                        let Segment { envelope, index } = *passed.meta;
                        give(&envelope, index, passed.bytes, identifications, received, take);
                    });
                }
                (.., Some(run)) => {
                    run.add(|into| check(envelope, index, bytes, identifications, received, into), take);
                }
                _ => give(envelope, index, bytes, identifications, received, take),
            }
        }
        run.end(take);
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
    /// The lengths of its sender's address and of its control messages.
    name: usize,
    control: usize,
    flags: libc::c_int,
}

impl Size {
    fn of(length: usize, header: &libc::msghdr) -> Size {
        let (name, control) = (header.msg_namelen as usize, header.msg_controllen as _);
        Size { length, name, control, flags: header.msg_flags }
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
fn message(vector: &mut libc::iovec, control: &mut Aligned<CONTROL>, name: &mut Aligned<NAME>) -> libc::msghdr {
    // SAFETY: `msghdr` is plain integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_name = name.0.as_mut_ptr().cast();
    header.msg_namelen = NAME as _;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL as _;
    header
}

/// What is known of a packet before it is checked, for one that is held back.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    envelope: Envelope,
    /// Its place in its GRO buffer.
    index: u16,
}

/// Gives a packet to `take`, if it is undamaged.
fn give(
    envelope: &Envelope,
    index: u16,
    bytes: &mut [u8],
    identifications: &mut Identifications,
    received: &mut Received,
    take: &mut impl FnMut(&[Arrival<'_>]),
) {
    let mut arrival = Arrival::NONE;
    if check(envelope, index, bytes, identifications, received, &mut arrival) {
        take(std::slice::from_ref(&arrival));
    }
}

/// Reads a packet into `arrival`. False if it is damaged or makes no sense, and then `arrival` means nothing. It is counted in any case.
fn check<'a>(
    envelope: &Envelope,
    index: u16,
    bytes: &'a mut [u8],
    identifications: &mut Identifications,
    received: &mut Received,
    arrival: &mut Arrival<'a>,
) -> bool {
    let Ok(ip) = envelope.ip.with_udp_payload(bytes.len()) else { return false };
    arrival.ip = ip;
    let intact = match &mut arrival.ip {
        IpHeader::V4(ip) => identifications.intact(&envelope.outer, ip, envelope.port, bytes, index),
        IpHeader::V6(_) => matches(&envelope.outer, 0, bytes),
    };
    if !intact {
        received.damaged += 1;
        return false;
    }
    let bytes: &[u8] = bytes;
    let Ok(payload) = Packet::read(bytes, &mut arrival.headers) else {
        received.malformed += 1;
        return false;
    };
    received.packets += 1;
    (arrival.payload, arrival.bytes) = (payload, bytes);
    (arrival.port, arrival.interface) = (envelope.port, envelope.interface);
    arrival.congestion_marked = envelope.congestion_marked;
    true
}

/// Packets that came together and are taken together. They are read where they stay: a copy of what was just written in small parts waits until
/// everything stored before it is in the cache.
struct Run<'a> {
    /// The first `count` are there.
    arrivals: [MaybeUninit<Arrival<'a>>; LONGEST_RUN],
    count: usize,
    bytes: usize,
}

impl<'a> Run<'a> {
    fn new() -> Run<'a> {
        Run { arrivals: [const { MaybeUninit::uninit() }; LONGEST_RUN], count: 0, bytes: 0 }
    }

    /// Adds what `read` reads, if it answers that it has.
    fn add(&mut self, read: impl FnOnce(&mut Arrival<'a>) -> bool, take: &mut impl FnMut(&[Arrival<'_>])) {
        if let Some(place) = self.arrivals.get_mut(self.count)
            && let arrival = place.write(Arrival::NONE)
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
            // SAFETY: an arrival lies in memory as in its place, and `add` has written those before `count`.
            take(unsafe { std::slice::from_raw_parts(arrivals.as_ptr().cast(), arrivals.len()) });
        }
        (self.count, self.bytes) = (0, 0);
    }
}
