//! Whether the crates can be published: what a registry wants of each manifest, that each package has its licences and
//! what its sources include, the order in which they would be uploaded, and that a program which depends on the packed
//! crates alone builds, with few crates. Nothing is uploaded.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;

use crate::process::{self, cargo};

/// How many crates of others a program that depends on `ubiverbs` may have to build and to trust, and how long a
/// processor may work on all. How many ours are is a question of their layout.
const CRATES_OF_OTHERS_MAX: usize = 11;
const PROCESSOR_SECONDS_MAX: f64 = 25.0;

/// Features of `ubiverbs` that must exist; none is on by default.
const FEATURES: &[&str] =
    &["bytemuck", "bytes", "capture", "checks", "futures", "memmap2", "scripts", "serde", "tokio"];

/// Files that every package has.
const FILES: &[&str] = &["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

#[derive(clap::Args)]
pub struct Options {
    /// Build every crate from its package as well, as a registry's users would; takes minutes.
    #[arg(long)]
    verify: bool,
    /// Ask the registry too: `cargo publish --dry-run`, which needs a network. It uploads nothing.
    #[arg(long)]
    dry_run: bool,
    /// Build the dependant anew and judge how much processor time that took; other work on the machine makes it more.
    #[arg(long)]
    measure: bool,
    /// Build the dependant with the oldest Rust that the crates name; rustup gets it if it is not there.
    #[arg(long)]
    oldest: bool,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// The part of `cargo metadata` that matters here.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    description: Option<String>,
    license: Option<String>,
    rust_version: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
    readme: Option<String>,
    manifest_path: PathBuf,
    publish: Option<Vec<String>>,
    metadata: Value,
    features: std::collections::BTreeMap<String, Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    kind: Option<String>,
    path: Option<String>,
}

impl Package {
    fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|to| !to.is_empty())
    }

    fn directory(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("/"))
    }
}

/// What `cargo xtask test` checks; needs no network.
pub fn check(root: &Path) -> Result<String, String> {
    run(root, &Options { verify: false, dry_run: false, measure: false, oldest: false })
}

pub fn run(root: &Path, options: &Options) -> Result<String, String> {
    let metadata: Metadata =
        serde_json::from_value(process::metadata(root)?).map_err(|e| format!("cargo metadata changed: {e}"))?;
    let ours: Vec<&Package> = metadata.packages.iter().filter(|p| p.is_published()).collect();
    let mut wrong: Vec<String> = ours.iter().flat_map(|package| complaints(package, &ours)).collect();
    for package in &ours {
        wrong.extend(strangers(package)?);
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }

    let order = pack(root, &ours, options.verify)?;
    if options.dry_run {
        let mut command = cargo(root);
        command.args(["publish", "--dry-run", "--no-verify", "--allow-dirty"]);
        process::run(command.args(selection(&ours)))?;
    }
    let built = dependant(root, &ours, options)?;
    Ok(format!("{} crates can be published, in this order: {}\n{built}", order.len(), order.join(", ")))
}

fn selection(ours: &[&Package]) -> Vec<String> {
    ours.iter().flat_map(|package| ["--package".to_owned(), package.name.clone()]).collect()
}

/// What a manifest lacks, or has wrong.
fn complaints(package: &Package, ours: &[&Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut need = |fine: bool, what: &str| {
        if !fine {
            wrong.push(format!("{}: {what}", package.name));
        }
    };
    need(package.name == "ubiverbs" || package.name.starts_with("ubiverbs-"), "names of ours begin with `ubiverbs`");
    need(package.description.as_deref().is_some_and(|text| text.len() >= 10), "no description");
    need(package.license.as_deref() == Some("MIT OR Apache-2.0"), "the licence is MIT OR Apache-2.0");
    need(package.rust_version.is_some(), "no rust-version");
    let keyword =
        |word: &String| word.len() <= 20 && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_+".contains(c));
    need((1..=5).contains(&package.keywords.len()) && package.keywords.iter().all(keyword), "one to five keywords");
    need((1..=5).contains(&package.categories.len()), "one to five categories");
    need(package.readme.as_deref() == Some("README.md"), "no README.md of its own");
    need(package.metadata.pointer("/docs/rs").is_some(), "no [package.metadata.docs.rs]");
    need(
        package.features.get("default").is_none_or(|on| package.name != "ubiverbs" || on.is_empty()),
        "features are off by default",
    );
    if package.name == "ubiverbs" {
        for feature in FEATURES {
            need(package.features.contains_key(*feature), &format!("no feature {feature}"));
        }
    }
    for dependency in package.dependencies.iter().filter(|d| d.path.is_some() && d.kind.as_deref() != Some("dev")) {
        let exact = format!("={}", package.version);
        let published = ours.iter().any(|other| other.name == dependency.name);
        need(published, &format!("it needs {}, which is not published", dependency.name));
        // Crates of ours know one another's insides: they go together, or not at all.
        need(dependency.req == exact, &format!("it takes {} {}, not {exact}", dependency.name, dependency.req));
    }
    wrong
}

/// Sources that include files which the package does not have.
fn strangers(package: &Package) -> Result<Vec<String>, String> {
    let (mut wrong, mut folders) = (Vec::new(), vec![package.directory().join("src")]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries {
            let path = entry.map_err(|e| e.to_string())?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|ending| ending != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            for included in included(&text) {
                if leaves(package.directory(), &folder.join(&included)) {
                    wrong.push(format!("{} includes {included}, which its package has not", path.display()));
                }
            }
        }
    }
    Ok(wrong)
}

/// What `include!`, `include_str!` and `include_bytes!` name.
fn included(source: &str) -> Vec<String> {
    ["include!(\"", "include_str!(\"", "include_bytes!(\""]
        .into_iter()
        .flat_map(|mark| source.match_indices(mark).map(move |(at, mark)| &source[at + mark.len()..]))
        .filter_map(|rest| rest.split_once('"').map(|(name, _)| name.to_owned()))
        .collect()
}

/// Whether a path with `..` in it leads out of a directory.
fn leaves(directory: &Path, path: &Path) -> bool {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    !plain.starts_with(directory)
}

/// Packs all crates, as `cargo publish` would; answers their order.
fn pack(root: &Path, ours: &[&Package], verify: bool) -> Result<Vec<String>, String> {
    // What is there already is not fetched again, and from here on nothing is.
    process::run(cargo(root).args(["fetch", "--quiet"]))?;
    let mut command = cargo(root);
    command.args(["package", "--offline", "--allow-dirty"]).args(selection(ours));
    if !verify {
        command.arg("--no-verify");
    }
    let output = command.output().map_err(|e| format!("cargo did not start: {e}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("cargo package failed: {}\n{told}", output.status));
    }
    let packed = told.lines().filter_map(|line| line.trim().strip_prefix("Packaging ubiverbs"));
    let order: Vec<String> =
        packed.filter_map(|rest| rest.split(' ').next()).map(|rest| format!("ubiverbs{rest}")).collect();
    if order.len() != ours.len() {
        return Err(format!("{} crates were packed, not {}\n{told}", order.len(), ours.len()));
    }
    for package in ours {
        let files = files(root, package)?;
        if let Some(missing) = FILES.iter().find(|file| !files.contains(**file)) {
            return Err(format!("the package {} has no {missing}", package.name));
        }
    }
    Ok(order)
}

/// The packages that the check has made, in the order of their names.
pub fn archives(root: &Path) -> Result<Vec<PathBuf>, String> {
    let metadata: Metadata =
        serde_json::from_value(process::metadata(root)?).map_err(|e| format!("cargo metadata changed: {e}"))?;
    let ours = metadata.packages.iter().filter(|p| p.is_published());
    let mut found = ours.map(|package| archive(root, package)).collect::<Result<Vec<PathBuf>, String>>()?;
    found.sort();
    Ok(found)
}

fn archive(root: &Path, package: &Package) -> Result<PathBuf, String> {
    let name = format!("{}-{}.crate", package.name, package.version);
    Ok(process::target_directory(root)?.join("package").join(name))
}

/// The files of a package, without the directory that all are in.
fn files(root: &Path, package: &Package) -> Result<BTreeSet<String>, String> {
    let list = process::output(Command::new("tar").arg("-tzf").arg(archive(root, package)?))?;
    Ok(list.lines().filter_map(|line| line.split_once('/')).map(|(_, file)| file.to_owned()).collect())
}

/// Builds a program that knows nothing but the packages, and counts what it needed.
fn dependant(root: &Path, ours: &[&Package], options: &Options) -> Result<String, String> {
    let place = process::target_directory(root)?.join("dependant");
    if options.measure {
        let _ = fs::remove_dir_all(&place);
    }
    let (unpacked, program) = (place.join("unpacked"), place.join("program"));
    let _ = fs::remove_dir_all(&unpacked);
    let made = fs::create_dir_all(&unpacked).and_then(|()| fs::create_dir_all(program.join("src")));
    made.map_err(|e| format!("{}: {e}", place.display()))?;
    let mut patches = String::new();
    for package in ours {
        // All times in a package are the same; cargo would take what changed for what it built before.
        process::run(Command::new("tar").arg("-xzmf").arg(archive(root, package)?).arg("-C").arg(&unpacked))?;
        let Package { name, version, .. } = package;
        patches += &format!("{name} = {{ path = \"../unpacked/{name}-{version}\" }}\n");
    }
    let version = &ours.first().ok_or("nothing is published")?.version;
    let manifest = format!(
        "[package]\nname = \"dependant\"\nedition = \"2024\"\n\n[dependencies]\nubiverbs = \"{version}\"\n\n\
         [patch.crates-io]\n{patches}\n[workspace]\n"
    );
    let source = "fn main() -> Result<(), ubiverbs::Error> {\n    println!(\"{} devices\", ubiverbs::devices()?.len());\n    Ok(())\n}\n";
    let written = fs::write(program.join("Cargo.toml"), manifest)
        .and_then(|()| fs::write(program.join("src/main.rs"), source))
        // The versions that the workspace has, so that nothing must be fetched.
        .and_then(|()| fs::copy(root.join("Cargo.lock"), program.join("Cargo.lock")));
    written.map_err(|e| format!("{}: {e}", program.display()))?;

    let oldest = ours.first().and_then(|package| package.rust_version.clone()).ok_or("no rust-version")?;
    let start = |words: &[&str]| {
        let mut command = if options.oldest { Command::new("rustup") } else { cargo(root) };
        if options.oldest {
            command.args(["run", "--install", &oldest, "cargo"]);
        }
        command.args(words).arg("--offline").current_dir(&program);
        command.env("CARGO_TARGET_DIR", place.join(if options.oldest { "oldest" } else { "target" }));
        // As crates of a registry are built, which these stand for.
        command.env("CARGO_INCREMENTAL", "0");
        command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC_WRAPPER");
        command
    };
    let tree = process::output(&mut start(&["tree", "--quiet", "--edges", "normal,build", "--prefix", "none"]))?;
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let is_of_others = |name: &&&str| **name != "dependant" && !name.starts_with("ubiverbs");
    let (count, of_others) = (crates.len() - 1, crates.iter().filter(is_of_others).count());
    if of_others > CRATES_OF_OTHERS_MAX {
        return Err(format!(
            "a program that depends on ubiverbs builds {of_others} crates of others, more than \
             {CRATES_OF_OTHERS_MAX}:\n{tree}"
        ));
    }
    let (begin, before) = (Instant::now(), processor_seconds()?);
    process::run(&mut start(&["build", "--quiet"]))?;
    let (wall, processor) = (begin.elapsed().as_secs_f64(), processor_seconds()? - before);
    let folder = if options.oldest { "oldest" } else { "target" };
    works_without_capture(&place.join(folder).join("debug/dependant"), &place.join("never.pcapng"))?;
    let with = if options.oldest { format!("Rust {oldest}") } else { "this Rust".into() };
    let told = format!(
        "a program that depends on them builds {count} crates, {of_others} of others, with {with}: {processor:.1} s of \
         processor time, {wall:.1} s"
    );
    if options.measure && processor > PROCESSOR_SECONDS_MAX {
        return Err(format!("{told}; the goal is {PROCESSOR_SECONDS_MAX} s"));
    }
    Ok(told)
}

/// Runs the program. It must find a device, and say that it has no captures rather than leave one out.
fn works_without_capture(program: &Path, capture: &Path) -> Result<(), String> {
    let output = Command::new(program).env("UBIVERBS_PCAP", capture).output();
    let output = output.map_err(|e| format!("{} did not start: {e}", program.display()))?;
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let fine =
        output.status.success() && said.contains("devices") && complained.contains("without the feature `capture`");
    if fine && !capture.exists() {
        Ok(())
    } else {
        Err(format!("the dependant: {}\n{said}{complained}", output.status))
    }
}

/// Processor time of the processes that we started and that have ended.
fn processor_seconds() -> Result<f64, String> {
    let stat = fs::read_to_string("/proc/self/stat").map_err(|e| format!("/proc/self/stat: {e}"))?;
    // After the name, which may have anything in it: state is the first, cutime the 14th, cstime the 15th.
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest).ok_or("/proc/self/stat changed")?;
    let ticks: u64 = fields.split(' ').skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    // Linux tells programs of a hundred ticks a second, whatever its own clock does.
    Ok(ticks as f64 / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_found() {
        let source =
            "const A: &str = include_str!(\"../a.txt\");\n#[doc = include_str!(\"b.md\")]\ninclude_bytes!(\"c\")";
        assert_eq!(included(source), ["../a.txt", "b.md", "c"]);
        assert!(included("include_str!(concat!(env!(\"OUT_DIR\"), \"x\"))").is_empty());
    }

    #[test]
    fn ways_out_of_a_package_are_found() {
        let package = Path::new("/w/crates/wire");
        assert!(!leaves(package, Path::new("/w/crates/wire/src/../link/table.txt")));
        assert!(leaves(package, Path::new("/w/crates/wire/src/../../trace/x")));
    }

    #[test]
    fn processor_time_grows_with_children() {
        let before = processor_seconds().unwrap();
        let spun = Command::new("sh").args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).status();
        assert!(spun.unwrap().success());
        assert!(processor_seconds().unwrap() > before);
    }
}
