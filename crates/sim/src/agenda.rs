//! What will happen, and when: a heap of moments. Two things planned for one moment happen in the order they were
//! planned, which is what makes a run repeat exactly. Nothing is ever taken off the agenda; code that planned something
//! that no longer matters recognises it when it comes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use transport::Time;

/// Plans of type `T`.
#[derive(Clone, Debug)]
pub struct Agenda<T> {
    heap: BinaryHeap<Reverse<AgendaEntry<T>>>,
    planned: u64,
}

#[derive(Clone, Debug)]
struct AgendaEntry<T> {
    at: Time,
    order: u64,
    what: T,
}

impl<T> PartialEq for AgendaEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<T> Eq for AgendaEntry<T> {}

impl<T> PartialOrd for AgendaEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for AgendaEntry<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<T> Agenda<T> {
    /// An empty one.
    pub fn new() -> Agenda<T> {
        Agenda { heap: BinaryHeap::new(), planned: 0 }
    }

    /// Plans `what` for `at`.
    pub fn plan(&mut self, at: Time, what: T) {
        self.planned += 1;
        self.heap.push(Reverse(AgendaEntry { at, order: self.planned, what }));
    }

    /// The earliest moment something is planned for.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the earliest plan.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.what))
    }
}

impl<T> Default for Agenda<T> {
    fn default() -> Agenda<T> {
        Agenda::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_come_in_time_order_and_within_a_moment_as_planned() {
        let mut agenda = Agenda::new();
        for (at, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b'), (5, 'e')] {
            agenda.plan(Time::from_nanos(at), what);
        }
        assert_eq!(agenda.next_at(), Some(Time::from_nanos(1)));
        let order: String = std::iter::from_fn(|| agenda.pop()).map(|(_, what)| what).collect();
        assert_eq!(order, "abcde");
        assert_eq!(agenda.next_at(), None);
    }
}
