//! The newest events, not packed yet. Packing takes longer than some of a message's steps, so what stands between a
//! message's arrival and the program's answer is noted in slots of a fixed layout, and packed when a poll finds nothing, or
//! an event of another kind comes. The slots are in the file, behind its header: what ends the process does not take them.

use core::sync::atomic::{Ordering, compiler_fence};

use trace::{Call, Event, Kind, Piece, Pieces, Queue};
use wire::{Aeth, Bth, Headers, Key, Msn, Opcode, Pkey, Psn, Qpn, Syndrome};

/// Where the slots are in the file.
pub const RECENT_AT: usize = 48 << 10;

/// How many bytes there are: counts, words, slots.
pub const RECENT_BYTES: usize = SLOTS_AT + SLOT_BYTES * RECENT_SLOTS as usize;

/// How many slots there are.
pub const RECENT_SLOTS: u32 = 64;

const SLOT_BYTES: usize = 64;
const PUT_AT: usize = 0;
const TAKEN_AT: usize = 4;
const WORDS_AT: usize = 64;
const WORD_BYTES: usize = 32;
const WORD_COUNT: usize = 14;
const SLOTS_AT: usize = WORDS_AT + WORD_BYTES * WORD_COUNT;

const SENT_KIND: u8 = 1;
const RECEIVED_KIND: u8 = 2;
const COMPLETED_KIND: u8 = 3;
const POLLED_KIND: u8 = 4;
const POST_RECEIVE_KIND: u8 = 5;
const POSTED_KIND: u8 = 6;

/// A slot: numbers at fixed places.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    at: u64,
    wr_id: u64,
    /// Bytes, or the address of a piece.
    long: u64,
    qpn: u32,
    /// The thread, or the peer's queue pair.
    first: u32,
    /// The sequence number, the completion queue, the key or the place in a list.
    second: u32,
    /// Payload bytes, or the length of a piece.
    third: u32,
    /// The message number, or the key.
    fourth: u32,
    pkey: u16,
    packets: u16,
    kind: u8,
    flags: u8,
    /// The opcode on the wire, or the place of a word.
    code: u8,
    /// The syndrome, or the place of a word.
    more: u8,
}

const HAS_QPN: u8 = 1;
const HAS_WR_ID: u8 = 2;
const HAS_AETH: u8 = 4;
const ACK_REQUEST: u8 = 8;
const SOLICITED: u8 = 16;
const RETRANSMIT: u8 = 32;
const PAD_SHIFT: u8 = 6;

impl Slot {
    #[inline(always)]
    fn to_bytes(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[0..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.wr_id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.long.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.qpn.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.first.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.second.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.third.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.fourth.to_le_bytes());
        bytes[44..46].copy_from_slice(&self.pkey.to_le_bytes());
        bytes[46..48].copy_from_slice(&self.packets.to_le_bytes());
        bytes[48..52].copy_from_slice(&[self.kind, self.flags, self.code, self.more]);
        bytes
    }

    fn from_bytes(bytes: &[u8; SLOT_BYTES]) -> Self {
        let short = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        Self {
            at: long(0),
            wr_id: long(8),
            long: long(16),
            qpn: short(24),
            first: short(28),
            second: short(32),
            third: short(36),
            fourth: short(40),
            pkey: short(44) as u16,
            packets: (short(44) >> 16) as u16,
            kind: bytes[48],
            flags: bytes[49],
            code: bytes[50],
            more: bytes[51],
        }
    }
}

/// Whether a packet has no other headers than a slot has, and which it has.
#[inline(always)]
fn packet(headers: &Headers, payload_len: u32, packets: u32, slot: &mut Slot) -> bool {
    let Headers { bth, xrc, deth, feth, reth, atomic, aeth, atomic_ack, immediate, invalidate } = headers;
    let is_plain = xrc.is_none()
        && deth.is_none()
        && feth.is_none()
        && reth.is_none()
        && atomic.is_none()
        && atomic_ack.is_none()
        && immediate.is_none()
        && invalidate.is_none()
        && !(bth.mig_req || bth.fecn || bth.becn)
        && bth.tver == 0
        && packets <= u32::from(u16::MAX);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    slot.flags |= flag(bth.ack_req, ACK_REQUEST) | flag(bth.solicited, SOLICITED) | (bth.pad & 3) << PAD_SHIFT;
    slot.first = bth.dest_qpn.value();
    slot.second = bth.psn.value();
    slot.third = payload_len;
    slot.packets = packets as u16;
    slot.pkey = bth.pkey.value();
    slot.code = bth.opcode.byte();
    if let Some(Aeth { syndrome, msn }) = aeth {
        slot.flags |= HAS_AETH;
        (slot.more, slot.fourth) = (syndrome.byte(), msn.value());
    }
    is_plain
}

/// Writes slots.
#[derive(Debug, Default)]
pub struct RecentWriter {
    put: u32,
    taken: u32,
    words: [Option<&'static str>; WORD_COUNT],
}

impl RecentWriter {
    /// Notes an event. False if it is of a kind that has no slot, or there is none left: then what is there must be taken
    /// first.
    #[inline]
    pub fn put(&mut self, area: &mut [u8], event: &Event) -> bool {
        if self.put.wrapping_sub(self.taken) >= RECENT_SLOTS {
            return false;
        }
        let Some(slot) = self.slot(area, event) else { return false };
        let place = SLOTS_AT + (self.put % RECENT_SLOTS) as usize * SLOT_BYTES;
        let Some(bytes) = area.get_mut(place..).and_then(|area| area.first_chunk_mut()) else { return false };
        *bytes = slot.to_bytes();
        self.put = self.put.wrapping_add(1);
        // First the slot, then that it counts.
        compiler_fence(Ordering::SeqCst);
        count(area, PUT_AT, self.put);
        true
    }

    #[inline(always)]
    fn slot(&mut self, area: &mut [u8], event: &Event) -> Option<Slot> {
        let mut slot = Slot { at: event.at, ..Slot::default() };
        if let Some(qpn) = event.qpn {
            (slot.flags, slot.qpn) = (HAS_QPN, qpn.value());
        }
        match &event.kind {
            Kind::PacketReceived { headers, payload_len, packets } => {
                slot.kind = RECEIVED_KIND;
                packet(headers, *payload_len, *packets, &mut slot).then_some(slot)
            }
            Kind::PacketSent { headers, payload_len, packets, wr_id, retransmit } => {
                slot.kind = SENT_KIND;
                if let Some(wr_id) = wr_id {
                    slot.flags |= HAS_WR_ID;
                    slot.wr_id = *wr_id;
                }
                slot.flags |= if *retransmit { RETRANSMIT } else { 0 };
                packet(headers, *payload_len, *packets, &mut slot).then_some(slot)
            }
            Kind::Completed { wr_id, queue, status, opcode, bytes, failure: None } => {
                (slot.kind, slot.wr_id, slot.long) = (COMPLETED_KIND, *wr_id, *bytes);
                slot.first = u32::from(queue_code(*queue)?);
                (slot.code, slot.more) = (self.place(area, status)?, self.place(area, opcode)?);
                Some(slot)
            }
            Kind::WorkPosted { wr_id, queue, opcode, bytes } => {
                (slot.kind, slot.wr_id, slot.long) = (POSTED_KIND, *wr_id, *bytes);
                slot.first = u32::from(queue_code(*queue)?);
                slot.more = self.place(area, opcode)?;
                Some(slot)
            }
            Kind::Called { thread, call: Call::Polled { cq, wr_id, status } } => {
                (slot.kind, slot.wr_id, slot.first, slot.second) = (POLLED_KIND, *wr_id, *thread, *cq);
                slot.code = self.place(area, status)?;
                Some(slot)
            }
            Kind::Called { thread, call: Call::PostReceive { wr_id, srq: None, index, pieces } } => {
                let [piece] = pieces.kept() else { return None };
                (slot.kind, slot.wr_id, slot.first, slot.second) = (POST_RECEIVE_KIND, *wr_id, *thread, *index);
                (slot.long, slot.third, slot.fourth) = (piece.address, piece.length, piece.key.value());
                Some(slot)
            }
            _ => None,
        }
    }

    /// The place of a word, which is written where it is new.
    #[inline(always)]
    fn place(&mut self, area: &mut [u8], word: &'static str) -> Option<u8> {
        let known = self.words.iter().position(|known| known.is_some_and(|known| core::ptr::eq(known, word)));
        known.map_or_else(|| self.new_word(area, word), |place| Some(place as u8))
    }

    #[cold]
    fn new_word(&mut self, area: &mut [u8], word: &'static str) -> Option<u8> {
        let place = self.words.iter().position(Option::is_none)?;
        let begin = WORDS_AT + place * WORD_BYTES;
        let bytes = area.get_mut(begin..begin + WORD_BYTES)?;
        let text = bytes.get_mut(1..1 + word.len())?;
        text.copy_from_slice(word.as_bytes());
        bytes[0] = word.len() as u8;
        self.words[place] = Some(word);
        Some(place as u8)
    }

    /// The oldest event that is noted.
    pub fn oldest(&self, area: &[u8]) -> Option<Event> {
        let waits = self.put != self.taken;
        waits.then(|| event(area, self.taken, |place| self.words.get(usize::from(place)).copied().flatten()))?
    }

    /// Whether nothing is noted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.put == self.taken
    }

    /// The oldest is elsewhere now.
    pub fn take(&mut self, area: &mut [u8]) {
        self.taken = self.taken.wrapping_add(1);
        compiler_fence(Ordering::SeqCst);
        count(area, TAKEN_AT, self.taken);
    }
}

/// What is noted in the file of a process that may have ended at any moment.
#[cfg(feature = "std")]
pub fn read(area: &[u8]) -> std::vec::Vec<Event> {
    let number = |at: usize| Some(u32::from_le_bytes(area.get(at..at + 4)?.try_into().ok()?));
    let (Some(put), Some(taken)) = (number(PUT_AT), number(TAKEN_AT)) else { return std::vec::Vec::new() };
    let count = put.wrapping_sub(taken);
    if count > RECENT_SLOTS {
        return std::vec::Vec::new();
    }
    let word = |place: u8| {
        let begin = WORDS_AT + usize::from(place) * WORD_BYTES;
        let bytes = area.get(begin..begin + WORD_BYTES).filter(|_| usize::from(place) < WORD_COUNT)?;
        trace::packed::kept_word(core::str::from_utf8(bytes.get(1..1 + usize::from(bytes[0]))?).ok()?)
    };
    (0..count).filter_map(|number| event(area, taken.wrapping_add(number), word)).collect()
}

fn event(area: &[u8], number: u32, word: impl Fn(u8) -> Option<&'static str>) -> Option<Event> {
    let place = SLOTS_AT + (number % RECENT_SLOTS) as usize * SLOT_BYTES;
    let slot = Slot::from_bytes(area.get(place..)?.first_chunk()?);
    let is = |flag: u8| slot.flags & flag != 0;
    let wr_id = slot.wr_id;
    let kind = match slot.kind {
        SENT_KIND | RECEIVED_KIND => {
            let bth = Bth {
                ack_req: is(ACK_REQUEST),
                solicited: is(SOLICITED),
                pad: slot.flags >> PAD_SHIFT,
                pkey: Pkey::new(slot.pkey),
                ..Bth::new(Opcode::from_byte(slot.code)?, Qpn::new(slot.first), Psn::new(slot.second))
            };
            let aeth = Aeth { syndrome: Syndrome::from_byte(slot.more), msn: Msn::new(slot.fourth) };
            let headers = Headers { bth, aeth: is(HAS_AETH).then_some(aeth), ..Headers::NONE };
            let (payload_len, packets) = (slot.third, slot.packets.into());
            match slot.kind {
                RECEIVED_KIND => Kind::PacketReceived { headers, payload_len, packets },
                _ => {
                    let (wr_id, retransmit) = (is(HAS_WR_ID).then_some(wr_id), is(RETRANSMIT));
                    Kind::PacketSent { headers, payload_len, packets, wr_id, retransmit }
                }
            }
        }
        COMPLETED_KIND => Kind::Completed {
            wr_id,
            queue: queue_of(slot.first)?,
            status: word(slot.code)?,
            opcode: word(slot.more)?,
            bytes: slot.long,
            failure: None,
        },
        POSTED_KIND => {
            Kind::WorkPosted { wr_id, queue: queue_of(slot.first)?, opcode: word(slot.more)?, bytes: slot.long }
        }
        POLLED_KIND => {
            Kind::Called { thread: slot.first, call: Call::Polled { cq: slot.second, wr_id, status: word(slot.code)? } }
        }
        POST_RECEIVE_KIND => {
            let piece = Piece { address: slot.long, length: slot.third, key: Key::new(slot.fourth) };
            let pieces: Pieces = core::iter::once(piece).collect();
            Kind::Called {
                thread: slot.first,
                call: Call::PostReceive { wr_id, srq: None, index: slot.second, pieces },
            }
        }
        _ => return None,
    };
    Some(Event { at: slot.at, qpn: is(HAS_QPN).then(|| Qpn::new(slot.qpn)), kind })
}

fn queue_code(queue: Queue) -> Option<u8> {
    Queue::ALL.iter().position(|known| *known == queue).map(|place| place as u8)
}

fn queue_of(code: u32) -> Option<Queue> {
    Queue::ALL.get(code as usize).copied()
}

fn count(area: &mut [u8], at: usize, number: u32) {
    if let Some(place) = area.get_mut(at..at + 4) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}
