//! `ubiverbs run`: starts a program on our library instead of the system's. The program takes our place, so its exit code, its signals and its
//! process number are its own.

pub mod files;

use crate::exit::{Exit, Failure};
use clap::Args;
use hca::Device;
use hca::environment::{self, Log};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The library that programs look for.
const LIBRARY: &str = "libibverbs.so.1";

/// What answers for the files of devices.
const PATHS: &str = "libubiverbs-paths.so";

/// What the dynamic linker loads before anything else.
const PRELOAD: &str = "LD_PRELOAD";

/// Where the dynamic linker looks first.
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";

/// Run a program on ubiverbs: its libibverbs and librdmacm are ours
///
/// The program needs no changes and no privileges, and neither do you. Only this program (and what it starts) is affected.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct Options {
    /// Show the program only these devices; names with commas between them (`ubiverbs devices` lists them)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    device: Vec<String>,
    /// Show the program files under /sys/class/infiniband and /dev/infiniband, where UCX, MPI and NCCL look
    ///
    /// They are written when it starts, to a directory of its own, and say what the devices are then.
    #[arg(long)]
    files: bool,
    /// How it reaches other processes of this host: shared memory where it can, or always udp
    #[arg(long, value_name = "LINK", value_parser = ["shared", "udp"])]
    link: Option<String>,
    /// Lose, double, delay or damage packets that arrive, e.g. drop=1%,seed=7
    #[arg(long, value_name = "PLAN")]
    faults: Option<String>,
    /// Write every packet the program sends or receives to a file for Wireshark
    ///
    /// If the file exists, the number of the process becomes part of the name: a program may start others.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Tell what happens: errors, events or json on standard error; anything else is a file for JSON lines
    #[arg(long, value_name = "LEVEL|FILE")]
    log: Option<OsString>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const AFTER: &str = "\
Examples:
  ubiverbs run -- ibv_devinfo -v
  ubiverbs run --device ubi_lo -- ibv_rc_pingpong -g 0
  ubiverbs run --faults drop=1% --pcap lossy.pcapng -- ib_write_bw -x 0 -F 127.0.0.1

Exit code: the program's own; 127 if it is not found, 126 if it cannot be started.";

/// Becomes the program; returns only if that is not possible.
pub fn run(options: &Options) -> Result<Exit, Failure> {
    let Some((program, arguments)) = options.program.split_first() else { return Ok(Exit::Usage) };
    let library = library()?;
    let mut command = Command::new(program);
    command.args(arguments).env(SEARCH_PATH, before(&library, SEARCH_PATH)?);
    if !options.device.is_empty() {
        check_devices(&options.device)?;
        command.env(environment::DEVICE, options.device.join(","));
    }
    if let Some(link) = &options.link {
        command.env(environment::LINK, link);
    }
    if let Some(plan) = &options.faults {
        environment::check_faults(plan).map_err(|reason| Failure::Argument {
            option: "--faults",
            text: plan.clone(),
            reason,
        })?;
        command.env(environment::FAULTS, plan);
    }
    if let Some(path) = &options.pcap {
        command.env(environment::PCAP, path_of_file("--pcap", path)?);
    }
    if let Some(log) = &options.log {
        match Log::of(log) {
            Log::File(path) => command.env(environment::LOG, path_of_file("--log", &path)?),
            _ => command.env(environment::LOG, log),
        };
    }
    if options.files {
        command.env(PRELOAD, before(&library.join(PATHS), PRELOAD)?);
        command.env(environment::FILES, files::provide(&shown(&options.device)?)?);
    }
    // Nothing of ours may be written after the program has begun.
    let error = command.exec();
    Err(not_started(program, error))
}

/// The directory with the library, which is beside that of this program, wherever both were copied to.
fn library() -> Result<PathBuf, Failure> {
    let here = env::current_exe().map_err(|source| Failure::System { what: "cannot find this program", source })?;
    let directory = here.parent().and_then(Path::parent).unwrap_or(Path::new("/")).join("lib");
    if directory.join(LIBRARY).is_file() { Ok(directory) } else { Err(Failure::NoLibrary { directory }) }
}

/// Ours first, then what the user has in that variable.
fn before(ours: &Path, variable: &str) -> Result<OsString, Failure> {
    // A name with a space can be searched, but not preloaded.
    let separators: &[u8] = if variable == PRELOAD { b":;$ " } else { b":;$" };
    if ours.as_os_str().as_bytes().iter().any(|byte| separators.contains(byte)) {
        return Err(Failure::Unloadable { path: ours.to_owned() });
    }
    let mut path = ours.as_os_str().to_owned();
    if let Some(more) = env::var_os(variable).filter(|more| !more.is_empty()) {
        path.push(":");
        path.push(more);
    }
    Ok(path)
}

/// The devices that the program will see, in the order in which it will.
fn shown(names: &[String]) -> Result<Vec<Arc<Device>>, Failure> {
    let devices = hca::Nic::of_process().map_err(Failure::Nic)?.shown_devices();
    Ok(devices
        .into_iter()
        .filter(|device| names.is_empty() || names.iter().any(|name| name == device.name()))
        .collect())
}

fn check_devices(names: &[String]) -> Result<(), Failure> {
    let devices = hca::Nic::of_process().map_err(Failure::Nic)?.devices();
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
fn path_of_file(option: &'static str, path: &Path) -> Result<PathBuf, Failure> {
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
