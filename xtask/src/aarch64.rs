//! The other machine: everything is built for 64-bit ARM, and run. Elsewhere than on such a machine QEMU plays it, one
//! process at a time, with the C library of Debian's cross compiler; programs for verbs are Debian's own for ARM.
//!
//! QEMU translates instructions, so this finds what does not build, layouts and system calls that differ, and code that
//! was written for one machine only. It cannot show that the order of memory accesses is right: the processor below is
//! the one we run on, which keeps more order than ARM promises. The models of threads (loom) cover that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{self, run};
use crate::toolchain::{Machine, Toolchain};
use crate::{dist, packages};

/// Crates whose tests are run whole: they compute, and need nothing of the system.
const CORE: [&str; 4] = ["ubiverbs-wire", "ubiverbs-trace", "ubiverbs-transport", "ubiverbs-cm"];

/// Crates with code for one machine, or with atomics: their unit tests.
const SHELL: [&str; 3] = ["ubiverbs-latch", "ubiverbs-memory", "ubiverbs-abi"];

/// Tests of system calls that QEMU does not have for its processes: it knows no `process_vm_readv`, and takes every
/// advice of `madvise` for good. ARM machines run them.
const NOT_EMULATED: [&str; 3] = [
    "mapped::tests::every_way_of_asking_agrees",
    "on_demand::tests::a_copy_into_nothing_is_missing_and_not_fatal",
    "on_demand::tests::both_ways_copy_and_both_notice_what_is_missing",
];

/// Debian's packages with programs for verbs.
const PROGRAMS: [&str; 2] = ["ibverbs-utils", "rdmacm-utils"];

/// How long a pair of programs may take; QEMU is slow.
const PAIR_MAX: Duration = Duration::from_secs(180);

/// What can be chosen.
#[derive(clap::Args)]
pub struct Options {
    /// Run only the steps whose names contain one of these words.
    #[arg(long, value_name = "WORD", num_args = 1..)]
    only: Vec<String>,
}

/// Builds and runs everything; returns a line for each step.
pub fn check(root: &Path, options: &Options) -> Result<String, String> {
    let toolchain = Toolchain::system(root, Some(Machine::Aarch64))?;
    let stage = Stage { root, place: toolchain.place(&process::target_directory(root)?), toolchain };
    type Step = (&'static str, fn(&Stage<'_>) -> Result<String, String>);
    let steps: [Step; 5] = [
        ("build", |stage| stage.build()),
        ("tests", |stage| stage.tests()),
        ("dist", |stage| stage.dist()),
        ("programs", |stage| stage.programs()),
        ("demo", |stage| stage.demo()),
    ];
    let chosen = |name: &str| options.only.is_empty() || options.only.iter().any(|word| name.contains(word));
    let mut lines = Vec::new();
    for (name, step) in steps.into_iter().filter(|(name, _)| chosen(name)) {
        println!("==> {name} for {}", Machine::Aarch64.name());
        let begin = Instant::now();
        let told = step(&stage).map_err(|e| format!("{name}: {e}"))?;
        lines.push(format!("{name:<9} {:>6.1} s  {told}", begin.elapsed().as_secs_f64()));
    }
    if stage.toolchain.is_cross() {
        lines.push("QEMU ran this: the order of memory accesses was the host's, and is not shown to be right.".into());
    }
    Ok(lines.join("\n"))
}

struct Stage<'a> {
    root: &'a Path,
    /// Where things for the machine are.
    place: PathBuf,
    toolchain: Toolchain,
}

impl Stage<'_> {
    fn build(&self) -> Result<String, String> {
        run(self.toolchain.cargo(self.root, "build").arg("--workspace"))?;
        Ok("the whole workspace".into())
    }

    fn tests(&self) -> Result<String, String> {
        let (mut passed, mut failed) = (0, Vec::new());
        for (packages, kinds) in [(&CORE[..], &["--lib", "--tests"][..]), (&SHELL[..], &["--lib"][..])] {
            let mut command = self.toolchain.cargo(self.root, "test");
            command.arg("--no-fail-fast").args(kinds);
            command.args(packages.iter().flat_map(|package| ["--package", package]));
            if self.toolchain.is_cross() {
                command.args(["--", "--exact"]).args(NOT_EMULATED.iter().flat_map(|name| ["--skip", name]));
            }
            let success = process::watch(&mut command, |line| {
                if let Some(rest) = line.strip_prefix("test result: ") {
                    let number = rest.split(". ").nth(1).and_then(|counts| counts.split_whitespace().next());
                    passed += number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
                } else if line.starts_with("test ") && line.ends_with("FAILED") {
                    failed.push(line.to_owned());
                }
            })?;
            if !success {
                return Err(format!("{} tests failed\n{}", failed.len(), failed.join("\n")));
            }
        }
        let left_out = match self.toolchain.is_cross() {
            true => format!(", {} left out that QEMU has no system calls for", NOT_EMULATED.len()),
            false => String::new(),
        };
        if passed == 0 { Err("no test ran".into()) } else { Ok(format!("{passed} passed{left_out}")) }
    }

    fn dist(&self) -> Result<String, String> {
        let made = dist::build(self.root, dist::Options::machine(Machine::Aarch64))?;
        Ok(format!("{} things made", made.lines().count()))
    }

    /// The ping-pongs and `rping`, through shared memory and over UDP.
    fn programs(&self) -> Result<String, String> {
        let bin = self.programs_of_debian()?.join("usr/bin");
        let mut count = 0;
        for link in ["shared", "udp"] {
            for name in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
                let port = process::free_port()?;
                let arguments = format!("-d ubi_lo -g 0 -n 200 -p {port}");
                let client = format!("{arguments} 127.0.0.1");
                self.pair(link, [&bin.join(name), &bin.join(name)], [&arguments, &client])?;
                count += 1;
            }
            // Its ports are not those of TCP, and need not be free there.
            let arguments = format!("-a 127.0.0.1 -p {} -C 50 -V", process::free_port()?);
            let sides = [format!("-s {arguments}"), format!("-c {arguments}")];
            self.pair(link, [&bin.join("rping"), &bin.join("rping")], [&sides[0], &sides[1]])?;
            count += 1;
        }
        Ok(format!("{count} pairs of Debian's programs, through shared memory and over UDP"))
    }

    /// Each half by itself: an emulated program cannot start itself again.
    fn demo(&self) -> Result<String, String> {
        let program = self.place.join("dist/bin/ubiverbs");
        if !program.exists() {
            return Err(format!("there is no {}: run the step dist before", program.display()));
        }
        for link in ["shared", "udp"] {
            let address = format!("127.0.0.1:{}", process::free_port()?);
            let (server, client) =
                (format!("demo --quick --server {address}"), format!("demo --quick --connect {address}"));
            self.pair(link, [&program, &program], [&server, &client])?;
        }
        run(self.start(&program, "shared").args(["demo", "--simulated"]).stdout(Stdio::null()))?;
        Ok("every step, through shared memory and over UDP; and the simulated one".into())
    }

    /// A program on our libraries.
    fn start(&self, program: &Path, link: &str) -> Command {
        let mut command = self.toolchain.start(program);
        command
            .env("UBIVERBS_LINK", link)
            .env("UBIVERBS_LOG", "errors")
            .env("UBIVERBS_SECRET", "both")
            .env_remove("LD_PRELOAD");
        command.env("LD_LIBRARY_PATH", self.place.join("dist/lib"));
        command
    }

    /// A server and a client; both must end well. The client is started again until the server listens.
    fn pair(&self, link: &str, programs: [&Path; 2], arguments: [&str; 2]) -> Result<(), String> {
        let name = programs[0].file_name().unwrap_or_default().display().to_string();
        println!("{name} {} ({link})", arguments[1]);
        let log = |side: &str| -> Result<(PathBuf, fs::File), String> {
            let path = self.place.join(format!("{side}.log"));
            let file = fs::File::create(&path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
            Ok((path, file))
        };
        let start = |number: usize, side: &str| -> Result<(PathBuf, Child), String> {
            let (path, file) = log(side)?;
            let errors = file.try_clone().map_err(|e| e.to_string())?;
            let mut command = self.start(programs[number], link);
            command.args(arguments[number].split_whitespace()).stdin(Stdio::null()).stdout(file).stderr(errors);
            Ok((path, command.spawn().map_err(|e| format!("{name} did not start: {e}"))?))
        };
        let deadline = Instant::now() + PAIR_MAX;
        let (served, mut server) = start(0, "server")?;
        let (asked, result) = loop {
            let (asked, mut client) = start(1, "client")?;
            let ended = wait(&mut client, deadline);
            let listening = matches!(server.try_wait(), Ok(None));
            if ended || !listening || Instant::now() > deadline {
                break (asked, ended);
            }
            thread::sleep(Duration::from_millis(200));
        };
        if result && wait(&mut server, deadline) {
            return Ok(());
        }
        let _ = server.kill();
        let _ = server.wait();
        let told = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        Err(format!("{name} over {link} failed\n--- server\n{}\n--- client\n{}", told(&served), told(&asked)))
    }

    /// Debian's programs for ARM, unpacked and not installed; the system's own list of packages is not touched.
    fn programs_of_debian(&self) -> Result<PathBuf, String> {
        let unpacked = self.place.join("debian");
        if unpacked.exists() || !self.toolchain.is_cross() {
            return Ok(if unpacked.exists() { unpacked } else { PathBuf::from("/") });
        }
        let work = self.place.join("apt");
        let _ = fs::remove_dir_all(&work);
        for directory in ["lists/partial", "cache/archives/partial", "fetched", "unpacked"] {
            let path = work.join(directory);
            fs::create_dir_all(&path).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        }
        packages::write(&work.join("status"), "")?;
        let apt = |arguments: &[&str]| {
            let architecture = self.toolchain.machine.debian();
            let options = [
                format!("APT::Architecture={architecture}"),
                format!("APT::Architectures={architecture}"),
                format!("Dir::State={}", work.display()),
                format!("Dir::State::status={}", work.join("status").display()),
                format!("Dir::Cache={}", work.join("cache").display()),
                "APT::Sandbox::User=root".into(),
                "Acquire::Languages=none".into(),
            ];
            let mut command = Command::new("apt-get");
            command.current_dir(work.join("fetched")).arg("--quiet=2");
            command.args(options.iter().flat_map(|option| ["--option", option]));
            run(command.args(arguments))
        };
        apt(&["update"])?;
        apt(&[&["download"][..], &PROGRAMS].concat())?;
        let fetched = fs::read_dir(work.join("fetched")).map_err(|e| format!("nothing was fetched: {e}"))?;
        for archive in fetched.flatten() {
            run(Command::new("dpkg-deb").arg("--extract").arg(archive.path()).arg(work.join("unpacked")))?;
        }
        fs::rename(work.join("unpacked"), &unpacked).map_err(|e| format!("cannot make {}: {e}", unpacked.display()))?;
        let _ = fs::remove_dir_all(&work);
        Ok(unpacked)
    }
}

/// Waits for a program's end; says whether it was good. One that takes too long is ended.
fn wait(child: &mut Child, deadline: Instant) -> bool {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return false;
            }
        }
    }
}
