//! qperf: bandwidth and latency of SEND, WRITE and READ, the rate of atomics, and two tests that look at what atomics
//! answer. One server serves them all, so what it would leak per connection adds up.
//!
//! With `-cm1` it connects by address and port, which Ethernet needs, and then it knows RC only.

use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Stage, Where};
use crate::steady::Server;
use crate::{Test, expect};

const ROW: Row = Row {
    program: "`qperf -cm1`",
    version: Version::Package("qperf"),
    what: "SEND one way, both ways, latency; WRITE, READ; atomics, whose answers it verifies; waiting on \
        one host, polling on two; the server's memory and descriptors stay what they were after the first test",
};

/// One after the other, a second each: it cannot do less, as it counts messages only where it does not connect.
const TESTS: [&str; 11] = [
    "rc_bw",
    "rc_bi_bw",
    "rc_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_poll_lat",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
    "rc_compare_swap_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// What eleven tests of a second take.
const QPERF_SECONDS: u32 = 15;

/// How often a client may come too early.
const REFUSALS_MAX: usize = 20;

pub fn tests() -> Vec<Test> {
    let tests = [
        Test::new("qperf, eleven tests, waiting, one host", |stage| all(stage, Where::OneHost, ""))
            .takes_seconds(QPERF_SECONDS),
        Test::new("qperf, eleven tests, polling, two hosts", |stage| all(stage, Where::TwoHosts, "-cp1"))
            .takes_seconds(QPERF_SECONDS)
            .for_root(),
        // What addresses by LID is refused here, as by every NIC on Ethernet, and at once.
        Test::new("qperf uc_lat, ud_lat without a connection manager are refused", refused),
    ];
    all_of(&ROW, tests)
}

fn all(stage: &Stage, at: Where, option: &str) -> Result<(), String> {
    let hosts = match (at, &stage.joined) {
        (Where::OneHost, _) => [&stage.alone; 2],
        (Where::TwoHosts, Some([left, right])) => [left, right],
        (Where::TwoHosts, None) => return Err("there is one host only".into()),
    };
    let port = stage.next_port();
    let mut server = Server::start(stage, hosts[0], &format!("qperf -lp {port}"), port)?;
    for test in TESTS {
        let line = format!("qperf {} -lp {port} -cm1 -to 100 -t 1 {option} {test}", hosts[0].address);
        let mut ended = stage.end(&mut stage.run_on(hosts[1], None, &[], &line))?;
        // The server tells its port, and listens there afterwards: a client that is faster is refused.
        for _ in 0..REFUSALS_MAX {
            if !ended.text.contains("Event rejected") {
                break;
            }
            stage.note(format!("{test}: the client came before the server listened, and comes again"));
            ended = stage.end(&mut stage.run_on(hosts[1], None, &[], &line))?;
        }
        let told = || format!("{line}: {}\n{}\n--- server\n{}", ended.status, ended.last(), server.text());
        if !ended.status.success() {
            return Err(told());
        }
        let answers: &[&str] = if test.ends_with("lat") { &["latency"] } else { &["="] };
        expect(&ended.text, answers).map_err(|_| told())?;
        server.served()?;
    }
    server.is_steady()
}

fn refused(stage: &Stage) -> Result<(), String> {
    let port = stage.next_port();
    let server = Server::start(stage, &stage.alone, &format!("qperf -lp {port}"), port)?;
    for test in ["uc_lat", "ud_lat"] {
        let line = format!("qperf 127.0.0.1 -lp {port} -n 10 {test}");
        let ended = stage.end(&mut stage.run_on(&stage.alone, None, &[], &line))?;
        if ended.status.success() {
            return Err(format!("{line}: {}\n{}", ended.text, server.text()));
        }
        expect(&ended.text, &["Invalid argument"])?;
    }
    Ok(())
}
