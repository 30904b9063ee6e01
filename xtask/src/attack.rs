//! The hostile second user: builds the program of `tests/attack`, runs it as root, and adds up its verdicts. What is
//! attacked, and what each verdict means, stands there and in docs/security.md.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::{self, watch};
use crate::{prerequisites, soak};

/// What can be chosen.
#[derive(clap::Args)]
pub struct Options {
    /// How long attacks are mixed at random, after each was tried alone.
    #[arg(long, default_value_t = 1.0)]
    pub minutes: f64,
    /// Where chance begins; the date if not said, so that it is another one every day.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Try only attacks whose names contain one of these words; `mixture` is one.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub only: Vec<String>,
    /// Say which attacks there are, and do nothing.
    #[arg(long)]
    pub list: bool,
}

/// How many attacks were held, and how many were not or could not be tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub held: u64,
    pub failed: u64,
}

/// Attacks. Fails if anything was broken.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    if options.list {
        return process::run(Command::new(process::build_dev(root, "attack")?).arg("--list"));
    }
    if !prerequisites::is_root() {
        return Err("attacks need root, to make hosts and to become other users".into());
    }
    let Counts { held, failed } = play(root, options)?;
    println!("{held} passed, {failed} failed");
    if failed == 0 { Ok(()) } else { Err("not every attack was held".into()) }
}

/// Plays the attacks and counts those that passed and failed.
pub fn play(root: &Path, options: &Options) -> Result<Counts, String> {
    prerequisites::attack()?;
    // Its servers are attacked, too.
    process::build_dev(root, "ubiverbs")?;
    let program = process::build_dev(root, "attack")?;
    soak::reachable(&program)?;
    let seed = options.seed.map_or_else(soak::date, Ok)?;
    let mut command = Command::new(program);
    command.args(["--minutes", &options.minutes.to_string(), "--seed", &seed.to_string()]).stdin(Stdio::null());
    if !options.only.is_empty() {
        command.arg("--only").args(&options.only);
    }
    let mut counts = None;
    let success = watch(&mut command, |line| counts = last_line(line).or(counts))?;
    match counts {
        Some(Counts { failed: 0, .. }) if !success => Err("the attacker failed".into()),
        Some(counts) => Ok(counts),
        None => Err("the attacker did not come to its end".into()),
    }
}

/// Reads `12 held, 1 broken, 3 undefended, 0 not tried`.
fn last_line(line: &str) -> Option<Counts> {
    let numbers: Option<Vec<u64>> =
        line.split(", ").map(|part| part.split_once(' ').and_then(|(number, _)| number.parse().ok())).collect();
    match numbers?[..] {
        [held, broken, _, not_tried] if line.ends_with(" not tried") => {
            Some(Counts { held, failed: broken + not_tried })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, last_line};

    #[test]
    fn the_last_line_is_told_from_others() {
        let line = "12 held, 2 broken, 3 undefended, 1 not tried";
        assert_eq!(last_line(line), Some(Counts { held: 12, failed: 3 }));
        for line in ["", "seed 7", "held       shared-send: none of 1, 2, 3 (0.1 s)", "1 held, 2 broken"] {
            assert_eq!(last_line(line), None, "{line}");
        }
    }
}
