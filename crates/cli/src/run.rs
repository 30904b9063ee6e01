//! `ubiverbs run`: starts a program on our library instead of the system's. The program takes our place, so its exit
//! code, its signals and its process number are its own; unless findings are collected (`--check-report`,
//! `--check-exit`), when we stay until it has ended.

mod checking;
pub mod files;
pub mod findings;
pub mod linker;
pub mod reach;
mod report;
mod scripts;
mod staying;

use crate::cards;
use crate::exit::{Exit, Failure};
use crate::meeting::Link;
use crate::nics::NicsOption;
use clap::Args;
use hca::Device;
use hca::environment::{self, Log, RecordingPlan};
use linker::{LIBRARIES, PATHS_LIBRARY, PRELOAD_VARIABLE, SEARCH_PATH, SOCKETS_LIBRARY};
use rustix::process::{Resource, getrlimit};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Run a program on ubiverbs: its libibverbs, librdmacm and libibumad are ours
///
/// The program is not changed or compiled again, and it needs no privileges. Only this program is affected, and what
/// it starts.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Options {
    /// Show the program only these devices, separated by commas; `ubiverbs devices` lists them
    #[arg(long, value_name = "NAME", value_delimiter = ',', add = crate::candidates::devices())]
    device: Vec<String>,
    #[command(flatten)]
    nics: NicsOption,
    /// Show the program no files under /sys/class/infiniband and /dev/infiniband
    ///
    /// UCX, MPI, NCCL and others look there first. The files are written when the program starts, to a directory of its
    /// own, and say what the devices are then. If that is not possible the program runs without them; --verbose tells
    /// why.
    #[arg(long, overrides_with = "files")]
    no_files: bool,
    /// Show those files; this is the default
    #[arg(long, overrides_with = "no_files", hide = true)]
    files: bool,
    /// Give the program sockets over RDMA (rsockets) in place of TCP's
    ///
    /// Both ends of a connection must have them: a connection to a program without is made over TCP where the call that
    /// connects waits, and fails where it does not. /etc/rdma/rsocket/preload_config, if there is one, says which
    /// sockets of which programs are meant.
    #[arg(long)]
    sockets: bool,
    /// How it reaches other processes of this host
    #[arg(long, value_enum)]
    link: Option<Link>,
    /// Lose, double, delay, damage or mark packets that arrive, e.g. drop=1%,seed=7
    ///
    /// Items, separated by commas: drop, dup, reorder, corrupt, mark (as congested), each with a share of packets
    /// (drop=1%) or with numbers of packets (drop@7); delay=1ms..3ms; hold=1ms, for packets that are to be overtaken;
    /// from=ADDRESS and to=ADDRESS, to strike only these; partition, so that nothing passes; seed=7, for other chances.
    #[arg(long, value_name = "PLAN", add = crate::candidates::faults())]
    faults: Option<String>,
    /// Write every packet the program sends or receives to a file for Wireshark
    ///
    /// If the file exists, the number of the process becomes part of the name: a program may start others.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Record what the program and the NIC do, each process in a file of DIR; `ubiverbs view DIR` shows it
    ///
    /// The directory is made if it is not there. With DIR,ring=64M only the newest 64 MiB of each process are kept.
    #[arg(long, value_name = "DIR")]
    record: Option<OsString>,
    /// Tell what happens on standard error: errors, events, or json; any other word is a file for JSON lines
    ///
    /// Lines begin with the time in UTC, the process and the thread.
    #[arg(long, value_name = "LEVEL|FILE", add = crate::candidates::levels_and_files())]
    log: Option<OsString>,
    /// Go on after AddressSanitizer's reports of what the NIC does with the program's memory
    ///
    /// The work is carried out then, in memory that the program may not touch. Accesses of the program's own go on only
    /// if it was built with -fsanitize-recover=address.
    #[arg(long)]
    asan_continue: bool,
    /// Run the program even if our libraries cannot reach it: static, set-user-ID, of another C library or machine
    #[arg(long)]
    force: bool,
    /// Say on standard error how the program is started
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments
    #[arg(required_unless_present = "nic", trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM",
        add = crate::candidates::programs())]
    program: Vec<OsString>,
    // The last, as their headings hold for all that follow.
    #[command(flatten)]
    checking: checking::Checking,
    #[command(flatten)]
    scripting: scripts::Scripting,
}

const AFTER_HELP: &str = "\
Examples:
  ubiverbs run -- ibv_devinfo -v
  ubiverbs run --device ubi_lo -- ibv_rc_pingpong -g 0
  ubiverbs run --nics 4 -- ibv_devices
  ubiverbs run --why -- ./my_program
  ubiverbs run --nic irdma --why -- ./my_program
  ubiverbs run --nic list
  ubiverbs run --check --check-exit --check-report findings.sarif -- ./my_test
  ubiverbs run --check=races -- mpirun -n 2 ./my_program
  ubiverbs run --sockets -- iperf3 -s
  ubiverbs run --script flap.toml --why -- ./my_program
  ubiverbs run --faults drop=1% --pcap lossy.pcapng -- \\
    ib_write_bw -x 0 -F 127.0.0.1

Exit code: the program's own, or 99 with --check-exit; 127 if it is not found, 126 if it cannot be started, 2 if our
libraries cannot reach it.";

/// No file of a device is longer.
const LONGEST_DEVICE_FILE: u64 = 64 << 10;

/// Becomes the program; returns only if that is not possible.
pub fn run(options: &Options) -> Result<Exit, Failure> {
    let names: Vec<String> = options.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let out = &mut anstream::stdout().lock();
    if let Some(told) = options.nics.cards().and_then(|word| cards::tell(word, &names, out)) {
        return told;
    }
    let Some((program, arguments)) = options.program.split_first() else { return Err(Failure::NoProgram) };
    options.nics.apply()?;
    let library = library()?;
    if let Some((program, obstacle)) = reach::obstacle(program).filter(|_| !options.force) {
        return Err(Failure::OutOfReach { program, obstacle: obstacle.to_string() });
    }
    let mut command = Command::new(program);
    command.args(arguments).env(SEARCH_PATH, linker::search_path(&library, env::var_os(SEARCH_PATH))?);
    for (variable, ours) in linker::SANITIZER_OPTIONS {
        command.env(variable, linker::options(ours, env::var_os(variable)));
    }
    if options.asan_continue {
        let (variable, ours) = linker::ASAN_CONTINUES;
        command.env(variable, linker::options(ours, env::var_os(variable)));
    }
    let mut preload = LIBRARIES.to_vec();
    if options.sockets {
        if !library.join(SOCKETS_LIBRARY).is_file() {
            return Err(Failure::NoLibrary { directory: library });
        }
        // In front: its functions are found first, and the C library's after ours.
        preload.insert(0, SOCKETS_LIBRARY);
    }
    if !options.device.is_empty() {
        check_devices(&options.device)?;
        command.env(environment::DEVICE_VARIABLE, options.device.join(","));
    }
    if let Some(link) = &options.link {
        command.env(environment::LINK_VARIABLE, if *link == Link::Udp { "udp" } else { "shared" });
    }
    if let Some(plan) = &options.faults {
        environment::check_faults(plan).map_err(|reason| Failure::Argument {
            option: "--faults",
            text: plan.clone(),
            reason,
        })?;
        command.env(environment::FAULTS_VARIABLE, plan);
    }
    if let Some(path) = &options.pcap {
        command.env(environment::PCAP_VARIABLE, path_of_file("--pcap", path)?);
    }
    let mut recordings = None;
    if let Some(plan) = &options.record {
        let plan = recording_plan(plan)?;
        recordings = RecordingPlan::read(&plan).ok().map(|plan| plan.directory);
        command.env(environment::RECORD_VARIABLE, plan);
    }
    if let Some(log) = &options.log {
        match Log::of(log) {
            Log::File(path) => command.env(environment::LOG_VARIABLE, path_of_file("--log", &path)?),
            Log::NoLevel(word) => {
                let reason = Log::no_level(&word);
                return Err(Failure::Argument { option: "--log", text: word, reason });
            }
            _ => command.env(environment::LOG_VARIABLE, log),
        };
    }
    let settings = options.checking.prepare(&mut command)?;
    options.scripting.prepare(&mut command)?;
    let wanted = options.files || !options.no_files;
    let files = match file_size_limit() {
        _ if !wanted => Err("--no-files".to_owned()),
        // The kernel would end us with a signal.
        Some(limit) => {
            let reason = format!("files may have {limit} bytes here (ulimit -f)");
            eprintln!("ubiverbs: {}", without_files(&reason));
            Err(reason)
        }
        None => files(&library, &options.device),
    };
    if let Ok(directory) = &files {
        preload.push(PATHS_LIBRARY);
        command.env(environment::FILES_VARIABLE, directory);
        let (variable, value) = files::gpu::PEER_GONE_SETTING;
        if files::gpu::are_here() && env::var_os(variable).is_none() {
            command.env(variable, value);
        }
    }
    command.env(PRELOAD_VARIABLE, linker::preloaded(&library, &preload, env::var_os(PRELOAD_VARIABLE)));
    if options.verbose {
        explain(&command, &files);
    }
    if options.checking.stays() {
        return options.checking.stay(command, &options.program, settings, recordings);
    }
    // Nothing of ours may be written after the program has begun.
    let error = command.exec();
    Err(not_started(program, error))
}

/// What the processes are told of `--record`: the program may change its directory.
fn recording_plan(text: &OsStr) -> Result<OsString, Failure> {
    let wrong =
        |reason: String| Failure::Argument { option: "--record", text: text.to_string_lossy().into_owned(), reason };
    let plan = RecordingPlan::read(text).map_err(wrong)?;
    let directory = std::path::absolute(&plan.directory).map_err(|error| wrong(error.to_string()))?;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| wrong(format!("cannot make the directory: {error}")))?;
    let mut plan_text = directory.into_os_string();
    if let Some(ring) = plan.ring {
        plan_text.push(format!(",ring={ring}"));
    }
    Ok(plan_text)
}

/// How long files may be, if that is too little for those of devices.
fn file_size_limit() -> Option<u64> {
    getrlimit(Resource::Fsize).current.filter(|limit| *limit < LONGEST_DEVICE_FILE)
}

fn without_files(reason: &str) -> String {
    format!("no device files: {reason}")
}

/// The directory with the library, which is beside that of this program, wherever both were copied to.
pub fn library() -> Result<PathBuf, Failure> {
    let here = env::current_exe().map_err(|source| Failure::System { what: "cannot find this program", source })?;
    let directory = here.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("lib");
    if directory.join(LIBRARIES[0]).is_file() { Ok(directory) } else { Err(Failure::NoLibrary { directory }) }
}

/// The directory with the device files; or why there is none, which keeps no program from running.
fn files(library: &Path, names: &[String]) -> Result<PathBuf, String> {
    if !library.join(PATHS_LIBRARY).is_file() {
        return Err(without_paths(library));
    }
    shown(names).and_then(|devices| files::provide(&devices)).map_err(|failure| failure.told())
}

fn without_paths(library: &Path) -> String {
    format!("there is no {PATHS_LIBRARY} in {}", library.display())
}

/// Where device files would be written to; or why there would be none.
pub fn files_can_be_written() -> Result<PathBuf, String> {
    let library = library().map_err(|failure| failure.told())?;
    if !library.join(PATHS_LIBRARY).is_file() {
        return Err(without_paths(&library));
    }
    files::place().map_err(|failure| failure.told())
}

/// Says what the program gets.
fn explain(command: &Command, files: &Result<PathBuf, String>) {
    for (name, value) in command.get_envs() {
        eprintln!("ubiverbs: {}={}", name.display(), value.unwrap_or_default().display());
    }
    if let Err(reason) = files {
        eprintln!("ubiverbs: {}", without_files(reason));
    }
}

/// The devices that the program will see, in the order in which it will.
fn shown(names: &[String]) -> Result<Vec<Arc<Device>>, Failure> {
    let users = environment::variable(environment::DEVICE_VARIABLE).filter(|_| names.is_empty()).unwrap_or_default();
    let users = users.to_string_lossy();
    let users = users.split(',').map(str::trim).filter(|name| !name.is_empty());
    let wanted: Vec<&str> = names.iter().map(String::as_str).chain(users).collect();
    let mut devices = crate::devices::of_host()?;
    devices.retain(|device| wanted.is_empty() || wanted.contains(&device.name()));
    devices.sort_by_key(|device| device.is_loopback());
    Ok(devices)
}

fn check_devices(names: &[String]) -> Result<(), Failure> {
    let devices = crate::devices::of_host()?;
    match names.iter().find(|name| devices.iter().all(|device| device.name() != *name)) {
        None => Ok(()),
        Some(text) => {
            let known: Vec<&str> = devices.iter().map(|device| device.name()).collect();
            let reason = format!("there is no such device; there are: {}", known.join(", "));
            Err(Failure::Argument { option: "--device", text: text.clone(), reason })
        }
    }
}

/// The program may change its directory before it opens the file, and cannot say well that it could not.
pub fn path_of_file(option: &'static str, path: &Path) -> Result<PathBuf, Failure> {
    let wrong = |reason: String| Failure::Argument { option, text: path.display().to_string(), reason };
    let path = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
    if path.is_dir() {
        return Err(wrong("it is a directory".into()));
    }
    match path.parent() {
        Some(parent) if !parent.is_dir() => Err(wrong(format!("there is no directory {}", parent.display()))),
        _ => Ok(path),
    }
}

/// Not found, or found and of no use.
fn not_started(program: &OsStr, source: io::Error) -> Failure {
    let absent = match program.as_bytes().contains(&b'/') {
        // It may be there and want an interpreter that is not.
        true => source.kind() == io::ErrorKind::NotFound && !Path::new(program).exists(),
        // A directory on the way that is closed to us makes the system say so instead of that it found nothing.
        false => {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path).all(|directory| !directory.join(program).exists())
        }
    };
    let program = program.to_owned();
    if absent { Failure::NotFound { program } } else { Failure::NotStarted { program, source } }
}
