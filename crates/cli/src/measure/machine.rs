//! The machine that figures are measured on: what one must know of it to judge them, and a processor for each side.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::fs;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Which of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    First,
    Second,
}

/// Gives this thread a processor that the other side, on the same machine, does not use: the first it may use, or the
/// last. Two who spin on one processor would measure its scheduler. Where it cannot be done, the figures are what they
/// are.
pub fn settle(side: Side) {
    settle_nth(side, 0);
}

/// Gives one of several threads a processor of its own: counted from the first, or from the last.
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

/// The processors that this program may use, as it was when it was first asked: before its threads settled on some of
/// them.
fn allowed() -> Option<&'static CpuSet> {
    static ALLOWED: OnceLock<Option<CpuSet>> = OnceLock::new();
    ALLOWED.get_or_init(|| sched_getaffinity(None).ok()).as_ref()
}

/// What one must know of a machine to judge its figures, as it was at a moment.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The model of its processors.
    pub processor: Option<String>,
    pub processors: usize,
    pub kernel: Option<String>,
    pub load: Option<f64>,
    when: SystemTime,
}

impl Machine {
    /// As it is now.
    pub fn now() -> Machine {
        let processor = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let kernel = line("/proc/sys/kernel/osrelease");
        Machine { processor, processors: processors(), kernel, load: load(), when: SystemTime::now() }
    }

    pub fn document(&self) -> Value {
        json!({
            "processor": self.processor,
            "processors": self.processors,
            "load_average": self.load,
            "kernel": self.kernel,
            "date": self.date(),
        })
    }

    /// `2026-11-17 08:20 UTC`.
    pub fn date(&self) -> String {
        let seconds = self.when.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (year, month, day) = date(seconds / 86_400);
        format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600 % 24, seconds / 60 % 60)
    }
}

/// Year, month and day of a number of days after the first of January 1970, by the rules of the Gregorian calendar.
fn date(mut days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

/// Says so if others use the machine so much that programs that spin are in each other's way.
pub fn crowded() -> Option<String> {
    // Two processes that spin are a load of two, after a minute.
    let (load, processors) = (load()?, processors());
    let crowded = processors < 2 || load > processors as f64 + 1.0;
    crowded.then(|| {
        format!(
            "the load of this machine is {load} on {processors} processors: a program that spins waits for a processor, not for the network."
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        // The first day; the last day of February in leap years; the days around a new year.
        assert_eq!(
            [0, 11_016, 19_782, 20_818, 20_819].map(date),
            [(1970, 1, 1), (2000, 2, 29), (2024, 2, 29), (2026, 12, 31), (2027, 1, 1)]
        );
    }
}
