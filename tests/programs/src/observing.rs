//! What runs now: `ubiverbs ps`, `top` and `metrics` beside programs that run, one of them stopped, and beside those of another
//! user.

use crate::host::{self, Host};
use crate::stage::{NOBODY_UID, Running, Stage};
use crate::{Test, expect};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("ps: ib_send_bw, and a side that is stopped", stopped),
        Test::new("ps: a listener and a connection of rping", ids),
        Test::new("ps: processes of another user", strangers).for_root(),
        Test::new("top: in tmux, with 80 columns and with 20", top),
        Test::new("probes: those of rdma-core, as readelf shows them", probes),
        Test::new("metrics: ib_send_bw, as Prometheus fetches them", metrics),
    ]
}

/// Long enough for a busy machine. Processes that all answer are not waited for.
const PATIENCE: [&str; 2] = ["--timeout", "60000"];

/// `ubiverbs COMMAND` on the lonely host.
fn ubiverbs(stage: &Stage, user: Option<u32>, words: &[&str]) -> Command {
    let mut command = stage.alone.command(user, &stage.dist.join("bin/ubiverbs"));
    command.args(words).env_remove("LD_LIBRARY_PATH").current_dir("/");
    command
}

/// What `ps --json` says of the processes, with these options.
fn processes(stage: &Stage, user: Option<u32>, options: &[&str]) -> Result<Vec<Value>, String> {
    let words = [&["ps", "--json"], options].concat();
    let ended = stage.end(&mut ubiverbs(stage, user, &words))?;
    let document: Value = serde_json::from_str(&ended.text).map_err(|e| format!("{e}: {}", ended.last()))?;
    document["processes"].as_array().cloned().ok_or_else(|| format!("no list: {document}"))
}

/// Waits until `ps` shows something, and returns it.
fn wait<T>(stage: &Stage, what: &str, seen: impl Fn(&[Value]) -> Option<T>) -> Result<T, String> {
    let mut found = None;
    let mut last = Vec::new();
    host::wait(what, || {
        last = processes(stage, None, &PATIENCE).unwrap_or_default();
        found = seen(&last);
        found.is_some()
    })
    .map_err(|e| format!("{e}: {last:?}"))?;
    found.ok_or_else(|| what.to_owned())
}

/// A server and a client that send until they are ended.
fn endless(stage: &Stage) -> Result<[Running; 2], String> {
    // They end even if the test is killed.
    let line = format!("timeout 600 ib_send_bw --run_infinitely -D 1 -p {}", stage.next_port());
    let host: &Host = &stage.alone;
    let server = stage.start("server", &mut stage.run_on(host, None, &[], &line))?;
    let client = format!("for i in $(seq 600); do \"$0\" run -- {line} 127.0.0.1 && break; sleep 0.1; done");
    let mut command = host.command(None, std::path::Path::new("sh"));
    command.args(["-c", &client]).arg(stage.dist.join("bin/ubiverbs"));
    Ok([server, stage.start("client", &mut command)?])
}

fn pair(process: &Value) -> &Value {
    &process["queue_pairs"][0]
}

fn signal(pid: i64, signal: Signal) -> Result<(), String> {
    let pid = Pid::from_raw(pid as i32).ok_or("no number")?;
    kill_process(pid, signal).map_err(|e| e.to_string())
}

fn stopped(stage: &Stage) -> Result<(), String> {
    let running = endless(stage)?;
    let sides = wait(stage, "both sides of ib_send_bw that send", |processes| {
        let sends = |process: &&Value| pair(process)["counters"]["rdma_sends"].as_u64() > Some(1000);
        let client = processes.iter().find(sends)?;
        let number = pair(client)["peer"]["number"].as_u64()?;
        let server = processes.iter().find(|process| pair(process)["number"].as_u64() == Some(number))?;
        (pair(client)["peer"]["pid"] == server["pid"]).then(|| [server.clone(), client.clone()])
    })?;
    let [server, client] = &sides;
    let words = [&pair(client)["state"], &pair(client)["type"], &pair(client)["link"], &client["command"]];
    if words != ["RTS", "RC", "shared memory", "ib_send_bw"]
        || client["memory_regions"][0]["length"].as_u64() == Some(0)
    {
        return Err(format!("{client}"));
    }
    let pid = server["pid"].as_i64().ok_or("no process")?;
    signal(pid, Signal::STOP)?;
    // It answers no more, so each look costs its time.
    let mut text = String::new();
    let seen = host::wait("the client to be stuck", || {
        let ended = stage.end(&mut ubiverbs(stage, None, &["ps", "--timeout", "2000"]));
        text = ended.map(|ended| ended.text).unwrap_or_default();
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        flat.contains("it is stopped (SIGSTOP, a terminal or a debugger) and cannot answer")
            && flat.contains("stuck for")
            && flat.contains(&format!("its process {pid} is stopped"))
    });
    signal(pid, Signal::CONT)?;
    seen.map_err(|e| format!("{e}: {text}"))?;
    wait(stage, "the server to answer again", |processes| {
        processes.iter().find(|process| process["pid"].as_i64() == Some(pid) && process["answered"] == true).map(|_| ())
    })?;
    let whole = stage.end(&mut ubiverbs(stage, None, &["ps", &pid.to_string(), "--timeout", "60000"]))?;
    drop(running);
    expect(&whole.text, &["PSN: next sent", "rcvd_pkts", "MR lkey", "CQ 1: ", "port ubi_lo", "driven by"])
}

/// The value of the sample that begins so, if there is one.
fn sample(text: &str, begin: &str) -> Option<f64> {
    text.lines().find(|line| line.starts_with(begin))?.rsplit(' ').next()?.parse().ok()
}

fn metrics(stage: &Stage) -> Result<(), String> {
    let _running = endless(stage)?;
    let words = ["metrics", "--queue-pairs", "--timeout", "60000", "--listen", "127.0.0.1:0"];
    let server = stage.start("metrics", &mut ubiverbs(stage, None, &words))?;
    host::wait("the server", || server.text().contains("Serving http://"))?;
    let text = server.text();
    let place = text.split_whitespace().nth(1).ok_or_else(|| format!("no place: {text}"))?;
    let fetch = || {
        let mut command = stage.alone.command(None, std::path::Path::new("curl"));
        command.args(["--silent", "--show-error", "--include", "-H", "Accept: application/openmetrics-text", place]);
        stage.end(&mut command).map(|ended| ended.text)
    };
    let moved = |text: &str| {
        let port = sample(text, "node_infiniband_port_data_transmitted_bytes_total{device=\"ubi_lo\",port=\"1\"}")?;
        let messages = sample(text, "ubiverbs_port_messages_sent_total{device=\"ubi_lo\"")?;
        (port > 1e6 && messages > 10.0).then_some([port, messages])
    };
    let mut first = String::new();
    host::wait("figures of a program that sends", || {
        first = fetch().unwrap_or_default();
        // Ports count for programs that have ended, too.
        moved(&first).is_some() && first.contains("type=\"RC\",state=\"RTS\"}")
    })
    .map_err(|e| format!("{e}: {first}"))?;
    let wanted =
        ["HTTP/1.1 200 OK", "application/openmetrics-text; version=1.0.0", "command=\"ib_send_bw\"", "# EOF\n"];
    expect(&first, &wanted)?;
    expect(&first, &["ubiverbs_queue_pair_sent_bytes_total{pid=", "type=\"RC\",state=\"RTS\"}"])?;
    // Figures are a second old at most.
    let before = moved(&first);
    host::wait("figures that grow", || fetch().is_ok_and(|text| moved(&text) > before))
}

/// A terminal without a person: a server of tmux of its own, which ends with this.
struct Terminal<'a> {
    stage: &'a Stage,
    socket: std::path::PathBuf,
}

impl Terminal<'_> {
    fn tmux(&self, words: &[&str]) -> Result<String, String> {
        let mut command = self.stage.alone.command(None, std::path::Path::new("tmux"));
        command.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(words).env("LC_ALL", "C.UTF-8");
        let ended = self.stage.end(&mut command)?;
        if ended.status.success() { Ok(ended.text) } else { Err(format!("tmux {words:?}: {}", ended.text)) }
    }

    /// What the terminal shows, with the escape sequences of its styles.
    fn screen(&self) -> Result<String, String> {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    /// Waits until it shows all of these, whatever their style.
    fn wait(&self, wanted: &[&str]) -> Result<String, String> {
        let mut plain = String::new();
        host::wait(&format!("{wanted:?}"), || {
            plain = self.tmux(&["capture-pane", "-p"]).unwrap_or_default();
            wanted.iter().all(|part| plain.contains(part))
        })
        .map_err(|e| format!("{e}:\n{plain}"))?;
        Ok(plain)
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

fn top(stage: &Stage) -> Result<(), String> {
    let _running = endless(stage)?;
    // A process may call itself as it likes.
    let name = std::ffi::OsString::from_vec(b"\x1b]0;pwned\x07x".to_vec());
    let evil = stage.scratch.join(name);
    let rping = find("rping")?;
    std::os::unix::fs::symlink(rping, &evil).map_err(|e| e.to_string())?;
    let mut command = stage.alone.command(None, &stage.dist.join("bin/ubiverbs"));
    command.args(["run", "--force", "--"]).arg(&evil).args(["-s", "-P", "-a", "127.0.0.1", "-p"]);
    let _evil = stage.start("evil", command.arg(stage.next_port().to_string()))?;
    let terminal = Terminal { stage, socket: stage.scratch.join("tmux") };
    let ubiverbs = stage.dist.join("bin/ubiverbs");
    let line = format!("{} top --sort number --interval 0.2 --timeout 10000; echo ended $?; cat", ubiverbs.display());
    terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &line])?;
    let seen = terminal.wait(&["ubiverbs top", "ib_send_bw", "RC shared", "RTS", "]0;pwned", "arrows select"])?;
    if let Some(long) = seen.lines().find(|line| line.chars().count() > 80) {
        return Err(format!("longer than the terminal: {long}"));
    }
    let coloured = terminal.screen()?;
    expect(&coloured, &["\x1b["])?;
    // Of two processes and their queue pairs the first queue pair, and all about it.
    let keys = |keys: &[&str]| keys.iter().try_for_each(|key| terminal.tmux(&["send-keys", key]).map(|_| ()));
    keys(&["/", "ib_send", "Enter"])?;
    let filtered = terminal.wait(&["/ib_send", "arrows select"])?;
    if filtered.contains("pwned") {
        return Err(format!("it is filtered out:\n{filtered}"));
    }
    keys(&["Home", "Down", "Enter"])?;
    terminal.wait(&["peer     0x", "PSN      next sent", "messages/s", "Escape back"])?;
    keys(&["Escape"])?;
    terminal.wait(&["arrows select"])?;
    terminal.tmux(&["send-keys", "Escape"])?;
    terminal.tmux(&["resize-window", "-x", "20", "-y", "8"])?;
    terminal.wait(&[" ib_s", " RC", "arrows select  Enter"])?;
    terminal.tmux(&["send-keys", "q"])?;
    terminal.wait(&["ended 0"])?;
    // Without colours nothing but bold, dim and reverse is used.
    let line = format!("NO_COLOR=1 {} top --interval 0.2 --timeout 10000", ubiverbs.display());
    terminal.tmux(&["respawn-window", "-k", &line])?;
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"])?;
    terminal.wait(&["ib_send_bw", "RTS"])?;
    let plain = terminal.screen()?;
    let colours = plain.split("\x1b[").filter_map(|part| part.split_once('m')).map(|(codes, _)| codes);
    // 39 and 49 are the terminal's own.
    let is_colour = |code: &&str| matches!(code.parse(), Ok(30..=38 | 40..=48 | 90..=107));
    if let Some(code) = colours.flat_map(|codes| codes.split(';')).find(is_colour) {
        return Err(format!("colour {code} in spite of NO_COLOR:\n{plain}"));
    }
    [Signal::TERM, Signal::HUP].into_iter().try_for_each(|signal| ended_by(&terminal, signal))
}

/// A signal ends `top` as it would end any program, and the terminal is as it was.
fn ended_by(terminal: &Terminal<'_>, with: Signal) -> Result<(), String> {
    let (ubiverbs, number) = (terminal.stage.dist.join("bin/ubiverbs"), terminal.stage.scratch.join("number"));
    let (ubiverbs, number) = (ubiverbs.display(), number.display());
    let top = format!("echo $$ > {number}; exec {ubiverbs} top --interval 3600 --timeout 10000");
    terminal.tmux(&["respawn-window", "-k", &format!("sh -c '{top}'; echo ended $?; stty -a; cat")])?;
    terminal.wait(&["ib_send_bw", "arrows select"])?;
    let asked = ["display-message", "-p", "alternate #{alternate_on} cursor #{cursor_flag}"];
    expect(&terminal.tmux(&asked)?, &["alternate 1 cursor 0"])?;
    let pid = std::fs::read_to_string(number.to_string()).map_err(|e| e.to_string())?;
    signal(pid.trim().parse::<i64>().map_err(|e| format!("{pid:?}: {e}"))?, with)?;
    terminal.wait(&[&format!("ended {}", 128 + with.as_raw()), "isig icanon iexten echo "])?;
    expect(&terminal.tmux(&asked)?, &["alternate 0 cursor 1"])
}

/// What bpftrace reads before it attaches: the name of each probe, where its arguments are, and its semaphore, which lies
/// where the kernel can count it up.
fn probes(stage: &Stage) -> Result<(), String> {
    for file in ["lib/libibverbs.so.1", "bin/ubiverbs"] {
        let mut command = Command::new("readelf");
        command.args(["--notes", "--sections", "--wide"]).arg(stage.dist.join(file));
        let text = stage.end(&mut command)?.text;
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let section = lines.iter().find(|line| line.contains("] .probes "));
        let is_in_the_file = section.is_some_and(|line| line.contains("PROGBITS") && line.contains(" WA "));
        if !is_in_the_file {
            return Err(format!("{file}: the semaphores' section is {section:?}"));
        }
        for (provider, name, arguments) in [
            ("rdma_core_rxe", "post_send", ["8@", "4@", "8@", "8@"]),
            ("rdma_core_mlx5", "post_send", ["8@", "4@", "8@", "-4@"]),
            ("rdma_core_efa", "post_recv", ["8@", "8@", "4@", "-4@"]),
        ] {
            let what = [format!("Provider: {provider}"), format!("Name: {name}")];
            let found: Vec<&[&str]> =
                lines.windows(4).filter(|four| four[0].ends_with(&what[0]) && four[1] == what[1]).collect();
            let [[_, _, place, said]] = found[..] else { return Err(format!("{file}: {what:?} once: {text}")) };
            let zero = "0x0000000000000000";
            if ["Location", "Base", "Semaphore"].iter().any(|word| place.contains(&format!("{word}: {zero}"))) {
                return Err(format!("{file}, {provider}: {place}"));
            }
            let words: Vec<&str> = said.trim_start_matches("Arguments: ").split(' ').collect();
            let fits = words.len() == arguments.len();
            if !fits || !words.iter().zip(arguments).all(|(word, begin)| word.starts_with(begin)) {
                return Err(format!("{file}, {provider}: {said}"));
            }
        }
    }
    Ok(())
}

/// Where a program is.
fn find(program: &str) -> Result<std::path::PathBuf, String> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&places).map(|place| place.join(program));
    paths.find(|path| path.exists()).ok_or_else(|| format!("{program} is not there"))
}

fn ids(stage: &Stage) -> Result<(), String> {
    let port = stage.next_port();
    let server = format!("rping -s -a 127.0.0.1 -p {port} -P");
    let _server = stage.start("server", &mut stage.run_on(&stage.alone, None, &[], &server))?;
    let address = format!("127.0.0.1:{port}");
    wait(stage, "a listener", |processes| {
        let ids = processes.iter().flat_map(|process| process["cm_ids"].as_array().into_iter().flatten());
        ids.into_iter().find(|id| id["state"] == "LISTEN" && id["source"] == address.as_str()).map(|_| ())
    })?;
    let ended = stage.end(&mut ubiverbs(stage, None, &["ps", "--timeout", "60000"]))?;
    expect(&ended.text, &[&format!("listens on {address} (TCP)"), "rping"])
}

/// Root sees everybody's, another user only its own.
fn strangers(stage: &Stage) -> Result<(), String> {
    let line = |port: u16| format!("rping -s -a 127.0.0.1 -p {port} -P");
    let start = |name: &str, user, port| stage.start(name, &mut stage.run_on(&stage.alone, user, &[], &line(port)));
    let _roots = start("root's", None, stage.next_port())?;
    let _nobodys = start("nobody's", Some(NOBODY_UID), stage.next_port())?;
    let users =
        |processes: &[Value]| processes.iter().filter_map(|process| process["uid"].as_u64()).collect::<Vec<_>>();
    let pid = wait(stage, "processes of both users", |processes| {
        let mut all = users(processes);
        all.sort_unstable();
        let roots = processes.iter().find(|process| process["uid"] == 0)?;
        (all == [0, u64::from(NOBODY_UID)]).then(|| roots["pid"].to_string())
    })?;
    let seen = users(&processes(stage, Some(NOBODY_UID), &PATIENCE)?);
    if seen != [u64::from(NOBODY_UID)] {
        return Err(format!("nobody sees the processes of {seen:?}"));
    }
    let ended = stage.end(&mut ubiverbs(stage, Some(NOBODY_UID), &["ps", &pid]))?;
    if ended.status.code() != Some(1) {
        return Err(format!("{}: {}", ended.status, ended.text));
    }
    expect(
        &ended.text,
        &[&format!("process {pid} cannot be shown: it has no device of ubiverbs open, is another user's")],
    )
}
