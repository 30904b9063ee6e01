//! What a process knows to be done: of each queue pair, how far its work is. It is a vector clock whose components are
//! queue pairs, since the NIC accesses memory for them and not for threads.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// In which sense work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Its bytes are in the peer's memory: SEND and WRITE.
    Placed,
    /// It was carried out at the peer, and its result is here: READ and atomic operations.
    Answered,
    /// The NIC has done with the memory that the bytes come from.
    Sent,
}

/// Work of a queue pair is done up to this work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    pub pair: u32,
    pub way: Way,
    /// Counted from 1.
    pub index: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    pair: u32,
    placed: u64,
    answered: u64,
    sent: u64,
}

/// What is known, by queue pair.
#[derive(Clone, Default, Debug)]
pub(super) struct Clock(Vec<Known>);

impl Clock {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn knows(&self, point: Point) -> bool {
        let Ok(place) = self.0.binary_search_by_key(&point.pair, |known| known.pair) else { return false };
        let known = &self.0[place];
        let done = match point.way {
            Way::Placed => known.placed,
            Way::Answered => known.answered,
            Way::Sent => known.sent,
        };
        done >= point.index
    }

    /// Learns that work is done so far.
    pub fn learn(&mut self, point: Point) {
        let mut known = Known { pair: point.pair, placed: 0, answered: 0, sent: 0 };
        match point.way {
            Way::Placed => known.placed = point.index,
            Way::Answered => known.answered = point.index,
            Way::Sent => known.sent = point.index,
        }
        self.learn_of(known);
    }

    fn learn_of(&mut self, new: Known) {
        match self.0.binary_search_by_key(&new.pair, |known| known.pair) {
            Ok(place) => self.0[place].join(new),
            Err(place) => self.0.insert(place, new),
        }
    }

    /// Learns what another one knows.
    pub fn join(&mut self, other: &Clock) {
        let mut place = 0;
        for new in &other.0 {
            while self.0.get(place).is_some_and(|known| known.pair < new.pair) {
                place += 1;
            }
            match self.0.get_mut(place) {
                Some(known) if known.pair == new.pair => known.join(*new),
                _ => self.0.insert(place, *new),
            }
        }
    }

    /// Whether the other one knows nothing that is not known here.
    fn has_all_of(&self, other: &Clock) -> bool {
        let has = |new: &Known| {
            self.0.binary_search_by_key(&new.pair, |known| known.pair).is_ok_and(|place| self.0[place].has_all_of(new))
        };
        other.0.iter().all(has)
    }

    /// Forgets queue pairs that are not there any more.
    pub fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        self.0.retain(|known| is_there(known.pair));
    }
}

impl Known {
    fn join(&mut self, new: Known) {
        self.placed = self.placed.max(new.placed);
        self.answered = self.answered.max(new.answered);
        self.sent = self.sent.max(new.sent);
    }

    fn has_all_of(&self, other: &Known) -> bool {
        self.placed >= other.placed && self.answered >= other.answered && self.sent >= other.sent
    }
}

/// A clock that is shared with what was noted under it, and copied when it moves on.
#[derive(Clone, Default, Debug)]
pub(super) struct SharedClock(pub Arc<Clock>);

impl SharedClock {
    pub fn learn(&mut self, point: Point) {
        if point.index > 0 && !self.0.knows(point) {
            Arc::make_mut(&mut self.0).learn(point);
        }
    }

    pub fn join(&mut self, other: &Arc<Clock>) {
        if !Arc::ptr_eq(&self.0, other) && !self.0.has_all_of(other) {
            Arc::make_mut(&mut self.0).join(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn point(pair: u32, way: Way, index: u64) -> Point {
        Point { pair, way, index }
    }

    #[test]
    fn what_one_learns_the_other_has_after_joining() {
        let (mut one, mut other) = (SharedClock::default(), SharedClock::default());
        one.learn(point(3, Way::Placed, 5));
        other.learn(point(1, Way::Answered, 2));
        other.learn(point(3, Way::Sent, 9));
        other.join(&one.0);
        assert!(other.0.knows(point(3, Way::Placed, 5)) && other.0.knows(point(3, Way::Sent, 9)));
        assert!(other.0.knows(point(1, Way::Answered, 1)) && !other.0.knows(point(1, Way::Answered, 3)));
        assert!(!other.0.knows(point(3, Way::Placed, 6)) && !one.0.knows(point(1, Way::Answered, 1)));
    }

    #[test]
    fn a_clock_that_is_shared_stays_as_it_was() {
        let mut clock = SharedClock::default();
        clock.learn(point(1, Way::Placed, 1));
        let before = Arc::clone(&clock.0);
        clock.learn(point(1, Way::Placed, 2));
        assert!(!before.knows(point(1, Way::Placed, 2)) && clock.0.knows(point(1, Way::Placed, 2)));
        let same = Arc::clone(&clock.0);
        clock.join(&before);
        assert!(Arc::ptr_eq(&same, &clock.0), "nothing new is no copy");
    }
}
