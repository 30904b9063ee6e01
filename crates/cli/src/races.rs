//! Races between the processes of a run: their recordings are read side by side, in the order of time, and shown to the
//! detector (`checks::races`). A recording may come from anywhere: what makes no sense in it is skipped, and what is
//! missing makes the detector forget what was before.

use crate::exit::Failure;
use crate::view::source::Source;
use checks::races::{Looked, ProcessFacts, Races, Step};
use checks::{Finding, Settings};
use hca::Stamp;
use recording::{Entry, FileHeader};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::{Path, PathBuf};
use std::time::Duration;
use trace::Event;

/// How long a message that arrives waits for the process that posts it, by the clocks of both.
///
/// That a post was accepted is recorded after its message may have arrived, and a thread may lose the processor in
/// between.
const EARLY_WAIT: Duration = Duration::from_secs(2);

/// After how long it is looked at again, at first; then after half of what it has waited.
const EARLY_STEP: Duration = Duration::from_micros(100);

/// A race that was found.
pub struct Race {
    /// When and where the later of both was posted.
    pub stamp: Stamp,
    pub program: String,
    /// How often.
    pub count: u64,
    pub finding: Finding,
}

/// What recordings show.
pub struct Outcome {
    pub races: Vec<Race>,
    pub processes: Vec<ProcessFacts>,
    pub looked: Looked,
    /// What readers should know of the recordings.
    pub notes: Vec<String>,
}

impl Race {
    /// As a person reads it.
    pub fn text(&self) -> String {
        let times = if self.count > 1 { format!("\n  times: {}", self.count) } else { String::new() };
        format!("{}{times}", self.finding)
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        let stamp = self.checks_stamp();
        let mut value: Value = serde_json::from_str(&self.finding.json(Some(stamp))).unwrap_or_default();
        value["count"] = self.count.into();
        value["program"] = self.program.clone().into();
        value.to_string()
    }

    fn checks_stamp(&self) -> checks::Stamp {
        let Stamp { wall, process, thread } = self.stamp;
        checks::Stamp { wall: wall.as_nanos() as u64, process, thread }
    }
}

impl Outcome {
    /// One line over all.
    pub fn summary(&self) -> String {
        let many = |count: u64, what: &str, more: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}{more}"),
        };
        let Looked { accesses, messages, strange_messages, forgotten } = self.looked;
        let mut text = format!(
            "races: {}, {}, {}: {}",
            many(self.processes.len() as u64, "process", "es"),
            many(accesses, "access", "es"),
            many(messages, "message", "s"),
            match self.races.len() {
                0 => "nothing was found".to_owned(),
                count => format!("{} found", many(count as u64, "race", "s")),
            }
        );
        if strange_messages > 0 {
            let them = many(strange_messages, "message", "s");
            text += &format!("; {them} of senders that were not recorded, before which all counts as ordered");
        }
        if forgotten > 0 {
            text += &format!("; the past was forgotten {}, as there was no room", many(forgotten, "time", "s"));
        }
        text
    }
}

/// A recording that is read, and the event that comes next in it.
struct Lane {
    source: Source,
    event: Option<Event>,
    /// How far the common clock is ahead of the recording's.
    ahead: i128,
    wall_ahead: i128,
    block: Option<u64>,
    /// Since when its next event waits for another process.
    waits_since: Option<i128>,
}

impl Lane {
    /// Goes on to the next event. True if something between is missing.
    fn advance(&mut self) -> Result<bool, Failure> {
        let mut is_gap = false;
        self.event = None;
        while let Some(entry) = self.source.next_entry()? {
            let block = self.source.block();
            if block != self.block {
                let follows = self.block.map_or(0, |before| before.wrapping_add(1));
                is_gap |= block.is_some_and(|block| block != follows);
                self.block = block;
            }
            if let Entry::Event(event) = entry {
                self.event = Some(event);
                return Ok(is_gap);
            }
        }
        Ok(is_gap)
    }

    /// When it was, on the wall clock.
    fn shared_time(&self, event: &Event) -> u64 {
        (i128::from(event.at) + self.wall_ahead).clamp(0, i128::from(u64::MAX)) as u64
    }

    /// When the next event was, on the clock that all have.
    fn time(&self) -> Option<i128> {
        let event = self.event.as_ref()?;
        Some(i128::from(event.at) + self.ahead)
    }
}

/// Reads recordings, and finds races between their processes.
pub fn look(files: &[PathBuf], settings: &Settings) -> Result<Outcome, Failure> {
    let mut races = Races::new(settings.clone());
    let mut processes = Vec::new();
    let mut lanes = Vec::new();
    let mut hosts: BTreeMap<(String, String), u32> = BTreeMap::new();
    for path in files {
        let source = Source::open(path)?;
        let facts = facts_of(&source, path, &mut hosts);
        races.process(facts.clone());
        processes.push(facts);
        let (ahead, wall_ahead) = source.nearest_ahead().unwrap_or_default();
        let lane = Lane { source, event: None, ahead, wall_ahead, block: None, waits_since: None };
        lanes.push(lane);
    }
    if hosts.len() > 1 {
        // Monotonic clocks of hosts have nothing to do with each other.
        lanes.iter_mut().for_each(|lane| lane.ahead = lane.wall_ahead);
    }
    let mut next: BinaryHeap<Reverse<(i128, usize)>> = BinaryHeap::new();
    for (place, lane) in lanes.iter_mut().enumerate() {
        if lane.advance()? {
            races.lost(place as u32);
        }
        next.extend(lane.time().map(|time| Reverse((time, place))));
    }
    while let Some(Reverse((time, place))) = next.pop() {
        let Some(lane) = lanes.get_mut(place) else { break };
        let Some(event) = &lane.event else { continue };
        let event = &Event { at: lane.shared_time(event), ..*event };
        let since = lane.waits_since.unwrap_or(time);
        if time - since < EARLY_WAIT.as_nanos() as i128 {
            if races.observe(place as u32, event) == Step::Early {
                lane.waits_since = Some(since);
                let step = (EARLY_STEP.as_nanos() as i128).max((time - since) / 2);
                next.push(Reverse((time + step, place)));
                continue;
            }
        } else {
            races.observe_at_last(place as u32, event);
        }
        lane.waits_since = None;
        if lane.advance()? {
            races.lost(place as u32);
        }
        next.extend(lane.time().map(|time| Reverse((time, place))));
    }
    let mut found = Vec::new();
    races.finish(&mut |place, count, finding| {
        let Some(facts) = processes.get(place as usize) else { return };
        let wall = Duration::from_nanos(finding.at);
        let stamp = Stamp { wall, process: facts.pid, thread: finding.thread };
        found.push(Race { stamp, program: facts.program.clone(), count, finding });
    });
    found.sort_by_key(|race| race.stamp.wall);
    let notes = lanes.iter().flat_map(|lane| lane.source.notes()).collect();
    Ok(Outcome { races: found, processes, looked: races.looked(), notes })
}

/// What a recording says of its process.
fn facts_of(source: &Source, path: &Path, hosts: &mut BTreeMap<(String, String), u32>) -> ProcessFacts {
    let fact = |name: &str| source.header().fact(name).to_owned();
    let count = hosts.len() as u32;
    // Hosts of a simulation are recorded by one.
    let host = if source.is_simulated() { path.display().to_string() } else { fact(FileHeader::HOST) };
    let host = *hosts.entry((host, fact(FileHeader::BOOT))).or_insert(count);
    let program = trace::printable(&fact(FileHeader::PROGRAM)).to_string();
    ProcessFacts { pid: fact(FileHeader::PROCESS).parse().unwrap_or(0), program, host }
}
