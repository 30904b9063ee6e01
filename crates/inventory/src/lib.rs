//! What the processes of a host have on its NIC: what they counted, and their objects. Each process writes a
//! [`Report`] when another one asks; [`gather`] asks all of them. The encoding is checked like everything that comes
//! from outside: lengths are bounded by what is there, and what cannot be read makes the report worthless, no more. A
//! process of another user may say what it likes, so all processes of a user together may tell of
//! [`MAX_RECORDS_PER_USER`] objects, and all other users together of [`MAX_RECORDS_OF_OTHERS`].
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
#[cfg(test)]
mod seeds;

pub use transport::Counters;

pub use report::{
    Activity, CompletionQueue, Congestion, ConnectionId, Context, Domain, Drops, NoReport, Port, QueuePair, Region,
    Report, SharedReceiveQueue, Socket, Waiting,
};

pub use host::inquiry::Users;

use host::holders::is_our_user;
use host::inquiry::{NoAnswer, SealedReport};
use host::names::{Name, Peer};
use host::slots::Slot;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use wire::Qpn;

/// How long processes have to answer, all of them together.
pub const REPORT_TIMEOUT: Duration = Duration::from_millis(250);

/// Objects that the processes of the own user may tell of: what one of them can have, 2^18 queue pairs and as many
/// regions, completion queues and ids.
const MAX_RECORDS_OF_OWN_USER: usize = 1 << 20;

/// Objects that the processes of another user may tell of.
pub const MAX_RECORDS_PER_USER: usize = 1 << 15;

/// Objects that the processes of all other users may tell of.
pub const MAX_RECORDS_OF_OTHERS: usize = 1 << 17;

/// A process of the host.
#[derive(Clone, PartialEq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The name of its command, as the kernel has it.
    pub command: String,
    /// What it has, or why that is not known.
    pub report: Result<Report, NoReport>,
}

/// What may still be read.
struct Allowances {
    own_user: usize,
    others: usize,
    of_user: BTreeMap<u32, usize>,
}

impl Allowances {
    fn new() -> Allowances {
        let of_user = BTreeMap::new();
        Allowances { own_user: MAX_RECORDS_OF_OWN_USER, others: MAX_RECORDS_OF_OTHERS, of_user }
    }

    /// Reads something that a process of that user tells.
    fn read<T>(&mut self, uid: u32, read: impl FnOnce(&mut usize) -> T) -> T {
        if is_our_user(uid) {
            return read(&mut self.own_user);
        }
        let of_user = self.of_user.entry(uid).or_insert(MAX_RECORDS_PER_USER);
        let before = (*of_user).min(self.others);
        let mut left = before;
        let answer = read(&mut left);
        (*of_user, self.others) = (*of_user - (before - left), self.others - (before - left));
        answer
    }
}

/// Asks processes, and reads what each tells.
fn ask<T>(
    users: Users,
    patience: Duration,
    read: impl Fn(SealedReport, &mut usize) -> Result<T, NoReport>,
    mut hear: impl FnMut(Peer, Result<T, NoReport>),
) -> io::Result<()> {
    let mut allowances = Allowances::new();
    host::inquiry::ask(users, patience, |process, report| {
        let report = match report {
            Ok(report) => allowances.read(process.uid, |left| read(report, left)),
            Err(NoAnswer::Silent) => Err(NoReport::Silent),
            Err(NoAnswer::Nonsense) => Err(NoReport::Nonsense),
        };
        hear(process, report);
    })
}

/// The processes of these users in this network namespace, in order of their numbers.
pub fn gather(users: Users) -> io::Result<Vec<Process>> {
    gather_within(users, REPORT_TIMEOUT)
}

/// As [`gather`]; the processes have so long to answer, all of them together.
pub fn gather_within(users: Users, patience: Duration) -> io::Result<Vec<Process>> {
    let mut processes = Vec::new();
    ask(users, patience, Report::decode, |process, report| {
        processes.push(Process { pid: process.pid, uid: process.uid, command: command(process.pid), report });
    })?;
    processes.sort_by_key(|process| process.pid);
    Ok(processes)
}

/// The process that may have a queue pair of this number: its share of the numbers has it. The process is not asked.
pub fn owner_of(queue_pair: u32) -> Option<i32> {
    let slot = Slot::of(Qpn::new(queue_pair))?;
    host::names::owner(Name::Slot(slot)).ok().flatten().map(|process| process.pid)
}

/// What was counted on each port, by its name as in [`Port::device`]: the sum over the processes of these users, living and ended.
pub fn port_counters(users: Users) -> io::Result<BTreeMap<String, Counters>> {
    let mut sums = ended::read(users);
    ask(users, REPORT_TIMEOUT, Report::decode_ports, |_, ports| {
        for port in ports.into_iter().flatten() {
            *sums.entry(port.device).or_default() += port.counters;
        }
    })?;
    Ok(sums)
}

/// The name of a command, which its process has chosen: none if the process has ended.
fn command(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    trace::printable(String::from_utf8_lossy(&name).trim_end_matches('\n')).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_do_not_use_up_what_others_may_tell() {
        let mut allowances = Allowances::new();
        let take = |left: &mut usize| {
            let taken = *left;
            *left = 0;
            taken
        };
        let own = host::holders::own_uid();
        let others = (1..=5).map(|uid| allowances.read(own + uid, take)).collect::<Vec<_>>();
        assert_eq!(others, [1 << 15, 1 << 15, 1 << 15, 1 << 15, 0]);
        assert_eq!(allowances.read(own + 1, take), 0);
        assert_eq!(allowances.read(own, take), 1 << 20);
    }
}
