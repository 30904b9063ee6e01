//! One direction between two processes: a ring of bytes that one writes and the other reads. Records begin on cache
//! lines, and the first word of a record says that it is there: so a short train is handed over with the lines it is
//! on, and no index has to travel. Old bytes lie where the next record will be: the writer clears the first words of
//! lines well before the reader gets there, when they are free; the reader tells how far it is when it has read a run.
//!
//! | bytes | of a train's record |
//! |---|---|
//! | 4 | the kind of record in the highest byte, the length of the payload in the others; written last |
//! | 2 | packets |
//! | 1 | length of the headers |
//! | 1 | path MTU in units of 256 bytes, if there are several packets |
//! | 8 | if the record is of the kind that has it: an acknowledgement that goes along, its sequence number and its count of messages |
//! | | headers as on the wire: BTH and what its opcode demands |
//! | | payload; a long one begins on the next cache line |
//!
//! A train of a fourth kind has no payload: in its place it says where the payload lies in the memory of a GPU that
//! both processes use. The reader has to say that it takes such trains.
//!
//! Where trains are from and for, a record of its own says, whenever that changes: the two addresses and, for
//! datagrams, how the network is to handle them.
//!
//! # Neither side believes the other
//!
//! The other process can write to all of it at any time. What decides anything is copied out once and checked: headers,
//! lengths, positions. Payload is copied straight between the ring and registered memory; no code looks at it on the
//! way, so the worst a peer can do by changing it meanwhile is to have sent something else. A ring that makes no sense
//! is [`Broken`], and so is its link. (References to payload are formed for these copies though the bytes may change:
//! they go to `memmove` and nowhere else.)

use super::map::Mapping;
use crate::carrier::Handling;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use wire::{Aeth, Gid, Headers, Msn, Opcode, Psn, Qpn, Syndrome, Transport, refuse_if};

/// The longest payload of a train.
pub const MAX_PAYLOAD_BYTES: usize = 64 * 1024;

/// A cache line: records begin at multiples of it.
const CACHE_LINE_BYTES: usize = 64;

/// What lies before the records: a page with the words of both sides.
const CONTROL_PAGE_BYTES: usize = 4096;
/// Written by the writer: it waits for room and wants to be told.
const WAITS_OFFSET: usize = 0;
/// Written by the reader: how much it has read, ever.
const READ_OFFSET: usize = 256;
/// Written by the reader: whether it takes trains that only name their payload.
const NAMES_OFFSET: usize = 512;
const TAKES_NAMES: u32 = 1;
const TAKES_NO_NAMES: u32 = 2;

/// What lies before the headers in a record.
const RECORD_PREFIX_BYTES: usize = 8;
/// The longest headers, with an acknowledgement before them: what is left of a cache line. No opcode has as much.
const MAX_HEADER_BYTES: usize = CACHE_LINE_BYTES - RECORD_PREFIX_BYTES;
/// From this length on payload is aligned.
const ALIGNED_PAYLOAD_MIN: usize = 1024;
/// How far the writer clears lines before it gets there: they are its own by then, and not the one that the reader
/// looks at.
const CLEARED_AHEAD_BYTES: usize = 2048;
/// The longest record.
const MAX_RECORD_BYTES: usize = CACHE_LINE_BYTES + MAX_PAYLOAD_BYTES;

/// Kinds of records.
const KIND_TRAIN: u32 = 1;
const KIND_WRAP: u32 = 2;
const KIND_ADDRESS: u32 = 3;
/// A train and an acknowledgement.
const KIND_ANSWER: u32 = 4;
/// A train that names its payload.
const KIND_NAMED: u32 = 5;

/// The longest name.
pub const MAX_NAME_BYTES: usize = 96;

/// The bytes of an acknowledgement that goes along.
const PIGGYBACKED_ACK_BYTES: usize = 8;

/// How much room a ring has for records: enough for three or for eight of the longest, and the word after them.
pub const SMALL_RING_BYTES: usize = (3 * MAX_RECORD_BYTES + CACHE_LINE_BYTES).next_multiple_of(4096);
/// See [`SMALL_RING_BYTES`].
pub const LARGE_RING_BYTES: usize = (8 * MAX_RECORD_BYTES + CACHE_LINE_BYTES).next_multiple_of(4096);

/// What the other side wrote makes no sense, or it wrote where it must not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a ring of shared memory makes no sense")]
pub struct Broken;

/// Why a train was not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unwritten<E> {
    /// Its payload could not be had.
    #[error("the payload could not be gathered")]
    Payload(E),
    /// No record can hold it: it is too long, or its headers have no encoding. No queue pair makes such trains.
    #[error("no record of a ring can hold the train")]
    NoRecord,
}

/// How long the record of a train is, before it is rounded up.
fn record(headers: usize, payload: usize) -> usize {
    if payload >= ALIGNED_PAYLOAD_MIN { CACHE_LINE_BYTES + payload } else { RECORD_PREFIX_BYTES + headers + payload }
}

/// The side that writes.
#[derive(Debug)]
pub struct Writer {
    map: Mapping,
    lap: usize,
    /// Where the next record goes.
    offset: usize,
    /// The first words of lines are zero from there up to here.
    cleared: usize,
    /// How much was written, ever, with what was skipped at the end of each lap.
    written: u64,
    /// How much of it the reader has read, when we last looked.
    read: u64,
    /// The addresses the reader believes trains to be from and for.
    address: Option<(Gid, Gid)>,
    /// What datagrams are to be handled as.
    handling: Handling,
    broken: bool,
    /// The numbers of memory that was passed to the reader.
    passed: Vec<u64>,
}

impl Writer {
    /// A new ring, and the descriptor that the reader needs.
    #[doc(hidden)] // for fuzzing
    pub fn create(lap: usize) -> std::io::Result<(Writer, std::os::fd::OwnedFd)> {
        let (map, fd) = Mapping::create(CONTROL_PAGE_BYTES + lap)?;
        let (address, handling, broken) = (None, Handling::USUAL, false);
        Ok((
            Writer {
                map,
                lap,
                offset: 0,
                cleared: CACHE_LINE_BYTES,
                written: 0,
                read: 0,
                address,
                handling,
                broken,
                passed: Vec::new(),
            },
            fd,
        ))
    }

    /// Whether the limit of file sizes leaves room for rings.
    pub(super) fn may_create() -> std::io::Result<()> {
        host::file_size::check((CONTROL_PAGE_BYTES + LARGE_RING_BYTES) as u64)
    }

    /// Whether the longest train fits. Looks at what the reader has read only if it must.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        let need = self.need(CACHE_LINE_BYTES + MAX_RECORD_BYTES) as u64;
        if self.lap as u64 - (self.written - self.read) >= need {
            return true;
        }
        self.look();
        !self.broken && self.lap as u64 - (self.written - self.read) >= need
    }

    /// What a record of `length` bytes takes, with the word after it and with what is skipped if it does not fit before
    /// the end.
    #[inline]
    fn need(&self, length: usize) -> usize {
        let whole = length + CACHE_LINE_BYTES;
        if self.offset + whole > self.lap { self.lap - self.offset + whole } else { whole }
    }

    #[cold]
    fn look(&mut self) {
        let read = self.map.double_word(READ_OFFSET).load(Ordering::Acquire);
        // It cannot have read what was not written, nor unread what it had.
        if read < self.read || read > self.written {
            self.broken = true;
        } else {
            self.read = read;
        }
    }

    /// Whether the reader wrote what it must not.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// How much was written, ever: to ask later whether it was read.
    #[inline]
    pub fn position(&self) -> u64 {
        self.written
    }

    /// Whether the reader has read everything up to `position`.
    pub fn was_read(&mut self, position: u64) -> bool {
        if self.read < position {
            self.look();
        }
        self.read >= position
    }

    /// The datagrams that the reader has not read, as far as it has told; each is answered once. It reads no more.
    #[cold]
    pub fn take_unread_datagrams(&mut self) -> Vec<Headers> {
        self.look();
        let mut unread = Vec::new();
        while self.read < self.written {
            // Every lap is as long as the ring, with what was skipped at its end.
            let offset = (self.read % self.lap as u64) as usize;
            let word = self.map.word(CONTROL_PAGE_BYTES + offset).load(Ordering::Acquire);
            let (kind, length) = (word >> 24, (word & 0xff_ffff) as usize);
            let size = match kind {
                KIND_WRAP => self.lap - offset,
                KIND_ADDRESS => CACHE_LINE_BYTES,
                _ => {
                    let mut bytes = [0; RECORD_PREFIX_BYTES + MAX_HEADER_BYTES];
                    let at = self.map.at(CONTROL_PAGE_BYTES + offset, bytes.len());
                    // SAFETY: as many bytes are within the mapping, and fit; they are copied once and may be anything.
                    unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len()) };
                    let headers_length = usize::from(bytes[6]);
                    let ahead = if kind == KIND_ANSWER { PIGGYBACKED_ACK_BYTES } else { 0 };
                    let mut headers = Headers::NONE;
                    let read = bytes
                        .get(RECORD_PREFIX_BYTES + ahead..RECORD_PREFIX_BYTES + headers_length)
                        .map(|bytes| headers.read(bytes));
                    if matches!(read, Some(Ok(_))) && headers.bth.opcode.transport() == Transport::Ud {
                        unread.push(headers);
                    }
                    record(headers_length, length).next_multiple_of(CACHE_LINE_BYTES)
                }
            };
            // The reader may have written here whatever it liked.
            if offset + size > self.lap {
                break;
            }
            self.read += size as u64;
        }
        self.read = self.written;
        unread
    }

    /// Asks to be told when there is room. Look once more after this.
    pub fn want_room(&self) {
        self.map.word(WAITS_OFFSET).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// What is written from now on is to be handled like this, until another call says otherwise. To be called before
    /// each datagram; the receivers of other trains are not shown it.
    pub fn handle_as(&mut self, handling: Handling) {
        if self.handling != handling {
            self.handling = handling;
            self.address = None;
        }
    }

    /// Whether the reader takes trains that only name their payload. A hint: what it says may be anything.
    pub fn may_name(&self) -> bool {
        self.map.word(NAMES_OFFSET).load(Ordering::Relaxed) == TAKES_NAMES
    }

    /// The numbers of memory that was passed to the reader.
    pub fn passed(&mut self) -> &mut Vec<u64> {
        &mut self.passed
    }

    /// Writes a train that names its payload. There must be room, and the reader must take such trains.
    #[cold]
    pub fn push_named<E>(
        &mut self,
        address: (Gid, Gid),
        headers: &Headers,
        packets: (u32, u32),
        name: &[u8; MAX_NAME_BYTES],
    ) -> Result<(), Unwritten<E>> {
        let encode = |out: &mut [u8]| headers.encode(out).is_ok();
        let fill = |out: &mut [u8]| {
            out.copy_from_slice(name);
            Ok(())
        };
        self.push_as(KIND_NAMED, None, address, (headers.len(), encode), packets, MAX_NAME_BYTES, fill)
    }

    /// Writes a train whose payload of `length` bytes `fill` writes, or nothing of it. There must be room.
    #[inline]
    pub fn push<E>(
        &mut self,
        address: (Gid, Gid),
        headers: &Headers,
        packets: (u32, u32),
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), Unwritten<E>> {
        let encode = |out: &mut [u8]| headers.encode(out).is_ok();
        self.push_with(None, address, (headers.len(), encode), packets, length, fill)
    }

    /// [`push`](Writer::push) with headers that take so many bytes and are written by a function, and with an
    /// acknowledgement that goes along.
    #[inline]
    pub fn push_with<E>(
        &mut self,
        along: Option<(Psn, Msn)>,
        address: (Gid, Gid),
        headers: (usize, impl FnOnce(&mut [u8]) -> bool),
        packets: (u32, u32),
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), Unwritten<E>> {
        let kind = if along.is_some() { KIND_ANSWER } else { KIND_TRAIN };
        self.push_as(kind, along, address, headers, packets, length, fill)
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "a record has as many parts")]
    fn push_as<E>(
        &mut self,
        kind: u32,
        along: Option<(Psn, Msn)>,
        address: (Gid, Gid),
        (headers_length, encode): (usize, impl FnOnce(&mut [u8]) -> bool),
        (count, mtu): (u32, u32),
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), Unwritten<E>> {
        if self.address != Some(address) {
            self.tell_address(address);
        }
        let ahead = if along.is_some() { PIGGYBACKED_ACK_BYTES } else { 0 };
        let headers_length = ahead + headers_length;
        let size = record(headers_length, length).next_multiple_of(CACHE_LINE_BYTES);
        let mut headers = [0; MAX_HEADER_BYTES];
        let encoded = headers.get_mut(ahead..headers_length).is_some_and(encode);
        let whole = headers_length.is_multiple_of(4);
        if length > MAX_PAYLOAD_BYTES || !encoded || !whole || count > u32::from(u16::MAX) {
            return Err(Unwritten::NoRecord);
        }
        if let (Some((psn, msn)), Some(place)) = (along, headers.first_chunk_mut::<PIGGYBACKED_ACK_BYTES>()) {
            *place = (u64::from(psn.value()) | u64::from(msn.value()) << 32).to_ne_bytes();
        }
        self.wrap_for(size);
        let first = CONTROL_PAGE_BYTES + self.offset;
        if length > 0 {
            let at = if length >= ALIGNED_PAYLOAD_MIN {
                first + CACHE_LINE_BYTES
            } else {
                first + RECORD_PREFIX_BYTES + headers_length
            };
            // SAFETY: within the mapping and free: the reader reads nothing here before the first word is published.
            // (Whatever it may write there meanwhile is sent instead.)
            let filled = fill(unsafe { std::slice::from_raw_parts_mut(self.map.at(at, length), length) });
            if let Err(error) = filled {
                // It may have begun to. What it wrote must not be taken for records.
                self.cleared = self.cleared.min(self.offset + CACHE_LINE_BYTES);
                return Err(Unwritten::Payload(error));
            }
        }
        // The reader looks at the first line all the time. From here to the end there is nothing else, or it would take
        // the line away from us in the middle.
        let line = self.map.line(first);
        for (place, word) in
            line.iter().skip(RECORD_PREFIX_BYTES / 4).zip(headers.chunks_exact(4)).take(headers_length / 4)
        {
            place.store(word.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)), Ordering::Relaxed);
        }
        let [c0, c1] = (count as u16).to_ne_bytes();
        let about = u32::from_ne_bytes([c0, c1, headers_length as u8, (mtu / 256) as u8]);
        line[1].store(about, Ordering::Relaxed);
        self.end_at(self.offset + size);
        self.publish(kind, length, size);
        if size <= CLEARED_AHEAD_BYTES {
            self.clear_ahead();
        }
        Ok(())
    }

    /// Sees to it that nothing seems to be at `next`, behind the record that is being written.
    #[inline]
    fn end_at(&mut self, next: usize) {
        if self.cleared <= next {
            self.map.word(CONTROL_PAGE_BYTES + next).store(0, Ordering::Relaxed);
            self.cleared = next + CACHE_LINE_BYTES;
        }
    }

    /// Clears lines that come later. There was room for the longest record, so after a short one they are free.
    #[inline]
    fn clear_ahead(&mut self) {
        let end = (self.offset + CLEARED_AHEAD_BYTES).min(self.lap);
        while self.cleared < end {
            self.map.word(CONTROL_PAGE_BYTES + self.cleared).store(0, Ordering::Relaxed);
            self.cleared += CACHE_LINE_BYTES;
        }
    }

    fn tell_address(&mut self, (source, destination): (Gid, Gid)) {
        self.wrap_for(CACHE_LINE_BYTES);
        let at = self.map.at(CONTROL_PAGE_BYTES + self.offset + RECORD_PREFIX_BYTES, 34);
        let octets = [source.octets(), destination.octets()];
        let handling = [self.handling.traffic_class, self.handling.hop_limit];
        // SAFETY: 34 bytes within the mapping, in room that is ours.
        unsafe {
            std::ptr::copy_nonoverlapping(octets.as_ptr().cast::<u8>(), at, 32);
            std::ptr::copy_nonoverlapping(handling.as_ptr(), at.add(32), 2);
        }
        self.end_at(self.offset + CACHE_LINE_BYTES);
        self.publish(KIND_ADDRESS, 0, CACHE_LINE_BYTES);
        self.address = Some((source, destination));
    }

    /// Goes back to the beginning if `size` bytes, and the word after them, do not fit before the end.
    #[inline]
    fn wrap_for(&mut self, size: usize) {
        if self.offset + size + CACHE_LINE_BYTES > self.lap {
            let skipped = self.lap - self.offset;
            self.map.word(CONTROL_PAGE_BYTES).store(0, Ordering::Relaxed);
            self.cleared = CACHE_LINE_BYTES;
            self.map.word(CONTROL_PAGE_BYTES + self.offset).store(KIND_WRAP << 24, Ordering::Release);
            self.written += skipped as u64;
            self.offset = 0;
        }
    }

    /// Publishes a record. The word after it must have been cleared.
    #[inline]
    fn publish(&mut self, kind: u32, length: usize, size: usize) {
        self.map.word(CONTROL_PAGE_BYTES + self.offset).store(kind << 24 | length as u32, Ordering::Release);
        self.offset += size;
        self.written += size as u64;
    }
}

/// The side that reads.
#[derive(Debug)]
pub struct Reader {
    /// The writer was told that it may name payload.
    takes_names: bool,
    map: Mapping,
    lap: usize,
    offset: usize,
    /// How much was read, ever; and how much of it was told.
    read: u64,
    told: u64,
    /// Read when the writer was last told that there is room.
    offered: u64,
    /// The train at the front, if it was looked at.
    front: Front,
    has_front: bool,
}

/// A train, without its payload.
#[derive(Clone, Debug)]
pub struct Front {
    /// Its headers.
    pub headers: Headers,
    /// An acknowledgement that came along.
    pub along: Option<(Psn, Msn)>,
    /// How many packets it stands for: not checked against its length.
    pub count: u32,
    /// The path MTU, where that matters: not checked either.
    pub mtu: u32,
    /// The sender's, and the receiver's.
    pub addresses: (Gid, Gid),
    /// How it was to be handled, if it is a datagram.
    pub handling: Handling,
    /// Its payload lies elsewhere: what stands in its place is a name of [`MAX_NAME_BYTES`] bytes.
    pub is_named: bool,
    payload: (usize, usize),
    size: usize,
}

impl Front {
    /// The acknowledgement that came along, as the train it would have been: for captures, and for callers of
    /// [`Link`](crate::Link).
    pub fn acknowledgement(&self) -> Option<Front> {
        let (psn, msn) = self.along?;
        let mut headers = Headers::new(Opcode::RcAcknowledge, self.headers.bth.dest_qpn, psn);
        headers.bth.pkey = self.headers.bth.pkey;
        headers.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn });
        Some(Front { headers, addresses: self.addresses, count: 1, ..Front::default() })
    }
}

impl Default for Front {
    fn default() -> Front {
        let headers = Headers::new(wire::Opcode::RcSendOnly, wire::Qpn::default(), wire::Psn::default());
        let (addresses, handling) = (Default::default(), Handling::USUAL);
        Front { headers, along: None, count: 0, mtu: 0, addresses, handling, is_named: false, payload: (0, 0), size: 0 }
    }
}

impl Reader {
    /// The ring that another process writes, if it is one.
    #[doc(hidden)] // for fuzzing
    pub fn accept(fd: std::os::fd::BorrowedFd<'_>) -> std::io::Result<Reader> {
        let known =
            |length| [SMALL_RING_BYTES, LARGE_RING_BYTES].iter().any(|lap| (CONTROL_PAGE_BYTES + lap) as u64 == length);
        let map = Mapping::accept(fd, known)?;
        let lap = map.length() - CONTROL_PAGE_BYTES;
        let (front, has_front) = (Front::default(), false);
        let takes_names = false;
        Ok(Reader { takes_names, map, lap, offset: 0, read: 0, told: 0, offered: 0, front, has_front })
    }

    /// Where the memory of the ring begins and ends.
    #[doc(hidden)] // for fuzzing
    pub fn extent(&self) -> std::ops::Range<*const u8> {
        let first: *const u8 = self.map.at(0, self.map.length());
        first..first.wrapping_add(self.map.length())
    }

    /// Tells the writer that it may name payload. One that was told that names are of no use is not told again.
    pub fn take_names(&mut self) {
        let word = self.map.word(NAMES_OFFSET);
        if word.load(Ordering::Relaxed) == 0 {
            self.takes_names = true;
            word.store(TAKES_NAMES, Ordering::Relaxed);
        }
    }

    /// Tells the writer to name no payload until it is told again that it may. Names under way are still read.
    #[cold]
    pub fn pause_names(&mut self) {
        self.map.word(NAMES_OFFSET).store(0, Ordering::Relaxed);
    }

    /// Tells the writer that names are of no use here. Those under way are still read.
    #[cold]
    pub fn refuse_names(&mut self) {
        self.map.word(NAMES_OFFSET).store(TAKES_NO_NAMES, Ordering::Relaxed);
    }

    /// Where it reads next.
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// How long the ring is.
    pub(crate) fn lap(&self) -> usize {
        self.lap
    }

    /// The first of the words of which one, at [`offset`](Reader::offset), tells whether there is something.
    pub(crate) fn flags(&self) -> *const AtomicU32 {
        self.map.at(CONTROL_PAGE_BYTES, self.lap).cast()
    }

    /// The train at the front, if there is one.
    #[inline]
    pub fn front(&mut self) -> Result<Option<&Front>, Broken> {
        // Addresses stand alone where the payload behind them could not be read: as many as the ring has lines.
        for _ in 0..=self.lap / CACHE_LINE_BYTES {
            if self.has_front {
                break;
            }
            let word = self.map.word(CONTROL_PAGE_BYTES + self.offset).load(Ordering::Acquire);
            if word == 0 {
                return Ok(None);
            }
            self.look(word)?;
        }
        Ok(self.has_front.then_some(&self.front))
    }

    #[inline]
    fn look(&mut self, word: u32) -> Result<(), Broken> {
        let (kind, length) = (word >> 24, (word & 0xff_ffff) as usize);
        match kind {
            KIND_TRAIN => self.train(length, 0)?,
            KIND_ANSWER => self.train(length, PIGGYBACKED_ACK_BYTES)?,
            KIND_NAMED if self.takes_names && length == MAX_NAME_BYTES => {
                self.train(length, 0)?;
                self.front.is_named = true;
            }
            KIND_WRAP if self.offset > 0 => {
                self.read += (self.lap - self.offset) as u64;
                self.offset = 0;
            }
            KIND_ADDRESS => {
                self.within(CACHE_LINE_BYTES)?;
                let (mut octets, mut handling) = ([[0; 16]; 2], [0; 2]);
                let at = self.map.at(CONTROL_PAGE_BYTES + self.offset + RECORD_PREFIX_BYTES, 34);
                // SAFETY: 34 bytes within the mapping, copied once; they may be anything.
                unsafe {
                    std::ptr::copy_nonoverlapping(at, octets.as_mut_ptr().cast::<u8>(), 32);
                    std::ptr::copy_nonoverlapping(at.add(32), handling.as_mut_ptr(), 2);
                }
                self.front.handling = Handling { traffic_class: handling[0], hop_limit: handling[1] };
                self.front.addresses = (Gid::new(octets[0]), Gid::new(octets[1]));
                self.advance(CACHE_LINE_BYTES);
            }
            _ => return Err(Broken),
        }
        Ok(())
    }

    /// Whether a record of this size, and the word after it, is where it may be.
    fn within(&self, size: usize) -> Result<(), Broken> {
        if self.offset + size + CACHE_LINE_BYTES <= self.lap { Ok(()) } else { Err(Broken) }
    }

    /// The record of a train, with so many bytes of an acknowledgement before the headers.
    #[inline]
    fn train(&mut self, length: usize, ahead: usize) -> Result<(), Broken> {
        let [c0, c1, headers_length, mtu] =
            self.map.word(CONTROL_PAGE_BYTES + self.offset + 4).load(Ordering::Relaxed).to_ne_bytes();
        let count = u32::from(u16::from_ne_bytes([c0, c1]));
        let headers_length = usize::from(headers_length);
        refuse_if!(length > MAX_PAYLOAD_BYTES || headers_length > MAX_HEADER_BYTES || count == 0, Broken);
        let size = record(headers_length, length).next_multiple_of(CACHE_LINE_BYTES);
        self.within(size)?;
        let mut bytes = [0; MAX_HEADER_BYTES];
        // All of the cache line, which is quicker than the part of it that counts.
        let at = self.map.at(CONTROL_PAGE_BYTES + self.offset + RECORD_PREFIX_BYTES, MAX_HEADER_BYTES);
        // SAFETY: as many bytes are within the mapping, and fit; they are copied once and may be anything.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), MAX_HEADER_BYTES) };
        let headers = bytes.get(ahead..headers_length).unwrap_or(&[]);
        self.front.along = None;
        if let (true, Some(along)) = (ahead > 0, bytes.first_chunk::<PIGGYBACKED_ACK_BYTES>()) {
            let along = u64::from_ne_bytes(*along);
            self.front.along = Some((Psn::new(along as u32), Msn::new((along >> 32) as u32)));
        }
        refuse_if!(!self.front.headers.read(headers).map_err(|_| Broken)?.is_empty(), Broken);
        let payload_at = self.offset
            + if length >= ALIGNED_PAYLOAD_MIN { CACHE_LINE_BYTES } else { RECORD_PREFIX_BYTES + headers_length };
        self.front.is_named = false;
        self.front.count = count;
        self.front.mtu = u32::from(mtu) * 256;
        self.front.payload = (payload_at, length);
        self.front.size = size;
        self.has_front = true;
        Ok(())
    }

    /// The queue pair that the train after the one at the front is for, if it is there already and a request: to get
    /// ready for it. Nothing of it is checked.
    #[inline]
    pub fn following(&self) -> Option<Qpn> {
        let at = self.offset + self.front.size;
        // The record, if there is one, has a line and the word after it.
        if !self.has_front || at + 2 * CACHE_LINE_BYTES > self.lap {
            return None;
        }
        let headers = match self.map.word(CONTROL_PAGE_BYTES + at).load(Ordering::Relaxed) >> 24 {
            KIND_TRAIN => at + RECORD_PREFIX_BYTES,
            KIND_ANSWER => at + RECORD_PREFIX_BYTES + PIGGYBACKED_ACK_BYTES,
            _ => return None,
        };
        let [opcode, ..] = self.map.word(CONTROL_PAGE_BYTES + headers).load(Ordering::Relaxed).to_ne_bytes();
        let destination = u32::from_be(self.map.word(CONTROL_PAGE_BYTES + headers + 4).load(Ordering::Relaxed));
        (opcode != Opcode::RcAcknowledge.byte()).then(|| Qpn::new(destination & 0xff_ffff))
    }

    /// The train at the front and its payload. It may still change, if the peer does not keep to the rules: copy it, do
    /// not judge by it.
    #[inline]
    pub fn train_and_payload(&self) -> Option<(&Front, &[u8])> {
        let front = self.has_front.then_some(&self.front)?;
        let (at, length) = front.payload;
        // SAFETY: within the mapping (`at` checks), initialised, and alive as long as `self`. A peer that keeps to the
        // rules leaves it alone until it has been read; one that does not changes bytes that are only ever copied. See
        // the module.
        Some((front, unsafe { std::slice::from_raw_parts(self.map.at(CONTROL_PAGE_BYTES + at, length), length) }))
    }

    /// Goes on behind the train at the front.
    #[inline]
    pub fn consume(&mut self) {
        if std::mem::take(&mut self.has_front) {
            self.advance(self.front.size);
        }
    }

    #[inline]
    fn advance(&mut self, size: usize) {
        self.offset += size;
        self.read += size as u64;
    }

    /// Whether enough was read since the writer was last told that it should be told now, in the middle of a run.
    #[inline]
    pub fn should_tell(&self) -> bool {
        self.read - self.told >= (MAX_PAYLOAD_BYTES / 2) as u64
    }

    /// Whether anything was read that the writer was not told of.
    #[inline]
    pub(crate) fn has_to_tell(&self) -> bool {
        self.read != self.told
    }

    /// Whether so much was read that the writer must be told even while the reader is busy.
    #[inline]
    pub fn has_much_to_tell(&self) -> bool {
        self.read - self.told >= self.lap as u64 / 8
    }

    /// Tells the writer how far we are. Returns whether it waits for room and should be woken; `done` if there is
    /// nothing more to read.
    #[inline]
    pub fn tell(&mut self, done: bool) -> bool {
        if self.told != self.read {
            self.told = self.read;
            self.map.double_word(READ_OFFSET).store(self.read, Ordering::Release);
        }
        // A writer that waits is woken when half of the ring is free, or all of it.
        if !done && self.read - self.offered < self.lap as u64 / 2 {
            return false;
        }
        // Between what we told and what it asked: pairs with `want_room`.
        fence(Ordering::SeqCst);
        let waits = self.map.word(WAITS_OFFSET);
        if waits.load(Ordering::Relaxed) == 0 || waits.swap(0, Ordering::AcqRel) == 0 {
            return false;
        }
        self.offered = self.read;
        true
    }
}
