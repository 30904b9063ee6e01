//! Segmented messages (RMPP, specification 13.6): a message longer than a datagram goes as numbered segments, as many
//! at once as the receiver's window allows, and the receiver puts them together.

use crate::class::{RMPP_HEADER_END, data_offset};
use alloc::vec::Vec;
use trace::Time;
use wire::mad::{MAD_LEN, MadHeader};

/// The longest message, in bytes: more than any table of a RoCE port.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Segments that a sender may have under way before it hears from us.
const WINDOW_SEGMENTS: u32 = 64;

/// Bytes of a segment behind its RMPP header; the header of the class counts.
const SEGMENT_BYTES: usize = MAD_LEN - RMPP_HEADER_END;

/// How long a message may be without a new segment.
pub(crate) const PATIENCE_NANOS: u64 = 10_000_000_000;

const RMPP_VERSION: u8 = 1;
const FLAG_ACTIVE: u8 = 1;
const FLAG_FIRST: u8 = 2;
const FLAG_LAST: u8 = 4;

/// What a datagram of RMPP is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A segment.
    Data,
    /// Says which segments arrived.
    Ack,
    /// The receiver or sender gives up.
    Stop,
    /// The receiver or sender gives up, because of an error.
    Abort,
}

/// The header of RMPP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RmppHeader {
    /// What it is.
    pub kind: Kind,
    /// First, last, both or neither.
    pub flags: u8,
    /// Why it ended.
    pub status: u8,
    /// The number of the segment, from 1.
    pub segment: u32,
    /// The length of the payload, or the last segment that may be sent.
    pub length: u32,
}

/// Whether the datagram is part of a segmented message. There must be a header.
pub fn is_active(bytes: &[u8]) -> bool {
    bytes.get(26).is_some_and(|flags| flags & FLAG_ACTIVE != 0)
}

impl RmppHeader {
    /// Reads it; none if it is not active or makes no sense.
    pub fn parse(bytes: &[u8]) -> Option<RmppHeader> {
        let (head, rest) = bytes.get(MadHeader::LEN..RMPP_HEADER_END)?.split_first_chunk::<4>()?;
        let (segment, length) = rest.split_first_chunk::<4>()?;
        let [version, kind, flags, status] = *head;
        if flags & FLAG_ACTIVE == 0 || version != RMPP_VERSION {
            return None;
        }
        let kind = match kind {
            1 => Kind::Data,
            2 => Kind::Ack,
            3 => Kind::Stop,
            4 => Kind::Abort,
            _ => return None,
        };
        let number = |bytes: &[u8]| bytes.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
        Some(RmppHeader { kind, flags: flags & 7, status, segment: number(segment)?, length: number(length)? })
    }

    /// Writes it into a datagram; the time to respond stays.
    pub fn write(&self, bytes: &mut [u8]) {
        let Some(head) = bytes.get_mut(MadHeader::LEN..RMPP_HEADER_END) else { return };
        let kind = match self.kind {
            Kind::Data => 1,
            Kind::Ack => 2,
            Kind::Stop => 3,
            Kind::Abort => 4,
        };
        let time = head.get(2).map_or(0, |byte| byte & 0xf8);
        let words = [self.segment.to_be_bytes(), self.length.to_be_bytes()].concat();
        for (to, from) in
            head.iter_mut().zip([RMPP_VERSION, kind, time | self.flags | FLAG_ACTIVE, self.status].iter().chain(&words))
        {
            *to = *from;
        }
    }
}

/// A message that is being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sending {
    /// All segments up to this one have arrived.
    acknowledged: u32,
    /// The last segment that was sent.
    sent: u32,
    /// The last that may be.
    window: u32,
    segments: u32,
}

impl Sending {
    /// A message of so many bytes, headers included, in a class.
    pub fn new(class: u8, length: usize) -> Sending {
        let (offset, room) = sizes(class);
        let segments = length.saturating_sub(offset).div_ceil(room).max(1) as u32;
        Sending { acknowledged: 0, sent: 0, window: 1, segments }
    }

    /// The next segment to send, if the window allows one.
    pub fn poll_segment(&mut self) -> Option<u32> {
        (self.sent < self.window.min(self.segments)).then(|| {
            self.sent += 1;
            self.sent
        })
    }

    /// What has not arrived is sent again.
    pub fn rewind(&mut self) {
        self.sent = self.acknowledged;
    }

    /// Segments up to that one have arrived, and up to `window` may be sent. False if that cannot be.
    pub fn acknowledge(&mut self, segment: u32, window: u32) -> bool {
        if segment > self.sent || window < segment {
            return false;
        }
        self.acknowledged = self.acknowledged.max(segment);
        self.window = self.window.max(window);
        true
    }

    /// Whether everything has arrived.
    pub fn is_complete(&self) -> bool {
        self.acknowledged == self.segments
    }

    /// Writes a segment of the message.
    pub fn segment(&self, class: u8, message: &[u8], number: u32) -> [u8; MAD_LEN] {
        let (offset, room) = sizes(class);
        let (headers, data) = message.split_at_checked(offset).unwrap_or((message, &[]));
        let from = (number as usize - 1) * room;
        let part = data.get(from..).map_or(&[][..], |rest| rest.get(..room).unwrap_or(rest));
        let mut bytes = [0; MAD_LEN];
        let both = headers.iter().chain(part);
        bytes.iter_mut().zip(both).for_each(|(to, from)| *to = *from);
        let (first, last) = (number == 1, number == self.segments);
        // The class's header is in every segment, and counts in every one.
        let padding = self.segments as usize * room - data.len().min(self.segments as usize * room);
        let length = match (first, last) {
            (true, _) => self.segments as usize * SEGMENT_BYTES - padding,
            (_, true) => SEGMENT_BYTES - padding,
            _ => 0,
        };
        let flags = if first { FLAG_FIRST } else { 0 } | if last { FLAG_LAST } else { 0 };
        let header = RmppHeader { kind: Kind::Data, flags, status: 0, segment: number, length: length as u32 };
        header.write(&mut bytes);
        bytes
    }
}

/// Where data begins, and how much of it a segment has.
fn sizes(class: u8) -> (usize, usize) {
    let offset = data_offset(class);
    (offset, MAD_LEN - offset)
}

/// A message that is being received.
#[derive(Debug)]
pub struct Receiving {
    /// The first segment with its headers, and the data of those behind it.
    message: Vec<u8>,
    segments: u32,
    /// The last segment that its sender may send.
    window: u32,
    last_heard: Time,
}

/// What a segment led to.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The message is complete.
    Message(Vec<u8>),
    /// There is more to come.
    Part,
    /// It cannot be.
    Nonsense,
}

impl Receiving {
    /// A message begins.
    pub fn new(now: Time) -> Receiving {
        Receiving { message: Vec::new(), segments: 0, window: 1, last_heard: now }
    }

    /// Whether nothing came for long.
    pub fn is_stale(&self, now: Time) -> bool {
        now.since(self.last_heard) > PATIENCE_NANOS
    }

    /// Takes a segment. Returns what it led to, and what its sender is to be told: the last segment that arrived, and
    /// the last it may send.
    pub fn take(&mut self, now: Time, class: u8, header: &RmppHeader, bytes: &[u8]) -> (Received, Option<(u32, u32)>) {
        let (offset, room) = sizes(class);
        if header.segment == 0 || header.segment > self.segments + 1 {
            // A segment is missing before it: the sender hears how far we are.
            return (Received::Nonsense, Some((self.segments, self.window)));
        }
        if header.segment <= self.segments {
            return (Received::Part, Some((self.segments, self.window)));
        }
        if (header.segment == 1) != (header.flags & FLAG_FIRST != 0) || bytes.len() != MAD_LEN {
            return (Received::Nonsense, None);
        }
        let from = if header.segment == 1 { 0 } else { offset };
        if self.message.len() + room > MAX_MESSAGE_BYTES {
            return (Received::Nonsense, None);
        }
        self.last_heard = now;
        self.segments = header.segment;
        self.message.extend_from_slice(bytes.get(from..).unwrap_or_default());
        if header.flags & FLAG_LAST == 0 {
            let due = self.segments == self.window;
            if due {
                self.window = self.segments + WINDOW_SEGMENTS;
            }
            return (Received::Part, due.then_some((self.segments, self.window)));
        }
        // Of the last segment only so much counts; the length of a single one is in the same field.
        let padding = SEGMENT_BYTES.saturating_sub(header.length as usize);
        let padding = if padding > room || header.length as usize > SEGMENT_BYTES { 0 } else { padding };
        let length = self.message.len() - padding;
        self.message.truncate(length);
        self.window = self.segments + WINDOW_SEGMENTS;
        (Received::Message(core::mem::take(&mut self.message)), Some((self.segments, self.window)))
    }
}

/// The acknowledgement of a segment.
pub fn acknowledgement(data: &[u8], segment: u32, window: u32) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    // The headers are the segment's, the method turned round.
    bytes.iter_mut().zip(data).take(data_offset(data.get(1).copied().unwrap_or(0))).for_each(|(to, from)| *to = *from);
    if let Some(method) = bytes.get_mut(3) {
        *method ^= MadHeader::RESPONSE;
    }
    RmppHeader { kind: Kind::Ack, flags: 0, status: 0, segment, length: window }.write(&mut bytes);
    bytes
}
