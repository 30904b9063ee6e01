//! The first side of a measurement: decides how much is measured of what, and in which order.

use super::bare::Bare;
use super::calls::Places;
use super::machine::{self, Side};
use super::many_queue_pairs::{self, ManyQueuePairs, QUEUE_PAIR_COUNTS};
use super::sockets::{self, Sockets};
use super::statistics::{Summary, median, spread};
use super::threads::{self, Team};
use super::verbs::{Line, Prepared, SENDS_PER_CALL};
use super::{Carrier, Kind, MOST_MESSAGES, MeasureAnswer, Order, Point, Run, RunResult, WaitMode, bob};
use crate::exit::Failure;
use crate::meeting::{Link, Meeting};
use crate::peer;
use std::time::Duration;

/// The most connections of a run: each of TCP keeps its port for a minute.
const MOST_CALLS: u64 = 500;

/// What was measured of a point.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    pub point: Point,
    /// How many messages were measured.
    pub messages: u64,
    /// Of round trips: the middle of all runs, and the worst of all.
    pub summary: Summary,
    /// Of the middle run. One direction is counted, also for round trips.
    pub messages_per_second: f64,
    /// Of each run what counts: the median of its round trips in nanoseconds, or its messages per second.
    pub rounds: Vec<f64>,
}

impl Measured {
    /// How many bytes each moves. An atomic operation moves eight, beside whichever size it stands.
    pub fn size(&self) -> usize {
        if self.point.carrier == Carrier::Atomic { 8 } else { self.point.size }
    }

    pub fn bytes_per_second(&self) -> f64 {
        self.messages_per_second * self.point.size as f64
    }

    /// How much better than the other it is: less time for round trips, more bytes for streams.
    pub fn ratio(&self, other: &Measured) -> f64 {
        match self.point.kind {
            Kind::RoundTrip => self.summary.p50 as f64 / other.summary.p50.max(1) as f64,
            _ => self.messages_per_second / other.messages_per_second.max(f64::MIN_POSITIVE),
        }
    }

    /// What counts, of the rounds: the least and the greatest.
    pub fn spread(&self) -> Option<[f64; 2]> {
        spread(&self.rounds)
    }

    /// The ratios of the rounds: the least and the greatest.
    pub fn ratios(&self, other: &Measured) -> Option<[f64; 2]> {
        let ratios: Vec<f64> =
            self.rounds.iter().zip(&other.rounds).map(|(ours, theirs)| ours / theirs.max(1.0)).collect();
        spread(&ratios)
    }
}

/// What can be measured beside RDMA and TCP, where both sides are on one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extras {
    pub unix: bool,
    /// The limits of the machine.
    pub bare: bool,
    /// Connections.
    pub calls: bool,
    /// Many queue pairs.
    pub crowd: bool,
    /// Several threads.
    pub threads: bool,
    /// A second pair of processes that speaks UDP.
    pub udp: bool,
}

/// The first side.
pub struct FirstSide<'a> {
    meeting: &'a mut Meeting,
    connections: Connections,
    /// Another first side, which does as we say.
    udp: Option<Meeting>,
}

/// The connections to measure on.
pub struct Connections {
    line: Line,
    sockets: Sockets,
    bare: Option<Bare>,
    calls: Option<Places>,
    crowd: Option<ManyQueuePairs>,
    team: Option<Team>,
}

/// A point while it is being measured.
struct Progress {
    point: Point,
    /// Nanoseconds a message seems to take.
    estimate: f64,
    summaries: Vec<Summary>,
    rates: Vec<f64>,
    messages: u64,
}

impl FirstSide<'_> {
    /// Makes the connections, for messages of up to `largest` bytes.
    pub fn new(meeting: &mut Meeting, largest: usize, extras: Extras) -> Result<FirstSide<'_>, Failure> {
        let lead = |meeting: &Meeting| {
            let mut other = Meeting::start(Some(meeting.station.context.name()), Link::Udp)?;
            match ask(&mut other, Order::Lead { largest })? {
                MeasureAnswer::Leading => Ok(other),
                other => Err(Failure::Nonsense(format!("{other:?}"))),
            }
        };
        // First: a process started by a thread that has settled on a processor may use no other.
        let udp = extras.udp.then(|| lead(meeting)).transpose()?;
        let connections = Connections::new(meeting, largest, extras)?;
        Ok(FirstSide { meeting, connections, udp })
    }

    /// Whether this can be measured here.
    pub fn can(&self, point: &Point) -> bool {
        let limit = |bare: &Bare| bare.can(point.carrier);
        let calls = point.kind != Kind::Connect || self.connections.calls.is_some();
        let crowd = !matches!(point.kind, Kind::ManyQueuePairs(_)) || self.connections.crowd.is_some();
        let threads = !matches!(point.kind, Kind::Threads(_)) || self.connections.team.is_some();
        calls
            && crowd
            && threads
            && (!point.udp || self.udp.is_some())
            && (!point.carrier.is_limit() || self.connections.bare.as_ref().is_some_and(limit))
    }

    /// Measures each point for about `time`, in so many alternating rounds. `step` is called before each run.
    pub fn measure(
        &mut self,
        points: &[Point],
        time: Duration,
        rounds: u32,
        step: &mut dyn FnMut(Point),
    ) -> Result<Vec<Measured>, Failure> {
        let mut all = Vec::new();
        for &point in points {
            step(point);
            // Warms up, and says how many messages make a run.
            let many = point.size < 1 << 18 && point.kind != Kind::Connect;
            let count = if many { 2 * SENDS_PER_CALL } else { 2 };
            let nanos = self.run(Run { point, count })?.nanos;
            let estimate = nanos as f64 / count as f64;
            all.push(Progress { point, estimate, summaries: Vec::new(), rates: Vec::new(), messages: 0 });
        }
        let slice = time.as_nanos() as f64 / f64::from(rounds.max(1));
        for _ in 0..rounds.max(1) {
            for progress in &mut all {
                step(progress.point);
                let count = ((slice / progress.estimate.max(1.0)) as u64)
                    .clamp(3, if progress.point.kind == Kind::Connect { MOST_CALLS } else { MOST_MESSAGES });
                let taken = self.run(Run { point: progress.point, count })?;
                progress.estimate = taken.nanos as f64 / count as f64;
                progress.summaries.push(taken.summary);
                progress.rates.push(1e9 * count as f64 / taken.nanos.max(1) as f64);
                progress.messages += count;
            }
        }
        Ok(all.into_iter().filter_map(Progress::result).collect())
    }

    fn run(&mut self, run: Run) -> Result<RunResult, Failure> {
        match &mut self.udp {
            Some(other) if run.point.udp => {
                let point = Point { udp: false, ..run.point };
                match ask(other, Order::Turn(Run { point, ..run }))? {
                    MeasureAnswer::Turned(taken) => Ok(taken),
                    other => Err(Failure::Nonsense(format!("{other:?}"))),
                }
            }
            _ => self.connections.run(self.meeting, run),
        }
    }

    /// Lets the second pair of processes go.
    pub fn end(self) {
        if let Some(other) = self.udp {
            other.end();
        }
    }
}

impl Connections {
    /// Makes them, for messages of up to `largest` bytes.
    pub fn new(meeting: &mut Meeting, largest: usize, extras: Extras) -> Result<Connections, Failure> {
        let prepared = Prepared::new(&meeting.station, largest)?;
        let theirs = match ask(meeting, Order::Connect { end: prepared.end(), largest })? {
            MeasureAnswer::Connected(end) => end,
            other => return Err(Failure::Nonsense(format!("{other:?}"))),
        };
        let line = prepared.connect(&meeting.station, &theirs)?;
        if meeting.local {
            machine::settle(Side::First);
        }
        let sockets = match ask(meeting, Order::Listen { unix: extras.unix })? {
            MeasureAnswer::Listening { port, unix } => {
                let mut there = meeting.tcp[1];
                there.set_port(port);
                sockets::connect(there, unix.as_deref())?
            }
            other => return Err(Failure::Nonsense(format!("{other:?}"))),
        };
        let bare = extras.bare.then(|| bare(meeting, largest)).transpose()?;
        let calls = extras.calls.then(|| calls(meeting)).transpose()?;
        let crowd = extras.crowd.then(|| crowd(meeting)).transpose()?;
        let team = extras.threads.then(|| team(meeting)).transpose()?;
        let mut made = Connections { line, sockets, bare, calls, crowd, team };
        if let (Some(_), [.., most]) = (&made.crowd, QUEUE_PAIR_COUNTS) {
            // Each once, so that no run is the first to use one.
            let point =
                Point::new(Kind::ManyQueuePairs(most), Carrier::Write, WaitMode::Spin, many_queue_pairs::WRITE_BYTES);
            made.run(meeting, Run { point, count: u64::from(most) })?;
        }
        Ok(made)
    }

    /// One run.
    pub fn run(&mut self, meeting: &mut Meeting, run: Run) -> Result<RunResult, Failure> {
        let order = |order| peer::Order::Measure(order);
        meeting.control.tell(&order(Order::Run(run)))?;
        peer::ready(meeting)?;
        let mut samples = Vec::new();
        let mut sample = |nanos: u64| samples.push(nanos);
        let control = &meeting.control;
        let carrier = run.point.carrier;
        let ended = match &mut self.bare {
            _ if let (Kind::ManyQueuePairs(among), Some(crowd)) = (run.point.kind, &mut self.crowd) => {
                crowd.first(run, among, self.line.there(), control, &mut sample)
            }
            _ if let (Kind::Threads(among), Some(team)) = (run.point.kind, &mut self.team) => {
                team.first(run, among, control.gone(), &mut sample)
            }
            _ if run.point.kind == Kind::Connect => self.calls.map_or(Ok(()), |places| places.first(run, &mut sample)),
            _ if carrier.is_verb() => self.line.first(run, control.gone(), &mut sample),
            Some(bare) if carrier.is_limit() => bare.first(run, control, &mut sample),
            _ => sockets::first(bob::stream(Some(&mut self.sockets), carrier)?, run, control, &mut sample),
        };
        // Work fails for want of an answer; that the peer is dead, or why it gave up, says more.
        if let Err(failure) = ended {
            return Err(match (meeting.control.turns_out_gone(), meeting.control.heard()) {
                (_, Ok(Some(peer::PeerAnswer::Failed(why)))) => Failure::Peer(why),
                (true, _) => Failure::PeerGone,
                _ => failure,
            });
        }
        meeting.control.tell(&order(Order::Done))?;
        match peer::answer(meeting)? {
            peer::PeerAnswer::Measure(MeasureAnswer::Ran) => {}
            other => return Err(peer::unexpected(&other)),
        }
        let nanos = samples.iter().sum();
        Ok(RunResult { nanos, summary: Summary::of(&mut samples).unwrap_or_default() })
    }
}

/// Asks the second side where it can be called.
fn calls(meeting: &mut Meeting) -> Result<Places, Failure> {
    match ask(meeting, Order::Welcome)? {
        MeasureAnswer::Welcoming(places) => Ok(places),
        other => Err(Failure::Nonsense(format!("{other:?}"))),
    }
}

/// Makes many queue pairs and connects them.
fn crowd(meeting: &mut Meeting) -> Result<ManyQueuePairs, Failure> {
    let mut crowd = ManyQueuePairs::new(&meeting.station)?;
    let [.., most] = QUEUE_PAIR_COUNTS;
    for _ in 0..(most as usize).div_ceil(many_queue_pairs::ENDPOINTS_PER_MESSAGE) {
        let prepared = crowd.prepare(&meeting.station, many_queue_pairs::ENDPOINTS_PER_MESSAGE)?;
        match ask(meeting, Order::ManyQueuePairs { endpoints: many_queue_pairs::endpoints(&prepared) })? {
            MeasureAnswer::ManyQueuePairs { endpoints } => crowd.connect(prepared, &endpoints)?,
            other => return Err(Failure::Nonsense(format!("{other:?}"))),
        }
    }
    Ok(crowd)
}

/// Makes a connection for each thread.
fn team(meeting: &mut Meeting) -> Result<Team, Failure> {
    let most = threads::counts().last().map_or(0, |most| *most as usize);
    let prepared = Team::prepare(&meeting.station, most)?;
    match ask(meeting, Order::Team { ends: prepared.iter().map(Prepared::end).collect() })? {
        MeasureAnswer::Teamed { ends } => Team::connect(&meeting.station, prepared, &ends),
        other => Err(Failure::Nonsense(format!("{other:?}"))),
    }
}

/// Shares memory with the second side.
fn bare(meeting: &mut Meeting, largest: usize) -> Result<Bare, Failure> {
    let mut bare = Bare::offer(meeting.memory()?)?;
    match ask(meeting, Order::Bare { largest })? {
        MeasureAnswer::Bare { address } => bare.aim(meeting.peer.process, address),
        other => return Err(Failure::Nonsense(format!("{other:?}"))),
    }
    Ok(bare)
}

impl Progress {
    fn result(mut self) -> Option<Measured> {
        let summary = Summary::middle(&self.summaries)?;
        let rounds = match self.point.kind {
            Kind::RoundTrip => self.summaries.iter().map(|summary| summary.p50 as f64).collect(),
            _ => self.rates.clone(),
        };
        let messages_per_second = median(&mut self.rates)?;
        Some(Measured { point: self.point, messages: self.messages, summary, messages_per_second, rounds })
    }
}

fn ask(meeting: &mut Meeting, order: Order) -> Result<MeasureAnswer, Failure> {
    match peer::ask(meeting, &peer::Order::Measure(order))? {
        peer::PeerAnswer::Measure(answer) => Ok(answer),
        other => Err(peer::unexpected(&other)),
    }
}
