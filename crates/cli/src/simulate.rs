//! `ubiverbs simulate`: a network of switches and up to ten thousand hosts, with the real transport in each, on a
//! virtual clock.

mod failures;
mod recordings;

use crate::exit::{Exit, Failure};
use clap::{Args, ValueHint};
use fabric::{Congestion, Network, Report, Scenario, Script, Shape};
use recordings::Recordings;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Simulate a cluster: hosts with the real transport, switches, a workload, failures
///
/// Everything comes from a script, from options, or both: an option stands for the line of a script of the same name,
/// and comes after it. The same scenario with the same seed prints the same bytes.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES, after_long_help = long_help())]
pub struct Options {
    /// A script: one statement a line, `#` before comments; `-` is standard input
    #[arg(value_hint = ValueHint::FilePath)]
    script: Option<PathBuf>,
    /// How many hosts
    #[arg(long, value_name = "N")]
    hosts: Option<String>,
    /// How they are cabled: star, ring, fat-tree-2, fat-tree-3, rails or dragonfly, with its options
    #[arg(long, value_name = "SHAPE", add = crate::candidates::words(&Shape::NAMES))]
    topology: Option<String>,
    /// What they do: incast, permutation, all-reduce-ring, all-reduce-tree, all-to-all or trace, with its options
    #[arg(long, value_name = "WORKLOAD", add = crate::candidates::words(&fabric::script::WORKLOADS))]
    workload: Option<String>,
    /// The rate of all cables, like 100G
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// The delay of a cable with the switch behind it, like 600ns
    #[arg(long, value_name = "TIME")]
    delay: Option<String>,
    /// How senders react to congestion: dcqcn, window, both or none
    #[arg(long, value_name = "KIND", add = crate::candidates::words(&CONGESTION_NAMES))]
    congestion: Option<String>,
    /// Where chance begins
    #[arg(long, value_name = "N")]
    seed: Option<String>,
    /// Any statement of a script, as often as needed: --set 'fail links 2 at 1ms'
    #[arg(long = "set", value_name = "STATEMENT")]
    statements: Vec<String>,
    /// A failure script (docs/failures.md), as often as needed: hosts are host0, host1, ... there, switches switch0, ...
    #[arg(long = "script", value_name = "FILE", value_hint = ValueHint::FilePath)]
    failure_scripts: Vec<PathBuf>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Write a page with plots; `-` instead of a file is standard output
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Write the packets of the hosts of `capture` (or of host 0) for Wireshark; of several, FILE gets a `.hostN`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pcap: Option<PathBuf>,
    /// Record every packet, work request and completion of each host in a file in DIR, for `ubiverbs view DIR`: runs of
    /// up to 64 hosts and 256 MiB
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    record: Option<PathBuf>,
    /// Say on standard error how fast it was and what memory it took
    #[arg(long)]
    figures: bool,
}

const CONGESTION_NAMES: [&str; Congestion::NAMES.len()] =
    [Congestion::NAMES[0].0, Congestion::NAMES[1].0, Congestion::NAMES[2].0, Congestion::NAMES[3].0];

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs simulate --hosts 9 --workload 'incast bytes 4M'
  ubiverbs simulate --hosts 1024 --topology fat-tree-3 --workload permutation --html run.html
  ubiverbs simulate --hosts 3 --workload 'incast bytes 64K' --set 'lossy links 1 loss 1%' --record rec
  ubiverbs simulate --hosts 64 --topology ring --workload all-reduce-ring --set 'lossy links 1 loss 1%'

`ubiverbs simulate --help` lists the statements of scripts.";

fn long_help() -> String {
    format!("{HELP_EXAMPLES}\n\nStatements of scripts:\n{}", fabric::script::STATEMENT_HELP)
}

/// From so many hosts on huge pages pay for starting again.
const LARGE_RUN_HOSTS: u32 = 2_000;

/// Has the C library take huge pages, by which an event in a large network costs a fifth less: that is asked for before
/// a program begins, so the program begins again. Where that cannot be it goes on as it is.
fn take_huge_pages() {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    let offered =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|text| !text.contains("[never]"));
    if offered && std::env::var_os(TUNABLES).is_none() {
        let mut again = Command::new("/proc/self/exe");
        again.args(std::env::args_os().skip(1)).env(TUNABLES, "glibc.malloc.hugetlb=1");
        // It only returns when there is no new beginning.
        let _ = again.exec();
    }
}

/// Runs the scenario.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    let scenario = scenario(options)?;
    // What comes through a pipe is read once.
    if scenario.hosts >= LARGE_RUN_HOSTS && options.script.as_ref().is_none_or(|path| path.is_file()) {
        take_huge_pages();
    }
    let begun = Instant::now();
    let refused = |error: fabric::Error| Failure::Script(error.to_string());
    let mut network = Network::new(&scenario).map_err(refused)?;
    let recordings =
        options.record.as_ref().map(|directory| Recordings::create(directory, scenario.hosts)).transpose()?;
    let recordings = recordings.map(|recordings| Arc::new(Mutex::new(recordings)));
    if let Some(recordings) = recordings.clone() {
        network.tell(Box::new(move |host, event| lock(&recordings).record(host, event)));
    }
    network.run();
    let report = network.report();
    let took = begun.elapsed();
    let recorded = recordings.map_or(Ok(()), |recordings| lock(&recordings).finish(network.now()));
    if let Some(path) = &options.html {
        write_file(path, report.html().as_bytes(), out)?;
    }
    if let Some(path) = &options.pcap {
        let captures = network.take_captures().map_err(|source| Failure::Capture { path: path.clone(), source })?;
        let several = captures.len() > 1;
        for (host, file) in captures {
            let path = if several { beside(path, host) } else { path.clone() };
            write_file(&path, &file, out)?;
        }
    }
    if options.json {
        let document = serde_json::to_value(&report).map_err(|error| Failure::Output(error.into()))?;
        writeln!(out, "{document:#}").map_err(Failure::Output)?;
    } else if !takes_output(options) {
        write!(out, "{report}").map_err(Failure::Output)?;
    }
    if options.figures {
        tell_figures(&network, &report, took.as_secs_f64());
    }
    recorded.map(|()| Exit::Ok)
}

fn lock(recordings: &Mutex<Recordings>) -> MutexGuard<'_, Recordings> {
    recordings.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file has standard output for itself.
fn takes_output(options: &Options) -> bool {
    [&options.html, &options.pcap].into_iter().flatten().any(|path| path.as_os_str() == "-")
}

fn scenario(options: &Options) -> Result<Scenario, Failure> {
    let directory = match &options.script {
        Some(path) => path.parent().unwrap_or(Path::new("")).to_owned(),
        None => PathBuf::new(),
    };
    let mut script = Script::new(|file: &str| {
        let path = directory.join(file);
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    });
    let mut name = None;
    if let Some(path) = &options.script {
        let read =
            if path.as_os_str() == "-" { std::io::read_to_string(std::io::stdin()) } else { fs::read_to_string(path) };
        let text = read.map_err(|error| Failure::Script(format!("cannot read {}: {error}", path.display())))?;
        let told = |error| Failure::Script(format!("{}: {error}", path.display()));
        script.add_all(&text).map_err(told)?;
        name = Some(path.display().to_string());
    }
    // What fits badly only in the end has an origin, too: a line, or an option.
    let told = |error: fabric::ScriptError| match &name {
        Some(name) if error.origin.starts_with("line ") => Failure::Script(format!("{name}: {error}")),
        _ => Failure::Script(error.to_string()),
    };
    let single = [
        ("hosts", &options.hosts),
        ("topology", &options.topology),
        ("workload", &options.workload),
        ("rate", &options.rate),
        ("delay", &options.delay),
        ("congestion", &options.congestion),
        ("seed", &options.seed),
    ];
    for (statement, value) in single {
        if let Some(value) = value {
            script.add(&format!("--{statement}"), &format!("{statement} {value}")).map_err(told)?;
        }
    }
    for statement in &options.statements {
        script.add("--set", statement).map_err(told)?;
    }
    for path in &options.failure_scripts {
        let name = path.display();
        let text = fs::read_to_string(path).map_err(|source| Failure::Read { path: path.clone(), source })?;
        let broken = ::failures::Script::parse(&text).map_err(|error| Failure::Script(format!("{name}: {error}")))?;
        let wrong = |(line, what)| Failure::Script(format!("{name}: line {line}: {what}"));
        for (line, statement) in failures::statements(&broken, script.scenario()).map_err(wrong)? {
            script
                .add(&format!("{name}: line {line}"), &statement)
                .map_err(|error| Failure::Script(error.to_string()))?;
        }
    }
    if options.pcap.is_some() && script.scenario().capture.is_empty() {
        script.add("--pcap", "capture 0").map_err(told)?;
    }
    script.finish().map_err(told)
}

/// `run.pcapng` becomes `run.host3.pcapng`.
fn beside(path: &Path, host: u32) -> PathBuf {
    let end = path.extension().map_or(String::new(), |end| format!(".{}", end.display()));
    let stem = path.file_stem().unwrap_or_default();
    path.with_file_name(format!("{}.host{host}{end}", stem.display()))
}

fn write_file(path: &Path, bytes: &[u8], out: &mut impl Write) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return out.write_all(bytes).map_err(Failure::Output);
    }
    let written = hca::create_private(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(|source| Failure::Open { path: path.to_owned(), source })
}

fn tell_figures(network: &Network, report: &Report, seconds: f64) {
    let footprint = network.footprint();
    let events = report.counts.events;
    let peak = peak_memory();
    eprintln!("wall clock    {seconds:.2} s");
    eprintln!(
        "events        {:.2} million a second, {:.0} ns each",
        events as f64 / seconds / 1e6,
        seconds * 1e9 / events as f64
    );
    eprintln!("memory        {} MiB at most, {} KiB a host", peak >> 20, (peak >> 10) / u64::from(report.hosts));
    eprintln!(
        "queue pairs   {}, at most {} in use at once; idle {} bytes each, in use {} bytes and its queues",
        footprint.queue_pairs, footprint.most_in_use, footprint.idle_bytes, footprint.used_bytes,
    );
    eprintln!("packets       at most {} under way at once", footprint.packets);
}

/// The most memory this process has had, in bytes; 0 where that is not told.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse().ok());
    kib.unwrap_or(0) << 10
}
