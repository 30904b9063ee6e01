//! Programs that break the rules of verbs, and programs that do not, on what is handed to people: see tests/checks.

use std::path::Path;
use std::process::Command;

use crate::dist;
use crate::process;
use crate::toolchain::Toolchain;

/// Builds what is handed to people, and returns the command that runs the programs, or those of rules and families that
/// contain one of `words`.
pub fn prepare(root: &Path, words: &[String]) -> Result<Command, String> {
    dist::unpacked(root)?;
    let mut command = Command::new(Toolchain::system(root, None)?.build_bin(root, "check-programs")?);
    command.current_dir(root).arg(process::target_directory(root)?.join("dist/lib")).args(words);
    Ok(command)
}
