//! `ubiverbs doctor`: what would keep RDMA programs from working here, and what to do about it. Each check looks at one
//! thing and changes nothing.

mod checks;
mod libraries;
mod network;
mod system_calls;

use crate::exit::{Exit, Failure};
use crate::nics::NicsOption;
use crate::style;
use clap::Args;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};
use trace::printable;

/// Find what would keep RDMA programs from working here, and how to fix it
///
/// Looks at network interfaces, UDP port 4791, limits, system calls, libraries and the place for device files.
/// Begin with it where `ubiverbs run` does not do what you expect.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Exit code: 0 if nothing would fail; 1 if something would.")]
pub struct Options {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    nics: NicsOption,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// Nothing to do.
    Ok,
    /// Some programs would be slower, see less, or fail for reasons of their own.
    Warning,
    /// Programs would fail.
    Failure,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    what: String,
    /// The command or the action that fixes it.
    fix: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, what: impl Into<String>) -> Finding {
        Finding { check, level: Level::Ok, what: what.into(), fix: None }
    }

    fn warning(check: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { check, level: Level::Warning, what: what.into(), fix: Some(fix.into()) }
    }

    fn failure(check: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { check, level: Level::Failure, what: what.into(), fix: Some(fix.into()) }
    }
}

/// Looks, and says what it found.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    options.nics.apply()?;
    let findings = checks::all();
    let healthy = findings.iter().all(|finding| finding.level != Level::Failure);
    if options.json {
        let document = json!({ "healthy": healthy, "checks": findings });
        writeln!(out, "{document:#}").map_err(Failure::Output)?;
    } else {
        findings.iter().try_for_each(|finding| tell(finding, out)).map_err(Failure::Output)?;
    }
    Ok(if healthy { Exit::Ok } else { Exit::Job })
}

fn tell(finding: &Finding, out: &mut impl Write) -> io::Result<()> {
    let (mark, style) = match finding.level {
        Level::Ok => ("ok", style::GOOD_STYLE),
        Level::Warning => ("warning", style::WARNING_STYLE),
        Level::Failure => ("FAILURE", style::BAD_STYLE),
    };
    // Processes, devices and directories have the names that others gave them.
    writeln!(out, "{style}{mark:<8}{style:#} {:<14} {}", finding.check, printable(&finding.what))?;
    let command = style::COMMAND_STYLE;
    match &finding.fix {
        Some(fix) => writeln!(out, "{:<8} {:<14} fix: {command}{}{command:#}", "", "", printable(fix)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_do_nothing_to_a_terminal() {
        let mut out = Vec::new();
        tell(&Finding::warning("UDP port", "held by \u{1b}]0;owned\u{7}\u{1b}[2J", "kill \u{9b}1"), &mut out).unwrap();
        let text = anstream::adapter::strip_str(&String::from_utf8(out.clone()).unwrap()).to_string();
        assert!(text.contains("held by \\u{1b}]0;owned\\u{7}\\u{1b}[2J") && text.contains("kill \\u{9b}1"), "{text}");
    }
}
