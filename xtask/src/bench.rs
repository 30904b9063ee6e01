//! The benchmarks: the small ones of the crates; `ubiverbs bench`; and programs of others on our NIC (perftest) beside programs that measure what
//! one would use instead (TCP by qperf and sockperf, shared memory by UCX). Of all it makes one table of ratios, which can be checked against bands that were
//! written down. Absolute times are noise on shared machines.

mod bands;
mod divan;
mod programs;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::{dist, process};

/// What `cargo xtask bench` can be told.
#[derive(clap::Args)]
pub struct Options {
    /// Run only the small benchmarks whose names contain this, and nothing else.
    #[arg(conflicts_with_all = ["ratios", "check"])]
    filter: Option<String>,
    /// Leave the small benchmarks out.
    #[arg(long)]
    ratios: bool,
    /// Fail where a ratio is outside its band in this file (benches/ratios.json); leaves the small benchmarks out.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Spend seconds, not minutes.
    #[arg(long)]
    quick: bool,
}

/// How many rounds programs of others have, unless it is quick.
const ROUNDS: u32 = 10;

/// Ratios by name.
type Ratios = BTreeMap<String, Ratio>;

/// One row of the table.
#[derive(Clone, Debug, PartialEq)]
struct Ratio {
    what: String,
    /// The middle of the rounds.
    ratio: f64,
    spread: Option<[f64; 2]>,
}

/// Runs them, and writes everything into `bench` below the target directory.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let bands = options.check.as_deref().map(bands::read).transpose()?;
    let directory = process::target_directory(root)?.join("bench");
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    if !options.ratios && bands.is_none() {
        divan::run(root, options.filter.as_deref(), &directory)?;
    }
    if options.filter.is_some() {
        println!("written to {}", directory.display());
        return Ok(());
    }
    dist::unpacked(root)?;
    let ubiverbs = process::target_directory(root)?.join("dist/bin/ubiverbs");
    let mut ratios = own(&ubiverbs, options.quick, &directory)?;
    let (of_programs, missing) = programs::run(&ubiverbs, if options.quick { 1 } else { ROUNDS })?;
    ratios.extend(of_programs);
    let table = table(&ratios);
    let write = |name: &str, text: &str| {
        fs::write(directory.join(name), text).map_err(|e| format!("{}: {e}", directory.join(name).display()))
    };
    write("ratios.md", &table)?;
    write("ratios.json", &format!("{:#}\n", document(&ratios)))?;
    println!("\n{table}");
    for missing in missing {
        println!("left out: {missing}");
    }
    println!("written to {}", directory.display());
    bands.map_or(Ok(()), |bands| bands::check(&bands, &ratios).map(|note| println!("{note}")))
}

/// How much worse than its band a ratio may be in a short run, and how many runs it has: other work of the machine makes
/// single rows slow, and not the same ones each time.
const SHORT_RUN_ROOM: f64 = 1.5;
const SHORT_RUNS: u32 = 5;

/// The short form that is part of every test run: our own benchmark in seconds. Fails where a ratio is much worse than
/// its band each time.
pub fn short(root: &Path) -> Result<String, String> {
    let directory = process::target_directory(root)?.join("bench");
    fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let ubiverbs = process::target_directory(root)?.join("dist/bin/ubiverbs");
    let mut bands = bands::widened(bands::read(&root.join("benches/ratios.json"))?, SHORT_RUN_ROOM);
    let mut measured = Ratios::new();
    for _ in 0..SHORT_RUNS {
        measured = own(&ubiverbs, true, &directory)?;
        // Those of other programs are for the long form.
        bands.retain(|name, _| measured.contains_key(name));
        if measured.is_empty() {
            break;
        }
        bands::drop_kept(&mut bands, &measured);
        if bands.is_empty() {
            return Ok(format!("{} ratios, none much worse than its band", measured.len()));
        }
    }
    bands::check(&bands, &measured)
}

/// Our own benchmark: its goals are ratios.
fn own(ubiverbs: &Path, quick: bool, directory: &Path) -> Result<Ratios, String> {
    let [json, page] = ["ubiverbs.json", "ubiverbs.html"].map(|name| directory.join(name));
    let mut command = Command::new(ubiverbs);
    command.arg("bench").args(quick.then_some("--quick")).arg("--json").arg(&json).arg("--html").arg(&page);
    process::run(&mut command)?;
    let text = fs::read_to_string(&json).map_err(|e| format!("{}: {e}", json.display()))?;
    let document: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", json.display()))?;
    Ok(goals(&document))
}

fn goals(document: &Value) -> Ratios {
    let goals = document["goals"].as_array().map(Vec::as_slice).unwrap_or_default();
    let one = |goal: &Value| {
        let spread = goal["spread"][0].as_f64().zip(goal["spread"][1].as_f64()).map(|(least, most)| [least, most]);
        let ratio = Ratio { what: goal["what"].as_str()?.into(), ratio: goal["measured"].as_f64()?, spread };
        Some((goal["name"].as_str()?.into(), ratio))
    };
    goals.iter().filter_map(one).collect()
}

fn document(ratios: &Ratios) -> Value {
    let one = |(name, ratio): (&String, &Ratio)| {
        (name.clone(), json!({ "what": ratio.what, "ratio": ratio.ratio, "spread": ratio.spread }))
    };
    Value::Object(ratios.iter().map(one).collect())
}

fn table(ratios: &Ratios) -> String {
    let width = ratios.values().map(|ratio| ratio.what.len()).max().unwrap_or(0).max("what".len());
    let name_width = ratios.keys().map(String::len).max().unwrap_or(0).max("name".len());
    let row = |name: &str, what: &str, ratio: &str, spread: &str| {
        format!("| {name:<name_width$} | {what:<width$} | {ratio:>7} | {spread:>15} |\n")
    };
    let mut table = row("name", "what", "ratio", "of the rounds") + &row("---", "---", "---:", "---:");
    for (name, ratio) in ratios {
        let spread = ratio.spread.map(|[least, most]| format!("{least:.3}..{most:.3}")).unwrap_or_default();
        table += &row(name, &ratio.what, &format!("{:.3}", ratio.ratio), &spread);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_that_were_measured_become_ratios() {
        let document = json!({ "goals": [
            { "name": "a", "what": "A / TCP", "measured": 0.5, "spread": [0.4, 0.6] },
            { "name": "b", "what": "B", "measured": 2.0, "spread": null },
            { "name": "c", "what": "C", "measured": null, "spread": null },
        ] });
        let ratios = goals(&document);
        assert_eq!(ratios.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((ratios["a"].spread, ratios["b"].spread), (Some([0.4, 0.6]), None));
        let expected = "\
| name | what    |   ratio |   of the rounds |
| ---  | ---     |    ---: |            ---: |
| a    | A / TCP |   0.500 |    0.400..0.600 |
| b    | B       |   2.000 |                 |
";
        assert_eq!(table(&ratios), expected);
    }
}
