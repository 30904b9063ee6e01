//! Why a simulated run failed, and how to have it again.

use super::current::Clock;
use std::fmt;
use transport::Time;

/// Why a run of a simulation failed. It prints who waits for what, and the seed with which it happens again.
pub struct Failure {
    pub(super) trouble: Trouble,
    pub(super) seed: u64,
    pub(super) at: Time,
    pub(super) log: String,
}

/// What went wrong.
#[derive(Debug)]
pub(super) enum Trouble {
    Error { party: String, error: Box<dyn std::error::Error + Send + Sync> },
    Panic { party: String, message: String },
    Deadlock { waiting: Vec<WaitingTask> },
    TimeLimit { waiting: Vec<WaitingTask> },
    Livelock { waiting: Vec<WaitingTask> },
}

/// A task that waits.
#[derive(Debug)]
pub(super) struct WaitingTask {
    pub(super) party: String,
    pub(super) at: String,
    pub(super) waits_for: Vec<String>,
}

impl Failure {
    /// The seed with which it happens again.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// When it happened, on the clock of the simulation.
    pub fn at(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.at.as_nanos())
    }

    /// What happened until then, if the builder [was asked to](super::Builder::log) write that down.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// Whether nothing was left to happen while parties waited.
    pub fn is_deadlock(&self) -> bool {
        matches!(self.trouble, Trouble::Deadlock { .. })
    }

    /// Whether parties still waited when the time was up.
    pub fn is_time_limit(&self) -> bool {
        matches!(self.trouble, Trouble::TimeLimit { .. })
    }

    /// The party that failed, or those that wait.
    pub fn parties(&self) -> Vec<&str> {
        match &self.trouble {
            Trouble::Error { party, .. } | Trouble::Panic { party, .. } => vec![party],
            Trouble::Deadlock { waiting } | Trouble::TimeLimit { waiting } | Trouble::Livelock { waiting } => {
                waiting.iter().map(|waiting| waiting.party.as_str()).collect()
            }
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = Clock(self.at);
        let mut list = |title: &str, waiting: &[WaitingTask]| {
            write!(f, "at {clock} {title}")?;
            for WaitingTask { party, at, waits_for } in waiting {
                let what = match waits_for.as_slice() {
                    [] => "something that is not of this crate".to_owned(),
                    all => all.join(", or for "),
                };
                write!(f, "\n  {party} (started at {at}) waits for {what}")?;
            }
            Ok(())
        };
        match &self.trouble {
            Trouble::Error { party, error } => {
                write!(f, "at {clock} {party} ended with an error: {error}")?;
                let mut source = error.source();
                while let Some(error) = source {
                    write!(f, ": {error}")?;
                    source = error.source();
                }
            }
            Trouble::Panic { party, message } => write!(f, "at {clock} {party} panicked: {message}")?,
            Trouble::Deadlock { waiting } => list("nothing is left to happen, and", waiting)?,
            Trouble::TimeLimit { waiting } => list("the time is up, and", waiting)?,
            Trouble::Livelock { waiting } => {
                list("the clock stands still: tasks wake each other without end;", waiting)?
            }
        }
        write!(f, "\nto have it again: {}={}", sim::SEED_VARIABLE, self.seed)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {}
