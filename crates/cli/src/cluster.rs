//! `ubiverbs cluster`: local processes in a topology, as a demonstration: what it costs, how long connecting takes,
//! latency from each to each, and sums over all.

mod member;
mod table;

pub use member::{MemberOptions, run_member};

use crate::exit::{Exit, Failure};
use ::cluster::{Group, Secret, Topology};
use clap::Args;
use member::MemberReport;
use serde::Serialize;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Run local processes as a cluster: ring against mesh and the others, with queue pairs, memory, latencies and sums
///
/// Each topology is run with each number of processes. The processes find each other on this host, connect, measure
/// the latency from each to each (messages go along the connections that there are) and sum up data over all of them.
///
/// Processes may be more than processors: on 2 of them, 64 processes are done within the usual --limit. Their times
/// then tell how long a process waits for its turn.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    /// Which topologies: ring, bidirectional-ring, mesh, torus, hypercube, tree, star
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "ring,mesh",
        add = crate::candidates::words(&Topology::NAMES))]
    topologies: Vec<Topology>,
    /// How many processes, 2 to 64; several numbers are compared
    #[arg(long, short = 'n', value_name = "LIST", value_delimiter = ',', default_value = "4")]
    processes: Vec<u32>,
    /// How many bytes the processes sum up, like 64K or 16M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = bytes)]
    bytes: u64,
    /// Make connections beyond the topology when they are first needed, instead of passing messages on
    #[arg(long)]
    on_demand: bool,
    /// Only count queue pairs and memory, of up to 65536 processes, and start none
    #[arg(long)]
    plan: bool,
    /// Give up after so many seconds for each run
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs cluster
  ubiverbs cluster --topologies ring,mesh,tree -n 2,4,8,16
  ubiverbs cluster --topologies torus -n 12 --json
  ubiverbs cluster --plan --topologies ring,mesh -n 1024,10000";

/// The most processes of a run.
const MAX_PROCESSES: u32 = 64;

/// A number of bytes, with K, M or G behind it if need be.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.trim_end_matches(['K', 'k']).len() == text.len() {
        false => (&text[..text.len() - 1], 10),
        true if text.ends_with(['M', 'm']) => (&text[..text.len() - 1], 20),
        true if text.ends_with(['G', 'g']) => (&text[..text.len() - 1], 30),
        true => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| "a size like 4096, 64K or 16M is expected".to_owned())?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| (8..=1 << 30).contains(bytes));
    bytes.ok_or_else(|| "8 bytes to 1G are possible".to_owned())
}

/// One run: a topology with so many processes.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub topology: String,
    pub processes: u32,
    pub queue_pairs: u64,
    pub most_queue_pairs: u32,
    pub planned_bytes: u64,
    /// Nothing where it was only planned.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// What the processes found.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Queue pairs that the processes had in the end.
    pub queue_pairs_made: u64,
    /// Memory of all processes together, in bytes: pages that several share are divided among them.
    pub memory_bytes: u64,
    /// From the start of a process until all are connected: of the slowest.
    pub connect_seconds: f64,
    /// Ranks of rows and columns of the next.
    pub ranks: Vec<u32>,
    /// Half a round trip of 8 bytes, in microseconds: from row to column.
    pub latency_us: Vec<Vec<f64>>,
    pub barrier_us: f64,
    pub all_reduce_8_bytes_us: f64,
    pub all_reduce_us: f64,
    /// Of the data, not of what is sent for it.
    pub all_reduce_bytes_per_second: f64,
}

/// Runs all of them.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    let mut runs = Vec::new();
    for &processes in &options.processes {
        for topology in &options.topologies {
            runs.push(plan(options, topology, processes)?);
        }
    }
    if !options.plan {
        let mut port = 0;
        for run in &mut runs {
            let measured = measure(options, run, &mut port)?;
            run.measured = Some(measured);
        }
    }
    if options.json {
        let document = serde_json::json!({ "bytes": options.bytes, "on_demand": options.on_demand, "runs": runs });
        writeln!(out, "{document:#}").map_err(Failure::Output)?;
    } else {
        table::show(&runs, options.bytes, out).map_err(Failure::Output)?;
    }
    Ok(Exit::Ok)
}

/// What a run would cost; refuses those that cannot be.
fn plan(options: &Options, topology: &Topology, processes: u32) -> Result<Run, Failure> {
    let refuse = |reason: String| Failure::Argument { option: "--processes", text: processes.to_string(), reason };
    if !options.plan && !(2..=MAX_PROCESSES).contains(&processes) {
        return Err(refuse(format!("2 to {MAX_PROCESSES} processes are possible; --plan counts for more")));
    }
    let builder = Group::builder(processes).topology(topology.clone());
    let plan = builder.plan().map_err(|error| refuse(error.to_string()))?;
    Ok(Run {
        topology: topology.to_string(),
        processes,
        queue_pairs: plan.queue_pairs(),
        most_queue_pairs: plan.most_queue_pairs(),
        planned_bytes: plan.bytes(),
        measured: None,
    })
}

/// The processes of a run. Dropping it ends those that still live.
struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.0 {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

fn measure(options: &Options, run: &Run, port: &mut u16) -> Result<Measured, Failure> {
    let program = std::env::current_exe().map_err(|source| Failure::System { what: "finding ourselves", source })?;
    let (at, secret) = (free_port(port)?, Secret::draw());
    let mut members = Members(Vec::new());
    for rank in 0..run.processes {
        let mut command = Command::new(&program);
        command.arg("cluster-member").args(["--rank", &rank.to_string(), "--size", &run.processes.to_string()]);
        command.args(["--port", &at.to_string(), "--topology", &run.topology, "--bytes", &options.bytes.to_string()]);
        // Not on the command line, which every user of the host can read.
        command.args(["--limit", &options.limit.to_string()]).env(crate::greeting::SECRET_VARIABLE, &secret);
        if options.on_demand {
            command.arg("--on-demand");
        }
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        members.0.push(started.map_err(|source| Failure::System { what: "starting a process", source })?);
    }
    let until = Instant::now() + Duration::from_secs(options.limit);
    let mut told = Vec::new();
    for (rank, member) in members.0.iter_mut().enumerate() {
        told.push(outcome(rank, member, until)?);
    }
    Ok(gather(&told, options.bytes))
}

/// A port at which no process listens, below those that the system hands out.
fn free_port(last: &mut u16) -> Result<u16, Failure> {
    let begin = (std::process::id() % 20_000) as u16;
    for _ in 0..100 {
        *last = last.wrapping_add(1);
        let port = 10_000 + begin.wrapping_add(*last) % 20_000;
        if ubiverbs::cm::Listener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(ubiverbs::cm::Listener::bind("127.0.0.1:0").err().map_or(Failure::NoDevice, Failure::Verbs))
}

/// What a member tells before the time is over.
fn outcome(rank: usize, member: &mut Child, until: Instant) -> Result<MemberReport, Failure> {
    let failed = |why: String| Failure::Peer(format!("rank {rank}: {why}"));
    // It tells everything at once, at its end: less than a pipe holds.
    let status = loop {
        match member.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => return Err(failed("it is not done in time (--limit)".into())),
            Err(source) => return Err(Failure::System { what: "waiting for a process", source }),
        }
    };
    let mut text = String::new();
    if let Some(output) = &mut member.stdout {
        output
            .read_to_string(&mut text)
            .map_err(|source| Failure::System { what: "reading from a process", source })?;
    }
    if !status.success() {
        return Err(failed(format!("it ended with {status}")));
    }
    serde_json::from_str(&text).map_err(|_| Failure::Nonsense(text))
}

fn gather(told: &[MemberReport], bytes: u64) -> Measured {
    let slowest = |time: fn(&MemberReport) -> f64| told.iter().map(time).fold(0.0, f64::max);
    let ranks: Vec<u32> = told.iter().filter(|told| !told.latency_us.is_empty()).map(|told| told.rank).collect();
    let latency_us = told.iter().filter(|told| !told.latency_us.is_empty()).map(|told| told.latency_us.clone());
    let all_reduce_us = slowest(|told| told.all_reduce_us);
    Measured {
        queue_pairs_made: told.iter().map(|told| u64::from(told.queue_pairs)).sum(),
        memory_bytes: told.iter().map(|told| told.memory_bytes).sum(),
        connect_seconds: slowest(|told| told.connect_seconds),
        ranks,
        latency_us: latency_us.collect(),
        barrier_us: slowest(|told| told.barrier_us),
        all_reduce_8_bytes_us: slowest(|told| told.all_reduce_8_bytes_us),
        all_reduce_us,
        all_reduce_bytes_per_second: bytes as f64 * 1e6 / all_reduce_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(
            [bytes("8"), bytes("64K"), bytes("16M"), bytes("1G")],
            [Ok(8), Ok(64 << 10), Ok(16 << 20), Ok(1 << 30)]
        );
        for wrong in ["", "K", "7", "2G", "1MM", "-1", "99999999999999999999"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
