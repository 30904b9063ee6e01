//! Programs that connect by address and port: those of rdma-core, and perftest with `-R`. On the loopback, on an address of the host, between two hosts, over IPv4
//! and IPv6, as nobody, and where packets get lost.

use crate::host::Host;
use crate::scoreboard::{Row, Version};
use crate::stage::{Link, NOBODY_UID, Scene, Stage};
use crate::{Test, expect};

/// Where the programs are, and how the server is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProgramPlacement {
    Loopback,
    Loopback6,
    /// The loopback's address, with a device that is not the loopback's.
    OtherDevice,
    OtherDevice6,
    HostAddress,
    Between,
    Between6,
}

impl ProgramPlacement {
    fn name(self) -> &'static str {
        match self {
            ProgramPlacement::Loopback => "loopback",
            ProgramPlacement::Loopback6 => "IPv6 loopback",
            ProgramPlacement::OtherDevice => "loopback of another device",
            ProgramPlacement::OtherDevice6 => "IPv6 loopback of another device",
            ProgramPlacement::HostAddress => "address of the host",
            ProgramPlacement::Between => "two hosts",
            ProgramPlacement::Between6 => "two hosts, IPv6",
        }
    }

    fn needs_root(self) -> bool {
        !matches!(self, ProgramPlacement::Loopback | ProgramPlacement::Loopback6)
    }

    fn hosts(self, stage: &Stage) -> Result<([&Host; 2], &'static str), String> {
        let joined = || stage.joined.as_ref().ok_or("there is one host only");
        Ok(match self {
            ProgramPlacement::Loopback => ([&stage.alone; 2], "127.0.0.1"),
            ProgramPlacement::Loopback6 => ([&stage.alone; 2], "::1"),
            ProgramPlacement::OtherDevice => ([&joined()?[0]; 2], "127.0.0.1"),
            ProgramPlacement::OtherDevice6 => ([&joined()?[0]; 2], "::1"),
            ProgramPlacement::HostAddress => {
                let [left, _] = joined()?;
                ([left; 2], left.address)
            }
            ProgramPlacement::Between => {
                let [left, right] = joined()?;
                ([left, right], left.address)
            }
            ProgramPlacement::Between6 => {
                let [left, right] = joined()?;
                ([left, right], "fd77::1")
            }
        })
    }
}

/// A server and its client. `ADDRESS` and `PORT` stand for those of the server.
#[derive(Clone, Copy, Debug)]
struct Line {
    server: &'static str,
    client: &'static str,
    /// What the client prints when all is well, beyond its exit code.
    says: &'static str,
    clients: usize,
    stays: bool,
}

const fn line(server: &'static str, client: &'static str, says: &'static str) -> Line {
    Line { server, client, says, clients: 1, stays: false }
}

const RPING: Line =
    line("rping -s -a ADDRESS -p PORT -V -C 20", "rping -c -a ADDRESS -p PORT -V -C 20 -v", "rdma-ping-19");
const UCMATOSE: Line = line("ucmatose -b ADDRESS -p PORT", "ucmatose -s ADDRESS -p PORT", "return status 0");
const UDADDY: Line = line("udaddy -b ADDRESS", "udaddy -s ADDRESS", "return status 0");
const SERVER: Line = line("rdma_server -s ADDRESS -p PORT", "rdma_client -s ADDRESS -p PORT", "rdma_client: end 0");
const RSTREAM: Line = line(
    "rstream -b ADDRESS -p PORT -T v -S 50000 -C 10 -I 3",
    "rstream -s ADDRESS -p PORT -T v -S 50000 -C 10 -I 3",
    "custom",
);
const CMTIME: Line =
    Line { stays: true, ..line("cmtime -b ADDRESS -p PORT", "cmtime -s ADDRESS -p PORT -c 100", "disconnect") };

/// What is tried once, on the loopback.
const ONCE: [Line; 26] = [
    line("rping -s -p PORT -V -C 5", "rping -c -a ADDRESS -p PORT -V -C 5 -v", "rdma-ping-4"),
    line("rping -s -a ::0 -p PORT -V -C 5", "rping -c -a ADDRESS -p PORT -V -C 5 -v", "rdma-ping-4"),
    line("rping -s -p PORT -V -C 50 -S 60000", "rping -c -a ADDRESS -p PORT -V -C 50 -S 60000", ""),
    line("rping -s -p PORT -q -V -C 5", "rping -c -a ADDRESS -p PORT -q -V -C 5 -v", "rdma-ping-4"),
    line("rping -s -p PORT -V -C 5", "rping -c -I 127.0.0.1 -a ADDRESS -p PORT -V -C 5 -v", "rdma-ping-4"),
    Line {
        clients: 3,
        stays: true,
        ..line("rping -s -P -p PORT -V", "rping -c -a ADDRESS -p PORT -V -C 200 -v", "rdma-ping-4")
    },
    line("ucmatose -p PORT -c 100", "ucmatose -s ADDRESS -p PORT -c 100", "return status 0"),
    line("ucmatose -p PORT -c 10 -C 50 -S 5000", "ucmatose -s ADDRESS -p PORT -c 10 -C 50 -S 5000", "return status 0"),
    line("ucmatose -p PORT -c 10 -m", "ucmatose -s ADDRESS -p PORT -c 10 -m", "return status 0"),
    line("ucmatose -p PORT -t 32 -a 14", "ucmatose -s ADDRESS -p PORT -t 32 -a 14", "return status 0"),
    line("ucmatose -p PORT -P ib", "ucmatose -s ADDRESS -p PORT -P ib", "return status 0"),
    line("udaddy -c 20 -C 5 -S 1000", "udaddy -s ADDRESS -c 20 -C 5 -S 1000", "return status 0"),
    line("udaddy -p 0x2", "udaddy -s ADDRESS -p 0x2", "return status 0"),
    line("udaddy -t 32", "udaddy -s ADDRESS -t 32", "return status 0"),
    line("rdma_xserver -p PORT", "rdma_xclient -s ADDRESS -p PORT", "rdma_xclient: end 0"),
    line("rdma_xserver -p PORT -c x", "rdma_xclient -s ADDRESS -p PORT -c x", "rdma_xclient: end 0"),
    Line { stays: true, ..line("cmtime -p PORT", "cmtime -s ADDRESS -p PORT -c 1000", "disconnect") },
    Line { clients: 4, stays: true, ..line("cmtime -p PORT", "cmtime -s ADDRESS -p PORT -c 100", "disconnect") },
    line("rstream -p PORT -T a -S 64 -C 50 -I 3", "rstream -s ADDRESS -p PORT -T a -S 64 -C 50 -I 3", "custom"),
    line("rstream -p PORT -T b -S 64 -C 50 -I 3", "rstream -s ADDRESS -p PORT -T b -S 64 -C 50 -I 3", "custom"),
    line("rstream -p PORT -T n -S 64 -C 50 -I 3", "rstream -s ADDRESS -p PORT -T n -S 64 -C 50 -I 3", "custom"),
    line("rstream -p PORT -T r -S 64 -C 50 -I 3", "rstream -s ADDRESS -p PORT -T r -S 64 -C 50 -I 3", "custom"),
    line("rstream -p PORT -T v -S 1000000 -C 1 -I 5", "rstream -s ADDRESS -p PORT -T v -S 1000000 -C 1 -I 5", "custom"),
    line("riostream -p PORT -S 4096 -C 20 -I 3", "riostream -s ADDRESS -p PORT -S 4096 -C 20 -I 3", "custom"),
    Line { stays: true, ..line("udpong -b ADDRESS -p PORT", "udpong -s ADDRESS -p PORT -C 100 -S 1000 -T e", "xfer") },
    // A thousand connections by fifty processes.
    Line { clients: 50, stays: true, ..line("cmtime -p PORT", "cmtime -s ADDRESS -p PORT -c 20", "disconnect") },
];

/// perftest's, whose lines are the same on both sides.
const PERFTEST: [&str; 12] = [
    "ib_send_lat -n 100",
    "ib_send_bw -n 100",
    "ib_send_bw -n 100 -c UD -s 1024",
    "ib_send_bw -n 100 -q 4 -b",
    "ib_send_bw -n 100 -T 32",
    "ib_write_lat -n 100",
    "ib_write_bw -n 100 -q 4",
    "ib_send_bw -n 100 -e",
    "ib_read_lat -n 100",
    "ib_read_bw -n 100 -s 65536",
    "ib_atomic_lat -n 100",
    "ib_atomic_bw -n 100",
];

const RPING_ROW: Row = Row {
    program: "`rping`",
    version: Version::Package("rdmacm-utils"),
    what: "data checked; loopback, an address of the host, two hosts; as nobody; 5 % of packets lost; IPv6; its own \
        queue pairs; several clients",
};

const UCMATOSE_ROW: Row = Row {
    program: "`ucmatose`",
    version: Version::Package("rdmacm-utils"),
    what: "the same places; 100 connections, migrated ids, type of service, ACK timeout, `RDMA_PS_IB`",
};

const UDADDY_ROW: Row = Row {
    program: "`udaddy`",
    version: Version::Package("rdmacm-utils"),
    what: "the same places; 20 connections; over IPOIB",
};

const ENDPOINTS_ROW: Row = Row {
    program: "`rdma_client`, `rdma_server`, `rdma_xclient`, `rdma_xserver`",
    version: Version::Package("rdmacm-utils"),
    what: "the same places; RC and XRC",
};

const CMTIME_ROW: Row = Row {
    program: "`cmtime`",
    version: Version::Package("rdmacm-utils"),
    what: "the same places; 1000 connections by one process and by fifty",
};

const SOCKETS_ROW: Row = Row {
    program: "`rstream`, `riostream`, `udpong`",
    version: Version::Package("rdmacm-utils"),
    what: "sockets over RDMA; data checked; the same places; blocking, non-blocking, with `rpoll`; I/O mappings; datagrams",
};

const PERFTEST_ROW: Row = Row {
    program: "`ib_*` with `-R`",
    version: Version::Package("perftest"),
    what: "SEND, WRITE, READ, atomics; RC and UD; 4 queue pairs, both ways, events, type of service; loopback and two \
        hosts",
};

/// The row of a program.
fn row(program: &str) -> &'static Row {
    match program.split_whitespace().next() {
        Some("rping") => &RPING_ROW,
        Some("ucmatose") => &UCMATOSE_ROW,
        Some("udaddy") => &UDADDY_ROW,
        Some("cmtime") => &CMTIME_ROW,
        Some("rstream" | "riostream" | "udpong") => &SOCKETS_ROW,
        _ => &ENDPOINTS_ROW,
    }
}

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for line in [RPING, UCMATOSE, UDADDY, SERVER, CMTIME, RSTREAM] {
        for place in [ProgramPlacement::Loopback, ProgramPlacement::HostAddress, ProgramPlacement::Between] {
            tests.push(test(line, place, None, None));
        }
        tests.push(test(line, ProgramPlacement::Loopback, Some(NOBODY_UID), None));
        tests.push(test(line, ProgramPlacement::Between, None, Some("drop=5%")));
        tests.push(test_with(line, ProgramPlacement::Loopback, None, ", UDP", Link::Udp.options()));
    }
    for line in [RPING, UCMATOSE, SERVER] {
        let options = ["--faults", "drop=5%,seed=3"].map(String::from).into_iter().chain(Link::Udp.options());
        tests.push(test_with(line, ProgramPlacement::Loopback, None, ", UDP, drop=5%,seed=3", options.collect()));
    }
    for place in [ProgramPlacement::Loopback6, ProgramPlacement::Between6] {
        tests.push(test(RPING, place, None, None));
        tests.push(test(SERVER, place, None, None));
        tests.push(test(RSTREAM, place, None, None));
    }
    // As with kernels, the loopback is reached through the device that there is.
    let device = || ["--device", "ubi_veth0"].map(String::from).to_vec();
    for line in [RPING, UCMATOSE, UDADDY, SERVER] {
        tests.push(test_with(line, ProgramPlacement::OtherDevice, None, "", device()));
        tests.push(test_with(
            line,
            ProgramPlacement::OtherDevice,
            None,
            ", UDP",
            [device(), Link::Udp.options()].concat(),
        ));
    }
    tests.push(test_with(RPING, ProgramPlacement::OtherDevice6, None, "", device()));
    tests.extend(ONCE.map(|line| test(line, ProgramPlacement::Loopback, None, None)));
    for line in PERFTEST {
        tests.push(perftest(line, ProgramPlacement::Loopback));
        tests.push(perftest(line, ProgramPlacement::Between));
    }
    tests.push(Test::new("rping: nobody listens", nobody_listens).of(&RPING_ROW));
    tests.push(Test::new("cm: tshark reads every message of a connection", messages).of(&RPING_ROW));
    tests
}

fn for_place(test: Test, place: ProgramPlacement, user: Option<u32>) -> Test {
    if place.needs_root() || user.is_some() { test.for_root() } else { test }
}

fn test(line: Line, place: ProgramPlacement, user: Option<u32>, faults: Option<&'static str>) -> Test {
    let lossy = faults.map(|plan| format!(", {plan}")).unwrap_or_default();
    let options = faults.map(|plan| vec!["--faults".to_owned(), plan.to_owned()]).unwrap_or_default();
    test_with(line, place, user, &lossy, options)
}

/// With options of `ubiverbs run`, and what the test's name says of them.
fn test_with(line: Line, place: ProgramPlacement, user: Option<u32>, what: &str, options: Vec<String>) -> Test {
    let program = line.client.replace(" -a ADDRESS", "").replace(" -s ADDRESS", "").replace(" -p PORT", "");
    let many = if line.clients > 1 { format!(", {} at once", line.clients) } else { String::new() };
    let who = if user.is_some() { ", as nobody" } else { "" };
    let name = format!("{program}{many}, {}{who}{what}", place.name());
    let play = move |stage: &Stage| {
        let (hosts, address) = place.hosts(stage)?;
        // udaddy knows one port only.
        let port = if line.server.contains("PORT") { stage.next_port() } else { 7174 };
        let filled = |text: &str| text.replace("ADDRESS", address).replace("PORT", &port.to_string());
        let scene = Scene {
            hosts,
            user,
            options: &options,
            server: filled(line.server),
            port,
            clients: vec![filled(line.client); line.clients],
            stays: line.stays,
        };
        let told = stage.play(&scene)?;
        told.iter().take(line.clients).try_for_each(|text| expect(text, &[line.says]))
    };
    for_place(Test::new(name, play), place, user).of(row(line.client))
}

fn perftest(line: &'static str, place: ProgramPlacement) -> Test {
    let play = move |stage: &Stage| {
        let (hosts, address) = place.hosts(stage)?;
        let port = stage.next_port();
        let server = format!("{line} -R -F -p {port}");
        let clients = vec![format!("{server} {address}")];
        let told = stage.play(&Scene { hosts, user: None, options: &[], server, port, clients, stays: false })?;
        expect(&told[0], &["#bytes"])
    };
    for_place(Test::new(format!("{line} -R, {}", place.name()), play), place, None).of(&PERFTEST_ROW)
}

fn nobody_listens(stage: &Stage) -> Result<(), String> {
    let line = format!("rping -c -a 127.0.0.1 -p {} -C 1", stage.next_port());
    let ended = stage.end(&mut stage.run_on(&stage.alone, None, &[], &line))?;
    if ended.status.success() {
        return Err(ended.text);
    }
    expect(&ended.text, &["RDMA_CM_EVENT_REJECTED", "error 8"])
}

/// What a capture of a connection has: the messages in their order, none of them malformed.
fn messages(stage: &Stage) -> Result<(), String> {
    let file = stage.place.join("connection.pcapng");
    let port = stage.next_port();
    let address = "127.0.0.1";
    stage.play(&Scene {
        hosts: [&stage.alone; 2],
        user: None,
        options: &[],
        server: format!("rping -s -a {address} -p {port} -C 2"),
        port,
        clients: vec![format!("env UBIVERBS_PCAP={} rping -c -a {address} -p {port} -C 2", file.display())],
        stays: false,
    })?;
    let fields = ["infiniband.mad.attributeid", "_ws.malformed", "_ws.expert.message"];
    let frames = crate::running::tshark(&file, &fields)?;
    let attributes: Vec<&str> = frames.iter().filter_map(|line| line.split('\t').next()).collect();
    let mut rest = attributes.iter();
    // REQ, REP, RTU, DREQ, DREP.
    for attribute in ["0x0010", "0x0013", "0x0014", "0x0015", "0x0016"] {
        if !rest.any(|found| *found == attribute) {
            return Err(format!("no {attribute} after those before it in {attributes:?}"));
        }
    }
    match frames.iter().find(|line| line.contains("alformed")) {
        Some(bad) => Err(format!("malformed: {bad}")),
        None => Ok(()),
    }
}
