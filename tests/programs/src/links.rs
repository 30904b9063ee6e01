//! The two links of a host: that each carries what it is asked to, and that through shared memory a program that polls makes no system calls, as strace
//! counts them.

use crate::Test;
use crate::host::Host;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, Scene, Stage};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const ROW: Row = Row {
    program: "`ib_send_lat`, watched",
    version: Version::Package("perftest"),
    what: "each link of a host carries what it is asked to; no system call per message through shared memory, by \
        `strace`",
};

pub fn tests() -> Vec<Test> {
    let carries = |link: Link| {
        let name = format!("links: ib_send_lat -n 1000 goes through {}", link.name());
        Test::new(name, move |stage| carries(stage, link))
    };
    let mut tests: Vec<Test> = Link::BOTH.map(carries).into();
    // Not `ib_write_lat`: it looks at memory, and a sleeping writer would have to be woken.
    let name = "links: ib_send_lat makes no system call per message, strace, shared memory";
    tests.push(Test::new(name, no_system_calls).for_tracers().alone());
    all_of(&ROW, tests)
}

/// Whether one process may look at another.
pub fn may_trace() -> bool {
    let mut command = Command::new("strace");
    command.args(["-o", "/dev/null", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Who has to wait for a processor goes to sleep, which takes system calls: these programs get one before all others,
/// if we may say so.
fn favoured() -> &'static str {
    let mut command = Command::new("chrt");
    command.args(["--rr", "1", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    if command.status().is_ok_and(|status| status.success()) { "chrt --rr 1" } else { "env" }
}

/// A pair of a program of perftest on the lonely host; `before` comes before the names of server and client.
/// Answers what the client printed.
fn pair(stage: &Stage, link: Link, line: &str, before: [&str; 2]) -> Result<String, String> {
    let port = stage.next_port();
    let line = format!("{line} -d ubi_lo -x 0 -F -p {port}");
    let scene = Scene {
        hosts: [&stage.alone; 2],
        user: None,
        options: &link.options(),
        server: format!("{} {line}", before[0]),
        port,
        clients: vec![format!("{} {line} {}", before[1], stage.alone.address)],
        stays: false,
    };
    Ok(stage.play(&scene)?.swap_remove(0))
}

/// How many datagrams processes of a host have sent by UDP.
pub fn datagrams(stage: &Stage, host: &Host) -> Result<u64, String> {
    let mut command = host.command(None, Path::new("cat"));
    let text = stage.end(command.args(["/proc/net/snmp", "/proc/net/snmp6"]))?.text;
    // IPv4 has a row of names and one of numbers, IPv6 a row for each.
    let mut rows = text.lines().filter(|line| line.starts_with("Udp:")).map(str::split_whitespace);
    let column = rows.next().and_then(|mut names| names.position(|name| name == "OutDatagrams"));
    let v4 = column.and_then(|column| rows.next()?.nth(column)?.parse::<u64>().ok());
    let v6 = text.lines().find_map(|line| line.strip_prefix("Udp6OutDatagrams")?.trim().parse::<u64>().ok());
    v4.zip(v6).map(|(v4, v6)| v4 + v6).ok_or_else(|| format!("no datagrams are counted in\n{text}"))
}

fn carries(stage: &Stage, link: Link) -> Result<(), String> {
    let before = datagrams(stage, &stage.alone)?;
    pair(stage, link, "ib_send_lat -n 1000", ["", ""])?;
    let sent = datagrams(stage, &stage.alone)? - before;
    // A thousand messages and their answers; others of this machine may send a few where there is no host of our own.
    match link {
        Link::Udp if sent >= 2000 => Ok(()),
        Link::SharedMemory if sent < 200 => Ok(()),
        _ => Err(format!("{sent} datagrams were sent")),
    }
}

/// What a client did: system calls, and microseconds in the part that is measured.
#[derive(Clone, Copy, Debug)]
struct Counted {
    calls: u64,
    microseconds: f64,
}

/// One run of so many messages.
fn count(stage: &Stage, messages: u64) -> Result<Counted, String> {
    let file = stage.place.join("calls");
    let favoured = favoured();
    let strace = format!("{favoured} strace -f -c -o {}", file.display());
    let text = pair(stage, Link::SharedMemory, &format!("ib_send_lat -n {messages}"), [favoured, &strace])?;
    let table = fs::read_to_string(&file).map_err(|e| format!("strace wrote nothing: {e}"))?;
    // Percentage, seconds, microseconds per call, calls, perhaps errors, name.
    let total = table.lines().find(|line| line.ends_with("total")).and_then(|line| line.split_whitespace().nth(3));
    let calls =
        total.and_then(|calls| calls.parse().ok()).ok_or_else(|| format!("strace counted nothing:\n{table}"))?;
    // Size, messages, then times of half a round trip: least, most, typical, average.
    let row = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).nth(1);
    let average: Option<f64> = row.and_then(|row| row.split_whitespace().nth(5)?.parse().ok());
    let average = average.ok_or_else(|| format!("no result in:\n{text}"))?;
    Ok(Counted { calls, microseconds: 2.0 * average * messages as f64 })
}

/// How often it is counted before it counts.
const TRIES_MAX: usize = 12;

fn no_system_calls(stage: &Stage) -> Result<(), String> {
    const FEW: u64 = 2_000;
    const MANY: u64 = 20_000;
    let mut told = String::new();
    // A machine that gives both sides a processor most of the time is needed: who waits for one sleeps in the end.
    for _ in 0..TRIES_MAX {
        let (few, many) = (count(stage, FEW)?, count(stage, MANY)?);
        let each = many.calls.saturating_sub(few.calls) as f64 / (MANY - FEW) as f64;
        // The thread that helps out looks in once a millisecond: what it does then is the time's, not the messages'.
        let looks = 20.0 * (many.microseconds - few.microseconds).max(0.0) / 1000.0 / (MANY - FEW) as f64;
        if each < 0.05 + looks {
            return Ok(());
        }
        let wrong = format!("{each:.3} system calls per message: {few:?} for {FEW}, {many:?} for {MANY}");
        stage.note(format!("{wrong}: counted once more"));
        told += &format!("{wrong}\n");
    }
    Err(told)
}
