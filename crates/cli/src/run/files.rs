//! Files that the kernel would show for its devices, for programs that look there instead of asking the library: written to a directory of the program's own, as
//! things are when it starts, and taken away when it ends.

use crate::exit::{Exit, Failure};
use clap::Args;
use hca::Device;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
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
    /// Be the one who waits
    #[arg(long)]
    stay: bool,
}

/// Writes the files of these devices and sees that they go when this process does; answers where they are.
pub fn provide(devices: &[Arc<Device>]) -> Result<PathBuf, Failure> {
    let directory = std::env::temp_dir().join(format!("ubiverbs-{}", std::process::id()));
    // Of a process with our number that nobody cleaned up after.
    let _ = fs::remove_dir_all(&directory);
    let failed = |source| Failure::Open { path: directory.clone(), source };
    fs::DirBuilder::new().mode(0o700).create(&directory).map_err(failed)?;
    write(&directory, devices).and_then(|()| tidy_later(&directory)).map_err(|source| {
        let _ = fs::remove_dir_all(&directory);
        Failure::Open { path: directory.clone(), source }
    })?;
    Ok(directory)
}

fn write(directory: &Path, devices: &[Arc<Device>]) -> io::Result<()> {
    let file = |path: PathBuf, text: &str| {
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        fs::write(path, format!("{text}\n"))
    };
    let class = directory.join("sys/class");
    fs::create_dir_all(class.join("infiniband"))?;
    fs::create_dir_all(directory.join("dev/infiniband"))?;
    file(class.join("infiniband_verbs/abi_version"), "6")?;
    for (position, device) in devices.iter().enumerate() {
        let name = device.name();
        let interface = name.strip_prefix("ubi_").unwrap_or(name);
        let verbs = format!("uverbs{position}");
        // A device that can be opened, and says nothing.
        symlink("/dev/null", directory.join("dev/infiniband").join(&verbs))?;
        file(class.join("infiniband_verbs").join(&verbs).join("ibdev"), name)?;
        file(class.join("infiniband_verbs").join(&verbs).join("abi_version"), "1")?;
        let place = class.join("infiniband").join(name);
        let guid = crate::devices::guid(device);
        let port = device.port();
        let of_device = [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", "ubiverbs"),
            ("fw_ver", env!("CARGO_PKG_VERSION")),
            ("device/numa_node", "-1"),
            ("ports/1/state", if port.active { "4: ACTIVE" } else { "1: DOWN" }),
            ("ports/1/phys_state", if port.active { "5: LinkUp" } else { "3: Disabled" }),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/lid", "0x0"),
            ("ports/1/lid_mask_count", "0"),
            ("ports/1/sm_lid", "0x0"),
            ("ports/1/sm_sl", "0"),
            ("ports/1/pkeys/0", "0xffff"),
        ];
        for (path, text) in of_device {
            file(place.join(path), text)?;
        }
        fs::create_dir_all(place.join("device/net"))?;
        symlink(format!("/sys/class/net/{interface}"), place.join("device/net").join(interface))?;
        for (index, gid) in port.gids.iter().enumerate() {
            let ports = place.join("ports/1");
            let words = gid.unwrap_or_default().octets();
            let words: Vec<String> =
                words.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
            file(ports.join(format!("gids/{index}")), &words.join(":"))?;
            if gid.is_some() {
                file(ports.join(format!("gid_attrs/types/{index}")), "RoCE v2")?;
                file(ports.join(format!("gid_attrs/ndevs/{index}")), interface)?;
            }
        }
    }
    Ok(())
}

/// Leaves somebody behind who takes the directory away when this process has ended, whatever it is by then. That one is no child of ours: the
/// program may wait for all its children.
fn tidy_later(directory: &Path) -> io::Result<()> {
    let us = std::process::id().to_string();
    let status = itself()?.args(["tidy", &us]).arg(directory).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other("nobody would take it away again")) }
}

fn itself() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // Not one of the terminal's foreground: what is typed there is for the program.
    command.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
    Ok(command)
}

/// Waits for a process and takes its directory away; or starts somebody who does, and leaves when that one is ready.
pub fn tidy(options: &Options) -> Result<Exit, Failure> {
    let system = |what| move |source| Failure::System { what, source };
    let Options { process, directory, stay } = options;
    if !stay {
        let mut command = itself().map_err(system("cannot find this program"))?;
        command.args(["tidy", "--stay", &process.to_string()]).arg(directory).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(system("cannot start a process"))?;
        let mut ready = [0];
        let read = child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read(&mut ready)).unwrap_or(0);
        return Ok(if read == 1 { Exit::Ok } else { Exit::System });
    }
    let process = Pid::from_raw(*process).ok_or(rustix::io::Errno::SRCH);
    let process = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()));
    let process = process.map_err(io::Error::from).map_err(system("cannot watch the process"))?;
    io::stdout().write_all(b"!").and_then(|()| io::stdout().flush()).map_err(Failure::Output)?;
    while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(rustix::io::Errno::INTR) {}
    fs::remove_dir_all(directory).map_err(|source| Failure::Open { path: directory.clone(), source })?;
    Ok(Exit::Ok)
}
