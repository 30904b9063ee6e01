//! Files that the kernel would show for its devices, for programs that look there instead of asking the library:
//! written to a directory of the program's own, as things are when it starts, and taken away when it ends. What they
//! say is in `tree.rs`; what changes later, and `NETLINK_RDMA`, is up to `attendant.rs`.

mod attendant;
pub mod gpu;
mod tree;

use crate::exit::{Exit, Failure};
use clap::Args;
use hca::Device;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Take away the files of a program when it has ended; `ubiverbs run` starts this
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The process to wait for
    process: i32,
    /// The directory to take away
    directory: PathBuf,
    /// The devices that the program sees, in their order
    #[arg(long, value_delimiter = ',')]
    devices: Vec<String>,
    /// Be the one who waits
    #[arg(long)]
    stay: bool,
}

/// Writes the files of these devices and sees that they go when this process does; answers where they are.
pub fn provide(devices: &[Arc<Device>]) -> Result<PathBuf, Failure> {
    // Programs are shown paths without this one's beginning, so it must be as the system resolves it.
    let place = std::env::temp_dir();
    let place = place.canonicalize().map_err(|source| Failure::Open { path: place, source })?;
    let directory = fresh_directory(&place)?;
    tree::write(&directory, devices).and_then(|()| tidy_later(&directory, devices)).map_err(|source| {
        let _ = fs::remove_dir_all(&directory);
        Failure::Open { path: directory.clone(), source }
    })?;
    Ok(directory)
}

/// The directory in which one is made for each program, if that can be done.
pub fn place() -> Result<PathBuf, Failure> {
    let place = std::env::temp_dir();
    let directory = fresh_directory(&place)?;
    fs::remove_dir(&directory).map_err(|source| Failure::Open { path: directory, source })?;
    Ok(place)
}

/// A directory that was not there. Others write where temporary files go: a name that can be foreseen could be taken on
/// purpose.
pub fn fresh_directory(place: &Path) -> Result<PathBuf, Failure> {
    let mut attempts = 0;
    loop {
        // Keys of a hasher are random.
        let random = RandomState::new().build_hasher().finish();
        let directory = place.join(format!("ubiverbs-{}-{random:016x}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempts < 9 => attempts += 1,
            Err(source) => return Err(Failure::Open { path: directory, source }),
        }
    }
}

/// Leaves a process behind that takes the directory away when this process has ended, whatever it is by then. That one
/// is no child of ours: the program may wait for all its children. Where orphans become our children (we are the first
/// process of a container) there is none, and the directory stays.
fn tidy_later(directory: &Path, devices: &[Arc<Device>]) -> io::Result<()> {
    let adopts = rustix::process::child_subreaper().is_ok_and(|it| it.is_some());
    if std::process::id() == 1 || adopts {
        return Ok(());
    }
    let us = std::process::id().to_string();
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    let devices = format!("--devices={}", names.join(","));
    let status = itself()?.args(["tidy", &devices, &us]).arg(directory).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("nobody would take it away again")) }
}

fn itself() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // Not one of the terminal's foreground: what is typed there is for the program.
    command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
    Ok(command)
}

/// Waits for a process and removes its directory; or starts another process that does, and returns when that one is
/// ready.
pub fn tidy(options: &Options) -> Result<Exit, Failure> {
    let system = |what| move |source| Failure::System { what, source };
    let Options { process, directory, devices, stay } = options;
    if !stay {
        let mut command = itself().map_err(system("cannot find this program"))?;
        let devices = format!("--devices={}", devices.join(","));
        command.args(["tidy", "--stay", &devices, &process.to_string()]).arg(directory).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(system("cannot start a process"))?;
        let mut ready = [0];
        let read = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read(&mut ready)).unwrap_or(0);
        return Ok(if read == 1 { Exit::Ok } else { Exit::Job });
    }
    let process = Pid::from_raw(*process).ok_or(rustix::io::Errno::SRCH);
    let process = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()));
    let process = process.map_err(io::Error::from).map_err(system("cannot watch the process"))?;
    // Without it counters stay as they are, and NETLINK_RDMA is the kernel's.
    let attendant = attendant::Attendant::new(directory, devices).ok();
    io::stdout().write_all(b"!").and_then(|()| io::stdout().flush()).map_err(Failure::Output)?;
    match attendant {
        Some(mut attendant) => attendant.serve(&process),
        None => while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(rustix::io::Errno::INTR) {},
    }
    fs::remove_dir_all(directory).map_err(|source| Failure::Open { path: directory.clone(), source })?;
    Ok(Exit::Ok)
}
