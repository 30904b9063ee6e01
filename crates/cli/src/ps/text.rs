//! Processes as text, in 80 columns where names are short.

use super::Selection;
use crate::snapshot::{self, ProcessSnapshot, is_stuck, kind_name, state_name, waits_for};
use crate::style;
use inventory::{ConnectionId, QueuePair, Report, names};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Objects of a kind that are shown of one process.
const MAX_LISTED_OBJECTS: usize = 1000;

/// How wide the lines of a sentence are, behind their indent.
const FOLDED_WIDTH: usize = 74;

/// The kernel's state of an id that waits for connections.
const LISTENING: u8 = 8;

pub(super) fn write(selection: &Selection<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut any = false;
    for process in selection.processes() {
        if std::mem::replace(&mut any, true) {
            writeln!(out)?;
        }
        of_process(selection, process, out)?;
    }
    if !any {
        let whose = if rustix::process::geteuid().is_root() { "No process" } else { "No process of your user" };
        let what = if selection.snapshot.processes.is_empty() { "has a device of ubiverbs open" } else { "matches" };
        writeln!(out, "{whose} {what}.")?;
    }
    Ok(())
}

fn of_process(selection: &Selection<'_>, process: &ProcessSnapshot, out: &mut impl Write) -> io::Result<()> {
    let (title, bad) = (style::TITLE_STYLE, style::BAD_STYLE);
    let ProcessSnapshot { pid, command, user, .. } = process;
    write!(out, "{title}PID {pid}  {command}{title:#}  {user}")?;
    let report = match &process.report {
        Ok(report) => report,
        Err(_) => return writeln!(out, "\n  {bad}{}{bad:#}", process.silence().unwrap_or_default()),
    };
    let age = Duration::from_nanos(report.activity.age_nanos);
    write!(out, "  for {}", time(age))?;
    if let Some(nanos) = process.engine_nanos {
        write!(out, "  engine {} s", figure(nanos as f64 / 1e9))?;
    }
    let devices: Vec<&str> = opened(process, report);
    writeln!(out, "  {}", devices.join(" "))?;
    let mut pairs = selection.queue_pairs(process);
    for (place, pair) in pairs.by_ref().take(selection.limit()).enumerate() {
        if place == 0 {
            writeln!(out, "  QP       TYPE  STATE      SENDS     RECVS  LINK           PEER")?;
        }
        of_pair(selection, pair, out)?;
    }
    let more = pairs.count();
    if more > 0 {
        writeln!(out, "  … and {more} more queue pairs: ubiverbs ps --all, or ubiverbs ps {pid}")?;
    }
    sums(report, out)?;
    for id in report.ids.iter().filter(|id| id.state == LISTENING).take(MAX_LISTED_OBJECTS) {
        writeln!(out, "  listens on {} ({})", address(id.source), space(id))?;
    }
    if selection.is_whole() {
        everything(process, report, out)?;
    }
    Ok(())
}

/// The names of the devices that are open.
fn opened<'a>(process: &'a ProcessSnapshot, report: &Report) -> Vec<&'a str> {
    let mut devices: Vec<&str> = report.contexts.iter().map(|context| process.device(context.interface, 1)).collect();
    devices.sort_unstable();
    devices.dedup();
    devices.truncate(8);
    devices
}

fn of_pair(selection: &Selection<'_>, pair: &QueuePair, out: &mut impl Write) -> io::Result<()> {
    let share = |used: u32, of: u32| if of == 0 { "-".to_owned() } else { format!("{used}/{of}") };
    let receives = if pair.shared_queue > 0 { "shared".into() } else { share(pair.receives, pair.max_receives) };
    let (sends, kind, state) = (share(pair.sends, pair.max_sends), kind_name(pair), state_name(pair));
    let link = if snapshot::has_peer(pair) { pair.link.as_str() } else { "-" };
    let peer = peer(selection, pair);
    writeln!(out, "  {:#08x} {kind:<6}{state:<6}{sends:>10}{receives:>10}  {link:<14} {peer}", pair.number)?;
    let reason = selection
        .snapshot
        .reason(pair)
        .filter(|_| is_stuck(pair) || selection.is_whole() || !pair.stop.is_empty() || pair.waiting.is_none());
    if let Some(reason) = reason {
        let style = if is_stuck(pair) { style::BAD_STYLE } else { style::WARNING_STYLE };
        let begin = match waits_for(pair) {
            Some(waited) if is_stuck(pair) => format!("stuck for {}: ", time(waited)),
            Some(waited) => format!("waits for {}: ", time(waited)),
            None => String::new(),
        };
        for line in folded(&format!("{begin}{reason}"), FOLDED_WIDTH) {
            writeln!(out, "      {style}{line}{style:#}")?;
        }
    }
    Ok(())
}

/// A sentence as lines of so many letters at most, where its words are no longer.
pub fn folded(sentence: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split(' ') {
        let line = lines.last_mut().filter(|line| line.chars().count() + 1 + word.chars().count() <= width);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => *line = format!("{line} {word}"),
            None => lines.push(word.to_owned()),
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// The peer of a queue pair, and the process that has it.
fn peer(selection: &Selection<'_>, pair: &QueuePair) -> String {
    if !snapshot::has_peer(pair) {
        return "-".into();
    }
    let at = match selection.snapshot.peer_of(pair) {
        Some((process, _)) => format!("PID {}", process.pid),
        None => snapshot::destination(pair).map(|address| address.to_string()).unwrap_or_default(),
    };
    format!("{:#08x} {at}", pair.peer)
}

/// One line of what else there is.
fn sums(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let bytes: u64 = report.regions.iter().fold(0, |sum, region| sum.saturating_add(region.length));
    let waiting: u64 = report.completion_queues.iter().map(|queue| u64::from(queue.waiting)).sum();
    let mut parts = Vec::new();
    let mut add = |count: usize, what: &str, more: String| {
        if count > 0 {
            parts.push(format!("{count} {what}{}{more}", if count == 1 { "" } else { "s" }));
        }
    };
    add(report.regions.len(), "MR", format!(" of {}", amount(bytes)));
    let unpolled = if waiting > 0 { format!(" ({waiting} completions not polled)") } else { String::new() };
    add(report.completion_queues.len(), "CQ", unpolled);
    add(report.domains.len(), "PD", String::new());
    add(report.shared_queues.len(), "SRQ", String::new());
    add(report.ids.len(), "CM id", String::new());
    add(report.sockets.len(), "socket", String::new());
    if parts.is_empty() { Ok(()) } else { writeln!(out, "  {}", parts.join(", ")) }
}

/// Everything that a process has.
fn everything(process: &ProcessSnapshot, report: &Report, out: &mut impl Write) -> io::Result<()> {
    for pair in &report.queue_pairs {
        writeln!(out, "  QP {:#08x} on {}", pair.number, process.device(pair.interface, pair.port))?;
        writeln!(
            out,
            "    PSN: next sent {} (first {}), next expected {} (first {})  path MTU {}",
            pair.send_psn, pair.first_send_psn, pair.receive_psn, pair.first_receive_psn, pair.path_mtu
        )?;
        if let Some(way) = &pair.congestion {
            let round_trip =
                way.round_trip_nanos.map(|nanos| format!(", round trip {}", time(Duration::from_nanos(nanos))));
            writeln!(
                out,
                "    congestion window {} bytes, {} under way{}",
                way.window,
                way.in_flight,
                round_trip.unwrap_or_default()
            )?;
        }
        counters(names::queue_pair(&pair.counters), "    ", out)?;
    }
    for queue in report.completion_queues.iter().take(MAX_LISTED_OBJECTS) {
        let lost = if queue.overflowed > 0 { ", OVERFLOWED: completions were lost" } else { "" };
        writeln!(
            out,
            "  CQ {}: {} of {} entries wait to be polled, {} queue pairs{lost}",
            queue.number, queue.waiting, queue.entries, queue.users
        )?;
    }
    for region in report.regions.iter().take(MAX_LISTED_OBJECTS) {
        let (from, bytes) = (region.address, amount(region.length));
        writeln!(out, "  MR lkey {:#010x} rkey {:#010x}: {bytes} at {from:#x}", region.local_key(), region.key)?;
    }
    for id in report.ids.iter().filter(|id| id.state != LISTENING).take(MAX_LISTED_OBJECTS) {
        let (source, destination) = (address(id.source), address(id.destination));
        let pair = if id.queue_pair > 0 { format!(" QP {:#08x}", id.queue_pair) } else { String::new() };
        writeln!(out, "  CM id {}: {} {source} -> {destination} ({}){pair}", id.number, id_state(id), space(id))?;
    }
    for socket in report.sockets.iter().take(MAX_LISTED_OBJECTS) {
        let (source, destination) = (address(socket.source), address(socket.destination));
        write!(out, "  socket {}: {} {source} -> {destination}", socket.number, socket.state)?;
        let pair = if socket.queue_pair > 0 { format!(", QP {:#08x}", socket.queue_pair) } else { String::new() };
        let waiting = [
            (socket.unread, "bytes not read"),
            (socket.unacknowledged, "bytes not acknowledged"),
            (socket.completions.into(), "completions not looked at"),
        ];
        let waiting = waiting.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}"));
        writeln!(out, "{pair}{}", waiting.collect::<String>())?;
    }
    for port in &report.ports {
        writeln!(out, "  port {}", port.device)?;
        counters([names::port(&port.counters), names::hardware(&port.counters)].concat(), "    ", out)?;
    }
    for drops in &report.activity.drops {
        writeln!(out, "  dropped {} ({})", drops.count, drops.reason)?;
    }
    let driver = if report.activity.driven_by_program > 0 { "the polling program" } else { "the engine" };
    let blocked = report.activity.blocked_callers;
    writeln!(out, "  driven by {driver}, {blocked} threads block in calls, version {}", report.activity.version)
}

/// Those that are not 0, several on a line.
fn counters(counters: Vec<(&'static str, u64)>, indent: &str, out: &mut impl Write) -> io::Result<()> {
    let mut line = String::new();
    for (name, value) in counters.into_iter().filter(|(_, value)| *value > 0) {
        let word = format!("{name} {value}");
        if !line.is_empty() && line.len() + word.len() > 72 {
            writeln!(out, "{indent}{line}")?;
            line.clear();
        }
        let gap = if line.is_empty() { "" } else { "  " };
        line = format!("{line}{gap}{word}");
    }
    if line.is_empty() { Ok(()) } else { writeln!(out, "{indent}{line}") }
}

fn address(address: Option<SocketAddr>) -> String {
    address.map_or("?".into(), |address| address.to_string())
}

/// The name of an id's port space.
pub fn space(id: &ConnectionId) -> &'static str {
    match id.space {
        0x0002 => "IPoIB",
        0x0106 => "TCP",
        0x0111 => "UDP",
        0x013f => "IB",
        _ => "?",
    }
}

/// The kernel's name of an id's state.
pub fn id_state(id: &ConnectionId) -> &'static str {
    const NAMES: [&str; 11] = [
        "IDLE",
        "ADDR_QUERY",
        "ADDR_RESOLVED",
        "ROUTE_QUERY",
        "ROUTE_RESOLVED",
        "CONNECT",
        "DISCONNECT",
        "ADDR_BOUND",
        "LISTEN",
        "DEVICE_REMOVAL",
        "DESTROYING",
    ];
    NAMES.get(usize::from(id.state)).unwrap_or(&"?")
}

/// With three digits.
fn figure(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A time in the unit that fits.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        86_400.0.. => format!("{:.1} days", seconds / 86_400.0),
        3600.0..86_400.0 => format!("{:.1} h", seconds / 3600.0),
        120.0..3600.0 => format!("{:.0} min", seconds / 60.0),
        1.0..120.0 => format!("{seconds:.1} s"),
        0.001..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{:.0} us", seconds * 1e6),
    }
}

/// Bytes in the unit that fits.
pub fn amount(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{} {}", figure(value), UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::Options;
    use crate::snapshot::tests::sample;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn shown(words: &[&str]) -> String {
        let line = Line::parse_from([&["ps"], words].concat());
        let snapshot = sample();
        let mut out = Vec::new();
        write(&Selection { snapshot: &snapshot, options: &line.options }, &mut out).unwrap();
        anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string()
    }

    #[test]
    fn processes_fit_eighty_columns() {
        let text = shown(&[]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "PID 4242  client  root  for 12.3 s  engine 0.00 s",
            "0x01a2b3 RC    RTS        3/128     0/512  shared memory  0x01f00d PID 4250",
            "      stuck for 3.2 s: no acknowledgement of PSN 77 (sent again 2 of 7 times)",
            "PID 4300  frozen  root\n  it is stopped (SIGSTOP, a terminal or a debugger) and cannot answer",
        ] {
            assert!(text.contains(part), "{part:?}: {text}");
        }
    }

    #[test]
    fn filters_leave_out_what_does_not_match() {
        let processes = |words: &[&str]| {
            let text = shown(words);
            let pids = text.lines().filter_map(|line| line.strip_prefix("PID ")?.split(' ').next()?.parse().ok());
            pids.collect::<Vec<i32>>()
        };
        assert_eq!(processes(&[]), [4242, 4250, 4300]);
        assert_eq!(processes(&["--stuck"]), [4242]);
        assert_eq!(processes(&["--state", "rts"]), [4242, 4250]);
        assert_eq!(processes(&["--state", "ERR"]), [0_i32; 0]);
        assert_eq!(processes(&["--type", "ud"]), [0_i32; 0]);
        assert_eq!(processes(&["--device", "ubi_lo"]), [4242, 4250]);
        assert_eq!(processes(&["--device", "ubi_eth0"]), [0_i32; 0]);
        assert_eq!(processes(&["--user", "0"]), [4242, 4250, 4300]);
        assert_eq!(processes(&["--user", "nobody"]), [0_i32; 0]);
        assert_eq!(processes(&["4250"]), [4250]);
        assert!(shown(&["--type", "ud"]).contains("No process matches."));
        assert!(shown(&["4250"]).contains("PSN: next sent 0 (first 0)"));
    }

    #[test]
    fn times_and_amounts_have_fitting_units() {
        let times = [7_000, 20_000_000, 1_500_000_000, 600_000_000_000, 7_200_000_000_000, 172_800_000_000_000];
        let said: Vec<String> = times.into_iter().map(|nanos| time(Duration::from_nanos(nanos))).collect();
        assert_eq!(said, ["7 us", "20 ms", "1.5 s", "10 min", "2.0 h", "2.0 days"]);
        assert_eq!(
            [0, 1023, 1024, 12 << 20, u64::MAX].map(amount),
            ["0 B", "1023 B", "1.00 KiB", "12.0 MiB", "16777216 TiB"]
        );
    }
}
