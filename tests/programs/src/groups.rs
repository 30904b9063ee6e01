//! Groups: `mckey`, which joins one and sends to it or receives from it. On one host and between two, IPv4 and IPv6, only to send, and as nobody.

use crate::host::{self, Host};
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{NOBODY_UID, Stage};
use crate::{Test, expect};

/// Where the receiver and the sender are, and the address each is bound to.
#[derive(Clone, Copy, Debug)]
enum GroupPlacement {
    Loopback,
    OneHost,
    Between,
    Between6,
}

/// Arguments of both, and of the sender.
const LINES: [(GroupPlacement, &str, &str); 7] = [
    (GroupPlacement::Loopback, "-m 239.77.0.1", ""),
    (GroupPlacement::OneHost, "-m 239.77.0.2 -c 3", ""),
    (GroupPlacement::Between, "-m 239.77.0.3", ""),
    (GroupPlacement::Between, "-m 239.77.0.4 -C 50 -S 1000", ""),
    (GroupPlacement::Between, "-m 239.77.0.5", "-o"),
    (GroupPlacement::Between, "-m 239.77.0.6 -p 0x2", ""),
    (GroupPlacement::Between6, "-M ff0e::77", ""),
];

const ROW: Row = Row {
    program: "`mckey`",
    version: Version::Package("rdmacm-utils"),
    what: "loopback, one host, two hosts; several at once, only to send, IPOIB, a group named by its GID over IPv6; \
        as nobody",
};

pub fn tests() -> Vec<Test> {
    let mut tests: Vec<Test> = LINES.map(|(place, both, sender)| test(place, both, sender, None)).into();
    tests.push(test(GroupPlacement::Loopback, "-m 239.77.0.7", "", Some(NOBODY_UID)));
    all_of(&ROW, tests)
}

fn hosts(place: GroupPlacement, stage: &Stage) -> Result<[(&Host, &'static str); 2], String> {
    let joined = || stage.joined.as_ref().ok_or("there is one host only");
    Ok(match place {
        GroupPlacement::Loopback => [(&stage.alone, "127.0.0.1"); 2],
        GroupPlacement::OneHost => {
            let [left, _] = joined()?;
            [(left, left.address); 2]
        }
        GroupPlacement::Between => {
            let [left, right] = joined()?;
            [(left, left.address), (right, right.address)]
        }
        GroupPlacement::Between6 => {
            let [left, right] = joined()?;
            [(left, "fd77::1"), (right, "fd77::2")]
        }
    })
}

fn test(place: GroupPlacement, both: &'static str, sender: &'static str, user: Option<u32>) -> Test {
    let who = if user.is_some() { ", as nobody" } else { "" };
    let name = format!("mckey {both} {sender}, {place:?}{who}");
    let play = move |stage: &Stage| {
        let [receiver, other] = hosts(place, stage)?;
        let start = |name: &str, (host, address): (&Host, &str), more: &str| {
            // Unbuffered: what it says while it waits must be seen.
            let line = format!("stdbuf -oL mckey {both} -b {address} {more}");
            stage.start(name, &mut stage.run_on(host, user, &[], &line))
        };
        let receiving = start("receiver", receiver, "")?;
        let joined = || receiving.text().matches("joined dgid").count() > 0 || receiving.text().contains("fail");
        host::wait("the receiver to join", joined).map_err(|e| format!("{e}\n{}", receiving.text()))?;
        let sending = start("sender", other, &format!("-s {sender}"))?;
        for (name, running) in [("sender", sending), ("receiver", receiving)] {
            let ended = running.end()?;
            if !ended.status.success() {
                return Err(format!("{name}: {}\n{}", ended.status, ended.last()));
            }
            expect(&ended.text, &["test complete", "return status 0"])?;
        }
        Ok(())
    };
    let test = Test::new(name, play);
    match place {
        GroupPlacement::Loopback if user.is_none() => test,
        _ => test.for_root(),
    }
}
