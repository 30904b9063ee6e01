//! What a simulated network is like, and how many runs there are.

use super::{Failure, Report, Simulation};
use sim::{LinkConfig, SEED_VARIABLE};
use std::path::PathBuf;
use std::time::Duration;

/// What a simulation is like. Made by [`Simulation::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    pub(super) link: LinkConfig,
    pub(super) seed: u64,
    pub(super) seeds: u64,
    pub(super) time_limit: Duration,
    pub(super) log: bool,
    pub(super) capture: Option<PathBuf>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            link: LinkConfig::PERFECT,
            seed: 1,
            seeds: 1,
            time_limit: Duration::from_secs(3600),
            log: false,
            capture: None,
        }
    }
}

impl Builder {
    /// The probability that a packet is lost.
    pub fn loss(mut self, probability: f64) -> Builder {
        self.link.loss = probability;
        self
    }

    /// The probability that a packet is held back and overtaken by others.
    pub fn reordering(mut self, probability: f64) -> Builder {
        self.link.reordering = probability;
        self
    }

    /// The probability that a packet arrives twice.
    pub fn duplication(mut self, probability: f64) -> Builder {
        self.link.duplication = probability;
        self
    }

    /// The probability that a bit of a packet flips.
    pub fn corruption(mut self, probability: f64) -> Builder {
        self.link.corruption = probability;
        self
    }

    /// How long a packet travels; 5 microseconds unless said otherwise.
    pub fn delay(mut self, delay: Duration) -> Builder {
        self.link.delay = nanos(delay);
        self
    }

    /// Up to so much longer, by chance.
    pub fn jitter(mut self, jitter: Duration) -> Builder {
        self.link.jitter = nanos(jitter);
        self
    }

    /// How long a packet is held back that others overtake, at most; 20 microseconds unless said otherwise.
    pub fn held_back(mut self, time: Duration) -> Builder {
        self.link.held_back = nanos(time);
        self
    }

    /// Bits per second of each link; without it, packets take no time but the delay.
    pub fn bandwidth(mut self, bits_per_second: u64) -> Builder {
        self.link.bandwidth = Some(bits_per_second);
        self
    }

    /// From which everything follows that is left to chance. The first one, if there are many runs.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.seed = seed;
        self
    }

    /// How many runs [`check`](Builder::check) makes, each with its own seed.
    pub fn seeds(mut self, seeds: u64) -> Builder {
        self.seeds = seeds;
        self
    }

    /// How long a run may take, on its own clock: parties that still wait then have hung. An hour unless said otherwise.
    pub fn time_limit(mut self, limit: Duration) -> Builder {
        self.time_limit = limit;
        self
    }

    /// Writes down what happens, for [`Report::log`]: each packet and what becomes of it, each completion, each party's
    /// beginning and end. Without addresses and keys of memory: those are the process's, and differ from run to run.
    pub fn log(mut self) -> Builder {
        self.log = true;
        self
    }

    /// Writes all packets to a file for Wireshark (pcapng).
    pub fn capture(mut self, file: impl Into<PathBuf>) -> Builder {
        self.capture = Some(file.into());
        self
    }

    /// A simulation with the first seed. The variable `UBIVERBS_SEED` does not change it: [`check`](Builder::check)
    /// heeds that.
    pub fn build(self) -> Simulation {
        Simulation::new(&self, self.seed)
    }

    /// Runs once with the first seed: `arrange` adds the parties and arranges the faults.
    pub fn run(self, arrange: impl FnOnce(&mut Simulation)) -> Result<Report, Failure> {
        let mut simulation = self.build();
        arrange(&mut simulation);
        simulation.run()
    }

    /// Runs with each seed, or with that of the variable `UBIVERBS_SEED` alone if it is set; `UBIVERBS_SEEDS` says how
    /// many seeds instead of [`seeds`](Builder::seeds). A run that is had again by its seed prints the end of its
    /// [log](Builder::log) when it fails.
    ///
    /// # Panics
    /// At the first run that fails, with the seed.
    pub fn check(self, arrange: impl Fn(&mut Simulation)) {
        let mut builder = self;
        let (first, count) = match (variable(SEED_VARIABLE), variable("UBIVERBS_SEEDS")) {
            (Some(seed), _) => {
                builder.log = true;
                (seed, 1)
            }
            (None, count) => (builder.seed, count.unwrap_or(builder.seeds)),
        };
        for seed in first..first.saturating_add(count) {
            let mut simulation = Simulation::new(&builder, seed);
            arrange(&mut simulation);
            if let Err(failure) = simulation.run() {
                let lines: Vec<&str> = failure.log().lines().collect();
                for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                    eprintln!("{line}");
                }
                panic!("run {} of {count}: {failure}", seed - first + 1);
            }
        }
    }
}

/// How many lines of the log are printed of a run that fails again.
const LOG_LINES: usize = 100;

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    text.parse().inspect_err(|error| eprintln!("{name}={text} is not used: {error}")).ok()
}
