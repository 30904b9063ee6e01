//! UCX, which looks for devices among files before it asks the library, and then uses all of it: RC with a shared receive queue, UD, RDMA, atomics, and every
//! asynchronous event.

use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Pair, Stage, Where};
use crate::{Test, expect};

const ROW: Row = Row {
    program: "`ucx_info`, `ucx_perftest`",
    version: Version::Package("ucx-utils"),
    what: "RC and UD between two hosts: messages, put, get, atomics; messages over IPv4, too; tagged and active messages \
        and streams between two that sleep (`-E sleep`), one host and two. It checks no data: the MPI programs over \
        UCX do",
};

pub fn tests() -> Vec<Test> {
    let mut tests = vec![Test::new("ucx_info -d", |stage| {
        let text = stage.run(None, &[], "env UCX_NET_DEVICES=ubi_lo:1 ucx_info -d")?;
        expect(&text, &["Transport: rc_verbs", "Transport: ud_verbs", "Device: ubi_lo:1"])
    })];
    for transports in ["rc_verbs,ud_verbs", "ud_verbs"] {
        for test in ["tag_lat -s 64", "tag_bw -s 100000", "ucp_put_lat -s 8", "ucp_get -s 4096", "ucp_fadd -s 8"] {
            let name = format!("ucx_perftest -t {test}, {transports}, two hosts");
            tests.push(Test::new(name, move |stage| perftest(stage, transports, test, 0)).for_root());
        }
        for test in ["tag_lat -s 64", "tag_bw -s 100000"] {
            let name = format!("ucx_perftest -t {test}, {transports}, IPv4, two hosts");
            tests.push(Test::new(name, move |stage| perftest(stage, transports, test, 1)).for_root());
        }
        // Both sides sleep until something happens.
        for (at, hosts) in [(Where::OneHost, "one host"), (Where::TwoHosts, "two hosts")] {
            for test in SLEEPING {
                let name = format!("ucx_perftest -E sleep -t {test}, {transports}, {hosts}");
                let test = Test::new(name, move |stage| sleeping(stage, at, transports, test));
                tests.push(if at == Where::TwoHosts { test.for_root() } else { test });
            }
        }
    }
    all_of(&ROW, tests)
}

/// What is played by two that sleep.
const SLEEPING: [&str; 6] = [
    "tag_lat -s 64",
    "tag_bw -s 100000",
    "stream_lat -s 1000",
    "stream_bw -s 50000",
    "ucp_am_lat -s 100",
    "ucp_am_bw -s 100000",
];

fn sleeping(stage: &Stage, at: Where, transports: &str, test: &str) -> Result<(), String> {
    let device = if at == Where::OneHost { "ubi_lo" } else { "ubi_veth0" };
    let settings = format!("UCX_TLS={transports},self UCX_NET_DEVICES={device}:1");
    let line = format!("env {settings} ucx_perftest -E sleep -t {test} -n 100 -w 5");
    let text = stage.pair(&Pair { at, user: None, options: Vec::new(), line, server: "", clients: 1 })?;
    expect(&text, &["Final:"])
}

/// Entry 0 of the table is an address of IPv6, entry 1 one of IPv4.
fn perftest(stage: &Stage, transports: &str, test: &str, gid: u8) -> Result<(), String> {
    let settings = format!("UCX_TLS={transports},self UCX_NET_DEVICES=ubi_veth0:1 UCX_IB_GID_INDEX={gid}");
    let line = format!("env {settings} ucx_perftest -t {test} -n 100 -w 5");
    let text =
        stage.pair(&Pair { at: Where::TwoHosts, user: None, options: Vec::new(), line, server: "", clients: 1 })?;
    expect(&text, &["Final:"])
}
