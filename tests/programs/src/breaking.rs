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

pub fn tests() -> Vec<Test> {
    let mut tests = vec![Test::new("a failure script: ibv_asyncwatch sees its events", events)];
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

fn flap(stage: &Stage, link: Link) -> Result<(), String> {
    let port = stage.next_port();
    let (script, report) = options(stage, &format!("flap-{port}"), FLAP)?;
    let options = [script, link.options()].concat();
    let host = &stage.alone;
    stage.play(&Scene {
        hosts: [host; 2],
        user: None,
        options: &options,
        server: format!("rping -s -a 127.0.0.1 -p {port} -V -C 400 -S 1000"),
        port,
        clients: vec![format!("rping -c -I 127.0.0.2 -a 127.0.0.1 -p {port} -V -C 400 -S 1000")],
        stays: false,
    })?;
    let report = fs::read_to_string(&report).map_err(|error| format!("{report}: {error}"))?;
    let strikes = report.lines().filter(|line| line.contains("\"struck\":\"port 1 of ubi_1\"")).count();
    if strikes < 2 { Err(format!("the port did not flap:\n{report}")) } else { Ok(()) }
}
