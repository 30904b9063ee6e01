//! `ubiverbs doctor`: each thing that can be wrong here is made so, and must be found.

use crate::stage::{Ended, Stage};
use crate::{Test, expect, host};
use std::fs;
use std::path::Path;
use std::process::Command;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("doctor: a host that works", |stage| {
            let ended = doctor(stage, &stage.alone, "exec \"$0\" doctor")?;
            ends(
                &ended,
                0,
                &["ok       devices        ubi_lo", "ok       UDP port", "ok       libraries", "ok       files"],
            )?;
            let ended = doctor(stage, &stage.alone, "exec \"$0\" doctor --json")?;
            ends(&ended, 0, &["\"healthy\": true", "\"check\": \"kernel\"", "\"level\": \"ok\""])
        }),
        Test::new("doctor: lo is down", |stage| {
            let script = "exec unshare --net \"$0\" doctor";
            ends(&doctor(stage, &stage.alone, script)?, 1, &["FAILURE  devices", "mend it: ip link set lo up"])
        })
        .for_root(),
        Test::new("doctor: another program has the UDP port", port_is_taken).for_root(),
        Test::new("doctor: few open files, little locked memory", |stage| {
            let ended = doctor(stage, &stage.alone, "ulimit -n 200; ulimit -l 64; exec \"$0\" doctor")?;
            ends(&ended, 0, &["warning  open files", "ulimit -n 1024", "warning  locked memory", "64 KiB"])
        }),
        Test::new("doctor: nowhere for files of devices", |stage| {
            let ended = doctor(stage, &stage.alone, "TMPDIR=/no/such/directory exec \"$0\" doctor")?;
            ends(&ended, 0, &["warning  files", "/no/such/directory", "mend it: set TMPDIR"])
        }),
        Test::new("doctor: another libibverbs is preloaded", |stage| {
            let script = "LD_PRELOAD=/no/such/libibverbs-ab12cd34.so.1 exec \"$0\" doctor 2>&1";
            ends(
                &doctor(stage, &stage.alone, script)?,
                1,
                &["FAILURE  preloaded", "libibverbs-ab12cd34", "unset LD_PRELOAD"],
            )
        }),
        Test::new("doctor: the libraries are missing", |stage| {
            let place = stage.place.join("alone/bin");
            fs::create_dir_all(&place).map_err(|e| e.to_string())?;
            fs::copy(stage.dist.join("bin/ubiverbs"), place.join("ubiverbs")).map_err(|e| e.to_string())?;
            let ended = stage.end(Command::new(place.join("ubiverbs")).arg("doctor"))?;
            ends(&ended, 1, &["FAILURE  libraries", "alone/lib"])
        }),
    ]
}

/// Runs a script on a host, with the program as `$0`.
fn doctor(stage: &Stage, host: &host::Host, script: &str) -> Result<Ended, String> {
    let mut command = host.command(None, Path::new("sh"));
    stage.end(command.args(["-c", script]).arg(stage.dist.join("bin/ubiverbs")))
}

fn ends(ended: &Ended, code: i32, wanted: &[&str]) -> Result<(), String> {
    expect(&ended.text, wanted)?;
    if ended.status.code() == Some(code) { Ok(()) } else { Err(format!("{}: {}", ended.status, ended.text)) }
}

fn port_is_taken(stage: &Stage) -> Result<(), String> {
    let host = host::Host::alone()?;
    let holder = "import socket, time; s = [socket.socket(f, socket.SOCK_DGRAM) for f in (socket.AF_INET, socket.AF_INET6)]; \
                  s[1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1); [x.bind(('', 4791)) for x in s]; \
                  print('held', flush=True); time.sleep(600)";
    let running = stage.start("holder", host.command(None, Path::new("python3")).args(["-c", holder]))?;
    host::wait("the port to be held", || running.text().contains("held"))?;
    let ended = doctor(stage, &host, "exec \"$0\" doctor")?;
    ends(&ended, 1, &["FAILURE  UDP port", "4791", "mend it: find the program that holds it with: ss -lunp"])
}
