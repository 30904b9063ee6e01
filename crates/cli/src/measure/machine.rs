//! What one must know of the machine to judge figures that were measured on it.

use serde_json::{Value, json};
use std::fs;

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

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn load() -> Option<f64> {
    line("/proc/loadavg")?.split(' ').next()?.parse().ok()
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
