//! `ubiverbs completions`: what a shell needs to complete our command lines.

use crate::exit::{Exit, Failure};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::Write;

/// Print completions for a shell
///
/// Prints a script that teaches the shell our commands and options.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Which shell
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  bash:  ubiverbs completions bash > ~/.local/share/bash-completion/completions/ubiverbs
  zsh:   ubiverbs completions zsh > ~/.zfunc/_ubiverbs        (with ~/.zfunc in fpath)
  fish:  ubiverbs completions fish > ~/.config/fish/completions/ubiverbs.fish";

/// Prints them.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    out.write_all(&script(options.shell)).map_err(Failure::Output)?;
    Ok(Exit::Ok)
}

/// The script of a shell.
pub fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::Arguments::command(), "ubiverbs", &mut script);
    script
}
