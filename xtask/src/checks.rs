//! Programs that break the rules of verbs, and programs that do not, on a library of the dev profile: see tests/checks.

use std::path::Path;
use std::process::Command;

use crate::dist;
use crate::process::{self, cargo};

/// Builds the library and the program `ubiverbs`, and returns the command that runs the programs, or those of rules and families that contain one of
/// `words`.
pub fn prepare(root: &Path, words: &[String]) -> Result<Command, String> {
    dist::build(root, dist::Options::DEBUG_LIBRARY)?;
    process::run(cargo(root).args(["build", "--quiet", "--package", "ubiverbs-cli"]))?;
    let target = process::target_directory(root)?;
    let bin = target.join("dist-debug/bin");
    std::fs::create_dir_all(&bin).map_err(|e| format!("cannot make {}: {e}", bin.display()))?;
    dist::replace(&bin.join("ubiverbs"), |to| std::fs::copy(target.join("debug/ubiverbs"), to).map(|_| ()))?;
    let mut command = cargo(root);
    command.args(["run", "--quiet", "--package", "ubiverbs-check-programs", "--"]);
    command.arg(target.join("dist-debug/lib")).args(words);
    Ok(command)
}
