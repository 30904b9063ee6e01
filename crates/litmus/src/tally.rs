//! Counts what many runs of a test have shown.

use crate::outcome::{Seen, Verdict};
use crate::simulated::{Broken, Stage};
use crate::test::Test;
use std::collections::BTreeMap;
use transport::weak::Weakness;

/// After so many runs the stage is set anew: with another delay of the links and another way of carrying packets.
const RUNS_PER_STAGE: u64 = 64;
/// The most kinds of outcomes that are kept of those that a test does not list.
const MAX_UNLISTED: usize = 8;

/// An outcome that a test does not list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unlisted {
    /// How often it was seen,
    pub count: u64,
    /// and first with this seed.
    pub seed: u64,
}

/// What was seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Runs that came to an end.
    pub runs: u64,
    /// For each outcome of the test how often it was seen, and the seed with which it was seen first.
    pub outcomes: Vec<(u64, Option<u64>)>,
    /// What the test says nothing of.
    pub unlisted: BTreeMap<Seen, Unlisted>,
    /// A run that came to no end, and its seed.
    pub broken: Option<(Broken, u64)>,
}

impl Tally {
    /// Nothing was seen yet.
    pub fn new(test: &Test) -> Tally {
        Tally { outcomes: vec![(0, None); test.outcomes.len()], ..Tally::default() }
    }

    /// Counts what a run has shown.
    pub fn count(&mut self, test: &Test, seed: u64, seen: Result<Seen, Broken>) {
        let seen = match seen {
            Ok(seen) => seen,
            Err(broken) => {
                self.broken.get_or_insert((broken, seed));
                return;
            }
        };
        self.runs += 1;
        let holds = test.outcomes.iter().zip(&mut self.outcomes).filter(|(outcome, _)| outcome.holds(&seen));
        let mut listed = false;
        for (_, (count, first)) in holds {
            listed = true;
            *count += 1;
            first.get_or_insert(seed);
        }
        if !listed && (self.unlisted.len() < MAX_UNLISTED || self.unlisted.contains_key(&seen)) {
            self.unlisted.entry(seen).or_insert(Unlisted { count: 0, seed }).count += 1;
        }
    }

    /// What others have counted.
    pub fn add(&mut self, other: &Tally) {
        self.runs += other.runs;
        for ((count, first), (more, seed)) in self.outcomes.iter_mut().zip(&other.outcomes) {
            *count += more;
            *first = first.or(*seed);
        }
        for (seen, more) in &other.unlisted {
            self.unlisted.entry(seen.clone()).or_insert(Unlisted { count: 0, seed: more.seed }).count += more.count;
        }
        if self.broken.is_none() {
            self.broken = other.broken.clone();
        }
    }

    /// Whether something was seen that must not be, or that the test does not list; or a run came to no end.
    pub fn fails(&self, test: &Test) -> bool {
        let seen = |verdict| {
            let outcomes = test.outcomes.iter().zip(&self.outcomes);
            outcomes.filter(move |(outcome, _)| outcome.verdict == verdict).any(|(_, (count, _))| *count > 0)
        };
        seen(Verdict::Forbidden) || !self.unlisted.is_empty() || self.broken.is_some()
    }

    /// Whether everything was seen that may be.
    pub fn saw_all(&self, test: &Test) -> bool {
        let mut outcomes = test.outcomes.iter().zip(&self.outcomes);
        outcomes.all(|(outcome, (count, _))| outcome.verdict == Verdict::Forbidden || *count > 0)
    }
}

/// Runs a test `runs` times on the simulator, with the seeds `seed`, `seed` + 1 and so on.
pub fn run_simulated(test: &Test, weakness: Option<Weakness>, seed: u64, runs: u64) -> Tally {
    // Chance begins anew with each run; what the stage is set with must not depend on the first seed.
    let weakness = weakness.map(|weakness| Weakness { seed: 0, ..weakness });
    let mut tally = Tally::new(test);
    let mut begins = 0;
    while begins < runs && tally.broken.is_none() {
        // A stage begins at a multiple, and its runs before the first are run too: so a run can be had again alone.
        let first = seed.wrapping_add(begins);
        let of_stage = first / RUNS_PER_STAGE;
        let many = (RUNS_PER_STAGE - first % RUNS_PER_STAGE).min(runs - begins);
        let mut stage = Stage::new(test, weakness, of_stage);
        for seed in (first - first % RUNS_PER_STAGE..).take((first % RUNS_PER_STAGE + many) as usize) {
            let seen = stage.run(seed);
            if seed >= first {
                tally.count(test, seed, seen);
            }
            if tally.broken.is_some() {
                break;
            }
        }
        begins += many;
    }
    tally
}
