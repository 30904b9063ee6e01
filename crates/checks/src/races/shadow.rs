//! Which accesses of each byte of a process are remembered: those that are not known to be before a later one. Memory is
//! kept in intervals; what has no room any more is forgotten, the oldest first.

use alloc::sync::Arc;
use alloc::vec::Vec;

use wire::Qpn;

use super::clock::{Clock, Point, Way};
use crate::map::Map;

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    Reading,
    Writing,
    /// Atomic to other atomic operations of the NIC, and to nothing else.
    Atomic,
}

/// Whose memory it is, as the work request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// That of the process that posts it.
    Local,
    /// That of its peer.
    Remote,
}

/// A work request.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub process: u32,
    pub pair: u32,
    pub qpn: Qpn,
    pub index: u64,
    pub wr_id: u64,
    pub opcode: &'static str,
    pub thread: u32,
    pub at: u64,
    /// READs and atomic operations of the queue pair up to this one had been answered before it began, by its fence.
    pub fenced: u64,
    /// Where it was posted: the number of a stack, 0 if that is not known.
    pub stack: u64,
}

/// An access of memory by the NIC.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub work: Arc<Work>,
    pub doing: Doing,
    pub side: Side,
    /// What is to be known for it to be over.
    pub over: Point,
    /// What was known before it began.
    pub before: Arc<Clock>,
    /// The process whose memory it is.
    pub target: u32,
    /// The region, which may be gone; 0 if there is none.
    pub region: u64,
    pub key: u32,
    pub start: u64,
    pub end: u64,
    /// Of a message: the receive that it went to, by queue pair and name.
    pub receive: Option<(u32, u64)>,
}

impl Access {
    pub fn conflicts(&self, other: &Access) -> bool {
        !matches!((self.doing, other.doing), (Doing::Reading, Doing::Reading) | (Doing::Atomic, Doing::Atomic))
    }

    /// Whether this one is known to be over before the other one begins.
    pub fn is_before(&self, other: &Access) -> bool {
        other.before.knows(self.over) || self.is_before_in_its_queue(other)
    }

    /// What a queue pair promises of its own work requests (docs/races.md).
    fn is_before_in_its_queue(&self, other: &Access) -> bool {
        let (first, second) = (&self.work, &other.work);
        if first.pair != second.pair || first.index >= second.index {
            return false;
        }
        let is_fenced = second.fenced >= first.index;
        match (self.side, self.over.way, other.side, other.over.way) {
            // An answer comes after all answers before it, and after what was placed or fetched for requests before it.
            (_, _, _, Way::Answered) => true,
            (_, Way::Answered, _, _) => is_fenced,
            // What comes later may be fetched before the first has arrived.
            (Side::Remote, _, Side::Local, _) => false,
            _ => true,
        }
    }

    /// Whether all that would race with the other would race with this one, too, which comes after it.
    fn stands_for(&self, other: &Access) -> bool {
        self.doing == Doing::Writing || self.doing == other.doing
    }
}

/// How many accesses of the same bytes are remembered.
const MAX_ACCESSES_PER_SEGMENT: usize = 16;

/// How many intervals of memory one access may meet. One that meets more forgets what they have.
const MAX_SEGMENTS_MET: usize = 1024;

/// How many intervals there are, of all processes.
pub(super) const MAX_SEGMENTS: usize = 1 << 15;

#[derive(Debug)]
struct Segment {
    end: u64,
    accesses: Vec<Arc<Access>>,
}

/// The memory of one process.
#[derive(Default, Debug)]
pub(super) struct Shadow(Map<u64, Segment>);

impl Shadow {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds an access; shows each that it races with, and the bytes.
    pub fn add(
        &mut self,
        new: &Arc<Access>,
        is_alive: impl Fn(&Access) -> bool,
        mut races: impl FnMut(&Arc<Access>, u64, u64),
    ) {
        self.split_at(new.start);
        self.split_at(new.end);
        let mut at = new.start;
        let mut met: Vec<(u64, u64)> = Vec::new();
        for (start, segment) in self.0.range(new.start..new.end) {
            if at < *start {
                met.push((at, *start));
            }
            met.push((*start, segment.end));
            at = segment.end;
            if met.len() > MAX_SEGMENTS_MET {
                break;
            }
        }
        if met.len() > MAX_SEGMENTS_MET {
            self.0.retain(|start, _| *start < new.start || *start >= new.end);
            met = Vec::from([(new.start, new.end)]);
        } else if at < new.end {
            met.push((at, new.end));
        }
        for (start, end) in met {
            let segment = self.0.entry(start).or_insert_with(|| Segment { end, accesses: Vec::new() });
            segment.accesses.retain(|old| {
                if !is_alive(old) {
                    return false;
                }
                if Arc::ptr_eq(&old.work, &new.work) {
                    return true;
                }
                let is_before = old.is_before(new);
                if new.conflicts(old) && !is_before && !new.is_before(old) {
                    races(old, start, end);
                }
                !(is_before && new.stands_for(old))
            });
            if segment.accesses.len() >= MAX_ACCESSES_PER_SEGMENT {
                segment.accesses.remove(0);
            }
            segment.accesses.push(Arc::clone(new));
        }
    }

    /// Lets an interval end here.
    fn split_at(&mut self, place: u64) {
        let Some((start, _)) = self.0.range(..place).next_back() else { return };
        let start = *start;
        let Some(segment) = self.0.get_mut(&start).filter(|segment| segment.end > place) else { return };
        let rest = Segment { end: segment.end, accesses: segment.accesses.clone() };
        segment.end = place;
        self.0.insert(place, rest);
    }
}
