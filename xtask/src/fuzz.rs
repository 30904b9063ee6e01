//! The fuzz targets, each for its share of the time. libFuzzer looks for inputs that reach code which no input has
//! reached; what it finds stays in
//! `fuzz/corpus`, and what breaks a rule in `fuzz/artifacts`. Needs cargo-fuzz and a nightly toolchain.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process;

/// What can be chosen.
#[derive(clap::Args)]
pub struct Options {
    /// How long, all targets together.
    #[arg(long, default_value_t = 10.0)]
    pub minutes: f64,
    /// Afterwards keep only inputs that reach something no other does.
    #[arg(long)]
    pub minimize: bool,
    /// Only these targets.
    pub targets: Vec<String>,
}

/// A target, and how it is run.
struct Target {
    name: &'static str,
    /// `none` for code that has no `unsafe` and so nothing for a sanitizer to find: it runs several times as fast.
    sanitizer: &'static str,
    /// The longest input.
    longest: u32,
    /// In a network namespace of its own: it opens the NIC of its process.
    alone: bool,
}

const fn core(name: &'static str, longest: u32) -> Target {
    Target { name, sanitizer: "none", longest, alone: false }
}

const fn shell(name: &'static str, longest: u32) -> Target {
    Target { name, sanitizer: "address", longest, alone: false }
}

const TARGETS: &[Target] = &[
    core("parse", 4096),
    core("round_trip", 4096),
    core("queue_pair", 768),
    core("connection", 768),
    core("netlink", 512),
    core("reports", 1024),
    core("flows", 512),
    core("socket_messages", 1024),
    core("scripts", 512),
    core("groups", 256),
    shell("ring", 512),
    shell("messages", 512),
    core("agents", 768),
    shell("records", 256),
    shell("probes", 64),
    shell("tables", 1024),
    shell("settings", 256),
    core("logs", 4096),
    core("recordings", 4096),
    shell("endpoint", 64),
    Target { name: "c_calls", sanitizer: "address", longest: 1024, alone: true },
];

/// What libFuzzer said last.
#[derive(Default)]
struct Figures {
    executions: u64,
    per_second: u64,
    /// Edges between blocks of code that some input has passed.
    edges: u64,
    /// Those, with how often, and results of comparisons.
    features: u64,
    inputs: usize,
    failed: bool,
}

/// Runs them and prints a table. Fails if an input broke a rule.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let is_there = fuzz(root).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        return Err("cargo-fuzz or a nightly toolchain is missing; install them with: \
            rustup toolchain install nightly --profile minimal && cargo install cargo-fuzz"
            .into());
    }
    if let Some(unknown) = options.targets.iter().find(|name| TARGETS.iter().all(|target| target.name != **name)) {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        return Err(format!("no target {unknown}; there are {}", names.join(", ")));
    }
    let chosen: Vec<&Target> = TARGETS
        .iter()
        .filter(|target| options.targets.is_empty() || options.targets.iter().any(|name| name == target.name))
        .collect();
    for target in &chosen {
        process::run(fuzz(root).arg("build").args(place(root, target)).arg(target.name))?;
    }
    let seconds = (options.minutes * 60.0 / chosen.len() as f64).max(1.0) as u64;
    let mut table = BTreeMap::new();
    for target in &chosen {
        table.insert(target.name, play(root, target, seconds)?);
        if options.minimize {
            process::run(within(target, fuzz(root)).arg("cmin").args(place(root, target)).arg(target.name))?;
        }
    }
    println!("\n{:<12} {:>14} {:>9} {:>7} {:>9} {:>7}", "target", "executions", "/s", "edges", "features", "inputs");
    for (name, figures) in &table {
        let Figures { executions, per_second, edges, features, inputs, failed } = figures;
        let failed = if *failed { "  FAILED: see fuzz/artifacts" } else { "" };
        println!("{name:<12} {executions:>14} {per_second:>9} {edges:>7} {features:>9} {inputs:>7}{failed}");
    }
    println!("{:<12} {:>14}", "all", table.values().map(|figures| figures.executions).sum::<u64>());
    if table.values().any(|figures| figures.failed) { Err("an input broke a rule".into()) } else { Ok(()) }
}

/// Runs the program of one target, which was built, and reads what it says.
fn play(root: &Path, target: &Target, seconds: u64) -> Result<Figures, String> {
    let corpus = root.join("fuzz/corpus").join(target.name);
    let artifacts = root.join("fuzz/artifacts").join(target.name);
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let program = folder(root, target).join(format!("{}/release/{}", triple()?, target.name));
    println!("{} for {seconds} s", target.name);
    let mut command = within(target, Command::new(&program));
    command
        .arg(&corpus)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={}", target.longest))
        .args(["-timeout=20", "-rss_limit_mb=4096", "-print_final_stats=1", "-reload=0"])
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{} did not start: {error}", program.display()))?;
    let mut figures = Figures::default();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            figures.read(&String::from_utf8_lossy(&line));
        }
    }
    figures.failed = !child.wait().map_err(|error| format!("{} did not end: {error}", target.name))?.success();
    figures.inputs = fs::read_dir(&corpus).map_or(0, Iterator::count);
    Ok(figures)
}

impl Figures {
    /// A line such as `#4096 pulse  cov: 120 ft: 300 corp: 12/99b …`, a final one such as
    /// `stat::number_of_executed_units: 4096`, or something about a failure, which is passed on.
    fn read(&mut self, line: &str) {
        let number = |text: &str| text.trim().parse().unwrap_or(0);
        if let Some((name, value)) = line.strip_prefix("stat::").and_then(|rest| rest.split_once(':')) {
            match name {
                "number_of_executed_units" => self.executions = number(value),
                "average_exec_per_sec" => self.per_second = number(value),
                _ => {}
            }
        } else if line.starts_with('#') && line.contains("cov:") {
            let mut words = line.split_whitespace();
            while let Some(word) = words.next() {
                match word {
                    "cov:" => self.edges = words.next().map_or(0, number),
                    "ft:" => self.features = words.next().map_or(0, number),
                    _ => {}
                }
            }
        } else if line.starts_with("==") || line.contains("panicked") || line.contains("assertion") {
            eprintln!("{line}");
        }
    }
}

/// Where a target is built: sanitizers do not share what they compile.
fn folder(root: &Path, target: &Target) -> PathBuf {
    root.join("fuzz/target").join(target.sanitizer)
}

fn place(root: &Path, target: &Target) -> [String; 4] {
    let folder = folder(root, target).display().to_string();
    ["--sanitizer".into(), target.sanitizer.into(), "--target-dir".into(), folder]
}

/// The program `inner`, in a network namespace of its own if the target wants one.
fn within(target: &Target, inner: Command) -> Command {
    if !target.alone {
        return inner;
    }
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    if let Some(directory) = inner.get_current_dir() {
        command.current_dir(directory);
    }
    command
}

/// cargo-fuzz on nightly, without what the cargo that runs this one has put into the environment for its own toolchain.
fn fuzz(root: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz"]).current_dir(root.join("fuzz"));
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR", "CARGO_MANIFEST_DIR"] {
        command.env_remove(variable);
    }
    command
}

/// The machine's name as compilers know it, which is a folder of what cargo-fuzz builds.
fn triple() -> Result<String, String> {
    let said = process::output(Command::new("rustup").args(["run", "nightly", "rustc", "-vV"]))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not name its host".into())
}
