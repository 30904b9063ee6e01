//! Receiving: as many datagrams as one system call brings, each cut into the packets GRO had merged, each packet held
//! to its ICRC.

use super::call;
use super::envelope::{ADDRESS_BYTES, CONTROL_BYTES, Envelope, Reader};
use super::group::Group;
use super::identification::{Identifications, Verdict, matches};
use super::socket::{self, BindError};
use super::unproven::Unproven;
use crate::dropped::{Dropped, Drops};
use crate::faults::{Faults, Plan};
use host::arrival::Arrival;
use host::descriptor::Descriptor;
use host::family::{Family, Scope};
use host::names::Name;
use host::slots::random;
use host::steering::probe::{self, Probe, ProbeAnswer};
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::time::Instant;
use trace::DropReason;
use wire::{IpHeader, Ipv4Header, Packet, ROCE_PORT};

/// Datagrams per system call, where short ones follow one another.
const DATAGRAMS_PER_CALL: usize = 8;

/// After so many calls in a row that brought a short datagram, further calls ask for several: asking for a second one
/// that is not there costs about as much as asking again.
const BATCHING_STREAK: u32 = 3;

/// Longer datagrams are taken one at a time, so that the next one comes to memory that is still in the cache.
const SHORT_DATAGRAM_MAX: usize = 8192;

/// A GRO buffer may hold as much as the largest datagram; a shorter one would be cut off in the middle of a packet.
const GRO_BUFFER_BYTES: usize = 65_536;

/// So many packets are taken together, or so many bytes: they were read to be checked, and are read again when they are
/// taken.
const LONGEST_RUN: usize = 8;
const MOST_BYTES: usize = 16 * 1024;

/// What one call brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Datagrams: if there were any, there may be more.
    pub datagrams: u32,
    /// Undamaged packets.
    pub packets: u32,
    /// Packets whose ICRC was wrong, and those that fitted an identification which was never proven.
    pub damaged: u32,
    /// Packets that are held back until their sender's identifications are proven. They count again when they are given
    /// out, or given up.
    pub unproven: u32,
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

/// The socket that receives for one address family, with its buffers. Its owner drives it.
#[derive(Debug)]
pub struct Receiver {
    socket: Descriptor,
    /// What its process owns: the answer to a probe, but for what makes it the answer to that one.
    owned: ProbeAnswer,
    /// Another process said that the sockets that share the port have changed.
    changed: bool,
    reader: Reader,
    identifications: Identifications,
    unproven: Unproven,
    faults: Option<Faults<Segment>>,
    drops: Drops,
    buffers: Vec<u8>,
    controls: Vec<Aligned<CONTROL_BYTES>>,
    names: Vec<Aligned<ADDRESS_BYTES>>,
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

    /// Shares another port with the other processes of this user, for tests.
    pub fn open_port(family: Family, port: u16) -> Result<Receiver, BindError> {
        Receiver::open_scope(family, port, Scope::Everywhere, None)
    }

    /// Shares a port for packets of one kind only. Another user that is known to have the port is not looked for again.
    pub fn open_scope(family: Family, port: u16, scope: Scope, known: Option<u32>) -> Result<Receiver, BindError> {
        let socket = socket::receiver(family, port, scope, known)?;
        let destination = (scope == Scope::Inside).then(|| scope.address(family));
        Ok(Receiver {
            socket,
            owned: ProbeAnswer { nonce: 0, index: 0, socket: random(), slots: vec![], ports: vec![], blocks: vec![] },
            changed: false,
            reader: Reader::new(family, destination),
            identifications: Identifications::default(),
            unproven: Unproven::default(),
            faults: None,
            drops: Drops::default(),
            buffers: vec![0; DATAGRAMS_PER_CALL * GRO_BUFFER_BYTES],
            controls: vec![Aligned([0; CONTROL_BYTES]); DATAGRAMS_PER_CALL],
            names: vec![Aligned([0; ADDRESS_BYTES]); DATAGRAMS_PER_CALL],
            streak: 0,
        })
    }

    /// The socket, to wait for; -1 in a forked child.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.raw()
    }

    /// Tells of each packet from now on its class, and how many hops it had left. Each note of the kernel's takes time;
    /// without it a packet looks as if it came from a neighbour.
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

    /// The names whose packets other processes of this host should [steer](host::steering) to this socket.
    pub fn announce(&mut self, names: &[Name]) {
        let ProbeAnswer { slots, ports, blocks, .. } = &mut self.owned;
        (*slots, *ports, *blocks) = (vec![], vec![], vec![]);
        for name in names {
            match *name {
                Name::Slot(slot) | Name::Other(slot, _) => slots.push(slot),
                Name::Port(space, port) => ports.push((space, port)),
                Name::Block(space, block) => blocks.push((space, block)),
                // Requests to it name no process: the process that gets one passes it on.
                Name::Class(_) => {}
            }
        }
    }

    /// What tells this socket from others in answers to probes.
    pub fn identity(&self) -> u64 {
        self.owned.socket
    }

    /// Whether another process has said that the sockets that share the port have changed. Answers so once.
    pub fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Puts faults between the network and the check of the ICRC, or takes them away; returns what was there.
    pub fn inject(&mut self, faults: Option<Faults<Segment>>) -> Option<Faults<Segment>> {
        std::mem::replace(&mut self.faults, faults)
    }

    /// Changes the faults between the network and the check of the ICRC. What they hold back stays, unless there are to
    /// be none: then it passes with the next look.
    pub fn change_faults(&mut self, plan: &Plan) {
        let faults = self.faults.get_or_insert_with(|| Faults::new(Plan::default()));
        faults.change(plan.clone());
        if plan.is_empty() {
            faults.hasten(Instant::now());
        }
    }

    /// When a packet that faults hold back is due, or one that is unproven is given up: [`receive`](Receiver::receive)
    /// has to be called then, though the socket is silent.
    pub fn due(&self) -> Option<Instant> {
        let faults = self.faults.as_ref().and_then(Faults::due);
        faults.into_iter().chain(self.unproven.deadline()).min()
    }

    /// Whether something went no further since [`take_drops`](Receiver::take_drops) was called.
    #[inline]
    pub fn has_drops(&self) -> bool {
        !self.drops.is_empty()
    }

    /// What went no further: damaged and malformed packets, those that stayed unproven, and what injected faults took.
    pub fn take_drops(&mut self) -> Vec<Dropped> {
        self.drops.take()
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

    /// [`receive`](Receiver::receive), several packets at a time where they came together, from one sender: as many as
    /// stay in the cache until they are taken.
    pub fn receive_runs(&mut self, mut take: impl FnMut(&[Arrival<'_>])) -> io::Result<Received> {
        let mut received = Received::default();
        if self.unproven.deadline().is_some() {
            for held in self.unproven.give_up(Instant::now()) {
                received.damaged += 1;
                self.drops.add_packet(&held.bytes, DropReason::Unproven);
            }
        }
        let now = if self.faults.is_some() { Some(Instant::now()) } else { None };
        // Takes a datagram, or several if they seem to come one after another.
        let short = if self.streak < BATCHING_STREAK {
            match self.receive_one()? {
                Some(size) => {
                    self.unpack(0, size, now, &mut received, &mut take);
                    size.length <= SHORT_DATAGRAM_MAX
                }
                None => false,
            }
        } else {
            let mut sizes = [Size::default(); DATAGRAMS_PER_CALL];
            let count = self.receive_several(&mut sizes)?;
            for (at, size) in sizes.into_iter().enumerate().take(count) {
                self.unpack(at, size, now, &mut received, &mut take);
            }
            count > 0 && sizes.iter().all(|size| size.length <= SHORT_DATAGRAM_MAX)
        };
        self.streak = if short { self.streak.saturating_add(1) } else { 0 };
        if let (Some(faults), Some(now)) = (&mut self.faults, now) {
            let mut judge = Judge {
                identifications: &mut self.identifications,
                unproven: &mut self.unproven,
                received: &mut received,
                drops: &mut self.drops,
                datagram: false,
            };
            faults.release(now, |passed| {
                let Segment { mut envelope, index } = *passed.meta;
                if passed.marked {
                    envelope.mark();
                }
                judge.give(&envelope, index, passed.bytes, &mut take);
            });
            if faults.is_spent() {
                self.faults = None;
            }
        }
        Ok(received)
    }

    /// Another process of this host has passed a packet on, and so proven where its sender's identifications are: then
    /// what was held back is given out.
    pub fn learn(&mut self, ip: &IpHeader, port: u16, mut take: impl FnMut(&[Arrival<'_>])) -> Received {
        let mut received = Received::default();
        if let IpHeader::V4(ip) = ip {
            let mut judge = Judge {
                identifications: &mut self.identifications,
                unproven: &mut self.unproven,
                received: &mut received,
                drops: &mut self.drops,
                datagram: false,
            };
            if let Verdict::Proves { first } = judge.identifications.teach(ip, port) {
                judge.release(ip.source, first, ip.identification, &mut take);
            }
        }
        received
    }

    /// Senders that should be made to send something, and the addresses of ours that they sent to: their packets are
    /// held back until a few more have come.
    pub fn questions(&mut self) -> Vec<(Ipv4Addr, Ipv4Addr)> {
        self.identifications.questions()
    }

    /// Whether there are any.
    #[inline]
    pub fn has_questions(&self) -> bool {
        self.identifications.has_questions()
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
        let Receiver { buffers, controls, names, reader, identifications, unproven, faults, drops, .. } = self;
        let Some(bytes) = buffers.get_mut(at * GRO_BUFFER_BYTES..at * GRO_BUFFER_BYTES + size.length) else { return };
        let (Some(name), Some(control)) = (
            names.get(at).and_then(|name| name.0.get(..size.name)),
            controls.get(at).and_then(|control| control.0.get(..size.control)),
        ) else {
            return;
        };
        let envelope = reader.read(name, control).filter(|_| size.flags & libc::MSG_TRUNC == 0);
        let Some(envelope) = envelope else {
            received.malformed += 1;
            return drops.add_packet(bytes, DropReason::Malformed);
        };
        let segment = envelope.segment.unwrap_or(bytes.len().max(1));
        identifications.begin_datagram();
        let datagram = faults.is_none();
        let mut judge = Judge { identifications, unproven, received, drops, datagram };
        let mut run = Run::new();
        let mut several = (segment < bytes.len()).then_some(&mut run);
        for (index, bytes) in bytes.chunks_mut(segment).enumerate() {
            if let Some(Probe { nonce, index }) = Probe::parse(bytes)
                && let (source, _) = envelope.addresses()
                && source.is_loopback()
            {
                judge.received.probes += 1;
                if nonce == Probe::CHANGED {
                    self.changed = true;
                    continue;
                }
                let answer = ProbeAnswer { nonce, index, ..self.owned.clone() };
                // If this is lost, the process that asked will ask again.
                let _ = probe::send(self.socket.raw(), &answer.bytes(), (source, envelope.port).into());
                continue;
            }
            let index = index as u16;
            match (&mut *faults, now, &mut several) {
                (Some(faults), Some(now), _) => {
                    let meta = Segment { envelope: *envelope, index };
                    let lost = faults.arrive(now, envelope.addresses(), meta, bytes, |passed| {
                        let Segment { mut envelope, index } = *passed.meta;
                        if passed.marked {
                            envelope.mark();
                        }
                        judge.give(&envelope, index, passed.bytes, take);
                    });
                    if let Some(reason) = lost {
                        judge.drops.add_packet(bytes, reason);
                    }
                }
                (.., Some(run)) => {
                    if let Some((source, first, last)) = run.add(|into| judge.check(envelope, index, bytes, into), take)
                    {
                        run.end(take);
                        judge.release(source, first, last, take);
                    }
                }
                _ => judge.give(envelope, index, bytes, take),
            }
        }
        run.end(take);
    }

    fn receive_one(&mut self) -> io::Result<Option<Size>> {
        let (Some(buffer), Some(control), Some(name)) =
            (self.buffers.get_mut(..GRO_BUFFER_BYTES), self.controls.first_mut(), self.names.first_mut())
        else {
            return Ok(None);
        };
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut header = message(&mut vector, control, name);
        let received = until_answered(|| {
            // SAFETY: the header points to a buffer, a control area, a name and a vector that are live, disjoint and of
            // the lengths given.
            unsafe { call::receive(self.socket.raw(), &raw mut header, libc::MSG_DONTWAIT) }
        })?;
        Ok(received.map(|length| Size::of(length, &header)))
    }

    fn receive_several(&mut self, sizes: &mut [Size; DATAGRAMS_PER_CALL]) -> io::Result<usize> {
        // SAFETY: `mmsghdr` and `iovec` are plain integers and pointers, for which zero is a value.
        let (mut messages, mut vectors): ([libc::mmsghdr; DATAGRAMS_PER_CALL], [libc::iovec; DATAGRAMS_PER_CALL]) =
            unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
        let parts = self.buffers.chunks_mut(GRO_BUFFER_BYTES).zip(&mut self.controls).zip(&mut self.names);
        for (((buffer, control), name), (slot, vector)) in parts.zip(messages.iter_mut().zip(&mut vectors)) {
            *vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            slot.msg_hdr = message(vector, control, name);
        }
        let answer = until_answered(|| {
            // SAFETY: each message points to a buffer, a control area, a name and a vector that are live, disjoint and
            // of the lengths given.
            unsafe {
                call::receive_many(
                    self.socket.raw(),
                    messages.as_mut_ptr(),
                    DATAGRAMS_PER_CALL as _,
                    libc::MSG_DONTWAIT,
                )
            }
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
fn message(
    vector: &mut libc::iovec,
    control: &mut Aligned<CONTROL_BYTES>,
    name: &mut Aligned<ADDRESS_BYTES>,
) -> libc::msghdr {
    // SAFETY: `msghdr` is plain integers and pointers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_name = name.0.as_mut_ptr().cast();
    header.msg_namelen = ADDRESS_BYTES as _;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES as _;
    header
}

/// What is known of a packet before it is checked, for one that is held back.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    envelope: Envelope,
    /// Its place in its GRO buffer.
    index: u16,
}

/// What decides which packets are given out.
struct Judge<'a> {
    identifications: &'a mut Identifications,
    unproven: &'a mut Unproven,
    received: &'a mut Received,
    drops: &'a mut Drops,
    /// The packets come in the order in which they lie in their datagram.
    datagram: bool,
}

/// What was read.
enum Read {
    /// An undamaged packet.
    Packet,
    /// A packet that is damaged, makes no sense, or is held back.
    Nothing,
    /// A packet that is held back and proves others: those from that sender, from one identification to another.
    Proof(Ipv4Addr, u16, u16),
}

impl Judge<'_> {
    /// Gives a packet to `take`, if it is undamaged.
    fn give(&mut self, envelope: &Envelope, index: u16, bytes: &mut [u8], take: &mut impl FnMut(&[Arrival<'_>])) {
        let mut arrival = Arrival::NONE;
        match self.check(envelope, index, bytes, &mut arrival) {
            Read::Packet => take(std::slice::from_ref(&arrival)),
            Read::Nothing => {}
            Read::Proof(source, first, last) => self.release(source, first, last, take),
        }
    }

    /// Gives out what was held back of a sender, from one identification to another.
    #[cold]
    fn release(&mut self, source: Ipv4Addr, first: u16, last: u16, take: &mut impl FnMut(&[Arrival<'_>])) {
        for held in self.unproven.release(source, first, last) {
            let mut arrival = Arrival::NONE;
            let Ok(IpHeader::V4(ip)) = held.envelope.ip.with_udp_payload(held.bytes.len()) else {
                self.malformed(&held.bytes);
                continue;
            };
            arrival.ip = IpHeader::V4(Ipv4Header { identification: held.identification, ..ip });
            if self.read(&held.envelope, &held.bytes, &mut arrival) {
                take(std::slice::from_ref(&arrival));
            }
        }
    }

    /// Reads a packet into `arrival`, which means nothing if it is not given out. It is counted in any case.
    #[inline]
    fn check<'b>(&mut self, envelope: &Envelope, index: u16, bytes: &'b mut [u8], arrival: &mut Arrival<'b>) -> Read {
        let Ok(ip) = envelope.ip.with_udp_payload(bytes.len()) else {
            self.malformed(bytes);
            return Read::Nothing;
        };
        arrival.ip = ip;
        let verdict = match &mut arrival.ip {
            IpHeader::V4(ip) => {
                self.identifications.judge(&envelope.outer, ip, envelope.port, bytes, index, self.datagram)
            }
            IpHeader::V6(_) if matches(&envelope.outer, 0, bytes) => Verdict::Intact,
            IpHeader::V6(_) => Verdict::Damaged,
        };
        match (verdict, arrival.ip) {
            (Verdict::Intact, _) => match self.read(envelope, bytes, arrival) {
                true => Read::Packet,
                false => Read::Nothing,
            },
            (Verdict::Unproven, IpHeader::V4(ip)) => {
                self.hold(envelope, &ip, bytes);
                Read::Nothing
            }
            (Verdict::Proves { first }, IpHeader::V4(ip)) => {
                self.hold(envelope, &ip, bytes);
                Read::Proof(ip.source, first, ip.identification)
            }
            _ => {
                self.received.damaged += 1;
                self.drops.add_packet(bytes, DropReason::BadIcrc);
                Read::Nothing
            }
        }
    }

    #[cold]
    fn malformed(&mut self, bytes: &[u8]) {
        self.received.malformed += 1;
        self.drops.add_packet(bytes, DropReason::Malformed);
    }

    #[cold]
    fn hold(&mut self, envelope: &Envelope, ip: &Ipv4Header, bytes: &[u8]) {
        self.received.unproven += 1;
        for given_up in self.unproven.hold(envelope, ip.source, ip.identification, bytes) {
            self.received.damaged += 1;
            self.drops.add_packet(&given_up.bytes, DropReason::Unproven);
        }
    }

    /// Reads an undamaged packet, if it makes sense.
    #[inline]
    fn read<'b>(&mut self, envelope: &Envelope, bytes: &'b [u8], arrival: &mut Arrival<'b>) -> bool {
        let Ok(payload) = Packet::read(bytes, &mut arrival.headers) else {
            self.malformed(bytes);
            return false;
        };
        self.received.packets += 1;
        (arrival.payload, arrival.bytes) = (payload, bytes);
        (arrival.port, arrival.interface) = (envelope.port, envelope.interface);
        arrival.congestion_marked = envelope.congestion_marked;
        true
    }
}

/// Packets that came together and are taken together. They are read where they stay: a copy of what was just written in
/// small parts waits until everything stored before it is in the cache.
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

    /// Adds what `read` reads, if that is a packet. Returns what it proves, if it proves something.
    fn add(
        &mut self,
        read: impl FnOnce(&mut Arrival<'a>) -> Read,
        take: &mut impl FnMut(&[Arrival<'_>]),
    ) -> Option<(Ipv4Addr, u16, u16)> {
        let place = self.arrivals.get_mut(self.count)?;
        let arrival = place.write(Arrival::NONE);
        match read(arrival) {
            Read::Packet => {
                self.count += 1;
                self.bytes += arrival.bytes.len();
                if self.bytes >= MOST_BYTES || self.count == LONGEST_RUN {
                    self.end(take);
                }
                None
            }
            Read::Nothing => None,
            Read::Proof(source, first, last) => Some((source, first, last)),
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

#[cfg(test)]
mod damage;
