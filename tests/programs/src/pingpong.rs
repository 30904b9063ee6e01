//! rdma-core's five ping-pong programs: every kind of service, polling and with events, as root and as nobody, on one host over both of its links and
//! over cables, in sizes around the path MTU and up to a megabyte.

use crate::Test;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, NOBODY_UID, Pair, Stage, Where};

/// A program and what it is run with.
struct Line {
    program: &'static str,
    /// Checks the data.
    check: &'static str,
    /// Fits the smallest cable.
    fits: &'static str,
}

const LINES: [Line; 5] = [
    Line { program: "ibv_rc_pingpong", check: "-c", fits: "" },
    Line { program: "ibv_uc_pingpong", check: "-c", fits: "" },
    Line { program: "ibv_ud_pingpong", check: "-c", fits: "-s 1024" },
    Line { program: "ibv_srq_pingpong", check: "-c -n 200", fits: "" },
    // `-c` is something else there, and it checks nothing.
    Line { program: "ibv_xsrq_pingpong", check: "", fits: "-m 1024" },
];

/// Lines with something special about them: over the loopback, then over a cable. Not `-t -e`: with both the program takes it for a failure
/// that it wakes up for a completion which it has already seen.
const MORE: [(Where, &str); 25] = [
    (Where::OneHost, "ibv_rc_pingpong -c -s 1 -n 5000"),
    (Where::OneHost, "ibv_rc_pingpong -c -s 1048576 -n 20 -m 4096"),
    (Where::OneHost, "ibv_rc_pingpong -c -s 65537 -n 20 -m 256 -r 2"),
    (Where::OneHost, "ibv_rc_pingpong -c -n 1"),
    (Where::OneHost, "ibv_rc_pingpong -c -t"),
    (Where::OneHost, "ibv_rc_pingpong -c -j"),
    (Where::OneHost, "ibv_rc_pingpong -c -N"),
    (Where::OneHost, "ibv_rc_pingpong -c -o"),
    (Where::OneHost, "ibv_rc_pingpong -c -o -P"),
    (Where::OneHost, "ibv_rc_pingpong -c -O"),
    (Where::OneHost, "ibv_uc_pingpong -c -s 1 -m 512"),
    (Where::OneHost, "ibv_uc_pingpong -c -s 4097 -m 2048 -n 100"),
    (Where::OneHost, "ibv_ud_pingpong -c -s 1"),
    (Where::OneHost, "ibv_ud_pingpong -c -s 4096 -n 3000 -e"),
    (Where::OneHost, "ibv_srq_pingpong -c -s 65536 -q 3 -n 30 -m 4096"),
    (Where::OneHost, "ibv_srq_pingpong -c -o -n 100"),
    (Where::OneHost, "ibv_xsrq_pingpong -n 500 -s 32768 -m 4096 -o"),
    (Where::TwoHosts, "ibv_rc_pingpong -c -d ubi_veth1 -m 4096 -s 1048576 -n 20"),
    (Where::TwoHosts, "ibv_rc_pingpong -c -d ubi_veth1 -m 4096 -g 1 -t"),
    (Where::TwoHosts, "ibv_rc_pingpong -c -d ubi_veth0 -g 1 -N -e"),
    (Where::TwoHosts, "ibv_rc_pingpong -c -d ubi_veth0 -m 256 -s 100000 -n 50"),
    (Where::TwoHosts, "ibv_uc_pingpong -c -d ubi_veth0 -g 1 -e"),
    (Where::TwoHosts, "ibv_ud_pingpong -c -d ubi_veth1 -s 4096 -g 1"),
    (Where::TwoHosts, "ibv_srq_pingpong -c -d ubi_veth1 -m 2048 -g 1 -n 100"),
    (Where::TwoHosts, "ibv_xsrq_pingpong -d ubi_veth1 -m 4096 -g 1 -e"),
];

const ROW: Row = Row {
    program: "`ibv_{rc,uc,ud,srq,xsrq}_pingpong`",
    version: Version::Package("ibverbs-utils"),
    what: "polling and events, data checked where offered; loopback and two hosts; root and nobody; 1 byte to 1 MiB, \
        every MTU, IPv4 and IPv6; timestamps, device memory, on-demand paging, `ibv_wr_*`; packets lost",
};

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for Line { program, check, fits } in &LINES {
        for events in ["", "-e"] {
            tests.push(test(Where::OneHost, None, words(&[program, check, events])));
            tests.push(test(Where::OneHost, Some(NOBODY_UID), words(&[program, check, events])));
            tests.push(test(Where::TwoHosts, None, words(&[program, check, fits, events])));
            tests.push(test(Where::TwoHosts, Some(NOBODY_UID), words(&[program, check, fits, events])));
            let line = words(&[program, check, events]);
            let name = format!("{line}, one host, UDP");
            let play = move |stage: &Stage| play_on(stage, Where::OneHost, None, &line, &Link::Udp.options());
            tests.push(Test::new(name, play));
        }
    }
    tests.extend(MORE.iter().map(|(at, line)| test(*at, None, (*line).to_owned())));
    let play = |stage: &Stage| {
        let line = "ibv_xsrq_pingpong -d ubi_lo -g 0".to_owned();
        let pair = Pair { at: Where::OneHost, user: None, options: Vec::new(), line, server: "-c 3", clients: 3 };
        stage.pair(&pair).map(drop)
    };
    tests.push(Test::new("ibv_xsrq_pingpong, three clients, one host", play));
    // By number, and early: if the last acknowledgement is lost these programs fail on any network, because the other side has ended. One queue pair:
    // of several, the others would be done with all messages before the one that lost something has recovered.
    for line in
        ["ibv_rc_pingpong -c -s 20000 -n 200", "ibv_srq_pingpong -c -n 500 -q 1", "ibv_xsrq_pingpong -n 50 -s 30000"]
    {
        let name = format!("{line}, packets lost, two hosts");
        let options = vec!["--faults".to_owned(), "drop@7,drop@33..35,drop@60,corrupt@100".to_owned()];
        tests.push(Test::new(name, move |stage| play_on(stage, Where::TwoHosts, None, line, &options)).for_root());
    }
    all_of(&ROW, tests)
}

fn words(words: &[&str]) -> String {
    words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ")
}

fn test(at: Where, user: Option<u32>, line: String) -> Test {
    let hosts = if at == Where::OneHost { "one host" } else { "two hosts" };
    let who = if user.is_some() { ", as nobody" } else { "" };
    let test = Test::new(format!("{line}, {hosts}{who}"), move |stage| play_on(stage, at, user, &line, &[]));
    if at == Where::TwoHosts || user.is_some() { test.for_root() } else { test }
}

fn play_on(stage: &Stage, at: Where, user: Option<u32>, line: &str, options: &[String]) -> Result<(), String> {
    let mut line = line.to_owned();
    if !line.contains(" -d ") {
        line += if at == Where::OneHost { " -d ubi_lo" } else { " -d ubi_veth0" };
    }
    if !line.contains(" -g ") {
        line += " -g 0";
    }
    let is_xsrq = line.starts_with("ibv_xsrq");
    let text = stage.pair(&Pair { at, user, options: options.to_vec(), line, server: "", clients: 1 })?;
    // It says so, and ends well all the same.
    if text.contains("invalid data") {
        return Err(text);
    }
    match is_xsrq {
        true => crate::expect(&text, &["success"]),
        false => crate::expect(&text, &["bytes in", "iters in"]),
    }
}
