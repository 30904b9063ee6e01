//! Programs that are killed while they are connected: who hears of it, and how soon.

use crate::Test;
use crate::host;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::Stage;
use std::process::Command;
use std::time::Duration;

/// How soon the other side hears of it, on a busy machine: at once otherwise.
const DEATH_NOTICE_TIMEOUT: Duration = Duration::from_secs(60);

/// What the client may need to leave a will.
const TIMES_TO_LEAVE_A_WILL: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(3), Duration::from_secs(20)];

const ROW: Row = Row {
    program: "`rping`, killed",
    version: Version::Package("rdmacm-utils"),
    what: "the other side hears of it at once, on one host and through a survivor on another",
};

pub fn tests() -> Vec<Test> {
    let tests = vec![
        Test::new("rping: a client that is killed has disconnected, on its host", |stage| killed(stage, false)),
        Test::new("rping: a client that is killed has disconnected, for another host through a survivor", |stage| {
            killed(stage, true)
        })
        .for_root(),
    ];
    all_of(&ROW, tests)
}

/// The client needs time to leave a will, and nobody can see when it has: if that was not enough, it gets more.
fn killed(stage: &Stage, between_hosts: bool) -> Result<(), String> {
    let mut result = Ok(());
    for time in TIMES_TO_LEAVE_A_WILL {
        result = killed_after(stage, between_hosts, time);
        match &result {
            Ok(()) => break,
            Err(error) => stage.note(format!("killed {time:?} after it connected: {error}")),
        }
    }
    result
}

fn killed_after(stage: &Stage, between_hosts: bool, time: Duration) -> Result<(), String> {
    let [left, right] = match (&stage.joined, between_hosts) {
        (Some([left, right]), true) => [left, right],
        (None, true) => return Err("there is one host only".into()),
        (_, false) => [&stage.alone; 2],
    };
    let address = left.address;
    let started = |host, name: &str, line: String| stage.start(name, &mut stage.run_on(host, None, &[], &line));
    let server = started(left, "server", format!("stdbuf -oL rping -s -d -a {address} -p 7471"))?;
    // Does nothing but live.
    let _survivor = started(right, "survivor", format!("rping -s -a {} -p 7472", right.address))?;
    host::wait("the server to listen", || server.text().contains("rdma_listen"))?;
    let client = started(right, "client", format!("rping -c -C 1000000 -a {address} -p 7471"))?;
    host::wait("the two to connect", || server.text().contains("ESTABLISHED"))?;
    std::thread::sleep(time);
    // `nsenter` and `ubiverbs run` have become the program.
    let _ = Command::new("kill").args(["-KILL", &client.id().to_string()]).status();
    let heard = host::wait_for(DEATH_NOTICE_TIMEOUT, "the server to hear of it", || {
        server.text().contains("EVENT_DISCONNECTED")
    });
    heard.map_err(|error| format!("{error}\n{}", server.told()))
}
