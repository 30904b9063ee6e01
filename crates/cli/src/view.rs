//! `ubiverbs view`: shows what processes recorded, as a page, or writes it for other tools.

mod clocks;
mod fill;
mod join;
mod json;
mod pcap;
mod perfetto;
mod serve;
pub mod source;
mod work;

use crate::exit::{Exit, Failure};
use crate::style;
use clap::{ArgGroup, Args};
use hca::create_private;
use source::Source;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use web::timeline::{Timeline, flags};

/// Show what a run did: packets, calls, completions and findings of all its processes, on one time axis
///
/// Reads recordings, which `ubiverbs run --record DIR` (UBIVERBS_RECORD=DIR) makes, aligns the clocks of their processes
/// by the messages that they exchanged, and writes one HTML file that any browser opens, without a network.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES, group(ArgGroup::new("form").args(["serve", "perfetto", "pcap", "json"])))]
pub struct Options {
    /// Recordings: directories, or files of single processes
    #[arg(required = true, value_name = "DIR")]
    recordings: Vec<PathBuf>,
    /// The file to write the page to; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "ubiverbs.html", conflicts_with = "form")]
    output: PathBuf,
    /// Show the page to browsers at this address of this host instead, e.g. 127.0.0.1:8000
    #[arg(long, value_name = "ADDRESS")]
    serve: Option<String>,
    /// Write the run for ui.perfetto.dev, as JSON
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Write the packets for Wireshark, with comments that name their work requests; payload, which is not recorded, is
    /// zeros
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Print events and messages as JSON objects, one in a line
    #[arg(long)]
    json: bool,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs run --record rec -- ./my_program
  ubiverbs view rec
  ubiverbs view rec -o run.html
  ubiverbs view rec --perfetto run.json
  ubiverbs view rec --json | jq 'select(.status)'";

/// Shows it.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    let files = source::files(&options.recordings)?;
    if let Some(path) = &options.pcap {
        pcap::write(&files, path)?;
        return Ok(Exit::Ok);
    }
    let sources = files.iter().map(|path| Source::open(path)).collect::<Result<Vec<_>, _>>()?;
    let title = title(&sources, &options.recordings);
    let run = fill::timeline(sources, &title)?;
    for note in &run.notes {
        let warning = style::WARNING_STYLE;
        anstream::eprintln!("{warning}ubiverbs:{warning:#} {}", trace::printable(note));
    }
    if options.json {
        json::write(&run, out).map_err(Failure::Output)?;
    } else if let Some(path) = &options.perfetto {
        to_file(path, out, |to| perfetto::write(&run, to))?;
    } else if let Some(address) = &options.serve {
        serve::page(&run, address, out)?;
    } else {
        to_file(&options.output, out, |to| web::page(&run, to))?;
        if options.output.as_os_str() != "-" {
            anstream::eprintln!("{}", summary(&run, &options.output));
        }
    }
    Ok(Exit::Ok)
}

/// The command that ran, or the names of the directories.
fn title(sources: &[Source], paths: &[PathBuf]) -> String {
    let mut programs: Vec<&str> =
        sources.iter().map(|source| source.header().fact(recording::FileHeader::PROGRAM)).collect();
    programs.sort_unstable();
    programs.dedup();
    match programs.is_empty() {
        true => paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        false => programs.join(", "),
    }
}

/// What was written.
fn summary(run: &Timeline, path: &Path) -> String {
    let lost = run.events().iter().filter(|event| event.flags & flags::LOST != 0).count();
    let many = |count: usize, what: &str, whats: &str| format!("{count} {}", if count == 1 { what } else { whats });
    let mut told = format!(
        "{}: {}, {}, {}, {}",
        path.display(),
        many(run.processes().len(), "process", "processes"),
        many(run.lanes().len(), "queue pair", "queue pairs"),
        many(run.messages().len(), "work request", "work requests"),
        many(run.events().len(), "event", "events"),
    );
    if lost > 0 {
        told.push_str(&format!(", {}", many(lost, "lost packet", "lost packets")));
    }
    format!("{told}\n{}", run.clock)
}

/// Writes a file, or to standard output.
fn to_file(
    path: &Path,
    out: &mut impl Write,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return write(out).map_err(Failure::Output);
    }
    let failed = |source| Failure::Open { path: path.to_owned(), source };
    let mut file = BufWriter::new(create_private(path).map_err(failed)?);
    write(&mut file).and_then(|()| file.flush()).map_err(failed)
}
