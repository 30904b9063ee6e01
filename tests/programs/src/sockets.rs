//! Socket programs that know nothing of RDMA, with `ubiverbs run --sockets`: transfers whose every byte is
//! compared. That they went over RDMA is seen from the kernel, which has no TCP socket then, and from a capture.

use crate::host;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Running, Stage};
use crate::{Test, expect};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const fn row(program: &'static str, package: &'static str, what: &'static str) -> Row {
    Row { program, version: Version::Package(package), what }
}

const IPERF: Row =
    row("`iperf3`", "iperf3", "over sockets of ours: one stream each way, three at once; datagrams (`-u`) each way");
const NC: Row = row("`nc`", "netcat-openbsd", "over sockets of ours: 5 MB each way, compared");
const CURL: Row =
    row("`curl`", "curl", "over sockets of ours, from `python3 -m http.server` and from nginx: 5 MB, compared");
const HTTP: Row = row("`python3 -m http.server`", "python3", "over sockets of ours: 5 MB for `curl`, compared");
const NGINX: Row =
    row("`nginx`", "nginx-light", "over sockets of ours: 5 MB for `curl` from worker processes, compared");
const REDIS: Row = row(
    "`redis-server`, `redis-cli`",
    "redis-server",
    "over sockets of ours: a value of 5 MB, compared, also after a fork for `bgsave`; `redis-benchmark`",
);
const RSYNC: Row =
    row("`rsync`", "rsync", "over sockets of ours, with a daemon that forks: a tree of files down and up, compared");

pub fn tests() -> Vec<Test> {
    let mut tests = all_of(
        &IPERF,
        [
            Test::new("sockets: iperf3", |stage| apart(stage, iperf)),
            Test::new("sockets: iperf3 of datagrams", |stage| apart(stage, iperf_datagrams)),
        ],
    );
    tests.extend(all_of(&NC, [Test::new("sockets: nc", |stage| apart(stage, nc))]));
    tests.extend(all_of(
        &HTTP,
        [Test::new("sockets: curl from python3 -m http.server", |stage| apart(stage, http_server))],
    ));
    tests.extend(all_of(
        &CURL,
        [Test::new("sockets: curl over UDP, seen in a capture", |stage| apart(stage, captured))],
    ));
    tests.extend(all_of(&NGINX, [Test::new("sockets: curl from nginx", |stage| apart(stage, nginx))]));
    tests.extend(all_of(&REDIS, [Test::new("sockets: redis-server and redis-cli", |stage| apart(stage, redis))]));
    tests.extend(all_of(&RSYNC, [Test::new("sockets: rsync from its daemon and to it", |stage| apart(stage, rsync))]));
    for what in ["complete'\nstatus = 'RETRY_EXC_ERR", "cq-overrun"] {
        let name = format!("sockets: curl hears of {} at its server", what.split('\'').next().unwrap_or_default());
        tests.push(Test::new(name, move |stage| apart(stage, |stage| broken(stage, what))));
    }
    tests.push(Test::new("sockets: a static program is refused", of_a_static_program));
    tests
}

fn options() -> Vec<String> {
    vec!["--sockets".to_owned()]
}

/// Bytes that no two places have in common.
fn content() -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..5_000_000).map(|_| next()).collect()
}

/// A directory of this test's, with a file of that content.
fn place(stage: &Stage, name: &str) -> Result<(PathBuf, PathBuf), String> {
    let directory = stage.place.join(format!("sockets-{name}"));
    let _ = fs::remove_dir_all(&directory);
    let file = directory.join("content");
    let made = fs::create_dir_all(&directory).and_then(|()| fs::write(&file, content()));
    made.map(|()| (directory, file)).map_err(|e| format!("no place for files: {e}"))
}

fn same(file: &Path) -> Result<(), String> {
    let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let wanted = content();
    match bytes.iter().zip(&wanted).position(|(one, other)| one != other) {
        Some(at) => Err(format!("{}: byte {at} is wrong", file.display())),
        None if bytes.len() != wanted.len() => Err(format!("{}: {} bytes", file.display(), bytes.len())),
        None => Ok(()),
    }
}

/// A program on the lonely host, over sockets of ours.
fn command(stage: &Stage, line: &str) -> Command {
    stage.run_on(&stage.alone, None, &options(), line)
}

/// Runs one to its good end.
fn run(stage: &Stage, line: &str) -> Result<String, String> {
    no_tcp(stage)?;
    let ended = stage.end(&mut command(stage, line))?;
    no_tcp(stage)?;
    if ended.status.success() { Ok(ended.text) } else { Err(format!("{line}: {}\n{}", ended.status, ended.last())) }
}

/// Starts a server and waits until it listens: for RDMA, and not for TCP.
fn serve(stage: &Stage, line: &str, port: u16) -> Result<Running, String> {
    let mut server = stage.start("server", &mut command(stage, line))?;
    host::wait("the server to listen", || server.has_ended() || host::listens(server.id(), port).unwrap_or(false))
        .map_err(|e| format!("{e}\n{}", server.told()))?;
    no_tcp(stage).map_err(|e| format!("{e}\n{}", server.told()))?;
    Ok(server)
}

/// A test that is told from those before it: the kernel remembers their connections over TCP for a minute.
fn apart(stage: &Stage, test: impl FnOnce(&Stage) -> Result<(), String>) -> Result<(), String> {
    stage.tcp_before.replace(tcp(stage)?);
    test(stage)
}

/// Sockets of TCP on the lonely host, by their addresses.
fn tcp(stage: &Stage) -> Result<BTreeSet<String>, String> {
    let mut sockets = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let mut cat = stage.alone.command(None, Path::new("cat"));
        let output = cat.arg(format!("/proc/self/net/{table}")).output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let addresses = |line: &str| line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" ");
        sockets.extend(text.lines().skip(1).map(addresses));
    }
    Ok(sockets)
}

/// On the lonely host there is no TCP but ours would be.
fn no_tcp(stage: &Stage) -> Result<(), String> {
    if !crate::is_root() {
        // The loopback is everybody's.
        return Ok(());
    }
    let (now, before) = (tcp(stage)?, stage.tcp_before.borrow());
    let new: Vec<&String> = now.difference(&before).collect();
    if new.is_empty() { Ok(()) } else { Err(format!("something goes over TCP: {new:?}")) }
}

fn iperf(stage: &Stage) -> Result<(), String> {
    let port = stage.next_port();
    let _server = serve(stage, &format!("iperf3 -s -p {port}"), port)?;
    for more in ["", "-R", "-P 3", "-P 3 -R"] {
        let text = run(stage, &format!("iperf3 -c 127.0.0.1 -p {port} -n 50M {more}"))?;
        expect(&text, &["iperf Done", "receiver"])?;
    }
    Ok(())
}

/// At a rate that a busy machine keeps up with. A server that is called again has the same port for the next.
fn iperf_datagrams(stage: &Stage) -> Result<(), String> {
    let port = stage.next_port();
    let _server = serve(stage, &format!("iperf3 -s -p {port}"), port)?;
    for more in ["", "-R", "-P 2"] {
        let text = run(stage, &format!("iperf3 -u -c 127.0.0.1 -p {port} -n 1M -b 20M -l 1400 {more}"))?;
        expect(&text, &["iperf Done", "receiver"])?;
    }
    Ok(())
}

/// The client's input ends when the client has everything: a server that has no more input of the network ends as soon
/// as it has sent what it has read, whatever there is to be read yet.
fn nc(stage: &Stage) -> Result<(), String> {
    let (directory, file) = place(stage, "nc")?;
    let port = stage.next_port();
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    let got = [0, 1].map(|number| directory.join(format!("got-{number}")));
    let start = |line: &str, input: Stdio, output: &Path| {
        let mut command = command(stage, line);
        command.stdin(input).stdout(fs::File::create(output).map_err(failed)?);
        command.spawn().map(Ended).map_err(|e| format!("{line}: {e}"))
    };
    let input = fs::File::open(&file).map_err(failed)?;
    let mut server = start(&format!("nc -l -N 127.0.0.1 {port}"), input.into(), &got[0])?;
    host::wait("nc to listen", || host::listens(server.0.id(), port).unwrap_or(false))?;
    let has_everything = directory.join("has-everything");
    let mut feeder = Command::new("sh");
    feeder.args(["-c", "cat \"$0\"; until test -e \"$1\"; do sleep 0.02; done"]).arg(&file).arg(&has_everything);
    let mut feeder = feeder.stdout(Stdio::piped()).spawn().map(Ended).map_err(|e| format!("sh: {e}"))?;
    let input = feeder.0.stdout.take().ok_or("no pipe")?;
    let mut client = start(&format!("nc -N 127.0.0.1 {port}"), input.into(), &got[1])?;
    let size = fs::metadata(&file).map_err(failed)?.len();
    host::wait("the client to have everything", || fs::metadata(&got[1]).is_ok_and(|now| now.len() >= size))?;
    fs::write(&has_everything, "").map_err(failed)?;
    for child in [&mut feeder, &mut client, &mut server] {
        let mut ended = Ok(false);
        host::wait("nc to end", || {
            ended = child.has_ended();
            ended != Ok(false)
        })?;
        ended?;
    }
    no_tcp(stage)?;
    got.iter().try_for_each(|file| same(file))
}

/// A child that ends with this.
struct Ended(std::process::Child);

impl Ended {
    /// Whether it has, and well.
    fn has_ended(&mut self) -> Result<bool, String> {
        match self.0.try_wait().map_err(|e| e.to_string())? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => Err(format!("nc: {status}")),
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

fn http_server(stage: &Stage) -> Result<(), String> {
    let (directory, _) = place(stage, "http")?;
    let port = stage.next_port();
    let line = format!("/usr/bin/python3 -u -m http.server -d {} --bind 127.0.0.1 {port}", directory.display());
    let server = serve(stage, &line, port)?;
    let url = format!("http://127.0.0.1:{port}/content");
    let got = directory.join("got");
    run(stage, &format!("curl -sS -o {} {url}", got.display()))?;
    same(&got)?;
    // One connection for several, and one that is refused.
    run(stage, &format!("curl -sS -o {0} -o {0} {url} {url}", got.display()))?;
    same(&got)?;
    let ended = stage.end(&mut command(stage, &format!("curl -sS http://127.0.0.1:{}/", stage.next_port())))?;
    if ended.status.code() != Some(7) {
        return Err(format!("curl where nobody listens: {}\n{}", ended.status, ended.text));
    }
    expect(&server.text(), &["GET /content HTTP/1.1\" 200"])
}

/// The server's side of a connection fails in the middle of a file. The client hears of it: it neither waits for ever
/// nor takes this for the end of the file.
fn broken(stage: &Stage, what: &str) -> Result<(), String> {
    let (directory, _) = place(stage, "broken")?;
    let (port, script) = (stage.next_port(), directory.join("script.toml"));
    let text = format!("[[failure]]\nafter = {{ messages = 20 }}\ndo = '{what}'\n");
    fs::write(&script, text).map_err(|e| format!("{}: {e}", script.display()))?;
    let line = format!("/usr/bin/python3 -u -m http.server -d {} --bind 127.0.0.1 {port}", directory.display());
    let options = [options(), vec!["--script".to_owned(), script.display().to_string()]].concat();
    let server = stage.start("server", &mut stage.run_on(&stage.alone, None, &options, &line))?;
    host::wait("the server to listen", || host::listens(server.id(), port).unwrap_or(false))
        .map_err(|e| format!("{e}\n{}", server.told()))?;
    let got = directory.join("got");
    let line = format!("curl -sS --max-time 60 -o {} http://127.0.0.1:{port}/content", got.display());
    let ended = stage.end(&mut command(stage, &line))?;
    match ended.status.code() {
        Some(56) => Ok(()),
        _ => Err(format!("{line}: {}\n{}\n{}", ended.status, ended.last(), server.told())),
    }
}

/// What the kernel's tables do not say: the packets are those of RDMA, with the bytes in them.
fn captured(stage: &Stage) -> Result<(), String> {
    let (directory, _) = place(stage, "captured")?;
    let (port, capture) = (stage.next_port(), directory.join("curl.pcapng"));
    let line = format!("/usr/bin/python3 -u -m http.server -d {} --bind 127.0.0.1 {port}", directory.display());
    let mut options = options();
    options.extend(["--link", "udp"].map(str::to_owned));
    let server = stage.start("server", &mut stage.run_on(&stage.alone, None, &options, &line))?;
    host::wait("the server to listen", || host::listens(server.id(), port).unwrap_or(false))
        .map_err(|e| format!("{e}\n{}", server.told()))?;
    options.extend(["--pcap".to_owned(), capture.display().to_string()]);
    let got = directory.join("got");
    let line = format!("curl -sS -o {} http://127.0.0.1:{port}/content", got.display());
    let ended = stage.end(&mut stage.run_on(&stage.alone, None, &options, &line))?;
    if !ended.status.success() {
        return Err(format!("{line}: {}\n{}", ended.status, ended.last()));
    }
    same(&got)?;
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&capture).args(["-Y", "infiniband.bth.opcode==0x0b || infiniband.bth.opcode==0x09"]);
    let output = tshark.stderr(Stdio::null()).output().map_err(|e| format!("tshark: {e}"))?;
    let writes = String::from_utf8_lossy(&output.stdout).lines().count();
    if writes > 10 { Ok(()) } else { Err(format!("{writes} RDMA WRITEs with immediate data in the capture")) }
}

fn nginx(stage: &Stage) -> Result<(), String> {
    let (directory, _) = place(stage, "nginx")?;
    let (port, here) = (stage.next_port(), directory.display());
    let user = if crate::is_root() { "user root;" } else { "" };
    let text = format!(
        "{user} daemon off; worker_processes 2; pid {here}/pid; error_log {here}/error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; sendfile on; client_body_temp_path {here}/a; proxy_temp_path {here}/b;\n\
         fastcgi_temp_path {here}/c; uwsgi_temp_path {here}/d; scgi_temp_path {here}/e;\n\
         server {{ listen 127.0.0.1:{port}; root {here}; }} }}\n"
    );
    let settings = directory.join("nginx.conf");
    fs::write(&settings, text).map_err(|e| e.to_string())?;
    let mut server = serve(stage, &format!("nginx -c {} -e {here}/error.log", settings.display()), port)?;
    let got = directory.join("got");
    for _ in 0..3 {
        run(stage, &format!("curl -sS -o {} http://127.0.0.1:{port}/content", got.display()))
            .map_err(|e| format!("{e}\n{}", server.told()))?;
        same(&got)?;
    }
    // A master that is killed leaves its workers behind.
    let master = i32::try_from(server.id()).ok().and_then(Pid::from_raw).ok_or("no process")?;
    kill_process(master, Signal::TERM).map_err(|e| e.to_string())?;
    host::wait("nginx to end", || server.has_ended())
}

fn redis(stage: &Stage) -> Result<(), String> {
    let (directory, file) = place(stage, "redis")?;
    let (port, here) = (stage.next_port(), directory.display());
    let server =
        serve(stage, &format!("redis-server --port {port} --bind 127.0.0.1 --dir {here} --save 3600 1"), port)?;
    let client = format!("redis-cli -p {port}");
    expect(&run(stage, &format!("{client} ping"))?, &["PONG"])?;
    let mut set = command(stage, &format!("{client} -x set key"));
    let content = fs::File::open(&file).map_err(|e| e.to_string())?;
    let output = set.stdin(content).output().map_err(|e| e.to_string())?;
    expect(&String::from_utf8_lossy(&output.stdout), &["OK"])?;
    let get = || {
        let got = directory.join("got");
        let output = command(stage, &format!("{client} --raw get key")).output().map_err(|e| e.to_string())?;
        let mut bytes = output.stdout;
        // The program ends what it prints with a line feed.
        bytes.pop();
        fs::write(&got, bytes).map_err(|e| e.to_string())?;
        same(&got)
    };
    get()?;
    expect(&run(stage, &format!("redis-benchmark -p {port} -q -n 2000 -c 10 -t set,get"))?, &["GET", "per second"])?;
    expect(&run(stage, &format!("{client} bgsave"))?, &["Background saving started"])?;
    host::wait("the copy", || {
        run(stage, &format!("{client} info persistence")).is_ok_and(|text| text.contains("rdb_bgsave_in_progress:0"))
    })?;
    get()?;
    let _ = run(stage, &format!("{client} shutdown nosave"));
    let ended = server.end()?;
    if ended.status.success() { Ok(()) } else { Err(format!("redis-server: {}\n{}", ended.status, ended.last())) }
}

fn rsync(stage: &Stage) -> Result<(), String> {
    let (directory, file) = place(stage, "rsync")?;
    let (port, here) = (stage.next_port(), directory.display());
    let tree = directory.join("tree");
    for number in 0..30_u32 {
        let part = tree.join(format!("part-{}", number % 4));
        let bytes = vec![number as u8; number as usize * 1000];
        fs::create_dir_all(&part)
            .and_then(|()| fs::write(part.join(format!("file-{number}")), bytes))
            .map_err(|e| e.to_string())?;
    }
    fs::copy(&file, tree.join("content")).map_err(|e| e.to_string())?;
    let settings = directory.join("rsyncd.conf");
    let user = if crate::is_root() { "uid=root\ngid=root\n" } else { "" };
    let text = format!("port={port}\nuse chroot=no\n{user}[module]\npath={here}\nread only=no\n");
    fs::write(&settings, text).map_err(|e| e.to_string())?;
    let _server =
        serve(stage, &format!("rsync --daemon --no-detach --address=127.0.0.1 --config={}", settings.display()), port)?;
    for (from, to) in [
        (format!("rsync://127.0.0.1:{port}/module/tree/"), format!("{here}/down/")),
        (format!("{here}/tree/"), format!("rsync://127.0.0.1:{port}/module/up/")),
    ] {
        run(stage, &format!("rsync -a {from} {to}"))?;
    }
    for copy in ["down", "up"] {
        let mut diff = Command::new("diff");
        let output = diff.arg("-r").arg(&tree).arg(directory.join(copy)).output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!("{copy}: {}", String::from_utf8_lossy(&output.stdout)));
        }
    }
    Ok(())
}

fn of_a_static_program(stage: &Stage) -> Result<(), String> {
    let program = stage.place.join("static");
    let source = stage.place.join("static.c");
    fs::write(&source, "int main(void) { return 0; }\n").map_err(|e| e.to_string())?;
    let built = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("cc -static does not work".into());
    }
    let ended = stage.end(&mut command(stage, &program.display().to_string()))?;
    if ended.status.code() != Some(2) {
        return Err(format!("{}\n{}", ended.status, ended.text));
    }
    expect(&ended.text, &["is linked statically"])
}
