//! `--script`: failure scripts for the program's library, read here first, so that a mistake is told before the program
//! begins.

use crate::exit::Failure;
use clap::Args;
use failures::library::{Disaster, NAMES};
use hca::environment;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Options about failure scripts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Failures on purpose")]
pub struct Scripting {
    /// Break NICs, ports, queue pairs, calls and connections as a script says; may be given more than once
    ///
    /// It is a file, or a name of those that `ubiverbs torture --list` shows. docs/failures.md has the language. What a script did is told by --log and --why, with its line.
    #[arg(long, value_name = "FILE|NAME", add = crate::candidates::scripts())]
    script: Vec<PathBuf>,
    /// Where chance begins in the scripts, in place of the number that they say
    #[arg(long, value_name = "NUMBER", requires = "script")]
    script_seed: Option<u64>,
    /// Write what the scripts did to a file, as JSON lines
    #[arg(long, value_name = "FILE", requires = "script")]
    script_report: Option<PathBuf>,
}

impl Scripting {
    /// Tells the program's library which scripts it is to run.
    pub fn prepare(&self, command: &mut Command) -> Result<(), Failure> {
        if self.script.is_empty() {
            return Ok(());
        }
        let paths = self.script.iter().map(|path| check(path)).collect::<Result<Vec<_>, _>>()?;
        command.env(environment::SCRIPT_VARIABLE, paths.join(":"));
        // Processes of this run number themselves by a name that no other run has.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if std::env::var_os(environment::SCRIPT_RUN).is_none() {
            command.env(environment::SCRIPT_RUN, format!("{}-{}", std::process::id(), now.as_nanos()));
        }
        if let Some(seed) = self.script_seed {
            command.env(environment::SCRIPT_SEED, seed.to_string());
        }
        if let Some(path) = &self.script_report {
            let path = super::path_of_file("--script-report", path)?;
            // Processes append to it: what an earlier run wrote is not theirs.
            hca::create_private(&path).map_err(|source| Failure::Open { path: path.clone(), source })?;
            command.env(environment::SCRIPT_REPORT, path);
        }
        Ok(())
    }
}

/// Reads a script, and says where it is for the program, which may change its directory.
fn check(path: &Path) -> Result<String, Failure> {
    if let Some(disaster) = path.to_str().and_then(Disaster::find) {
        return Ok(disaster.name.to_owned());
    }
    let wrong = |reason: String| Failure::Argument { option: "--script", text: path.display().to_string(), reason };
    let absolute = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
    let text = absolute.to_str().filter(|text| !text.contains(':'));
    let text = text.ok_or_else(|| wrong("its path has a colon, or is not UTF-8".into()))?;
    environment::read_script(text).map_err(|error| wrong(near(path, error)))?;
    Ok(text.to_owned())
}

/// What is no file may be a name with a mistake in it.
fn near(path: &Path, error: String) -> String {
    let name = path.to_str().filter(|name| !path.exists() && !name.contains('/')).unwrap_or_default();
    let near = crate::explain::nearest::nearest(name, NAMES.iter().map(|name| (*name).to_owned()));
    if near.is_empty() { error } else { format!("{error}; did you mean {}?", near.join(" or ")) }
}
