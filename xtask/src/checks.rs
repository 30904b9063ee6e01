//! Programs that break the rules of verbs, and programs that do not, on a library of the dev profile: see tests/checks.

use std::path::Path;
use std::process::Command;

use crate::dist;
use crate::process::{self, cargo};

/// Builds the library and returns the command that runs the programs, or those of rules and families that contain one of
/// `words`.
pub fn prepare(root: &Path, words: &[String]) -> Result<Command, String> {
    dist::build(root, dist::Options::DEBUG_LIBRARY)?;
    let mut command = cargo(root);
    command.args(["run", "--quiet", "--package", "ubiverbs-check-programs", "--"]);
    command.arg(process::target_directory(root)?.join("dist-debug/lib")).args(words);
    Ok(command)
}
