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
    tshark()
}

/// Wireshark's terminal program, which judges our captures.
pub fn tshark() -> Result<String, String> {
    if present() {
        return version();
    }
    const HOW: &str = "tshark is missing; install it with: apt-get install tshark";
    if !is_root() || !succeeds(Command::new("apt-get").arg("--version")) {
        return Err(HOW.into());
    }
    println!("tshark is missing; installing it");
    let apt = |arguments: &[&str]| {
        process::run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(arguments))
            .map_err(|e| format!("{HOW}\n{e}"))
    };
    apt(&["update"])?;
    apt(&["install", "--yes", "--no-install-recommends", "tshark"])?;
    if present() { version() } else { Err(HOW.into()) }
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
