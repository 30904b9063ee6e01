//! What the processes of this host have on its NIC at one moment, for `ps`, `top` and `metrics`: their reports, what
//! the kernel says of them, and which queue pairs belong together. Reports are not believed: they are bounded where they
//! are read (`inventory`), their texts are escaped here, and what they say of other processes counts for nothing.

mod reason;

use crate::exit::Failure;
use hca::Device;
use inventory::{NoReport, QueuePair, Report, Users};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use transport::{Kind, State};
use wire::Gid;

/// How long processes have to answer, all of them together.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(50);

/// Work that has not moved for so long is called stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(1);

/// Peers whose processes are looked for though no report has them.
const MAX_OWNERS_ASKED: usize = 64;

/// How much of `/etc/passwd` is read.
const MAX_PASSWD_BYTES: usize = 1 << 20;

/// All of them.
pub struct Snapshot {
    pub processes: Vec<ProcessSnapshot>,
    /// Where each queue pair is that a process says is its own: its process, and its place in the report.
    places: HashMap<u32, (usize, usize)>,
    /// The processes that own the numbers of peers that no report has.
    owners: HashMap<u32, i32>,
    /// Addresses of this host.
    addresses: BTreeSet<IpAddr>,
}

/// A process of this host.
pub struct ProcessSnapshot {
    pub pid: i32,
    /// The same, as text.
    pub pid_text: String,
    pub uid: u32,
    /// Its user's name, or number.
    pub user: String,
    /// The name of its command, escaped.
    pub command: String,
    /// The kernel's letter for what it does: `T` if it is stopped.
    pub condition: Option<char>,
    /// Processor time of its engine's thread, in nanoseconds.
    pub engine_nanos: Option<u64>,
    pub report: Result<Report, NoReport>,
}

impl Snapshot {
    /// Asks the processes of this user, or all if it is root.
    pub fn take(timeout: Duration) -> Result<Snapshot, Failure> {
        let what = "cannot ask the processes of this host";
        let gathered =
            inventory::gather_within(Users::All, timeout).map_err(|source| Failure::System { what, source })?;
        let users = user_names();
        let processes = gathered.into_iter().map(|process| {
            let (pid, uid) = (process.pid, process.uid);
            let user = users.get(&uid).cloned().unwrap_or_else(|| uid.to_string());
            let report = process.report.map(escaped);
            let thread = report.as_ref().map_or(0, |report| report.activity.engine_thread);
            let (condition, engine_nanos) = (condition(pid), processor_time(pid, thread));
            ProcessSnapshot {
                pid,
                pid_text: pid.to_string(),
                uid,
                user,
                command: process.command,
                condition,
                engine_nanos,
                report,
            }
        });
        let addresses = crate::devices::of_host().unwrap_or_default();
        let mut snapshot = Snapshot::of(processes.collect(), addresses.iter().flat_map(addresses_of).collect());
        snapshot.owners =
            snapshot.unknown_peers().filter_map(|peer| Some((peer, inventory::owner_of(peer)?))).collect();
        Ok(snapshot)
    }

    fn of(processes: Vec<ProcessSnapshot>, addresses: BTreeSet<IpAddr>) -> Snapshot {
        let mut places = HashMap::new();
        for (at, process) in processes.iter().enumerate() {
            let pairs = process.report.iter().flat_map(|report| &report.queue_pairs);
            places.extend(pairs.enumerate().map(|(place, pair)| (pair.number, (at, place))));
        }
        Snapshot { processes, places, owners: HashMap::new(), addresses }
    }

    /// Peers on this host of queue pairs that wait, where no report has them.
    fn unknown_peers(&self) -> impl Iterator<Item = u32> {
        let pairs = self.processes.iter().flat_map(|process| &process.report).flat_map(|report| &report.queue_pairs);
        let unknown = pairs.filter(|pair| pair.waiting.is_some() && self.is_here(pair) && self.peer_of(pair).is_none());
        unknown.map(|pair| pair.peer).take(MAX_OWNERS_ASKED)
    }

    /// Whether the peer of a queue pair is on this host.
    fn is_here(&self, pair: &QueuePair) -> bool {
        destination(pair).is_some_and(|address| self.addresses.contains(&address))
    }

    /// The peer of a queue pair, if it is on this host and its process says that it has it.
    pub fn peer_of(&self, pair: &QueuePair) -> Option<(&ProcessSnapshot, &QueuePair)> {
        if !self.is_here(pair) {
            return None;
        }
        let (process, place) = *self.places.get(&pair.peer)?;
        let process = self.processes.get(process)?;
        Some((process, process.report.as_ref().ok()?.queue_pairs.get(place)?))
    }
}

impl ProcessSnapshot {
    /// Whether it is stopped: by SIGSTOP, a terminal or a debugger.
    pub fn is_stopped(&self) -> bool {
        matches!(self.condition, Some('T' | 't'))
    }

    /// Why there is no report of it, in a sentence.
    pub fn silence(&self) -> Option<String> {
        let reason = self.report.as_ref().err()?;
        Some(match (reason, self.is_stopped()) {
            (NoReport::Silent, true) => {
                "it is stopped (SIGSTOP, a terminal or a debugger) and cannot answer".to_owned()
            }
            (reason, _) => reason.to_string(),
        })
    }

    /// The name of the device with this number.
    pub fn device(&self, interface: u32, port: u8) -> &str {
        let ports = self.report.iter().flat_map(|report| &report.ports);
        let mut named = ports.filter(|known| known.interface == interface).map(|known| known.device.as_str());
        let is_port = |name: &&str| name.split_once('/').map_or(port <= 1, |(_, number)| number.parse() == Ok(port));
        let first = named.clone().next();
        named.find(is_port).or(first).unwrap_or("?")
    }
}

/// The name of a kind of queue pair, as verbs' users know it.
pub fn kind_name(pair: &QueuePair) -> &'static str {
    Kind::from_code(pair.kind).map_or("?", Kind::name)
}

/// The name of its state.
pub fn state_name(pair: &QueuePair) -> &'static str {
    if pair.busy > 0 { "busy" } else { State::from_code(pair.state).map_or("?", State::name) }
}

/// Whether a queue pair has one peer, and knows it.
pub fn has_peer(pair: &QueuePair) -> bool {
    pair.peer != 0 && Kind::from_code(pair.kind).is_some_and(Kind::is_connected)
}

/// Where a queue pair sends to, if it has one peer.
pub fn destination(pair: &QueuePair) -> Option<IpAddr> {
    has_peer(pair).then(|| Gid::new(pair.destination).to_ip()).map(|address| match address {
        IpAddr::V6(address) => address.to_canonical(),
        address => address,
    })
}

/// How long its oldest work has not moved.
pub fn waits_for(pair: &QueuePair) -> Option<Duration> {
    pair.waiting.as_ref().map(|waiting| Duration::from_nanos(waiting.nanos))
}

/// Whether that is too long.
pub fn is_stuck(pair: &QueuePair) -> bool {
    waits_for(pair).is_some_and(|time| time >= STUCK_AFTER)
}

fn addresses_of(device: &Arc<Device>) -> Vec<IpAddr> {
    let gids = device.ports().flat_map(|port| port.port().gids.clone()).flatten();
    gids.map(|gid| gid.to_ip().to_canonical()).collect()
}

/// With all its texts escaped: their writer may want to give orders to a terminal.
fn escaped(mut report: Report) -> Report {
    let escape = |text: &mut String| {
        let shown = trace::printable(text).to_string();
        *text = shown;
    };
    report.ports.iter_mut().for_each(|port| escape(&mut port.device));
    for pair in &mut report.queue_pairs {
        escape(&mut pair.link);
        escape(&mut pair.stop);
        if let Some(waiting) = &mut pair.waiting {
            escape(&mut waiting.operation);
        }
    }
    escape(&mut report.activity.version);
    report.activity.drops.iter_mut().for_each(|drops| escape(&mut drops.reason));
    report.sockets.iter_mut().for_each(|socket| escape(&mut socket.state));
    report
}

/// The kernel's letter for what a process does, behind its name, which may have brackets and letters of its own.
fn condition(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Processor time of a thread, in nanoseconds.
fn processor_time(pid: i32, thread: u32) -> Option<u64> {
    let times = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
    times.split_ascii_whitespace().next()?.parse().ok()
}

/// The users of this host that have a name in its file.
fn user_names() -> BTreeMap<u32, String> {
    let mut text = fs::read("/etc/passwd").unwrap_or_default();
    text.truncate(MAX_PASSWD_BYTES);
    let text = String::from_utf8_lossy(&text);
    let mut names = BTreeMap::new();
    for line in text.lines().map(|line| trace::printable(line).to_string()) {
        let mut fields = line.split(':');
        if let (Some(name), Some(Ok(uid))) = (fields.next(), fields.nth(1).map(str::parse)) {
            names.entry(uid).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use inventory::{Activity, Port, Waiting};

    /// Two processes on this host with a connection between them, and one that is stopped.
    pub fn sample() -> Snapshot {
        let pair = |number, peer| QueuePair {
            number,
            peer,
            interface: 1,
            port: 1,
            kind: 2,
            state: 3,
            destination: Gid::from_ip([127, 0, 0, 1].into()).octets(),
            link: "shared memory".into(),
            max_sends: 128,
            max_receives: 512,
            ..QueuePair::default()
        };
        let mut client = pair(0x0001_a2b3, 0x0001_f00d);
        client.sends = 3;
        client.waiting = Some(Waiting {
            reason: 1,
            nanos: 3_200_000_000,
            psn: 77,
            tries: 2,
            tries_allowed: Some(7),
            operation: "SEND".into(),
            ..Waiting::default()
        });
        let process = |pid, command: &str, pairs| ProcessSnapshot {
            pid,
            pid_text: pid.to_string(),
            uid: 0,
            user: "root".into(),
            command: command.into(),
            condition: Some('S'),
            engine_nanos: Some(1_000_000),
            report: Ok(Report {
                ports: vec![Port { device: "ubi_lo".into(), interface: 1, ..Port::default() }],
                queue_pairs: pairs,
                activity: Activity { version: "1".into(), age_nanos: 12_300_000_000, ..Activity::default() },
                ..Report::default()
            }),
        };
        let mut stopped = process(4300, "frozen", Vec::new());
        (stopped.condition, stopped.report) = (Some('T'), Err(NoReport::Silent));
        let server = process(4250, "server", vec![pair(0x0001_f00d, 0x0001_a2b3)]);
        let processes = vec![process(4242, "client", vec![client]), server, stopped];
        Snapshot::of(processes, [IpAddr::from([127, 0, 0, 1])].into())
    }

    #[test]
    fn a_peer_is_found_where_its_address_is_this_hosts() {
        let mut snapshot = sample();
        let client = snapshot.processes[0].report.as_ref().unwrap().queue_pairs[0].clone();
        assert_eq!(snapshot.unknown_peers().count(), 0);
        let (process, pair) = snapshot.peer_of(&client).unwrap();
        assert_eq!((process.pid, pair.number), (4250, client.peer));
        snapshot.places.remove(&client.peer);
        assert_eq!(snapshot.unknown_peers().collect::<Vec<_>>(), [client.peer]);
        snapshot.places.insert(client.peer, (1, 0));
        snapshot.addresses.clear();
        assert!(snapshot.peer_of(&client).is_none(), "the number may be another host's");
    }

    #[test]
    fn texts_of_others_give_no_orders_to_a_terminal() {
        let evil = "\u{1b}]0;pwned\u{7}\u{9b}2J\u{202e}".to_owned();
        let pair = QueuePair {
            link: evil.clone(),
            stop: evil.clone(),
            waiting: Some(Waiting { operation: evil.clone(), ..Waiting::default() }),
            ..QueuePair::default()
        };
        let report = Report {
            ports: vec![Port { device: evil.clone(), ..Port::default() }],
            queue_pairs: vec![pair],
            activity: Activity {
                version: evil.clone(),
                drops: vec![inventory::Drops { reason: evil.clone(), count: 1 }],
                ..Activity::default()
            },
            sockets: vec![inventory::Socket { state: evil, ..inventory::Socket::default() }],
            ..Report::default()
        };
        let text = format!("{:?}", escaped(report)).replace("\\\\u", "");
        assert!(!text.contains(['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}']) && !text.contains("\\u{"), "{text}");
    }

    #[test]
    fn who_is_silent_is_said_to_be_stopped_if_it_is() {
        let snapshot = sample();
        assert!(snapshot.processes[2].silence().unwrap().contains("SIGSTOP"));
        assert_eq!(snapshot.processes[0].silence(), None);
    }

    #[test]
    fn this_process_is_no_stopped_one_and_its_user_has_a_name() {
        assert!(matches!(condition(std::process::id() as i32), Some('R' | 'S')));
        assert!(user_names().contains_key(&0));
    }
}
