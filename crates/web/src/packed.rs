//! A timeline as bytes: the length of a header, the header (JSON: all that is small, and where columns are), columns.
//! Events are sorted by time here, and what names an event is renamed.

use serde::Serialize;

use crate::columns::{Column, Columns};
use crate::timeline::{EventId, Format, Lane, Message, Name, Process, Region, Timeline};

/// What the script must know to read the bytes.
const LAYOUT_VERSION: u32 = 1;

/// Times span no more than this, 13 days: what lies further from the middle one is drawn at the ends. All of them are
/// then exact numbers of JavaScript.
const TIME_SPAN_MAX: i64 = 1 << 50;

#[derive(Serialize)]
struct Header<'a> {
    version: u32,
    title: &'a str,
    /// The moment that time 0 of the columns is, in decimal: nanoseconds since the Unix epoch.
    origin: String,
    /// Whether `origin` is a time of day, and not the beginning of a simulation.
    dated: bool,
    clock: &'a str,
    clock_error: Option<u64>,
    notes: Vec<String>,
    names: &'a [Box<str>],
    processes: Vec<PackedProcess>,
    lanes: Vec<PackedLane>,
    regions: Vec<PackedRegion>,
    events: EventColumns,
    shapes: Vec<Vec<(&'static str, u8, Column)>>,
    messages: MessageColumns,
    accesses: AccessColumns,
}

#[derive(Serialize)]
struct PackedProcess {
    name: u32,
    pid: u32,
    host: u32,
    began: Option<i64>,
    ended: Option<i64>,
    outcome: u32,
}

#[derive(Serialize)]
struct PackedLane {
    process: u32,
    qpn: u32,
    kind: u32,
    peer: Option<u32>,
    peer_label: u32,
    link: u32,
}

#[derive(Serialize)]
struct PackedRegion {
    process: u32,
    /// In decimal: an address has 64 bits.
    address: String,
    length: u64,
    lkey: u32,
    rkey: u32,
    rights: u32,
    registered: Option<i64>,
    deregistered: Option<i64>,
}

/// Indices of others are one more than they are; 0 is none.
#[derive(Serialize)]
struct EventColumns {
    time: Column,
    lane: Column,
    duration: Column,
    process: Column,
    kind: Column,
    flags: Column,
    name: Column,
    text: Column,
    message: Column,
    partner: Column,
    shape: Column,
}

/// Times are one more than they are; 0 is unknown.
#[derive(Serialize)]
struct MessageColumns {
    lane: Column,
    wr_id: Column,
    queue: Column,
    opcode: Column,
    bytes: Column,
    status: Column,
    times: [Column; 6],
    partner: Column,
    first: Column,
    last: Column,
}

#[derive(Serialize)]
struct AccessColumns {
    event: Column,
    region: Column,
    offset: Column,
    length: Column,
    write: Column,
}

/// The times of a run, as the page counts them: from its first moment.
struct Times {
    first: i64,
    earliest: i64,
    latest: i64,
    clamped: bool,
}

impl Times {
    fn of(run: &Timeline) -> Self {
        let mut all: Vec<i64> = run.events.iter().map(|event| event.time).collect();
        all.extend(run.messages.iter().flat_map(|message| steps(message).into_iter().flatten()));
        all.extend(run.processes.iter().flat_map(|process| [process.began, process.ended]).flatten());
        if all.is_empty() {
            return Self { first: 0, earliest: 0, latest: 0, clamped: false };
        }
        let half = all.len() / 2;
        let middle = *all.select_nth_unstable(half).1;
        let earliest = middle.saturating_sub(TIME_SPAN_MAX / 2);
        let latest = middle.saturating_add(TIME_SPAN_MAX / 2);
        let clamped = all.iter().any(|time| !(earliest..=latest).contains(time));
        let first = all.iter().map(|time| *time.clamp(&earliest, &latest)).min().unwrap_or(0);
        Self { first, earliest, latest, clamped }
    }

    fn place(&self, time: i64) -> u64 {
        (time.clamp(self.earliest, self.latest) - self.first).max(0) as u64
    }

    fn optional(&self, time: Option<i64>) -> u64 {
        time.map_or(0, |time| self.place(time) + 1)
    }

    fn signed(&self, time: Option<i64>) -> Option<i64> {
        time.map(|time| self.place(time) as i64)
    }
}

const fn steps(message: &Message) -> [Option<i64>; 6] {
    [message.posted, message.sent, message.arrived, message.placed, message.completed, message.polled]
}

/// An index, one more than it is, where 0 is none; also none where there is no such thing.
fn index(id: Option<u32>, count: usize) -> u64 {
    id.filter(|id| (*id as usize) < count).map_or(0, |id| u64::from(id) + 1)
}

pub(crate) fn pack(run: &Timeline) -> Vec<u8> {
    let times = Times::of(run);
    let mut columns = Columns::default();
    let mut order: Vec<u32> = (0..run.events.len() as u32).collect();
    order.sort_by_key(|&event| times.place(run.events[event as usize].time));
    let mut places = vec![0_u32; order.len()];
    for (place, &event) in order.iter().enumerate() {
        places[event as usize] = place as u32;
    }
    let renamed = |event: Option<EventId>| event.and_then(|event| places.get(event.0 as usize).copied());

    let (events, shapes) = pack_events(run, &times, &order, &renamed, &mut columns);
    let messages = pack_messages(run, &times, &renamed, &mut columns);
    let accesses = pack_accesses(run, &renamed, &mut columns);
    let mut notes = run.notes.clone();
    if times.clamped {
        notes.push("Some times are days away from the others: a clock was set, or the recording is damaged. What happened then is \
             drawn at the ends.".into());
    }
    let names = run.names.texts().len() as u32;
    let name = |name: Name| if name.0 < names { name.0 } else { 0 };
    let header = Header {
        version: LAYOUT_VERSION,
        title: &run.title,
        origin: (i128::from(run.origin) + i128::from(times.first)).to_string(),
        dated: run.origin != 0,
        clock: &run.clock,
        clock_error: run.clock_error,
        notes,
        names: run.names.texts(),
        processes: run.processes.iter().map(|process| packed_process(process, &times, &name)).collect(),
        lanes: run.lanes.iter().map(|lane| packed_lane(lane, run, &name)).collect(),
        regions: run.regions.iter().map(|region| packed_region(region, run, &times, &name)).collect(),
        events,
        shapes,
        messages,
        accesses,
    };
    let header = serde_json::to_vec(&header).unwrap_or_default();
    let mut bytes = (header.len() as u32).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.append(&mut columns.bytes);
    bytes
}

fn packed_process(process: &Process, times: &Times, name: &dyn Fn(Name) -> u32) -> PackedProcess {
    PackedProcess {
        name: name(process.name),
        pid: process.pid,
        host: name(process.host),
        began: times.signed(process.began),
        ended: times.signed(process.ended),
        outcome: name(process.outcome),
    }
}

fn packed_lane(lane: &Lane, run: &Timeline, name: &dyn Fn(Name) -> u32) -> PackedLane {
    PackedLane {
        process: lane.process.0.min(run.processes.len().saturating_sub(1) as u32),
        qpn: lane.qpn,
        kind: name(lane.kind),
        peer: lane.peer.map(|peer| peer.0).filter(|peer| (*peer as usize) < run.lanes.len()),
        peer_label: name(lane.peer_label),
        link: name(lane.link),
    }
}

fn packed_region(region: &Region, run: &Timeline, times: &Times, name: &dyn Fn(Name) -> u32) -> PackedRegion {
    PackedRegion {
        process: region.process.0.min(run.processes.len().saturating_sub(1) as u32),
        address: region.address.to_string(),
        length: region.length,
        lkey: region.lkey,
        rkey: region.rkey,
        rights: name(region.rights),
        registered: times.signed(region.registered),
        deregistered: times.signed(region.deregistered),
    }
}

type PackedEvents = (EventColumns, Vec<Vec<(&'static str, u8, Column)>>);

fn pack_events(
    run: &Timeline,
    times: &Times,
    order: &[u32],
    renamed: &dyn Fn(Option<EventId>) -> Option<u32>,
    columns: &mut Columns,
) -> PackedEvents {
    let sorted = || order.iter().map(|&event| &run.events[event as usize]);
    let lanes: Vec<u64> = sorted().map(|event| index(event.lane.map(|lane| lane.0), run.lanes.len())).collect();
    let groups: Vec<u32> = lanes.iter().map(|lane| *lane as u32).collect();
    let shape_of: Vec<u32> = order.iter().map(|&event| run.fields[event as usize].0).collect();
    let names = run.names.texts().len() as u64;
    let processes = run.processes.len().saturating_sub(1) as u32;
    let mut grouped = |values: Vec<u64>| columns.add_grouped(&values, &groups);
    let rest = [
        grouped(sorted().map(|event| event.duration.min(TIME_SPAN_MAX as u64)).collect()),
        grouped(sorted().map(|event| u64::from(event.process.0.min(processes))).collect()),
        grouped(sorted().map(|event| event.kind as u64).collect()),
        grouped(sorted().map(|event| u64::from(event.flags)).collect()),
        grouped(
            sorted().map(|event| u64::from(event.name.0)).map(|name| if name < names { name } else { 0 }).collect(),
        ),
        grouped(
            sorted().map(|event| u64::from(event.text.0)).map(|name| if name < names { name } else { 0 }).collect(),
        ),
        grouped(sorted().map(|event| index(event.message.map(|message| message.0), run.messages.len())).collect()),
        grouped(sorted().map(|event| renamed(event.partner).map_or(0, |place| u64::from(place) + 1)).collect()),
        grouped(shape_of.iter().map(|shape| u64::from(*shape)).collect()),
    ];
    let [duration, process, kind, flags, name, text, message, partner, shape] = rest;
    let lane = columns.add(&lanes);
    let time = columns.add(&sorted().map(|event| times.place(event.time)).collect::<Vec<_>>());

    let mut members: Vec<Vec<u32>> = vec![Vec::new(); run.shapes.lists.len()];
    for (place, shape) in shape_of.iter().enumerate() {
        members[*shape as usize].push(place as u32);
    }
    let mut shapes = Vec::with_capacity(members.len());
    for (list, members) in run.shapes.lists.iter().zip(&members) {
        let groups: Vec<u32> = members.iter().map(|&place| groups[place as usize]).collect();
        let fields = list.iter().enumerate().map(|(field, &(name, format))| {
            let value = |&place: &u32| {
                let (_, begin) = run.fields[order[place as usize] as usize];
                let value = run.values[begin + field];
                if format == Format::Name && value >= names { 0 } else { value }
            };
            let values: Vec<u64> = members.iter().map(value).collect();
            (name, format as u8, columns.add_grouped(&values, &groups))
        });
        shapes.push(fields.collect());
    }
    (EventColumns { time, lane, duration, process, kind, flags, name, text, message, partner, shape }, shapes)
}

fn pack_messages(
    run: &Timeline,
    times: &Times,
    renamed: &dyn Fn(Option<EventId>) -> Option<u32>,
    columns: &mut Columns,
) -> MessageColumns {
    let all = &run.messages;
    let last_lane = run.lanes.len().saturating_sub(1) as u32;
    let groups: Vec<u32> = all.iter().map(|message| message.lane.0.min(last_lane)).collect();
    let names = run.names.texts().len() as u32;
    let mut grouped =
        |value: &dyn Fn(&Message) -> u64| columns.add_grouped(&all.iter().map(value).collect::<Vec<_>>(), &groups);
    let name = |name: Name| if name.0 < names { u64::from(name.0) } else { 0 };
    let event = |event: Option<EventId>| renamed(event).map_or(0, |place| u64::from(place) + 1);
    let wr_id = grouped(&|message| message.wr_id);
    let queue = grouped(&|message| message.queue as u64);
    let opcode = grouped(&|message| name(message.opcode));
    let bytes = grouped(&|message| message.bytes);
    let status = grouped(&|message| name(message.status));
    let times = [0, 1, 2, 3, 4, 5].map(|step: usize| grouped(&|message| times.optional(steps(message)[step])));
    let partner = grouped(&|message| index(message.partner.map(|partner| partner.0), all.len()));
    let first = grouped(&|message| event(message.first_packet));
    let last = grouped(&|message| event(message.last_packet));
    let lane = columns.add(&groups.iter().map(|lane| u64::from(*lane)).collect::<Vec<_>>());
    MessageColumns { lane, wr_id, queue, opcode, bytes, status, times, partner, first, last }
}

fn pack_accesses(
    run: &Timeline,
    renamed: &dyn Fn(Option<EventId>) -> Option<u32>,
    columns: &mut Columns,
) -> AccessColumns {
    let mut all: Vec<_> = run
        .accesses
        .iter()
        .filter(|access| (access.region.0 as usize) < run.regions.len())
        .filter_map(|access| Some((renamed(Some(access.event))?, access)))
        .collect();
    all.sort_by_key(|(event, _)| *event);
    let groups: Vec<u32> = all.iter().map(|(_, access)| access.region.0).collect();
    let mut grouped = |values: Vec<u64>| columns.add_grouped(&values, &groups);
    let offset = grouped(all.iter().map(|(_, access)| access.offset).collect());
    let length = grouped(all.iter().map(|(_, access)| access.length).collect());
    let write = grouped(all.iter().map(|(_, access)| u64::from(access.write)).collect());
    let event = columns.add(&all.iter().map(|(event, _)| u64::from(*event)).collect::<Vec<_>>());
    let region = columns.add(&groups.iter().map(|region| u64::from(*region)).collect::<Vec<_>>());
    AccessColumns { event, region, offset, length, write }
}
