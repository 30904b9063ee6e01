//! Turns recordings into a timeline: what happened at each queue pair, which packet is which on the other side, and what
//! became of each work request. Files are read once, one after the other; then clocks are aligned and sides are joined.

use super::clocks::{Alignment, Crossings};
use super::join::{Directions, Packet};
use super::source::Source;
use super::work::LaneWork;
use crate::exit::Failure;
use recording::{Entry, FileHeader};
use serde_json::Value as Json;
use std::collections::{BTreeMap, HashMap};
use trace::{Call, DropReason, Event, Kind, Value as Argument};
use web::timeline::{
    Access, Event as Drawn, EventId, EventKind, Lane, LaneId, Message, MessageId, Name, Process, ProcessId, Queue,
    Region, RegionId, Timeline, Value, flags,
};
use wire::{Headers, Key, Operation, Psn, Qpn, Syndrome};

/// So many entries are shown; the rest of a longer run is left out, and said to be.
const MAX_ENTRIES: u64 = 8_000_000;

/// The queue pair of connection management.
const GSI_QPN: u32 = 1;

/// A field of an event, for a timeline.
type Field = (&'static str, Value);

/// What is known of a process while it is read.
struct ProcessState {
    id: ProcessId,
    /// What is added to times of its recording, before clocks are aligned.
    ahead: i128,
    regions: HashMap<u32, RegionId>,
    /// Receives of shared receive queues, by queue and name.
    shared: HashMap<(u32, u64), Vec<MessageId>>,
    first: Option<i64>,
    last: Option<i64>,
    ended: bool,
}

/// Fills a timeline.
pub struct Filler {
    run: Timeline,
    processes: Vec<ProcessState>,
    lanes: HashMap<(u32, u32), LaneId>,
    /// In the order of lanes.
    work: Vec<LaneWork>,
    /// Pieces of receives, for where what came was put.
    pieces: HashMap<MessageId, (u64, Key)>,
    directions: Directions,
    origin: i128,
    entries: u64,
    same_host: bool,
    /// All are of one simulation.
    simulated: bool,
}

/// Reads all of them.
pub fn timeline(mut sources: Vec<Source>, title: &str) -> Result<Timeline, Failure> {
    // The first entry of each says how far its clock is behind.
    let mut firsts = Vec::new();
    for source in &mut sources {
        firsts.push(source.next_entry()?);
    }
    let boots: Vec<&str> = sources.iter().map(|source| source.header().fact(FileHeader::BOOT)).collect();
    let same_host = boots.iter().all(|boot| !boot.is_empty() && *boot == boots[0]);
    let simulated = sources.iter().all(|source| source.is_simulated());
    let clock = |source: &Source| match source.ahead() {
        _ if simulated => 0,
        Some((monotonic, _)) if same_host => monotonic,
        Some((_, wall)) => wall,
        None => 0,
    };
    let begins = sources
        .iter()
        .zip(&firsts)
        .filter_map(|(source, first)| Some(clock(source) + i128::from(first.as_ref()?.at())));
    let origin = begins.min().unwrap_or(0);
    let wall = sources.first().and_then(Source::ahead).map_or(0, |(monotonic, wall)| match same_host {
        true => origin - monotonic + wall,
        false => origin,
    });
    let wall = if simulated { 0 } else { u64::try_from(wall).unwrap_or(0) };
    let mut filler = Filler {
        run: Timeline::new(title, wall),
        processes: Vec::new(),
        lanes: HashMap::new(),
        work: Vec::new(),
        pieces: HashMap::new(),
        directions: Directions::new(simulated),
        origin,
        entries: 0,
        same_host,
        simulated,
    };
    for (mut source, first) in sources.into_iter().zip(firsts) {
        let ahead = clock(&source);
        filler.read(&mut source, first, ahead)?;
    }
    Ok(filler.finish())
}

impl Filler {
    fn read(&mut self, source: &mut Source, first: Option<Entry>, ahead: i128) -> Result<(), Failure> {
        let header = source.header();
        let name = match header.fact(FileHeader::PROGRAM) {
            "" => "process",
            name => name,
        };
        let process = Process {
            name: self.run.names.add(name),
            pid: header.fact(FileHeader::PROCESS).parse().unwrap_or(0),
            host: self.run.names.add(header.fact(FileHeader::HOST)),
            ..Process::default()
        };
        let id = self.run.add_process(process);
        let (regions, shared) = (HashMap::new(), HashMap::new());
        self.processes.push(ProcessState { id, ahead, regions, shared, first: None, last: None, ended: false });
        let place = self.processes.len() - 1;
        let mut next = first;
        while let Some(entry) = next {
            if self.entries >= MAX_ENTRIES {
                self.run.notes.push(format!("More than {MAX_ENTRIES} events: what follows is left out."));
                break;
            }
            self.entries += 1;
            self.see(place, entry);
            next = source.next_entry()?;
        }
        self.run.notes.extend(source.notes());
        let ProcessState { first, last, ended, .. } = self.processes[place];
        let outcome = match ended {
            true => "ended",
            false => "its recording ends without the end of the program: it was killed, crashed, or still runs",
        };
        let outcome = self.run.names.add(outcome);
        if let Some(process) = self.run.process_mut(id) {
            (process.began, process.ended, process.outcome) = (first, last, outcome);
        }
        Ok(())
    }

    fn see(&mut self, place: usize, entry: Entry) {
        let state = &mut self.processes[place];
        let time = i128::from(entry.at()) + state.ahead - self.origin;
        let time = i64::try_from(time).unwrap_or(if time < 0 { i64::MIN / 4 } else { i64::MAX / 4 });
        let time = time.clamp(i64::MIN / 4, i64::MAX / 4);
        state.first = Some(state.first.map_or(time, |first| first.min(time)));
        state.last = Some(state.last.map_or(time, |last| last.max(time)));
        let id = state.id;
        match entry {
            Entry::Event(event) => self.event(place, time, &event),
            Entry::Finding { json, .. } => self.finding(id, time, &json),
            Entry::Span { duration, thread, tool, name, fields, .. } => {
                let name = self.run.names.add(&format!("{tool}: {name}"));
                let text = fields.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
                let text = self.run.names.add(&text);
                let drawn = Drawn { duration, name, text, ..Drawn::new(time, id, EventKind::Span) };
                let field = |wanted: &str| fields.iter().find(|(name, _)| name == wanted)?.1.parse().ok();
                let mut numbers = vec![("thread", Value::Number(thread.into()))];
                let work = ["qpn", "wr_id"].into_iter();
                numbers.extend(work.filter_map(|name| Some((name, Value::Number(field(name)?)))));
                self.run.add_event(drawn, &numbers);
            }
            _ => {}
        }
    }

    fn finding(&mut self, process: ProcessId, time: i64, json: &str) {
        let Ok(finding) = serde_json::from_str::<Json>(json) else { return };
        let word = |name: &str| finding.get(name).and_then(Json::as_str).unwrap_or_default();
        let sentences = ["what", "cause", "advice"].map(word);
        let text = sentences.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
        let name = self.run.names.add(word("rule"));
        let (text, severity) = (self.run.names.add(&text), self.run.names.add(word("severity")));
        let qpn = finding.pointer("/connection/local").and_then(Json::as_u64).and_then(|qpn| u32::try_from(qpn).ok());
        let lane = qpn.and_then(|qpn| self.lanes.get(&(process.0, qpn)).copied());
        let flags = if word("severity") == "error" { flags::ERROR } else { 0 };
        let drawn = Drawn { lane, name, text, flags, ..Drawn::new(time, process, EventKind::Finding) };
        self.run.add_event(drawn, &[("severity", Value::Name(severity))]);
    }

    fn lane(&mut self, process: ProcessId, qpn: Qpn) -> LaneId {
        let (run, work) = (&mut self.run, &mut self.work);
        *self.lanes.entry((process.0, qpn.value())).or_insert_with(|| {
            work.push(LaneWork::default());
            run.add_lane(Lane { qpn: qpn.value(), ..Lane::new(process) })
        })
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind")]
    fn event(&mut self, place: usize, time: i64, event: &Event) {
        let process = self.processes[place].id;
        let lane = event.qpn.map(|qpn| self.lane(process, qpn));
        let at = |kind| Drawn { lane, ..Drawn::new(time, process, kind) };
        match &event.kind {
            Kind::Called { thread, call } => self.call(place, at(EventKind::Call), *thread, call),
            Kind::PacketSent { headers, payload_len, packets, wr_id, retransmit } => {
                let Some(lane) = lane else { return };
                let message = self.work[lane.0 as usize].sends_packet(headers, *packets, *wr_id, *retransmit);
                let again = if *retransmit { flags::AGAIN } else { 0 };
                let flags = flags_of(headers) | again;
                let name = self.run.names.add(headers.bth.opcode.name());
                let drawn = Drawn { flags, name, message, ..at(EventKind::PacketSent) };
                let mut fields = fields_of(headers, *payload_len, *packets);
                fields.extend(wr_id.map(|wr_id| ("wr_id", Value::Number(wr_id))));
                let id = self.run.add_event(drawn, &fields);
                if let Some(message) = message.and_then(|message| self.run.message_mut(message)) {
                    message.sent.get_or_insert(time);
                    // A call's moment may be read after that of its packets, and the order of the events is right.
                    message.posted = message.posted.map(|posted| posted.min(time));
                    message.first_packet.get_or_insert(id);
                    message.last_packet = Some(id);
                }
                self.directions.sent(lane, Packet::new(id, time, headers, *packets));
            }
            Kind::PacketReceived { headers, payload_len, packets } => {
                let Some(lane) = lane else { return };
                let message = self.work[lane.0 as usize].receives_answer(headers);
                let name = self.run.names.add(headers.bth.opcode.name());
                let flags = flags_of(headers);
                let drawn = Drawn { flags, name, message, ..at(EventKind::PacketReceived) };
                let id = self.run.add_event(drawn, &fields_of(headers, *payload_len, *packets));
                self.reaches_memory(place, id, headers);
                self.directions.received(lane, Packet::new(id, time, headers, *packets));
            }
            Kind::PacketDropped { headers, reason } => {
                let text = self.run.names.add(reason.sentence());
                let on_its_way = [DropReason::RandomLoss, DropReason::PortDown, DropReason::Overflow];
                let is_lost = self.simulated && on_its_way.contains(reason);
                let name = match headers {
                    Some(headers) => headers.bth.opcode.name(),
                    None => "packet",
                };
                let name = self.run.names.add(name);
                let flags = headers.as_ref().map_or(0, flags_of);
                let reason = self.run.names.add(reason.name());
                let mut fields = vec![("reason", Value::Name(reason))];
                fields.extend(headers.iter().flat_map(|headers| fields_of(headers, 0, 1)));
                // What a fault took was not yet at its queue pair; the headers say which that is.
                let known = |headers: &Headers| self.lanes.get(&(process.0, headers.bth.dest_qpn.value())).copied();
                let lane = lane.or_else(|| headers.as_ref().and_then(known));
                let drawn = Drawn { flags, name, text, lane, ..at(EventKind::PacketDropped) };
                let id = self.run.add_event(drawn, &fields);
                if let (Some(lane), Some(headers)) = (lane, headers) {
                    self.directions.dropped(lane, Packet::new(id, time, headers, 1), is_lost);
                }
            }
            Kind::WorkPosted { wr_id, queue, opcode, bytes } => {
                let Some(lane) = lane else { return };
                // The call has told of it, but where the library posted for itself.
                if !self.work[lane.0 as usize].accepts(*wr_id, *queue == trace::Queue::Send) {
                    let queue = if *queue == trace::Queue::Send { Queue::Send } else { Queue::Receive };
                    let (opcode, event) = (self.run.names.add(opcode), at(EventKind::Post));
                    let message =
                        Message { queue, opcode, bytes: *bytes, posted: Some(time), ..Message::new(lane, *wr_id) };
                    let message = self.run.add_message(message);
                    self.work[lane.0 as usize].posts(*wr_id, queue, true, message);
                    let fields = [("wr_id", Value::Number(*wr_id)), ("bytes", Value::Number(*bytes))];
                    self.run.add_event(Drawn { name: opcode, message: Some(message), ..event }, &fields);
                }
            }
            Kind::PostRefused { wr_id, queue, reason } => {
                let (name, text) = (self.run.names.add("refused"), self.run.names.add(reason));
                let is_send = *queue == trace::Queue::Send;
                let message = lane.and_then(|lane| self.work[lane.0 as usize].refused(*wr_id, is_send));
                if let Some(message) = message.and_then(|message| self.run.message_mut(message)) {
                    message.status = text;
                }
                let drawn = Drawn { flags: flags::ERROR, name, text, message, ..at(EventKind::Post) };
                self.run.add_event(drawn, &[("wr_id", Value::Number(*wr_id))]);
            }
            Kind::Completed { wr_id, queue, status, opcode, bytes, failure } => {
                let is_success = status.ends_with("SUCCESS");
                let message = lane.and_then(|lane| {
                    let shared = &mut self.processes[place].shared;
                    self.work[lane.0 as usize].completes(*wr_id, *queue, is_success, shared)
                });
                let (status, name) = (self.run.names.add(status), self.run.names.add(opcode));
                let text = failure.map_or(Name::NONE, |failure| self.run.names.add(&failure.to_string()));
                if let Some(message) = message.and_then(|message| self.run.message_mut(message)) {
                    (message.completed, message.status) = (Some(time), status);
                    if message.queue == Queue::Receive {
                        message.bytes = *bytes;
                        // Of a shared receive queue it is known now who took it.
                        message.lane = lane.unwrap_or(message.lane);
                    }
                }
                let flags = if is_success { 0 } else { flags::ERROR };
                let fields = [
                    ("wr_id", Value::Number(*wr_id)),
                    ("status", Value::Name(status)),
                    ("bytes", Value::Number(*bytes)),
                ];
                let drawn = Drawn { flags, name, text, message, ..at(EventKind::Completion) };
                let id = self.run.add_event(drawn, &fields);
                if let Some((address, key)) = message.and_then(|message| self.pieces.get(&message).copied())
                    && is_success
                    && *bytes > 0
                {
                    self.access(place, id, key.of_region(), address, *bytes, true);
                }
            }
            Kind::MovedDirectly { wr_id, opcode, dest_qpn, key, address, bytes, by } => {
                let message = lane.and_then(|lane| self.work[lane.0 as usize].sends_directly());
                if let Some(message) = message.and_then(|message| self.run.message_mut(message)) {
                    (message.sent, message.arrived, message.placed) = (Some(time), Some(time), Some(time));
                }
                let (name, by) = (self.run.names.add(&format!("{opcode} without packets")), self.run.names.add(by));
                let fields = [
                    ("wr_id", Value::Number(*wr_id)),
                    ("bytes", Value::Number(*bytes)),
                    ("address", Value::Hex(*address)),
                    ("rkey", Value::Hex(key.value().into())),
                    ("dest_qp", Value::Number(dest_qpn.value().into())),
                    ("by", Value::Name(by)),
                ];
                let id = self.run.add_event(Drawn { name, message, ..at(EventKind::Access) }, &fields);
                self.directions.moved(id, *dest_qpn, *key, *address, *bytes, opcode.contains("WRITE"));
            }
            Kind::StateChanged { from, to, cause } => {
                let name = self.run.names.add(&format!("{from} -> {to}"));
                let text = self.run.names.add(&cause.to_string());
                let flags = if ["ERR", "SQE"].contains(to) { flags::ERROR } else { 0 };
                self.run.add_event(Drawn { flags, name, text, ..at(EventKind::State) }, &[]);
            }
            Kind::CmTransition { local_comm_id, from, to, message } => {
                let name = self.run.names.add(&format!("CM {from} -> {to}"));
                let text = message.map_or(Name::NONE, |message| self.run.names.add(message));
                let fields = [("comm_id", Value::Hex((*local_comm_id).into()))];
                self.run.add_event(Drawn { name, text, ..at(EventKind::State) }, &fields);
            }
            Kind::Injected { script, line, what, ends, missed } => {
                let name = self.run.names.add(what.as_str());
                let script = self.run.names.add(script.as_str());
                let fields = [
                    ("script", Value::Name(script)),
                    ("line", Value::Number((*line).into())),
                    ("ends", Value::Flag(*ends)),
                    ("missed", Value::Flag(*missed)),
                ];
                self.run.add_event(Drawn { name, ..at(EventKind::Injected) }, &fields);
            }
            Kind::EngineWoke { reason } => {
                let name = self.run.names.add(&format!("woken by {reason}"));
                self.run.add_event(Drawn { name, ..at(EventKind::Engine) }, &[]);
            }
            other => {
                let (kind, flags) = match other {
                    Kind::Retry { .. } | Kind::TimerFired { .. } => (EventKind::Retry, 0),
                    Kind::NakSent { .. } | Kind::NakReceived { .. } => (EventKind::Nak, 0),
                    Kind::AccessRefused { .. } => (EventKind::Nak, flags::ERROR),
                    Kind::AsyncEvent { name } => {
                        let fails = ["FATAL", "_ERR", "ERROR"].iter().any(|word| name.contains(word));
                        (EventKind::Async, if fails { flags::ERROR } else { 0 })
                    }
                    Kind::CqOverflowed { .. } => (EventKind::Async, flags::ERROR),
                    Kind::TimerSet { .. } | Kind::TimerCleared { .. } | Kind::WindowChanged { .. } => {
                        (EventKind::Flow, 0)
                    }
                    Kind::RateChanged { .. } => (EventKind::Flow, 0),
                    _ => (EventKind::Other, 0),
                };
                let name = self.run.names.add(match other.detail() {
                    Some(detail) if kind == EventKind::Async => detail,
                    _ => other.name(),
                });
                // Of timers the sentence has a time, and would be another one each time.
                let text = match other {
                    Kind::TimerSet { timer, .. } | Kind::TimerFired { timer, .. } | Kind::TimerCleared { timer } => {
                        self.run.names.add(timer.sentence())
                    }
                    _ => self.run.names.add(&other.to_string()),
                };
                self.run.add_event(Drawn { flags, name, text, ..at(kind) }, &[]);
            }
        }
    }

    fn call(&mut self, place: usize, at: Drawn, thread: u32, call: &Call) {
        let (process, time) = (at.process, at.time);
        let mut fields: Vec<Field> = vec![("thread", Value::Number(thread.into()))];
        call.each_field(|name, value| {
            let value = match value {
                Argument::Number(number) if name.contains("key") || name.contains("address") => Value::Hex(number),
                Argument::Number(number) => Value::Number(number),
                Argument::Signed(number) => Value::Name(self.run.names.add(&number.to_string())),
                Argument::Flag(flag) => Value::Flag(flag),
                Argument::Text(text) => Value::Name(self.run.names.add(text)),
                Argument::Access(access) => Value::Name(self.run.names.add(&access.to_string())),
                Argument::Bytes(bytes) => Value::Name(self.run.names.add(&wire::Gid::new(*bytes).to_string())),
                Argument::Pieces(pieces) => {
                    if let Some(piece) = pieces.kept().first() {
                        fields.push(("address", Value::Hex(piece.address)));
                        fields.push(("lkey", Value::Hex(piece.key.value().into())));
                    }
                    fields.push(("pieces", Value::Number(pieces.count.into())));
                    return fields.push(("bytes", Value::Number(pieces.bytes)));
                }
            };
            fields.push((name, value));
        });
        let name = self.run.names.add(call.name());
        let mut drawn = Drawn { name, ..at };
        match *call {
            Call::PostSend { wr_id, opcode, signaled, pieces, .. } => {
                let Some(lane) = at.lane else { return };
                let opcode = self.run.names.add(opcode);
                let message = Message { opcode, bytes: pieces.bytes, posted: Some(time), ..Message::new(lane, wr_id) };
                let message = self.run.add_message(message);
                self.work[lane.0 as usize].posts(wr_id, Queue::Send, signaled, message);
                drawn = Drawn { kind: EventKind::Post, message: Some(message), ..drawn };
            }
            Call::PostReceive { wr_id, srq, pieces, .. } => {
                let lane = at.lane.unwrap_or_else(|| self.lane(process, Qpn::new(srq.map_or(0, |srq| srq.value()))));
                let opcode = self.run.names.add("RECV");
                let (queue, bytes) = (Queue::Receive, pieces.bytes);
                let message = Message { queue, opcode, bytes, posted: Some(time), ..Message::new(lane, wr_id) };
                let message = self.run.add_message(message);
                match srq {
                    Some(srq) => {
                        let waiting = self.processes[place].shared.entry((srq.value(), wr_id)).or_default();
                        waiting.insert(0, message);
                        self.work[lane.0 as usize].srq = Some(srq.value());
                    }
                    None => self.work[lane.0 as usize].posts(wr_id, queue, true, message),
                }
                if let Some(piece) = pieces.kept().first() {
                    self.pieces.insert(message, (piece.address, piece.key));
                }
                drawn = Drawn { kind: EventKind::Post, message: Some(message), ..drawn };
            }
            Call::Polled { wr_id, .. } => {
                let message = at.lane.and_then(|lane| self.work[lane.0 as usize].polled(wr_id));
                if let Some(message) = message.and_then(|message| self.run.message_mut(message)) {
                    message.polled = Some(time);
                }
                drawn = Drawn { kind: EventKind::Poll, message, ..drawn };
            }
            Call::Poll { .. } => drawn.kind = EventKind::Poll,
            Call::CreateQp { kind, signals_all, srq, .. } => {
                if let Some(lane) = at.lane {
                    let kind = self.run.names.add(kind);
                    let work = &mut self.work[lane.0 as usize];
                    *work = LaneWork::new(signals_all, srq.map(|srq| srq.value()));
                    self.run.lane_mut(lane).into_iter().for_each(|lane| lane.kind = kind);
                }
            }
            Call::ModifyQp { dest_qpn: Some(dest), dgid, .. } => {
                if let Some(lane) = at.lane {
                    self.directions.connects(lane, dest);
                    let place = dgid.map_or_else(String::new, |dgid| wire::Gid::new(dgid).to_string());
                    let label = self.run.names.add(&format!("QP {dest} {place}"));
                    self.run.lane_mut(lane).into_iter().for_each(|lane| lane.peer_label = label);
                }
            }
            Call::RegisterMemory { key, address, length, access, .. }
            | Call::ReregisterMemory { key, address, length, access, .. } => {
                if let Call::ReregisterMemory { old_key, .. } = *call {
                    self.forgets_region(place, old_key, time);
                }
                let region = Region {
                    process,
                    address,
                    length,
                    lkey: key.local().value(),
                    rkey: key.value(),
                    rights: self.run.names.add(&access.to_string()),
                    registered: Some(time),
                    deregistered: None,
                };
                let region = self.run.add_region(region);
                self.processes[place].regions.insert(key.value(), region);
            }
            Call::DeregisterMemory { key } => self.forgets_region(place, key, time),
            Call::Refused { function, .. } => {
                drawn.flags = flags::ERROR;
                drawn.name = self.run.names.add(function);
            }
            Call::Exit {} => self.processes[place].ended = true,
            _ => {}
        }
        self.run.add_event(drawn, &fields);
    }

    fn forgets_region(&mut self, place: usize, key: Key, time: i64) {
        if let Some(region) = self.processes[place].regions.remove(&key.value()) {
            self.run.region_mut(region).into_iter().for_each(|region| region.deregistered = Some(time));
        }
    }

    /// A request of a peer names memory of this process.
    fn reaches_memory(&mut self, place: usize, event: EventId, headers: &Headers) {
        let writes = headers.bth.opcode.operation() != Operation::ReadRequest;
        if let Some(reth) = headers.reth {
            self.access(place, event, reth.rkey, reth.va, reth.len.into(), writes);
        }
        if let Some(atomic) = headers.atomic {
            self.access(place, event, atomic.rkey, atomic.va, 8, true);
        }
    }

    fn access(&mut self, place: usize, event: EventId, key: Key, address: u64, length: u64, write: bool) {
        let Some(region) = self.processes[place].regions.get(&key.value()).copied() else { return };
        let Some(facts) = self.run.regions().get(region.0 as usize) else { return };
        let Some(offset) = address.checked_sub(facts.address).filter(|offset| *offset < facts.length) else { return };
        let length = length.min(facts.length - offset);
        self.run.add_access(Access { event, region, offset, length, write });
    }

    /// Joins what processes know of each other.
    fn finish(mut self) -> Timeline {
        let lanes: Vec<(u32, u32)> = self.run.lanes().iter().map(|lane| (lane.process.0, lane.qpn)).collect();
        let pairs = self.directions.pairs(&lanes);
        for (lane, peer) in &pairs {
            self.run.lane_mut(*lane).into_iter().for_each(|lane| lane.peer = Some(*peer));
        }
        let alignment = self.alignment(&lanes);
        self.shift(&alignment);
        let mut arrived: BTreeMap<EventId, EventId> = BTreeMap::new();
        for link in self.directions.links(&lanes, &alignment.offsets, false) {
            self.joined(&link, &mut arrived);
        }
        if !self.simulated {
            self.mark_lost(&arrived, &lanes);
        }
        self.place_moves(&lanes);
        self.join_receives();
        (self.run.clock, self.run.clock_error) = match self.simulated {
            true => ("Times are those of the simulation's clock, which all hosts have.".to_owned(), Some(0)),
            false => (alignment.told(self.same_host), alignment.error),
        };
        self.run
    }

    /// How clocks must be set.
    fn alignment(&self, lanes: &[(u32, u32)]) -> Alignment {
        let no_offsets = vec![0; self.processes.len()];
        let mut crossings = Crossings::default();
        if !self.simulated {
            // By the clocks as they are.
            let process_of = |lane: LaneId| lanes[lane.0 as usize].0 as usize;
            for link in self.directions.links(lanes, &no_offsets, true) {
                let (from, to) = (process_of(link.from), process_of(link.to));
                crossings.add((from, link.sent_at), (to, link.received_at));
            }
        }
        crossings.align(self.processes.len())
    }

    /// Sets the clocks.
    fn shift(&mut self, alignment: &Alignment) {
        let offset = |process: ProcessId| alignment.offsets.get(process.0 as usize).copied().unwrap_or(0);
        if alignment.offsets.iter().all(|offset| *offset == 0) {
            return;
        }
        for number in 0..self.run.events().len() as u32 {
            if let Some(event) = self.run.event_mut(EventId(number)) {
                event.time = event.time.saturating_add(offset(event.process));
            }
        }
        for number in 0..self.run.messages().len() as u32 {
            let lane = self.run.messages()[number as usize].lane;
            let by = offset(self.run.lanes()[lane.0 as usize].process);
            if let Some(message) = self.run.message_mut(MessageId(number)) {
                let Message { posted, sent, arrived, placed, completed, polled, .. } = message;
                for time in [posted, sent, arrived, placed, completed, polled].into_iter().flatten() {
                    *time = time.saturating_add(by);
                }
            }
        }
        for number in 0..self.run.regions().len() as u32 {
            if let Some(region) = self.run.region_mut(RegionId(number)) {
                let by = offset(region.process);
                let Region { registered, deregistered, .. } = region;
                for time in [registered, deregistered].into_iter().flatten() {
                    *time = time.saturating_add(by);
                }
            }
        }
        for number in 0..self.run.processes().len() as u32 {
            let by = offset(ProcessId(number));
            if let Some(process) = self.run.process_mut(ProcessId(number)) {
                for time in [&mut process.began, &mut process.ended].into_iter().flatten() {
                    *time = time.saturating_add(by);
                }
            }
        }
    }

    /// A packet arrived, or was dropped where it arrived.
    fn joined(&mut self, link: &super::join::Link, arrived: &mut BTreeMap<EventId, EventId>) {
        let again = arrived.contains_key(&link.sent);
        if !again || !link.is_drop {
            arrived.entry(link.sent).or_insert(link.received);
        }
        let message = self.run.events().get(link.sent.0 as usize).and_then(|event| event.message);
        let message = if link.is_answer { None } else { message };
        let time = self.run.events().get(link.received.0 as usize).map_or(0, |event| event.time);
        if let Some(event) = self.run.event_mut(link.received) {
            event.partner = Some(link.sent);
            event.message = event.message.or(message);
            if link.is_repeated {
                event.flags |= flags::DUPLICATE;
            }
        }
        if let Some(event) = self.run.event_mut(link.sent).filter(|event| event.partner.is_none()) {
            event.partner = Some(link.received);
            // A simulation tells what its network lost.
            if self.simulated && link.is_drop {
                event.flags |= flags::LOST;
            }
        }
        if link.is_drop || link.is_answer {
            return;
        }
        if let Some(message) = message {
            let facts = self.run.message_mut(message);
            if let Some(facts) = facts {
                facts.arrived = Some(facts.arrived.map_or(time, |arrived| arrived.min(time)));
                if link.ends_message {
                    facts.placed = Some(facts.placed.map_or(time, |placed| placed.min(time)));
                }
            }
            if link.ends_message && link.takes_receive && !link.is_repeated {
                self.work[link.to.0 as usize].arrived.push((time, message));
            }
        }
    }

    /// What was sent to a queue pair that is recorded, and did not arrive while it was.
    fn mark_lost(&mut self, arrived: &BTreeMap<EventId, EventId>, lanes: &[(u32, u32)]) {
        let ends: Vec<Option<i64>> = self.run.processes().iter().map(|process| process.ended).collect();
        for (packet, to) in self.directions.sent_to(lanes) {
            let Some(end) = ends.get(lanes[to.0 as usize].0 as usize).copied().flatten() else { continue };
            if !arrived.contains_key(&packet)
                && let Some(event) = self.run.event_mut(packet)
                && event.time < end
                && event.flags & flags::CONTROL == 0
            {
                event.flags |= flags::LOST;
            }
        }
    }

    /// Direct operations touch regions of the peer's process.
    fn place_moves(&mut self, lanes: &[(u32, u32)]) {
        for moved in self.directions.moves(lanes) {
            let process = moved.process as usize;
            self.access(process, moved.event, moved.key, moved.address, moved.bytes, moved.write);
        }
    }

    /// Which send filled which receive: both in the order of their queue pair.
    fn join_receives(&mut self) {
        for work in &mut self.work {
            work.arrived.sort_by_key(|(time, _)| *time);
            for ((_, send), receive) in work.arrived.iter().zip(&work.received) {
                if let Some(message) = self.run.message_mut(*send) {
                    message.partner = Some(*receive);
                }
                let (posted, sent) =
                    self.run.messages().get(send.0 as usize).map_or((None, None), |m| (m.arrived, m.sent));
                if let Some(message) = self.run.message_mut(*receive) {
                    message.partner = Some(*send);
                    message.arrived = posted;
                    message.sent = sent;
                }
            }
        }
    }
}

/// What is special about a packet.
fn flags_of(headers: &Headers) -> u8 {
    let operation = headers.bth.opcode.operation();
    let refuses = headers.aeth.is_some_and(|aeth| {
        matches!(aeth.syndrome, Syndrome::Nak(_) | Syndrome::RnrNak { .. } | Syndrome::Reserved(_))
    });
    let control = operation == Operation::Cnp || headers.bth.dest_qpn.value() == GSI_QPN;
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    flag(refuses, flags::NAK) | flag(operation.is_response(), flags::ANSWER) | flag(control, flags::CONTROL)
}

/// All headers, as fields.
fn fields_of(headers: &Headers, payload_len: u32, packets: u32) -> Vec<Field> {
    let Headers { bth, xrc, deth, feth: _, reth, atomic, aeth, atomic_ack, immediate, invalidate } = headers;
    let number = |number: u32| Value::Number(number.into());
    let mut fields = vec![
        ("psn", number(bth.psn.value())),
        ("packets", number(packets)),
        ("bytes", number(payload_len)),
        ("dest_qp", number(bth.dest_qpn.value())),
        ("pkey", Value::Hex(bth.pkey.value().into())),
    ];
    let bits = [("ack_request", bth.ack_req), ("solicited", bth.solicited), ("fecn", bth.fecn), ("becn", bth.becn)];
    fields.extend(bits.into_iter().filter(|(_, set)| *set).map(|(name, set)| (name, Value::Flag(set))));
    fields.extend(xrc.map(|srq| ("xrc_srq", number(srq.value()))));
    if let Some(deth) = deth {
        fields.push(("qkey", Value::Hex(deth.qkey.value().into())));
        fields.push(("src_qp", number(deth.src_qpn.value())));
    }
    if let Some(reth) = reth {
        fields.push(("address", Value::Hex(reth.va)));
        fields.push(("rkey", Value::Hex(reth.rkey.value().into())));
        fields.push(("length", number(reth.len)));
    }
    if let Some(atomic) = atomic {
        fields.push(("address", Value::Hex(atomic.va)));
        fields.push(("rkey", Value::Hex(atomic.rkey.value().into())));
        fields.push(("swap_add", Value::Hex(atomic.swap_add)));
        fields.push(("compare", Value::Hex(atomic.compare)));
    }
    if let Some(aeth) = aeth {
        fields.push(("syndrome", Value::Hex(aeth.syndrome.byte().into())));
        fields.push(("msn", number(aeth.msn.value())));
    }
    fields.extend(atomic_ack.map(|ack| ("original", Value::Hex(ack.original))));
    fields.extend(immediate.map(|immediate| ("immediate", Value::Hex(immediate.into()))));
    fields.extend(invalidate.map(|key| ("invalidate", Value::Hex(key.value().into()))));
    fields
}

/// The next sequence number but for how often they have begun anew: the nearest to the last.
pub fn unwrapped(last: i64, psn: Psn) -> i64 {
    const RANGE: i64 = 1 << 24;
    let difference = (i64::from(psn.value()) - last).rem_euclid(RANGE);
    last + if difference >= RANGE / 2 { difference - RANGE } else { difference }
}
