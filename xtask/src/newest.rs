//! The newest rdma-core, for tests on this system's older one: its headers, its libraries to compare with, its Python
//! bindings with their test suite, and the Python and C library that these want. All are packages of Debian's testing
//! suite, downloaded into target/newest with an apt configuration of its own and unpacked there; nothing is installed.
//! Remove the directory to download again.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, output, run};

/// What is wanted; apt finds what that needs.
const PACKAGES: [&str; 5] = ["python3-pyverbs", "python3-minimal", "libibverbs-dev", "librdmacm-dev", "libibumad-dev"];

/// What is not wanted of what apt finds, by the beginnings of names: services, and what a program needs that is run by
/// hand.
const UNWANTED: [&str; 7] = ["systemd", "libsystemd", "udev", "openssl-provider", "debconf", "tzdata", "libdb5"];

/// The keys that Debian's lists are signed with.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Sees that everything is there, and returns the directory: `root` has the packages' files, `python3` starts Python
/// with the libraries of `LD_LIBRARY_PATH` before its own, and `version` has the version of rdma-core.
pub fn provide(root: &Path) -> Result<PathBuf, String> {
    let place = process::target_directory(root)?.join("newest");
    fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
    let failed = |e: std::io::Error| format!("{}: {e}", place.display());
    // Tests ask at the same time.
    let lock = File::create(place.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let stamp = place.join("complete");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == PACKAGES.join("\n")) {
        return Ok(place);
    }
    for part in ["root", "apt", "packages"] {
        let _ = fs::remove_dir_all(place.join(part));
    }
    let packages = download(&place)?;
    for package in &packages {
        run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(place.join("root")))?;
    }
    write_version(&place, &packages)?;
    write_python(&place)?;
    // The lists and the packages themselves are of no more use.
    for part in ["apt", "packages"] {
        let _ = fs::remove_dir_all(place.join(part));
    }
    fs::write(&stamp, PACKAGES.join("\n")).map_err(failed)?;
    Ok(place)
}

/// Downloads the packages; answers their files.
fn download(place: &Path) -> Result<Vec<PathBuf>, String> {
    let configuration = Configuration::write(place)?;
    println!("downloading the newest rdma-core into {}, about 45 MB", place.display());
    run(configuration.apt_get().args(["--quiet", "update"]))?;
    let mut ask = configuration.apt_get();
    ask.args(["install", "--yes", "--no-install-recommends", "--print-uris", "--quiet", "--quiet"]).args(PACKAGES);
    let wanted: Vec<String> = output(&mut ask)?.lines().filter_map(package_of).collect();
    if wanted.is_empty() {
        return Err("apt-get found no packages of rdma-core".into());
    }
    let packages = place.join("packages");
    fs::create_dir_all(&packages).map_err(|e| format!("cannot make {}: {e}", packages.display()))?;
    run(configuration.apt_get().args(["--quiet", "download"]).args(wanted).current_dir(&packages))?;
    let found = fs::read_dir(&packages).map_err(|e| format!("{}: {e}", packages.display()))?;
    Ok(found.flatten().map(|entry| entry.path()).collect())
}

/// The package of a line `'URL' NAME_VERSION_MACHINE.deb SIZE SUM`, if it is wanted.
fn package_of(line: &str) -> Option<String> {
    let file = line.strip_prefix('\'')?.split_whitespace().nth(1)?;
    let name = file.split('_').next()?;
    (!UNWANTED.iter().any(|unwanted| name.starts_with(unwanted))).then(|| name.to_owned())
}

/// An apt of its own: it knows one suite, and nothing of what is installed.
struct Configuration {
    file: PathBuf,
}

impl Configuration {
    fn write(place: &Path) -> Result<Configuration, String> {
        let apt = place.join("apt");
        for directory in ["lists/partial", "cache/archives/partial"] {
            let directory = apt.join(directory);
            fs::create_dir_all(&directory).map_err(|e| format!("cannot make {}: {e}", directory.display()))?;
        }
        let file = apt.join("apt.conf");
        let at = |name: &str| apt.join(name).display().to_string();
        let sources = format!("deb [signed-by={KEYS}] {} testing main\n", mirror()?);
        let text = format!(
            "Dir::State::lists \"{}\";\nDir::State::status \"/dev/null\";\nDir::Cache \"{}\";\n\
             Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"/dev/null\";\nAPT::Sandbox::User \"\";\n\
             Acquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n",
            at("lists"),
            at("cache"),
            at("sources.list"),
        );
        let write = |name: &str, text: &str| fs::write(apt.join(name), text).map_err(|e| format!("{name}: {e}"));
        write("sources.list", &sources)?;
        write("apt.conf", &text)?;
        Ok(Configuration { file })
    }

    fn apt_get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", &self.file).env("DEBIAN_FRONTEND", "noninteractive");
        command
    }
}

/// The mirror of Debian that this system gets its packages from.
fn mirror() -> Result<String, String> {
    let listed = output(Command::new("apt-get").args(["indextargets", "--format", "$(SITE)", "Created-By: Packages"]))
        .map_err(|e| format!("{e}\nthe newest rdma-core is a package of Debian, and apt-get gets it"))?;
    let ends_well = |site: &&str| site.trim_end_matches('/').ends_with("/debian");
    let site = listed.lines().map(str::trim).find(ends_well);
    site.map(str::to_owned).ok_or_else(|| format!("no mirror of Debian among the sources of apt:\n{listed}"))
}

/// The directory of libraries, below `root`.
pub fn libraries(place: &Path) -> PathBuf {
    place.join(format!("root/usr/lib/{}-linux-gnu", std::env::consts::ARCH))
}

fn write_version(place: &Path, packages: &[PathBuf]) -> Result<(), String> {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let bindings = packages.iter().filter_map(name).find(|name| name.starts_with("python3-pyverbs_"));
    let version = bindings.as_deref().and_then(|name| name.split('_').nth(1)).ok_or("python3-pyverbs is missing")?;
    fs::write(place.join("version"), version).map_err(|e| format!("cannot write the version: {e}"))
}

/// A program that starts Python by its own loader with its own C library: this system's may be older.
fn write_python(place: &Path) -> Result<(), String> {
    let entry = |directory: &Path, wanted: &dyn Fn(&str) -> bool| {
        let entries = fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let mut found = entries.flatten().map(|entry| entry.path());
        let fits = |path: &PathBuf| path.file_name().is_some_and(|name| wanted(&name.to_string_lossy()));
        found.find(fits).ok_or_else(|| format!("{} does not have what is looked for", directory.display()))
    };
    let libraries = libraries(place);
    let loader = entry(&libraries, &|name| name.starts_with("ld-linux"))?;
    let is_version = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let python = entry(&place.join("root/usr/bin"), &|name| name.strip_prefix("python3.").is_some_and(is_version))?;
    // Python starts itself again for some tests, by the name that it was called by.
    let text = format!(
        "#!/bin/sh\nexport PYTHONHOME='{home}' PYTHONDONTWRITEBYTECODE=1\n\
         exec '{loader}' --library-path \"$LD_LIBRARY_PATH:{libraries}\" --argv0 \"$0\" '{python}' \"$@\"\n",
        home = place.join("root/usr").display(),
        loader = loader.display(),
        libraries = libraries.display(),
        python = python.display(),
    );
    let script = place.join("python3");
    fs::write(&script, text)
        .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
        .map_err(|e| format!("cannot write {}: {e}", script.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_packages_are_told_from_the_others() {
        let line = |name: &str| format!("'http://mirror/pool/x.deb' {name}_1%3a2-3_amd64.deb 90912 SHA256:0");
        assert_eq!(package_of(&line("zlib1g")).as_deref(), Some("zlib1g"));
        assert_eq!(package_of(&line("libsystemd-shared")), None);
        assert_eq!(package_of("Reading package lists..."), None);
    }
}
