//! Sending: packets are put together until they fill a GSO datagram, whatever train or message they are of, as far as
//! their lengths allow. What has been put together goes when the next packet does not fit, and when the caller has no
//! more.
//!
//! Payload may be lent: then it is hashed where it lies, and the kernel gathers it from there. A program that changes
//! it meanwhile makes a packet whose ICRC is wrong, which is as good as lost.

#[cfg(test)]
mod tests;

use super::call;
use super::front::{Front, seal};
use super::socket;
use super::way::{Route, Way};
use crate::dropped::{Dropped, Drops};
use host::descriptor::Descriptor;
use host::family::Family;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use trace::DropReason;
use wire::{EncodeError, Headers, Icrc, Outer, Packet, Qpn, refuse_if};

/// The most bytes one system call sends: what fits an IPv4 datagram.
const MAX_DATAGRAM: usize = 65_507;

/// The most segments the kernel cuts one datagram into (`UDP_MAX_SEGMENTS`).
const MAX_SEGMENTS: usize = 64;

/// Shorter payload is copied, though it is lent: the kernel gathers a few long pieces faster than many short ones.
const WORTH_GATHERING: usize = 1024;

/// So is the payload of a longer packet: the buffer has room to put one of this length together again.
const LONGEST_GATHERED: usize = 8192;

/// The most datagrams that one system call sends.
const MAX_DATAGRAMS_PER_CALL: usize = 4;

/// What the headers of those take up in the buffer, about, when all of their payload is lent.
const HEADERS_TOGETHER: usize = MAX_DATAGRAMS_PER_CALL * MAX_SEGMENTS * 32;

/// Packets to send: consecutive ones of one message.
pub trait Cargo {
    /// Why payload could not be had.
    type Error;

    /// How many packets.
    fn count(&self) -> u32;

    /// Headers of packet `index`, their pad count set, and the length of its payload.
    fn packet(&self, index: u32) -> (Headers, usize);

    /// Whether packet `index` is as the one before it, but for the number of its sequence, which is the next.
    fn follows(&self, _index: u32) -> bool {
        false
    }

    /// Whether other packets follow at once, by which the peer will see if the last of these is missing.
    fn goes_on(&self) -> bool {
        false
    }

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

impl<E> SendError<E> {
    /// Why packets went no further, in the words of the trace. Payload that could not be had is no loss: the work
    /// fails.
    pub fn reason(&self) -> Option<DropReason> {
        Some(match self {
            SendError::Payload(_) => return None,
            SendError::Encode(_) => DropReason::Malformed,
            SendError::TooLong { .. } => DropReason::BadLength,
            SendError::NoRoute { .. } | SendError::Families(..) => DropReason::NoRoute,
            SendError::System(_) => DropReason::SystemRefused,
        })
    }
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
    /// Datagrams in the buffer that are full, and go with the one that is not by one call. There is none between calls.
    full: Vec<Staged>,
    /// What the buffer holds behind them.
    staged: Option<Staged>,
    /// What the buffer does not hold of it. There is none between calls.
    loans: Vec<Loan>,
    /// Where the last packet went. Mostly the next goes there, too.
    way: Option<Way>,
    /// The kernel cuts datagrams for us.
    segmentation: bool,
    drops: Drops,
}

/// Packets that wait for others to go with: all of one length but the last, which may be shorter.
#[derive(Clone, Copy, Debug)]
struct Staged {
    route: Route,
    /// The queue pair they are for. Those for another may be another process's: a datagram is given to one.
    to: Qpn,
    /// Their length together.
    filled: usize,
    /// Where in the buffer they begin and end, without what was lent.
    begin: usize,
    end: usize,
    /// Which loan is the first of theirs.
    loan: usize,
    /// The length of the first.
    segment: usize,
    segments: u32,
    /// The last is shorter than the others: nothing can follow it.
    closed: bool,
}

/// Payload that is sent from where it lies: what was lent from `from` on goes in front of what is at `at` in the
/// buffer.
#[derive(Clone, Copy, Debug)]
struct Loan {
    at: usize,
    from: usize,
    length: usize,
}

/// No lent payload.
const NOTHING_LENT: &[AtomicU8] = &[];

impl Staged {
    /// Whether another packet of that length can go with these.
    fn takes(&self, route: &Route, to: Qpn, length: usize) -> bool {
        !self.closed
            && self.to == to
            && length <= self.segment
            && (self.segments as usize) < MAX_SEGMENTS
            && self.filled + length <= MAX_DATAGRAM
            && self.route == *route
    }
}

impl Sender {
    /// A socket with a source port of its own.
    pub fn open(family: Family) -> io::Result<Sender> {
        Sender::open_port(family, 0)
    }

    /// A socket with this source port: `EADDRINUSE` if another socket has it.
    pub fn open_port(family: Family, port: u16) -> io::Result<Sender> {
        let socket = socket::sender(family, port)?;
        let port = socket::local_address(socket.raw())?.port();
        // Behind what is staged a packet of it has room, to be put together again.
        let buffer = vec![0; HEADERS_TOGETHER + MAX_DATAGRAM + LONGEST_GATHERED];
        let (full, loans) = (Vec::new(), Vec::new());
        let (way, drops) = (None, Drops::default());
        Ok(Sender { socket, family, port, buffer, full, staged: None, loans, way, segmentation: true, drops })
    }

    /// The source port of what it sends.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The socket; -1 in a forked child.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.raw()
    }

    /// The packets that were not sent since this was last called. There are some only after a call that failed.
    pub fn take_drops(&mut self) -> Vec<Dropped> {
        self.drops.take()
    }

    /// Sends all packets of `cargo`. `one_by_one` for retransmissions: a train whose end is lost in a full buffer would
    /// be lost there again.
    pub fn send<C: Cargo>(
        &mut self,
        route: &Route,
        cargo: &mut C,
        one_by_one: bool,
    ) -> Result<Sent, SendError<C::Error>> {
        let staged = self.stage(route, cargo, NOTHING_LENT, one_by_one);
        let calls = self.flush()?;
        staged.map(|sent| Sent { calls: sent.calls + calls, ..sent })
    }

    /// Takes all packets of `cargo`, and sends those that fill a datagram. The rest goes with what is staged next, or
    /// with a [`flush`](Sender::flush), which must follow. If the payload of a packet cannot be had, those before it
    /// are sent and those behind it are not.
    ///
    /// `lent` is the payload of all of them where it lies, or nothing. What is sent from there is sent before this
    /// returns. The last packet is not, unless `cargo` goes on: it arrives whatever happens to the memory, and tells
    /// the peer that others are missing.
    pub fn stage<C: Cargo>(
        &mut self,
        route: &Route,
        cargo: &mut C,
        lent: &[AtomicU8],
        one_by_one: bool,
    ) -> Result<Sent, SendError<C::Error>> {
        let mut sent = Sent::default();
        let staged = self.stage_all(route, cargo, lent, one_by_one, &mut sent);
        if let Some(reason) = staged.as_ref().err().and_then(SendError::reason) {
            for index in sent.packets..cargo.count() {
                self.drops.add(Some(cargo.packet(index).0), reason);
            }
        }
        if !self.loans.is_empty() || !self.full.is_empty() {
            sent.calls += self.dispatch(lent)?;
        }
        staged.map(|()| sent)
    }

    fn stage_all<C: Cargo>(
        &mut self,
        route: &Route,
        cargo: &mut C,
        lent: &[AtomicU8],
        one_by_one: bool,
        sent: &mut Sent,
    ) -> Result<(), SendError<C::Error>> {
        let (count, mut from) = (cargo.count(), 0);
        let lendable = if cargo.goes_on() { count } else { count.saturating_sub(1) };
        let outer = self.outer(route)?;
        let mut front: Option<Front> = None;
        for index in 0..count {
            let front = match &mut front {
                Some(front) if cargo.follows(index) => {
                    front.advance();
                    front
                }
                front => {
                    let (headers, payload) = cargo.packet(index);
                    front.insert(Front::of(&headers, payload)?)
                }
            };
            let Front { length: begin, payload: length, pad, total, to, .. } = *front;
            let alone = one_by_one || !self.segmentation;
            sent.calls += self.make_room(route, to, total, alone, lent)?;
            let (start, place) = self.end();
            let Some(packet) = self.buffer.get_mut(start..start + total).filter(|_| total <= MAX_DATAGRAM) else {
                return Err(SendError::TooLong { length: total, destination: route.destination });
            };
            front.write(packet);
            let covered = total - Icrc::LEN;
            let lends = from + length <= lent.len() && index < lendable && pad == 0 && !alone;
            let gathers = lends && length >= WORTH_GATHERING && total <= LONGEST_GATHERED;
            if gathers {
                let icrc = front.icrc(&outer, place, glimpse(&lent[from..from + length]));
                packet[begin..begin + Icrc::LEN].copy_from_slice(&icrc);
                self.loans.push(Loan { at: start + begin, from, length });
            } else {
                packet[begin + length..covered].fill(0);
                cargo.payload(index, &mut packet[begin..begin + length]).map_err(SendError::Payload)?;
                seal(packet, &outer, place);
            }
            self.add(route, to, total, if gathers { total - length } else { total });
            sent.packets += 1;
            from += length;
        }
        Ok(())
    }

    /// Takes one packet, as [`stage`](Sender::stage) does, whose caller writes it down: so many bytes of headers, their
    /// pad count set, and of payload.
    #[inline]
    pub fn stage_one<E>(
        &mut self,
        route: &Route,
        to: Qpn,
        lengths: (usize, usize),
        write: impl FnOnce(&mut [u8], &mut [u8]) -> Result<(), E>,
    ) -> Result<Sent, SendError<E>> {
        let staged = self.stage_written(route, to, lengths, write);
        if let Some(reason) = staged.as_ref().err().and_then(SendError::reason) {
            // It has not been written down.
            self.drops.add(None, reason);
        }
        staged
    }

    fn stage_written<E>(
        &mut self,
        route: &Route,
        to: Qpn,
        (headers, payload): (usize, usize),
        write: impl FnOnce(&mut [u8], &mut [u8]) -> Result<(), E>,
    ) -> Result<Sent, SendError<E>> {
        let pad = usize::from(Packet::pad(payload));
        let total = headers + payload + pad + Icrc::LEN;
        refuse_if!(total > MAX_DATAGRAM, SendError::TooLong { length: total, destination: route.destination });
        let calls = self.make_room(route, to, total, !self.segmentation, NOTHING_LENT)?;
        let (start, place) = self.end();
        let outer = self.outer(route)?;
        let Some(packet) = self.buffer.get_mut(start..start + total) else {
            return Err(SendError::TooLong { length: total, destination: route.destination });
        };
        let (front, behind) = packet.split_at_mut(headers);
        let (body, behind) = behind.split_at_mut(payload);
        write(front, body).map_err(SendError::Payload)?;
        behind[..pad].fill(0);
        seal(packet, &outer, place);
        self.add(route, to, total, total);
        Ok(Sent { packets: 1, calls })
    }

    /// Sends what is staged, if a packet of that length cannot go with it by the same call.
    #[inline]
    fn make_room<E>(
        &mut self,
        route: &Route,
        to: Qpn,
        total: usize,
        alone: bool,
        lent: &[AtomicU8],
    ) -> Result<u32, SendError<E>> {
        let Some(staged) = &self.staged else { return Ok(0) };
        if !alone && staged.takes(route, to, total) {
            return Ok(0);
        }
        // Another datagram that is cut alike can go with it, if what they need is there until then.
        let alike = total == staged.segment && to == staged.to && *route == staged.route;
        let fits = staged.end + MAX_DATAGRAM + LONGEST_GATHERED <= self.buffer.len();
        if alone || lent.is_empty() || !alike || !fits || self.full.len() + 1 == MAX_DATAGRAMS_PER_CALL {
            return self.dispatch(lent);
        }
        self.full.extend(self.staged.take());
        Ok(0)
    }

    /// Where in the buffer the next packet begins, and its place in its datagram.
    #[inline]
    fn end(&self) -> (usize, u16) {
        match &self.staged {
            Some(staged) => (staged.end, staged.segments as u16),
            None => (self.full.last().map_or(0, |full| full.end), 0),
        }
    }

    /// A packet has been written down behind the others, so much of it in the buffer. The rest of it is the last loan.
    #[inline]
    fn add(&mut self, route: &Route, to: Qpn, total: usize, written: usize) {
        let begin = self.full.last().map_or(0, |full| full.end);
        let staged = self.staged.get_or_insert_with(|| Staged {
            route: *route,
            to,
            filled: 0,
            begin,
            end: begin,
            loan: self.loans.len() - usize::from(written < total),
            segment: total,
            segments: 0,
            closed: false,
        });
        staged.filled += total;
        staged.end += written;
        staged.segments += 1;
        staged.closed = total < staged.segment;
    }

    /// What the headers outside add to packets that go this way.
    #[inline]
    fn outer<E>(&mut self, route: &Route) -> Result<Outer, SendError<E>> {
        self.way(route).outer.ok_or(SendError::Families(route.source, route.destination))
    }

    #[inline]
    fn way(&mut self, route: &Route) -> &mut Way {
        if self.way.as_ref().is_some_and(|way| way.route != *route) {
            self.way = None;
        }
        self.way.get_or_insert_with(|| Way::new(route, self.family, self.port))
    }

    /// Sends what is staged. Returns how many calls it took; after an error nothing is staged any more.
    pub fn flush<E>(&mut self) -> Result<u32, SendError<E>> {
        self.dispatch(NOTHING_LENT)
    }

    fn dispatch<E>(&mut self, lent: &[AtomicU8]) -> Result<u32, SendError<E>> {
        let sent = match self.staged.take() {
            None if self.full.is_empty() => return Ok(0),
            Some(staged) if self.full.is_empty() => self.send_all::<E, 1>(&[staged], lent),
            staged => {
                let mut all = std::mem::take(&mut self.full);
                all.extend(staged);
                let sent = self.send_all::<E, MAX_DATAGRAMS_PER_CALL>(&all, lent);
                all.clear();
                self.full = all;
                sent
            }
        };
        self.loans.clear();
        sent
    }

    /// Sends datagrams, so many at most, that go the same way and are cut alike.
    fn send_all<E, const MOST: usize>(&mut self, all: &[Staged], lent: &[AtomicU8]) -> Result<u32, SendError<E>> {
        let Some(&Staged { ref route, segment, .. }) = all.first() else { return Ok(0) };
        self.way(route);
        let mut datagrams: [Parts<'_>; MOST] = std::array::from_fn(|_| Parts::new());
        for (staged, parts) in all.iter().zip(&mut datagrams) {
            let mut start = staged.begin;
            for loan in self.loans_of(staged) {
                parts.push(self.buffer.get(start..loan.at).unwrap_or(&[]));
                parts.push_lent(lent.get(loan.from..loan.from + loan.length).unwrap_or(&[]));
                start = loan.at;
            }
            parts.push(self.buffer.get(start..staged.end).unwrap_or(&[]));
        }
        let cuts = all.iter().any(|staged| staged.segments > 1);
        let Transmitted { datagrams, mut calls, error } =
            self.transmit(&mut datagrams, all.len(), cuts.then_some(segment));
        match error {
            None => Ok(calls),
            Some(error)
                if cuts && matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::ENOPROTOOPT)) =>
            {
                // Perhaps this device or kernel does not segment. If so, they go one by one, and none is tried again.
                let mut left = all.get(datagrams..).unwrap_or(&[]).iter();
                while let Some(staged) = left.next() {
                    calls += match self.send_singly(staged, lent) {
                        Ok(calls) => {
                            self.segmentation = false;
                            calls
                        }
                        Err(error) => {
                            left.for_each(|staged| self.lose(staged, 0, &error));
                            return Err(error);
                        }
                    };
                }
                Ok(calls)
            }
            Some(error) => {
                let error = refusal(error, route, segment);
                all.get(datagrams..).unwrap_or(&[]).iter().for_each(|staged| self.lose(staged, 0, &error));
                Err(error)
            }
        }
    }

    /// The packets of a datagram go no further, from one of them on: their headers lie in the buffer.
    #[cold]
    fn lose<E>(&mut self, staged: &Staged, first: usize, error: &SendError<E>) {
        let Some(reason) = error.reason() else { return };
        let (mut start, mut loans) = (staged.begin, staged.loan);
        for (index, place) in (0..staged.filled).step_by(staged.segment).enumerate() {
            let length = staged.segment.min(staged.filled - place);
            let loan = self.loans.get(loans).filter(|loan| loan.at < start + length).copied();
            loans += usize::from(loan.is_some());
            if index >= first {
                self.drops.add_packet(self.buffer.get(start..).unwrap_or(&[]), reason);
            }
            start += length - loan.map_or(0, |loan| loan.length);
        }
    }

    /// What was lent to a datagram. Those of the next are behind its end.
    fn loans_of(&self, staged: &Staged) -> impl Iterator<Item = &Loan> + use<'_> {
        let end = staged.end;
        self.loans.get(staged.loan..).unwrap_or(&[]).iter().take_while(move |loan| loan.at <= end)
    }

    /// Sends what was put together as packets of their own, which therefore have another identification.
    fn send_singly<E>(&mut self, staged: &Staged, lent: &[AtomicU8]) -> Result<u32, SendError<E>> {
        let mut calls = 0;
        let (mut start, mut loans) = (staged.begin, staged.loan);
        for (index, place) in (0..staged.filled).step_by(staged.segment).enumerate() {
            let length = staged.segment.min(staged.filled - place);
            let loan = self.loans.get(loans).filter(|loan| loan.at < start + length).copied();
            let at = match loan {
                None => start,
                Some(loan) => {
                    loans += 1;
                    self.put_together(start, &loan, lent)
                }
            };
            start += length - loan.map_or(0, |loan| loan.length);
            let outer = self.outer(&staged.route)?;
            if let Some(packet) = self.buffer.get_mut(at..at + length) {
                seal(packet, &outer, 0);
            }
            let mut parts = Parts::new();
            parts.push(self.buffer.get(at..at + length).unwrap_or(&[]));
            if let Some(error) = self.transmit(&mut [parts], 1, None).error {
                let error = refusal(error, &staged.route, length);
                self.lose(staged, index, &error);
                return Err(error);
            }
            calls += 1;
        }
        Ok(calls)
    }

    /// Writes a packet down once more, whole, behind all that is staged: from `start` on lie its headers and its ICRC.
    /// Returns where.
    fn put_together(&mut self, start: usize, loan: &Loan, lent: &[AtomicU8]) -> usize {
        let headers = loan.at - start;
        let behind = self.buffer.len() - LONGEST_GATHERED;
        self.buffer.copy_within(start..loan.at, behind);
        let payload = self.buffer.get_mut(behind + headers..behind + headers + loan.length).unwrap_or(&mut []);
        for (byte, lent) in payload.iter_mut().zip(lent.get(loan.from..).unwrap_or(&[])) {
            *byte = lent.load(Ordering::Relaxed);
        }
        behind
    }

    /// Sends the first `count` of these datagrams along the way that was last asked for, cut into segments of that
    /// length.
    fn transmit<const MOST: usize>(
        &self,
        datagrams: &mut [Parts<'_>; MOST],
        count: usize,
        segment: Option<usize>,
    ) -> Transmitted {
        let mut sent = Transmitted { datagrams: 0, calls: 0, error: None };
        let Some(Way { to, control, .. }) = &self.way else { return sent };
        let cut;
        let control = match segment {
            None => control,
            Some(segment) => {
                cut = control.and(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &(segment as u16));
                &cut
            }
        };
        let mut messages = datagrams.each_mut().map(|parts| {
            // SAFETY: `mmsghdr` is plain integers and pointers, for which zero is a value.
            let mut message: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
            message.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
            message.msg_hdr.msg_namelen = to.len();
            message.msg_hdr.msg_iov = parts.vectors.as_mut_ptr().cast();
            message.msg_hdr.msg_iovlen = parts.count as _;
            message.msg_hdr.msg_control = control.bytes.as_ptr().cast_mut().cast();
            message.msg_hdr.msg_controllen = control.length as _;
            message
        });
        let (socket, flags) = (self.socket.raw(), libc::MSG_NOSIGNAL);
        while sent.datagrams < count {
            let Some(left) = messages.get_mut(sent.datagrams..count) else { break };
            // SAFETY: every pointer in the messages is to a live local or into what `datagrams` borrows, and of the
            // length given; as many vectors as they say have been written. The kernel only reads them, and copes with
            // bytes that change meanwhile.
            let answer = unsafe {
                match left {
                    [message] => call::send(socket, &raw const message.msg_hdr, flags).min(0) + 1,
                    several => call::send_many(socket, several.as_mut_ptr(), several.len() as libc::c_uint, flags),
                }
            };
            sent.calls += 1;
            if answer > 0 {
                sent.datagrams += answer as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // An ICMP error that an earlier packet earned. It says nothing about this one.
                Some(libc::ECONNREFUSED) => {}
                _ => {
                    sent.error = Some(error);
                    break;
                }
            }
        }
        sent
    }
}

/// What became of datagrams: how many went, by how many calls, and why not the others.
struct Transmitted {
    datagrams: usize,
    calls: u32,
    error: Option<io::Error>,
}

/// What the kernel gathers a datagram from.
struct Parts<'a> {
    vectors: [MaybeUninit<libc::iovec>; MOST_PARTS],
    count: usize,
    of: PhantomData<&'a [AtomicU8]>,
}

/// As many as a datagram whose payload is lent.
const MOST_PARTS: usize = 2 * MAX_SEGMENTS + 1;

impl<'a> Parts<'a> {
    fn new() -> Parts<'a> {
        Parts { vectors: [const { MaybeUninit::uninit() }; MOST_PARTS], count: 0, of: PhantomData }
    }

    fn push(&mut self, bytes: &'a [u8]) {
        self.add(bytes.as_ptr(), bytes.len());
    }

    fn push_lent(&mut self, bytes: &'a [AtomicU8]) {
        self.add(bytes.as_ptr().cast(), bytes.len());
    }

    fn add(&mut self, first: *const u8, length: usize) {
        if let Some(vector) = self.vectors.get_mut(self.count) {
            vector.write(libc::iovec { iov_base: first.cast_mut().cast(), iov_len: length });
            self.count += 1;
        }
    }
}

/// What was lent, for the hasher, which does nothing else with it.
fn glimpse(lent: &[AtomicU8]) -> &[u8] {
    // SAFETY: an atomic byte is laid out as a byte. The program may be changing what it has posted, against the rules
    // of verbs, and the language allows no thread to read them then. The hasher derives nothing from the bytes but the
    // hash, which is then wrong, and so is one that was right when they changed a moment later: the receiver drops the
    // packet.
    unsafe { std::slice::from_raw_parts(lent.as_ptr().cast(), lent.len()) }
}

fn refusal<E>(error: io::Error, route: &Route, segment: usize) -> SendError<E> {
    match error.raw_os_error() {
        Some(libc::EMSGSIZE) => SendError::TooLong { length: segment, destination: route.destination },
        // From an address of the loopback to another host is invalid.
        Some(
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::EACCES | libc::ENETDOWN | libc::EINVAL,
        ) => SendError::NoRoute { source_address: route.source, destination: route.destination, source: error },
        _ => SendError::System(error),
    }
}
