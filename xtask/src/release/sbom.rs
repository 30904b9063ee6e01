//! What is linked into the program and the libraries, as CycloneDX has it: each crate with its licence and the checksum
//! of the registry, and who needs whom. The same source gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::packages;
use crate::process::{self, cargo, run};
use crate::toolchain::Machine;

/// What is handed to people is made of these.
const SHIPPED: [&str; 3] = ["ubiverbs-cli", "ubiverbs-capi", "ubiverbs-paths"];

/// What looks at the list with CycloneDX's own schema, as pip knows it.
const VALIDATOR: &str = "cyclonedx-python-lib[json-validation]==11.12.0";

/// A crate: name and version.
type Package = (String, String);

/// Who needs whom.
type Graph = BTreeMap<Package, BTreeSet<Package>>;

/// Writes the list, lets CycloneDX's schema judge it, and returns where it is.
pub fn write(root: &Path, place: &Path, version: &str, moment: u64, machines: &[Machine]) -> Result<PathBuf, String> {
    let mut graph = Graph::new();
    for machine in machines {
        for name in SHIPPED {
            let mut tree = cargo(root);
            tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "depth", "--format", " {p}"]);
            tree.args(["--package", name, "--target", &machine.target()]);
            read_tree(&process::output(&mut tree)?, &mut graph)?;
        }
    }
    let path = place.join(format!("ubiverbs-{version}.cdx.json"));
    let rust = process::output(Command::new("rustc").current_dir(root).arg("--version"))?;
    let rust = rust.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
    let bill = bill(&graph, &Known::of(root)?, version, &time(moment)?, &rust);
    let text = serde_json::to_string_pretty(&bill).map_err(|e| format!("no JSON: {e}"))?;
    packages::write(&path, &(text + "\n"))?;
    // A number of its own, which the content gives.
    let sum = super::digest(&path)?;
    let number = format!("urn:uuid:{}-{}-8{}-8{}-{}", &sum[..8], &sum[8..12], &sum[13..16], &sum[17..20], &sum[20..32]);
    let mut bill = bill;
    bill["serialNumber"] = Value::String(number);
    let text = serde_json::to_string_pretty(&bill).map_err(|e| format!("no JSON: {e}"))?;
    packages::write(&path, &(text + "\n"))?;
    let python = crate::wheel::environment(&process::target_directory(root)?.join("release-python"), &[VALIDATOR])?;
    run(Command::new(python).arg(root.join("xtask/release/validate.py")).arg(&path))?;
    Ok(path)
}

/// A moment, as JSON documents say it.
pub fn time(moment: u64) -> Result<String, String> {
    let mut date = Command::new("date");
    let text = process::output(date.args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]).arg(format!("--date=@{moment}")))?;
    Ok(text.trim().to_owned())
}

/// Adds what `cargo tree` says, whose lines begin with their depth. What it has shown before it does not open again.
fn read_tree(text: &str, graph: &mut Graph) -> Result<(), String> {
    let mut above: Vec<Package> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name), Some(version)) = (words.next(), words.next(), words.next()) else {
            return Err(format!("cargo tree says what is not understood: {line}"));
        };
        let depth: usize = depth.parse().map_err(|_| format!("cargo tree says no depth: {line}"))?;
        let package = (name.to_owned(), version.trim_start_matches('v').to_owned());
        above.truncate(depth);
        if let Some(parent) = above.last() {
            graph.entry(parent.clone()).or_default().insert(package.clone());
        }
        graph.entry(package.clone()).or_default();
        above.push(package);
    }
    Ok(())
}

/// What cargo knows of crates.
struct Known {
    licences: BTreeMap<Package, String>,
    /// Those of the registry have one.
    checksums: BTreeMap<Package, String>,
}

impl Known {
    fn of(root: &Path) -> Result<Known, String> {
        let text = process::output(cargo(root).args(["metadata", "--locked", "--format-version", "1"]))?;
        let metadata: Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata is not JSON: {e}"))?;
        let word = |package: &Value, name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let all = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let licences =
            all.iter().map(|it| ((word(it, "name"), word(it, "version")), word(it, "license").replace('/', " OR ")));
        let lock = fs::read_to_string(root.join("Cargo.lock")).map_err(|e| format!("Cargo.lock: {e}"))?;
        let lock: toml::Value = toml::from_str(&lock).map_err(|e| format!("Cargo.lock: {e}"))?;
        let locked = lock.get("package").and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let checksum = |package: &toml::Value| {
            let word = |name: &str| package.get(name).and_then(toml::Value::as_str).map(str::to_owned);
            Some(((word("name")?, word("version")?), word("checksum")?))
        };
        Ok(Known { licences: licences.collect(), checksums: locked.iter().filter_map(checksum).collect() })
    }
}

/// How a crate is named everywhere.
fn address((name, version): &Package) -> String {
    format!("pkg:cargo/{name}@{version}")
}

fn bill(graph: &Graph, known: &Known, version: &str, time: &str, rust: &str) -> Value {
    let whole = format!("pkg:generic/ubiverbs@{version}");
    let standard = format!("pkg:generic/rust-std@{rust}");
    let component = |package: &Package| {
        let mut component = json!({
            "type": "library",
            "bom-ref": address(package),
            "name": package.0,
            "version": package.1,
            "purl": address(package),
        });
        if let Some(licence) = known.licences.get(package).filter(|licence| !licence.is_empty()) {
            component["licenses"] = json!([{ "expression": licence }]);
        }
        if let Some(checksum) = known.checksums.get(package) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        component
    };
    let mut components: Vec<Value> = graph.keys().map(component).collect();
    components.push(json!({
        "type": "library", "bom-ref": standard, "name": "rust-std", "version": rust, "purl": standard,
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
    }));
    let shipped = graph.keys().filter(|(name, _)| SHIPPED.contains(&name.as_str())).map(address);
    let mut needs = vec![json!({ "ref": whole, "dependsOn": shipped.collect::<Vec<_>>() })];
    for (package, needed) in graph {
        let needed = needed.iter().map(address).chain([standard.clone()]);
        needs.push(json!({ "ref": address(package), "dependsOn": needed.collect::<Vec<_>>() }));
    }
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "tools": { "components": [{ "type": "application", "name": "cargo xtask release", "version": version }] },
            "component": {
                "type": "application", "bom-ref": whole, "name": "ubiverbs", "version": version,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            },
        },
        "components": components,
        "dependencies": needs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> Package {
        (name.to_owned(), version.to_owned())
    }

    const TREE: &str = "0 ubiverbs-cli v0.2.0 (/source/crates/cli)\n1 clap v4.6.0\n2 clap_derive v4.6.0 (proc-macro)\n\
                        1 ubiverbs-hca v0.2.0 (/source/crates/hca)\n2 libc v0.2.1\n1 libc v0.2.1\n1 clap v4.6.0 (*)\n";

    #[test]
    fn a_tree_says_who_needs_whom() {
        let mut graph = Graph::new();
        read_tree(TREE, &mut graph).unwrap();
        assert_eq!(graph.len(), 5);
        assert_eq!(graph[&package("ubiverbs-hca", "0.2.0")], BTreeSet::from([package("libc", "0.2.1")]));
        assert_eq!(graph[&package("ubiverbs-cli", "0.2.0")].len(), 3);
        assert_eq!(graph[&package("clap", "4.6.0")].len(), 1);
        assert!(read_tree("x y z", &mut graph).is_err() && read_tree("0 y", &mut graph).is_err());
    }

    #[test]
    fn the_bill_names_each_crate_once_with_licence_and_checksum() {
        let mut graph = Graph::new();
        read_tree(TREE, &mut graph).unwrap();
        let libc = package("libc", "0.2.1");
        let known = Known {
            licences: BTreeMap::from([(libc.clone(), "MIT OR Apache-2.0".to_owned())]),
            checksums: BTreeMap::from([(libc, "ab".repeat(32))]),
        };
        let bill = bill(&graph, &known, "0.2.0", "2026-01-01T00:00:00Z", "1.95.0");
        let components = bill["components"].as_array().unwrap();
        assert_eq!(components.len(), graph.len() + 1);
        let libc = components.iter().find(|it| it["name"] == "libc").unwrap();
        assert_eq!(libc["purl"], "pkg:cargo/libc@0.2.1");
        assert_eq!(libc["hashes"][0]["content"], "ab".repeat(32));
        assert_eq!(libc["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["dependencies"][0]["dependsOn"], json!(["pkg:cargo/ubiverbs-cli@0.2.0"]));
        let names: BTreeSet<&str> = components.iter().filter_map(|it| it["bom-ref"].as_str()).collect();
        for entry in bill["dependencies"].as_array().unwrap() {
            for needed in entry["dependsOn"].as_array().unwrap() {
                assert!(names.contains(needed.as_str().unwrap()), "{needed} is no component");
            }
        }
    }
}
