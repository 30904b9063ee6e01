//! What the processes of a host have on its NIC: what they counted, and their objects. Each process writes a
//! [`Report`] when another one asks; [`gather`] asks all of them. The encoding is checked like everything that comes
//! from outside: lengths are bounded by what is there, and what cannot be read makes the report worthless, no more.
//!
//! | module | what |
//! |---|---|
//! | [`report`] | a process's objects and counters |
//! | [`encoding`] | how a report is written down and read |
//! | [`names`] | a port's counters by the names that the kernel and hardware give them |
//! | [`ended`] | what processes counted that have ended |

#![forbid(unsafe_code)]

pub mod encoding;
pub mod ended;
pub mod names;
pub mod report;

pub use transport::Counters;

pub use report::{CompletionQueue, ConnectionId, Context, Domain, Port, QueuePair, Region, Report, SharedReceiveQueue};

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// How long processes have to answer.
pub const PATIENCE: Duration = Duration::from_millis(250);

/// A process of the host.
#[derive(Clone, PartialEq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The name of its command, as the kernel has it.
    pub command: String,
    /// What it has; none if it did not answer: it is stopped, perhaps.
    pub report: Option<Report>,
}

/// The processes of this network namespace that this user may ask, in order of their numbers: the user's own, or all
/// for root.
pub fn gather() -> io::Result<Vec<Process>> {
    let answers = host::inquiry::ask(PATIENCE)?;
    let process = |answer: host::inquiry::Answer| Process {
        pid: answer.process.pid,
        uid: answer.process.uid,
        command: command(answer.process.pid),
        report: answer.report.as_deref().and_then(Report::decode),
    };
    Ok(answers.into_iter().map(process).collect())
}

/// What the host has counted on each port, by the device's name: the sum over its processes, living and ended.
pub fn port_counters() -> io::Result<BTreeMap<String, Counters>> {
    let mut sums = ended::read();
    for port in gather()?.into_iter().filter_map(|process| process.report).flat_map(|report| report.ports) {
        *sums.entry(port.device).or_default() += port.counters;
    }
    Ok(sums)
}

/// The name of a command: none if the process has ended.
fn command(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned()
}
