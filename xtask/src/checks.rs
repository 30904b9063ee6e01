//! Programs that break the rules of verbs, and programs that do not, on a library of the dev profile: see tests/checks.

use std::path::Path;
use std::process::Command;

use crate::dist;
use crate::process;

/// Builds the library and the program `ubiverbs`, and returns the command that runs the programs, or those of rules and families that contain one of
/// `words`.
pub fn prepare(root: &Path, words: &[String]) -> Result<Command, String> {
    dist::build(root, dist::Options::DEBUG_LIBRARY)?;
    let program = process::build_dev(root, "ubiverbs")?;
    let dist = process::target_directory(root)?.join("dist-debug");
    let bin = dist.join("bin");
    std::fs::create_dir_all(&bin).map_err(|e| format!("cannot make {}: {e}", bin.display()))?;
    dist::replace(&bin.join("ubiverbs"), |to| std::fs::copy(&program, to).map(|_| ()))?;
    let mut command = Command::new(process::build_dev(root, "check-programs")?);
    command.current_dir(root).arg(dist.join("lib")).args(words);
    Ok(command)
}
