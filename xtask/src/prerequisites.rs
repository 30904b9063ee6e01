//! The tools the tests need beyond cargo. Missing ones are installed where that can be done without asking, all at once,
//! and otherwise are a failure that says what to type; a test is never skipped for one.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process;
use crate::toolchain::Machine;

/// A program that tests start, or a file they need, and the package that has it.
struct Tool {
    program: &'static str,
    package: &'static str,
}

/// Wireshark's terminal program, which judges our captures.
const TSHARK: Tool = Tool { program: "tshark", package: "tshark" };

/// What makes two hosts out of one: network namespaces, a cable between them, and its settings. `dumpcap` comes with
/// tshark.
const HOSTS: [Tool; 4] = [
    Tool { program: "ip", package: "iproute2" },
    Tool { program: "nsenter", package: "util-linux" },
    Tool { program: "unshare", package: "util-linux" },
    Tool { program: "ethtool", package: "ethtool" },
];

/// What rounds of `cargo xtask soak` are played with. Where there is gdb, it also tells where a program is stuck.
const SOAK: [Tool; 5] = [
    Tool { program: "cc", package: "gcc" },
    Tool { program: "taskset", package: "util-linux" },
    Tool { program: "setpriv", package: "util-linux" },
    Tool { program: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" },
    Tool { program: "/usr/include/rdma/rdma_cma.h", package: "librdmacm-dev" },
];

/// The browser that opens pages of runs.
const BROWSER: Tool = Tool { program: "chromium", package: "chromium" };

/// The virtual machine of `cargo xtask interop`, and the one that moves by RDMA.
const QEMU: Tool = Tool { program: "qemu-system-x86_64", package: "qemu-system-x86" };

/// What programs of Open MPI and MPICH are compiled with: their compilers come without it.
const OPEN_MPI_HEADER: &str = if cfg!(target_arch = "aarch64") {
    "/usr/lib/aarch64-linux-gnu/openmpi/include/mpi.h"
} else {
    "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h"
};
const MPICH_HEADER: &str = if cfg!(target_arch = "aarch64") {
    "/usr/include/aarch64-linux-gnu/mpich/mpi.h"
} else {
    "/usr/include/x86_64-linux-gnu/mpich/mpi.h"
};

/// Programs that are run on our library, what they are compiled with, and what takes our packages apart.
const PROGRAMS: &[Tool] = &[
    Tool { program: "make", package: "make" },
    Tool { program: "ibv_devices", package: "ibverbs-utils" },
    Tool { program: "rping", package: "rdmacm-utils" },
    Tool { program: "ib_send_bw", package: "perftest" },
    Tool { program: "ucx_info", package: "ucx-utils" },
    Tool { program: "fi_info", package: "libfabric-bin" },
    Tool { program: "mpirun.openmpi", package: "openmpi-bin" },
    Tool { program: OPEN_MPI_HEADER, package: "libopenmpi-dev" },
    Tool { program: "mpiexec.mpich", package: "mpich" },
    Tool { program: MPICH_HEADER, package: "libmpich-dev" },
    Tool { program: "fio", package: "fio" },
    Tool { program: "iperf3", package: "iperf3" },
    Tool { program: "nc", package: "netcat-openbsd" },
    Tool { program: "tmux", package: "tmux" },
    Tool { program: "curl", package: "curl" },
    Tool { program: "nginx", package: "nginx-light" },
    Tool { program: "redis-server", package: "redis-server" },
    Tool { program: "redis-cli", package: "redis-tools" },
    Tool { program: "rsync", package: "rsync" },
    Tool { program: "qperf", package: "qperf" },
    Tool { program: "ibstat", package: "infiniband-diags" },
    Tool { program: "rdma", package: "iproute2" },
    Tool { program: "lstopo-no-graphics", package: "hwloc-nox" },
    Tool { program: "/usr/share/doc/rdma-core/tests", package: "python3-pyverbs" },
    Tool { program: "setpriv", package: "util-linux" },
    Tool { program: "strace", package: "strace" },
    Tool { program: "ldconfig", package: "libc-bin" },
    Tool { program: "readelf", package: "binutils" },
    Tool { program: "dpkg-deb", package: "dpkg" },
    Tool { program: "/usr/share/keyrings/debian-archive-keyring.gpg", package: "debian-archive-keyring" },
    Tool { program: "cc", package: "gcc" },
    Tool { program: "c++", package: "g++" },
    Tool { program: "clang", package: "clang" },
    Tool { program: "valgrind", package: "valgrind" },
    Tool { program: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" },
    Tool { program: "/usr/include/rdma/rdma_cma.h", package: "librdmacm-dev" },
    Tool { program: "/usr/include/infiniband/umad.h", package: "libibumad-dev" },
    Tool { program: "/usr/include/infiniband/mad.h", package: "libibmad-dev" },
];

/// What builds for ARM elsewhere, and runs what was built.
const CROSS_AARCH64: [Tool; 4] = [
    Tool { program: "aarch64-linux-gnu-gcc", package: "gcc-aarch64-linux-gnu" },
    Tool { program: "/usr/aarch64-linux-gnu/lib/libc.so.6", package: "libc6-arm64-cross" },
    Tool { program: "/usr/aarch64-linux-gnu/include/stdio.h", package: "libc6-dev-arm64-cross" },
    Tool { program: "qemu-aarch64-static", package: "qemu-user-static" },
];

/// What builds for PCs elsewhere, and runs what was built.
const CROSS_X86_64: [Tool; 4] = [
    Tool { program: "x86_64-linux-gnu-gcc", package: "gcc-x86-64-linux-gnu" },
    Tool { program: "/usr/x86_64-linux-gnu/lib/libc.so.6", package: "libc6-amd64-cross" },
    Tool { program: "/usr/x86_64-linux-gnu/include/stdio.h", package: "libc6-dev-amd64-cross" },
    Tool { program: "qemu-x86_64-static", package: "qemu-user-static" },
];

/// What makes a Python environment, looks at what is packed, and is run on it.
const PYTHON: [Tool; 3] = [
    Tool { program: "python3", package: "python3" },
    Tool { program: "readelf", package: "binutils" },
    Tool { program: "ibv_devices", package: "ibverbs-utils" },
];

/// Everything `cargo xtask test` needs, its quick form too.
pub fn check(root: &Path) -> Result<String, String> {
    for component in ["fmt", "clippy"] {
        let found = succeeds(process::cargo(root).args([component, "--version"]));
        if !found {
            return Err(
                "cargo fmt or cargo clippy is missing; install them with: rustup component add rustfmt clippy".into()
            );
        }
    }
    let free = space(root)?;
    provide(HOSTS.iter().chain(PROGRAMS).chain(&SOAK).chain([&QEMU, &TSHARK, &BROWSER]))?;
    Ok(format!("{}; {free} MB free on disk", tshark()?))
}

/// What a run from nothing takes on disk.
const MEGABYTES_NEEDED: u64 = 3_000;

/// What a run takes when most is built already.
const MEGABYTES_NEEDED_AGAIN: u64 = 500;

/// Megabytes free where we build. Too few are a failure that says so: linkers and captures that meet a full disk say
/// something else.
fn space(root: &Path) -> Result<u64, String> {
    let free = megabytes_free(root)?;
    let is_built = process::target_directory(root)?.join("test/executables.json").exists();
    let needed = if is_built { MEGABYTES_NEEDED_AGAIN } else { MEGABYTES_NEEDED };
    match free < needed {
        true => Err(format!("{free} MB free on disk, and a run takes {needed}: make room, or set CARGO_TARGET_DIR")),
        false => Ok(free),
    }
}

/// Megabytes free where cargo builds.
pub fn megabytes_free(root: &Path) -> Result<u64, String> {
    let target = process::target_directory(root)?;
    let place = target.ancestors().find(|path| path.exists()).unwrap_or(root);
    let text = process::output(Command::new("df").arg("-Pm").arg(place))?;
    let free = text.lines().nth(1).and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    free.ok_or_else(|| format!("df says what is not understood:\n{text}"))
}

/// What the programs step needs.
pub fn programs() -> Result<(), String> {
    provide(PROGRAMS.iter().chain([&QEMU]))
}

/// What the soak step needs.
pub fn soak() -> Result<(), String> {
    let hosts: &[Tool] = if is_root() { &HOSTS } else { &[] };
    provide(SOAK.iter().chain(hosts))
}

/// What the attack step needs.
pub fn attack() -> Result<(), String> {
    let setpriv = Tool { program: "setpriv", package: "util-linux" };
    provide(HOSTS.iter().chain([&setpriv]))
}

/// What builds for another machine and runs it here.
pub fn cross(root: &Path, machine: Machine) -> Result<(), String> {
    let tools = match machine {
        Machine::X86_64 => &CROSS_X86_64,
        Machine::Aarch64 => &CROSS_AARCH64,
    };
    provide(tools)?;
    // Asked in the workspace: a toolchain may be set for it.
    let mut rustc = Command::new("rustc");
    let directory =
        process::output(rustc.current_dir(root).args(["--print", "target-libdir", "--target"]).arg(machine.target()))?;
    match Path::new(directory.trim()).is_dir() {
        true => Ok(()),
        false => {
            Err(format!("Rust's library for it is missing; install it with: rustup target add {}", machine.target()))
        }
    }
}

/// What makes wheels, besides what pip gets.
pub fn wheel() -> Result<(), String> {
    provide(&PYTHON)?;
    let has_venv = || succeeds(Command::new("python3").args(["-c", "import ensurepip, venv"]));
    if has_venv() {
        return Ok(());
    }
    install(&["venv of python3"], &["python3-venv"])?;
    if has_venv() { Ok(()) } else { Err("python3 still has no venv though python3-venv is installed".into()) }
}

/// What makes an image without a container engine.
pub fn image() -> Result<(), String> {
    provide(&[
        Tool { program: "mmdebstrap", package: "mmdebstrap" },
        Tool { program: "dpkg-deb", package: "dpkg" },
        Tool { program: "/usr/share/keyrings/debian-archive-keyring.gpg", package: "debian-archive-keyring" },
    ])
}

/// What runs containers, as root.
pub fn containers() -> Result<(), String> {
    if !is_root() {
        return Err("only root can make networks for containers".into());
    }
    provide(HOSTS.iter().chain(&[
        Tool { program: "podman", package: "podman" },
        Tool { program: "crun", package: "crun" },
        Tool { program: "/usr/lib/podman/netavark", package: "netavark" },
    ]))
}

/// What starts jobs of several hosts, as root.
pub fn engines() -> Result<(), String> {
    if !is_root() {
        return Err("only root can make hosts".into());
    }
    programs()?;
    provide(HOSTS.iter().chain(&[
        Tool { program: "/usr/sbin/sshd", package: "openssh-server" },
        Tool { program: "ssh", package: "openssh-client" },
        Tool { program: "/usr/sbin/slurmctld", package: "slurm-wlm" },
        Tool { program: "/usr/sbin/munged", package: "munge" },
    ]))
}

/// Wireshark's terminal program, and its version.
pub fn tshark() -> Result<String, String> {
    provide([&TSHARK])?;
    let text = process::output(Command::new(TSHARK.program).arg("--version"))?;
    Ok(text.lines().next().unwrap_or(TSHARK.program).to_string())
}

/// Everything `cargo xtask interop` needs.
pub fn interop() -> Result<(), String> {
    provide(HOSTS.iter().chain(PROGRAMS).chain([&QEMU, &TSHARK]))
}

/// Sees that tools are there, and installs those that are not where that can be done without asking.
fn provide<'a>(tools: impl IntoIterator<Item = &'a Tool>) -> Result<(), String> {
    let missing: Vec<&Tool> = tools.into_iter().filter(|tool| !tool.is_present()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<&str> = missing.iter().map(|tool| tool.program).collect();
    let mut packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    install(&programs, &packages)?;
    match missing.iter().find(|tool| !tool.is_present()) {
        None => Ok(()),
        Some(Tool { program, package }) => Err(format!("{package} is installed, and {program} is still missing")),
    }
}

impl Tool {
    /// Whether the system can start it, whatever it then thinks of the argument.
    fn is_present(&self) -> bool {
        if self.program.starts_with('/') {
            return Path::new(self.program).exists();
        }
        Command::new(self.program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    }
}

/// Installs packages, where that can be done without asking; says how elsewhere.
fn install(what: &[&str], packages: &[&str]) -> Result<(), String> {
    let (what, names) = (what.join(", "), packages.join(" "));
    let how = format!("missing: {what}; install with: apt-get install {names}");
    if !is_root() || !succeeds(Command::new("apt-get").arg("--version")) {
        return Err(how);
    }
    println!("missing: {what}; installing {names}");
    let apt = |arguments: &[&str]| {
        process::run(
            Command::new("apt-get")
                // Another run may be installing just now.
                .args(["-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Use-Pty=0", "--quiet"])
                .env("DEBIAN_FRONTEND", "noninteractive")
                .args(arguments),
        )
        .map_err(|e| format!("{how}\n{e}"))
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
