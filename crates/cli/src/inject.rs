//! `ubiverbs inject`: failures for a program that runs.

use crate::exit::{Exit, Failure};
use clap::{Args, ValueHint};
use failures::Script;
use hca::inject::{Injected, inject};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Break a port, a queue pair, a connection or the network of a program that runs
///
/// The program is one of the same user, and has a device open; it need not have been started with a script. What an
/// event says is what a table of a failure script says (docs/failures.md), on one line. What breaks is whole again when
/// the event ends (`for = "2s"`), or when the program ends.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    /// The process
    pid: i32,
    /// What happens: do = "port-down", for = "2s"
    #[arg(required_unless_present = "scripts")]
    events: Vec<String>,
    /// A whole script; its times count from now
    #[arg(long = "script", value_name = "FILE", value_hint = ValueHint::FilePath)]
    scripts: Vec<PathBuf>,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs inject 4711 'do = \"port-down\", for = \"2s\"'
  ubiverbs inject 4711 'do = \"loss\", chance = \"1%\", for = \"10s\"' 'do = \"qp-error\", after = { messages = 100 }'
  ubiverbs inject 4711 --script flap.toml";

/// Injects.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    let mut wanted = Vec::new();
    for path in &options.scripts {
        let text = fs::read_to_string(path).map_err(|source| Failure::Read { path: path.clone(), source })?;
        let name = path.display().to_string();
        let script = Script::parse(&text).map_err(|error| Failure::Script(format!("{name}: {error}")))?;
        wanted.push((Injected { name, text }, script.failures.len()));
    }
    if !options.events.is_empty() {
        let (text, count) = script_of(&options.events)?;
        wanted.push((Injected { name: "inject".into(), text }, count));
    }
    let mut count = 0;
    for (injected, failures) in &wanted {
        inject(options.pid, injected).map_err(|source| Failure::Inject { source })?;
        count += failures;
    }
    let noun = if count == 1 { "failure" } else { "failures" };
    writeln!(out, "process {} has {count} more {noun}", options.pid).map_err(Failure::Output)?;
    Ok(Exit::Ok)
}

/// One script of all events, each a line of it; and how many failures that is.
fn script_of(events: &[String]) -> Result<(String, usize), Failure> {
    for event in events {
        let alone = if event.contains('\n') {
            Err("it has several lines; expected one, or --script FILE".to_owned())
        } else {
            Script::parse_failure(event).map_err(|error| error.said)
        };
        alone.map_err(|reason| Failure::Argument { option: "EVENT", text: event.clone(), reason })?;
    }
    let tables: Vec<String> = events.iter().map(|event| format!("{{ {} }}", event.trim())).collect();
    let text = format!("failure = [{}]\n", tables.join(",\n"));
    let script = Script::parse(&text).map_err(|error| Failure::Script(error.to_string()))?;
    Ok((text, script.failures.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_a_line_and_a_mistake_names_the_event() {
        let events = ["do = \"port-down\", for = \"2s\"".to_owned(), "do = \"loss\", chance = \"1%\"".to_owned()];
        let (text, count) = script_of(&events).unwrap();
        let lines: Vec<usize> = Script::parse(&text).unwrap().failures.iter().map(|failure| failure.line).collect();
        assert_eq!((count, lines), (2, vec![1, 2]));
        let wrong = script_of(&["do = \"port-dwn\"".to_owned()]).unwrap_err().to_string();
        assert!(wrong.starts_with("EVENT do = \"port-dwn\": \"port-dwn\" is no failure"), "{wrong}");
        let wrong = script_of(&["do = \"port-down\"\nfor = 1".to_owned()]).unwrap_err().to_string();
        assert!(wrong.contains("several lines"), "{wrong}");
    }
}
