//! The weakest order that the specification allows: what a queue pair writes to its program's memory waits here, in
//! pieces, until the program is told of it. Chance, from one seed, decides when a piece goes and which goes first.
//!
//! The specification promises little before a completion. Of a WRITE, the target's program may depend on nothing until
//! a later message of the same queue pair has completed there, the WRITE's own immediate data has, or an atomic
//! operation of the same queue pair has changed memory; of a READ or a receive, on nothing before its completion. A
//! port that keeps a [`Weak`] for each queue pair passes its writes through [`Weak::write`] and calls [`Weak::before`]
//! for what must not overtake them; when the queue pair is driven, it does what [`Weak::turn`] allows. Not a network:
//! packets are lost and delayed elsewhere.

use crate::completion::Queue;
use crate::work::MAX_MESSAGE;
use alloc::boxed::Box;
use alloc::vec::Vec;
use trace::Time;
use wire::access::{Access, Range, Refusal, Subject};

/// Where chance begins if nothing is said.
pub const DEFAULT_SEED: u64 = 1;
/// The most pieces that one piece of payload is cut into.
const MAX_CUTS: u64 = 4;
/// The most bytes that wait to be placed; the oldest go when there are more.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// One in so many waits is a long one.
const LONG_WAIT_ODDS: u64 = 16;
/// A long wait lasts so many times as long as the others may.
const LONG_WAIT_FACTOR: u64 = 8;
/// One in so many times that a queue pair is driven, programs that wait are woken for nothing.
const SPURIOUS_EVENT_ODDS: u64 = 4;
/// So much of what a READ asks for may be read early, and so many pieces for all READs of a queue pair.
const MAX_GLIMPSE_BYTES: u64 = 256;
const MAX_GLIMPSES: usize = 64;
/// Receives and READ targets up to this length are scribbled on as a whole.
const MAX_SCRIBBLE_BYTES: usize = 4096;

/// How weak a queue pair is. None of it breaks a promise of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weakness {
    /// Where chance begins. Queue pairs of one seed differ by their numbers.
    pub seed: u64,
    /// Payload is placed in pieces, in any order, as late as allowed.
    pub any_placement: bool,
    /// What a receive or a READ will fill is overwritten with noise first.
    pub scribbles: bool,
    /// Sending, answering and completing are put off: sources are read late, completions and events come late.
    pub late: bool,
    /// What a READ asks for is read in pieces: some when the request comes, the others when the answer goes.
    pub tears_reads: bool,
    /// Programs that wait for completions are woken where there is none.
    pub spurious_events: bool,
    /// The longest usual wait, in nanoseconds.
    pub patience: u64,
}

impl Weakness {
    /// All that is allowed.
    pub const fn all(seed: u64) -> Weakness {
        Weakness {
            seed,
            any_placement: true,
            scribbles: true,
            late: true,
            tears_reads: true,
            spurious_events: true,
            patience: 20_000,
        }
    }
}

/// What may not overtake payload that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// The peer reads bytes: what it wrote to them goes first. Own work reads what lies there.
    Read(Range),
    /// An atomic operation of the peer changes memory.
    Atomic,
    /// The peer asked for its writes to be visible, or a key is about to change.
    Everything,
    /// The program is told of work of this queue.
    Completion(Queue),
}

/// A piece of payload that waits.
#[derive(Debug)]
struct Piece {
    subject: Subject,
    range: Range,
    bytes: Box<[u8]>,
}

impl Piece {
    /// Whether it is for some of these bytes. Two keys may name the same memory, mostly by the same addresses.
    fn overlaps(&self, range: &Range) -> bool {
        overlap(&self.range, range)
    }
}

fn overlap(one: &Range, other: &Range) -> bool {
    let end = |range: &Range| range.address.saturating_add(range.length);
    one.address < end(other) && other.address < end(one)
}

/// Bytes that a READ asks for and that were read before its answer is made.
#[derive(Debug)]
struct Glimpse {
    range: Range,
    bytes: Box<[u8]>,
}

/// What a queue pair of a weak NIC keeps back.
#[derive(Debug)]
pub struct Weak {
    weakness: Weakness,
    chance: u64,
    /// Oldest first.
    pieces: Vec<Piece>,
    waiting_bytes: usize,
    /// When some of the pieces go.
    places_at: Option<Time>,
    /// What was read early, for READs whose answers are still to be made.
    glimpses: Vec<Glimpse>,
    pace: Pace,
}

/// How far a queue pair that was driven has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    /// Nothing is to be done.
    Idle,
    /// It sends when this time has come,
    SendsAt(Time),
    /// and then completes when this has.
    CompletesAt(Time),
}

/// What a queue pair that is driven may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Nothing yet.
    Wait,
    /// Send, and complete nothing.
    Send,
    /// Send and complete.
    All,
}

impl Weak {
    /// The right that writing needs, by which it is to be checked.
    pub fn right_to_write(subject: Subject) -> Access {
        if subject.remote { Access::REMOTE_WRITE } else { Access::LOCAL_WRITE }
    }

    /// Nothing waits.
    pub fn new(weakness: Weakness, number: u32) -> Weak {
        let chance = weakness.seed ^ u64::from(number).wrapping_mul(0xd6e8_feb8_6659_fd93);
        Weak {
            weakness,
            chance,
            pieces: Vec::new(),
            waiting_bytes: 0,
            places_at: None,
            glimpses: Vec::new(),
            pace: Pace::Idle,
        }
    }

    /// Begins chance anew, for a run that is to be had again.
    pub fn reseed(&mut self, seed: u64) {
        self.chance = seed;
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn wait(&mut self, now: Time) -> Time {
        let most = self.weakness.patience.max(1);
        let most = if self.below(LONG_WAIT_ODDS) == 0 { most.saturating_mul(LONG_WAIT_FACTOR) } else { most };
        now.plus_nanos(self.below(most))
    }

    /// Takes payload that memory would be given now, after it was checked that it may be written there. `place` writes:
    /// noise at present, the payload itself later.
    pub fn write(
        &mut self,
        subject: Subject,
        range: Range,
        data: &[u8],
        mut place: impl FnMut(Subject, Range, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if !self.weakness.any_placement || data.is_empty() || data.len() as u64 > MAX_MESSAGE {
            return place(subject, range, data);
        }
        if self.weakness.scribbles && !subject.remote {
            self.scribble(subject, range, &mut place);
        }
        let mut from = 0;
        let cuts = self.below(MAX_CUTS.min(data.len() as u64));
        for left in (0..=cuts).rev() {
            let rest = data.len() - from;
            let most = rest - left as usize;
            let length = if left == 0 { rest } else { 1 + self.below(most as u64) as usize };
            let Some(bytes) = data.get(from..from + length) else { break };
            let range = Range { address: range.address.wrapping_add(from as u64), length: length as u64, ..range };
            self.pieces.push(Piece { subject, range, bytes: bytes.into() });
            from += length;
        }
        self.waiting_bytes += data.len();
        while self.waiting_bytes > MAX_WAITING_BYTES {
            self.place_at(0, &mut place);
        }
        Ok(())
    }

    /// Noise where payload will be: a program that looks before its completion finds neither the old nor the new.
    fn scribble(
        &mut self,
        subject: Subject,
        range: Range,
        place: &mut impl FnMut(Subject, Range, &[u8]) -> Result<(), Refusal>,
    ) {
        let mut noise = [0; 64];
        let length = (range.length as usize).min(MAX_SCRIBBLE_BYTES);
        for from in (0..length).step_by(noise.len()) {
            let part = (length - from).min(noise.len());
            for chunk in noise.chunks_mut(8) {
                chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
            }
            let range = Range { address: range.address.wrapping_add(from as u64), length: part as u64, ..range };
            // Where this is refused, the payload will be too.
            let _ = place(subject, range, noise.get(..part).unwrap_or_default());
        }
    }

    /// A READ request has come for these bytes, and what must not be overtaken by it is placed. Some of the bytes may be
    /// read now: `read` does so. What was read earlier of them is forgotten, as this READ must not see the past.
    pub fn read_requested(&mut self, range: Range, mut read: impl FnMut(Range, &mut [u8]) -> Result<(), Refusal>) {
        self.glimpses.retain(|glimpse| !overlap(&glimpse.range, &range));
        if !self.weakness.tears_reads || range.length == 0 || self.glimpses.len() >= MAX_GLIMPSES {
            return;
        }
        for _ in 0..self.below(MAX_CUTS) {
            // Of what is long, the beginning: it is what programs put words into.
            let near = range.length.min(MAX_GLIMPSE_BYTES);
            let from = self.below(near);
            let length = 1 + self.below(near - from);
            let part = Range { address: range.address.wrapping_add(from), length, ..range };
            let mut bytes = alloc::vec![0; length as usize].into_boxed_slice();
            if read(part, &mut bytes).is_ok() {
                self.glimpses.push(Glimpse { range: part, bytes });
            }
        }
    }

    /// The answer to a READ is made of these bytes, which were read now: what was read of them early replaces them.
    pub fn answered(&mut self, range: Range, out: &mut [u8]) {
        self.glimpses.retain(|glimpse| {
            if glimpse.range.key != range.key || !overlap(&glimpse.range, &range) {
                return true;
            }
            for (at, byte) in glimpse.bytes.iter().enumerate() {
                let place = (glimpse.range.address.wrapping_add(at as u64)).wrapping_sub(range.address);
                if let Some(place) = usize::try_from(place).ok().and_then(|place| out.get_mut(place)) {
                    *place = *byte;
                }
            }
            false
        });
    }

    /// Whether programs that wait for completions are woken now, though there is none.
    pub fn wakes_for_nothing(&mut self) -> bool {
        self.weakness.spurious_events && self.below(SPURIOUS_EVENT_ODDS) == 0
    }

    /// Places what must not be overtaken by what happens now.
    pub fn before(&mut self, what: Before, mut place: impl FnMut(Subject, Range, &[u8]) -> Result<(), Refusal>) {
        let goes = |piece: &Piece| match what {
            Before::Read(range) => piece.subject.remote && piece.overlaps(&range),
            Before::Atomic => piece.subject.remote,
            Before::Completion(Queue::Send) => !piece.subject.remote,
            Before::Everything | Before::Completion(Queue::Receive | Queue::Shared(_)) => true,
        };
        while let Some(index) = self.pieces.iter().position(goes) {
            self.place_at(index, &mut place);
        }
    }

    /// Places a piece; older ones for the same bytes first, so that what was sent last is what stays.
    fn place_at(&mut self, index: usize, place: &mut impl FnMut(Subject, Range, &[u8]) -> Result<(), Refusal>) {
        let mut index = index;
        while let Some(range) = self.pieces.get(index).map(|piece| piece.range)
            && let Some(older) = self.pieces.iter().take(index).position(|piece| piece.overlaps(&range))
        {
            index = older;
        }
        if index >= self.pieces.len() {
            return;
        }
        let piece = self.pieces.remove(index);
        self.waiting_bytes -= piece.bytes.len();
        // A key that has gone meanwhile takes nothing any more: the program gave the memory up before it was told.
        let _ = place(piece.subject, piece.range, &piece.bytes);
    }

    /// What the queue pair may do that is driven now. It is to be driven again at the deadline.
    pub fn turn(&mut self, now: Time) -> Turn {
        let (turn, pace) = match self.pace {
            _ if !self.weakness.late => (Turn::All, Pace::Idle),
            Pace::Idle => (Turn::Wait, Pace::SendsAt(self.wait(now))),
            Pace::SendsAt(at) if at <= now => (Turn::Send, Pace::CompletesAt(self.wait(now))),
            Pace::CompletesAt(at) if at <= now => (Turn::All, Pace::Idle),
            pace => (Turn::Wait, pace),
        };
        self.pace = pace;
        self.plan(now);
        turn
    }

    /// When it is to be driven again, after [`time_has_come`](Weak::time_has_come).
    pub fn deadline(&self) -> Option<Time> {
        let pace = match self.pace {
            Pace::Idle => None,
            Pace::SendsAt(at) | Pace::CompletesAt(at) => Some(at),
        };
        self.places_at.into_iter().chain(pace).min()
    }

    /// Says when some of what waits is placed.
    fn plan(&mut self, now: Time) {
        if self.pieces.is_empty() {
            self.places_at = None;
        } else if self.places_at.is_none() {
            self.places_at = Some(self.wait(now));
        }
    }

    /// Places some of what waits, if it has waited enough. What the queue pair may do
    /// then, `turn` says.
    pub fn time_has_come(&mut self, now: Time, mut place: impl FnMut(Subject, Range, &[u8]) -> Result<(), Refusal>) {
        if self.places_at.is_none_or(|at| at > now) {
            return;
        }
        self.places_at = None;
        let waiting = self.pieces.len() as u64;
        for _ in 0..=self.below(waiting) {
            let index = self.below(self.pieces.len() as u64) as usize;
            self.place_at(index, &mut place);
        }
        self.plan(now);
    }
}

#[cfg(test)]
mod tests;
