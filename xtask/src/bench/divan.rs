//! The small benchmarks: divan prints trees for people, this makes a table and JSON out of them.
//! It judges nothing; absolute times are noise on shared machines, ratios of one run are what to read.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::process;

/// Runs `cargo bench` and writes `results.md` and `results.json` into the directory.
pub fn run(root: &Path, filter: Option<&str>, directory: &Path) -> Result<(), String> {
    let mut command = process::cargo(root);
    command.args(["bench", "--workspace"]);
    command.args(filter);
    let mut tree = Tree::default();
    let success = process::watch(&mut command, |line| tree.read(line))?;
    if !success {
        return Err("cargo bench failed: see above".into());
    }
    if tree.results.is_empty() {
        return Err("no benchmark ran".into());
    }
    let table = table(&tree.results);
    let failed = |e: std::io::Error| format!("{}: {e}", directory.display());
    fs::write(directory.join("results.md"), &table).map_err(failed)?;
    let json = serde_json::to_string_pretty(&tree.results).map_err(|e| format!("results.json: {e}"))?;
    fs::write(directory.join("results.json"), json + "\n").map_err(failed)?;
    println!("\n{table}");
    Ok(())
}

/// One benchmark. Times are nanoseconds per iteration; `per_item` is the median divided by what the benchmark counts
/// (packets, mostly), where it counts something.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Measured {
    name: String,
    fastest: f64,
    slowest: f64,
    median: f64,
    mean: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_item: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    throughput: Option<String>,
    /// Allocations per iteration, median; divan leaves them out where there are none or nobody counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    allocations: Option<f64>,
}

/// Reads divan's output line by line.
#[derive(Default)]
struct Tree {
    /// The program, then the groups that are open.
    path: Vec<String>,
    results: Vec<Measured>,
    /// The next line has the number of allocations.
    allocations_follow: bool,
}

impl Tree {
    fn read(&mut self, line: &str) {
        let cells: Vec<&str> = line.split('│').collect();
        if cells.iter().any(|cell| cell.trim() == "median") {
            self.path = line.split_whitespace().next().map(str::to_string).into_iter().collect();
            return;
        }
        let marker = line.find("├─ ").or_else(|| line.find("╰─ "));
        let Some(marker) = marker else {
            self.read_more(line);
            return;
        };
        // Every level of the tree is three characters wide.
        let depth = line.get(..marker).unwrap_or_default().chars().count() / 3;
        self.path.truncate(depth + 1);
        let row = line.get(marker..).unwrap_or_default().chars().skip(3).collect::<String>();
        let cells: Vec<&str> = row.split('│').map(str::trim).collect();
        let (name, fastest) = name_and_time(cells.first().copied().unwrap_or_default());
        self.path.push(name.to_string());
        let time = |index: usize| cells.get(index).and_then(|cell| nanoseconds(cell));
        if let (Some(fastest), Some(slowest), Some(median), Some(mean)) = (fastest, time(1), time(2), time(3)) {
            let name = self.path.join("/");
            self.results.push(Measured { name, fastest, slowest, median, mean, ..Measured::default() });
        }
    }

    /// The lines below a benchmark: what it counts per second, what it allocates. Of four columns the third is the
    /// median's.
    fn read_more(&mut self, line: &str) {
        let cells: Vec<&str> = line.trim_start_matches(['│', ' ']).split('│').map(str::trim).collect();
        let (Some(first), Some(median), Some(last)) = (cells.first(), cells.get(2), self.results.last_mut()) else {
            return;
        };
        if std::mem::take(&mut self.allocations_follow) {
            last.allocations = median.parse().ok();
        } else if *first == "alloc:" {
            self.allocations_follow = true;
        } else if median.ends_with("/s") {
            last.throughput = Some((*median).to_string());
            last.per_item = items_per_second(median).map(|rate| 1e9 / rate);
        }
    }
}

/// Splits `event_site_off    10.86 µs`. A group has a name and no time.
fn name_and_time(cell: &str) -> (&str, Option<f64>) {
    let words: Vec<&str> = cell.split_whitespace().collect();
    if let [_, .., number, unit] = words.as_slice()
        && let Some(time) = nanoseconds(&format!("{number} {unit}"))
    {
        let name = cell.strip_suffix(unit).unwrap_or(cell).trim_end();
        return (name.strip_suffix(number).unwrap_or(name).trim_end(), Some(time));
    }
    (cell, None)
}

fn nanoseconds(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let scale = match unit {
        "ps" => 1e-3,
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}

/// Reads `91.71 Mitem/s`; bytes and cycles are no items.
fn items_per_second(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let scale = match unit.strip_suffix("item/s")? {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}

fn table(results: &[Measured]) -> String {
    let width = results.iter().map(|result| result.name.len()).max().unwrap_or(0).max("benchmark".len());
    let mut table = row(width, ["benchmark", "median", "fastest", "per item", "throughput", "allocations"]);
    table += &row(width, ["---", "---:", "---:", "---:", "---:", "---:"]);
    for result in results {
        table += &row(
            width,
            [
                &result.name,
                &show(result.median),
                &show(result.fastest),
                &result.per_item.map(show).unwrap_or_default(),
                result.throughput.as_deref().unwrap_or_default(),
                &result.allocations.map(|count| count.to_string()).unwrap_or_default(),
            ],
        );
    }
    table
}

fn row(width: usize, [name, rest @ ..]: [&str; 6]) -> String {
    let [median, fastest, per_item, throughput, allocations] = rest;
    format!(
        "| {name:<width$} | {median:>10} | {fastest:>10} | {per_item:>10} | {throughput:>13} | {allocations:>11} |\n"
    )
}

fn show(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 1e3 => format!("{ns:.2} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Timer precision: 27 ns
packets                      fastest       │ slowest       │ median        │ mean          │ samples │ iters
├─ encode                                  │               │               │               │         │
│  ├─ 64                     10.86 µs      │ 14.51 µs      │ 10.9 µs       │ 10.97 µs      │ 100     │ 100
│  │                         92.04 Mitem/s │ 68.88 Mitem/s │ 91.71 Mitem/s │ 91.1 Mitem/s  │         │
│  ╰─ 4096                   1.5 ms        │ 2 ms          │ 1.75 ms       │ 1.8 ms        │ 100     │ 100
│                            2.6 GB/s      │ 1.9 GB/s      │ 2.2 GB/s      │ 2.1 GB/s      │         │
│                            max alloc:    │               │               │               │         │
│                              2           │ 2             │ 2             │ 2             │         │
│                              25 B        │ 25 B          │ 25 B          │ 25 B          │         │
│                            alloc:        │               │               │               │         │
│                              3           │ 3             │ 3             │ 3             │         │
│                              25 B        │ 25 B          │ 25 B          │ 25 B          │         │
╰─ parse                     9 ns          │ 11 ns         │ 10 ns         │ 10 ns         │ 100     │ 6400
";

    fn read(output: &str) -> Vec<Measured> {
        let mut tree = Tree::default();
        output.lines().for_each(|line| tree.read(line));
        tree.results
    }

    #[test]
    fn a_tree_becomes_a_list_with_paths() {
        let results = read(OUTPUT);
        let names: Vec<_> = results.iter().map(|result| result.name.as_str()).collect();
        assert_eq!(names, ["packets/encode/64", "packets/encode/4096", "packets/parse"]);
        let times: Vec<_> = results.iter().map(|result| result.median.round()).collect();
        assert_eq!(times, [10_900.0, 1_750_000.0, 10.0]);
    }

    #[test]
    fn items_give_a_time_per_item_and_bytes_do_not() {
        let results = read(OUTPUT);
        let per_item = results[0].per_item.unwrap();
        assert!((10.8..11.0).contains(&per_item), "{per_item}");
        assert_eq!(results[1].per_item, None);
        assert_eq!(results[1].throughput.as_deref(), Some("2.2 GB/s"));
        assert_eq!(results[2].throughput, None);
    }

    #[test]
    fn other_lines_are_ignored() {
        assert!(read("running 0 tests\n\ntest result: ok. 0 passed\n").is_empty());
    }

    #[test]
    fn allocations_are_read_where_they_are_printed() {
        let allocations: Vec<_> = read(OUTPUT).iter().map(|result| result.allocations).collect();
        assert_eq!(allocations, [None, Some(3.0), None]);
    }

    #[test]
    fn the_table_has_a_row_for_each() {
        let table = table(&read(OUTPUT));
        let expected = "\
| benchmark           |     median |    fastest |   per item |    throughput | allocations |
| ---                 |       ---: |       ---: |       ---: |          ---: |        ---: |
| packets/encode/64   |   10.90 us |   10.86 us |   10.90 ns | 91.71 Mitem/s |             |
| packets/encode/4096 |    1.75 ms |    1.50 ms |            |      2.2 GB/s |           3 |
| packets/parse       |   10.00 ns |    9.00 ns |            |               |             |
";
        assert_eq!(table, expected);
    }
}
