//! `ubiverbs manual`: manual pages and completions as files, made from the definition of the command line; `cargo xtask
//! dist` calls it.

use crate::completions;
use crate::exit::{Exit, Failure};
use clap::{Args, Command};
use clap_complete::Shell;
use std::fs;
use std::path::{Path, PathBuf};

/// Write manual pages and completions into a directory `share`
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The directory
    share: PathBuf,
}

/// Writes them where each shell and `man` look.
pub fn run(options: &Options, ours: Command) -> Result<Exit, Failure> {
    let directory = |name: &str| {
        let path = options.share.join(name);
        fs::create_dir_all(&path).map_err(|source| Failure::Open { path: path.clone(), source })?;
        Ok::<PathBuf, Failure>(path)
    };
    let pages = directory("man/man1")?;
    clap_mangen::generate_to(ours, &pages).map_err(|source| Failure::Open { path: pages, source })?;
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions/ubiverbs"),
        (Shell::Zsh, "zsh/site-functions/_ubiverbs"),
        (Shell::Fish, "fish/vendor_completions.d/ubiverbs.fish"),
    ] {
        let path = options.share.join(place);
        directory(&Path::new(place).parent().unwrap_or(Path::new("")).display().to_string())?;
        let written = completions::script(shell, "ubiverbs").and_then(|script| fs::write(&path, script));
        written.map_err(|source| Failure::Open { path, source })?;
    }
    Ok(Exit::Ok)
}
