//! Events in few bytes, for recordings. Fields stand in the order in which they are declared. A number that is the last
//! of the same name is a bit, another one the difference from it; a word is a bit where it is the last of that name,
//! otherwise its place among those that were written, and written out the first time. Bits stand at the end of what is
//! packed, the first in the last byte. What is packed can be read from the last [`Memory::reset`] on: the writer of a
//! recording resets at the beginning of each of its blocks, so that each block can be read alone. docs/recording.md has
//! the encoding; this module neither writes files nor knows blocks.

use wire::access::{Access, Range, Refusal, RefusalCause};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Headers, Key, Msn, NakCode, Opcode, Pkey, Placement, Psn, Qkey,
    Qpn, Reth, Selectivity, Srqn, Syndrome,
};

use crate::call::{Call, Piece, Pieces};
use crate::event::{Event, Kind};
use crate::failure::Failure;
use crate::peer_reason::PeerReason;
use crate::reason::{ConnectionEnd, DropReason, Queue, RequestFault, RetryCause, StateCause, Timer, WindowCause};
use crate::tables::{with_numbers, with_structures, with_variants, with_words};
use crate::text::Text;
#[cfg(feature = "std")]
use std::vec::Vec;

/// How many last numbers are remembered: each name has a slot of its own, but for some rare ones.
const SLOT_COUNT: usize = 128;
/// By which names that every message has get slots of their own.
const SLOT_FACTOR: u32 = 1061;
/// How many words the writer looks for where it saw them last.
const CACHED_WORDS: usize = 256;
/// How many words a reader takes from one block.
#[cfg(feature = "std")]
const BLOCK_WORDS_MAX: usize = 4096;

/// The slot of the last number of this name.
pub(crate) const fn slot_of(name: &str) -> usize {
    let (bytes, mut sum, mut at) = (name.as_bytes(), 0_u32, 0);
    while at < bytes.len() {
        sum = sum.wrapping_mul(SLOT_FACTOR).wrapping_add(bytes[at] as u32);
        at += 1;
    }
    (sum >> 5) as usize % SLOT_COUNT
}

/// What says that a work request was accepted.
const ACCEPTED_MARK: &str = "accepted";

/// The slot of times.
const AT_SLOT: usize = slot_of("at");

/// What a writer remembers of what it wrote since the last reset.
#[derive(Debug)]
pub struct Memory {
    last: [u64; SLOT_COUNT],
    last_words: [&'static str; SLOT_COUNT],
    words: [CachedWord; CACHED_WORDS],
    count: u32,
    /// Words of other rounds are forgotten.
    round: u32,
    /// What is being packed.
    out: [u8; PACKED_BYTES_MAX],
}

/// What was packed.
#[derive(Clone, Copy, Debug)]
pub struct PackedBytes<'a> {
    buffer: &'a [u8; PACKED_BYTES_MAX],
    length: usize,
}

impl PackedBytes<'_> {
    /// How many bytes there are. There are some in any case.
    #[allow(clippy::len_without_is_empty)]
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Copies them to the beginning of `out`, which is as long at least. What is behind them may change, too.
    #[inline(always)]
    pub fn copy_to(&self, out: &mut [u8]) {
        // Of a length that the compiler knows, which takes a few instructions; most events are shorter.
        const USUAL_BYTES: usize = 64;
        match (out.first_chunk_mut::<USUAL_BYTES>(), self.buffer.first_chunk::<USUAL_BYTES>()) {
            (Some(place), Some(bytes)) if self.length <= USUAL_BYTES => *place = *bytes,
            _ => out[..self.length].copy_from_slice(&self.buffer[..self.length]),
        }
    }
}

/// The longest event that is packed, without texts.
const PACKED_BYTES_MAX: usize = 2048;

#[derive(Clone, Copy, Debug)]
struct CachedWord {
    word: &'static str,
    place: u32,
    round: u32,
}

impl Default for Memory {
    fn default() -> Self {
        let none = CachedWord { word: "", place: 0, round: 0 };
        Self {
            last: [0; SLOT_COUNT],
            last_words: [""; SLOT_COUNT],
            words: [none; CACHED_WORDS],
            count: 0,
            round: 1,
            out: [0; PACKED_BYTES_MAX],
        }
    }
}

impl Memory {
    /// Forgets everything; times are differences from `at` from now on.
    pub fn reset(&mut self, at: u64) {
        if self.round == u32::MAX {
            *self = Self::default();
        }
        self.last = [0; SLOT_COUNT];
        self.last[AT_SLOT] = at;
        self.last_words = [""; SLOT_COUNT];
        self.count = 0;
        self.round += 1;
    }

    /// Packs an event. None if it is too long to be packed. If the bytes are not used, the memory must be reset.
    #[inline]
    pub fn pack(&mut self, event: &Event) -> Option<PackedBytes<'_>> {
        let mut packer = Packer::new(self);
        match &event.kind {
            // No kind has the name of a call.
            Kind::Called { thread, call } => {
                packer.name(call.name(), event.at);
                event.qpn.pack(const { slot_of("qpn") }, &mut packer);
                thread.pack(const { slot_of("thread") }, &mut packer);
                call.pack_fields(&mut packer);
            }
            kind => {
                packer.name(kind.name(), event.at);
                event.qpn.pack(const { slot_of("qpn") }, &mut packer);
                kind.pack_fields(&mut packer);
            }
        }
        packer.finish()
    }

    /// Packs that the work request was accepted that the last event is about to post: see [`Event::acceptance`].
    #[inline]
    pub fn pack_acceptance(&mut self) -> Option<PackedBytes<'_>> {
        let mut packer = Packer::new(self);
        packer.place_of(ACCEPTED_MARK);
        packer.finish()
    }

    /// Packs something that is no event: its name, its time, numbers, and how long texts are. The caller writes the texts
    /// behind it, one after the other.
    pub fn pack_note(
        &mut self,
        name: &'static str,
        at: u64,
        numbers: &[u64],
        texts: &[&str],
    ) -> Option<PackedBytes<'_>> {
        let mut packer = Packer::new(self);
        packer.place_of(name);
        packer.plain(at);
        packer.plain(numbers.len() as u64);
        numbers.iter().for_each(|number| packer.plain(*number));
        packer.plain(texts.len() as u64);
        texts.iter().for_each(|text| packer.plain(text.len() as u64));
        packer.finish()
    }
}

/// Writes the fields of one event.
#[derive(Debug)]
pub(crate) struct Packer<'a> {
    memory: &'a mut Memory,
    at: usize,
    bits: u64,
    bit_count: u32,
    /// Where full words of bits are, until all are known.
    full: [u64; FULL_BIT_WORDS],
}

/// Words of 64 bits beside the last: an event has no more fields.
const FULL_BIT_WORDS: usize = 2;

/// Where a word is looked for: by its address, as most words are constants.
#[inline(always)]
fn cache_place(word: &'static str) -> usize {
    let address = word.as_ptr().addr();
    (address ^ address >> 8 ^ word.len()) % CACHED_WORDS
}

impl<'a> Packer<'a> {
    #[inline(always)]
    fn new(memory: &'a mut Memory) -> Self {
        Self { memory, at: 0, bits: 0, bit_count: 0, full: [0; FULL_BIT_WORDS] }
    }

    /// What it is, and when.
    #[inline(always)]
    fn name(&mut self, name: &'static str, at: u64) {
        self.place_of(name);
        self.number(AT_SLOT, at);
    }

    /// Writes the bits behind the rest.
    #[inline(always)]
    fn finish(mut self) -> Option<PackedBytes<'a>> {
        // Most events have few bits.
        if self.bit_count > 16 {
            self.upper_bits();
        } else if self.bit_count > 8 {
            self.byte((self.bits >> 8) as u8);
        }
        if self.bit_count > 0 {
            self.byte(if self.bit_count >= 64 { self.full[0] } else { self.bits } as u8);
        }
        if self.bit_count as usize >= 64 * (FULL_BIT_WORDS + 1) {
            return None;
        }
        let Self { memory, at, .. } = self;
        (at <= PACKED_BYTES_MAX).then_some(PackedBytes { buffer: &memory.out, length: at })
    }

    /// The bytes of bits but for the last, which has the first bits.
    #[inline(never)]
    fn upper_bits(&mut self) {
        for byte in (1..self.bit_count.div_ceil(8)).rev() {
            let word = match byte / 8 {
                full if full < self.bit_count / 64 => self.full[full as usize % FULL_BIT_WORDS],
                _ => self.bits,
            };
            self.byte((word >> (byte % 8 * 8)) as u8);
        }
    }

    #[inline(always)]
    fn bit(&mut self, bit: bool) {
        self.bits |= u64::from(bit) << (self.bit_count % 64);
        self.bit_count += 1;
        if self.bit_count.is_multiple_of(64) {
            self.full[(self.bit_count as usize / 64 - 1) % FULL_BIT_WORDS] = self.bits;
            self.bits = 0;
        }
    }

    /// What is too long is found at the end.
    #[inline(always)]
    fn byte(&mut self, byte: u8) {
        self.memory.out[self.at % PACKED_BYTES_MAX] = byte;
        self.at += 1;
    }

    /// Seven bits in a byte, the lowest first; the upper bit says that more follow.
    #[inline(always)]
    fn plain(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    /// Whether it is the last number of the slot; if not, the difference, with its sign in the lowest bit.
    #[inline(always)]
    fn number(&mut self, slot: usize, number: u64) {
        let last = &mut self.memory.last[slot % SLOT_COUNT];
        let difference = number.wrapping_sub(*last) as i64;
        *last = number;
        self.bit(difference == 0);
        if difference != 0 {
            self.plain((difference << 1 ^ difference >> 63) as u64);
        }
    }

    /// Whether it is the last word of the slot; if not, which.
    #[inline(always)]
    fn word(&mut self, slot: usize, word: &'static str) {
        let last = &mut self.memory.last_words[slot % SLOT_COUNT];
        let is_same = core::ptr::eq::<str>(*last, word);
        *last = word;
        self.bit(is_same);
        if !is_same {
            self.place_of(word);
        }
    }

    /// 0 and the text where it is new, otherwise its place among those that were new, from 1.
    #[inline(always)]
    fn place_of(&mut self, word: &'static str) {
        let memory = &*self.memory;
        let cached = &memory.words[cache_place(word)];
        if cached.round == memory.round && core::ptr::eq::<str>(cached.word, word) {
            let place = cached.place;
            return self.plain(place.into());
        }
        self.new_word(word);
    }

    #[cold]
    #[inline(never)]
    fn new_word(&mut self, word: &'static str) {
        let memory = &mut *self.memory;
        memory.count += 1;
        memory.words[cache_place(word)] = CachedWord { word, place: memory.count, round: memory.round };
        self.plain(0);
        self.text(word);
    }

    #[inline(never)]
    fn text(&mut self, text: &str) {
        self.plain(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    #[inline(never)]
    fn bytes(&mut self, bytes: &[u8]) {
        match self.memory.out.get_mut(self.at..self.at + bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            // Found at the end.
            None => self.at = PACKED_BYTES_MAX,
        }
        self.at += bytes.len();
    }
}

/// A value of a field.
pub(crate) trait Packed: Sized {
    fn pack(&self, slot: usize, to: &mut Packer<'_>);

    /// `None` where no such value follows.
    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self>;
}

/// Reads what a [`Memory`] packed. The bytes are a file's, which anybody may have written.
#[cfg(feature = "std")]
#[derive(Debug)]
pub(crate) struct Unpacker<'a> {
    bytes: &'a [u8],
    /// All of them, from whose end bits are read.
    whole: &'a [u8],
    bit_count: usize,
    recall: &'a mut Recall,
}

/// What a reader remembers of a block.
#[cfg(feature = "std")]
#[derive(Debug)]
pub struct Recall {
    words: Vec<&'static str>,
    last: [u64; SLOT_COUNT],
    last_words: [&'static str; SLOT_COUNT],
}

#[cfg(feature = "std")]
impl Default for Recall {
    fn default() -> Self {
        Self { words: Vec::new(), last: [0; SLOT_COUNT], last_words: [""; SLOT_COUNT] }
    }
}

/// A word of a file, as events carry it; none if it is too long, or one of too many.
#[cfg(feature = "std")]
#[must_use]
pub fn kept_word(word: &str) -> Option<&'static str> {
    crate::words::intern(word)
}

/// What was packed.
#[cfg(feature = "std")]
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unpacked {
    /// An event.
    Event(Event),
    /// The work request was accepted that the last event is about to post: see [`Event::acceptance`].
    Acceptance,
    /// Something that is no event.
    Note {
        /// Its name.
        name: &'static str,
        /// When.
        at: u64,
        /// Its numbers.
        numbers: Vec<u64>,
        /// Its texts.
        texts: Vec<std::string::String>,
    },
}

#[cfg(feature = "std")]
impl Recall {
    /// Forgets everything, as [`Memory::reset`].
    pub fn reset(&mut self, at: u64) {
        self.words.clear();
        self.last = [0; SLOT_COUNT];
        self.last[AT_SLOT] = at;
        self.last_words = [""; SLOT_COUNT];
    }

    /// What these bytes are. None if it is nothing that is known here: then what follows them cannot be read, until the
    /// next reset. Notes are those of `notes`.
    pub fn unpack(&mut self, bytes: &[u8], notes: &[&str]) -> Option<Unpacked> {
        let mut from = Unpacker { bytes, whole: bytes, bit_count: 0, recall: self };
        let name = from.placed_word()?;
        if name == ACCEPTED_MARK {
            return Some(Unpacked::Acceptance);
        }
        if notes.contains(&name) {
            let at = from.plain()?;
            // A number takes a byte at least, a text too: so a list is no longer than what follows.
            let numbers = (0..from.count()?).map(|_| from.plain()).collect::<Option<_>>()?;
            let lengths = (0..from.count()?).map(|_| from.plain()).collect::<Option<Vec<u64>>>()?;
            let texts =
                lengths.into_iter().map(|length| from.text_of(length).map(Into::into)).collect::<Option<_>>()?;
            return Some(Unpacked::Note { name, at, numbers, texts });
        }
        let at = from.number(AT_SLOT)?;
        let qpn = Packed::unpack(const { slot_of("qpn") }, &mut from)?;
        let kind = match Kind::unpack_fields(name, &mut from) {
            Some(kind) => kind,
            None => {
                let thread = Packed::unpack(const { slot_of("thread") }, &mut from)?;
                Kind::Called { thread, call: Call::unpack_fields(name, &mut from)? }
            }
        };
        Some(Unpacked::Event(Event { at, qpn, kind }))
    }
}

#[cfg(feature = "std")]
impl<'a> Unpacker<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn bit(&mut self) -> Option<bool> {
        let place = self.whole.len().checked_sub(1 + self.bit_count / 8)?;
        let byte = self.whole.get(place)?;
        let bit = byte >> (self.bit_count % 8) & 1 != 0;
        self.bit_count += 1;
        Some(bit)
    }

    /// The length of a list that follows.
    fn count(&mut self) -> Option<u64> {
        self.plain().filter(|count| *count <= self.bytes.len() as u64)
    }

    fn plain(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn number(&mut self, slot: usize) -> Option<u64> {
        let coded = if self.bit()? { 0 } else { self.plain()? };
        let last = &mut self.recall.last[slot % SLOT_COUNT];
        *last = last.wrapping_add(coded >> 1 ^ (coded & 1).wrapping_neg());
        Some(*last)
    }

    fn word(&mut self, slot: usize) -> Option<&'static str> {
        if self.bit()? {
            return Some(self.recall.last_words[slot % SLOT_COUNT]);
        }
        let word = self.placed_word()?;
        self.recall.last_words[slot % SLOT_COUNT] = word;
        Some(word)
    }

    fn placed_word(&mut self) -> Option<&'static str> {
        let place = self.plain()?;
        if place > 0 {
            return self.recall.words.get(usize::try_from(place - 1).ok()?).copied();
        }
        let word = self.text().and_then(crate::words::intern)?;
        if self.recall.words.len() >= BLOCK_WORDS_MAX {
            return None;
        }
        self.recall.words.push(word);
        Some(word)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.plain()?;
        self.text_of(length)
    }

    fn text_of(&mut self, length: u64) -> Option<&'a str> {
        let (text, rest) = self.bytes.split_at_checked(usize::try_from(length).ok()?)?;
        self.bytes = rest;
        core::str::from_utf8(text).ok()
    }
}

macro_rules! structures {
    ($( $Type:ident { $( $field:ident ),+ } )+) => {$(
        impl Packed for $Type {
            #[inline(always)]
            fn pack(&self, _: usize, to: &mut Packer<'_>) {
                $( self.$field.pack(const { slot_of(stringify!($field)) }, to); )+
            }

            #[cfg(feature = "std")]
            fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
                Some(Self { $( $field: Packed::unpack(const { slot_of(stringify!($field)) }, from)? ),+ })
            }
        }
    )+};
}

macro_rules! variants {
    ($(
        $Type:ident by $tag:literal $(and $whole:literal)? {
            $( $word:literal =>
                $Variant:ident $({ $( $field:ident $(as $name:literal)? ),+ })? $(( $inner:ident ))? $(text $shown:ident)?,
            )+
        }
    )+) => {$(
        impl $Type {
            #[inline(always)]
            fn pack_fields(&self, to: &mut Packer<'_>) {
                match self {
                    $( Self::$Variant $({ $( $field ),+ })? $(( $inner ))? => {
                        $( $( $field.pack(const { slot_of(stringify!($field)) }, to); )+ )?
                        $( $inner.pack(const { slot_of(stringify!($inner)) }, to); )?
                    } )+
                }
            }

            #[cfg(feature = "std")]
            fn unpack_fields(name: &str, from: &mut Unpacker<'_>) -> Option<Self> {
                Some(match name {
                    $( $word => {
                        $( $( let $field = Packed::unpack(const { slot_of(stringify!($field)) }, from)?; )+ )?
                        $( let $inner = Packed::unpack(const { slot_of(stringify!($inner)) }, from)?; )?
                        Self::$Variant $({ $( $field ),+ })? $(( $inner ))?
                    } )+
                    _ => return None,
                })
            }
        }

        impl Packed for $Type {
            fn pack(&self, slot: usize, to: &mut Packer<'_>) {
                to.word(slot, self.name());
                self.pack_fields(to);
            }

            #[cfg(feature = "std")]
            fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
                let name = from.word(slot)?;
                Self::unpack_fields(name, from)
            }
        }
    )+};
}

macro_rules! words {
    ($($Type:ident),+ $(,)?) => {
        $(impl Packed for $Type {
            #[inline(always)]
            fn pack(&self, slot: usize, to: &mut Packer<'_>) {
                to.word(slot, self.name());
            }

            #[cfg(feature = "std")]
            fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
                from.word(slot).and_then(Self::named)
            }
        })+
    };
}

macro_rules! numbers {
    ($($Type:ty => $make:expr, $value:expr;)+) => {
        $(impl Packed for $Type {
            #[inline(always)]
            fn pack(&self, slot: usize, to: &mut Packer<'_>) {
                to.number(slot, u64::from($value(*self)));
            }

            #[cfg(feature = "std")]
            fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
                Some($make(from.number(slot)?.try_into().ok()?))
            }
        })+
    };
}

with_variants!(variants);
with_structures!(structures);
with_words!(words);
with_numbers!(numbers);

impl<T: Packed> Packed for Option<T> {
    #[inline(always)]
    fn pack(&self, slot: usize, to: &mut Packer<'_>) {
        to.bit(self.is_some());
        if let Some(value) = self {
            value.pack(slot, to);
        }
    }

    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        if from.bit()? { T::unpack(slot, from).map(Some) } else { Some(None) }
    }
}

impl Packed for bool {
    #[inline(always)]
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.bit(*self);
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        from.bit()
    }
}

impl Packed for i32 {
    fn pack(&self, slot: usize, to: &mut Packer<'_>) {
        to.number(slot, i64::from(*self) as u64);
    }

    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        (from.number(slot)? as i64).try_into().ok()
    }
}

impl Packed for &'static str {
    #[inline(always)]
    fn pack(&self, slot: usize, to: &mut Packer<'_>) {
        to.word(slot, self);
    }

    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        from.word(slot)
    }
}

impl<const N: usize> Packed for Text<N> {
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.text(self.as_str());
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        from.text().map(Self::of)
    }
}

/// A GID.
impl Packed for [u8; 16] {
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.bytes(self);
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        let (bytes, rest) = from.bytes.split_first_chunk()?;
        from.bytes = rest;
        Some(*bytes)
    }
}

impl Packed for Access {
    fn pack(&self, slot: usize, to: &mut Packer<'_>) {
        self.bits().pack(slot, to);
    }

    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        u32::unpack(slot, from).map(Self::from_bits_retain)
    }
}

impl Packed for Syndrome {
    fn pack(&self, slot: usize, to: &mut Packer<'_>) {
        self.byte().pack(slot, to);
    }

    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        u8::unpack(slot, from).map(Self::from_byte)
    }
}

impl Packed for RefusalCause {
    fn pack(&self, slot: usize, to: &mut Packer<'_>) {
        to.word(slot, self.name());
        match *self {
            Self::OutOfBounds { start, length } => {
                to.plain(start);
                to.plain(length);
            }
            Self::GpuFailed { error } => to.plain(error.into()),
            _ => {}
        }
    }

    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        let name = from.word(slot)?;
        Some(match *Self::ALL.iter().find(|cause| cause.name() == name)? {
            Self::OutOfBounds { .. } => Self::OutOfBounds { start: from.plain()?, length: from.plain()? },
            Self::GpuFailed { .. } => Self::GpuFailed { error: from.plain()?.try_into().ok()? },
            cause => cause,
        })
    }
}

impl Packed for Pieces {
    #[inline(always)]
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        self.count.pack(const { slot_of("count") }, to);
        self.bytes.pack(const { slot_of("bytes") }, to);
        for Piece { address, length, key } in self.kept() {
            address.pack(const { slot_of("address") }, to);
            length.pack(const { slot_of("length") }, to);
            key.pack(const { slot_of("key") }, to);
        }
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        let count: u32 = Packed::unpack(const { slot_of("count") }, from)?;
        let bytes = Packed::unpack(const { slot_of("bytes") }, from)?;
        let mut pieces = (0..count.min(Self::KEPT_PIECES))
            .map(|_| {
                Some(Piece {
                    address: Packed::unpack(const { slot_of("address") }, from)?,
                    length: Packed::unpack(const { slot_of("length") }, from)?,
                    key: Packed::unpack(const { slot_of("key") }, from)?,
                })
            })
            .collect::<Option<Self>>()?;
        (pieces.count, pieces.bytes) = (count, bytes);
        Some(pieces)
    }
}

impl Packed for Call {
    fn pack(&self, slot: usize, to: &mut Packer<'_>) {
        to.word(slot, self.name());
        self.pack_fields(to);
    }

    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        let name = from.word(slot)?;
        Self::unpack_fields(name, from)
    }
}

/// The opcode as on the wire, the flags of the BTH, which further headers follow, and all of them in the order in which
/// they are declared.
impl Packed for Headers {
    #[inline(always)]
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        let Self { bth, xrc, deth, feth, reth, atomic, aeth, atomic_ack, immediate, invalidate } = self;
        let flag = |set: bool, bit: u32| u64::from(set) << bit;
        let rest = flag(xrc.is_some(), 0)
            | flag(deth.is_some(), 1)
            | flag(feth.is_some(), 2)
            | flag(reth.is_some(), 3)
            | flag(atomic.is_some(), 4)
            | flag(aeth.is_some(), 5)
            | flag(atomic_ack.is_some(), 6)
            | flag(immediate.is_some(), 7)
            | flag(invalidate.is_some(), 8);
        let flags = flag(bth.ack_req, 0)
            | flag(bth.solicited, 1)
            | flag(bth.fecn, 2)
            | flag(bth.becn, 3)
            | flag(bth.mig_req, 4)
            | u64::from(bth.pad & 3) << 5;
        to.byte(bth.opcode.byte());
        (flags | rest << 8).pack(const { slot_of("flags") }, to);
        bth.dest_qpn.pack(const { slot_of("dest_qpn") }, to);
        bth.psn.pack(const { slot_of("psn") }, to);
        bth.pkey.pack(const { slot_of("pkey") }, to);
        if rest == 0 {
            return;
        }
        if let Some(srq) = xrc {
            srq.pack(const { slot_of("xrc_srqn") }, to);
        }
        deth.iter().for_each(|header| header.pack(0, to));
        feth.iter().for_each(|header| header.pack(0, to));
        reth.iter().for_each(|header| header.pack(0, to));
        atomic.iter().for_each(|header| header.pack(0, to));
        aeth.iter().for_each(|header| header.pack(0, to));
        atomic_ack.iter().for_each(|header| header.pack(0, to));
        immediate.iter().for_each(|number| number.pack(const { slot_of("immediate") }, to));
        invalidate.iter().for_each(|key| key.pack(const { slot_of("invalidate") }, to));
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        fn if_set<T: Packed>(rest: u64, bit: u32, slot: usize, from: &mut Unpacker<'_>) -> Option<Option<T>> {
            if rest >> bit & 1 == 0 { Some(None) } else { T::unpack(slot, from).map(Some) }
        }
        let opcode = Opcode::from_byte(from.byte()?)?;
        let flags: u64 = Packed::unpack(const { slot_of("flags") }, from)?;
        let rest = flags >> 8;
        let is = |bit: u32| flags >> bit & 1 != 0;
        let dest_qpn = Packed::unpack(const { slot_of("dest_qpn") }, from)?;
        let psn = Packed::unpack(const { slot_of("psn") }, from)?;
        let pkey = Packed::unpack(const { slot_of("pkey") }, from)?;
        let bth = Bth {
            ack_req: is(0),
            solicited: is(1),
            fecn: is(2),
            becn: is(3),
            mig_req: is(4),
            pad: (flags >> 5 & 3) as u8,
            pkey,
            ..Bth::new(opcode, dest_qpn, psn)
        };
        Some(Self {
            bth,
            xrc: if_set(rest, 0, const { slot_of("xrc_srqn") }, from)?,
            deth: if_set(rest, 1, 0, from)?,
            feth: if_set(rest, 2, 0, from)?,
            reth: if_set(rest, 3, 0, from)?,
            atomic: if_set(rest, 4, 0, from)?,
            aeth: if_set(rest, 5, 0, from)?,
            atomic_ack: if_set(rest, 6, 0, from)?,
            immediate: if_set(rest, 7, const { slot_of("immediate") }, from)?,
            invalidate: if_set(rest, 8, const { slot_of("invalidate") }, from)?,
        })
    }
}
