//! Scripts of simulated clusters: what people write, and what they did not mean to.

use fabric::{Network, Script, Workload};

/// The largest networks and the most messages that are worth an input's time.
const HOSTS: u32 = 32;
const MESSAGES: u32 = 4;

/// How long a cluster runs, in nanoseconds.
const RUN: u64 = 5_000;

/// Takes bytes for a script, and runs it for a moment if it is one.
///
/// # Panics
/// If a script is refused without a place and a reason, or more packets arrive than were sent.
pub fn scripts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut script = Script::new(|file: &str| Err(format!("there is no {file}")));
    if let Err(error) = script.add_all(&text) {
        assert!(error.origin.starts_with("line ") && !error.what.is_empty(), "{error}");
        return;
    }
    let messages = match script.scenario().workload {
        Workload::Incast { messages, .. } | Workload::Permutation { messages, .. } => messages,
        Workload::AllReduceTree { bytes, chunk } => bytes / chunk.max(1) / 64,
        _ => 1,
    };
    if script.scenario().hosts > HOSTS || messages > MESSAGES {
        return;
    }
    match script.finish() {
        Err(error) => assert!(!error.origin.is_empty() && !error.what.is_empty(), "{error}"),
        Ok(scenario) => {
            let mut network = Network::new(&scenario).expect("what was checked can be laid out");
            network.run_until(RUN);
            let report = network.report();
            assert!(report.counts.packets_delivered + report.dropped() <= report.counts.packets_sent, "{report}");
        }
    }
}
