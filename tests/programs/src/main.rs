//! Programs written for other NICs, run on ours: those of rdma-core and perftest, MPI libraries, qemu and more, and some
//! compiled here, started with `ubiverbs run` on a copy of what is handed to people. `programs DIST [WORD…]` runs the
//! tests whose names contain one of the words; `--list` names them. `programs DIST --python ENVIRONMENT [WORD…]` runs
//! those of Python's packages in that virtual environment instead; `programs DIST --scoreboard ENVIRONMENT` runs all
//! and writes the table of `docs/programs.md`. `programs DIST --check [WORD…]` runs those of the first kind with every
//! rule of verbs checked, see [`findings`].
//!
//! Tests between hosts and as another user need root; without it they are left out, and counted as ignored. What runs on one host runs through shared
//! memory unless its name says UDP.
#![forbid(unsafe_code)]

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
mod mpi;
mod multicast;
mod notes;
mod packages;
mod perftest;
mod pingpong;
mod python;
mod pyverbs;
mod qperf;
mod raw;
mod reach;
mod running;
mod scoreboard;
mod sockets;
mod stage;
mod steady;
mod ucx;
mod usage;
mod vendored;

use findings::Findings;
use scoreboard::{Row, Scoreboard};
use stage::Stage;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// One test.
pub struct Test {
    name: String,
    /// The row of the scoreboard that it counts for. None for tests of our own tools.
    row: Option<&'static Row>,
    /// It needs namespaces, or another user.
    needs_root: bool,
    /// It looks at what another process does.
    needs_ptrace: bool,
    play: Box<dyn Fn(&Stage) -> Result<(), String>>,
}

impl Test {
    fn new(name: impl Into<String>, play: impl Fn(&Stage) -> Result<(), String> + 'static) -> Test {
        Test { name: name.into(), row: None, needs_root: false, needs_ptrace: false, play: Box::new(play) }
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
    ("tshark", "tshark"),
    ("cc", "gcc"),
    ("make", "make"),
    ("c++", "g++"),
    ("dpkg-deb", "dpkg"),
    ("readelf", "binutils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tests: Vec<Test> = [
        looking::tests(),
        management::tests(),
        management_datagrams::tests(),
        running::tests(),
        vendored::tests(),
        reach::tests(),
        doctor::tests(),
        compiled::tests(),
        dying::tests(),
        examples::tests(),
        notes::tests(),
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
    .collect();
    let environment = match arguments.get(1..) {
        Some([option, environment, ..]) if option == "--python" || option == "--scoreboard" => environment.as_str(),
        _ => "",
    };
    let downloaded = python::tests(Path::new(environment));
    let scoreboard = scoreboard::test(tests.iter().chain(&downloaded));
    let tests: Vec<Test> = tests.into_iter().chain([scoreboard]).collect();
    match arguments.split_first() {
        Some((first, _)) if first == "--list" => {
            tests.iter().for_each(|test| println!("{}: test", test.name));
            ExitCode::SUCCESS
        }
        Some((dist, words)) => {
            for (program, package) in PROGRAMS {
                let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
                if found.is_err() {
                    println!("{program} is missing; install it with: apt-get install {package}");
                    return ExitCode::FAILURE;
                }
            }
            match Stage::new(Path::new(dist)) {
                Ok(mut stage) => match words {
                    [option, words @ ..] if option == "--check" => match stage.check() {
                        Ok(()) => run(&stage, &tests.into_iter().filter(is_checked).collect::<Vec<_>>(), words, false),
                        Err(error) => {
                            println!("{error}");
                            ExitCode::FAILURE
                        }
                    },
                    [option, _] if option == "--scoreboard" => {
                        run(&stage, &tests.into_iter().chain(downloaded).collect::<Vec<_>>(), &[], true)
                    }
                    [option, _, words @ ..] if option == "--python" => run(&stage, &downloaded, words, false),
                    words => run(&stage, &tests, words, false),
                },
                Err(error) => {
                    println!("{error}");
                    ExitCode::FAILURE
                }
            }
        }
        None => {
            println!(
                "usage: programs DIST [--check WORD… | --scoreboard ENVIRONMENT | [--python ENVIRONMENT] WORD…] | --list"
            );
            ExitCode::from(64)
        }
    }
}

/// Runs the tests one after the other: two programs at a time are enough for two cores.
fn run(stage: &Stage, tests: &[Test], words: &[String], write: bool) -> ExitCode {
    let mut scoreboard = Scoreboard::default();
    let mut findings = Findings::default();
    let (mut passed, mut failed, mut ignored) = (0, Vec::new(), 0);
    let begin = Instant::now();
    for test in tests {
        let Test { name, needs_root, needs_ptrace, play, .. } = test;
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        if *needs_root && !is_root() {
            println!("test {name} ... ignored, not root");
            scoreboard.ignored(test);
            ignored += 1;
            continue;
        }
        if *needs_ptrace && !links::may_trace() {
            println!("test {name} ... ignored, this system does not let a process look at another (ptrace)");
            scoreboard.ignored(test);
            ignored += 1;
            continue;
        }
        let start = Instant::now();
        stage.take_usage();
        let outcome = play(stage);
        let time = start.elapsed().as_millis();
        let usage = stage.take_usage();
        let collected = stage.findings.as_ref().map_or(Ok(()), |collection| findings.add(name, collection));
        let outcome = outcome.and(collected);
        scoreboard.ran(test, outcome.is_ok(), usage);
        match outcome {
            Ok(()) => {
                println!("test {name} ... ok ({time} ms, {usage})");
                passed += 1;
            }
            Err(error) => {
                println!("test {name} ... FAILED ({time} ms)\n{error}\n");
                failed.push(name);
            }
        }
    }
    for name in &failed {
        println!("failed: {name}");
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    let (failures, time) = (failed.len(), begin.elapsed());
    println!("test result: {verdict}. {passed} passed; {failures} failed; {ignored} ignored; in {time:?}");
    if write && let Err(error) = scoreboard.write(&scoreboard::page()) {
        println!("{error}");
        return ExitCode::FAILURE;
    }
    if stage.findings.is_some()
        && let Err(error) = findings::page().and_then(|page| findings.compare(&page))
    {
        println!("{error}");
        return ExitCode::FAILURE;
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
