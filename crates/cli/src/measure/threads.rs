//! Several threads: round trips of small SENDs, each thread with a queue pair, a completion queue and buffers of its
//! own, and a peer that is a thread of the second side. What threads of a process share on the way of a message shows
//! where they stand in each other's way.

use super::machine::{self, Side};
use super::verbs::{Inbox, Line, Prepared};
use super::{Carrier, End, Kind, Point, Run, WaitMode};
use crate::control::Gone;
use crate::exit::Failure;
use crate::station::Station;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// How many bytes each SEND carries.
pub const SEND_BYTES: usize = 64;

/// The numbers of threads a side that are measured: as many as there are processors for, but two in any case.
pub fn counts() -> Vec<u32> {
    let most = (machine::processors() as u32 / 2).clamp(2, super::MOST_THREADS as u32);
    let fewer = std::iter::successors(Some(1), |count| Some(2 * count)).take_while(|count| *count < most);
    fewer.chain([most]).collect()
}

/// The connections of one side's threads.
pub struct Team {
    lines: Vec<Line>,
}

impl Team {
    /// So many connections that have no peer yet.
    pub fn prepare(station: &Station, count: usize) -> Result<Vec<Prepared>, Failure> {
        (0..count).map(|_| Prepared::new(station, SEND_BYTES)).collect()
    }

    /// Connects them, each with one of the peer's.
    pub fn connect(station: &Station, prepared: Vec<Prepared>, peers: &[End]) -> Result<Team, Failure> {
        if prepared.len() != peers.len() {
            return Err(Failure::Nonsense("not as many connections as there should be".into()));
        }
        let connected = prepared.into_iter().zip(peers).map(|(prepared, peer)| prepared.connect(station, peer));
        Ok(Team { lines: connected.collect::<Result<_, _>>()? })
    }

    /// The first side: the time of the whole run.
    pub fn first(&mut self, run: Run, among: u32, gone: &Gone, sample: &mut dyn FnMut(u64)) -> Result<(), Failure> {
        let part = part(run, among);
        let work = self.members(among).map(|line| || line.first(part, gone, &mut |_| {})).collect();
        let taken = together(Side::First, work)?;
        // What does not divide evenly is not done.
        let done = part.count * u64::from(among.max(1));
        sample((taken.as_nanos() * u128::from(run.count) / u128::from(done.max(1))) as u64);
        Ok(())
    }

    /// What the second side needs before it is ready.
    pub fn ready(&mut self, run: Run, among: u32) -> Result<Vec<Inbox>, Failure> {
        self.members(among).map(|line| line.prepare(part(run, among))).collect()
    }

    /// The second side, until its part is done.
    pub fn second(&mut self, run: Run, among: u32, inboxes: Vec<Inbox>, gone: &Gone) -> Result<(), Failure> {
        let part = part(run, among);
        let work = self.members(among).zip(inboxes).map(|(line, inbox)| || line.second(part, inbox, gone)).collect();
        together(Side::Second, work).map(drop)
    }

    fn members(&mut self, among: u32) -> impl Iterator<Item = &mut Line> {
        self.lines.iter_mut().take(among as usize)
    }
}

/// What one of so many threads does of a run.
fn part(run: Run, among: u32) -> Run {
    let point = Point::new(Kind::RoundTrip, Carrier::Send, WaitMode::Spin, run.point.size);
    Run { point, count: (run.count / u64::from(among.max(1))).max(1) }
}

/// Does it all at the same time, each in a thread with a processor of its own as far as there are any. Returns how long
/// it took from when all were ready.
fn together<W: FnOnce() -> Result<(), Failure> + Send>(side: Side, work: Vec<W>) -> Result<Duration, Failure> {
    let start = Barrier::new(work.len() + 1);
    thread::scope(|scope| {
        let begin = |(number, work): (usize, W)| {
            let start = &start;
            scope.spawn(move || {
                machine::settle_nth(side, number);
                start.wait();
                work()
            })
        };
        let threads: Vec<_> = work.into_iter().enumerate().map(begin).collect();
        start.wait();
        let begun = Instant::now();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let taken = begun.elapsed();
        for end in ended {
            end.unwrap_or_else(|_| Err(Failure::Nonsense("a thread panicked".into())))?;
        }
        Ok(taken)
    })
}
