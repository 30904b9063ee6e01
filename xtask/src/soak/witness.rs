//! Two pairs of processes that nobody harms, one on shared memory and one over UDP, for as long as rounds are played
//! beside them: what happens to others must not cost them a byte, a descriptor or memory that they keep.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::draw::{Harm, Program, Round, SidesPlacement};
use super::play::Programs;
use super::side::Side;

const EVERY: Duration = Duration::from_millis(500);

/// A process that keeps more than this beyond what it had in the second quarter of its time keeps too much. Queue pairs
/// come and go by chance, so it is never the same; and up to 128 connections to other processes are kept.
const MORE_MEMORY: u64 = 16 << 20;
const MORE_DESCRIPTORS: u64 = 140;

/// What a process has: bytes of memory, descriptors.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    memory: u64,
    descriptors: u64,
}

/// Plays both pairs until `end`. Answers what the processes had, or what is wrong.
pub fn watch(programs: &Programs, seed: u64, end: Instant) -> Result<Vec<String>, String> {
    let begin = Instant::now();
    let seconds = end.saturating_duration_since(begin).as_secs().max(1);
    let rounds = [false, true].map(|udp| Round {
        number: if udp { u64::MAX } else { u64::MAX - 1 },
        seed: seed >> 1,
        seconds,
        program: if udp || programs.c.is_none() { Program::Rust } else { Program::C },
        place: SidesPlacement::Loopback,
        udp,
        v6: false,
        mtu: 1024,
        threads: 1,
        qps: 4,
        cm: true,
        faults: [String::new(), String::new()],
        harm: Harm::None,
        one_core: false,
    });
    let mut sides = Vec::new();
    for round in &rounds {
        for (role, side) in ["server", "client"].into_iter().zip(programs.start(round)?) {
            sides.push((format!("{} {role}", if round.udp { "UDP" } else { "shared memory" }), side, Vec::new()));
        }
    }
    let late = end + Duration::from_secs(90);
    while sides.iter_mut().any(|(_, side, _)| !side.has_ended()) && Instant::now() < late {
        for (_, side, samples) in &mut sides {
            if Instant::now() < end && !side.has_ended() {
                samples.extend(usage(side.id()));
            }
        }
        thread::sleep(EVERY);
    }
    sides.iter_mut().map(|(name, side, samples)| judge(name, side, samples)).collect()
}

fn judge(name: &str, side: &mut Side, samples: &[Usage]) -> Result<String, String> {
    let report = side.verdict().map_err(|what| format!("a witness, {name}: {what}"))?;
    let quarter = samples.len() / 4;
    let most = |part: &[Usage]| Usage {
        memory: part.iter().map(|usage| usage.memory).max().unwrap_or_default(),
        descriptors: part.iter().map(|usage| usage.descriptors).max().unwrap_or_default(),
    };
    let (before, after) = (most(&samples[quarter..2 * quarter]), most(&samples[3 * quarter..]));
    let line = format!(
        "{name}: {} operations; memory {:.1} MiB, at the end {:.1}; descriptors {}, at the end {}",
        report.operations,
        before.memory as f64 / f64::from(1 << 20),
        after.memory as f64 / f64::from(1 << 20),
        before.descriptors,
        after.descriptors
    );
    if after.memory > before.memory + MORE_MEMORY || after.descriptors > before.descriptors + MORE_DESCRIPTORS {
        return Err(format!("a witness keeps too much: {line}"));
    }
    Ok(line)
}

fn usage(process: u32) -> Option<Usage> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = memory.split_whitespace().next()?.parse().ok()?;
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as u64;
    Some(Usage { memory: kilobytes << 10, descriptors })
}
