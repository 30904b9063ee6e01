//! perftest's programs for raw Ethernet, between two hosts: frames by the address of Ethernet, of IPv4 with ports, both ways, there and back; and how
//! fast flows are made. `-e` is not tried, as the programs never ask for the event that they then wait for; nor is `raw_ethernet_burst_lat`,
//! which ends because perftest's own limiter of rates is not for latencies.

use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{LOST, Stage};
use crate::{Test, expect, host};
use std::fs;

const ROW: Row = Row {
    program: "`raw_ethernet_{bw,lat,fs_rate}`",
    version: Version::Package("perftest"),
    what: "frames between two hosts by Ethernet address, and by IPv4 address and port; both ways; latency; the rate of flows",
};

/// Addresses that no interface has: flows say who gets what.
const SERVER: &str = "02:00:00:00:77:01";
const CLIENT: &str = "02:00:00:00:77:02";

const LINES: [&str; 5] = [
    "raw_ethernet_bw -s 1024 -n 1000",
    "raw_ethernet_bw -s 512 -n 500 -b",
    "raw_ethernet_bw -s 1500 -n 500 -J 10.77.0.1 -j 10.77.0.2 -K 5000 -k 5001",
    "raw_ethernet_lat -s 64 -n 200",
    "raw_ethernet_lat -s 1024 -n 200",
];

pub fn tests() -> Vec<Test> {
    let pair = |line: &'static str| {
        Test::new(format!("{line}, two hosts"), move |stage| stage.again_if_busy(|| pair(stage, line))).for_root()
    };
    let rate = Test::new("raw_ethernet_fs_rate", flow_rate).for_root();
    all_of(&ROW, LINES.map(pair).into_iter().chain([rate]))
}

/// Whether a process has a socket that takes all frames of an interface.
fn takes_frames(process: u32) -> bool {
    let sockets = fs::read_to_string(format!("/proc/{process}/net/packet")).unwrap_or_default();
    sockets.lines().any(|line| line.split_whitespace().nth(3) == Some("0003"))
}

fn pair(stage: &Stage, line: &str) -> Result<(), String> {
    let Some([left, right]) = &stage.joined else { return Err("no cables".into()) };
    let end = |role: &str, own: &str, other: &str| format!("{line} -d ubi_veth0 --{role} -B {own} -E {other}");
    let mut server = stage.start("server", &mut stage.run_on(left, None, &[], &end("server", SERVER, CLIENT)))?;
    host::wait("the server's flow", || server.has_ended() || takes_frames(server.id()))
        .map_err(|e| format!("{e}\n{}", server.text()))?;
    let client = stage.end(&mut stage.run_on(right, None, &[], &end("client", CLIENT, SERVER)))?;
    let told = format!("--- client: {}\n{}\n{}", client.status, client.last(), server.told());
    if !client.status.success() {
        return Err(told);
    }
    let server = server.end().map_err(|e| format!("{LOST}: {e}\n{told}"))?;
    if server.status.success() { Ok(()) } else { Err(format!("{told}\n--- server: {}", server.status)) }
}

fn flow_rate(stage: &Stage) -> Result<(), String> {
    let Some([left, _]) = &stage.joined else { return Err("no cables".into()) };
    let line = format!("raw_ethernet_fs_rate -d ubi_veth0 --server -B {SERVER} -E {CLIENT} -n 100");
    let ended = stage.end(&mut stage.run_on(left, None, &[], &line))?;
    if !ended.status.success() {
        return Err(format!("{}\n{}", ended.status, ended.last()));
    }
    expect(&ended.text, &["fps[flow per sec]"])
}
