//! `ubiverbs ps`: what the processes of this host have on its NIC now.

mod document;
mod text;

use crate::exit::{Exit, Failure};
use crate::snapshot::{self, ANSWER_TIMEOUT, ProcessSnapshot, Snapshot};
use clap::Args;
use inventory::QueuePair;
use std::io::Write;
use std::time::Duration;

/// Show the processes that use the NIC now: their devices, queue pairs and what those wait for
///
/// Every process of your own user that has a device of ubiverbs open is asked what it has; root asks those of all users.
/// A process that is stopped costs 50 ms in all, and a line that says so. `ubiverbs ps PID` shows everything that a process
/// has: sequence numbers, counters, memory regions, completion queues, ids of the connection manager, sockets.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    /// Only these processes, and all that they have
    #[arg(value_name = "PID")]
    pids: Vec<i32>,
    #[command(flatten)]
    filter: Filter,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Show all queue pairs of a process, not only the first 32
    #[arg(long)]
    all: bool,
    /// How many milliseconds the processes have to answer
    #[arg(long, value_name = "MS", default_value_t = ANSWER_TIMEOUT.as_millis() as u64)]
    timeout: u64,
}

/// Which queue pairs are shown.
#[derive(Args, Clone, Debug, Default)]
pub struct Filter {
    /// Only queue pairs of this device
    #[arg(long, value_name = "DEVICE", add = crate::candidates::devices())]
    device: Option<String>,
    /// Only queue pairs in this state: RTS, ERR, …
    #[arg(long, value_name = "STATE", ignore_case = true, value_parser = transport::State::ALL.map(|state| state.name()))]
    state: Option<String>,
    /// Only queue pairs of this type: RC, UD, …
    #[arg(long = "type", value_name = "TYPE", ignore_case = true, value_parser = transport::Kind::ALL.map(|kind| kind.name()))]
    kind: Option<String>,
    /// Only queue pairs whose oldest work has not moved for a second
    #[arg(long)]
    stuck: bool,
    /// Only processes of this user, by name or number
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs ps                       what runs now
  ubiverbs ps --stuck               what makes no progress, and why
  ubiverbs ps 4711                  everything that process 4711 has
  ubiverbs ps --json | jq '.processes[].queue_pairs[].waiting'";

/// Queue pairs of a process that are shown in a list of processes.
const MAX_LISTED_QUEUE_PAIRS: usize = 32;

impl Filter {
    /// Whether a process is shown at all.
    pub fn includes(&self, process: &ProcessSnapshot) -> bool {
        let is_user = |user: &String| *user == process.user || user.parse() == Ok(process.uid);
        self.user.as_ref().is_none_or(is_user)
    }

    /// Whether a queue pair of it is.
    pub fn matches(&self, process: &ProcessSnapshot, pair: &QueuePair) -> bool {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|it| it.eq_ignore_ascii_case(name));
        let device = process.device(pair.interface, pair.port);
        (is(&self.device, device) || is(&self.device, device.split('/').next().unwrap_or(device)))
            && is(&self.state, snapshot::state_name(pair))
            && is(&self.kind, snapshot::kind_name(pair))
            && (!self.stuck || snapshot::is_stuck(pair))
    }

    /// Whether queue pairs are left out, and processes without any with them.
    fn selects_queue_pairs(&self) -> bool {
        self.stuck || [&self.device, &self.state, &self.kind].into_iter().any(Option::is_some)
    }

    /// The queue pairs of a process that are shown.
    pub fn queue_pairs<'a>(&'a self, process: &'a ProcessSnapshot) -> impl Iterator<Item = &'a QueuePair> {
        let pairs = process.report.iter().flat_map(|report| &report.queue_pairs);
        pairs.filter(|pair| self.matches(process, pair))
    }
}

/// What is to be shown of a snapshot.
struct Selection<'a> {
    snapshot: &'a Snapshot,
    options: &'a Options,
}

impl Selection<'_> {
    fn processes(&self) -> impl Iterator<Item = &ProcessSnapshot> {
        let Options { pids, filter, .. } = self.options;
        self.snapshot.processes.iter().filter(move |process| {
            let wanted = pids.is_empty() || pids.contains(&process.pid);
            let has_some = !filter.selects_queue_pairs() || filter.queue_pairs(process).next().is_some();
            wanted && filter.includes(process) && has_some
        })
    }

    /// Whether everything is shown that a process has.
    fn is_whole(&self) -> bool {
        !self.options.pids.is_empty()
    }

    fn queue_pairs<'a>(&'a self, process: &'a ProcessSnapshot) -> impl Iterator<Item = &'a QueuePair> {
        self.options.filter.queue_pairs(process)
    }

    /// How many queue pairs of a process are listed.
    fn limit(&self) -> usize {
        if self.options.all || self.is_whole() { usize::MAX } else { MAX_LISTED_QUEUE_PAIRS }
    }
}

/// Shows them.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    let snapshot = Snapshot::take(Duration::from_millis(options.timeout))?;
    let selection = Selection { snapshot: &snapshot, options };
    let written = match options.json {
        true => writeln!(out, "{:#}", document::of(&selection)),
        false => text::write(&selection, out),
    };
    written.map_err(Failure::Output)?;
    let missing = options.pids.iter().find(|pid| !snapshot.processes.iter().any(|process| process.pid == **pid));
    if let Some(pid) = missing {
        let reason = "it has no device of ubiverbs open, is another user's, or runs in another network namespace";
        return Err(Failure::NoProcess { pid: *pid, reason });
    }
    Ok(Exit::Ok)
}
