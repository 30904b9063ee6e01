//! The pairs: each program with either side as its server, over IPv4 and over IPv6. Runs them one after the other and says what became of each.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::guest::{Card, Guest, accelerator};
use super::{Options, marks};
use crate::process;

/// How long a pair may take.
const PAIR_TIMEOUT: Duration = Duration::from_secs(60);

/// Our end of the cable, and the devices at its ends.
const TAP: &str = "cable";
const OUR_DEVICE: &str = "ubi_cable";
const KERNEL_DEVICE: &str = "rxe0";

/// Profiles of the kernel's software NICs, and their devices in the guest.
const SOFTWARE_NICS: [(&str, &str); 1] = [("rxe", KERNEL_DEVICE)];

const OUR_V4: &str = "10.77.0.1";
const OUR_V6: &str = "fd77::1";
const KERNEL_V4: &str = "10.77.0.2";
const KERNEL_V6: &str = "fd77::2";

/// A program and its arguments, as few iterations as show something: the other side is emulated.
#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    arguments: &'static str,
}

const PROGRAMS: [Program; 23] = [
    Program { name: super::DATA_CHECK, arguments: "" },
    Program { name: "ibv_rc_pingpong", arguments: "-c -s 65536 -n 200" },
    Program { name: "ibv_rc_pingpong", arguments: "-c -s 100 -n 500 -e" },
    Program { name: "ibv_uc_pingpong", arguments: "-c -s 4096 -n 200" },
    Program { name: "ibv_ud_pingpong", arguments: "-c -s 1000 -n 200" },
    Program { name: "ib_write_bw", arguments: "-s 65536 -n 300" },
    Program { name: "ib_write_bw", arguments: "-s 65536 -n 300 -q 4" },
    Program { name: "ib_write_bw", arguments: "-s 8192 -n 300 -c UC" },
    Program { name: "ib_read_bw", arguments: "-s 65536 -n 300" },
    Program { name: "ib_atomic_bw", arguments: "-A FETCH_AND_ADD -n 500" },
    Program { name: "ib_atomic_bw", arguments: "-A CMP_AND_SWAP -n 500" },
    Program { name: "ib_send_bw", arguments: "-s 65536 -n 300" },
    Program { name: "ib_send_bw", arguments: "-s 64 -n 1000 -b" },
    Program { name: "ib_send_bw", arguments: "-s 1000 -n 100 -c UD" },
    Program { name: "ib_write_bw", arguments: "-R -s 65536 -n 300" },
    Program { name: "rping", arguments: "-v -V -C 30" },
    Program { name: "rping", arguments: "-v -V -q -C 30 -S 20000" },
    Program { name: "ucmatose", arguments: "-c 4 -C 20 -S 5000" },
    Program { name: "udaddy", arguments: "-c 4 -C 20 -S 500" },
    Program { name: "rdma_server", arguments: "" },
    Program { name: RSTREAM, arguments: "-T v -S 20000 -C 10 -I 5" },
    Program { name: RSTREAM, arguments: "-T b -S 64 -C 20 -I 5" },
    Program { name: super::COPY_CHECK, arguments: "" },
];

/// The first program once more, with every packet marked: see [`marks`].
const MARKED: &str = "with every packet marked";

impl Program {
    fn title(&self) -> String {
        format!("{} {}", self.name, self.arguments).trim_end().to_string()
    }

    /// A command line. Most programs exchange their numbers over TCP, on `port` of `meeting`; those that connect by address use the server's own.
    fn line(&self, device: &str, gid: usize, port: u16, role: Role, server: &str, meeting: &str) -> String {
        let Program { name, arguments } = self;
        let serves = role == Role::Server;
        match *name {
            "rping" => {
                let role = if serves { "-s" } else { "-c" };
                return format!("{name} {role} -a {server} -p {port} {arguments}");
            }
            "ucmatose" => {
                let role = if serves { "-b" } else { "-s" };
                return format!("{name} {role} {server} -p {port} {arguments}");
            }
            // It has a port of its own.
            UDADDY => {
                let role = if serves { "-b" } else { "-s" };
                return format!("{name} {role} {server} {arguments}");
            }
            RDMA_SERVER => {
                let name = if serves { RDMA_SERVER } else { "rdma_client" };
                return format!("{name} -s {server} -p {port}");
            }
            RSTREAM => {
                let role = if serves { "-b" } else { "-s" };
                return format!("{name} {role} {server} -p {port} {arguments}");
            }
            super::COPY_CHECK if serves => return format!("{name} serve {port}"),
            super::COPY_CHECK => return format!("{name} send {port} {server}"),
            _ => {}
        }
        let gid = if self.is_perftest() { format!("-F -x {gid}") } else { format!("-g {gid}") };
        let server = if serves { "" } else { meeting };
        format!("{name} -d {device} {gid} -p {port} {arguments} {server}").trim_end().to_string()
    }

    /// Whether it uses the connection manager.
    fn connects(&self) -> bool {
        ["rping", "ucmatose", UDADDY, RDMA_SERVER, RSTREAM, super::COPY_CHECK].contains(&self.name)
            || self.arguments.contains("-R ")
    }

    /// perftest connects by IPv4 addresses only, and `rcopy` takes what follows a colon for a file.
    fn knows(&self, family: Family) -> bool {
        family == Family::V4 || !(self.arguments.contains("-R ") || self.name == super::COPY_CHECK)
    }

    fn is_reliable(&self) -> bool {
        !["uc_", "ud_", "udaddy", "-c UC", "-c UD"].iter().any(|word| self.title().contains(word))
    }

    fn is_perftest(&self) -> bool {
        self.name.starts_with("ib_")
    }

    /// What is wrong with what a side said, although it ended well: the pingpongs only mention data that they do not like, and a
    /// measurement that measured nothing has no row of figures.
    fn complaint(&self, said: &str) -> Option<String> {
        if let Some(line) = said.lines().find(|line| line.contains("invalid data")) {
            return Some(line.to_string());
        }
        let measured = |line: &str| {
            let figures: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
            figures.len() >= 4
        };
        let ended = match self.name {
            super::DATA_CHECK => said.contains("every step"),
            // Only the client prints what it got; both end in good order.
            "rping" => said.contains("ping data: rdma-ping-29") || !said.contains("ping data"),
            "ucmatose" | UDADDY => said.contains("return status 0"),
            RDMA_SERVER => said.contains("end 0"),
            RSTREAM => said.contains("custom"),
            super::COPY_CHECK => said.contains("every byte of the file came") || said.contains("sent the whole file"),
            _ if self.is_perftest() => said.lines().any(measured),
            _ => said.contains("usec/iter"),
        };
        (!ended).then(|| "it printed no result".to_string())
    }
}

/// Which end of a pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Server,
    Client,
}

/// It listens on a port that cannot be chosen.
const UDADDY: &str = "udaddy";
const UDADDY_PORT: u16 = 7174;

/// Sockets over RDMA.
const RSTREAM: &str = "rstream";

/// Its client has another name.
const RDMA_SERVER: &str = "rdma_server";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Server {
    Kernel,
    Ours,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Family {
    V4,
    V6,
}

const COLUMNS: [(Family, Server, &str); 4] = [
    (Family::V4, Server::Kernel, "v4 kernel-serves"),
    (Family::V4, Server::Ours, "v4 we-serve"),
    (Family::V6, Server::Kernel, "v6 kernel-serves"),
    (Family::V6, Server::Ours, "v6 we-serve"),
];

/// What became of a pair.
#[derive(Serialize)]
struct Outcome {
    program: &'static str,
    arguments: &'static str,
    family: Family,
    server: Server,
    seconds: f64,
    /// Absent if all is well.
    failure: Option<String>,
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    accelerator: &'static str,
    mtu: u32,
    faults: Option<String>,
    passed: usize,
    failed: usize,
    pairs: Vec<Outcome>,
}

/// Runs every pair that the options select, in a network namespace that is ours alone. `lib` has our library.
pub fn run(place: &Path, lib: &Path, options: &Options) -> Result<(), String> {
    let selected = |program: &Program, column: &str| {
        let name = format!("{} {column}", program.title());
        options.only.iter().all(|word| name.contains(word.as_str()))
            && (options.faults.is_none() || program.is_reliable())
    };
    let chosen = |program: Program| {
        COLUMNS.into_iter().filter(move |column| selected(&program, column.2) && program.knows(column.0))
    };
    let pairs = |program: &Program| chosen(*program).count();
    let marked = Program { name: super::DATA_CHECK, arguments: MARKED };
    if PROGRAMS.iter().chain([&marked]).map(pairs).sum::<usize>() == 0 {
        return Err("no pair has all of these words".into());
    }
    cable(options.mtu)?;
    let [logs, captures] = ["logs", "captures"].map(|name| place.join(name));
    for directory in [&logs, &captures] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).map_err(|e| format!("cannot make {}: {e}", directory.display()))?;
    }
    println!("booting a kernel with Soft-RoCE ({})", accelerator());
    let card = Card { tap: TAP, mtu: options.mtu, v4: &format!("{KERNEL_V4}/24"), v6: &format!("{KERNEL_V6}/64") };
    let guest = Guest::boot(place, &card)?;
    println!("kernel {}", guest.kernel);
    let mut report = Report {
        kernel: guest.kernel.clone(),
        accelerator: accelerator(),
        mtu: options.mtu,
        faults: options.faults.clone(),
        passed: 0,
        failed: 0,
        pairs: Vec::new(),
    };
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    path.push(":");
    path.push(place);
    let (lib, faults) = (lib.to_path_buf(), options.faults.clone());
    let mut bench = Bench { guest, lib, path, faults, logs, captures, capture: options.capture, port: 18_600 };
    let gids = bench.gids()?;
    let compares = options.only.is_empty() || options.only.iter().any(|word| word == super::CARDS);
    let mut differences = Vec::new();
    for (profile, device) in SOFTWARE_NICS.into_iter().filter(|_| compares && options.faults.is_none()) {
        let card = bench.card(profile, device);
        println!("{}, profile {profile}: {}", super::CARDS, card.as_ref().err().map_or("ok", |_| "FAILED"));
        differences.extend(card.err().map(|why| format!("the profile {profile} is not what the kernel is:\n{why}")));
    }
    for program in PROGRAMS.into_iter().chain([marked]) {
        // The ways round take turns, so that all of them meet what else the machine does meanwhile.
        for (family, server, column) in (0..options.repeat).flat_map(|_| chosen(program)) {
            let begin = Instant::now();
            let gids = &gids[family as usize];
            let failure = match program.arguments {
                MARKED => bench.marked_pair(server, family, gids, column),
                _ => bench.pair(program, server, family, gids, column),
            };
            let failure = failure.err();
            let seconds = begin.elapsed().as_secs_f64();
            let Program { name, arguments } = program;
            let verdict = failure.as_deref().map_or("ok".to_string(), |why| format!("FAILED: {why}"));
            println!("{}, {column}: {verdict} ({seconds:.1} s)", program.title());
            report.pairs.push(Outcome { program: name, arguments, family, server, seconds, failure });
        }
    }
    report.failed = report.pairs.iter().filter(|pair| pair.failure.is_some()).count();
    report.passed = report.pairs.len() - report.failed;
    let json = serde_json::to_string_pretty(&report).map_err(|e| format!("the report does not become JSON: {e}"))?;
    let to = place.join("result.json");
    fs::write(&to, json).map_err(|e| format!("cannot write {}: {e}", to.display()))?;
    print!("\n{}", table(&report.pairs));
    println!("{} passed, {} failed; kernel {}; see {}", report.passed, report.failed, report.kernel, to.display());
    if report.failed > 0 {
        differences.push(format!("{} pairs failed", report.failed));
    }
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
}

/// Lays our end of the cable; the virtual machine takes the other one.
fn cable(mtu: u32) -> Result<(), String> {
    for line in [
        "ip link set lo up".to_string(),
        format!("ip tuntap add dev {TAP} mode tap vnet_hdr"),
        // Addresses are given by hand: those the kernel makes are not usable for a second or two.
        format!("ip link set {TAP} addrgenmode none"),
        format!("ip link set {TAP} mtu {mtu} up"),
        format!("ip address add {OUR_V4}/24 dev {TAP}"),
        format!("ip address add fe80::1/64 dev {TAP} nodad"),
        format!("ip address add {OUR_V6}/64 dev {TAP} nodad"),
    ] {
        let mut words = line.split_whitespace();
        process::run(Command::new(words.next().unwrap_or_default()).args(words))?;
    }
    Ok(())
}

/// Where an address stands in the tables of both devices.
struct Indices {
    kernel: usize,
    ours: usize,
}

/// What the pairs are run with.
struct Bench {
    guest: Guest,
    lib: PathBuf,
    /// Where programs are looked for: what was compiled for this is not where others are.
    path: OsString,
    faults: Option<String>,
    logs: PathBuf,
    captures: PathBuf,
    capture: bool,
    /// The last one that was used: each pair has its own.
    port: u16,
}

impl Bench {
    /// Whether our NIC with the profile of a software NIC of the kernel tells, grants and refuses what that does.
    fn card(&mut self, profile: &str, device: &str) -> Result<(), String> {
        let theirs = self.guest.run(&format!("{} tells {device}", super::CARDS), PAIR_TIMEOUT)?;
        let mut ours = self.ours(&format!("{} tells", super::CARDS));
        let ours = ours.env("UBIVERBS_NIC", profile).env("UBIVERBS_NICS", "1").output();
        let ours = ours.map_err(|e| format!("{} did not start: {e}", super::CARDS))?;
        let said = String::from_utf8_lossy(&ours.stdout);
        if theirs.status != 0 || !ours.status.success() || theirs.said.is_empty() {
            let errors = String::from_utf8_lossy(&ours.stderr);
            return Err(format!("it did not end well: {}{said}{errors}", theirs.said));
        }
        let differ = theirs.said.lines().zip(said.lines()).filter(|(theirs, ours)| theirs != ours);
        let mut lines: Vec<String> =
            differ.map(|(theirs, ours)| format!("kernel: {theirs}; profile: {ours}")).collect();
        if theirs.said.lines().count() != said.lines().count() {
            lines.push("one of both says more".into());
        }
        if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
    }

    /// Where the addresses of both families stand.
    fn gids(&mut self) -> Result<[Indices; 2], String> {
        let theirs = self.guest.run(&format!("ibv_devinfo -v -d {KERNEL_DEVICE}"), PAIR_TIMEOUT)?.said;
        let ours = self.ours(&format!("ibv_devinfo -v -d {OUR_DEVICE}")).stderr(Stdio::null()).output();
        let ours = ours.map_err(|e| format!("ibv_devinfo did not start: {e}"))?;
        let ours = String::from_utf8_lossy(&ours.stdout);
        let indices = |v4: bool| -> Result<Indices, String> {
            let find = |whose: &str, said: &str, address: &str| {
                gid_index(said, address).ok_or_else(|| format!("{whose} device has no GID for {address}:\n{said}"))
            };
            let (a, b) = if v4 { (KERNEL_V4, OUR_V4) } else { (KERNEL_V6, OUR_V6) };
            Ok(Indices { kernel: find("the kernel's", &theirs, a)?, ours: find("our", &ours, b)? })
        };
        Ok([indices(true)?, indices(false)?])
    }

    /// One program between the two, with its limit.
    fn pair(
        &mut self,
        program: Program,
        server: Server,
        family: Family,
        gids: &Indices,
        column: &str,
    ) -> Result<(), String> {
        self.port += 1;
        let port = if program.name == UDADDY { UDADDY_PORT } else { self.port };
        let log = format!("{}-{}-{}", self.port, program.name, column.replace(' ', "-"));
        let _recorder = if self.capture { Some(self.record(&log)?) } else { None };
        let (address, meeting) = match (server, family) {
            (Server::Kernel, Family::V4) => (KERNEL_V4, KERNEL_V4),
            (Server::Kernel, Family::V6) => (KERNEL_V6, KERNEL_V4),
            (Server::Ours, Family::V4) => (OUR_V4, OUR_V4),
            (Server::Ours, Family::V6) => (OUR_V6, OUR_V4),
        };
        let (their_role, our_role) = match server {
            Server::Kernel => (Role::Server, Role::Client),
            Server::Ours => (Role::Client, Role::Server),
        };
        let theirs = program.line(KERNEL_DEVICE, gids.kernel, port, their_role, address, meeting);
        let ours = program.line(OUR_DEVICE, gids.ours, port, our_role, address, meeting);
        let limit = PAIR_TIMEOUT.as_secs();
        let our_log = self.logs.join(format!("{log}-ours.txt"));
        let their_log = self.logs.join(format!("{log}-kernel.txt"));
        let (their, our_status) = match server {
            Server::Kernel => {
                let started = self.guest.run(&format!("serve {port:04X} {limit} {theirs}"), PAIR_TIMEOUT)?;
                if started.status != 0 {
                    return Err(format!("the kernel's side did not start: {}", started.said));
                }
                let mut client = self.start(&ours, &our_log)?;
                let status = wait(&mut client)?;
                // Its peer may be gone without a word; there is no use in waiting for the end of its time.
                if status != 0 {
                    self.guest.run(&format!("sleep 1; killall {}", program.name), PAIR_TIMEOUT)?;
                }
                (self.guest.run("served", PAIR_TIMEOUT)?, status)
            }
            Server::Ours => {
                let mut server = self.start(&ours, &our_log)?;
                listening(port, program.connects(), &mut server);
                let answer = self.guest.run(&format!("timeout -k 2 {limit} {theirs}"), PAIR_TIMEOUT)?;
                if answer.status != 0 {
                    std::thread::sleep(Duration::from_secs(1));
                    terminate(&server);
                }
                (answer, wait(&mut server)?)
            }
        };
        fs::write(&their_log, &their.said).map_err(|e| format!("cannot write {}: {e}", their_log.display()))?;
        let our_said = fs::read(&our_log).unwrap_or_default();
        let mut why = Vec::new();
        for (whose, status, said) in [
            ("kernel", their.status, their.said),
            ("ours", our_status, String::from_utf8_lossy(&our_said).into_owned()),
        ] {
            why.extend(match (status, program.complaint(&said)) {
                (0, None) => None,
                (0, Some(complaint)) => Some(format!("{whose}: {complaint}")),
                // Of `timeout`: it had to end it.
                (124 | 137, _) => Some(format!("{whose}: not done in time")),
                (143, _) => Some(format!("{whose}: stopped because its peer had failed")),
                (status, _) => Some(format!("{whose}: exit status {status}, {}", reason(&said))),
            });
        }
        if why.is_empty() { Ok(()) } else { Err(format!("{} ({log})", why.join("; "))) }
    }

    /// The first program, with every packet marked.
    fn marked_pair(&mut self, server: Server, family: Family, gids: &Indices, column: &str) -> Result<(), String> {
        marks::begin(&mut self.guest)?;
        let outcome = self.pair(PROGRAMS[0], server, family, gids, column);
        let seen = marks::end(&mut self.guest);
        outcome.and(seen)
    }

    /// A program of ours: it finds our library first.
    fn ours(&self, line: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "2"]).arg(PAIR_TIMEOUT.as_secs().to_string()).args(line.split_whitespace());
        command.env("LD_LIBRARY_PATH", &self.lib).env("PATH", &self.path).stdin(Stdio::null());
        command.env_remove("UBIVERBS_FAULTS").envs(self.faults.iter().map(|plan| ("UBIVERBS_FAULTS", plan)));
        command
    }

    fn start(&self, line: &str, log: &Path) -> Result<Child, String> {
        let out = File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = out.map_err(|e| format!("cannot write {}: {e}", log.display()))?;
        self.ours(line).stdout(out).stderr(err).spawn().map_err(|e| format!("{line} did not start: {e}"))
    }

    fn record(&self, name: &str) -> Result<Recorder, String> {
        let path = self.captures.join(format!("{name}.pcapng"));
        let mut command = Command::new("dumpcap");
        command.args(["-q", "-i", TAP, "-f", "udp port 4791", "-w"]).arg(&path);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let recorder = Recorder(child.map_err(|e| format!("dumpcap did not start: {e}"))?);
        // It writes the head of its file when it has begun to listen.
        let end = Instant::now() + Duration::from_secs(10);
        while fs::metadata(&path).map_or(0, |metadata| metadata.len()) == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(recorder)
    }
}

/// A dumpcap that listens until it is dropped.
struct Recorder(Child);

impl Drop for Recorder {
    fn drop(&mut self) {
        // It writes what it has when it is asked to end.
        terminate(&self.0);
        let _ = self.0.wait();
    }
}

/// The line that tells the most about a failure: one that speaks of it, or else the last that has words.
fn reason(said: &str) -> &str {
    let telling = ["ailed", "Unable", "Couldn't", "error"];
    let mut lines = said.lines().filter(|line| line.contains(char::is_alphabetic));
    let last = lines.clone().next_back().unwrap_or("it said nothing");
    lines.find(|line| telling.iter().any(|word| line.contains(word))).unwrap_or(last).trim()
}

/// Asks a program to end; `timeout` passes that on to what it watches. One that has ended already needs no asking.
fn terminate(child: &Child) {
    let _ = Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status();
}

/// The exit status, or 128 and the signal as a shell would say it.
fn wait(child: &mut Child) -> Result<i32, String> {
    use std::os::unix::process::ExitStatusExt;
    let status = child.wait().map_err(|e| format!("our side did not end: {e}"))?;
    Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}

/// Waits until a server listens on the port, over TCP or with the connection manager. If none ever does, the client
/// will say so.
fn listening(port: u16, connects: bool, server: &mut Child) {
    let end = Instant::now() + Duration::from_secs(20);
    let pattern = format!(":{port:04X} ");
    let listens = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        line.contains(&pattern) && words.get(3) == Some(&"0A")
    };
    let found = || {
        if connects {
            // The name is bound a moment before the server listens behind it.
            let names = fs::read_to_string("/proc/net/unix").unwrap_or_default();
            let found = names.lines().any(|line| line.contains("ubiverbs/cm/") && line.ends_with(&format!("/{port}")));
            std::thread::sleep(Duration::from_millis(200));
            return found;
        }
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        tables.iter().any(|table| table.lines().any(listens))
    };
    while !found() && Instant::now() < end && matches!(server.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Where an address stands in the table of GIDs that `ibv_devinfo -v` prints.
fn gid_index(said: &str, address: &str) -> Option<usize> {
    let wanted = address.parse::<std::net::IpAddr>().ok()?;
    let wanted = match wanted {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        std::net::IpAddr::V6(v6) => v6,
    };
    said.lines().find_map(|line| {
        let (index, gid) = line.trim_start().strip_prefix("GID[")?.split_once("]:")?;
        let (gid, kind) = gid.split_once(',').unwrap_or((gid, "RoCE v2"));
        let gid: Ipv6Addr = gid.trim().parse().ok()?;
        (gid == wanted && kind.contains("v2")).then(|| index.trim().parse().ok())?
    })
}

/// A row for each program, a column for each way round.
fn table(pairs: &[Outcome]) -> String {
    let mut text = format!("{:<44}", "program");
    for (_, _, column) in COLUMNS {
        let _ = write!(text, "{column:>18}");
    }
    text.push('\n');
    let mut rows: Vec<Program> = Vec::new();
    for Outcome { program: name, arguments, .. } in pairs {
        if !rows.iter().any(|row| (row.name, row.arguments) == (name, arguments)) {
            rows.push(Program { name, arguments });
        }
    }
    for program in rows {
        let of_program = |pair: &&Outcome| (pair.program, pair.arguments) == (program.name, program.arguments);
        let _ = write!(text, "{:<44}", program.title());
        for (family, server, _) in COLUMNS {
            let of_cell = pairs.iter().filter(of_program).filter(|pair| (pair.family, pair.server) == (family, server));
            let cell = match (of_cell.clone().count(), of_cell.filter(|pair| pair.failure.is_some()).count()) {
                (0, _) => "-".to_string(),
                (_, 0) => "ok".to_string(),
                (1, _) => "FAILED".to_string(),
                (times, failed) => format!("{failed}/{times} FAILED"),
            };
            let _ = write!(text, "{cell:>18}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_table_of_gids() {
        let said = "\t\t\tGID[  0]:\t\tfe80::5054:ff:fe00:2, RoCE v2\n\t\t\tGID[  1]:\t\t::ffff:10.77.0.2, RoCE v1\n\
                    \t\t\tGID[  2]:\t\t::ffff:10.77.0.2, RoCE v2\n\t\t\tGID[  3]:\t\tfd77::2, RoCE v2\n";
        assert_eq!(gid_index(said, "10.77.0.2"), Some(2));
        assert_eq!(gid_index(said, "fd77::2"), Some(3));
        assert_eq!(gid_index(said, "fd77::1"), None);
    }

    #[test]
    fn an_end_without_a_result_is_a_failure() {
        let named = |name: &str| *PROGRAMS.iter().find(|program| program.name == name).unwrap();
        let [data, pingpong, bandwidth] = ["data_check", "ibv_rc_pingpong", "ib_write_bw"].map(named);
        assert_eq!(data.complaint("every step as it should be\n"), None);
        assert!(
            data.complaint("failed in READ: invalid data, byte 1 of 9 is 00\n")
                .is_some_and(|why| why.contains("byte 1"))
        );
        assert_eq!(pingpong.complaint("8192 bytes in 0.1 seconds\n200 iters in 0.1 seconds = 5.0 usec/iter\n"), None);
        assert!(pingpong.complaint("local address\n").is_some());
        assert_eq!(
            pingpong.complaint("9 usec/iter\ninvalid data in page 3\n").as_deref(),
            Some("invalid data in page 3")
        );
        assert_eq!(bandwidth.complaint(" #bytes #iterations\n 65536  300  10.1  10.0  0.0001\n"), None);
        assert!(bandwidth.complaint(" #bytes     #iterations    BW peak[MB/sec]\n").is_some());
    }

    #[test]
    fn the_line_that_tells_of_a_failure_is_found() {
        assert_eq!(reason("Device not recognized\nFailed to modify QP to RTS\n-----\n"), "Failed to modify QP to RTS");
        assert_eq!(reason("local address: LID 0\n-----\n"), "local address: LID 0");
        assert_eq!(reason(""), "it said nothing");
    }

    #[test]
    fn the_table_has_a_row_for_each_program_that_ran() {
        let pair = |server, failure: Option<&str>| Outcome {
            program: PROGRAMS[0].name,
            arguments: PROGRAMS[0].arguments,
            family: Family::V4,
            server,
            seconds: 1.0,
            failure: failure.map(str::to_string),
        };
        let text = table(&[pair(Server::Kernel, None), pair(Server::Ours, Some("why"))]);
        assert_eq!(text.lines().count(), 2, "{text}");
        let cells: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().rev().take(4).collect();
        assert_eq!(cells, ["-", "-", "FAILED", "ok"]);
    }
}
