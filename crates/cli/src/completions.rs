//! `ubiverbs completions`: a script that makes a shell complete our command lines. The script asks this program at
//! every key press, so what it offers is what there is: the devices of this host, statuses with their meaning,
//! programs.

mod bash;

use crate::exit::{Exit, Failure};
use clap::{Args, Command};
use clap_complete::env::{Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use clap_complete::{CompleteEnv, Shell};
use std::io::{self, Write};

/// Print a script that makes a shell complete our commands, options, devices and statuses
///
/// The script asks this program at every key press, so it never grows old.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    /// Which shell
    shell: Shell,
}

const HELP_EXAMPLES: &str = "\
For this shell only:
  source <(ubiverbs completions bash)        (zsh likewise)
  ubiverbs completions fish | source

For good, one of:
  ubiverbs completions bash > \\
    ~/.local/share/bash-completion/completions/ubiverbs
  ubiverbs completions zsh > ~/.zfunc/_ubiverbs
    (with ~/.zfunc in fpath, before compinit)
  ubiverbs completions fish > \\
    ~/.config/fish/completions/ubiverbs.fish";

/// The variable in which a script names its shell when it asks.
const SHELL_VARIABLE: &str = "UBIVERBS_COMPLETE";

const KNOWN_SHELLS: Shells<'static> = Shells(&[&bash::Bash, &Zsh, &Fish, &Elvish, &Powershell]);

/// If a shell asks, answers it and ends the program.
pub fn answer(ours: fn() -> Command) {
    CompleteEnv::with_factory(ours).var(SHELL_VARIABLE).shells(KNOWN_SHELLS).complete();
}

/// Prints the script.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    // As it was called: by its name, or by a path, which must mean the same in every directory.
    let called = std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned();
    let completer = match std::path::absolute(&called) {
        Ok(path) if called.contains('/') => path.to_string_lossy().into_owned(),
        _ => "ubiverbs".to_owned(),
    };
    let script = script(options.shell, &completer).map_err(Failure::Output)?;
    out.write_all(&script).map_err(Failure::Output)?;
    Ok(Exit::Ok)
}

/// The script of a shell, which asks the program `completer`.
pub fn script(shell: Shell, completer: &str) -> io::Result<Vec<u8>> {
    let mut script = Vec::new();
    let mut register = |shell: &dyn EnvCompleter| {
        shell.write_registration(SHELL_VARIABLE, "ubiverbs", "ubiverbs", completer, &mut script)
    };
    match shell {
        Shell::Bash => register(&bash::Bash)?,
        Shell::Fish => register(&Fish)?,
        Shell::Elvish => register(&Elvish)?,
        Shell::PowerShell => register(&Powershell)?,
        Shell::Zsh => {
            register(&Zsh)?;
            // As the file _ubiverbs in a directory of functions it is called once before it has defined anything.
            let call = "if [[ $funcstack[1] == _ubiverbs ]]; then _clap_dynamic_completer_ubiverbs \"$@\"; fi";
            writeln!(script, "{call}")?;
        }
        _ => return Err(io::Error::other(format!("nothing is known of {shell}"))),
    }
    Ok(script)
}
