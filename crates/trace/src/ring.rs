//! The newest events, in memory: what to look at after something went wrong. It never grows past its capacity.

use alloc::collections::VecDeque;
use alloc::collections::vec_deque;

use crate::event::Event;
use crate::sink::Sink;

/// Keeps the newest `capacity` events and counts the ones it had to overwrite.
#[derive(Clone, Debug)]
pub struct Ring {
    events: VecDeque<Event>,
    capacity: usize,
    overwritten: u64,
}

impl Ring {
    /// A ring of `capacity` events, allocated now; recording allocates nothing.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { events: VecDeque::with_capacity(capacity), capacity, overwritten: 0 }
    }

    /// The events kept, oldest first.
    pub fn iter(&self) -> vec_deque::Iter<'_, Event> {
        self.events.iter()
    }

    /// How many events are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether no event is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// How many events are kept at most.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many events were recorded and are no longer kept.
    #[must_use]
    pub const fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// Forgets the events; the count of overwritten ones starts over.
    pub fn clear(&mut self) {
        self.events.clear();
        self.overwritten = 0;
    }
}

impl Sink for Ring {
    fn record(&mut self, event: &Event) {
        if self.events.len() >= self.capacity {
            self.overwritten += 1;
            if self.events.pop_front().is_none() {
                return; // A ring of no capacity only counts.
            }
        }
        self.events.push_back(*event);
    }
}

impl<'a> IntoIterator for &'a Ring {
    type Item = &'a Event;
    type IntoIter = vec_deque::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
