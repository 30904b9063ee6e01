//! Programs of management on libibumad: what they do on a RoCE port, where there is no subnet management, no LID and no
//! subnet administrator. Most of them fail there, and here with the same words. `ibping` reaches its other end if it is
//! told to ask an administrator, whom our library plays (`-s`), for a port by the last eight bytes of its GID (`-G`).

use crate::host::{self, Host};
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{NOBODY_UID, Stage};
use crate::{Test, expect};
use std::net::Ipv4Addr;

const ROW: Row = Row {
    program: "`ibstat`, `ibping`, `perfquery`, `smpquery`, `sminfo`, `ibaddr`, `ibnetdiscover`",
    version: Version::Package("infiniband-diags"),
    what: "`ibstat` without files; `ibping` on one host and two, as root and as nobody; the others fail as on RoCE",
};

/// Programs that need subnet management, and what they say where there is none.
const REFUSED: [(&str, &str); 5] = [
    ("perfquery", "Failed to open '(null)' port '0'"),
    ("smpquery nodeinfo 1", "Failed to open '(null)' port '0'"),
    ("sminfo -C ubi_lo -P 1", "Failed to open 'ubi_lo' port '1'"),
    ("ibaddr", "Failed to open '(null)' port '0'"),
    ("ibnetdiscover", "discover failed"),
];

pub fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("ibstat, by the library", by_library),
        Test::new("ibping, one host", |stage| ping(stage, [&stage.alone; 2], None, "ubi_lo", Ipv4Addr::LOCALHOST)),
        Test::new("ibping, one host, as nobody", |stage| {
            ping(stage, [&stage.alone; 2], Some(NOBODY_UID), "ubi_lo", Ipv4Addr::LOCALHOST)
        })
        .for_root(),
        Test::new("ibping, two hosts", two_hosts).for_root(),
        Test::new("ibping by LID, which fails as on RoCE", by_lid),
    ];
    tests.extend(REFUSED.map(|(line, words)| {
        Test::new(format!("{line}, which fails as on RoCE"), move |stage| refused(stage, line, words))
    }));
    all_of(&ROW, tests)
}

/// The files are not asked.
fn by_library(stage: &Stage) -> Result<(), String> {
    let options = ["--no-files".to_owned()];
    let wanted = ["CA 'ubi_lo'", "Number of ports: 1", "State: Active", "Base lid: 0", "Link layer: Ethernet"];
    expect(&stage.run(None, &options, "ibstat ubi_lo")?, &wanted)?;
    expect(&stage.run(None, &options, "ibstat -l")?, &["ubi_lo"])
}

fn refused(stage: &Stage, line: &str, words: &str) -> Result<(), String> {
    let ended = stage.end(&mut stage.run_on(&stage.alone, None, &[], line))?;
    if ended.status.success() {
        return Err(format!("{line} did not fail:\n{}", ended.text));
    }
    expect(&ended.text, &["client_register for mgmt 1 failed", words])
}

fn by_lid(stage: &Stage) -> Result<(), String> {
    let text = stage.run(None, &[], "ibping -C ubi_lo -P 1 -c 1 1")?;
    expect(&text, &["send failed; Invalid argument", "1 packets transmitted, 0 received, 100% packet loss"])
}

fn two_hosts(stage: &Stage) -> Result<(), String> {
    let Some([left, right]) = &stage.joined else { return Err("no cables".into()) };
    let address: Ipv4Addr = left.address.parse().map_err(|e| format!("{}: {e}", left.address))?;
    ping(stage, [left, right], None, "ubi_veth0", address)
}

/// A server, and a client until that is there, and once more.
fn ping(
    stage: &Stage,
    [server, client]: [&Host; 2],
    user: Option<u32>,
    device: &str,
    address: Ipv4Addr,
) -> Result<(), String> {
    let line = format!("ibping -S -C {device} -P 1");
    let running = stage.start("server", &mut stage.run_on(server, user, &[], &line))?;
    let guid = 0xffff_u64 << 32 | u64::from(address.to_bits());
    let ask = |count: u32| {
        let line = format!("ibping -C {device} -P 1 -s 1 -c {count} -G {guid:#x}");
        stage.end(&mut stage.run_on(client, user, &[], &line)).map_or_else(|error| error, |ended| ended.text)
    };
    host::wait("the server to answer", || ask(1).contains("1 received"))
        .map_err(|e| format!("{e}\n{}", running.told()))?;
    expect(&ask(3), &["Pong from ", "3 packets transmitted, 3 received, 0% packet loss"])
}
