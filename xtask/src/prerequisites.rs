//! The tools the tests need beyond cargo. A missing one is installed where that can be done without asking, and
//! otherwise is a failure that says what to type; a test is never skipped for it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process;

/// Everything `cargo xtask test` needs.
pub fn check(root: &Path) -> Result<String, String> {
    for component in ["fmt", "clippy"] {
        let found = succeeds(process::cargo(root).args([component, "--version"]));
        if !found {
            return Err(
                "cargo fmt or cargo clippy is missing; install them with: rustup component add rustfmt clippy".into()
            );
        }
    }
    debian_packages()?;
    tshark()
}

/// Files that show a package is installed: the compiler and headers, and the programs, that the C library is tested with.
const PACKAGES: &[(&str, &str)] = &[
    ("gcc", "/usr/bin/gcc"),
    ("g++", "/usr/bin/g++"),
    ("binutils", "/usr/bin/readelf"),
    ("libibverbs-dev", "/usr/include/infiniband/verbs.h"),
    ("librdmacm-dev", "/usr/include/rdma/rdma_cma.h"),
    ("ibverbs-utils", "/usr/bin/ibv_rc_pingpong"),
    ("rdmacm-utils", "/usr/bin/rping"),
    ("perftest", "/usr/bin/ib_send_lat"),
    ("rdma-core", "/usr/share/doc/rdma-core/tests"),
    ("python3-pyverbs", "/usr/lib/python3/dist-packages/pyverbs"),
];

/// Installs what is missing of [`PACKAGES`], or says what to install.
fn debian_packages() -> Result<(), String> {
    let missing: Vec<&str> =
        PACKAGES.iter().filter(|(_, shows)| !Path::new(shows).exists()).map(|(package, _)| *package).collect();
    if missing.is_empty() { Ok(()) } else { install(&missing) }
}

/// Wireshark's terminal program, which judges our captures.
pub fn tshark() -> Result<String, String> {
    if present() {
        return version();
    }
    install(&["tshark"])?;
    if present() { version() } else { Err("tshark was installed and does not run".into()) }
}

/// Installs packages where that can be done without asking; otherwise says what to type.
fn install(packages: &[&str]) -> Result<(), String> {
    let how = format!("{0} missing; install with: apt-get install {0}", packages.join(" "));
    if !is_root() || !succeeds(Command::new("apt-get").arg("--version")) {
        return Err(how);
    }
    println!("installing {}", packages.join(" "));
    let apt = |arguments: &[&str]| {
        process::run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(arguments))
            .map_err(|e| format!("{how}\n{e}"))
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

fn present() -> bool {
    succeeds(Command::new("tshark").arg("--version"))
}

fn version() -> Result<String, String> {
    let text = process::output(Command::new("tshark").arg("--version"))?;
    Ok(text.lines().next().unwrap_or("tshark").to_string())
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
