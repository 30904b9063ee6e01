//! Real programs on what people get: builds it, and runs the tests of `tests/programs` on it.

use std::path::Path;
use std::process::Command;

use crate::dist;
use crate::process::{self, cargo};

/// Builds everything and returns the command that runs the tests whose names contain one of `words`, or all of them to
/// write the scoreboard.
pub fn prepare(root: &Path, words: &[String], scoreboard: bool) -> Result<Command, String> {
    dist::build(root, dist::Options::default())?;
    let mut command = cargo(root);
    command.args(["run", "--quiet", "--package", "ubiverbs-programs", "--"]);
    command.arg(process::target_directory(root)?.join("dist")).args(words);
    if scoreboard {
        command.arg("--scoreboard");
    }
    Ok(command)
}
