//! The machine that figures are measured on: what one must know of it to judge them, and a processor for each side.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::fs;
use std::sync::OnceLock;

/// Which of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    First,
    Second,
}

/// Gives this thread a processor that the other side, on the same machine, does not use: the first it may use, or the last. Two who spin on one
/// processor would measure its scheduler. Where it cannot be done, the figures are what they are.
pub fn settle(side: Side) {
    settle_nth(side, 0);
}

/// The same for one of several threads: counted from the first, or from the last.
pub fn settle_nth(side: Side, number: usize) {
    let (true, Some(allowed)) = (processors() > 1, allowed()) else { return };
    let mut possible = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let chosen = match side {
        Side::First => possible.nth(number),
        Side::Second => possible.nth_back(number),
    };
    if let Some(cpu) = chosen {
        let mut own = CpuSet::new();
        own.set(cpu);
        let _ = sched_setaffinity(None, &own);
    }
}

/// The processors that this program may use, as it was when it was first asked: before its threads settled on some of them.
fn allowed() -> Option<&'static CpuSet> {
    static ALLOWED: OnceLock<Option<CpuSet>> = OnceLock::new();
    ALLOWED.get_or_init(|| sched_getaffinity(None).ok()).as_ref()
}

/// Processors, load and kernel.
pub fn document() -> Value {
    json!({ "processors": processors(), "load_average": load(), "kernel": line("/proc/sys/kernel/osrelease") })
}

/// Says so if others use the machine so much that programs that spin are in each other's way.
pub fn crowded() -> Option<String> {
    // Two processes that spin are a load of two, after a minute.
    let (load, processors) = (load()?, processors());
    let crowded = processors < 2 || load > processors as f64 + 1.0;
    crowded.then(|| {
        format!(
            "the load of this machine is {load} on {processors} processors: whoever spins waits for a processor, not for the network."
        )
    })
}

/// How many this program may use, before its threads settled on some of them.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn load() -> Option<f64> {
    line("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
