//! How large a network may be: the runs of docs/simulate.md with their time and memory, and the cost of an event from
//! 10 hosts to 10,000. `cargo bench -p ubiverbs-fabric --bench scale` runs all of them, with names as arguments some.

use fabric::{Network, Script};
use std::time::Instant;

const RUNS: [(&str, &str); 10] = [
    ("permutation-10", "hosts 10\ntopology fat-tree-3\nworkload permutation bytes 1M messages 100"),
    ("permutation-100", "hosts 100\ntopology fat-tree-3\nworkload permutation bytes 1M messages 10"),
    ("permutation-1000", "hosts 1000\ntopology fat-tree-3\nworkload permutation bytes 1M"),
    ("permutation-4000", "hosts 4000\ntopology fat-tree-3\nworkload permutation bytes 1M"),
    ("permutation-10000", "hosts 10000\ntopology fat-tree-3\nworkload permutation bytes 1M"),
    ("tree-10000", "hosts 10000\ntopology fat-tree-3\nworkload all-reduce-tree bytes 1M"),
    ("ring-1000", "hosts 1000\ntopology fat-tree-3\nworkload all-reduce-ring bytes 1M"),
    ("ring-1000-cabled", "hosts 1000\ntopology ring\nworkload all-reduce-ring bytes 1M"),
    ("mesh-256", "hosts 256\ntopology fat-tree-3\nworkload all-to-all bytes 64K"),
    ("mesh-256-at-once", "hosts 256\ntopology fat-tree-3\nworkload all-to-all bytes 64K parallel 255"),
];

fn main() {
    // Cargo passes flags of its own.
    let (flags, wanted): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|word| word.starts_with("--"));
    if wanted.is_empty() && !flags.iter().any(|flag| flag == "--bench") {
        // A test run, which only wants to see that it compiles.
        return;
    }
    println!(
        "{:<18} {:>9} {:>8} {:>9} {:>8} {:>8} {:>9} {:>9}",
        "run", "events", "seconds", "million/s", "ns each", "MiB", "KiB/host", "finished"
    );
    for (name, text) in RUNS {
        if !wanted.is_empty() && !wanted.iter().any(|word| word == name) {
            continue;
        }
        let scenario = Script::parse(text, |file| Err(file.to_owned())).expect("a script");
        let (begun, busy) = (Instant::now(), processor_nanos());
        let mut network = Network::new(&scenario).expect("a network");
        network.run();
        let (seconds, busy) = (begun.elapsed().as_secs_f64(), (processor_nanos() - busy) as f64);
        let report = network.report();
        assert!(report.complete, "{report}");
        let (events, peak) = (report.counts.events, peak_memory());
        let footprint = network.footprint();
        println!(
            "{name:<18} {events:>9} {seconds:>8.2} {:>9.2} {:>8.0} {:>8} {:>9} {:>9}",
            events as f64 / busy * 1e3,
            busy / events as f64,
            peak >> 20,
            (peak >> 10) / u64::from(report.hosts),
            fabric::units::show_span(report.finished_at),
        );
        println!(
            "{:18} {} queue pairs, at most {} used; {} bytes idle, {} used; at most {} packets; {} dropped, {} pauses",
            "",
            footprint.queue_pairs,
            footprint.most_in_use,
            footprint.idle_bytes,
            footprint.used_bytes,
            footprint.packets,
            report.dropped(),
            report.counts.pauses,
        );
    }
}

/// The most memory this process has had so far, in bytes. Run one by one to have it for each.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse().ok());
    kib.unwrap_or(0) << 10
}

/// Nanoseconds that a processor has worked for this thread: other programs do not count.
fn processor_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}
