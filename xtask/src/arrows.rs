//! Which crate may use which. The table is the design's; a dependency that is not in it is an error even if it would
//! compile, because the direction of the arrows is what lets the core be tested without the shell. ARCHITECTURE.md draws
//! the crates in lines and lists the crates of others: both are compared with what there is.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::process;

/// A crate and what it may depend on. ARCHITECTURE.md draws the same in lines.
const ARROWS: &[(&str, &[&str])] = &[
    ("wire", &[]),
    // Rewrites tokens, and uses nothing of ours.
    ("macros", &[]),
    ("trace", &["wire"]),
    ("latch", &[]),
    ("memory", &["wire", "latch"]),
    ("abi", &[]),
    // Preloaded into programs that are not ours: it uses the C library and nothing else.
    ("paths", &[]),
    ("transport", &["wire", "trace"]),
    // Ids say what a queue pair must be told, in the transport's words.
    ("cm", &["wire", "trace", "transport"]),
    ("rsocket", &["wire"]),
    ("mad", &["wire", "trace"]),
    ("checks", &["wire", "trace"]),
    // The format of recordings, for those who write them and those who read them.
    ("recording", &["wire", "trace"]),
    // A language and its machine: it knows nothing of the NIC that breaks.
    ("failures", &[]),
    // Cards as data, in tables that are read as scripts are.
    ("profiles", &["failures"]),
    ("host", &["wire", "latch"]),
    // Reports of processes: what hca tells, and programs ask for.
    ("inventory", &["wire", "trace", "transport", "host"]),
    ("netlink", &["transport", "inventory"]),
    ("link", &["wire", "trace", "latch", "host"]),
    (
        "hca",
        &[
            "wire",
            "trace",
            "transport",
            "cm",
            "mad",
            "checks",
            "failures",
            "profiles",
            "recording",
            "latch",
            "memory",
            "host",
            "inventory",
            "link",
        ],
    ),
    ("sim", &["wire", "trace", "transport", "cm"]),
    // Networks of switches around the transport; chance and marks as `sim` has them; memory is asked for early as in
    // `link`.
    ("fabric", &["wire", "trace", "transport", "sim", "link"]),
    ("sockets", &["wire", "transport", "latch", "hca", "rsocket"]),
    // Small programs on the simulator.
    ("litmus", &["wire", "transport", "sim"]),
    // What the Rust API asks of a NIC. It stands on the core, so that a NIC behind it knows nothing of the API.
    ("seam", &["wire", "transport", "cm"]),
    // Programs under test run on the simulator; their memory is the program's own, and what the device allows is what
    // the software NIC allows.
    ("simulation", &["wire", "transport", "cm", "latch", "memory", "hca", "sim", "seam"]),
    (
        "ubiverbs",
        &["wire", "transport", "cm", "checks", "profiles", "latch", "hca", "sockets", "seam", "simulation", "macros"],
    ),
    // Draws a timeline: it knows neither events nor recordings.
    ("web", &[]),
    // Groups of processes, on the safe API alone.
    ("cluster", &["ubiverbs"]),
    // Regions, windows and device memory are registered in the words of `memory`, which the NIC owns.
    (
        "capi",
        &["wire", "trace", "transport", "cm", "mad", "checks", "profiles", "latch", "memory", "hca", "abi", "sockets"],
    ),
    // `demo --simulated` runs on the simulator, `simulate` on networks.
    (
        "cli",
        &[
            "wire",
            "trace",
            "transport",
            "cm",
            "checks",
            "failures",
            "profiles",
            "recording",
            "web",
            "hca",
            "inventory",
            "netlink",
            "ubiverbs",
            "capi",
            "sim",
            "fabric",
            "litmus",
            "cluster",
        ],
    ),
    // Tests across crates, and the harness they share.
    ("scenarios", &["wire", "trace", "transport", "cm", "sim", "rsocket"]),
    // The bodies of fuzz targets: rings, messages between processes, texts, the C interface.
    (
        "fuzzing",
        &[
            "wire",
            "trace",
            "mad",
            "checks",
            "failures",
            "recording",
            "memory",
            "host",
            "inventory",
            "netlink",
            "link",
            "hca",
            "abi",
            "capi",
            "ubiverbs",
            "rsocket",
            "fabric",
            "cluster",
        ],
    ),
    // Tests between processes, at the level of the NIC and of the safe API, and the program that is the other process.
    ("processes", &["host", "trace", "wire", "transport", "memory", "recording", "hca", "ubiverbs"]),
    // Starts programs; uses nothing of ours.
    ("programs", &[]),
    // Programs of the book's pages.
    ("book", &["ubiverbs"]),
    // Runs C programs that break rules.
    ("check-programs", &["checks"]),
    // A program of the safe API, as anybody could write one.
    ("soak", &["ubiverbs"]),
    // Tests of the safe API's streams on runtimes, and an example of them with hyper.
    ("streams", &["ubiverbs"]),
    ("example-http", &["ubiverbs"]),
    // Victims are programs of the safe API, groups of them, or socket programs; attackers write packets, and speak to
    // the host's registry.
    ("attack", &["wire", "trace", "rsocket", "host", "hca", "sockets", "ubiverbs", "cluster", "inventory"]),
    ("xtask", &[]),
];

/// What comes from here on in the table is for tests and tasks, and no part of what ARCHITECTURE.md draws.
const FIRST_OF_TESTS: &str = "scenarios";

/// Tests may reach for what they test with, but never for the programs at the end of the arrows.
const NEVER_FOR_TESTS: &[&str] = &["attack", "book", "cli", "fuzzing", "processes", "scenarios", "soak", "xtask"];

/// Reads the workspace's dependencies and returns what it found, or every forbidden arrow.
pub fn check(root: &Path) -> Result<String, String> {
    let metadata: Metadata =
        serde_json::from_value(process::metadata(root)?).map_err(|e| format!("cargo metadata changed: {e}"))?;
    let page = root.join("ARCHITECTURE.md");
    let page = fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
    let mut wrong = forbidden(&metadata);
    wrong.extend(drawn_wrong(&page));
    wrong.extend(listed_wrong(&page, &metadata));
    if wrong.is_empty() {
        let arrows = metadata.packages.iter().flat_map(|package| &package.dependencies).filter(|d| d.path.is_some());
        return Ok(format!("{} crates, {} arrows, all as designed", metadata.packages.len(), arrows.count()));
    }
    Err(wrong.join("\n"))
}

/// The part of `cargo metadata` that matters here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<String>,
}

/// Arrows that the picture of ARCHITECTURE.md does not have: each leads from a line to one further down.
fn drawn_wrong(page: &str) -> Vec<String> {
    let lines: Vec<Vec<&str>> = page
        .lines()
        .skip_while(|line| !line.starts_with("A crate imports only crates of the lines below"))
        .skip(1)
        .skip_while(|line| line.is_empty())
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().collect())
        .collect();
    let line_of = |name: &str| lines.iter().position(|line| line.contains(&name));
    let mut wrong = Vec::new();
    for (from, allowed) in ARROWS.iter().take_while(|(name, _)| *name != FIRST_OF_TESTS) {
        match line_of(from) {
            None => wrong.push(format!("ARCHITECTURE.md does not draw {from}")),
            from_line => wrong.extend(
                allowed
                    .iter()
                    .filter(|to| line_of(to) <= from_line)
                    .map(|to| format!("ARCHITECTURE.md draws {to} no further down than {from}")),
            ),
        }
    }
    wrong
}

/// Crates of others that ARCHITECTURE.md does not list, or not with the crates of ours that use them. "libraries" are
/// any of ours; what only tests use is listed somewhere.
fn listed_wrong(page: &str, metadata: &Metadata) -> Vec<String> {
    let table = page.split("## Dependencies").nth(1).unwrap_or_default();
    let rows: Vec<(Vec<&str>, Vec<&str>)> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
        .map(|(names, rest)| (words(names), words(rest.split(" | ").next().unwrap_or_default())))
        .collect();
    let ours =
        |name: &str| ARROWS.iter().take_while(|(first, _)| *first != FIRST_OF_TESTS).any(|(ours, _)| *ours == name);
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let user = short(&package.name);
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_none()) {
            let name = &dependency.name;
            let Some((_, users)) = rows.iter().find(|(names, _)| names.contains(&name.as_str())) else {
                wrong.push(format!("{user} uses {name}, which ARCHITECTURE.md does not list"));
                continue;
            };
            let counts = ours(user) && dependency.kind.as_deref() != Some("dev");
            if counts && !users.contains(&"libraries") && !users.contains(&user) {
                wrong.push(format!("{user} uses {name}, and ARCHITECTURE.md does not say so"));
            }
        }
    }
    for (names, users) in &rows {
        for user in users.iter().filter(|user| ours(user)) {
            let package = metadata.packages.iter().find(|package| short(&package.name) == *user);
            let uses =
                |package: &Package| package.dependencies.iter().any(|other| names.contains(&other.name.as_str()));
            if package.is_some_and(|package| !uses(package)) {
                wrong.push(format!("{user} uses none of {}, and ARCHITECTURE.md says so", names.join(", ")));
            }
        }
    }
    wrong
}

fn words(cell: &str) -> Vec<&str> {
    cell.split([',', ' ', ';']).filter(|word| !word.is_empty()).collect()
}

fn forbidden(metadata: &Metadata) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let from = short(&package.name);
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == from) else {
            wrong.push(format!("{from}: not in the table of arrows (xtask/src/arrows.rs); say what it may use"));
            continue;
        };
        // Ours are the ones that come from a path.
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let to = short(&dependency.name);
            let for_tests = dependency.kind.as_deref() == Some("dev");
            let fine = if for_tests { from != "abi" && !NEVER_FOR_TESTS.contains(&to) } else { allowed.contains(&to) };
            if !fine {
                let kind = dependency.kind.as_deref().map(|kind| format!(" ({kind}-dependency)")).unwrap_or_default();
                wrong.push(format!("{from} -> {to}{kind}: forbidden; {from} may use {}", list(allowed)));
            }
        }
    }
    wrong
}

/// `ubiverbs-wire` is called `wire` in the design and in the code; the crate `ubiverbs` keeps its name.
fn short(package: &str) -> &str {
    package.strip_prefix("ubiverbs-").unwrap_or(package)
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing of ours".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace from `(crate, dependency, kind)` triples.
    fn workspace(arrows: &[(&str, &str, Option<&str>)]) -> Metadata {
        let packages = arrows
            .iter()
            .map(|(from, to, kind)| Package {
                name: format!("ubiverbs-{from}"),
                dependencies: vec![Dependency {
                    name: format!("ubiverbs-{to}"),
                    kind: kind.map(str::to_string),
                    path: Some("/somewhere".into()),
                }],
            })
            .collect();
        Metadata { packages }
    }

    fn refused(from: &str, to: &str, kind: Option<&str>) -> bool {
        !forbidden(&workspace(&[(from, to, kind)])).is_empty()
    }

    #[test]
    fn arrows_of_the_design_are_allowed() {
        for (from, to) in [
            ("trace", "wire"),
            ("transport", "trace"),
            ("cm", "wire"),
            ("link", "trace"),
            ("memory", "wire"),
            ("hca", "memory"),
            ("hca", "link"),
            ("sim", "transport"),
            ("capi", "abi"),
            ("cli", "sim"),
        ] {
            assert!(!refused(from, to, None), "{from} -> {to}");
        }
    }

    #[test]
    fn arrows_against_the_design_are_reported() {
        for (from, to) in [
            ("transport", "memory"),
            ("transport", "link"),
            ("transport", "sim"),
            ("wire", "trace"),
            ("cm", "hca"),
            ("transport", "cm"),
            ("ubiverbs", "abi"),
            ("abi", "wire"),
            ("memory", "trace"),
            ("memory", "transport"),
            ("link", "transport"),
            ("hca", "sim"),
        ] {
            assert!(refused(from, to, None), "{from} -> {to}");
        }
    }

    #[test]
    fn a_report_names_both_ends_and_what_would_be_allowed() {
        let wrong = forbidden(&workspace(&[("transport", "memory", None)]));
        assert_eq!(wrong, ["transport -> memory: forbidden; transport may use wire, trace"]);
    }

    #[test]
    fn tests_may_use_the_simulator_but_not_the_program() {
        assert!(!refused("transport", "sim", Some("dev")));
        assert!(refused("transport", "cli", Some("dev")));
        assert!(refused("abi", "wire", Some("dev")));
    }

    #[test]
    fn build_dependencies_follow_the_strict_rule() {
        assert!(refused("transport", "sim", Some("build")));
    }

    #[test]
    fn a_crate_outside_the_table_is_reported() {
        let wrong = forbidden(&workspace(&[("shiny", "wire", None)]));
        assert_eq!(wrong.len(), 1);
        assert!(wrong[0].starts_with("shiny: not in the table"), "{wrong:?}");
    }

    #[test]
    fn dependencies_of_others_do_not_matter() {
        let mut metadata = workspace(&[("wire", "serde", None)]);
        metadata.packages[0].dependencies[0].path = None;
        assert!(forbidden(&metadata).is_empty());
    }

    #[test]
    fn a_picture_without_a_crate_or_upside_down_is_reported() {
        let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../ARCHITECTURE.md")).unwrap();
        assert_eq!(drawn_wrong(&page), [""; 0]);
        assert!(!drawn_wrong(&page.replacen(" checks", "", 1)).is_empty());
        assert!(!drawn_wrong(&page.replacen("cluster", "wire", 1).replacen(" wire ", " cluster ", 1)).is_empty());
    }

    #[test]
    fn crates_of_others_are_listed_with_those_that_use_them() {
        let metadata = |from: &str| {
            let mut metadata = workspace(&[(from, "x", None)]);
            metadata.packages[0].dependencies[0].path = None;
            metadata.packages[0].dependencies[0].name = "toml".into();
            metadata
        };
        let page = "## Dependencies\n\n| toml | wire (`x`), cli; tests | reads |\n";
        assert!(listed_wrong(page, &metadata("wire")).is_empty());
        assert_eq!(listed_wrong(page, &metadata("trace")).len(), 1, "the row does not name it");
        assert_eq!(listed_wrong("", &metadata("wire")).len(), 1, "there is no row");
    }

    #[test]
    fn every_name_in_the_table_is_a_crate_of_the_table() {
        for (from, allowed) in ARROWS {
            for to in *allowed {
                assert!(ARROWS.iter().any(|(name, _)| name == to), "{from} -> {to}");
                assert_ne!(from, to);
            }
        }
    }
}
