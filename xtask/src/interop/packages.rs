//! Debian packages for the virtual machine: downloaded and unpacked below target/interop, never installed. What is there already is not fetched again;
//! remove the directory to get newer ones.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;

/// Depends on the newest kernel.
const KERNEL: &str = "linux-image-amd64";

/// What has the programs of the guest, besides the libraries they need.
const PROGRAMS: [&str; 7] =
    ["busybox-static", "iproute2", "nftables", "ibverbs-utils", "ibverbs-providers", "rdmacm-utils", "perftest"];

/// The directory with all packages unpacked into it.
pub fn fetch(place: &Path) -> Result<PathBuf, String> {
    let unpacked = place.join("unpacked");
    if unpacked.exists() {
        return Ok(unpacked);
    }
    println!("fetching Debian packages for the virtual machine");
    // A source that does not answer is no reason to stop: what is known already may be enough.
    let _ = process::run(Command::new("apt-get").args(["--quiet=2", "update"]));
    let wanted = wanted()?;
    let (archives, fresh) = (place.join("archives"), place.join("unpacked.fresh"));
    for directory in [&archives, &fresh] {
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).map_err(|e| format!("cannot make {}: {e}", directory.display()))?;
    }
    process::run(
        Command::new("apt-get")
            .current_dir(&archives)
            .args(["--quiet=2", "--option", "APT::Sandbox::User=root", "download"])
            .args(&wanted),
    )
    .map_err(|e| format!("cannot download {}\n{e}", wanted.join(" ")))?;
    let entries = fs::read_dir(&archives).map_err(|e| format!("cannot read {}: {e}", archives.display()))?;
    for archive in entries.flatten() {
        process::run(Command::new("dpkg-deb").arg("--extract").arg(archive.path()).arg(&fresh))?;
    }
    let _ = fs::remove_dir_all(&archives);
    fs::rename(&fresh, &unpacked).map_err(|e| format!("cannot make {}: {e}", unpacked.display()))?;
    Ok(unpacked)
}

/// All packages, by name.
fn wanted() -> Result<Vec<String>, String> {
    let kernel = process::output(Command::new("apt-cache").args(["depends", "--important", KERNEL]))?;
    let kernel = first_dependency(&kernel).ok_or_else(|| {
        format!("apt knows no {KERNEL}: the sources must have Debian's main archive, and apt-get update must work")
    })?;
    let closure =
        process::output(Command::new("apt-cache").args(["depends", "--recurse", "--important"]).args(PROGRAMS))?;
    let mut wanted = vec![kernel.to_string()];
    wanted.extend(PROGRAMS.map(str::to_string));
    wanted.extend(libraries(&closure).into_iter().map(str::to_string));
    Ok(wanted)
}

/// The first package that another depends on, in what `apt-cache depends` prints.
fn first_dependency(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.trim_start().strip_prefix("Depends: "))
}

/// Packages of libraries, in what `apt-cache depends --recurse` prints: their lines are those that are not indented.
fn libraries(text: &str) -> BTreeSet<&str> {
    let is_library = |name: &&str| {
        (name.starts_with("lib") || name.starts_with("zlib"))
            && !["-bin", "-common", "-modules"].iter().any(|end| name.ends_with(end))
            && !PROGRAMS.contains(name)
    };
    text.lines().filter(is_library).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_of_apt_are_read() {
        let kernel = "linux-image-amd64\n  Depends: linux-image-6.1.0-42-amd64\n";
        assert_eq!(first_dependency(kernel), Some("linux-image-6.1.0-42-amd64"));
        assert_eq!(first_dependency("linux-image-amd64\n"), None);
        let closure = "perftest\n  Depends: libc6\n  Depends: <libfoo>\nlibc6\nlibcap2-bin\nzlib1g\nlibc6\ndebconf\n";
        assert_eq!(libraries(closure).into_iter().collect::<Vec<_>>(), ["libc6", "zlib1g"]);
    }
}
