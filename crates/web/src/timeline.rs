//! What happened in a run, ready to be drawn: processes, lanes (queue pairs), regions, messages and events on one clock.
//! A merged recording is turned into this; the page is written from it. It computes nothing: what belongs together (a
//! packet and its arrival, a message and its packets) is said by whoever fills it.
//!
//! Everything is named by its index in the order in which it was added. Events may be added in any order of time.

use std::collections::HashMap;

/// A text of a [`Timeline`], kept once: [`Names::add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub(crate) u32);

impl Name {
    /// No text.
    pub const NONE: Self = Self(0);
}

impl Default for Name {
    fn default() -> Self {
        Self::NONE
    }
}

macro_rules! indices {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
    )+};
}

indices! {
    /// The index of a [`Process`] of a [`Timeline`].
    ProcessId,
    /// The index of a [`Lane`] of a [`Timeline`].
    LaneId,
    /// The index of a [`Region`] of a [`Timeline`].
    RegionId,
    /// The index of a [`Message`] of a [`Timeline`].
    MessageId,
    /// The index of an [`Event`] of a [`Timeline`].
    EventId,
}

/// A run: everything that the page shows.
///
/// ```
/// use web::timeline::{Event, EventKind, Lane, Process, Timeline, Value};
///
/// let mut run = Timeline::new("ping-pong", 1_700_000_000_000_000_000);
/// let program = run.names.add("ibv_rc_pingpong");
/// let process = run.add_process(Process { name: program, pid: 71, ..Process::default() });
/// let lane = run.add_lane(Lane { qpn: 17, ..Lane::new(process) });
/// let opcode = run.names.add("SEND_ONLY");
/// let sent = Event { lane: Some(lane), name: opcode, ..Event::new(1_500, process, EventKind::PacketSent) };
/// run.add_event(sent, &[("psn", Value::Number(4)), ("bytes", Value::Number(64))]);
/// let mut html = Vec::new();
/// web::page(&run, &mut html).unwrap();
/// assert!(html.starts_with(b"<!doctype html>"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// What the page is called: the command that ran.
    pub title: String,
    /// The moment that time 0 is: nanoseconds since the Unix epoch, or 0 for a simulation.
    pub origin: u64,
    /// How the processes' clocks were aligned, a sentence for people.
    pub clock: String,
    /// How far apart the clocks may be, in nanoseconds, where that is known.
    pub clock_error: Option<u64>,
    /// What readers should know of the recording, a sentence each: a file that ends early, what was left out.
    pub notes: Vec<String>,
    /// All texts of the run.
    pub names: Names,
    pub(crate) processes: Vec<Process>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) regions: Vec<Region>,
    pub(crate) messages: Vec<Message>,
    pub(crate) events: Vec<Event>,
    pub(crate) accesses: Vec<Access>,
    pub(crate) shapes: Shapes,
    /// Values of the fields of all events, each event's in a row.
    pub(crate) values: Vec<u64>,
    /// Of each event: its shape, and where its values begin.
    pub(crate) fields: Vec<(u32, usize)>,
}

/// Texts, each kept once. They are data: a page shows them and never runs them.
#[derive(Clone, Debug)]
pub struct Names {
    texts: Vec<Box<str>>,
    places: HashMap<Box<str>, u32>,
}

/// A text is cut at so many characters: a program's name is a program's choice.
const NAME_LENGTH_MAX: usize = 400;

/// So many texts are kept; what comes later is `…`.
const NAMES_MAX: usize = 1 << 17;

impl Default for Names {
    fn default() -> Self {
        let mut names = Self { texts: Vec::new(), places: HashMap::new() };
        names.add("");
        names.add("…");
        names
    }
}

impl Names {
    /// The name of a text, which is kept if it is new.
    pub fn add(&mut self, text: &str) -> Name {
        let text = match text.char_indices().nth(NAME_LENGTH_MAX) {
            Some((end, _)) => &text[..end],
            None => text,
        };
        if let Some(&place) = self.places.get(text) {
            return Name(place);
        }
        if self.texts.len() >= NAMES_MAX {
            return Name(1);
        }
        let place = self.texts.len() as u32;
        self.texts.push(text.into());
        self.places.insert(text.into(), place);
        Name(place)
    }

    /// The text of a name.
    #[must_use]
    pub fn text(&self, name: Name) -> &str {
        self.texts.get(name.0 as usize).map_or("", |text| text)
    }

    pub(crate) fn texts(&self) -> &[Box<str>] {
        &self.texts
    }
}

/// A process that was recorded. Times are nanoseconds after [`Timeline::origin`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// The program.
    pub name: Name,
    /// Its number.
    pub pid: u32,
    /// The host that it ran on.
    pub host: Name,
    /// When it began to be recorded.
    pub began: Option<i64>,
    /// When its recording ends.
    pub ended: Option<i64>,
    /// How it ended, for people: "exited with 0", "killed by SIGKILL".
    pub outcome: Name,
}

/// A queue pair of a process.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// The process that has it.
    pub process: ProcessId,
    /// Its number.
    pub qpn: u32,
    /// `RC`, `UC`, `UD`, …
    pub kind: Name,
    /// The queue pair at its other end, if that was recorded, too.
    pub peer: Option<LaneId>,
    /// Its peer in words: an address and number.
    pub peer_label: Name,
    /// What moves its packets: `shared memory`, `UDP`.
    pub link: Name,
}

impl Lane {
    /// A lane of which nothing else is known.
    #[must_use]
    pub const fn new(process: ProcessId) -> Self {
        Self { process, qpn: 0, kind: Name::NONE, peer: None, peer_label: Name::NONE, link: Name::NONE }
    }
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The process that registered it.
    pub process: ProcessId,
    /// Its first address.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its local key.
    pub lkey: u32,
    /// Its remote key.
    pub rkey: u32,
    /// What may be done with it, for people.
    pub rights: Name,
    /// When it was registered, if that was seen.
    pub registered: Option<i64>,
    /// When it was deregistered, if that was seen.
    pub deregistered: Option<i64>,
}

/// Where a work request was posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    #[default]
    Send,
    /// The receive queue, or a shared one.
    Receive,
}

/// A work request and what became of it. Each time is nanoseconds after [`Timeline::origin`], where it is known.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The queue pair it was posted to.
    pub lane: LaneId,
    /// The program's name for it.
    pub wr_id: u64,
    /// Where it was posted.
    pub queue: Queue,
    /// What it asks for, as verbs spell it.
    pub opcode: Name,
    /// How many bytes.
    pub bytes: u64,
    /// Its completion's status, as verbs spell it; [`Name::NONE`] if it never completed.
    pub status: Name,
    /// When it was posted.
    pub posted: Option<i64>,
    /// When its first packet left.
    pub sent: Option<i64>,
    /// When its first packet arrived.
    pub arrived: Option<i64>,
    /// When its last byte was in the peer's memory.
    pub placed: Option<i64>,
    /// When its completion was put into the completion queue.
    pub completed: Option<i64>,
    /// When the program took the completion.
    pub polled: Option<i64>,
    /// The receive that a send went into, or the send that filled a receive.
    pub partner: Option<MessageId>,
    /// Its first packet.
    pub first_packet: Option<EventId>,
    /// Its last packet.
    pub last_packet: Option<EventId>,
}

impl Message {
    /// A work request of which nothing else is known.
    #[must_use]
    pub const fn new(lane: LaneId, wr_id: u64) -> Self {
        Self {
            lane,
            wr_id,
            queue: Queue::Send,
            opcode: Name::NONE,
            bytes: 0,
            status: Name::NONE,
            posted: None,
            sent: None,
            arrived: None,
            placed: None,
            completed: None,
            polled: None,
            partner: None,
            first_packet: None,
            last_packet: None,
        }
    }
}

/// What kind of thing happened: how it is drawn, and what filters choose by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventKind {
    /// The program called something; [`Event::duration`] is how long that took.
    Call = 0,
    /// A work request was posted.
    Post = 1,
    /// A queue pair, or a connection, changed its state.
    State = 2,
    /// A packet, or a train of them, was sent.
    PacketSent = 3,
    /// A packet, or a train of them, arrived.
    PacketReceived = 4,
    /// A packet arrived and went no further.
    PacketDropped = 5,
    /// The requester goes back and sends again, or a timer says so.
    Retry = 6,
    /// A request was refused, at either end.
    Nak = 7,
    /// A work request completed.
    Completion = 8,
    /// The program took completions.
    Poll = 9,
    /// An asynchronous event.
    Async = 10,
    /// A rule that was broken, or a failure explained.
    Finding = 11,
    /// A failure script struck.
    Injected = 12,
    /// The engine's thread, or a polling thread, did something; [`Event::duration`] is how long that took.
    Engine = 13,
    /// Bytes of a region were read or written without packets.
    Access = 14,
    /// Windows, rates, timers.
    Flow = 15,
    /// A range of another tool: a collective, a step of the application; [`Event::duration`] is how long it took.
    Span = 16,
    /// Anything else.
    Other = 17,
}

/// What else is true of an event, most of all of a packet. They are added up: `AGAIN | LOST`.
pub mod flags {
    /// These sequence numbers were sent before.
    pub const AGAIN: u8 = 1;
    /// It was sent and never arrived.
    pub const LOST: u8 = 2;
    /// It arrived twice.
    pub const DUPLICATE: u8 = 4;
    /// It refuses something: a NAK, or an RNR NAK.
    pub const NAK: u8 = 8;
    /// It is an acknowledgement, or the answer to a READ or an atomic operation.
    pub const ANSWER: u8 = 16;
    /// It is for the connection manager, or tells of congestion.
    pub const CONTROL: u8 = 32;
    /// It failed: a call that returned an error, a completion with an error, the state `ERR`, an event that tells of a
    /// failure.
    pub const ERROR: u8 = 64;
}

/// Something that happened at one moment of one process.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// When: nanoseconds after [`Timeline::origin`].
    pub time: i64,
    /// How long it took, in nanoseconds; 0 for a moment.
    pub duration: u64,
    /// The process where it happened.
    pub process: ProcessId,
    /// The queue pair, if it was at one.
    pub lane: Option<LaneId>,
    /// What kind of thing.
    pub kind: EventKind,
    /// A sum of [`flags`].
    pub flags: u8,
    /// What, in a word or two: the opcode of a packet, the name of a call, `RTR -> RTS`, the number of a rule.
    pub name: Name,
    /// What, in a sentence, where fields do not say it: a finding, why a packet was dropped.
    pub text: Name,
    /// The work request that it belongs to.
    pub message: Option<MessageId>,
    /// The same on the other side: the arrival of what was sent, the loss or drop of it, and back.
    pub partner: Option<EventId>,
}

impl Event {
    /// An event of which nothing else is known.
    #[must_use]
    pub const fn new(time: i64, process: ProcessId, kind: EventKind) -> Self {
        Self {
            time,
            duration: 0,
            process,
            lane: None,
            kind,
            flags: 0,
            name: Name::NONE,
            text: Name::NONE,
            message: None,
            partner: None,
        }
    }
}

/// What a field of an event holds, and with that how it is shown.
///
/// These names mean something to the page: `psn` (drawn at packets), `packets` (how many sequence numbers a train has),
/// `bytes`, `wr_id`, `status`, `dest_qp`, `rkey`, `address`, `length`, `thread`. Others are shown as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Shown in decimal.
    Number(u64),
    /// Shown in hexadecimal: addresses, keys.
    Hex(u64),
    /// A text.
    Name(Name),
    /// Yes or no.
    Flag(bool),
    /// Nanoseconds.
    Duration(u64),
}

/// The kinds of [`Value`], in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Format {
    Number,
    Hex,
    Name,
    Flag,
    Duration,
}

/// The fields that events have in common: names and formats, each list kept once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shapes {
    pub(crate) lists: Vec<Vec<(&'static str, Format)>>,
    places: HashMap<Vec<(&'static str, Format)>, u32>,
}

impl Shapes {
    fn add(&mut self, shape: &[(&'static str, Format)]) -> u32 {
        if let Some(&place) = self.places.get(shape) {
            return place;
        }
        let place = self.lists.len() as u32;
        self.lists.push(shape.to_vec());
        self.places.insert(shape.to_vec(), place);
        place
    }
}

/// Bytes of a region that an event read or wrote.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// What did it: an arrival, a call, a direct operation.
    pub event: EventId,
    /// The region.
    pub region: RegionId,
    /// First byte, from the beginning of the region.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
    /// Written; otherwise read.
    pub write: bool,
}

impl Timeline {
    /// An empty run. `origin` is the moment that time 0 is, in nanoseconds since the Unix epoch; 0 for a simulation.
    #[must_use]
    pub fn new(title: &str, origin: u64) -> Self {
        Self { title: title.to_owned(), origin, ..Self::default() }
    }

    /// Adds a process.
    pub fn add_process(&mut self, process: Process) -> ProcessId {
        self.processes.push(process);
        ProcessId(self.processes.len() as u32 - 1)
    }

    /// Adds a lane.
    pub fn add_lane(&mut self, lane: Lane) -> LaneId {
        self.lanes.push(lane);
        LaneId(self.lanes.len() as u32 - 1)
    }

    /// Adds a region.
    pub fn add_region(&mut self, region: Region) -> RegionId {
        self.regions.push(region);
        RegionId(self.regions.len() as u32 - 1)
    }

    /// Adds a work request.
    pub fn add_message(&mut self, message: Message) -> MessageId {
        self.messages.push(message);
        MessageId(self.messages.len() as u32 - 1)
    }

    /// Adds an event with its fields, in the order in which they are shown.
    pub fn add_event(&mut self, event: Event, fields: &[(&'static str, Value)]) -> EventId {
        let mut shape = Vec::with_capacity(fields.len());
        let begin = self.values.len();
        for &(name, value) in fields {
            let (format, value) = match value {
                Value::Number(value) => (Format::Number, value),
                Value::Hex(value) => (Format::Hex, value),
                Value::Name(name) => (Format::Name, u64::from(name.0)),
                Value::Flag(flag) => (Format::Flag, u64::from(flag)),
                Value::Duration(duration) => (Format::Duration, duration),
            };
            shape.push((name, format));
            self.values.push(value);
        }
        let shape = self.shapes.add(&shape);
        self.fields.push((shape, begin));
        self.events.push(event);
        EventId(self.events.len() as u32 - 1)
    }

    /// Adds an access to memory.
    pub fn add_access(&mut self, access: Access) {
        self.accesses.push(access);
    }

    /// A process, to change what became known later.
    pub fn process_mut(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.processes.get_mut(id.0 as usize)
    }

    /// A lane, to change what became known later.
    pub fn lane_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.lanes.get_mut(id.0 as usize)
    }

    /// A region, to change what became known later.
    pub fn region_mut(&mut self, id: RegionId) -> Option<&mut Region> {
        self.regions.get_mut(id.0 as usize)
    }

    /// A work request, to change what became known later.
    pub fn message_mut(&mut self, id: MessageId) -> Option<&mut Message> {
        self.messages.get_mut(id.0 as usize)
    }

    /// An event, to change what became known later.
    pub fn event_mut(&mut self, id: EventId) -> Option<&mut Event> {
        self.events.get_mut(id.0 as usize)
    }

    /// The processes.
    #[must_use]
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// The lanes.
    #[must_use]
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// The regions.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The work requests.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The events, in the order in which they were added.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The accesses to memory.
    #[must_use]
    pub fn accesses(&self) -> &[Access] {
        &self.accesses
    }

    /// The fields of an event.
    pub fn fields(&self, id: EventId) -> impl Iterator<Item = (&'static str, Value)> + '_ {
        let (shape, begin) = self.fields.get(id.0 as usize).copied().unwrap_or((u32::MAX, 0));
        let shape = self.shapes.lists.get(shape as usize).map_or(&[][..], Vec::as_slice);
        shape.iter().zip(self.values.get(begin..).unwrap_or_default()).map(|(&(name, format), &value)| {
            let value = match format {
                Format::Number => Value::Number(value),
                Format::Hex => Value::Hex(value),
                Format::Name => Value::Name(Name(value as u32)),
                Format::Flag => Value::Flag(value != 0),
                Format::Duration => Value::Duration(value),
            };
            (name, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_between_characters_and_too_many_are_one() {
        let mut names = Names::default();
        let long = names.add(&"é".repeat(5_000));
        assert_eq!(names.text(long).chars().count(), NAME_LENGTH_MAX);
        assert_eq!(names.add(&"é".repeat(6_000)), long);
        for number in 0..NAMES_MAX {
            names.add(&number.to_string());
        }
        assert_eq!(names.texts().len(), NAMES_MAX);
        let late = names.add("one more");
        assert_eq!(names.text(late), "…");
        assert_eq!(names.text(Name(u32::MAX)), "");
    }

    #[test]
    fn fields_are_those_that_were_given() {
        let mut run = Timeline::new("fields", 0);
        let process = run.add_process(Process::default());
        let given = [("psn", Value::Number(7)), ("rkey", Value::Hex(9)), ("again", Value::Flag(true))];
        run.add_event(Event::new(1, process, EventKind::Other), &[]);
        let event = run.add_event(Event::new(1, process, EventKind::Other), &given);
        run.add_event(Event::new(1, process, EventKind::Other), &given);
        assert_eq!(run.fields(event).collect::<Vec<_>>(), given);
        assert_eq!((run.fields(EventId(0)).count(), run.fields(EventId(99)).count()), (0, 0));
        assert_eq!(run.shapes.lists.len(), 2);
    }
}
