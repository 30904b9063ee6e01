//! MPI: Open MPI over UCX and over libfabric, and MPICH, which Debian builds over UCX. A program of ours looks at every
//! byte of messages, exchanges, sums and one-sided work. All ranks are on one host, where MPI libraries would use
//! memory or TCP of their own: they are told to use nothing but verbs, and that they obey is seen by what fails where
//! no device of ours is shown, and by the datagrams that the host counts when our link is UDP.

use crate::compiled::compile_with;
use crate::host::{self, Host};
use crate::links::datagrams;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, Running, Stage};
use crate::usage::Usage;
use crate::{Test, expect};
use std::fs;

/// A library and what it runs over.
struct Flavour {
    name: &'static str,
    row: Row,
    compiler: &'static str,
    /// Before the program: `RANKS` and `INTERFACE` stand for what they say.
    launcher: &'static str,
    /// The loopback will do; libfabric leaves it out.
    loopback: bool,
}

const WHAT: &str = "2 and 4 ranks on one host, shared memory and UDP: messages of 0 bytes to 1 MiB, sums, exchanges, \
    broadcasts, put, get, accumulate, fetch and add; every byte checked; nothing runs without our device";

const FLAVOURS: [Flavour; 4] = [
    Flavour {
        name: "Open MPI, pml ucx",
        row: Row { program: "Open MPI, `pml ucx`, `osc ucx`", version: Version::Package("openmpi-bin"), what: WHAT },
        compiler: "mpicc.openmpi",
        launcher: "env UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=ubi_INTERFACE:1 mpirun.openmpi \
            --allow-run-as-root --oversubscribe --mca pml ucx --mca osc ucx --mca btl self --mca coll ^sm -n RANKS",
        loopback: true,
    },
    Flavour {
        name: "Open MPI, mtl ofi",
        row: Row { program: "Open MPI, `pml cm`, `mtl ofi`", version: Version::Package("openmpi-bin"), what: WHAT },
        compiler: "mpicc.openmpi",
        launcher: "env FI_VERBS_IFACE=INTERFACE mpirun.openmpi --allow-run-as-root --oversubscribe --mca pml cm \
            --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm --mca osc pt2pt --mca btl self \
            --mca coll ^sm -n RANKS",
        loopback: false,
    },
    Flavour {
        name: "MPICH, RC and UD",
        row: Row { program: "MPICH, `ch4:ucx`, RC and UD", version: Version::Package("mpich"), what: WHAT },
        compiler: "mpicc.mpich",
        launcher: "env UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=ubi_INTERFACE:1 MPIR_CVAR_NOLOCAL=1 \
            mpiexec.mpich -n RANKS",
        loopback: true,
    },
    Flavour {
        name: "MPICH, UD",
        row: Row { program: "MPICH, `ch4:ucx`, UD", version: Version::Package("mpich"), what: WHAT },
        compiler: "mpicc.mpich",
        launcher: "env UCX_TLS=ud_verbs,self UCX_NET_DEVICES=ubi_INTERFACE:1 MPIR_CVAR_NOLOCAL=1 \
            mpiexec.mpich -n RANKS",
        loopback: true,
    },
];

/// Bytes that each rank sends at least: messages up to 1 MiB, put and get of 1 MiB.
const SENT_PER_RANK: u64 = 3 << 20;

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for flavour in &FLAVOURS {
        let mut own = Vec::new();
        for (ranks, link) in [(2, Link::SharedMemory), (4, Link::SharedMemory), (2, Link::Udp), (4, Link::Udp)] {
            let name = format!("{}, {ranks} ranks, {}", flavour.name, link.name());
            own.push(Test::new(name, move |stage| verified(stage, flavour, ranks, link)).takes_seconds(5));
        }
        let name = format!("{}, nothing but verbs is used", flavour.name);
        own.push(Test::new(name, |stage| without_device(stage, flavour)));
        tests.extend(all_of(&flavour.row, own.into_iter().map(Test::for_root)));
    }
    tests
}

fn host<'a>(stage: &'a Stage, flavour: &Flavour) -> Result<&'a Host, String> {
    match (&stage.joined, flavour.loopback) {
        (_, true) => Ok(&stage.alone),
        (Some([left, _]), false) => Ok(left),
        (None, false) => Err("there is no host with an interface".into()),
    }
}

/// The program on so many ranks, started, and what marks its processes.
fn start(
    stage: &Stage,
    flavour: &Flavour,
    ranks: u32,
    options: &[String],
    interface: &str,
) -> Result<(Running, String), String> {
    let output = format!("mpi-{}", flavour.compiler);
    let program = compile_with(stage, flavour.compiler, "mpi.c", &output, &["-std=c11"])?;
    let launcher = flavour.launcher.replace("RANKS", &ranks.to_string()).replace("INTERFACE", interface);
    let line = format!("{launcher} {} 1", program.display());
    let mut command = stage.run_on(host(stage, flavour)?, None, options, &line);
    let mark = stage.next_mark();
    let running = stage.start("program", command.env(MARK, &mark))?;
    Ok((running, format!("{MARK}={mark}")))
}

/// Where ranks are looked for; every run has its own.
const MARK: &str = "UBIVERBS_TEST_RUN";

/// None of the ranks may be left; those that are go now.
fn none_left(mark: &str) -> Result<(), String> {
    let left = host::wait("all ranks to end", || marked(mark).is_empty());
    kill(mark);
    left
}

fn kill(mark: &str) {
    for process in marked(mark) {
        if let Some(process) = rustix::process::Pid::from_raw(process as i32) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }
}

/// The processes that have this in their environment.
fn marked(mark: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |process: &u32| {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    numbers.filter(has).collect()
}

fn verified(stage: &Stage, flavour: &Flavour, ranks: u32, link: Link) -> Result<(), String> {
    let host = host(stage, flavour)?;
    let before = datagrams(stage, host)?;
    let interface = if flavour.loopback { "lo" } else { "veth0" };
    let (running, mark) = start(stage, flavour, ranks, &link.options(), interface)?;
    let mut usage = Usage::default();
    let ended = running.end_watched(|| {
        marked(&mark).into_iter().for_each(|process| usage.join(Usage::of(process)));
    });
    stage.add_usage(usage);
    let left = none_left(&mark);
    let ended = ended?;
    if !ended.status.success() {
        return Err(format!("{}: {}", ended.status, ended.text));
    }
    left?;
    expect(&ended.text, &[&format!("{ranks} ranks, 1 rounds: every byte and every sum is right")])?;
    let sent = datagrams(stage, host)? - before;
    // A datagram has less than 64 KiB.
    match link == Link::Udp && sent < u64::from(ranks) * SENT_PER_RANK / 65536 {
        true => Err(format!("{sent} datagrams are too few for what was sent:\n{}", ended.text)),
        false => Ok(()),
    }
}

/// Where the library is to use a device that is not there, it finds nothing that it would use instead.
fn without_device(stage: &Stage, flavour: &Flavour) -> Result<(), String> {
    let (mut running, mark) = start(stage, flavour, 2, &[], "absent0")?;
    // A rank says so, and ends. Open MPI's launcher sometimes does not notice, and stays.
    let refused = host::wait("a rank to give up", || {
        let text = running.text();
        running.has_ended() || text.contains("cannot be selected") || text.contains("error in MPI_Init")
    });
    let text = running.text();
    drop(running);
    kill(&mark);
    none_left(&mark)?;
    refused.map_err(|e| format!("{e}\n{text}"))?;
    // It began, and came no further. What a rank says last is sometimes lost.
    let began = ["cannot be selected", "MPI_Init", "is not available"].iter().any(|said| text.contains(said));
    match text.contains("is right") || !began {
        true => Err(format!("it runs without our device, or not at all:\n{text}")),
        false => Ok(()),
    }
}
