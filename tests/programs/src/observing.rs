//! What runs now: `ubiverbs ps` and `metrics` beside programs that run, one of them stopped, and beside those of another
//! user.

use crate::host::{self, Host};
use crate::stage::{NOBODY_UID, Running, Stage};
use crate::{Test, expect};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::Command;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("ps: ib_send_bw, and a side that is stopped", stopped),
        Test::new("ps: a listener and a connection of rping", ids),
        Test::new("ps: processes of another user", strangers).for_root(),
        Test::new("metrics: ib_send_bw, as Prometheus fetches them", metrics),
    ]
}

/// Long enough for a busy machine. Processes that all answer are not waited for.
const PATIENCE: [&str; 2] = ["--timeout", "60000"];

/// `ubiverbs COMMAND` on the lonely host.
fn ubiverbs(stage: &Stage, user: Option<u32>, words: &[&str]) -> Command {
    let mut command = stage.alone.command(user, &stage.dist.join("bin/ubiverbs"));
    command.args(words).env_remove("LD_LIBRARY_PATH").current_dir("/");
    command
}

/// What `ps --json` says of the processes, with these options.
fn processes(stage: &Stage, user: Option<u32>, options: &[&str]) -> Result<Vec<Value>, String> {
    let words = [&["ps", "--json"], options].concat();
    let ended = stage.end(&mut ubiverbs(stage, user, &words))?;
    let document: Value = serde_json::from_str(&ended.text).map_err(|e| format!("{e}: {}", ended.last()))?;
    document["processes"].as_array().cloned().ok_or_else(|| format!("no list: {document}"))
}

/// Waits until `ps` shows something, and returns it.
fn wait<T>(stage: &Stage, what: &str, seen: impl Fn(&[Value]) -> Option<T>) -> Result<T, String> {
    let mut found = None;
    let mut last = Vec::new();
    host::wait(what, || {
        last = processes(stage, None, &PATIENCE).unwrap_or_default();
        found = seen(&last);
        found.is_some()
    })
    .map_err(|e| format!("{e}: {last:?}"))?;
    found.ok_or_else(|| what.to_owned())
}

/// A server and a client that send until they are ended.
fn endless(stage: &Stage) -> Result<[Running; 2], String> {
    let line = format!("ib_send_bw --run_infinitely -D 1 -p {}", stage.next_port());
    let host: &Host = &stage.alone;
    let server = stage.start("server", &mut stage.run_on(host, None, &[], &line))?;
    let client = format!("for i in $(seq 600); do \"$0\" run -- {line} 127.0.0.1 && break; sleep 0.1; done");
    let mut command = host.command(None, std::path::Path::new("sh"));
    command.args(["-c", &client]).arg(stage.dist.join("bin/ubiverbs"));
    Ok([server, stage.start("client", &mut command)?])
}

fn pair(process: &Value) -> &Value {
    &process["queue_pairs"][0]
}

fn signal(pid: i64, signal: Signal) -> Result<(), String> {
    let pid = Pid::from_raw(pid as i32).ok_or("no number")?;
    kill_process(pid, signal).map_err(|e| e.to_string())
}

fn stopped(stage: &Stage) -> Result<(), String> {
    let running = endless(stage)?;
    let sides = wait(stage, "both sides of ib_send_bw that send", |processes| {
        let sends = |process: &&Value| pair(process)["counters"]["rdma_sends"].as_u64() > Some(1000);
        let client = processes.iter().find(sends)?;
        let number = pair(client)["peer"]["number"].as_u64()?;
        let server = processes.iter().find(|process| pair(process)["number"].as_u64() == Some(number))?;
        (pair(client)["peer"]["pid"] == server["pid"]).then(|| [server.clone(), client.clone()])
    })?;
    let [server, client] = &sides;
    let words = [&pair(client)["state"], &pair(client)["type"], &pair(client)["link"], &client["command"]];
    if words != ["RTS", "RC", "shared memory", "ib_send_bw"]
        || client["memory_regions"][0]["length"].as_u64() == Some(0)
    {
        return Err(format!("{client}"));
    }
    let pid = server["pid"].as_i64().ok_or("no process")?;
    signal(pid, Signal::STOP)?;
    // It answers no more, so each look costs its time.
    let mut text = String::new();
    let seen = host::wait("the client to be stuck", || {
        let ended = stage.end(&mut ubiverbs(stage, None, &["ps", "--timeout", "2000"]));
        text = ended.map(|ended| ended.text).unwrap_or_default();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        flat.contains("it is stopped (SIGSTOP, a terminal or a debugger) and cannot answer")
            && flat.contains("stuck for")
            && flat.contains(&format!("its process {pid} is stopped"))
    });
    signal(pid, Signal::CONT)?;
    seen.map_err(|e| format!("{e}: {text}"))?;
    wait(stage, "the server to answer again", |processes| {
        processes.iter().find(|process| process["pid"].as_i64() == Some(pid) && process["answered"] == true).map(|_| ())
    })?;
    let whole = stage.end(&mut ubiverbs(stage, None, &["ps", &pid.to_string(), "--timeout", "60000"]))?;
    drop(running);
    expect(&whole.text, &["PSN: next sent", "rcvd_pkts", "MR lkey", "CQ 1: ", "port ubi_lo", "driven by"])
}

/// The value of the sample that begins so, if there is one.
fn sample(text: &str, begin: &str) -> Option<f64> {
    text.lines().find(|line| line.starts_with(begin))?.rsplit(' ').next()?.parse().ok()
}

fn metrics(stage: &Stage) -> Result<(), String> {
    let _running = endless(stage)?;
    let words = ["metrics", "--queue-pairs", "--timeout", "60000", "--listen", "127.0.0.1:0"];
    let server = stage.start("metrics", &mut ubiverbs(stage, None, &words))?;
    host::wait("the server", || server.text().contains("Serving http://"))?;
    let text = server.text();
    let place = text.split_whitespace().nth(1).ok_or_else(|| format!("no place: {text}"))?;
    let fetch = || {
        let mut command = stage.alone.command(None, std::path::Path::new("curl"));
        command.args(["--silent", "--show-error", "--include", "-H", "Accept: application/openmetrics-text", place]);
        stage.end(&mut command).map(|ended| ended.text)
    };
    let moved = |text: &str| {
        let port = sample(text, "node_infiniband_port_data_transmitted_bytes_total{device=\"ubi_lo\",port=\"1\"}")?;
        let messages = sample(text, "ubiverbs_port_messages_sent_total{device=\"ubi_lo\"")?;
        (port > 1e6 && messages > 10.0).then_some([port, messages])
    };
    let mut first = String::new();
    host::wait("figures of a program that sends", || {
        first = fetch().unwrap_or_default();
        moved(&first).is_some()
    })
    .map_err(|e| format!("{e}: {first}"))?;
    let wanted =
        ["HTTP/1.1 200 OK", "application/openmetrics-text; version=1.0.0", "command=\"ib_send_bw\"", "# EOF\n"];
    expect(&first, &wanted)?;
    expect(&first, &["ubiverbs_queue_pair_sent_bytes_total{pid=", "type=\"RC\",state=\"RTS\"}"])?;
    // Figures are a second old at most.
    let before = moved(&first);
    host::wait("figures that grow", || fetch().is_ok_and(|text| moved(&text) > before))
}

fn ids(stage: &Stage) -> Result<(), String> {
    let port = stage.next_port();
    let server = format!("rping -s -a 127.0.0.1 -p {port} -P");
    let _server = stage.start("server", &mut stage.run_on(&stage.alone, None, &[], &server))?;
    let address = format!("127.0.0.1:{port}");
    wait(stage, "a listener", |processes| {
        let ids = processes.iter().flat_map(|process| process["cm_ids"].as_array().into_iter().flatten());
        ids.into_iter().find(|id| id["state"] == "LISTEN" && id["source"] == address.as_str()).map(|_| ())
    })?;
    let ended = stage.end(&mut ubiverbs(stage, None, &["ps", "--timeout", "60000"]))?;
    expect(&ended.text, &[&format!("listens on {address} (TCP)"), "rping"])
}

/// Root sees everybody's, another user only its own.
fn strangers(stage: &Stage) -> Result<(), String> {
    let line = |port: u16| format!("rping -s -a 127.0.0.1 -p {port} -P");
    let start = |name: &str, user, port| stage.start(name, &mut stage.run_on(&stage.alone, user, &[], &line(port)));
    let _roots = start("root's", None, stage.next_port())?;
    let _nobodys = start("nobody's", Some(NOBODY_UID), stage.next_port())?;
    let users =
        |processes: &[Value]| processes.iter().filter_map(|process| process["uid"].as_u64()).collect::<Vec<_>>();
    let pid = wait(stage, "processes of both users", |processes| {
        let mut all = users(processes);
        all.sort_unstable();
        let roots = processes.iter().find(|process| process["uid"] == 0)?;
        (all == [0, u64::from(NOBODY_UID)]).then(|| roots["pid"].to_string())
    })?;
    let seen = users(&processes(stage, Some(NOBODY_UID), &PATIENCE)?);
    if seen != [u64::from(NOBODY_UID)] {
        return Err(format!("nobody sees the processes of {seen:?}"));
    }
    let ended = stage.end(&mut ubiverbs(stage, Some(NOBODY_UID), &["ps", &pid]))?;
    if ended.status.code() != Some(1) {
        return Err(format!("{}: {}", ended.status, ended.text));
    }
    expect(
        &ended.text,
        &[&format!("process {pid} cannot be shown: it has no device of ubiverbs open, is another user's")],
    )
}
