//! One process of `ubiverbs cluster`: joins, measures, tells what it found as one line of JSON.

use crate::exit::{Exit, Failure};
use ::cluster::{Group, Op, Topology};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A process of `cluster`
#[derive(Args, Clone, Debug)]
pub struct MemberOptions {
    #[arg(long)]
    rank: u32,
    #[arg(long)]
    size: u32,
    #[arg(long)]
    port: u16,
    #[arg(long)]
    topology: Topology,
    #[arg(long)]
    bytes: u64,
    #[arg(long)]
    limit: u64,
    #[arg(long)]
    on_demand: bool,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemberReport {
    pub rank: u32,
    pub queue_pairs: u32,
    pub memory_bytes: u64,
    pub connect_seconds: f64,
    /// To each of the ranks that are shown, itself included; nothing if it is none of them.
    pub latency_us: Vec<f64>,
    pub barrier_us: f64,
    pub all_reduce_8_bytes_us: f64,
    pub all_reduce_us: f64,
}

/// Rows of the heat map; of many processes fewer, as each pair is measured alone.
const HEAT_MAP_ROWS: u32 = 16;
const SHOWN_OF_MANY: u32 = 8;

/// Round trips of one latency; the shortest half is averaged.
const ROUND_TRIPS: usize = 20;

/// How long one kind of sum is repeated.
const MEASURE_TIME: Duration = Duration::from_millis(300);

/// Runs it.
pub fn run_member(options: &MemberOptions) -> Result<Exit, Failure> {
    let told = measure(options).map_err(|error| Failure::Peer(format!("rank {}: {error}", options.rank)))?;
    println!("{}", serde_json::to_string(&told).map_err(|error| Failure::Output(error.into()))?);
    Ok(Exit::Ok)
}

fn measure(options: &MemberOptions) -> Result<MemberReport, ::cluster::Error> {
    let limit = Duration::from_secs(options.limit);
    let at = SocketAddr::from(([127, 0, 0, 1], options.port));
    let secret = std::env::var_os(crate::greeting::SECRET_VARIABLE).unwrap_or_default();
    let builder = Group::builder(options.size).topology(options.topology.clone()).secret(secret.as_encoded_bytes());
    let builder = builder.rendezvous(at, options.rank);
    let builder = builder.meeting_limit(limit).deadline(limit);
    let builder = if options.on_demand { builder.on_demand() } else { builder };
    let begun = Instant::now();
    let mut group = builder.join().wait()?;
    let connect_seconds = begun.elapsed().as_secs_f64();

    let latency_us = latencies(&mut group)?;
    let barrier_us = repeated(&mut group, |group| group.barrier().wait())?;
    let mut word = [1u64];
    let all_reduce_8_bytes_us = repeated(&mut group, |group| group.all_reduce(&mut word, Op::Max).wait())?;
    let mut data = vec![u64::from(options.rank); (options.bytes / 8) as usize];
    let all_reduce_us = repeated(&mut group, |group| group.all_reduce(&mut data, Op::Max).wait())?;
    if data.iter().any(|value| *value != u64::from(options.size) - 1) {
        return Err(::cluster::Error::Verbs("the result of an all-reduce is wrong".into()));
    }
    let (queue_pairs, memory_bytes) = (group.queue_pairs(), memory());
    group.barrier().wait()?;
    group.leave().wait()?;
    Ok(MemberReport {
        rank: options.rank,
        queue_pairs,
        memory_bytes,
        connect_seconds,
        latency_us,
        barrier_us,
        all_reduce_8_bytes_us,
        all_reduce_us,
    })
}

/// The ranks that are shown: all, or some of many.
fn shown(size: u32) -> Vec<u32> {
    let count = if size <= 2 * HEAT_MAP_ROWS { size.min(HEAT_MAP_ROWS) } else { SHOWN_OF_MANY };
    (0..count).map(|nth| nth * size / count).collect()
}

/// One pair after the other; the rest wait, and pass messages on.
fn latencies(group: &mut Group) -> Result<Vec<f64>, ::cluster::Error> {
    let (rank, shown) = (group.rank(), shown(group.size()));
    let mut latencies = vec![0.0; if shown.contains(&rank) { shown.len() } else { 0 }];
    for (row, &one) in shown.iter().enumerate() {
        for (column, &other) in shown.iter().enumerate().skip(row + 1) {
            if rank == one || rank == other {
                let (partner, place) = if rank == one { (other, column) } else { (one, row) };
                latencies[place] = latency(group, partner, rank == one)?;
            }
            group.barrier().wait()?;
        }
    }
    Ok(latencies)
}

fn latency(group: &mut Group, partner: u32, first: bool) -> Result<f64, ::cluster::Error> {
    let mut word = [7u64];
    let mut times = Vec::new();
    if !first {
        group.receive(partner, &mut word).wait()?;
    }
    // Both ends see every round trip, but the one that began has one more to receive.
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        group.send(partner, &word).wait()?;
        group.receive(partner, &mut word).wait()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    if first {
        group.send(partner, &word).wait()?;
    }
    times.sort_by(f64::total_cmp);
    let best = &times[..ROUND_TRIPS / 2];
    Ok(best.iter().sum::<f64>() / best.len() as f64 / 2.0)
}

/// The time of one call, in microseconds. Member 0 says how many there are.
fn repeated(
    group: &mut Group,
    mut call: impl FnMut(&mut Group) -> Result<(), ::cluster::Error>,
) -> Result<f64, ::cluster::Error> {
    call(group)?;
    let begun = Instant::now();
    call(group)?;
    let each = begun.elapsed().as_secs_f64().max(1e-6);
    let mut times = [(MEASURE_TIME.as_secs_f64() / each).clamp(2.0, 1000.0) as u32];
    group.broadcast(&mut times, 0).wait()?;
    let begun = Instant::now();
    for _ in 0..times[0] {
        call(group)?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(times[0]))
}

/// Memory of this process, its share of what it shares; 0 where that is not told.
fn memory() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse().ok());
    kib.unwrap_or(0) << 10
}
