//! What may be in the tree of dependencies: licences, one version of each crate, crates of the official registry. The
//! rules are in `deny.toml`, which is cargo-deny's. Where cargo-deny is installed it is asked, also for advisories;
//! elsewhere the same rules are checked here, since to build it takes minutes.

mod licence;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;

use serde::Deserialize;

use crate::process::{self, cargo};

/// Where crates come from.
const OFFICIAL: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks the tree and returns what it found, or everything that is wrong.
pub fn check(root: &Path) -> Result<String, String> {
    let is_there = cargo(root).args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if is_there.is_ok_and(|status| status.success()) {
        return with_cargo_deny(root);
    }
    let text = std::fs::read_to_string(root.join("deny.toml")).map_err(|e| format!("deny.toml: {e}"))?;
    let rules: Rules =
        toml::from_str(&text).map_err(|e| format!("deny.toml has a rule that is not understood: {e}"))?;
    let mut packages = BTreeSet::new();
    for target in &rules.graph.targets {
        packages.extend(packages_of(root, target)?);
    }
    let wrong = rules.broken_by(&packages);
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    let foreign = packages.iter().filter(|package| package.source.is_some()).count();
    Ok(format!(
        "{foreign} crates of others: licences, versions and sources as in deny.toml\n\
        advisories were not looked at: cargo-deny is not installed (cargo install cargo-deny --locked)"
    ))
}

fn with_cargo_deny(root: &Path) -> Result<String, String> {
    process::run(cargo(root).args(["deny", "check", "licenses", "bans", "sources"]))?;
    // Without a network there is no database, which says nothing about the tree.
    if let Err(error) = process::run(cargo(root).args(["deny", "fetch", "db"])) {
        return Ok(format!("as deny.toml wants it; advisories were not looked at: {error}"));
    }
    process::run(cargo(root).args(["deny", "--offline", "check", "advisories"]))?;
    Ok("as deny.toml wants it, and without advisories".into())
}

/// The part of `deny.toml` that is in use. What is not known here would not be checked, so it is an error.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    licenses: Licences,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Licences {
    allow: Vec<String>,
    #[serde(rename = "unused-allowed-license")]
    unused: Level,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Level,
    /// Here they are always included.
    #[serde(rename = "multiple-versions-include-dev")]
    _include_dev: bool,
    #[serde(default)]
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    /// `name@version`, of which the last parts may be missing.
    #[serde(rename = "crate")]
    package: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Level,
    unknown_git: Level,
}

/// Nothing here is only warned of.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Deny,
    Allow,
}

#[derive(Clone, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None for ours.
    source: Option<String>,
}

fn packages_of(root: &Path, target: &str) -> Result<Vec<Package>, String> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let mut command = cargo(root);
    command.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    let metadata: Metadata =
        serde_json::from_str(&process::output(&mut command)?).map_err(|e| format!("cargo metadata changed: {e}"))?;
    Ok(metadata.packages)
}

impl Rules {
    /// Every rule that the packages break, in a sentence each.
    fn broken_by(&self, packages: &BTreeSet<Package>) -> Vec<String> {
        let mut wrong = self.licences(packages);
        wrong.extend(self.versions(packages));
        wrong.extend(self.sources(packages));
        wrong
    }

    fn licences(&self, packages: &BTreeSet<Package>) -> Vec<String> {
        let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
        for Package { name, version, license, .. } in packages {
            let Some(expression) = license else {
                wrong.push(format!("{name} {version} names no licence"));
                continue;
            };
            match licence::chosen(expression, &self.licenses.allow) {
                Some(licences) => used.extend(licences),
                None => wrong.push(format!("{name} {version} is under {expression:?}, which deny.toml does not allow")),
            }
        }
        if self.licenses.unused == Level::Deny {
            let unused = self.licenses.allow.iter().filter(|licence| !used.contains(licence.as_str()));
            wrong.extend(unused.map(|licence| format!("deny.toml allows {licence}, which no crate needs")));
        }
        wrong
    }

    fn versions(&self, packages: &BTreeSet<Package>) -> Vec<String> {
        if self.bans.multiple_versions == Level::Allow {
            return Vec::new();
        }
        let mut wrong = Vec::new();
        for skip in &self.bans.skip {
            if skip.reason.is_empty() {
                wrong.push(format!("deny.toml passes {} over without a reason", skip.package));
            }
            if !packages.iter().any(|package| skip.is_for(package)) {
                wrong.push(format!("deny.toml passes {} over, which is not in the tree", skip.package));
            }
        }
        let mut versions = BTreeMap::<_, Vec<_>>::new();
        for package in packages.iter().filter(|package| !self.bans.skip.iter().any(|skip| skip.is_for(package))) {
            versions.entry(&package.name).or_default().push(&*package.version);
        }
        let several = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
        wrong.extend(several.map(|(name, versions)| format!("{name} is in the tree as {}", versions.join(" and "))));
        wrong
    }

    fn sources(&self, packages: &BTreeSet<Package>) -> Vec<String> {
        let forbidden = |source: &str| match source.split_once('+') {
            Some(("git", _)) => self.sources.unknown_git == Level::Deny,
            _ => self.sources.unknown_registry == Level::Deny && source != OFFICIAL,
        };
        let from = |package: &Package| {
            let source = package.source.as_ref().filter(|source| forbidden(source))?;
            Some(format!("{} {} comes from {source}", package.name, package.version))
        };
        packages.iter().filter_map(from).collect()
    }
}

impl Skip {
    fn is_for(&self, package: &Package) -> bool {
        let (name, version) = self.package.split_once('@').unwrap_or((&self.package, ""));
        let rest = package.version.strip_prefix(version);
        name == package.name && rest.is_some_and(|rest| version.is_empty() || rest.is_empty() || rest.starts_with('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        graph.targets = []
        licenses = { allow = ["MIT", "Unicode-3.0"], unused-allowed-license = "deny" }
        bans = { multiple-versions = "deny", multiple-versions-include-dev = true, skip = [{ crate = "old@1", reason = "so" }] }
        sources = { unknown-registry = "deny", unknown-git = "deny" }
    "#;

    fn package(name: &str, version: &str, licence: &str, source: &str) -> Package {
        let [name, version, licence, source] = [name, version, licence, source].map(str::to_string);
        Package { name, version, license: Some(licence), source: Some(source) }
    }

    /// What a tree breaks that has all that the rules mention, and these.
    fn broken(more: &[Package]) -> Vec<String> {
        let rules: Rules = toml::from_str(RULES).unwrap();
        let usual =
            [package("old", "1.2.3", "MIT AND Unicode-3.0", OFFICIAL), package("old", "2.0.0", "MIT", OFFICIAL)];
        rules.broken_by(&usual.iter().chain(more).cloned().collect())
    }

    #[test]
    fn what_keeps_to_the_rules_is_fine() {
        assert!(broken(&[package("fine", "1.0.0", "GPL-3.0 OR MIT", OFFICIAL)]).is_empty());
    }

    #[test]
    fn another_licence_is_not() {
        let wrong = broken(&[package("closed", "1.0.0", "MIT AND Secret", OFFICIAL)]);
        assert_eq!(wrong, [r#"closed 1.0.0 is under "MIT AND Secret", which deny.toml does not allow"#]);
        let none = Package { license: None, ..package("closed", "1.0.0", "", OFFICIAL) };
        assert_eq!(broken(&[none]), ["closed 1.0.0 names no licence"]);
    }

    #[test]
    fn a_second_version_is_not_unless_it_is_passed_over() {
        assert_eq!(broken(&[package("old", "2.1.0", "MIT", OFFICIAL)]), ["old is in the tree as 2.0.0 and 2.1.0"]);
        assert_eq!(broken(&[package("old", "10.0.0", "MIT", OFFICIAL)]), ["old is in the tree as 10.0.0 and 2.0.0"]);
    }

    #[test]
    fn another_source_is_not() {
        for source in ["git+https://example.org/a", "registry+https://example.org/index"] {
            assert_eq!(broken(&[package("a", "1.0.0", "MIT", source)]), [format!("a 1.0.0 comes from {source}")]);
        }
    }

    #[test]
    fn what_no_crate_needs_does_not_stay_in_the_rules() {
        let rules: Rules = toml::from_str(RULES).unwrap();
        let wrong = rules.broken_by(&[package("fine", "1.0.0", "MIT", OFFICIAL)].into());
        let unused = "deny.toml allows Unicode-3.0, which no crate needs";
        assert_eq!(wrong, [unused, "deny.toml passes old@1 over, which is not in the tree"]);
    }

    #[test]
    fn a_rule_that_is_not_checked_is_an_error() {
        assert!(toml::from_str::<Rules>(&format!("{RULES}\nbans.deny = []")).is_err());
    }
}
