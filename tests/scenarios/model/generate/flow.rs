//! What one end posts. Every choice keeps the outcome unique: an end never asks for something whose result depends on how far the network
//! happens to be. That is the application's side of the ordering rules (IBA 10.8.3.3 and 9.5): what a READ or atomic will bring may be used, and what
//! a READ reads may be overwritten, only behind a fence or after a wait; memory that is being sent from is left alone until then.

use super::Chance;
use crate::model::program::*;
use sim::Rng;

type Span = (u32, u32);

fn overlap(a: Span, b: Span) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

/// The choices of one end.
pub struct Flow<'a> {
    rng: &'a mut Rng,
    service: Service,
    mtu: u32,
    max_sge: u32,
    max_inline: u32,
    signal_all: bool,
    queue: u32,
    areas: Areas,
    /// Ends or shared queues to send to.
    pub partners: Vec<usize>,
    /// No steps beside work, pauses and waits.
    pub simple: bool,
    /// Where the window is bound.
    window: Option<Span>,
    /// Target being read, and landing being written, since the last fence.
    reading: Vec<Span>,
    landing: Vec<Span>,
    /// Landing that holds results, and landing that is being sent from.
    landed: Vec<Span>,
    lent: Vec<Span>,
    /// How often work is unsignaled, and how long its messages are.
    unsignaled: f64,
    longest: u32,
    /// UC: where the next write goes.
    fresh: u32,
    steps: Vec<Step>,
}

impl<'a> Flow<'a> {
    pub fn new(rng: &'a mut Rng, channel: &Channel, side: usize) -> Flow<'a> {
        let End { capabilities, signal_all, .. } = &channel.ends[side];
        let mtu = channel.options.mtu.bytes();
        let longest = match (channel.service, rng.below(20)) {
            (Service::Ud, _) => 4096,
            (_, 0) => 140_000.min(100 * mtu),
            (_, 1..=3) => 20 * mtu,
            _ => 4 * mtu,
        };
        let areas = Areas {
            source: longest + 64,
            landing: 2 * longest + 256,
            target: (longest + rng.scale(4096) as u32).next_multiple_of(8) + 64,
            own_keys: rng.chance(0.5),
            window: (channel.service == Service::Rc && rng.chance(0.4)).then(|| rng.one(&[1, 2, 2])),
        };
        let unsignaled = rng.one(&[0.0, 0.2, 0.7]);
        Flow {
            rng,
            service: channel.service,
            mtu,
            max_sge: capabilities.max_send_sge,
            max_inline: capabilities.max_inline_data,
            signal_all: *signal_all,
            queue: capabilities.max_send_wr,
            areas,
            partners: Vec::new(),
            simple: false,
            window: None,
            reading: Vec::new(),
            landing: Vec::new(),
            landed: Vec::new(),
            lent: Vec::new(),
            unsignaled,
            longest,
            fresh: 0,
            steps: Vec::new(),
        }
    }

    /// Areas and steps.
    pub fn write(mut self) -> (Areas, Vec<Step>) {
        if self.service == Service::Uc {
            self.areas.target = 6 * self.longest;
        }
        let long = self.longest > 8 * self.mtu;
        let count = match self.rng.below(3) {
            _ if long => self.rng.between(1, 8),
            0 => self.rng.between(1, 4),
            1 => self.rng.between(4, 20),
            _ => self.rng.between(10, 50),
        };
        for _ in 0..count {
            match self.rng.below(20) {
                0 => self.wait(),
                1 => {
                    let nanos = 1 + self.rng.scale(100_000);
                    self.steps.push(Step::Pause(nanos));
                }
                2 if !self.simple => {
                    let posts = self.rng.below(3) as usize;
                    self.steps.push(Step::Drain { posts });
                }
                3 | 4 if self.areas.window.is_some() && !self.simple => self.rebind(),
                _ => self.post(),
            }
        }
        (self.areas, self.steps)
    }

    /// Everything has completed: all memory is the program's own again.
    fn wait(&mut self) {
        let last = self.steps.iter_mut().rev().find_map(|step| match step {
            Step::Post(item) => Some(item),
            _ => None,
        });
        let Some(last) = last else { return };
        last.signaled = true;
        self.steps.push(Step::Wait);
        self.settled();
        self.lent.clear();
        if self.rng.chance(0.5) {
            let length = self.rng.scale(u64::from(self.areas.source)) as u32;
            let offset = self.rng.below(u64::from(self.areas.source - length) + 1) as u32;
            self.steps.push(Step::Refill { offset, length, seed: self.rng.next_u64() });
        }
    }

    fn settled(&mut self) {
        self.reading.clear();
        self.landing.clear();
    }

    fn rebind(&mut self) {
        // The steps wait by themselves, which needs a last word of the work before.
        self.wait();
        if self.window.is_some() && self.rng.chance(0.4) {
            self.steps.push(Step::Unbind);
            self.window = None;
        } else if self.window.is_none() || self.areas.window == Some(1) {
            let offset = self.rng.below(u64::from(self.areas.target / 16)) as u32 * 8;
            let length = self.rng.between(8, u64::from(self.areas.target - offset)) as u32;
            self.steps.push(Step::Bind { offset, length, zero_based: self.rng.chance(0.3) });
            self.window = Some((offset, length));
        }
    }

    fn post(&mut self) {
        let action = self.kind();
        let Some(mut item) = self.fill(action) else { return };
        // A queue with room for a few must hear of a completion now and then.
        let silent = self.steps.iter().rev().take(self.queue as usize / 2);
        let quiet = silent.filter(|step| matches!(step, Step::Post(item) if !item.signaled)).count();
        item.signaled = self.signal_all
            || !self.rng.chance(self.unsignaled)
            || quiet + 1 >= self.queue as usize / 2
            || self.steps.is_empty();
        item.solicited = self.rng.chance(0.1);
        self.steps.push(Step::Post(item));
    }

    /// Something to do, its numbers to be filled in.
    fn kind(&mut self) -> Action {
        let immediate = self.rng.chance(0.3).then(|| self.rng.next_u64() as u32);
        let send = Action::Send { immediate };
        let write = Action::Write { at: 0, immediate };
        let invalidates = self.window.is_some() && self.areas.window == Some(2) && !self.simple;
        match self.service {
            Service::Ud => send,
            Service::Uc => self.rng.one(&[send, write]),
            Service::Rc | Service::Xrc => self.rng.weighted(&[
                (28, send),
                (if invalidates { 5 } else { 0 }, Action::SendInvalidate),
                (28, write),
                (24, Action::Read { at: 0 }),
                (5, Action::CompareSwap { at: 0, hit: false, swap: 0 }),
                (5, Action::FetchAdd { at: 0, add: 0 }),
                (if self.simple { 0 } else { 5 }, Action::SharedAdd { counter: 0, add: 0 }),
                (4, Action::AtomicWrite { at: 0 }),
                (3, Action::Flush { at: 0, length: 0 }),
            ]),
        }
    }

    /// Chooses places, and the fence they need.
    fn fill(&mut self, action: Action) -> Option<Item> {
        let mut item = Item {
            action,
            pieces: Vec::new(),
            inline: false,
            signaled: true,
            fenced: self.rng.chance(0.05) && self.service.is_reliable(),
            solicited: false,
            by_window: false,
            to: (!self.partners.is_empty()).then(|| self.rng.one(&self.partners)),
            flaw: None,
        };
        let reach = self.window.filter(|_| self.rng.chance(0.6) && !matches!(action, Action::Flush { .. }));
        item.by_window = reach.is_some();
        let reach = reach.unwrap_or((0, self.areas.target));
        let mut reads = None;
        let mut writes = None;
        match action {
            Action::Send { .. } | Action::SendInvalidate => {
                item.by_window = false;
                let length = self.length(self.longest);
                item.pieces = self.source(length, &mut item);
                if action == Action::SendInvalidate {
                    // A READ through the window must be over before the window is.
                    item.fenced |= !self.reading.is_empty();
                    self.window = None;
                }
            }
            Action::Write { immediate, .. } => {
                let room = if self.service == Service::Uc { self.areas.target - self.fresh } else { reach.1 };
                let length = self.length(self.longest).min(room);
                let at = match self.service {
                    Service::Uc => {
                        self.fresh += length;
                        self.fresh - length
                    }
                    _ => reach.0 + self.rng.below(u64::from(reach.1 - length) + 1) as u32,
                };
                item.action = Action::Write { at, immediate };
                item.pieces = self.source(length, &mut item);
                writes = Some((at, length));
            }
            Action::Read { .. } => {
                let length = self.length(self.longest).min(reach.1);
                let at = reach.0 + self.rng.below(u64::from(reach.1 - length) + 1) as u32;
                item.action = Action::Read { at };
                item.pieces = self.sink(length)?;
                reads = Some((at, length));
            }
            Action::CompareSwap { .. } | Action::FetchAdd { .. } | Action::AtomicWrite { .. } => {
                let at = reach.0 + self.rng.below(u64::from(reach.1 / 8)) as u32 * 8;
                writes = Some((at, 8));
                let value = self.rng.next_u64();
                item.action = match action {
                    Action::CompareSwap { .. } => Action::CompareSwap { at, hit: self.rng.chance(0.6), swap: value },
                    Action::FetchAdd { .. } => Action::FetchAdd { at, add: value },
                    _ => Action::AtomicWrite { at },
                };
                item.pieces = match action {
                    Action::AtomicWrite { .. } => self.source(8, &mut item),
                    _ => self.sink(8)?,
                };
            }
            Action::SharedAdd { .. } => {
                item.by_window = false;
                let add = self.rng.between(1, 1000);
                item.action = Action::SharedAdd { counter: self.rng.below(2) as usize, add };
                item.pieces = self.sink(8)?;
            }
            Action::Flush { .. } => {
                let length = self.rng.below(u64::from(self.areas.target)) as u32;
                let at = self.rng.below(u64::from(self.areas.target - length) + 1) as u32;
                item.action = Action::Flush { at, length };
            }
            Action::LocalInvalidate => return None,
        }
        let lands = !item.inline && matches!(item.action, Action::Read { .. }) || is_atomic(item.action);
        let uses =
            |span: &Span| item.pieces.iter().any(|piece| piece.place == MemorySide::Landing && covers(piece, *span));
        item.fenced |= writes.is_some_and(|span| self.reading.iter().any(|read| overlap(*read, span)));
        item.fenced |= !lands && self.landing.iter().any(uses);
        if item.fenced {
            self.settled();
        }
        self.reading.extend(reads.filter(|span| span.1 > 0));
        for piece in item.pieces.iter().filter(|piece| piece.place == MemorySide::Landing && piece.length > 0) {
            let span = (piece.offset, piece.length);
            if lands {
                self.landing.push(span);
                self.landed.push(span);
            } else if !item.inline {
                self.lent.push(span);
            }
        }
        Some(item)
    }

    /// A length with a taste for the places where packets begin and end.
    fn length(&mut self, longest: u32) -> u32 {
        let mtu = self.mtu;
        let length = match self.rng.below(12) {
            0 => 0,
            1 => self.rng.between(1, 9) as u32,
            2 => mtu - 1,
            3 => mtu,
            4 => mtu + 1,
            5 => 2 * mtu,
            6 => mtu * self.rng.between(1, u64::from(longest / mtu).max(1)) as u32,
            7 => longest,
            _ => self.rng.scale(u64::from(longest)) as u32,
        };
        length.min(longest)
    }

    /// Where to send from: the source, or results of earlier work.
    fn source(&mut self, length: u32, item: &mut Item) -> Vec<Piece> {
        item.inline = length <= self.max_inline && self.rng.chance(0.4);
        let reused = self.landed.iter().copied().filter(|span| span.1 >= length);
        let reused: Vec<_> = reused.collect();
        // Inline bytes are taken when the work is posted: results of work under way are not there yet.
        let from_landing = !reused.is_empty() && !item.inline && self.service.is_reliable() && self.rng.chance(0.4);
        let (place, offset) = if from_landing {
            let (offset, room) = self.rng.one(&reused);
            (MemorySide::Landing, offset + self.rng.below(u64::from(room - length) + 1) as u32)
        } else {
            (MemorySide::Source, self.rng.below(u64::from(self.areas.source - length) + 1) as u32)
        };
        self.pieces(place, offset, length)
    }

    /// Where results land: nowhere that is being sent from.
    fn sink(&mut self, length: u32) -> Option<Vec<Piece>> {
        for _ in 0..8 {
            let offset = self.rng.below(u64::from(self.areas.landing - length) + 1) as u32;
            if !self.lent.iter().any(|lent| overlap(*lent, (offset, length))) {
                return Some(self.pieces(MemorySide::Landing, offset, length));
            }
        }
        None
    }

    /// A run cut into pieces, in any order.
    fn pieces(&mut self, place: MemorySide, offset: u32, length: u32) -> Vec<Piece> {
        let mut at = offset;
        let mut pieces = Vec::new();
        for length in cut(length, self.max_sge, self.rng) {
            pieces.push(Piece { place, offset: at, length });
            at += length;
        }
        let count = pieces.len() as u64;
        if count > 1 {
            pieces.swap(self.rng.below(count) as usize, self.rng.below(count) as usize);
        }
        pieces
    }
}

fn is_atomic(action: Action) -> bool {
    matches!(action, Action::CompareSwap { .. } | Action::FetchAdd { .. } | Action::SharedAdd { .. })
}

fn covers(piece: &Piece, span: Span) -> bool {
    overlap((piece.offset, piece.length), span)
}

/// `length` in up to `most` parts, some of them perhaps empty.
pub fn cut(length: u32, most: u32, rng: &mut Rng) -> Vec<u32> {
    if length == 0 && rng.chance(0.5) {
        return Vec::new();
    }
    let parts = if rng.chance(0.5) { 1 } else { rng.between(1, u64::from(most)) };
    let mut left = length;
    let mut pieces = Vec::new();
    for _ in 1..parts {
        let part = rng.below(u64::from(left) + 1) as u32;
        pieces.push(part);
        left -= part;
    }
    pieces.push(left);
    pieces
}
