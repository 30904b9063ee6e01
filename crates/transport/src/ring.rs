//! A FIFO of slots that are used again and again. Each element has a sequence number that only grows, so that a
//! requester can name a work request by number while the queue moves under it. A popped slot keeps what it had
//! allocated for the element that comes next: once a queue has seen its largest load it allocates nothing more. Bounded
//! by the capacity its owner asked for, but grown only as far as it is used.

use alloc::vec::Vec;
use wire::refuse_if;

/// The ring holds as many elements as it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    /// Empty, or a power of two long; element `seq` lives at `seq` modulo that length.
    slots: Vec<T>,
    capacity: u32,
    head: u64,
    tail: u64,
}

impl<T: Default> Ring<T> {
    /// How many slots are made at first. Where there are thousands of queues most hold one element at a time, and the
    /// same slot for it is near.
    const FIRST_SLOTS: usize = 1;

    /// An empty ring that may hold `capacity` elements. Allocates nothing yet.
    pub(crate) fn new(capacity: u32) -> Ring<T> {
        Ring { slots: Vec::new(), capacity, head: 0, tail: 0 }
    }

    /// Appends an element: `fill` gets a slot with whatever its last user left in it. Returns the element's number.
    #[inline]
    pub(crate) fn push_with(&mut self, fill: impl FnOnce(&mut T)) -> Result<u64, Full> {
        refuse_if!(self.len() >= self.capacity, Full);
        if self.len() as usize == self.slots.len() {
            self.grow();
        }
        let seq = self.tail;
        let index = self.index(seq);
        let slot = self.slots.get_mut(index).ok_or(Full)?;
        fill(slot);
        self.tail += 1;
        Ok(seq)
    }

    /// Lets go of the oldest element. Its slot, returned for a last look, keeps its allocations.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<&mut T> {
        if self.is_empty() {
            return None;
        }
        let index = self.index(self.head);
        self.head += 1;
        self.slots.get_mut(index)
    }

    /// The oldest element.
    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        self.get(self.head)
    }

    /// Element `seq`, if it is still (or already) there.
    #[inline]
    pub(crate) fn get(&self, seq: u64) -> Option<&T> {
        if self.contains(seq) { self.slots.get(self.index(seq)) } else { None }
    }

    /// Element `seq`, to change.
    #[inline]
    pub(crate) fn get_mut(&mut self, seq: u64) -> Option<&mut T> {
        let index = self.index(seq);
        if self.contains(seq) { self.slots.get_mut(index) } else { None }
    }

    /// Whether element `seq` is there.
    #[inline]
    pub(crate) fn contains(&self, seq: u64) -> bool {
        (self.head..self.tail).contains(&seq)
    }

    /// The number of the oldest element, or of the next one if there is none.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// The number the next element will have.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// How many elements are there.
    pub(crate) fn len(&self) -> u32 {
        // Never more than `capacity`, which is a u32.
        (self.tail - self.head) as u32
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// How many elements there may be.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Changes how many elements there may be. What is there already stays, even if it is more.
    pub(crate) fn set_capacity(&mut self, capacity: u32) {
        self.capacity = capacity;
    }

    /// Lets go of all elements; the numbers go on where they were.
    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }

    #[inline]
    fn index(&self, seq: u64) -> usize {
        // The length is a power of two (or zero, where every lookup misses).
        (seq as usize) & self.slots.len().wrapping_sub(1)
    }

    /// Doubles the slots. Called only when all are in use, so that every one of them has a new place by its number.
    fn grow(&mut self) {
        let old = self.slots.len();
        let new = (old * 2).max(Self::FIRST_SLOTS);
        self.slots.resize_with(new, T::default);
        // Element `seq` was at `seq % old`; at `seq % new` that is the same place or the one `old` further.
        for index in 0..old {
            let seq = self.head + ((index as u64).wrapping_sub(self.head) & (old as u64 - 1));
            let place = (seq as usize) & (new - 1);
            if place != index {
                self.slots.swap(index, place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes and pops in every proportion, against a plain queue.
    #[test]
    fn it_is_a_queue_whatever_the_order_of_growth() {
        for offset in 0..40u64 {
            let mut ring: Ring<u64> = Ring::new(100);
            let mut model = alloc::collections::VecDeque::new();
            for step in 0..offset {
                assert_eq!(ring.push_with(|slot| *slot = step), Ok(step));
                assert_eq!(ring.pop().copied(), Some(step));
            }
            for step in 0..100 {
                assert_eq!(ring.push_with(|slot| *slot = step), Ok(offset + step));
                model.push_back(step);
                if step % 3 == offset % 3 {
                    assert_eq!(ring.pop().copied(), model.pop_front());
                }
                assert_eq!(ring.front(), model.front());
                assert_eq!(ring.len() as usize, model.len());
                for (nth, value) in model.iter().enumerate() {
                    assert_eq!(ring.get(ring.head() + nth as u64), Some(value));
                }
                assert_eq!(ring.get(ring.tail()), None);
                assert_eq!(ring.get_mut(ring.head().wrapping_sub(1)), None);
            }
        }
    }

    #[test]
    fn it_holds_its_capacity_and_not_one_more() {
        for capacity in 0..20 {
            let mut ring: Ring<u8> = Ring::new(capacity);
            for _ in 0..capacity {
                assert!(ring.push_with(|_| ()).is_ok());
            }
            assert_eq!(ring.push_with(|_| panic!("there is no slot to fill")), Err(Full));
            assert_eq!(ring.pop().is_some(), capacity > 0);
            assert_eq!(ring.push_with(|_| ()).is_ok(), capacity > 0);
        }
    }

    #[test]
    fn a_slot_keeps_its_allocation_for_the_next_element() {
        let mut ring: Ring<Vec<u8>> = Ring::new(4);
        for _ in 0..4 {
            ring.push_with(|slot| slot.reserve(1000)).unwrap();
        }
        ring.clear();
        assert_eq!((ring.len(), ring.head(), ring.tail()), (0, 4, 4));
        for _ in 0..4 {
            ring.push_with(|slot| assert!(slot.capacity() >= 1000)).unwrap();
        }
    }

    #[test]
    fn a_large_queue_that_is_little_used_stays_small() {
        let mut ring: Ring<u64> = Ring::new(1 << 20);
        for step in 0..1000 {
            ring.push_with(|slot| *slot = step).unwrap();
            ring.pop();
        }
        assert_eq!(ring.slots.len(), Ring::<u64>::FIRST_SLOTS);
    }
}
