//! The first side of a measurement: decides how much is measured of what, and in which order.

use super::machine::{self, Side};
use super::sockets::{self, Sockets};
use super::statistics::{Summary, median};
use super::verbs::{Line, Prepared};
use super::{Answer, Carrier, Kind, Order, Point, Run, bob};
use crate::exit::Failure;
use crate::meeting::Meeting;
use crate::peer;
use std::time::Duration;

/// In how many runs each point is measured. Between them the others have their turns.
const ROUNDS: u32 = 3;

/// The most messages of a run: what is kept of each is eight bytes.
const MOST: u64 = 1_000_000;

/// What was measured of a point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    pub point: Point,
    /// How many messages were measured.
    pub messages: u64,
    /// Of round trips.
    pub summary: Summary,
    /// Of the middle run. One direction is counted, also for round trips.
    pub messages_per_second: f64,
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
            Kind::Stream => self.messages_per_second / other.messages_per_second.max(f64::MIN_POSITIVE),
        }
    }
}

/// The connections to measure on.
pub struct Turns<'a> {
    meeting: &'a mut Meeting,
    line: Line,
    sockets: Sockets,
}

/// A point while it is being measured.
struct Progress {
    point: Point,
    /// Nanoseconds a message seems to take.
    estimate: f64,
    samples: Vec<u64>,
    rates: Vec<f64>,
    messages: u64,
}

impl Turns<'_> {
    /// Makes the connections, for messages of up to `largest` bytes.
    pub fn new(meeting: &mut Meeting, largest: usize, unix: bool) -> Result<Turns<'_>, Failure> {
        let prepared = Prepared::new(&meeting.station, largest)?;
        let theirs = match ask(meeting, Order::Connect { end: prepared.end(), largest })? {
            Answer::Connected(end) => end,
            other => return Err(Failure::Nonsense(format!("{other:?}"))),
        };
        let line = prepared.connect(&meeting.station, &theirs)?;
        if meeting.local {
            machine::settle(Side::First);
        }
        let sockets = match ask(meeting, Order::Listen { unix })? {
            Answer::Listening { port, unix } => {
                let mut there = meeting.tcp[1];
                there.set_port(port);
                sockets::connect(there, unix.as_deref())?
            }
            other => return Err(Failure::Nonsense(format!("{other:?}"))),
        };
        Ok(Turns { meeting, line, sockets })
    }

    /// Measures each of the points for about `time`, by turns. `step` is called before each run.
    pub fn measure(
        &mut self,
        points: &[Point],
        time: Duration,
        step: &mut dyn FnMut(Point),
    ) -> Result<Vec<Measured>, Failure> {
        let mut all = Vec::new();
        for &point in points {
            step(point);
            // Warms up, and says how many messages make a run.
            let count = if point.size >= 1 << 18 { 2 } else { 16 };
            let nanos = self.run(Run { point, count }, &mut |_| {})?;
            let estimate = nanos as f64 / count as f64;
            all.push(Progress { point, estimate, samples: Vec::new(), rates: Vec::new(), messages: 0 });
        }
        let slice = time.as_nanos() as f64 / f64::from(ROUNDS);
        for _ in 0..ROUNDS {
            for progress in &mut all {
                step(progress.point);
                let least = if progress.point.kind == Kind::Stream { progress.point.depth() } else { 3 };
                let count = ((slice / progress.estimate.max(1.0)) as u64).clamp(least.min(4), MOST);
                let samples = &mut progress.samples;
                let nanos = self.run(Run { point: progress.point, count }, &mut |sample| samples.push(sample))?;
                progress.estimate = nanos as f64 / count as f64;
                progress.rates.push(1e9 * count as f64 / nanos.max(1) as f64);
                progress.messages += count;
            }
        }
        Ok(all.into_iter().filter_map(Progress::result).collect())
    }

    /// One run. Answers how long it took, in nanoseconds.
    fn run(&mut self, run: Run, sample: &mut dyn FnMut(u64)) -> Result<u64, Failure> {
        let order = |order| peer::Order::Measure(order);
        self.meeting.control.tell(&order(Order::Run(run)))?;
        peer::ready(self.meeting)?;
        let mut nanos = 0;
        let mut count = |sampled: u64| {
            nanos += sampled;
            sample(sampled);
        };
        let control = &self.meeting.control;
        let carrier = run.point.carrier;
        let ended = if carrier.is_verb() {
            self.line.first(run, control, &mut count)
        } else {
            sockets::first(bob::stream(Some(&mut self.sockets), carrier)?, run, control, &mut count)
        };
        // Work fails for want of an answer; that the peer is dead, or why it gave up, says more.
        if let Err(failure) = ended {
            return Err(match (self.meeting.control.is_gone(), self.meeting.control.heard()) {
                (_, Ok(Some(peer::Answer::Failed(why)))) => Failure::Peer(why),
                (true, _) => Failure::PeerGone,
                _ => failure,
            });
        }
        self.meeting.control.tell(&order(Order::Done))?;
        match peer::answer(self.meeting)? {
            peer::Answer::Measure(Answer::Ran) => Ok(nanos),
            other => Err(peer::unexpected(&other)),
        }
    }
}

impl Progress {
    fn result(mut self) -> Option<Measured> {
        let summary = Summary::of(&mut self.samples)?;
        let messages_per_second = median(&mut self.rates)?;
        Some(Measured { point: self.point, messages: self.messages, summary, messages_per_second })
    }
}

fn ask(meeting: &mut Meeting, order: Order) -> Result<Answer, Failure> {
    match peer::ask(meeting, &peer::Order::Measure(order))? {
        peer::Answer::Measure(answer) => Ok(answer),
        other => Err(peer::unexpected(&other)),
    }
}
