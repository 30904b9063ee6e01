//! `ubiverbs run` itself: what it passes on, what it refuses, and what its options do.

use crate::stage::{NOBODY_UID, Pair, Stage, Where};
use crate::{Test, expect, host};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("run: exit codes and signals are the program's", codes),
        Test::new("run: a signal goes to the program itself", signals),
        Test::new("run: the environment of the program, and nothing else", environment),
        Test::new("run: a program that calls no verbs gets no thread, descriptor or output of ours", costs_nothing),
        Test::new("run: --device shows only those", devices),
        Test::new("run: what cannot be is refused before the program starts", refusals),
        Test::new("run: without its library it says where that belongs", without_library),
        Test::new("run: --pcap writes what tshark reads, for each process", capture),
        Test::new("run: a capture that the environment asks for is the program's", capture_by_environment),
        Test::new("run: --pcap of a killed process can be read", capture_of_the_killed),
        Test::new("run: --log tells what happens", log),
        Test::new("run: device files are shown, and taken away", files_of_devices),
        Test::new("run: device files as nobody", files_for_nobody).for_root(),
        Test::new("run: --no-files shows none", no_files),
        Test::new("run: a program runs without files where none can be written", nowhere_for_files),
        Test::new("run: a directory with spaces is as good as another", spaces),
        Test::new("run: --log and --pcap as nobody where nobody may not write", nowhere_to_write).for_root(),
    ]
}

fn options(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Runs a shell, whose script is one word.
fn shell(stage: &Stage, script: &str) -> Command {
    let mut command = stage.run_on(&stage.alone, None, &[], "sh -c");
    command.arg(script);
    command
}

fn codes(stage: &Stage) -> Result<(), String> {
    for code in [0, 1, 7, 255] {
        let ended = stage.end(&mut shell(stage, &format!("exit {code}")))?;
        if ended.status.code() != Some(code) {
            return Err(format!("exit {code} became {}", ended.status));
        }
    }
    for (line, code, text) in [
        ("no-such-program", 127, "no-such-program: not found"),
        ("/no/such/program", 127, "/no/such/program: not found"),
        ("/dev/null/program", 126, "cannot run /dev/null/program"),
        ("/etc/passwd", 126, "cannot run /etc/passwd: Permission denied"),
        ("/", 126, "cannot run /"),
    ] {
        let ended = stage.end(&mut stage.run_on(&stage.alone, None, &[], line))?;
        if ended.status.code() != Some(code) {
            return Err(format!("{line}: {}", ended.status));
        }
        expect(&ended.text, &[text])?;
    }
    // A directory in PATH that is closed, or none, does not hide that the program is missing.
    let mut command = stage.run_on(&stage.alone, None, &[], "no-such-program");
    let ended = stage.end(command.env("PATH", "/dev/null:/usr/bin:/bin"))?;
    if ended.status.code() == Some(127) { Ok(()) } else { Err(ended.status.to_string()) }
}

fn signals(stage: &Stage) -> Result<(), String> {
    let mut command = shell(stage, "trap 'echo told; exit 9' TERM; echo $$; while :; do sleep 0.05; done");
    let running = stage.start("shell", &mut command)?;
    // The shell's number is that of the process we started.
    let number = format!("{}\n", running.id());
    host::wait("the shell", || running.text() == number)?;
    send(running.id(), rustix::process::Signal::TERM)?;
    let ended = running.end()?;
    match ended.status.code() {
        Some(9) => expect(&ended.text, &["told"]),
        _ => Err(ended.status.to_string()),
    }
}

fn send(process: u32, signal: rustix::process::Signal) -> Result<(), String> {
    let process = rustix::process::Pid::from_raw(process as i32).ok_or("no process")?;
    rustix::process::kill_process(process, signal).map_err(|e| e.to_string())
}

fn environment(stage: &Stage) -> Result<(), String> {
    let library = stage.dist.join("lib");
    // Variables of these tests are not ours to count.
    let script = "echo $LD_LIBRARY_PATH; env | grep -v ^UBIVERBS_TEST_ | grep -o '^UBIVERBS_[^=]*' | sort";
    let ended = stage.end(&mut shell(stage, script))?;
    // The directory with device files, and that a line is wanted at the end if work failed.
    let wanted = format!("{}\nUBIVERBS_FILES\nUBIVERBS_NOTE_FAILURES\n", library.display());
    if ended.text != wanted {
        return Err(format!("not {wanted:?}:\n{}", ended.text));
    }
    let ended = stage.end(shell(stage, script).env("LD_LIBRARY_PATH", "/opt/lib"))?;
    expect(&ended.text, &[&format!("{}:/opt/lib\n", library.display())])
}

/// A shell and its children, as they would be without us.
fn costs_nothing(stage: &Stage) -> Result<(), String> {
    let script = "ls /proc/$$/task | wc -l; ls -l /proc/$$/fd | grep -c socket; ls -l /proc/$$/fd | grep -c memfd; \
                  sh -c 'grep -c libibverbs.so.1 /proc/$$/maps >/dev/null && echo inherited'";
    let text = stage.end(&mut shell(stage, script))?.text;
    if text == "1\n0\n0\ninherited\n" { Ok(()) } else { Err(text) }
}

fn devices(stage: &Stage) -> Result<(), String> {
    let text = stage.run(None, &options(&["--device", "ubi_lo"]), "ibv_devices")?;
    expect(&text, &["ubi_lo"])?;
    let Some([left, _]) = &stage.joined else { return Ok(()) };
    let all = ["ubi_lo", "ubi_veth0", "ubi_veth1"];
    for shown in [vec!["ubi_veth1"], vec!["ubi_veth0", "ubi_lo"]] {
        let option = options(&["--device", &shown.join(",")]);
        let text = stage.end(&mut stage.run_on(left, None, &option, "ibv_devices"))?.text;
        if let Some(wrong) = all.iter().find(|name| text.contains(**name) != shown.contains(name)) {
            return Err(format!("{wrong} with --device {shown:?}:\n{text}"));
        }
    }
    Ok(())
}

fn refusals(stage: &Stage) -> Result<(), String> {
    for (words, text) in [
        (&["--device", "ubi_nothing"][..], "there is no such device; there are: "),
        (&["--faults", "drop=often"], "--faults drop=often: "),
        (&["--pcap", "/no/such/directory/file"], "there is no directory /no/such/directory"),
        (&["--log", "/"], "--log /: it is a directory"),
        (&["--log", "debug"], "--log debug: there is no level debug; there are errors, events and json"),
    ] {
        let ended = stage.end(&mut stage.run_on(&stage.alone, None, &options(words), "echo started"))?;
        if ended.status.code() != Some(2) || ended.text.contains("started") {
            return Err(format!("{words:?}: {} {}", ended.status, ended.text));
        }
        expect(&ended.text, &[text])?;
    }
    Ok(())
}

fn without_library(stage: &Stage) -> Result<(), String> {
    let place = stage.place.join("lonely/bin");
    let copied =
        fs::create_dir_all(&place).and_then(|()| fs::copy(stage.dist.join("bin/ubiverbs"), place.join("ubiverbs")));
    copied.map_err(|e| e.to_string())?;
    let ended = stage.end(stage.alone.command(None, &place.join("ubiverbs")).args(["run", "--", "true"]))?;
    match ended.status.code() {
        Some(1) => expect(&ended.text, &["there is no libibverbs.so.1 in", "lonely/lib"]),
        _ => Err(format!("{}: {}", ended.status, ended.text)),
    }
}

/// Fields of every frame, one line each.
pub fn tshark(file: &Path, fields: &[&str]) -> Result<Vec<String>, String> {
    let (lines, complaint) = ask_tshark(file, fields)?;
    complaint.map_or(Ok(lines), |complaint| Err(format!("tshark on {}: {complaint}", file.display())))
}

/// What tshark reads, and what it complains of, if anything.
fn ask_tshark(file: &Path, fields: &[&str]) -> Result<(Vec<String>, Option<String>), String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().map_err(|e| format!("tshark did not start: {e}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    let complains = !output.status.success() || complaint.contains("cut short") || complaint.contains("damaged");
    let lines = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    Ok((lines, complains.then(|| complaint.into_owned())))
}

/// The files of a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn capture(stage: &Stage) -> Result<(), String> {
    let place = stage.place.join("captures");
    fs::create_dir_all(&place).map_err(|e| e.to_string())?;
    let file = place.join("rc.pcapng");
    let options = vec!["--pcap".to_owned(), file.display().to_string()];
    let line = "ibv_rc_pingpong -d ubi_lo -g 0 -n 10 -s 3000 -c".to_owned();
    stage.pair(&Pair { at: Where::OneHost, user: None, options, line, server: "", clients: 1 })?;
    let files = files(&place);
    if files.len() != 2 || !files.contains(&file) {
        return Err(format!("two processes wrote {files:?}"));
    }
    for file in &files {
        let frames = tshark(file, &["infiniband.bth.opcode", "frame.packet_flags_direction", "_ws.expert.message"])?;
        // Ten messages of three packets each way, perhaps some again, and acknowledgements.
        for direction in [1, 2] {
            let sends = frames.iter().filter(|line| {
                let mut words = line.split('\t');
                let opcode = words.next().and_then(|opcode| opcode.parse::<u8>().ok());
                let way = words.next().and_then(|way| way.trim_start_matches("0x").parse::<u32>().ok());
                opcode.is_some_and(|opcode| opcode <= 2) && way == Some(direction)
            });
            let sends = sends.count();
            if sends < 30 {
                return Err(format!("{sends} packets of SENDs in direction {direction}: {frames:#?}"));
            }
        }
        if let Some(bad) = frames.iter().find(|line| !line.ends_with('\t')) {
            return Err(format!("{}: {bad}", file.display()));
        }
    }
    Ok(())
}

/// `ubiverbs run` itself writes none, though it looks for devices.
fn capture_by_environment(stage: &Stage) -> Result<(), String> {
    let place = stage.place.join("by environment");
    fs::create_dir_all(&place).map_err(|e| e.to_string())?;
    for words in [&[][..], &["--device", "ubi_lo"]] {
        let file = place.join(format!("{}.pcapng", words.len()));
        let mut command = stage.run_on(&stage.alone, None, &options(words), "ibv_devices");
        let ended = stage.end(command.env("UBIVERBS_PCAP", &file))?;
        expect(&ended.text, &["ubi_lo"])?;
        if ended.text.contains("exists") || !file.exists() {
            return Err(format!("{words:?}: {}", ended.text));
        }
    }
    Ok(())
}

fn capture_of_the_killed(stage: &Stage) -> Result<(), String> {
    let file = stage.place.join("killed.pcapng");
    let option = ["--pcap".to_owned(), file.display().to_string()];
    let port = stage.next_port();
    let line = format!("ib_write_bw -d ubi_lo -x 0 -F -p {port}");
    let server = stage.start("server", &mut stage.run_on(&stage.alone, None, &[], &line))?;
    host::wait("the server", || host::listens(server.id(), port).unwrap_or(false))?;
    let line = format!("{line} -D 60 127.0.0.1");
    let client = stage.start("client", &mut stage.run_on(&stage.alone, None, &option, &line))?;
    let large = || fs::metadata(&file).is_ok_and(|metadata| metadata.len() > 1 << 20);
    host::wait("a megabyte of packets", large).map_err(|e| format!("{e}\n{}", client.text()))?;
    send(client.id(), rustix::process::Signal::KILL)?;
    let ended = client.end()?;
    if ended.status.signal() != Some(9) {
        return Err(ended.status.to_string());
    }
    let (packets, complaint) = ask_tshark(&file, &["infiniband.bth.opcode"])?;
    match (packets.len(), complaint) {
        (0..100, _) => Err("hardly a packet".into()),
        // The system lets go of a write in the middle for a signal that kills: the last packet may lack its end, and no other.
        (_, Some(complaint)) if !complaint.contains("cut short in the middle of a packet") => Err(complaint),
        _ => Ok(()),
    }
}

fn log(stage: &Stage) -> Result<(), String> {
    let file = stage.place.join("events.json");
    let pair = |words: &[&str]| Pair {
        at: Where::OneHost,
        user: None,
        options: options(words),
        line: "ibv_rc_pingpong -d ubi_lo -g 0 -n 5".into(),
        server: "",
        clients: 1,
    };
    stage.pair(&pair(&["--log", &file.display().to_string()]))?;
    let lines = fs::read_to_string(&file).map_err(|e| e.to_string())?;
    if let Some(line) = lines.lines().find(|line| !line.starts_with('{') || !line.ends_with('}')) {
        return Err(format!("not JSON: {line}"));
    }
    expect(&lines, &["\"event\":\"packet_sent\"", "\"event\":\"completed\"", "\"event\":\"state_changed\""])?;
    let text = stage.pair(&pair(&["--log", "events"]))?;
    expect(&text, &["ubiverbs: ", "sent: ", "completed: IBV_WC_SUCCESS"])?;
    // Everything goes well, except that a packet is lost. An early one: the last would be missed by a peer that has ended.
    let text = stage.pair(&pair(&["--log", "errors", "--link", "udp", "--faults", "drop@4"]))?;
    expect(&text, &["ubiverbs: ", "retry from PSN"])?;
    if text.contains("IBV_WC_SUCCESS") { Err(format!("not an error:\n{text}")) } else { Ok(()) }
}

fn nowhere_to_write(stage: &Stage) -> Result<(), String> {
    let option = options(&["--pcap", "/etc/ubiverbs.pcapng", "--log", "/etc/ubiverbs.json"]);
    let text = stage.run(Some(NOBODY_UID), &option, "ibv_devices")?;
    expect(
        &text,
        &["cannot write /etc/ubiverbs.pcapng: Permission denied", "cannot write /etc/ubiverbs.json", "ubi_lo"],
    )
}

fn files_of_devices(stage: &Stage) -> Result<(), String> {
    for (line, wanted) in [
        ("cat /sys/class/infiniband/ubi_lo/ports/1/state", "4: ACTIVE\n"),
        ("cat /sys/class/infiniband/ubi_lo/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("cat /sys/class/infiniband/ubi_lo/ports/1/counters/link_downed", "0\n"),
        ("cat /sys/class/infiniband/ubi_lo/device/numa_node", "-1\n"),
        ("cat /sys/class/infiniband_verbs/uverbs0/ibdev", "ubi_lo\n"),
        ("cat /sys/class/infiniband_verbs/uverbs0/device/numa_node", "-1\n"),
        ("readlink /sys/class/infiniband/ubi_lo", "../../devices/virtual/infiniband/ubi_lo\n"),
        ("realpath /sys/class/infiniband/ubi_lo/device", "/sys/devices/virtual/infiniband/ubi_lo/device\n"),
        ("cat /sys/devices/virtual/infiniband/ubi_lo/node_type", "1: CA\n"),
        ("stat -L -c %F /sys/class/infiniband/ubi_lo/ports", "directory\n"),
        ("cat /sys/class/infiniband/ubi_lo/ports/1/gid_attrs/types/0", "RoCE v2\n"),
        ("cat /sys/class/infiniband/ubi_lo/ports/1/gid_attrs/ndevs/0", "lo\n"),
        ("ls /sys/class/infiniband", "ubi_lo\n"),
        ("ls /sys/class/infiniband/ubi_lo/device/net", "lo\n"),
        ("stat -L -c %F%t:%T /dev/infiniband/uverbs0", "character special file1:3\n"),
        ("test -w /dev/infiniband/uverbs0", ""),
    ] {
        let text = stage.run(None, &options(&["--device", "ubi_lo"]), line)?;
        if text != wanted {
            return Err(format!("{line}: {text}"));
        }
    }
    // The program's number is ours until it ends, and so are its files. It has no children that it did not start.
    let mut command = stage.run_on(&stage.alone, None, &[], "sh -c");
    command.arg("echo $UBIVERBS_FILES; wait; exit 3");
    let ended = stage.end(&mut command)?;
    let place = PathBuf::from(ended.text.trim());
    if ended.status.code() != Some(3) || !place.is_absolute() {
        return Err(format!("{}: {}", ended.status, ended.text));
    }
    host::wait("the files to be taken away", || !place.exists())?;
    let Some([left, _]) = &stage.joined else { return Ok(()) };
    let option = options(&["--device", "ubi_veth1"]);
    let ended = stage.end(&mut stage.run_on(left, None, &option, "ls /sys/class/infiniband /dev/infiniband"))?;
    match ended.text.as_str() {
        "/dev/infiniband:\nuverbs0\n\n/sys/class/infiniband:\nubi_veth1\n" => Ok(()),
        other => Err(other.to_owned()),
    }
}

fn files_for_nobody(stage: &Stage) -> Result<(), String> {
    let text = stage.run(Some(NOBODY_UID), &[], "cat /sys/class/infiniband/ubi_lo/node_type")?;
    expect(&text, &["1: CA"])
}

fn no_files(stage: &Stage) -> Result<(), String> {
    let show = "test -e /dev/infiniband/uverbs0";
    for (words, shown) in [
        (&[][..], true),
        (&["--files"], true),
        (&["--no-files"], Path::new("/dev/infiniband/uverbs0").exists()),
        (&["--no-files", "--files"], true),
    ] {
        let ended = stage.end(&mut stage.run_on(&stage.alone, None, &options(words), show))?;
        if ended.status.success() != shown || !ended.text.is_empty() {
            return Err(format!("{words:?}: {} {}", ended.status, ended.text));
        }
    }
    Ok(())
}

/// It says so only if it is asked.
fn nowhere_for_files(stage: &Stage) -> Result<(), String> {
    for (words, told) in [(&[][..], false), (&["--verbose"], true)] {
        let mut command = stage.run_on(&stage.alone, None, &options(words), "echo ran");
        let ended = stage.end(command.env("TMPDIR", "/no/such/directory"))?;
        expect(&ended.text, &["ran"])?;
        if !ended.status.success() || ended.text.contains("no device files: cannot write /no/such/directory") != told {
            return Err(format!("{words:?}: {} {}", ended.status, ended.text));
        }
    }
    Ok(())
}

fn spaces(stage: &Stage) -> Result<(), String> {
    let place = stage.place.join("a place with spaces");
    let copied = Command::new("cp").arg("-a").arg(&stage.dist).arg(&place).status().map_err(|e| e.to_string())?;
    let run = |words: &[&str]| {
        let mut command = stage.alone.command(None, &place.join("bin/ubiverbs"));
        stage.end(command.arg("run").args(words).args(["--", "ibv_devices"]))
    };
    for words in [&[][..], &["--no-files"]] {
        let ended = run(words)?;
        expect(&ended.text, &["ubi_lo"])?;
        if !copied.success() || !ended.status.success() || ended.text.contains("cannot be preloaded") {
            return Err(format!("{}: {}", ended.status, ended.text));
        }
    }
    Ok(())
}
