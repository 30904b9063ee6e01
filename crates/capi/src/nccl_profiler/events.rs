//! What goes on in NCCL: events that have begun and not ended, with their parents. It knows neither C nor the recording.
//!
//! A collective is stopped when it has been handed to the GPU and to the proxy threads, which only then begin its proxy
//! operations. So what has been stopped and may still get children is kept for a while: it ends with the last of them.

use std::collections::{HashMap, VecDeque};

/// How many events can be under way, and how many communicators there can be: a caller that never ends them is not
/// followed further.
const MAX_OPEN_EVENTS: usize = 1 << 16;
const MAX_COMMUNICATORS: usize = 1 << 12;

/// How many stopped events wait for more children, and how many when all of them have unfinished ones.
const MAX_LINGERING_EVENTS: usize = 64;
const MAX_WAITING_EVENTS: usize = 1024;

/// How many fields an event has, beside those that are added at its end.
const MAX_FIELDS: usize = 14;

/// A name and its value.
pub(super) type Field = (&'static str, String);

/// What is known of an event when it begins.
#[derive(Debug, Default)]
pub(super) struct EventStart {
    /// The event that it is a part of; 0 if there is none.
    pub parent: usize,
    pub name: String,
    pub fields: Vec<Field>,
    /// It may get children after it has been stopped.
    pub lingers: bool,
    pub thread: u32,
}

/// An event that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EndedEvent {
    pub begin: u64,
    pub end: u64,
    pub thread: u32,
    pub name: String,
    pub fields: Vec<Field>,
}

#[derive(Debug)]
struct OpenEvent {
    communicator: usize,
    start: EventStart,
    begin: u64,
    end: u64,
    is_stopped: bool,
    /// How many of its children have not ended.
    open_children: u32,
}

/// All events of a process. Communicators and events have numbers from 1 on, and none is used twice: what a caller asks
/// for that is gone is found to be gone.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// What each of their collectives says of its communicator.
    communicators: HashMap<usize, Vec<Field>>,
    open: HashMap<usize, OpenEvent>,
    /// Stopped, and kept for children, the oldest first.
    lingering: VecDeque<usize>,
    last_number: usize,
}

impl Events {
    /// A communicator begins; 0 if there are too many.
    pub fn join(&mut self, fields: Vec<Field>) -> usize {
        if self.communicators.len() >= MAX_COMMUNICATORS {
            return 0;
        }
        self.last_number += 1;
        self.communicators.insert(self.last_number, fields);
        self.last_number
    }

    /// A communicator ends, and with it all of its events.
    pub fn leave(&mut self, communicator: usize, now: u64) -> Vec<EndedEvent> {
        let mut ended = Vec::new();
        if self.communicators.remove(&communicator).is_none() {
            return ended;
        }
        let of_it = self.open.iter().filter(|(_, event)| event.communicator == communicator);
        let mut numbers: Vec<usize> = of_it.map(|(number, _)| *number).collect();
        // Children are younger than their parents.
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        for number in numbers {
            if let Some(event) = self.open.get_mut(&number).filter(|event| !event.is_stopped) {
                event.end = event.end.max(now);
                event.start.fields.push(("unfinished", "yes".to_owned()));
            }
            self.finish(number, &mut ended);
        }
        self.lingering.retain(|number| self.open.contains_key(number));
        ended
    }

    /// All communicators end.
    pub fn leave_all(&mut self, now: u64) -> Vec<EndedEvent> {
        let communicators: Vec<usize> = self.communicators.keys().copied().collect();
        communicators.into_iter().flat_map(|communicator| self.leave(communicator, now)).collect()
    }

    /// An event begins; 0 if it is not followed.
    pub fn start(&mut self, communicator: usize, mut start: EventStart, now: u64) -> usize {
        let Some(about) = self.communicators.get(&communicator) else { return 0 };
        if self.open.len() >= MAX_OPEN_EVENTS {
            return 0;
        }
        match self.open.get_mut(&start.parent) {
            Some(parent) => parent.open_children += 1,
            None => start.parent = 0,
        }
        if start.lingers {
            start.fields.extend(about.iter().cloned());
        }
        self.last_number += 1;
        let event = OpenEvent { communicator, start, begin: now, end: now, is_stopped: false, open_children: 0 };
        self.open.insert(self.last_number, event);
        self.last_number
    }

    /// Something happened to an event: when that was is a field of it, in nanoseconds since it began.
    pub fn reached(&mut self, number: usize, state: &'static str, now: u64) {
        if let Some(event) = self.open.get_mut(&number) {
            let since = now.saturating_sub(event.begin).to_string();
            set(&mut event.start.fields, state, since);
        }
    }

    /// An event has something more to say of itself.
    pub fn set(&mut self, number: usize, name: &'static str, value: String) {
        if let Some(event) = self.open.get_mut(&number) {
            set(&mut event.start.fields, name, value);
        }
    }

    /// An event is stopped. Returns what has ended.
    pub fn stop(&mut self, number: usize, now: u64) -> Vec<EndedEvent> {
        let mut ended = Vec::new();
        let Some(event) = self.open.get_mut(&number).filter(|event| !event.is_stopped) else { return ended };
        event.is_stopped = true;
        event.end = event.end.max(now);
        if event.start.lingers {
            self.lingering.push_back(number);
        } else {
            self.finish(number, &mut ended);
        }
        while self.lingering.len() > MAX_LINGERING_EVENTS {
            let is_idle = |number: &usize| self.open.get(number).is_none_or(|event| event.open_children == 0);
            let place = match self.lingering.iter().position(is_idle) {
                None if self.lingering.len() <= MAX_WAITING_EVENTS => break,
                place => place.unwrap_or(0),
            };
            if let Some(number) = self.lingering.remove(place) {
                self.finish(number, &mut ended);
            }
        }
        ended
    }

    /// An event has ended; its parents last at least as long.
    fn finish(&mut self, number: usize, ended: &mut Vec<EndedEvent>) {
        let Some(OpenEvent { start, begin, end, .. }) = self.open.remove(&number) else { return };
        if let Some(parent) = self.open.get_mut(&start.parent) {
            parent.open_children -= 1;
        }
        let mut ancestor = start.parent;
        // Each is older than its child, so there is an end.
        while let Some(event) = self.open.get_mut(&ancestor) {
            event.end = event.end.max(end);
            ancestor = event.start.parent;
        }
        let EventStart { parent, name, mut fields, thread, .. } = start;
        fields.push(("event", number.to_string()));
        if parent != 0 {
            fields.push(("parent", parent.to_string()));
        }
        ended.push(EndedEvent { begin, end, thread, name, fields });
    }
}

fn set(fields: &mut Vec<Field>, name: &'static str, value: String) {
    if let Some((_, known)) = fields.iter_mut().find(|(known, _)| *known == name) {
        *known = value;
    } else if fields.len() < MAX_FIELDS {
        fields.push((name, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(events: &mut Events, communicator: usize, parent: usize, name: &str, lingers: bool, now: u64) -> usize {
        events.start(communicator, EventStart { parent, name: name.to_owned(), lingers, ..Default::default() }, now)
    }

    fn times(ended: &[EndedEvent]) -> Vec<(&str, u64, u64)> {
        ended.iter().map(|event| (event.name.as_str(), event.begin, event.end)).collect()
    }

    #[test]
    fn a_collective_ends_with_its_last_operation_though_it_was_stopped_before_the_first() {
        let mut events = Events::default();
        let communicator = events.join(vec![("rank", "3".to_owned())]);
        let group = start(&mut events, communicator, 0, "group", true, 10);
        let collective = start(&mut events, communicator, group, "AllReduce", true, 11);
        assert_eq!(events.stop(collective, 12), []);
        assert_eq!(events.stop(group, 13), []);
        let operation = start(&mut events, communicator, collective, "channel 0", false, 20);
        let step = start(&mut events, communicator, operation, "step 0", false, 21);
        assert_eq!(times(&events.stop(step, 30)), [("step 0", 21, 30)]);
        assert_eq!(times(&events.stop(operation, 40)), [("channel 0", 20, 40)]);
        assert_eq!(events.stop(operation, 41), []);
        let ended = events.leave(communicator, 99);
        assert_eq!(times(&ended), [("AllReduce", 11, 40), ("group", 10, 40)]);
        let field = |name: &str, value: usize| ended[0].fields.iter().any(|f| f.0 == name && f.1 == value.to_string());
        assert!(field("rank", 3) && field("event", collective) && field("parent", group), "{ended:?}");
        assert_eq!(events.leave(communicator, 99), []);
        assert!(events.open.is_empty() && events.lingering.is_empty());
    }

    #[test]
    fn what_waits_for_children_is_bounded() {
        let mut events = Events::default();
        let communicator = events.join(Vec::new());
        let busy = start(&mut events, communicator, 0, "busy", true, 0);
        assert_ne!(start(&mut events, communicator, busy, "child", false, 0), 0);
        assert_eq!(events.stop(busy, 1), []);
        for round in 0..MAX_LINGERING_EVENTS {
            let idle = start(&mut events, communicator, 0, &round.to_string(), true, 2);
            let ended = events.stop(idle, 3);
            let first = (round == MAX_LINGERING_EVENTS - 1).then_some(("0", 2, 3));
            assert_eq!(times(&ended), Vec::from_iter(first));
        }
        for _ in 0..2 * MAX_OPEN_EVENTS {
            start(&mut events, communicator, busy, "endless", true, 4);
        }
        assert_eq!((events.open.len(), start(&mut events, communicator, 0, "", false, 4)), (MAX_OPEN_EVENTS, 0));
        assert_eq!(events.leave_all(9).len(), MAX_OPEN_EVENTS);
        assert_eq!(start(&mut events, communicator, 0, "", false, 4), 0);
    }

    #[test]
    fn what_is_not_there_does_nothing() {
        let mut events = Events::default();
        assert_eq!((events.stop(7, 1), events.leave(7, 1)), (Vec::new(), Vec::new()));
        events.reached(7, "state", 1);
        let communicator = events.join(Vec::new());
        let orphan = start(&mut events, communicator, 12345, "orphan", false, 5);
        events.reached(orphan, "waits", 7);
        events.set(orphan, "bytes", "64".to_owned());
        let ended = events.stop(orphan, 3);
        assert_eq!(times(&ended), [("orphan", 5, 5)]);
        let fields: Vec<_> = ended[0].fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(fields, ["waits=2", "bytes=64", &format!("event={orphan}")]);
    }
}
