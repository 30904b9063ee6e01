//! From what was counted to how fast: the difference of two looks, per second.

use crate::snapshot::{ProcessSnapshot, Snapshot};
use inventory::{Counters, QueuePair, Report};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Looks of which the bytes are kept, for sparklines.
pub const HISTORY_LENGTH: usize = 60;

/// Queue pairs of which they are kept.
const MAX_HISTORIES: usize = 4096;

/// What a row is about: a process, or one of its queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RowKey {
    pub pid: i32,
    pub queue_pair: Option<u32>,
}

/// How fast.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    pub messages: f64,
    pub bytes: f64,
    pub retransmissions: f64,
    pub not_ready: f64,
    pub drops: f64,
    pub polls: f64,
    pub wakes: f64,
    /// Share of a processor that the NIC's thread takes.
    pub engine: f64,
    /// By name, those that are not 0: of drops and wakes, with their reason.
    pub reasons: Vec<(String, f64)>,
}

/// What was counted when it was last looked at.
#[derive(Clone, Debug, Default)]
struct Counted {
    counters: Counters,
    engine_nanos: u64,
    polls: u64,
    drops: Vec<(String, u64)>,
}

/// All rates, and those of before.
#[derive(Default)]
pub struct Book {
    counted: HashMap<RowKey, Counted>,
    looked_at: Option<Instant>,
    pub rates: HashMap<RowKey, Rates>,
    pub histories: HashMap<RowKey, VecDeque<f64>>,
    /// The states that a queue pair was seen in, and when.
    pub states: HashMap<RowKey, Vec<(u8, Instant)>>,
}

/// States of a queue pair that are kept.
const MAX_STATES_SEEN: usize = 8;

impl Book {
    /// Learns what was counted.
    pub fn learn(&mut self, snapshot: &Snapshot, now: Instant) {
        let seconds = self.looked_at.replace(now).map(|before| now.duration_since(before).as_secs_f64());
        let mut counted = HashMap::new();
        self.rates.clear();
        for process in &snapshot.processes {
            let Ok(report) = &process.report else {
                // What it had counted counts when it answers again.
                let before = self.counted.iter().filter(|(key, _)| key.pid == process.pid);
                counted.extend(before.map(|(key, before)| (*key, before.clone())));
                continue;
            };
            let key = RowKey { pid: process.pid, queue_pair: None };
            counted.insert(key, of_process(process, report));
            for pair in &report.queue_pairs {
                let key = RowKey { pid: process.pid, queue_pair: Some(pair.number) };
                counted.insert(key, Counted { counters: pair.counters, ..Counted::default() });
                self.note_state(key, pair, now);
            }
        }
        for (key, now) in &counted {
            let rates = match (self.counted.get(key), seconds) {
                (Some(before), Some(seconds)) if seconds > 0.0 => between(before, now, seconds),
                _ => Rates::default(),
            };
            if self.histories.len() < MAX_HISTORIES || self.histories.contains_key(key) {
                let history = self.histories.entry(*key).or_default();
                history.push_back(rates.bytes);
                history.drain(..history.len().saturating_sub(HISTORY_LENGTH));
            }
            self.rates.insert(*key, rates);
        }
        self.histories.retain(|key, _| counted.contains_key(key));
        self.states.retain(|key, _| counted.contains_key(key));
        self.counted = counted;
    }

    fn note_state(&mut self, key: RowKey, pair: &QueuePair, now: Instant) {
        if self.states.len() >= MAX_HISTORIES && !self.states.contains_key(&key) || pair.busy > 0 {
            return;
        }
        let states = self.states.entry(key).or_default();
        if states.last().is_none_or(|(state, _)| *state != pair.state) {
            states.push((pair.state, now));
            states.drain(..states.len().saturating_sub(MAX_STATES_SEEN));
        }
    }

    pub fn of(&self, key: RowKey) -> Rates {
        self.rates.get(&key).cloned().unwrap_or_default()
    }
}

fn of_process(process: &ProcessSnapshot, report: &Report) -> Counted {
    let mut counters = Counters::default();
    report.ports.iter().for_each(|port| counters += port.counters);
    let mut drops: Vec<(String, u64)> =
        report.activity.drops.iter().map(|drops| (format!("dropped, {}", drops.reason), drops.count)).collect();
    let wakes = transport::packet_counters::EngineWakes::NAMES.iter().zip(counters.engine_wakes.values());
    drops.extend(wakes.map(|(reason, count)| (format!("wakes, {reason}"), count)));
    Counted { counters, engine_nanos: process.engine_nanos.unwrap_or(0), polls: report.activity.empty_polls, drops }
}

/// A counter that has begun anew counts from 0.
fn grown(before: u64, now: u64) -> f64 {
    (if now < before { now } else { now - before }) as f64
}

fn between(before: &Counted, now: &Counted, seconds: f64) -> Rates {
    let rate = |of: fn(&Counters) -> u64| grown(of(&before.counters), of(&now.counters)) / seconds;
    let of_before =
        |reason: &str| before.drops.iter().find(|(known, _)| known == reason).map_or(0, |(_, count)| *count);
    let reasons: Vec<(String, f64)> = now
        .drops
        .iter()
        .map(|(reason, count)| (reason.clone(), grown(of_before(reason), *count) / seconds))
        .filter(|(_, rate)| *rate > 0.0)
        .collect();
    let sum = |begin: &str| reasons.iter().filter(|(reason, _)| reason.starts_with(begin)).map(|(_, rate)| rate).sum();
    Rates {
        messages: rate(|it| it.traffic.sends) + rate(|it| it.traffic.receives),
        bytes: rate(|it| it.traffic.sent_octets) + rate(|it| it.traffic.received_octets),
        retransmissions: rate(|it| it.incidents.retries),
        not_ready: rate(|it| it.incidents.rnr_naks_received + it.incidents.rnr_naks_sent),
        drops: sum("dropped"),
        wakes: sum("wakes"),
        polls: grown(before.polls, now.polls) / seconds,
        engine: grown(before.engine_nanos, now.engine_nanos) / 1e9 / seconds,
        reasons,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::snapshot::tests::sample;
    use std::time::Duration;

    /// A snapshot in which the first process and its queue pair have counted so much.
    pub fn counted(times: u64) -> Snapshot {
        let mut snapshot = sample();
        snapshot.processes[0].engine_nanos = Some(times * 250_000_000);
        let report = snapshot.processes[0].report.as_mut().unwrap();
        let mut counters = Counters::default();
        counters.traffic.sends = 1000 * times;
        counters.traffic.sent_octets = 5_000_000 * times;
        counters.incidents.retries = 3 * times;
        report.queue_pairs[0].counters = counters;
        counters.engine_wakes.timeout = 40 * times;
        report.ports[0].counters = counters;
        report.activity.empty_polls = 9_000 * times;
        report.activity.drops = vec![inventory::Drops { reason: "duplicate".into(), count: 2 * times }];
        snapshot
    }

    #[test]
    fn rates_are_differences_per_second() {
        let (mut book, start) = (Book::default(), Instant::now());
        book.learn(&counted(1), start);
        book.learn(&counted(3), start + Duration::from_secs(2));
        let process = RowKey { pid: 4242, queue_pair: None };
        let rates = book.of(process);
        assert_eq!((rates.messages, rates.bytes, rates.retransmissions), (1000.0, 5e6, 3.0));
        assert_eq!((rates.drops, rates.wakes, rates.polls, rates.engine), (2.0, 40.0, 9000.0, 0.25));
        assert_eq!(rates.reasons, [("dropped, duplicate".to_owned(), 2.0), ("wakes, timeout".to_owned(), 40.0)]);
        let pair = book.of(RowKey { queue_pair: Some(0x0001_a2b3), ..process });
        assert_eq!((pair.messages, pair.drops), (1000.0, 0.0));
        // The process began anew, under the same number.
        book.learn(&counted(1), start + Duration::from_secs(3));
        assert_eq!(book.of(process).messages, 1000.0);
        assert_eq!(Vec::from(book.histories[&process].clone()), [0.0, 5e6, 5e6]);
        // While it is silent nothing is known, and nothing is lost.
        let mut silent = counted(1);
        silent.processes[0].report = Err(inventory::NoReport::Silent);
        book.learn(&silent, start + Duration::from_secs(4));
        assert_eq!(book.of(process).messages, 0.0);
        book.learn(&counted(2), start + Duration::from_secs(5));
        assert_eq!(book.of(process).messages, 1000.0);
    }

    #[test]
    fn what_is_kept_is_bounded_and_goes_with_its_process() {
        let (mut book, start) = (Book::default(), Instant::now());
        for second in 0..3 * HISTORY_LENGTH as u64 {
            let mut snapshot = counted(second);
            snapshot.processes[0].report.as_mut().unwrap().queue_pairs[0].state = (second % 7) as u8;
            book.learn(&snapshot, start + Duration::from_secs(second));
        }
        let pair = RowKey { pid: 4242, queue_pair: Some(0x0001_a2b3) };
        assert_eq!((book.histories[&pair].len(), book.states[&pair].len()), (HISTORY_LENGTH, MAX_STATES_SEEN));
        let mut snapshot = sample();
        snapshot.processes.clear();
        book.learn(&snapshot, start + Duration::from_secs(1000));
        assert!(book.histories.is_empty() && book.states.is_empty() && book.counted.is_empty());
    }
}
