//! Multicast between hosts: a program of ours in the roles of all, two of them on the sender's own host, while tshark looks at the cable.

use crate::compiled::compile;
use crate::host::Host;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::Stage;
use crate::{Test, expect, host};
use std::path::Path;

/// A group, and what frames to it look like: Ethernet has groups of its own, made from those of IP.
const GROUPS: [(&str, &str); 3] = [
    ("239.77.0.5", "01:00:5e:4d:00:05"),
    ("ff15::77:5", "33:33:00:77:00:05"),
    // Of the link only.
    ("ff02::77:6", "33:33:00:77:00:06"),
];

const COUNT: usize = 40;

const ROW: Row = Row {
    program: "a C program",
    version: Version::Ours,
    what: "multicast to three groups, with listeners on both hosts; frames as tshark sees them",
};

pub fn tests() -> Vec<Test> {
    let test = |(group, mac)| {
        Test::new(format!("C: multicast to {group}, two hosts"), move |stage| multicast(stage, group, mac)).for_root()
    };
    all_of(&ROW, GROUPS.map(test))
}

fn multicast(stage: &Stage, group: &str, mac: &str) -> Result<(), String> {
    let Some([left, right]) = &stage.joined else { return Err("no cables".into()) };
    let program = compile(stage, "cc", "multicast.c", &["-std=gnu11"])?;
    let line = |role: &str| format!("{} ubi_veth0 {group} {role} {COUNT}", program.display());
    // First: listeners poll, and would take the processors from a tshark that starts.
    let tshark = watch(stage, left, group)?;
    let mut listeners = Vec::new();
    for (number, host) in [left, right, right].into_iter().enumerate() {
        let mut command = stage.run_on(host, None, &[], &line("receive"));
        listeners.push(stage.start(&format!("listener {number}"), &mut command)?);
    }
    for listener in &listeners {
        host::wait("a listener", || listener.text().contains("in the group"))
            .map_err(|e| format!("{e}\n{}", listener.text()))?;
    }
    let sent = stage.end(&mut stage.run_on(right, None, &[], &line("send")))?;
    expect(&sent.text, &["sent 40"])?;
    for listener in listeners {
        let ended = listener.end()?;
        expect(&ended.text, &["got 40"])?;
    }
    let seen = tshark.end()?.text;
    let frames: Vec<&str> = seen.lines().filter(|line| line.contains(mac)).collect();
    // One frame each, to the group's address on Ethernet, for the number of multicast, five hops far.
    let wanted = format!("{mac} 0xffffff 5");
    if frames.len() == COUNT
        && frames.iter().all(|frame| frame.split_whitespace().collect::<Vec<_>>().join(" ") == wanted)
    {
        return Ok(());
    }
    Err(format!("not {COUNT} times {wanted}:\n{seen}"))
}

/// Looks at what arrives at a host for a group.
fn watch(stage: &Stage, host: &Host, group: &str) -> Result<crate::stage::Running, String> {
    let (family, hops) = if group.contains(':') { ("ip6", "ipv6.hlim") } else { ("ip", "ip.ttl") };
    let filter = format!("{family} dst host {group} and udp port 4791");
    let mut command = host.command(None, Path::new("tshark"));
    command.args(["-l", "-n", "-i", "veth0", "-f", &filter, "-c", &COUNT.to_string(), "-a", "duration:600"]);
    command.args(["-T", "fields", "-e", "eth.dst", "-e", "infiniband.bth.destqp", "-e", hops]);
    let tshark = stage.start("tshark", &mut command)?;
    host::wait("tshark", || tshark.text().contains("File:")).map_err(|e| format!("{e}\n{}", tshark.text()))?;
    Ok(tshark)
}
