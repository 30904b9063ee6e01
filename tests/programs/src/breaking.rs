//! Programs that know nothing of failure scripts, while one breaks their ports and devices.

use crate::stage::{Link, Scene, Stage};
use crate::{Test, expect};
use std::fs;
use std::path::Path;

/// The client's port is down for half of each period, from the middle of the run on.
const FLAP: &str = "[[failure]]
after = { messages = 100 }
device = 'ubi_1'
do = 'flap'
period = '20ms'
";

/// What a device tells of, as ibv_asyncwatch prints it.
const EVENTS: &str = "[[failure]]
at = '100ms'
for = '100ms'
device = 'ubi_1'
do = 'port-down'

[[failure]]
at = '300ms'
device = 'ubi_1'
do = 'lid-change'
lid = 3

[[failure]]
at = '400ms'
device = 'ubi_1'
do = 'device-remove'

[[failure]]
at = '600ms'
process = 'ibv_asyncwatch'
do = 'kill'
signal = 'TERM'
";

/// What files say of a port while it is broken, and afterwards.
const PORT: &str = "[[failure]]
at = '300ms'
for = '2s'
device = 'ubi_1'
do = 'port-down'

[[failure]]
at = '200ms'
for = '2s'
device = 'ubi_1'
do = 'link-speed'
speed = '25G'

[[failure]]
at = '200ms'
for = '2s'
device = 'ubi_1'
do = 'gid-change'
gid = '10.9.8.7'

[[failure]]
at = '200ms'
for = '2s'
device = 'ubi_1'
do = 'lid-change'
lid = 7
";

/// One program holds the device, others look at files.
const LOOK: &str = "cd /sys/class/infiniband; port=/sys/class/infiniband/ubi_1/ports/1
look() { cat $port/state $port/phys_state $port/rate $port/lid $port/gids/0 /sys/class/infiniband/ubi_0/ports/1/state; }
ibv_asyncwatch -d ubi_1 > /dev/null & watch=$!
until grep -q DOWN $port/state; do kill -0 $watch || exit 3; done; look
until grep -q ACTIVE $port/state; do kill -0 $watch || exit 4; done; look
kill $watch";

pub fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("a failure script: ibv_asyncwatch sees its events", events),
        Test::new("a failure script: files of a port follow it", files),
    ];
    for link in Link::BOTH {
        let name = format!("a failure script: rping over a port that flaps, {}", link.name());
        tests.push(Test::new(name, move |stage| flap(stage, link)));
    }
    tests
}

/// Two NICs, and a script.
fn options(stage: &Stage, name: &str, script: &str) -> Result<(Vec<String>, String), String> {
    let place = |end: &str| stage.place.join(format!("{name}.{end}"));
    let (script_file, report) = (place("toml"), place("json"));
    fs::write(&script_file, script).map_err(|error| format!("{}: {error}", script_file.display()))?;
    let path = |path: &Path| path.display().to_string();
    let options = ["--nics", "2", "--script", &path(&script_file), "--script-report", &path(&report)];
    Ok((options.map(str::to_owned).to_vec(), path(&report)))
}

fn events(stage: &Stage) -> Result<(), String> {
    let (options, _) = options(stage, "events", EVENTS)?;
    let line = "stdbuf -oL ibv_asyncwatch -d ubi_1";
    let ended = stage.end(&mut stage.run_on(&stage.alone, None, &options, line))?;
    expect(&ended.text, &["(10), port 1", "(9), port 1", "(11), port 1", "(8), port 1"])
}

fn files(stage: &Stage) -> Result<(), String> {
    let (options, _) = options(stage, "files", PORT)?;
    let mut command = stage.run_on(&stage.alone, None, &options, "sh -c");
    let ended = stage.end(command.arg(LOOK))?;
    let gid = |address: &str| format!("0000:0000:0000:0000:0000:ffff:{address}");
    let (broken, whole) = (gid("0a09:0807"), gid("7f00:0002"));
    let wanted = [
        ["1: DOWN", "3: Disabled", "25 Gb/sec (1X EDR)", "0x7", &broken, "4: ACTIVE"],
        ["4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)", "0x0", &whole, "4: ACTIVE"],
    ]
    .concat();
    if ended.text.lines().eq(wanted) { Ok(()) } else { Err(format!("{}: {}", ended.status, ended.text)) }
}

fn flap(stage: &Stage, link: Link) -> Result<(), String> {
    let port = stage.next_port();
    let (script, report) = options(stage, &format!("flap-{port}"), FLAP)?;
    let options = [script, link.options()].concat();
    let host = &stage.alone;
    stage.play(&Scene {
        hosts: [host; 2],
        user: None,
        options: &options,
        server: format!("rping -s -a 127.0.0.1 -p {port} -V -C 120 -S 1000"),
        port,
        clients: vec![format!("rping -c -I 127.0.0.2 -a 127.0.0.1 -p {port} -V -C 120 -S 1000")],
        stays: false,
    })?;
    let report = fs::read_to_string(&report).map_err(|error| format!("{report}: {error}"))?;
    let strikes = report.lines().filter(|line| line.contains("\"struck\":\"port 1 of ubi_1\"")).count();
    if strikes < 2 { Err(format!("the port did not flap:\n{report}")) } else { Ok(()) }
}
