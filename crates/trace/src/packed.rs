//! Events in few bytes, for recordings. Numbers are differences from the last number of the same name, words are written
//! once and then known by their place, fields stand in the order in which they are declared. What is packed can be read
//! from the last [`Memory::reset`] on: the writer of a recording resets at the beginning of each of its blocks, so that
//! each block can be read alone. docs/recording.md has the encoding; this module neither writes files nor knows blocks.

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

/// How many last numbers are remembered: a name's slot is the sum of its bytes, modulo this.
const SLOT_COUNT: usize = 32;
/// How many words the writer looks for where it saw them last.
const CACHED_WORDS: usize = 256;
/// How many words a reader takes from one block.
#[cfg(feature = "std")]
const BLOCK_WORDS_MAX: usize = 4096;

/// The slot of the last number of this name.
pub(crate) const fn slot_of(name: &str) -> usize {
    let (bytes, mut sum, mut at) = (name.as_bytes(), 0, 0);
    while at < bytes.len() {
        sum += bytes[at] as usize;
        at += 1;
    }
    sum % SLOT_COUNT
}

/// The slot of times.
const AT_SLOT: usize = slot_of("at");

/// What a writer remembers of what it wrote since the last reset.
#[derive(Debug)]
pub struct Memory {
    last: [u64; SLOT_COUNT],
    words: [CachedWord; CACHED_WORDS],
    count: u32,
    /// Words of other rounds are forgotten.
    round: u32,
}

#[derive(Clone, Copy, Debug)]
struct CachedWord {
    word: &'static str,
    place: u32,
    round: u32,
}

impl Default for Memory {
    fn default() -> Self {
        let none = CachedWord { word: "", place: 0, round: 0 };
        Self { last: [0; SLOT_COUNT], words: [none; CACHED_WORDS], count: 0, round: 1 }
    }
}

impl Memory {
    /// Forgets everything; times are differences from `at` from now on.
    pub fn reset(&mut self, at: u64) {
        self.last = [0; SLOT_COUNT];
        self.last[AT_SLOT] = at;
        self.count = 0;
        self.round = match self.round.checked_add(1) {
            Some(round) => round,
            None => {
                *self = Self::default();
                self.last[AT_SLOT] = at;
                return;
            }
        };
    }

    /// Packs an event to the beginning of `out` and returns its length. None if it does not fit: then the memory must
    /// be reset.
    #[inline]
    pub fn pack(&mut self, event: &Event, out: &mut [u8]) -> Option<usize> {
        let mut packer = Packer { memory: self, out, at: 0, is_full: false };
        match &event.kind {
            // The kinds that every message has come first.
            Kind::Called { thread, call } => {
                packer.word("called");
                packer.head(event);
                thread.pack(const { slot_of("thread") }, &mut packer);
                packer.word(call.name());
                call.pack_fields(&mut packer);
            }
            kind => {
                packer.word(kind.name());
                packer.head(event);
                kind.pack_fields(&mut packer);
            }
        }
        (!packer.is_full).then_some(packer.at)
    }

    /// Packs something that is no event: its name, its time, numbers and texts.
    pub fn pack_note(
        &mut self,
        name: &'static str,
        at: u64,
        numbers: &[u64],
        texts: &[&str],
        out: &mut [u8],
    ) -> Option<usize> {
        let mut packer = Packer { memory: self, out, at: 0, is_full: false };
        packer.word(name);
        packer.number(AT_SLOT, at);
        packer.plain(numbers.len() as u64);
        numbers.iter().for_each(|number| packer.plain(*number));
        packer.plain(texts.len() as u64);
        texts.iter().for_each(|text| packer.text(text));
        (!packer.is_full).then_some(packer.at)
    }
}

/// Writes the fields of one event.
#[derive(Debug)]
pub(crate) struct Packer<'a> {
    memory: &'a mut Memory,
    out: &'a mut [u8],
    at: usize,
    is_full: bool,
}

impl Packer<'_> {
    /// When, and which queue pair.
    #[inline]
    fn head(&mut self, event: &Event) {
        self.number(AT_SLOT, event.at);
        event.qpn.pack(const { slot_of("qpn") }, self);
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        match self.out.get_mut(self.at) {
            Some(place) => {
                *place = byte;
                self.at += 1;
            }
            None => self.is_full = true,
        }
    }

    /// Seven bits in a byte, the lowest first; the upper bit says that more follow.
    #[inline]
    fn plain(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    /// The difference from the last number of the slot, with its sign in the lowest bit.
    #[inline]
    fn number(&mut self, slot: usize, number: u64) {
        let last = &mut self.memory.last[slot % SLOT_COUNT];
        let difference = number.wrapping_sub(*last) as i64;
        *last = number;
        self.plain((difference << 1 ^ difference >> 63) as u64);
    }

    /// 0 and the text where it is new, otherwise its place among those that were new, from 1.
    #[inline]
    fn word(&mut self, word: &'static str) {
        let address = word.as_ptr().addr();
        let memory = &mut *self.memory;
        let cached = &mut memory.words[(address ^ address >> 8 ^ word.len()) % CACHED_WORDS];
        if cached.round == memory.round
            && core::ptr::eq(cached.word.as_ptr(), word.as_ptr())
            && cached.word.len() == word.len()
        {
            let place = cached.place;
            return self.plain(place.into());
        }
        memory.count += 1;
        *cached = CachedWord { word, place: memory.count, round: memory.round };
        self.plain(0);
        self.text(word);
    }

    fn text(&mut self, text: &str) {
        self.plain(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        match self.out.get_mut(self.at..self.at + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.at += bytes.len();
            }
            None => self.is_full = true,
        }
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
pub struct Unpacker<'a> {
    bytes: &'a [u8],
    words: &'a mut Vec<&'static str>,
    last: &'a mut [u64; SLOT_COUNT],
}

/// What a reader remembers of a block.
#[cfg(feature = "std")]
#[derive(Debug, Default)]
pub struct Recall {
    words: Vec<&'static str>,
    last: [u64; SLOT_COUNT],
}

/// What was packed.
#[cfg(feature = "std")]
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unpacked {
    /// An event.
    Event(Event),
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
    }

    /// What these bytes are; none if it is nothing that is known here. Notes are those of `notes`.
    pub fn unpack(&mut self, bytes: &[u8], notes: &[&str]) -> Option<Unpacked> {
        let mut from = Unpacker { bytes, words: &mut self.words, last: &mut self.last };
        let name = from.word()?;
        let at = from.number(AT_SLOT)?;
        if notes.contains(&name) {
            // A number takes a byte at least, a text too: so a list is no longer than what follows.
            let mut count = || from.plain().filter(|count| *count <= from.bytes.len() as u64);
            let numbers = (0..count()?).map(|_| from.plain()).collect::<Option<_>>()?;
            let mut count = || from.plain().filter(|count| *count <= from.bytes.len() as u64);
            let texts = (0..count()?).map(|_| from.text().map(Into::into)).collect::<Option<_>>()?;
            return Some(Unpacked::Note { name, at, numbers, texts });
        }
        let qpn = Packed::unpack(const { slot_of("qpn") }, &mut from)?;
        let kind = if name == "called" {
            let thread = Packed::unpack(const { slot_of("thread") }, &mut from)?;
            let call = from.word()?;
            Kind::Called { thread, call: Call::unpack_fields(call, &mut from)? }
        } else {
            Kind::unpack_fields(name, &mut from)?
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
        let coded = self.plain()?;
        let last = &mut self.last[slot % SLOT_COUNT];
        *last = last.wrapping_add(coded >> 1 ^ (coded & 1).wrapping_neg());
        Some(*last)
    }

    fn word(&mut self) -> Option<&'static str> {
        let place = self.plain()?;
        if place > 0 {
            return self.words.get(usize::try_from(place - 1).ok()?).copied();
        }
        // A word that cannot be kept keeps its place, so that those behind it stay what they are.
        let word = self.text().map(|text| crate::words::intern(text).unwrap_or_default())?;
        if self.words.len() >= BLOCK_WORDS_MAX {
            return None;
        }
        self.words.push(word);
        Some(word)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.plain()?).ok()?;
        let (text, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        core::str::from_utf8(text).ok()
    }
}

macro_rules! structures {
    ($( $Type:ident { $( $field:ident ),+ } )+) => {$(
        impl Packed for $Type {
            #[inline]
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
            fn pack(&self, _: usize, to: &mut Packer<'_>) {
                to.word(self.name());
                self.pack_fields(to);
            }

            #[cfg(feature = "std")]
            fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
                let name = from.word()?;
                Self::unpack_fields(name, from)
            }
        }
    )+};
}

macro_rules! words {
    ($($Type:ident),+ $(,)?) => {
        $(impl Packed for $Type {
            #[inline]
            fn pack(&self, _: usize, to: &mut Packer<'_>) {
                to.word(self.name());
            }

            #[cfg(feature = "std")]
            fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
                from.word().and_then(Self::named)
            }
        })+
    };
}

macro_rules! numbers {
    ($($Type:ty => $make:expr, $value:expr;)+) => {
        $(impl Packed for $Type {
            #[inline]
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
    #[inline]
    fn pack(&self, slot: usize, to: &mut Packer<'_>) {
        to.byte(self.is_some().into());
        if let Some(value) = self {
            value.pack(slot, to);
        }
    }

    #[cfg(feature = "std")]
    fn unpack(slot: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        match from.byte()? {
            0 => Some(None),
            1 => T::unpack(slot, from).map(Some),
            _ => None,
        }
    }
}

impl Packed for bool {
    #[inline]
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.byte((*self).into());
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        match from.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
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
    #[inline]
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.word(self);
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        from.word()
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
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.byte(self.byte());
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        from.byte().map(Self::from_byte)
    }
}

impl Packed for RefusalCause {
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.word(self.name());
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
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        let name = from.word()?;
        Some(match *Self::ALL.iter().find(|cause| cause.name() == name)? {
            Self::OutOfBounds { .. } => Self::OutOfBounds { start: from.plain()?, length: from.plain()? },
            Self::GpuFailed { .. } => Self::GpuFailed { error: from.plain()?.try_into().ok()? },
            cause => cause,
        })
    }
}

impl Packed for Pieces {
    #[inline]
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.plain(self.count.into());
        to.plain(self.bytes);
        for Piece { address, length, key } in self.kept() {
            address.pack(const { slot_of("address") }, to);
            length.pack(const { slot_of("length") }, to);
            key.pack(const { slot_of("key") }, to);
        }
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        let (count, bytes) = (u32::try_from(from.plain()?).ok()?, from.plain()?);
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
    fn pack(&self, _: usize, to: &mut Packer<'_>) {
        to.word(self.name());
        self.pack_fields(to);
    }

    #[cfg(feature = "std")]
    fn unpack(_: usize, from: &mut Unpacker<'_>) -> Option<Self> {
        let name = from.word()?;
        Self::unpack_fields(name, from)
    }
}

/// The opcode as on the wire, the flags of the BTH, which further headers follow, and all of them in the order in which
/// they are declared.
impl Packed for Headers {
    #[inline]
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
        to.byte(flags as u8);
        to.plain(rest);
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
        let (flags, rest) = (from.byte()?, from.plain()?);
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
            pad: flags >> 5 & 3,
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
