//! Where programs are run: a copy of what is handed to people, the hosts, and a place for what programs print. Tests
//! that run at the same time share the copy and nothing else: each has a stage of its own. One program is run to its
//! end; of two, the first is the server and waits until the others come. A program that takes too long is ended, and
//! what it printed last is told.

use crate::findings::Collection;
use crate::host::{self, Host};
use crate::usage::{Bounds, Usage};
use rustix::process::{Pid, Signal, kill_process_group};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A user who may do nothing that not everybody may.
pub const NOBODY_UID: u32 = 65534;

/// How long a run may take, and how long it may take until something is so that must be so. Mostly a second; machines
/// that run tests are busy, and this only says when to stop waiting for what will never come.
pub const PROGRAM_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a run may take whose messages nobody sends again if they are lost: the receiver waits for ever then.
const UNRELIABLE_PATIENCE: Duration = Duration::from_secs(100);

/// How long a server may take whose client has failed.
const PATIENCE_AFTER_FAILURE: Duration = Duration::from_secs(20);

/// What a machine does that is too busy, by what programs say of it, how often it may do so, and what is said then. A
/// program is not to blame: it runs again.
const BUSY: [(&str, usize, &str); 4] = [
    ("Correlation coefficient", 20, "perftest could not calibrate its clock"),
    (LOST, 3, "a message of an unreliable service was lost"),
    ("Failed status 12", 3, "a peer did not get a processor for as long as the program waits for acknowledgements"),
    ("transport retry counter exceeded", 3, "a peer did not get a processor for as long as the program waits"),
];

/// What we say if no program failed, and one still waits.
pub const LOST: &str = "all others ended well";

/// What lines have in them whose messages may be lost.
const UNRELIABLE: [&str; 6] = ["-c UD", "-c UC", "ibv_uc_pingpong", "ibv_ud_pingpong", "udaddy", "udpong"];

/// Between one look at whether a program has ended and the next.
const PAUSE: Duration = Duration::from_millis(5);

/// So many lines of what a program printed are told if it failed. What it complained of may come first, before all that
/// it printed and that was written when it ended.
const LAST_LINES: usize = 80;

/// The first port that tests use; each takes the next.
const FIRST_PORT: u16 = 18600;

/// What all stages have in common.
#[derive(Debug)]
pub struct Ground {
    /// The copy.
    dist: PathBuf,
    /// Where the tarball and the Debian package are.
    packages: PathBuf,
    /// Where the places of the stages are.
    place: PathBuf,
    /// Where they are for files that are written often.
    scratch: PathBuf,
    /// Programs are checked against the rules of verbs.
    checks: bool,
}

/// A file system in memory: `ubiverbs run` writes a hundred small files, which takes ext4 ten times as long.
const MEMORY_FILE_SYSTEM: &str = "/dev/shm";

impl Ground {
    /// Copies `dist` to where every user may read it.
    pub fn new(dist: &Path, checks: bool) -> Result<Ground, String> {
        let name = format!("ubiverbs-programs-{}", std::process::id());
        let place = std::env::temp_dir().join(&name);
        let in_memory = Path::new(MEMORY_FILE_SYSTEM).join(&name);
        let scratch = if fs::create_dir(&in_memory).is_ok() { in_memory } else { place.join("scratch") };
        let copy = place.join("copy-of-dist");
        let made = fs::create_dir_all(&place).map_err(|e| e.to_string());
        made.and_then(|()| copy_directory(dist, &copy)).map_err(|e| format!("cannot copy {}: {e}", dist.display()))?;
        Ok(Ground { dist: copy, packages: dist.with_file_name("packages"), place, scratch, checks })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// The hosts and the programs.
#[derive(Debug)]
pub struct Stage {
    /// The copy.
    pub dist: PathBuf,
    /// Where the tarball and the Debian package are.
    pub packages: PathBuf,
    /// A place for files of tests.
    pub place: PathBuf,
    /// A place for what programs write where `TMPDIR` says. Every user may write there.
    pub scratch: PathBuf,
    /// What tells it from other stages.
    number: usize,
    /// The host with only a loopback.
    pub alone: Host,
    /// The two with cables, if we are root.
    pub joined: Option<[Host; 2]>,
    port: Cell<u16>,
    /// The most that a program of this test had.
    usage: Rc<Cell<Usage>>,
    /// What this test has to say beside how it ended.
    notes: RefCell<Vec<String>>,
    /// Sockets of TCP that the lonely host had before this test, by their addresses.
    pub tcp_before: RefCell<BTreeSet<String>>,
    /// Where findings go, if programs are checked.
    pub findings: Option<Collection>,
}

/// Where two programs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// Both on one host, over its loopback.
    OneHost,
    /// On two hosts, over a cable.
    TwoHosts,
}

/// How processes of one host reach one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    SharedMemory,
    Udp,
}

impl Link {
    pub const BOTH: [Link; 2] = [Link::SharedMemory, Link::Udp];

    /// As tests name it.
    pub fn name(self) -> &'static str {
        match self {
            Link::SharedMemory => "shared memory",
            Link::Udp => "UDP",
        }
    }

    /// Options of `ubiverbs run`.
    pub fn options(self) -> Vec<String> {
        let link = if self == Link::Udp { "udp" } else { "shared" };
        vec!["--link".to_owned(), link.to_owned()]
    }
}

/// A program that talks to itself, as server and client.
#[derive(Clone, Debug)]
pub struct Pair {
    pub at: Where,
    pub user: Option<u32>,
    /// Options of `ubiverbs run`.
    pub options: Vec<String>,
    /// The program and the arguments of both sides; the port is added.
    pub line: String,
    /// Further arguments of the server.
    pub server: &'static str,
    pub clients: usize,
}

/// A server and its clients, each with a line of its own.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    /// The server's, and that of all clients.
    pub hosts: [&'a Host; 2],
    pub user: Option<u32>,
    /// Options of `ubiverbs run`.
    pub options: &'a [String],
    pub server: String,
    /// Where the server listens, by TCP or by the connection manager.
    pub port: u16,
    pub clients: Vec<String>,
    /// The server does not end by itself.
    pub stays: bool,
}

/// What is said of a program that was ended because it took too long.
const DOES_NOT_END: &str = "does not end";

/// What a program printed, and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub text: String,
}

impl Stage {
    /// Sets the hosts up.
    pub fn new(ground: &Ground, number: usize) -> Result<Stage, String> {
        let [place, scratch] = [&ground.place, &ground.scratch].map(|at| at.join(number.to_string()));
        for made in [&place, &scratch] {
            fs::create_dir_all(made).map_err(|e| format!("cannot make {}: {e}", made.display()))?;
        }
        fs::set_permissions(&scratch, Permissions::from_mode(0o1777)).map_err(|e| e.to_string())?;
        Ok(Stage {
            dist: ground.dist.clone(),
            packages: ground.packages.clone(),
            scratch,
            number,
            alone: Host::alone()?,
            joined: if crate::is_root() { Some(Host::joined()?) } else { None },
            port: Cell::new(FIRST_PORT),
            usage: Rc::default(),
            notes: RefCell::default(),
            tcp_before: RefCell::default(),
            findings: ground.checks.then(|| Collection::begin(&place)).transpose()?,
            place,
        })
    }

    /// `ubiverbs run OPTIONS -- LINE` on a host.
    pub fn run_on(&self, host: &Host, user: Option<u32>, options: &[String], line: &str) -> Command {
        let mut command = host.command(user, &self.dist.join("bin/ubiverbs"));
        command.arg("run").args(options).arg("--").args(line.split_whitespace());
        command.env_remove("LD_LIBRARY_PATH").env("TMPDIR", &self.scratch).current_dir("/");
        if let Some(findings) = &self.findings {
            findings.watch(&mut command);
        }
        command
    }

    /// Runs a program on the lonely host to its end, which must be good; answers what it printed.
    pub fn run(&self, user: Option<u32>, options: &[String], line: &str) -> Result<String, String> {
        let ended = self.end(&mut self.run_on(&self.alone, user, options, line))?;
        if ended.status.success() { Ok(ended.text) } else { Err(format!("{line}: {}\n{}", ended.status, ended.last())) }
    }

    /// Runs a command to its end.
    pub fn end(&self, command: &mut Command) -> Result<Ended, String> {
        self.start("program", command)?.end()
    }

    /// Starts a command, which ends with all that it starts; what it prints goes to a file.
    pub fn start(&self, name: &str, command: &mut Command) -> Result<Running, String> {
        if !command.get_envs().any(|(name, _)| name == "TMPDIR") {
            command.env("TMPDIR", &self.scratch);
        }
        let path = self.place.join(format!("{name}.out"));
        let file = File::create(&path).and_then(|file| Ok((file.try_clone()?, file)));
        let (out, err) = file.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn();
        let child = child.map_err(|e| format!("{} did not start: {e}", command.get_program().display()))?;
        Ok(Running { name: name.to_owned(), child, path, usage: Rc::clone(&self.usage) })
    }

    /// A process that this stage did not start itself had so much.
    pub fn add_usage(&self, usage: Usage) {
        let mut most = self.usage.get();
        most.join(usage);
        self.usage.set(most);
    }

    /// The most memory and descriptors that one process had since this was asked last.
    pub fn take_usage(&self) -> Usage {
        self.usage.take()
    }

    /// Runs server and clients, who must all end well; answers what the first client printed.
    pub fn pair(&self, pair: &Pair) -> Result<String, String> {
        let hosts = match (pair.at, &self.joined) {
            (Where::OneHost, _) => [&self.alone; 2],
            (Where::TwoHosts, Some([left, right])) => [left, right],
            (Where::TwoHosts, None) => return Err("there is one host only".into()),
        };
        let port = self.next_port();
        let line = format!("{} -p {port}", pair.line);
        let client = format!("{line} {}", hosts[0].address);
        let mut told = self.play(&Scene {
            hosts,
            user: pair.user,
            options: &pair.options,
            server: format!("{line} {}", pair.server),
            port,
            clients: vec![client; pair.clients],
            stays: false,
        })?;
        Ok(told.swap_remove(0))
    }

    /// A port that no other test on these hosts uses.
    pub fn next_port(&self) -> u16 {
        let port = self.port.get();
        self.port.set(port + 1);
        port
    }

    /// A word that nothing else on this machine has.
    pub fn next_mark(&self) -> String {
        format!("{}-{}-{}", std::process::id(), self.number, self.next_port())
    }

    /// Says something that is printed with how the test ended.
    pub fn note(&self, text: impl Into<String>) {
        self.notes.borrow_mut().push(text.into());
    }

    /// What was said since this was asked last.
    pub fn take_notes(&self) -> Vec<String> {
        self.notes.take()
    }

    /// Runs server and clients, who must all end well, except for a server that stays; answers what each client
    /// printed, and what the server did.
    pub fn play(&self, scene: &Scene<'_>) -> Result<Vec<String>, String> {
        self.again_if_busy(|| self.try_play(scene))
    }

    /// Does something again if it failed and a busy machine is to blame. The test says so.
    pub fn again_if_busy<T>(&self, run: impl Fn() -> Result<T, String>) -> Result<T, String> {
        let mut blamed = [0; BUSY.len()];
        loop {
            let result = run();
            let Err(told) = &result else { return result };
            match BUSY.iter().zip(&mut blamed).find(|((sign, ..), _)| told.contains(sign)) {
                Some(((_, most, what), count)) if *count < *most => {
                    *count += 1;
                    self.note(format!("{what}: ran again"));
                }
                _ => return result,
            }
        }
    }

    fn try_play(&self, scene: &Scene<'_>) -> Result<Vec<String>, String> {
        let [server_host, client_host] = scene.hosts;
        let run = |host, line: &str| self.run_on(host, scene.user, scene.options, line);
        let mut server = self.start("server", &mut run(server_host, &scene.server))?;
        host::wait("the server to listen", || {
            server.has_ended() || host::listens(server.id(), scene.port).unwrap_or(false)
        })
        .map_err(|e| format!("{e}\n{}", server.told()))?;
        let is_unreliable = UNRELIABLE.iter().any(|word| scene.server.contains(word));
        let mut deadline = Instant::now() + if is_unreliable { UNRELIABLE_PATIENCE } else { PROGRAM_TIMEOUT };
        let mut running = Vec::new();
        // A persistent rping keeps one request in mind until another of its threads has taken it: a second one that
        // comes before takes its place.
        let apart = Duration::from_millis(if scene.server.contains("rping -s -P") { 50 } else { 0 });
        for (number, line) in scene.clients.iter().enumerate() {
            if number > 0 {
                std::thread::sleep(apart);
            }
            running.push(self.start(&format!("client {number}"), &mut run(client_host, line))?);
        }
        let good = |ended: &Result<Ended, String>| ended.as_ref().is_ok_and(|ended| ended.status.success());
        let mut ended = Vec::new();
        for client in running {
            ended.push((client.name.clone(), client.end_by(deadline, || ())));
        }
        if !ended.iter().all(|(_, ended)| good(ended)) {
            deadline = deadline.min(Instant::now() + PATIENCE_AFTER_FAILURE);
        }
        let stayed = if scene.stays {
            Some(server.text())
        } else {
            ended.push((server.name.clone(), server.end_by(deadline, || ())));
            None
        };
        if ended.iter().all(|(_, ended)| good(ended)) {
            let texts = ended.into_iter().filter_map(|(_, ended)| ended.ok()).map(|ended| ended.text);
            return Ok(texts.chain(stayed).collect());
        }
        let nobody_failed = ended.iter().all(|(_, ended)| match ended {
            Ok(ended) => ended.status.success(),
            Err(error) => error.contains(DOES_NOT_END),
        });
        let lost = if is_unreliable && nobody_failed { LOST } else { "" };
        let told = ended.iter().map(|(name, ended)| match ended {
            Ok(ended) => format!("--- {name}: {}\n{}", ended.status, ended.last()),
            Err(error) => format!("--- {error}"),
        });
        let told = told.chain(stayed.map(|text| format!("--- server\n{}", last_lines(&text))));
        Err(format!("{} {lost}\n{}", scene.server, told.collect::<Vec<_>>().join("\n")))
    }
}

impl Ended {
    /// The last lines of what it printed.
    pub fn last(&self) -> String {
        last_lines(&self.text)
    }
}

/// A program that runs. It ends with this.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    path: PathBuf,
    usage: Rc<Cell<Usage>>,
}

impl Running {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn text(&self) -> String {
        fs::read(&self.path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Looks at what it has of the machine.
    fn watch(&self) {
        let mut usage = self.usage.get();
        usage.join(Usage::of(self.id()));
        self.usage.set(usage);
    }

    /// Looks at what it has, and fails if that is too much.
    pub fn stays_within(&self, bounds: Bounds) -> Result<(), String> {
        self.watch();
        bounds.allow(Usage::of(self.id())).map_err(|e| format!("{}: {e}", self.name))
    }

    /// Its name and the last lines.
    pub fn told(&self) -> String {
        format!("--- {}\n{}", self.name, last_lines(&self.text()))
    }

    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// Waits for its end, as long as a run may take.
    pub fn end(self) -> Result<Ended, String> {
        self.end_watched(|| ())
    }

    /// Waits for its end, and looks at something now and then.
    pub fn end_watched(self, watch: impl FnMut()) -> Result<Ended, String> {
        self.end_by(Instant::now() + PROGRAM_TIMEOUT, watch)
    }

    fn end_by(mut self, deadline: Instant, mut watch: impl FnMut()) -> Result<Ended, String> {
        for look in 0_u32.. {
            // Often at first, as most end soon.
            if look < 16 || look.is_multiple_of(16) {
                self.watch();
                watch();
            }
            if let Some(status) = self.child.try_wait().map_err(|e| format!("{}: {e}", self.name))? {
                let text = self.text();
                // The program may have ended well although a thread of the library gave up.
                if text.contains("panicked at") {
                    return Err(format!("{}: {status}\n{}", self.name, last_lines(&text)));
                }
                return Ok(Ended { status, text });
            }
            if Instant::now() > deadline {
                return Err(format!("{}: {DOES_NOT_END}\n{}", self.name, last_lines(&self.text())));
            }
            std::thread::sleep(PAUSE);
        }
        unreachable!("it ends, or the deadline passes")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The whole group: a server that is killed leaves the children that serve its clients, and some of them spin.
        if let Some(group) = i32::try_from(self.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

fn copy_directory(from: &Path, to: &Path) -> Result<(), String> {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().map_err(|e| e.to_string())?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}
