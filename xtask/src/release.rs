//! Everything that a release hands to people, from one command: it checks, packs, counts what is linked in, adds the
//! checksums up, and says what a person must type to publish. It uploads nothing, and changes nothing in the repository.
//!
//! The packages are built in a target directory of their own, with the paths of this machine taken out of them, so that
//! another folder or another user's machine gives the same bytes. `--twice` proves it.

pub mod image;
mod publishing;
mod sbom;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, run as run_command};
use crate::toolchain::Machine;
use crate::{crates, packages, prerequisites, test};

#[derive(clap::Args)]
pub struct Options {
    /// Go on where the version, CHANGELOG.md or the working tree are not ready, and say what is missing at the end.
    #[arg(long)]
    rehearse: bool,
    /// Leave `cargo xtask test` out, as it has just passed.
    #[arg(long)]
    untested: bool,
    /// Build everything a second time, from a copy of the source in another folder, and compare the bytes.
    #[arg(long)]
    twice: bool,
    /// Only for this machine. Unless it is named there are packages for both, and an image for the one we run on.
    #[arg(long, value_name = "MACHINE")]
    target: Option<Machine>,
    /// Make no image. It takes Debian's packages from the network.
    #[arg(long)]
    no_image: bool,
}

/// Where builds for a release are, below the source: not where a person's are, which have other paths in them.
const BUILD: &str = "target/reproducible";

/// What is handed to people, and the list of its checksums.
const PLACE: &str = "target/publish";
const SUMS: &str = "SHA256SUMS";

/// Makes everything.
pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let version = packages::version(root)?;
    let missing = publishing::not_ready(root, &version)?;
    if !missing.is_empty() && !options.rehearse {
        return Err(format!("{}\n`--rehearse` goes on all the same, for a try", missing.join("\n")));
    }
    prerequisites::wheel()?;
    // Dependencies and the public interface are among the tests; crates are packed by their check.
    if !options.untested {
        test::run(root, &test::Options::default())?;
    }
    println!("==> crates");
    println!("{}", crates::check(root)?);

    let place = root.join(PLACE);
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
    let machines = options.target.map_or_else(|| vec![Machine::X86_64, Machine::Aarch64], |machine| vec![machine]);
    let here = Machine::here()?;
    let moment = packages::moment(root);
    println!("==> sbom");
    let mut files = vec![sbom::write(root, &place, &version, moment, &machines)?];
    let made = build(root, root, &machines, moment)?;
    for file in made.iter().chain(&crates::archives(root)?) {
        files.push(keep(file, &place)?);
    }
    if machines.contains(&here) && !options.no_image {
        println!("==> image");
        files.push(image::build(root, &place, &version, moment, here)?);
    }
    if options.twice {
        println!("{}", compare(root, &made, &machines, moment)?);
    }
    sums(&place, &files)?;
    println!("\nin {}:\n{}", place.display(), listing(&files)?);
    println!("{}", publishing::instructions(&version, &files));
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("a rehearsal; before a release:\n{}", missing.join("\n"))),
    }
}

/// Builds packages and wheels from a source; returns where they are.
fn build(root: &Path, source: &Path, machines: &[Machine], moment: u64) -> Result<Vec<PathBuf>, String> {
    let target = source.join(BUILD);
    let flags = remapping(root, source)?;
    let here = Machine::here()?;
    let mut made = Vec::new();
    for machine in machines {
        let name = machine.name();
        for task in ["dist", "wheel"] {
            println!("==> {task} for {name}");
            let mut command = Command::new(env::current_exe().map_err(|e| format!("no program of our own: {e}"))?);
            command.args([task, "--target", name]).current_dir(source);
            // As cargo sets it: the source that is built is not always the one that this program was built from.
            command.env("CARGO_MANIFEST_DIR", source.join("xtask"));
            command.env("CARGO_TARGET_DIR", &target).env("CARGO_INCREMENTAL", "0");
            command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")).env_remove("RUSTFLAGS");
            run_command(command.env("SOURCE_DATE_EPOCH", moment.to_string()))?;
        }
        let below = if *machine == here { target.clone() } else { target.join(machine.target()) };
        made.extend(entries(&below.join("packages"))?);
        let wheels = entries(&target.join("wheel"))?;
        let of_machine = format!("_{name}.whl");
        made.extend(wheels.into_iter().filter(|path| path.display().to_string().ends_with(&of_machine)));
    }
    Ok(made)
}

/// What takes this machine's paths out of what the compiler writes.
fn remapping(root: &Path, source: &Path) -> Result<Vec<String>, String> {
    let mut rustc = Command::new("rustc");
    let sysroot = process::output(rustc.current_dir(root).args(["--print", "sysroot"]))?;
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    // Of several that fit, the last one counts.
    let pairs = [(cargo, "/cargo"), (PathBuf::from(sysroot.trim()), "/rust"), (source.to_path_buf(), "/ubiverbs")];
    Ok(pairs.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect())
}

/// The files of a directory, by name.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let found = fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut files: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    Ok(files)
}

/// Copies a file to where everything is; returns where it is now.
fn keep(file: &Path, place: &Path) -> Result<PathBuf, String> {
    let to = place.join(file.file_name().unwrap_or_default());
    fs::copy(file, &to).map_err(|e| format!("cannot copy {} to {}: {e}", file.display(), to.display()))?;
    Ok(to)
}

/// Builds once more in another folder and compares.
fn compare(root: &Path, made: &[PathBuf], machines: &[Machine], moment: u64) -> Result<String, String> {
    let other = env::temp_dir().join(format!("ubiverbs-again-{}", std::process::id()));
    let result = copy_source(root, &other).and_then(|()| build(root, &other, machines, moment));
    let again = result.map_err(|e| format!("{e}\nthe second source is in {}", other.display()))?;
    let digests = |files: &[PathBuf]| -> Result<BTreeMap<String, String>, String> {
        files.iter().map(|file| Ok((name_of(file), digest(file)?))).collect()
    };
    let (first, second) = (digests(made)?, digests(&again)?);
    let differing: Vec<&str> =
        first.iter().filter(|(name, sum)| second.get(*name) != Some(sum)).map(|(name, _)| name.as_str()).collect();
    if !differing.is_empty() || first.len() != second.len() {
        return Err(format!("other bytes from {}: {}", other.display(), differing.join(", ")));
    }
    fs::remove_dir_all(&other).map_err(|e| format!("cannot remove {}: {e}", other.display()))?;
    Ok(format!("built twice, in two folders: {} files have the same bytes", first.len()))
}

/// Copies what git knows, and what it does not ignore.
fn copy_source(root: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|e| format!("cannot make {}: {e}", to.display()))?;
    let line = "git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -c | tar -x -C \"$1\"";
    run_command(Command::new("sh").current_dir(root).args(["-c", line, "sh"]).arg(to))
}

/// The SHA-256 of a file, as hexadecimal digits.
fn digest(file: &Path) -> Result<String, String> {
    let text = process::output(Command::new("sha256sum").arg(file))?;
    text.split_whitespace().next().map(str::to_owned).ok_or_else(|| "sha256sum said nothing".into())
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Writes the list that `sha256sum --check` reads.
fn sums(place: &Path, files: &[PathBuf]) -> Result<(), String> {
    let mut lines: Vec<String> = files
        .iter()
        .map(|file| Ok(format!("{}  {}\n", digest(file)?, name_of(file))))
        .collect::<Result<_, String>>()?;
    lines.sort_by(|a, b| a[64..].cmp(&b[64..]));
    packages::write(&place.join(SUMS), &lines.concat())?;
    run_command(Command::new("sha256sum").current_dir(place).args(["--check", "--quiet", "--strict", SUMS]))
}

fn listing(files: &[PathBuf]) -> Result<String, String> {
    let line = |file: &PathBuf| {
        let size = fs::metadata(file).map_err(|e| format!("{}: {e}", file.display()))?.len();
        Ok(format!("{:>10} KiB  {}", size.div_ceil(1024), name_of(file)))
    };
    Ok(files.iter().map(line).collect::<Result<Vec<String>, String>>()?.join("\n"))
}
