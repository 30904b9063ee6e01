//! Programs written for other NICs, run on ours: those of rdma-core and perftest, MPI libraries, qemu and more, and some
//! compiled here, started with `ubiverbs run` on a copy of what is handed to people. `programs DIST [WORD…]` runs the
//! tests whose names contain one of the words (`!WORD`: do not); `--list` names them. `programs DIST --python ENVIRONMENT [WORD…]` runs
//! those of Python's packages in that virtual environment instead; `programs DIST --scoreboard ENVIRONMENT` runs all
//! and writes the table of `docs/programs.md`. `programs DIST --check [WORD…]` runs those of the first kind with every
//! rule of verbs checked, see [`findings`].
//!
//! Tests between hosts and as another user need root; without it they are left out, and counted as ignored. What runs
//! on one host runs through shared memory unless its name says UDP. `--jobs N` says how many tests run at a time.
#![forbid(unsafe_code)]

mod breaking;
mod compiled;
mod connecting;
mod doctor;
mod dying;
mod examples;
mod findings;
mod fio;
mod groups;
mod guest;
mod host;
mod libfabric;
mod links;
mod looking;
mod management;
mod management_datagrams;
mod migration;
mod minute;
mod mpi;
mod multicast;
mod notes;
mod observing;
mod packages;
mod perftest;
mod pingpong;
mod python;
mod pyverbs;
mod qperf;
mod raw;
mod reach;
mod runner;
mod running;
mod scoreboard;
mod several_nics;
mod sockets;
mod stage;
mod steady;
mod ucx;
mod usage;
mod vendored;
mod viewing;

use runner::Settings;
use scoreboard::Row;
use stage::{Ground, Stage};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// One test.
pub struct Test {
    name: String,
    /// The row of the scoreboard that it counts for. None for tests of our own tools.
    row: Option<&'static Row>,
    /// It needs namespaces, or another user.
    needs_root: bool,
    /// It looks at what another process does.
    needs_ptrace: bool,
    /// It needs the machine for itself: no other test runs meanwhile.
    alone: bool,
    /// How long it takes, about, if that is long: the longest begin first.
    seconds: u32,
    play: Box<dyn Fn(&Stage) -> Result<(), String> + Send + Sync>,
}

impl Test {
    fn new(name: impl Into<String>, play: impl Fn(&Stage) -> Result<(), String> + Send + Sync + 'static) -> Test {
        Test {
            name: name.into(),
            row: None,
            needs_root: false,
            needs_ptrace: false,
            alone: false,
            seconds: 0,
            play: Box::new(play),
        }
    }

    /// It counts for a row of the scoreboard.
    fn of(self, row: &'static Row) -> Test {
        Test { row: Some(row), ..self }
    }

    fn for_root(self) -> Test {
        Test { needs_root: true, ..self }
    }

    fn for_tracers(self) -> Test {
        Test { needs_ptrace: true, ..self }
    }

    /// It measures, or looks at what is the whole machine's.
    fn alone(self) -> Test {
        Test { alone: true, ..self }
    }

    fn takes_seconds(self, seconds: u32) -> Test {
        Test { seconds, ..self }
    }
}

/// What the tests start, and the package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("ibv_devices", "ibverbs-utils"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("rping", "rdmacm-utils"),
    ("ib_send_bw", "perftest"),
    ("ucx_info", "ucx-utils"),
    ("fi_info", "libfabric-bin"),
    ("mpirun.openmpi", "openmpi-bin"),
    ("mpicc.openmpi", "libopenmpi-dev"),
    ("mpiexec.mpich", "mpich"),
    ("mpicc.mpich", "libmpich-dev"),
    ("fio", "fio"),
    ("iperf3", "iperf3"),
    ("nc", "netcat-openbsd"),
    ("curl", "curl"),
    ("nginx", "nginx-light"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("rsync", "rsync"),
    ("qperf", "qperf"),
    ("ibstat", "infiniband-diags"),
    ("ibping", "infiniband-diags"),
    ("lstopo-no-graphics", "hwloc-nox"),
    ("ip", "iproute2"),
    ("rdma", "iproute2"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("stdbuf", "coreutils"),
    ("strace", "strace"),
    ("chromium", "chromium"),
    ("tshark", "tshark"),
    ("cc", "gcc"),
    ("make", "make"),
    ("c++", "g++"),
    ("dpkg-deb", "dpkg"),
    ("readelf", "binutils"),
    ("tmux", "tmux"),
    ("qemu-system-x86_64", "qemu-system-x86"),
];

/// What there is to say to who does not know how to call this.
const USAGE: &str = "usage: programs DIST [--jobs N] [--check WORD… | --scoreboard ENVIRONMENT | \
    [--python ENVIRONMENT] WORD…] | --list";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted_jobs = match take_jobs(&mut arguments) {
        Ok(jobs) => jobs,
        Err(error) => {
            println!("{error}");
            return ExitCode::from(64);
        }
    };
    let tests = all_tests();
    let environment = match arguments.get(1..) {
        Some([option, environment, ..]) if option == "--python" || option == "--scoreboard" => environment.as_str(),
        _ => "",
    };
    let downloaded = python::tests(Path::new(environment));
    let scoreboard = scoreboard::test(tests.iter().chain(&downloaded));
    let tests: Vec<Test> = tests.into_iter().chain([scoreboard]).collect();
    let (dist, words) = match arguments.split_first() {
        Some((first, _)) if first == "--list" => {
            tests.iter().for_each(|test| println!("{}: test", test.name));
            return ExitCode::SUCCESS;
        }
        Some((dist, words)) => (Path::new(dist), words),
        None => {
            println!("{USAGE}");
            return ExitCode::from(64);
        }
    };
    for (program, package) in PROGRAMS {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            println!("{program} is missing; install it with: apt-get install {package}");
            return ExitCode::FAILURE;
        }
    }
    // What is written down about programs is found out one by one, unless the user wants it otherwise.
    let one_by_one = Settings { jobs: wanted_jobs.unwrap_or(1), writes_scoreboard: false, checks: false };
    let (tests, words, settings) = match words {
        [option, words @ ..] if option == "--check" => {
            (tests.into_iter().filter(is_checked).collect(), words, Settings { checks: true, ..one_by_one })
        }
        [option, _] if option == "--scoreboard" => {
            (tests.into_iter().chain(downloaded).collect(), &[][..], Settings { writes_scoreboard: true, ..one_by_one })
        }
        [option, _, words @ ..] if option == "--python" => (downloaded, words, one_by_one),
        words => (tests, words, Settings { jobs: wanted_jobs.unwrap_or_else(runner::usual_jobs), ..one_by_one }),
    };
    match Ground::new(dist, settings.checks) {
        Ok(ground) => runner::run(&ground, &tests, words, settings),
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn all_tests() -> Vec<Test> {
    [
        looking::tests(),
        management::tests(),
        management_datagrams::tests(),
        running::tests(),
        several_nics::tests(),
        breaking::tests(),
        vendored::tests(),
        reach::tests(),
        doctor::tests(),
        compiled::tests(),
        dying::tests(),
        examples::tests(),
        notes::tests(),
        minute::tests(),
        observing::tests(),
        viewing::tests(),
        multicast::tests(),
        packages::tests(),
        pingpong::tests(),
        perftest::tests(),
        raw::tests(),
        ucx::tests(),
        connecting::tests(),
        groups::tests(),
        links::tests(),
        pyverbs::tests(),
        libfabric::tests(),
        mpi::tests(),
        fio::tests(),
        qperf::tests(),
        steady::tests(),
        sockets::tests(),
        migration::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Takes `--jobs N` out of the arguments. Without root tests run one by one, as they share the ports of one host.
fn take_jobs(arguments: &mut Vec<String>) -> Result<Option<usize>, String> {
    let Some(at) = arguments.iter().position(|argument| argument == "--jobs") else { return Ok(None) };
    let number = arguments.get(at + 1).and_then(|number| number.parse::<usize>().ok()).filter(|number| *number > 0);
    let number = number.ok_or_else(|| format!("--jobs wants a number of tests\n{USAGE}"))?;
    if number > 1 && !is_root() {
        return Err("--jobs: without root tests run one by one, as they share the ports of one host".into());
    }
    arguments.drain(at..at + 2);
    Ok(Some(number))
}

/// Whether a test runs a program written for other NICs, on a network that loses nothing.
fn is_checked(test: &Test) -> bool {
    test.row.is_some() && !["drop=", "packets lost"].iter().any(|fault| test.name.contains(fault))
}

/// Whether there are namespaces and other users for us.
pub fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Fails with what was read unless it contains all of these.
pub fn expect(text: &str, wanted: &[&str]) -> Result<(), String> {
    match wanted.iter().find(|wanted| !text.contains(**wanted)) {
        Some(missing) => Err(format!("no {missing:?} in:\n{text}")),
        None => Ok(()),
    }
}
