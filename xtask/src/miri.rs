//! Unit tests under Miri, an interpreter that reports undefined behaviour: memory that is reached after its end or beyond
//! it, data races, references that should not be. Only the crates that have `unsafe` code which is not a system call.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::process;

/// A clock, files and the number of the process come from outside.
const SYSTEM: &str = "-Zmiri-disable-isolation";
/// The ring is written with atomics and with plain copies alternately: Miri's emulation of weak memory ends with an
/// internal error. The models of loom cover the orderings.
const RING: &str = "-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation";

/// Flags, and what is run with them.
const RUNS: [(&str, &[&str]); 3] = [
    (SYSTEM, &["--package", "ubiverbs-latch", "--lib", "--test", "suite"]),
    (SYSTEM, &["--package", "ubiverbs-memory", "--lib"]),
    (RING, &["--package", "ubiverbs-link", "--lib", "shared::"]),
];

/// Runs all of it.
pub fn run(root: &Path) -> Result<(), String> {
    let is_there = nightly(root).args(["miri", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        return Err("a nightly toolchain with Miri is missing; install it with: \
            rustup toolchain install nightly --profile minimal --component miri --component rust-src"
            .into());
    }
    for (flags, what) in RUNS {
        process::run(nightly(root).args(["miri", "test"]).args(what).env("MIRIFLAGS", flags))?;
    }
    Ok(())
}

/// Nightly's cargo, without what the cargo that runs this one has put into the environment for its own toolchain.
fn nightly(root: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).current_dir(root);
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}
